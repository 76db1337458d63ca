"""Calibrated objects whose promise has another shape: robust to wrong odds, per group, or for a whole slice at
once.

Each stands where a `Calibrated` stands and answers `intervals` like it; nothing is scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.calibrated import Calibrated
from corten.conformal.folds import MergedSplits
from corten.conformal.quantile import NeighbourFactor, as_levels
from corten.conformal.robust import robust_level
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

    def neighbour_factor(self, test: Entries) -> NeighbourFactor | None:
        return self.base.neighbour_factor(test)


class _Shaped:
    """What every one of them hands through from the calibrated object it rests on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.score, self.weights, self.entries = inner.score, inner.weights, inner.entries

    def effective_sample_size(self) -> float:
        return float(self.inner.effective_sample_size())

    def largest_share(self) -> float:
        return float(self.inner.largest_share())


class Robust(_Shaped):
    """Intervals that keep their coverage for any odds within a factor `odds_error` (derivation in `robust.py`)."""

    def __init__(self, inner: Any, odds_error: float) -> None:
        super().__init__(inner)
        self.odds_error = odds_error

    def intervals(
        self, entries: Entries, estimate: ArrayLike, scale: ArrayLike, coverage: float | Sequence[float]
    ) -> Ends:
        levels = [robust_level(float(level), self.odds_error) for level in as_levels(coverage)]
        ends: Ends = self.inner.intervals(entries, estimate, scale, levels)
        return ends


class Grouped(_Shaped):
    """Intervals that cover within every group of entries (Mondrian conformal prediction).

    A test entry is compared with the calibration entries of its own group, so given the true weights coverage
    holds group by group. A group whose own entries are worth fewer than `enough` borrows: entries of other groups
    join with weights times the smallest factor that makes up the number. For those groups coverage holds on
    average with the others, not each by itself. `group` numbers the group of every entry. Of merged splits each is
    grouped by itself, and their p-values merged as ever.
    """

    def __init__(self, inner: Calibrated | MergedSplits, group: NDArray[np.intp], enough: float = ENOUGH) -> None:
        super().__init__(inner)
        self.group = np.ravel(group)
        self.enough = enough
        self._lists: dict[int, Calibrated | MergedSplits] = {}
        self.borrowed: dict[int, float] = {}

    def intervals(
        self, entries: Entries, estimate: ArrayLike, scale: ArrayLike, coverage: float | Sequence[float]
    ) -> Ends:
        levels = as_levels(coverage)
        lower, upper = np.empty((2, levels.size, entries.size))
        middle, unit = np.broadcast_to(estimate, entries.shape), np.broadcast_to(scale, entries.shape)
        for number, here in _members(self.group[entries]):
            ends = self._list(number).intervals(entries[here], middle[here], unit[here], levels.tolist())
            lower[:, here], upper[:, here] = ends
        return lower, upper

    def _list(self, number: int) -> Calibrated | MergedSplits:
        if number not in self._lists:
            inner = self.inner
            self.borrowed[number] = 0.0
            if isinstance(inner, MergedSplits):
                splits = [replace(one, calibrated=self._tilted(one.calibrated, number)) for one in inner.splits]
                self._lists[number] = MergedSplits(splits)
            else:
                self._lists[number] = self._tilted(inner, number)
        return self._lists[number]

    def _tilted(self, one: Calibrated, number: int) -> Calibrated:
        """One list of scores for one group; of merged splits the largest share borrowed is kept."""
        logs = np.asarray(one.weights.log_weight(one.entries), np.float64)
        share = enough_weight(logs, self.group[one.entries] == number, self.enough)
        self.borrowed[number] = max(self.borrowed[number], share)
        with np.errstate(divide="ignore"):
            tilt = np.where(self.group == number, 0.0, np.log(share))
        return Calibrated(one.score, one.scores, one.entries, TiltedWeights(one.weights, tilt))


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
        self._massless = _without_test_mass(inner)
        self._size = inner.enough if isinstance(inner, Grouped) else inner.effective_sample_size()
        self._least = min(BEYOND / self._size, 0.1)
        self._shares, self._heavier = _weight_beyond(inner)

    def beyond(self, coverage: float, missing: int) -> float:
        """How many equally weighted calibration entries lie beyond the band of a slice with so many missing ones."""
        return self.budget(coverage, missing) / missing * self._size

    def intervals(
        self, entries: Entries, estimate: ArrayLike, scale: ArrayLike, coverage: float | Sequence[float]
    ) -> Ends:
        levels = as_levels(coverage)
        lower, upper = np.empty((2, levels.size, entries.size))
        middle, unit = np.broadcast_to(estimate, entries.shape), np.broadcast_to(scale, entries.shape)
        slices = _members(self.slices[entries])
        for row, level in enumerate(levels):
            share = np.empty(entries.size)
            for number, here in slices:
                size = max(int(self._counts[number]), 1)
                share[here] = min(self.budget(float(level), size) / size, 1.0 - 1e-9)
            far = share < self._least
            for one in np.unique(share[~far]):
                here = np.flatnonzero(share == one)
                ends = self._massless.intervals(entries[here], middle[here], unit[here], 1.0 - self._left(one))
                lower[row, here], upper[row, here] = ends[0][0], ends[1][0]
            if far.any():
                lower[row, far], upper[row, far] = self._continued(entries[far], middle[far], unit[far], share[far])
        return lower, upper

    def _continued(self, entries: Entries, middle: ArrayLike, unit: ArrayLike, share: NDArray[np.float64]) -> Ends:
        """Both ends beyond which a share of the calibration weight would lie that is too small to be read off."""
        shares = (self._least, STRETCH * self._least)
        lower, upper = self._massless.intervals(entries, middle, unit, [1.0 - self._left(one) for one in shares])
        further = KNOWN * ((self._least / share) ** (1.0 / KNOWN) - 1.0) / np.log(STRETCH)
        least, most = _range(self.inner, entries)
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

    def __init__(self, base: Weights, calibration: Entries) -> None:
        self.base, self.calibration = base, calibration

    def log_weight(self, entries: Entries) -> NDArray[np.floating]:
        if np.array_equal(entries, self.calibration):
            return self.base.log_weight(entries)
        return np.full(np.shape(entries), -np.inf)

    def neighbour_factor(self, test: Entries) -> NeighbourFactor | None:
        return None


def _weight_beyond(inner: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rising shares of the weight, and how many times as heavy as a missing entry usually is one would be that lies
    among the largest scores of that share.
    """
    whole = inner.inner if isinstance(inner, Grouped) else inner
    lists = [one.calibrated for one in whole.splits] if isinstance(whole, MergedSplits) else [whole]
    scores = np.concatenate([np.abs(np.asarray(one.scores, np.float64)) for one in lists])
    logs = [np.asarray(one.weights.log_weight(one.entries), np.float64) for one in lists]
    weights = [np.exp(one - one.max(initial=-np.inf)) for one in logs]
    weight = np.concatenate([one / one.sum() for one in weights])[np.argsort(-scores, kind="stable")]
    sums, squares = np.cumsum(weight), np.cumsum(weight**2)
    return sums / sums[-1], squares / np.maximum(sums, np.finfo(np.float64).tiny) * sums[-1] / squares[-1]


def _range(inner: Any, entries: Entries) -> tuple[ArrayLike, ArrayLike]:
    """The least and the largest value of each entry that some merged split can map back from the variable it modelled.

    A single list of scores is continued in the variable that was modelled, where nothing limits it.
    """
    whole = inner.inner if isinstance(inner, Grouped) else inner
    if not isinstance(whole, MergedSplits):
        return -np.inf, np.inf
    ends = [[one.own(entries, np.full(entries.size, end)) for one in whole.splits] for end in (-np.inf, np.inf)]
    return np.min(ends[0], axis=0), np.max(ends[1], axis=0)


def _without_test_mass(inner: Any) -> Any:
    if isinstance(inner, Grouped):
        return Grouped(_without_test_mass(inner.inner), inner.group, inner.enough)
    if isinstance(inner, MergedSplits):
        return MergedSplits([replace(one, calibrated=_without_test_mass(one.calibrated)) for one in inner.splits])
    return Calibrated(inner.score, inner.scores, inner.entries, _NoTestMass(inner.weights, inner.entries))


def enough_weight(logs: NDArray[np.float64], own: NDArray[np.bool_], enough: float) -> float:
    """The smallest factor at which other entries' weights make up what a group lacks; 0 if it lacks nothing.

    Made up is the effective size, to `enough`, and the weight itself, to `enough` times that of a typical entry of
    the group: beside less than that a single test entry would be heavy and its interval infinite.

    Example:
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
