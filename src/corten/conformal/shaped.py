"""CalibratedScores objects whose promise has another shape: robust to wrong odds, per group, or for a whole slice at
once.

Each stands where a `CalibratedScores` stands and answers `intervals` like it; nothing is scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.calibrated import CalibratedScores
from corten.conformal.merged import MergedSplits
from corten.conformal.quantile import NeighbourFactor, as_levels
from corten.conformal.robust import robust_level
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import Weights

__all__ = ["Grouped", "Joint", "Robust", "TiltedWeights", "enough_weight"]

Entries = NDArray[np.intp]
Ends = tuple[NDArray[np.floating], NDArray[np.floating]]
ENOUGH = 30.0
"""Effective size asked of a group's own calibration entries: enough for finite intervals at 95 %, and some to
spare.
"""


BEYOND = 5.0
"""As many calibration entries must lie beyond a level of a joint band for it to be read off directly."""
STRETCH = 4.0
KNOWN = 10.0
"""About as many exponential errors say as much about the slope as the ends between which it is measured."""


class TiltedWeights:
    """Weights times a factor that depends on the entry alone: `log_tilt` holds its logarithm for every entry."""

    def __init__(self, base: Weights, log_tilt: ArrayLike) -> None:
        self.base = base
        self._tilt = np.ravel(np.asarray(log_tilt, np.float64))

    def log_weight(self, entries: Entries) -> NDArray[np.floating]:
        return np.asarray(self.base.log_weight(entries) + self._tilt[entries])

    def of_calibration(self, entries: Entries) -> NDArray[np.floating]:
        return np.asarray(self.base.of_calibration(entries) + self._tilt[entries])

    def neighbour_factor(self, test: Entries) -> NeighbourFactor | None:
        return self.base.neighbour_factor(test)


class _Shaped:
    """What every one of them takes over from the calibrated object it rests on."""

    lists: tuple[CalibratedSplit, ...] = ()  # scores alone do not say what another promise is worth

    def __init__(self, inner: Any) -> None:
        self.inner: Any = inner

    @property
    def score(self) -> Score:
        return self.inner.score

    @property
    def scores(self) -> NDArray[np.floating]:
        return self.inner.scores

    @property
    def entries(self) -> Entries:
        return self.inner.entries

    @property
    def weights(self) -> Weights:
        return self.inner.weights

    @property
    def log_weights(self) -> NDArray[np.float64]:
        return self.inner.log_weights

    @property
    def round_numbers(self) -> Entries:
        return self.inner.round_numbers

    @property
    def beyond(self) -> NDArray[np.bool_] | None:
        return self.inner.beyond

    def for_file(self) -> _Shaped:
        raise ValueError("this fit was given another promise: save it without, or save result.to_netcdf(path)")

    def effective_sample_size(self) -> float:
        return float(self.inner.effective_sample_size())

    def largest_share(self) -> float:
        return float(self.inner.largest_share())

    def to_data(self, entries: Entries, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.inner.to_data(entries, values)

    def possible_range(self, entries: Entries) -> tuple[ArrayLike, ArrayLike]:
        return self.inner.possible_range(entries)


class Robust(_Shaped):
    """Intervals that keep their coverage for any odds within a factor `odds_error` (derivation in `robust.py`)."""

    def __init__(self, inner: Any, odds_error: float) -> None:
        super().__init__(inner)
        self.odds_error = odds_error

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> Ends:
        levels = [robust_level(float(level), self.odds_error) for level in as_levels(coverage)]
        ends: Ends = self.inner.intervals(entries, levels)
        return ends


class Grouped(_Shaped):
    """Intervals that cover within every group of entries (Mondrian conformal prediction).

    A test entry is compared with the calibration entries of its own group, so given the true weights coverage
    holds group by group. A group whose own entries are worth fewer than `enough` borrows: entries of other groups
    join with weights times the smallest factor that makes up the number. For those groups coverage holds on
    average with the others, not each by itself. `group` numbers the group of every entry. Of merged splits each is
    grouped by itself, and their p-values merged as ever.
    """

    def __init__(self, inner: CalibratedSplit | MergedSplits, group: NDArray[np.intp], enough: float = ENOUGH) -> None:
        super().__init__(inner)
        self.group = np.ravel(group)
        self.enough = enough
        self._lists: dict[int, CalibratedSplit | MergedSplits] = {}
        self.borrowed: dict[int, float] = {}

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> Ends:
        levels = as_levels(coverage)
        lower, upper = np.empty((2, levels.size, entries.size))
        for number, here in _members(self.group[entries]):
            ends = self._list(number).intervals(entries[here], levels.tolist())
            lower[:, here], upper[:, here] = ends
        return lower, upper

    def mapped(self, change: Callable[[CalibratedScores], CalibratedScores]) -> Grouped:
        """The same groups of the changed lists of scores."""
        return Grouped(self.inner.mapped(change), self.group, self.enough)

    def _list(self, number: int) -> CalibratedSplit | MergedSplits:
        if number not in self._lists:
            self.borrowed[number] = 0.0
            self._lists[number] = self.inner.mapped(lambda one: self._tilted(one, number))
        return self._lists[number]

    def _tilted(self, one: CalibratedScores, number: int) -> CalibratedScores:
        """One list of scores for one group; of merged splits the largest share borrowed is kept."""
        logs = np.asarray(one.weights.of_calibration(one.entries), np.float64)
        share = enough_weight(logs, self.group[one.entries] == number, self.enough)
        self.borrowed[number] = max(self.borrowed[number], share)
        with np.errstate(divide="ignore"):
            tilt = np.where(self.group == number, 0.0, np.log(share))
        return CalibratedScores(one.score, one.scores, one.entries, TiltedWeights(one.weights, tilt))


class Joint(_Shaped):
    """Bands that hold whole slices: with the asked coverage *all* missing entries of a slice lie inside at once.

    Entry s of a slice with m missing entries may miss with chance t/m. Bonferroni takes t = 1 - c. Errors of a
    slice go together, so less is needed: `budget(c, m)` gives the t at which a share c of slices made of calibration
    entries would have been held.

    What is promised is promised on average over slices, so the test entry does not enter with its own mass, which is
    for single entries: the far levels asked here would be infinite wherever an entry is heavy. It enters with that of
    the entries seen beyond the level, on average: without any, the cutoff that leaves k of n entries beyond is missed
    with chance (k + 1) / (n + 1), and k is small here. Levels with fewer than `BEYOND` calibration entries beyond them
    are reached by continuing the ends as an exponential tail goes on whose slope was learned from a few entries (its
    predictive law is Pareto's): wider than needed for lighter tails.

    missing: flat indices of all missing entries. They, and not the entries asked for, make up the size of a slice.
    """

    def __init__(
        self, inner: Any, slices: NDArray[np.intp], missing: Entries, budget: Callable[[float, int], float]
    ) -> None:
        super().__init__(inner)
        self.slices = np.ravel(slices)
        self._counts = np.bincount(self.slices[missing], minlength=int(self.slices.max(initial=0)) + 1)
        self.budget = budget
        self._massless = inner.mapped(_without_test_mass)
        self._size = getattr(inner, "enough", None) or inner.effective_sample_size()
        self._least = min(BEYOND / self._size, 0.1)
        whole = inner.inner if isinstance(inner, Grouped) else inner
        self._shares, self._heavier = _weight_beyond(whole.lists)

    def entries_beyond(self, coverage: float, missing: int) -> float:
        """How many equally weighted calibration entries lie beyond the band of a slice with so many missing ones."""
        return self.budget(coverage, missing) / missing * self._size

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> Ends:
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
                ends = self._massless.intervals(entries[here], 1.0 - self._left(one))
                lower[row, here], upper[row, here] = ends[0][0], ends[1][0]
            if far.any():
                lower[row, far], upper[row, far] = self._continued(entries[far], share[far])
        return lower, upper

    def _continued(self, entries: Entries, share: NDArray[np.float64]) -> Ends:
        """Both ends beyond which a share of the calibration weight would lie that is too small to be read off."""
        shares = (self._least, STRETCH * self._least)
        lower, upper = self._massless.intervals(entries, [1.0 - self._left(one) for one in shares])
        further = KNOWN * ((self._least / share) ** (1.0 / KNOWN) - 1.0) / np.log(STRETCH)
        least, most = self.inner.possible_range(entries)
        # A bound that is infinite already stays so; its distance from the next one may be infinity less infinity.
        down, up = np.isfinite(lower[0]), np.isfinite(upper[0])
        low, high = lower[0].copy(), upper[0].copy()
        low[down] += further[down] * (lower[0][down] - lower[1][down])
        high[up] += further[up] * (upper[0][up] - upper[1][up])
        return np.maximum(low, least), np.minimum(high, most)

    def _left(self, share: float) -> float:
        """What calibration entries may weigh beyond a level that is missed with chance `share`: the test entry's mass
        taken off, at most half of it.
        """
        mass = float(np.interp(share, self._shares, self._heavier)) / self._size
        return max(share * (1.0 + mass) - mass, 0.5 * share)


class _NoTestMass:
    """Weights under which a test entry weighs nothing: cutoffs are plain weighted quantiles."""

    def __init__(self, base: Weights) -> None:
        self.base = base

    def log_weight(self, entries: Entries) -> NDArray[np.floating]:
        return np.full(np.shape(entries), -np.inf)

    def of_calibration(self, entries: Entries) -> NDArray[np.floating]:
        return self.base.of_calibration(entries)

    def neighbour_factor(self, test: Entries) -> NeighbourFactor | None:
        return None


def _weight_beyond(lists: Sequence[CalibratedSplit]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rising shares of the weight, and how many times as heavy as a missing entry usually is one would be that lies
    among the largest scores of that share.
    """
    scores = np.concatenate([np.abs(np.asarray(one.scores, np.float64)) for one in lists])
    logs = [np.asarray(one.log_weights, np.float64) for one in lists]
    weights = [np.exp(one - one.max(initial=-np.inf)) for one in logs]
    weight = np.concatenate([one / one.sum() for one in weights])[np.argsort(-scores, kind="stable")]
    sums, squares = np.cumsum(weight), np.cumsum(weight**2)
    return sums / sums[-1], squares / np.maximum(sums, np.finfo(np.float64).tiny) * sums[-1] / squares[-1]


def _without_test_mass(scored: CalibratedScores) -> CalibratedScores:
    """The same scores where a test entry weighs nothing."""
    return CalibratedScores(scored.score, scored.scores, scored.entries, _NoTestMass(scored.weights))


def enough_weight(logs: NDArray[np.float64], own: NDArray[np.bool_], enough: float) -> float:
    """The smallest factor at which other entries' weights make up what a group lacks; 0 if it lacks nothing.

    Made up is the effective size, to `enough`, and the weight itself, to `enough` times that of a typical entry of
    the group: beside less than that a single test entry would be heavy and its interval infinite.

    Examples
    --------
    >>> own = np.arange(1000) < 300
    >>> enough_weight(np.zeros(1000), own, 100.0), enough_weight(np.zeros(1000), ~own & own, 100.0)
    (0.0, 1.0)
    """
    weight = np.exp(logs - logs.max(initial=-np.inf)) if logs.size else logs
    s, q = float(weight[own].sum()), float((weight[own] ** 2).sum())
    rest, square = float(weight[~own].sum()), float((weight[~own] ** 2).sum())
    if q == 0.0 or rest == 0.0:
        return 1.0 if q == 0.0 else 0.0
    short = max(0.0, (enough * s / np.count_nonzero(own) - s) / rest)
    if s * s >= enough * q:
        return min(1.0, short)
    if (s + rest) ** 2 < enough * (q + square):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        able = (s + middle * rest) ** 2 >= enough * (q + middle**2 * square)
        low, high = (low, middle) if able else (middle, high)
    return min(1.0, max(high, short))


def _members(group: NDArray[np.intp]) -> list[tuple[int, NDArray[np.intp]]]:
    """Each group number and the positions of its members."""
    order = np.argsort(group, kind="stable")
    numbers, start = np.unique(group[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, start[1:])))
