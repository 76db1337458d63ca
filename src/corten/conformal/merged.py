"""Several calibrated splits behind one answer: the mean of their p-values decides.

For the upper end and test entry t, split k has p_k(x) = (weight of its scores >= d_k(x) + w_t) / (all its weight +
w_t), with d_k(x) = (T_k(x) - m_k) / u_k its own change of variable, estimate and scale; for a symmetric score d is
not let below 0, which only adds values. Every p_k falls with x, so their mean does, and the end is the largest x
where the mean exceeds 1 - c (half of it per side for a two-sided score). It lies between the smallest and the
largest of the splits' own ends, and is searched there by bisection, rounded outwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from corten.conformal.calibrated import CalibratedScores
from corten.conformal.diagnostics import effective_sample_size, largest_share
from corten.conformal.quantile import as_levels, available_cores
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights

__all__ = ["MergedSplits"]

Entries = NDArray[np.intp]
Floats = NDArray[np.float64]
CHUNK = 1 << 16
STEPS = 64  # to the last digit: ends of a higher coverage must not fall inside those of a lower one by rounding
HIGHEST = 600.0  # exp of more than this, times a few, would overflow
DOMINATED = 1e-3  # where less than this share of the weight stays, its difference has lost digits


class MergedSplits:
    """K calibrated splits that answer intervals together, in the variable of the data."""

    beyond = None

    def __init__(self, splits: Sequence[CalibratedSplit]) -> None:
        self.splits = tuple(splits)
        self.score = self.splits[0].score
        self.two_sided = self.score.tails(0.5).lower is not None
        self.entries = np.concatenate([one.entries for one in self.splits])

    @property
    def lists(self) -> tuple[CalibratedSplit, ...]:
        """The lists of scores: one for each split."""
        return self.splits

    @cached_property
    def scores(self) -> NDArray[np.floating]:
        return np.concatenate([one.scores for one in self.splits])

    @property
    def round_numbers(self) -> Entries:
        """The split that hid each calibration entry."""
        return np.repeat(np.arange(len(self.splits)), [one.scores.size for one in self.splits])

    def mapped(self, change: Callable[[CalibratedScores], CalibratedScores]) -> MergedSplits:
        """The same with another list of scores for each split, made from its own."""
        return MergedSplits([one.mapped(change) for one in self.splits])

    def with_scores(self, score: Score, scores: ArrayLike) -> MergedSplits:
        """The same splits with another score: `scores` belong to `entries`."""
        parts = np.split(np.asarray(scores), np.cumsum([one.scores.size for one in self.splits])[:-1])
        return MergedSplits([one.with_scores(score, part) for one, part in zip(self.splits, parts)])

    def for_file(self) -> MergedSplits:
        """What a saved fit keeps."""
        return MergedSplits([one.for_file() for one in self.splits])

    def to_data(self, entries: Entries, values: Floats) -> Floats:
        """The values themselves: each split maps back before the bounds are merged."""
        return values

    def data_estimate(self) -> np.ndarray:
        """The mean of the splits' estimates, in the variable of the data."""
        return np.ascontiguousarray(np.mean([one.data_estimate() for one in self.splits], 0))

    def possible_range(self, entries: Entries) -> tuple[ArrayLike, ArrayLike]:
        """The least and the largest value of each entry that some split can map back from the modelled variable."""
        ends = [[one.to_data(entries, np.full(entries.size, end)) for one in self.splits] for end in (-np.inf, np.inf)]
        return np.min(ends[0], axis=0), np.max(ends[1], axis=0)

    @cached_property
    def weights(self) -> PooledWeights:
        """Each entry's weight in its own split; of a missing entry the mean of the logarithms."""
        every = np.arange(self.splits[0].estimate.size)
        table = np.mean([one.weights.log_weight(every) for one in self.splits], axis=0)
        return PooledWeights(self.entries, self.log_weights, table)

    @cached_property
    def log_weights(self) -> Floats:
        return np.concatenate([one.log_weights for one in self.splits]).astype(np.float64)

    def effective_sample_size(self) -> float:
        """How many equally weighted different entries stand behind the ends."""
        _, place = np.unique(self.entries, return_inverse=True)
        weight = np.bincount(place, np.exp(self.log_weights - self.log_weights.max()))
        with np.errstate(divide="ignore"):
            return effective_sample_size(np.log(weight))

    def largest_share(self) -> float:
        return largest_share(self.log_weights)

    def intervals(
        self, entries: Entries, coverage: float | Sequence[float]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Lower and upper ends, (levels, entries)."""
        levels = as_levels(coverage)
        flat = np.asarray(entries).ravel()
        lower, upper = np.empty((2, levels.size, flat.size))
        for start in range(0, flat.size, CHUNK):
            part = slice(start, min(start + CHUNK, flat.size))
            lower[:, part], upper[:, part] = self._chunk(flat[part], levels)
        return lower, upper

    def _chunk(self, flat: Entries, levels: Floats) -> tuple[Floats, Floats]:
        asked = [_Asked.of(one, flat) for one in self.splits]
        own = [one.ends(levels) for one in asked]
        ends = []
        for sign, side in ((-1.0, 0), (1.0, 1)):
            total = np.zeros((levels.size, flat.size))
            bracket = np.stack([sign * pair[side] for pair in own])
            lists = [one.sorted(sign, self.two_sided) for one in asked]
            for row, level in enumerate(levels):
                alpha = (1.0 - level) / (2.0 if self.two_sided else 1.0)
                total[row] = _ends(asked, lists, sign, bracket[:, row], alpha, not self.two_sided)
            ends.append(sign * total)
        # At low coverage no value may please splits that disagree; the mean of their estimates always belongs.
        middle = np.mean([one.split.to_data(flat, one.middle) for one in asked], axis=0)
        return np.minimum(ends[0], middle), np.maximum(ends[1], middle)


@dataclass(frozen=True, eq=False)
class _Asked:
    """One split and the test entries asked for: estimates, units, weights and what observing each would change."""

    split: CalibratedSplit
    flat: Entries
    middle: Floats
    unit: Floats
    test: Floats
    factor: Any

    @classmethod
    def of(cls, split: CalibratedSplit, flat: Entries) -> _Asked:
        weights = split.weights
        middle = split.estimate.reshape(-1)[flat].astype(np.float64)
        unit, test = np.asarray(split.scale.at(flat), np.float64), np.asarray(weights.log_weight(flat), np.float64)
        return cls(split, flat, middle, unit, test, weights.neighbour_factor(flat))

    def ends(self, levels: Floats) -> tuple[Floats, Floats]:
        """The split's own ends in the data's own variable, (levels, entries)."""
        pair = self.split.intervals(self.flat, levels.tolist())
        lower, upper = (np.stack([self.split.to_data(self.flat, np.asarray(row)) for row in side]) for side in pair)
        return lower, upper

    def sorted(self, sign: float, two_sided: bool) -> tuple[Any, ...]:
        """The split's list as `_p_values` reads it: the mean of p-values is asked at many values."""
        scores = np.asarray(self.split.scores, np.float64) * (sign if two_sided else 1.0)
        logs = np.asarray(self.split.log_weights, np.float64)
        shift = float(logs.max())
        logs = logs - shift
        order = np.argsort(scores, kind="stable")
        weight = np.exp(logs)
        tail = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
        near, new = np.full((self.flat.size, 0), -1, np.int64), np.zeros((self.flat.size, 0))
        lowered = np.zeros(self.flat.size)
        if self.factor is not None:
            near = np.asarray(self.factor.neighbours, np.int64)
            new = np.where(near >= 0, logs[np.maximum(near, 0)] + self.factor.log_factor, -np.inf)
            lowered = np.maximum(new.max(axis=1, initial=0.0) - HIGHEST, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            test = np.exp(self.test - shift - lowered)
            return scores[order], tail, weight, np.exp(-lowered), test, scores, near, np.exp(new - lowered[:, None])

    def furthest(self, sign: float, list_: tuple[Any, ...]) -> Floats:
        """Beyond this value (after the sign) no score of the split lies."""
        end = self.middle + sign * self.unit * max(float(list_[0][-1]), 0.0)
        return sign * self.split.to_data(self.flat, end)

    def p_values(self, sign: float, list_: tuple[Any, ...], x: Floats, folded: bool) -> Floats:
        """p_k of the values sign * x."""
        z = self.split.to_model(self.flat, sign * x)
        kernel: Any = _p_values
        return np.asarray(kernel(*list_, sign * self.middle, self.unit, sign * z, folded))


def _ends(
    asked: Sequence[_Asked], lists: Sequence[tuple[Any, ...]], sign: float, bracket: Floats, alpha: float, folded: bool
) -> Floats:
    """The upper ends (after a sign) by bisection between the splits' own ends; at the edge of the range, infinite
    without a change of variable, where the mean never falls to alpha.
    """
    count, flat = len(lists), asked[0].flat
    changed = any(one.split.change is not None for one in asked)
    low, high = bracket.min(axis=0), bracket.max(axis=0)
    furthest = np.max([one.furthest(sign, part) for one, part in zip(asked, lists)], axis=0)
    high = np.where(np.isfinite(high), high, np.nextafter(furthest * (1 + 1e-12 * np.sign(furthest)), np.inf))
    nearest = np.min([sign * one.split.to_data(flat, one.middle) for one in asked], axis=0)
    low = np.where(np.isfinite(low), low, nearest)
    high = np.maximum(high, low)
    edge = np.max([sign * one.split.to_data(flat, np.full(flat.size, sign * np.inf)) for one in asked], axis=0)

    def mean_p(x: Floats) -> Floats:
        found = pool.map(lambda k: asked[k].p_values(sign, lists[k], x, folded), range(count))
        return np.asarray(sum(found) / count)

    limit = alpha * (1.0 + 1e-9)
    with ThreadPoolExecutor(min(count, available_cores())) as pool:
        never = (mean_p(np.full(low.size, np.inf) if not changed else edge) > limit) | ~np.isfinite(high)
        inside = mean_p(np.nextafter(high, np.inf)) > limit  # rounding of the bracket itself
        high = np.where(inside & ~never, furthest + 1e-9 * (np.abs(furthest) + np.abs(low)), high)
        for _ in range(STEPS):
            middle = 0.5 * (low + high)
            if ((middle <= low) | (middle >= high)).all():
                break
            kept = mean_p(middle) > limit
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return np.where(never, edge, high)


@njit(nogil=True, cache=True, error_model="numpy")
def _p_values(
    scores: Floats,
    tail: Floats,
    weight: Floats,
    lower: Floats,
    test: Floats,
    unsorted: Floats,
    near: NDArray[np.int64],
    new: Floats,
    middle: Floats,
    unit: Floats,
    x: Floats,
    folded: bool,
) -> Floats:
    """One split's p-value of the value x for each test entry; `folded` keeps distances from falling below zero.

    `new` holds the weights of neighbours once the test entry is observed; `lower` what all weights of that entry are
    multiplied with, one unless a new weight is huge. Where nearly all weight goes away, sums are made anew.
    """
    found = np.empty(x.size)
    for t in range(x.size):
        d = (x[t] - middle[t]) / unit[t]
        if folded and d < 0.0:
            d = 0.0
        a, b = 0, scores.size
        while a < b:
            c = (a + b) >> 1
            if scores[c] < d:
                a = c + 1
            else:
                b = c
        beyond, whole = tail[a] * lower[t], tail[0] * lower[t]
        for n in range(near.shape[1]):
            k = near[t, n]
            if k >= 0:
                change = new[t, n] - weight[k] * lower[t]
                whole += change
                if unsorted[k] >= d:
                    beyond += change
        if whole < DOMINATED * tail[0] * lower[t]:
            beyond, whole = 0.0, 0.0
            for k in range(weight.size):
                own = weight[k] * lower[t]
                for n in range(near.shape[1]):
                    own = new[t, n] if near[t, n] == k else own
                whole += own
                beyond += own if unsorted[k] >= d else 0.0
        if test[t] == np.inf:
            found[t] = 1.0
        else:
            found[t] = (max(beyond, 0.0) + test[t]) / (max(whole, 0.0) + test[t]) if whole + test[t] > 0.0 else 1.0
    return found
