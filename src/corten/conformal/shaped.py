"""Other kinds of coverage: robust to wrong odds, within groups, or jointly for all entries of a slice.

Each class wraps a calibrated object and has the same `intervals`; nothing is scored again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from corten.conformal.calibrated import Calibrated, CalibratedScores
from corten.conformal.merged import MergedSplits
from corten.conformal.quantile import as_levels
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import Weights, WithoutNeighbours
from corten.data.arrays import Entries, Flags, Floats, Numbers

Bounds = tuple[Numbers, Numbers]
Listed: TypeAlias = "CalibratedSplit | MergedSplits | Grouped"
"""What has lists of scores that can be changed."""
MIN_GROUP_SIZE = 30.0  # effective sample size of a group: sufficient for finite intervals at 95 %
MIN_ENTRIES_BEYOND = 5.0  # effective number beyond a level of a joint band, to use the quantile without extrapolation
SLOPE_RATIO = 4.0  # of the two tail shares between which the slope of the tail is measured
FORWARDED = (
    "score", "scores", "entries", "weights", "log_weights", "round_numbers", "beyond", "effective_sample_size",
    "to_data", "possible_range",
)  # fmt: skip
SLOPE_ENTRIES = 10.0  # exponential errors that determine a slope about as well as these two bounds do


class TiltedWeights:
    """Weights times a factor that depends on the entry only; `log_tilt` has its logarithm for every entry."""

    def __init__(self, base: Weights, log_tilt: ArrayLike) -> None:
        self.base = base
        self._tilt = np.ravel(np.asarray(log_tilt, np.float64))
        self.neighbour_factor = base.neighbour_factor

    def log_weight(self, entries: Entries) -> Numbers:
        return np.asarray(self.base.log_weight(entries) + self._tilt[entries])

    def of_calibration(self, entries: Entries) -> Numbers:
        return np.asarray(self.base.of_calibration(entries) + self._tilt[entries])


class _Shaped:
    """Intervals of another kind from a calibrated object, `inner`, and the members that are taken over from it."""

    lists: tuple[CalibratedSplit, ...] = ()  # the scores alone do not determine another kind of coverage

    inner: Calibrated

    def __init__(self, inner: Calibrated) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in FORWARDED:
            return getattr(self.inner, name)
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def for_file(self, method: bool) -> NoReturn:
        """Raise: only the wrapped object can be saved."""
        raise ValueError(
            "a fit with another kind of coverage (groups, joint or odds_error) cannot be saved: save the fit without "
            "it, or the result by result.to_netcdf(path)"
        )


class Robust(_Shaped):
    """Intervals with guaranteed coverage for odds that are wrong by up to a factor; the worst case has a closed form.

    Suppose every true weight lies between w/G and w G, with w the weight that was used and G >= 1 the *odds error*.
    Given the set of all n + 1 scores, the test score is one of them, drawn with probabilities proportional to the true
    weights. Let m be the share of the used weight that lies beyond the cutoff. The true share beyond it is largest if
    all true weights beyond it are G times, and all others 1/G times, the weights used:

        m' = m G / (m G + (1 - m) / G) = m G^2 / (m G^2 + 1 - m),   that is,   odds(m') = G^2 odds(m).

    So an interval of nominal coverage c covers with probability at least 1 / (1 + G^2 (1 - c) / c). For coverage c one
    computes the ordinary interval at the level c' with odds(c') = G^2 odds(c). The argument holds for any set of scores
    taken as "beyond", hence also for two-sided scores and for exact weights. The bound is sharp if nothing more is
    known of the errors of the odds; errors that are independent of the scores have a smaller effect.
    """

    def __init__(self, inner: Calibrated, odds_error: float) -> None:
        super().__init__(inner)
        self.odds_error = odds_error

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> Bounds:
        levels = [robust_level(float(level), self.odds_error) for level in as_levels(coverage)]
        bounds: Bounds = self.inner.intervals(entries, levels)
        return bounds


def robust_level(coverage: float, odds_error: float) -> float:
    """The level at which `coverage` is guaranteed for any odds within the factor `odds_error`."""
    factor = check_odds_error(odds_error) ** 2
    return coverage if factor == 1.0 else factor * coverage / (factor * coverage + 1.0 - coverage)


def tolerated_odds_error(coverage: float, loss: float = 0.05, infinite_share: float = 0.0) -> float:
    """The largest factor by which odds may be wrong if coverage must not fall by more than `loss`.

    Infinite intervals always cover: with a share s of them, the factor solves s + (1 - s) worst = c - loss. It is
    infinite if the infinite intervals alone give this coverage.
    """
    left = (coverage - loss - infinite_share) / (1.0 - infinite_share) if infinite_share < 1.0 else 0.0
    if left <= 0.0:
        return math.inf
    return math.sqrt(coverage / (1.0 - coverage) * (1.0 - left) / left)


def check_odds_error(odds_error: float) -> float:
    """Return the factor, or raise if it is not a finite number of at least 1."""
    if isinstance(odds_error, bool) or not isinstance(odds_error, int | float) or not 1.0 <= odds_error < math.inf:
        raise ValueError(
            f"odds_error is {odds_error!r}: give the factor by which odds may be wrong, 1 or more, such as 1.5"
        )
    return float(odds_error)


class Grouped(_Shaped):
    """Intervals with coverage within every group of entries (Mondrian conformal prediction).

    A test entry is compared with the calibration entries of its group, so with true weights coverage holds in each
    group. If the effective sample size of a group is below `min_size`, entries of other groups enter with their weights
    times the smallest factor that reaches it; coverage then holds on average with the other groups only. `group` has
    the number of the group of every entry. Merged splits are grouped one by one before their p-values are merged.
    """

    inner: Listed

    def __init__(self, inner: Listed, group: Entries, min_size: float = MIN_GROUP_SIZE) -> None:
        super().__init__(inner)
        self.group = np.ravel(group)
        self.min_size = min_size
        self._lists: dict[int, Listed] = {}

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> Bounds:
        levels = as_levels(coverage)
        lower, upper = np.empty((2, levels.size, entries.size))
        for number, here in _members(self.group[entries]):
            lower[:, here], upper[:, here] = self._list(number).intervals(entries[here], levels.tolist())
        return lower, upper

    def mapped(self, change: Callable[[CalibratedScores], CalibratedScores]) -> Grouped:
        """The same groups with the lists of scores changed."""
        return Grouped(self.inner.mapped(change), self.group, self.min_size)

    def _list(self, number: int) -> Listed:
        """The calibrated scores with the weights of one group."""

        def tilted(one: CalibratedScores) -> CalibratedScores:
            logs = np.asarray(one.weights.of_calibration(one.entries), np.float64)
            share = borrowing_factor(logs, self.group[one.entries] == number, self.min_size)
            with np.errstate(divide="ignore"):
                tilt = np.where(self.group == number, 0.0, np.log(share))
            return CalibratedScores(one.score, one.scores, one.entries, TiltedWeights(one.weights, tilt))

        if number not in self._lists:
            self._lists[number] = self.inner.mapped(tilted)
        return self._lists[number]


class Joint(_Shaped):
    """Joint bands: with the nominal coverage, *all* missing entries of a slice lie inside.

    In a slice with m missing entries each entry lies outside with probability t/m. Bonferroni has t = 1 - c. Errors of
    a slice are correlated, so t can be larger: `budget(c, m)` is the t with which a share c of the slices made of
    calibration entries lie inside.

    The coverage is an average over slices, so the test entry does not have its own mass, with which the extreme levels
    needed here would be infinite for entries with a large weight. It has the mean mass of the calibration entries
    beyond the level: without any mass, a cutoff with k of n entries beyond it is exceeded with probability
    (k + 1) / (n + 1), and k is small here. Levels with fewer than `MIN_ENTRIES_BEYOND` calibration entries beyond them
    are extrapolated with an exponential tail whose slope is estimated from few entries (the predictive distribution is
    a Pareto distribution), which is wider than necessary for lighter tails.

    `missing` has the flat indices of all missing entries; they determine the size of a slice, not the entries for which
    intervals are computed.
    """

    inner: Listed

    def __init__(self, inner: Listed, slices: Entries, missing: Entries, budget: Callable[[float, int], float]) -> None:
        super().__init__(inner)
        self.slices = np.ravel(slices)
        self._counts = np.bincount(self.slices[missing], minlength=int(self.slices.max(initial=0)) + 1)
        self.budget = budget
        self._massless = inner.mapped(_without_test_mass)
        self._size = getattr(inner, "min_size", None) or inner.effective_sample_size()
        self._least = min(MIN_ENTRIES_BEYOND / self._size, 0.1)
        whole = inner.inner if isinstance(inner, Grouped) else inner
        self._shares, self._heavier = _weight_beyond(whole.lists)

    def entries_beyond(self, coverage: float, missing: int) -> float:
        """The effective number of calibration entries beyond the band of a slice with this many missing entries."""
        return self.budget(coverage, missing) / missing * self._size

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> Bounds:
        levels = as_levels(coverage)
        lower, upper = np.empty((2, levels.size, entries.size))
        slices = _members(self.slices[entries])
        for row, level in enumerate(levels):
            share = np.empty(entries.size)
            for number, here in slices:
                size = max(int(self._counts[number]), 1)
                share[here] = min(self.budget(float(level), size) / size, 1.0 - 1e-9)
            far = share < self._least
            for one in np.unique(share[~far]):
                here = np.flatnonzero(share == one)
                low, high = self._massless.intervals(entries[here], 1.0 - self._left(one))
                lower[row, here], upper[row, here] = low[0], high[0]
            if far.any():
                lower[row, far], upper[row, far] = self._continued(entries[far], share[far])
        return lower, upper

    def _continued(self, entries: Entries, share: Floats) -> Bounds:
        """The extrapolated bounds for shares of the calibration weight that are too small for a quantile."""
        shares = (self._least, SLOPE_RATIO * self._least)
        lower, upper = self._massless.intervals(entries, [1.0 - self._left(one) for one in shares])
        further = SLOPE_ENTRIES * ((self._least / share) ** (1.0 / SLOPE_ENTRIES) - 1.0) / np.log(SLOPE_RATIO)
        least, most = self.inner.possible_range(entries)
        # An infinite bound stays infinite; its distance from the next one could be infinity minus infinity.
        down, up = np.isfinite(lower[0]), np.isfinite(upper[0])
        low, high = lower[0].copy(), upper[0].copy()
        low[down] += further[down] * (lower[0][down] - lower[1][down])
        high[up] += further[up] * (upper[0][up] - upper[1][up])
        return np.maximum(low, least), np.minimum(high, most)

    def _left(self, share: float) -> float:
        """The share of the calibration weight beyond a level that is exceeded with probability `share`.

        It is `share` minus the mass of the test entry, at least half of `share`.
        """
        mass = float(np.interp(share, self._shares, self._heavier)) / self._size
        return max(share * (1.0 + mass) - mass, 0.5 * share)


class _NoTestMass(WithoutNeighbours):
    """Weights with a test weight of zero: cutoffs are ordinary weighted quantiles."""

    def __init__(self, base: Weights) -> None:
        self.of_calibration = base.of_calibration  # type: ignore[method-assign]

    def log_weight(self, entries: Entries) -> Numbers:
        return np.full(np.shape(entries), -np.inf)


def _weight_beyond(lists: Sequence[CalibratedSplit]) -> tuple[Floats, Floats]:
    """Increasing shares of the weight, and the mean weight among the largest scores of each share.

    The mean weights are relative to that of a missing entry.
    """
    scores = np.concatenate([np.abs(np.asarray(one.scores, np.float64)) for one in lists])
    logs = [np.asarray(one.log_weights, np.float64) for one in lists]
    weights = [np.exp(one - one.max(initial=-np.inf)) for one in logs]
    weight = np.concatenate([one / one.sum() for one in weights])[np.argsort(-scores, kind="stable")]
    sums, squares = np.cumsum(weight), np.cumsum(weight**2)
    return sums / sums[-1], squares / np.maximum(sums, np.finfo(np.float64).tiny) * sums[-1] / squares[-1]


def _without_test_mass(scored: CalibratedScores) -> CalibratedScores:
    """The same scores with a test weight of zero."""
    return CalibratedScores(scored.score, scored.scores, scored.entries, _NoTestMass(scored.weights))


def borrowing_factor(logs: Floats, own: Flags, min_size: float) -> float:
    """The smallest factor for the weights of other entries with which a group is sufficient; 0 if it is without them.

    Sufficient means an effective sample size of `min_size`, and a total weight of `min_size` times the mean weight of
    the group: with less, a single test entry would have a large share of the weight, and its interval would be
    infinite.
    """
    weight = np.exp(logs - logs.max(initial=-np.inf)) if logs.size else logs
    s, q = float(weight[own].sum()), float((weight[own] ** 2).sum())
    rest, square = float(weight[~own].sum()), float((weight[~own] ** 2).sum())
    if q == 0.0 or rest == 0.0:
        return 1.0 if q == 0.0 else 0.0
    short = max(0.0, (min_size * s / np.count_nonzero(own) - s) / rest)
    if s * s >= min_size * q:
        return min(1.0, short)
    if (s + rest) ** 2 < min_size * (q + square):
        return 1.0
    least = brentq(lambda factor: (s + factor * rest) ** 2 - min_size * (q + factor**2 * square), 0.0, 1.0)
    return min(1.0, max(least, short))


def _members(group: Entries) -> list[tuple[int, Entries]]:
    """Each group number and the positions of its members."""
    order = np.argsort(group, kind="stable")
    numbers, start = np.unique(group[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, start[1:])))
