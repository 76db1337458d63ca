"""Several calibrated splits behind one answer: the mean of their p-values decides.

For the upper end and test entry t, split k has p_k(x) = (weight of its scores >= d_k(x) + w_t) / (all its weight +
w_t), with d_k(x) = (x - m_k) / u_k its own estimate and scale; for a symmetric score d is not let below 0, which
only adds values. Every p_k falls with x, so their mean does, and the end is the largest x where the mean exceeds 1
- c (half of it per side for a two-sided score). It lies between the smallest and the largest of the splits' own
ends, and is searched there by bisection, rounded outwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from corten.conformal.calibrated import Calibrated
from corten.conformal.diagnostics import effective_sample_size, largest_share
from corten.conformal.quantile import as_levels, available_cores
from corten.conformal.scale import Scale
from corten.conformal.weights import PooledWeights

__all__ = ["MergedSplits", "SplitList"]

Entries = NDArray[np.intp]
Floats = NDArray[np.float64]
CHUNK = 1 << 16
STEPS = 18


@dataclass(frozen=True, eq=False)
class SplitList:
    """One split: its calibrated scores, its own estimate of every entry, and its scale."""

    calibrated: Calibrated
    scores: NDArray[np.floating]
    estimate: NDArray[np.floating]
    scale: Scale


class MergedSplits:
    """K calibrated splits that answer intervals together; stands where a `Calibrated` stands.

    `estimate` and `scale` given to `intervals` are not read: every split has its own.
    """

    def __init__(self, splits: Sequence[SplitList]) -> None:
        self.splits = tuple(splits)
        first = self.splits[0].calibrated
        self.score = first.score
        self.two_sided = first.score.tails(0.5).lower is not None
        self.entries = np.concatenate([one.calibrated.entries for one in self.splits])
        logs = [one.calibrated.weights.log_weight(one.calibrated.entries) for one in self.splits]
        every = np.arange(self.splits[0].estimate.size)
        table = np.mean([one.calibrated.weights.log_weight(every) for one in self.splits], axis=0)
        self.weights = PooledWeights(self.entries, np.concatenate(logs), table)
        self._logs = np.concatenate(logs).astype(np.float64)

    def effective_sample_size(self) -> float:
        """How many equally weighted different entries stand behind the ends."""
        _, place = np.unique(self.entries, return_inverse=True)
        weight = np.bincount(place, np.exp(self._logs - self._logs.max()))
        with np.errstate(divide="ignore"):
            return effective_sample_size(np.log(weight))

    def largest_share(self) -> float:
        return largest_share(self._logs)

    def intervals(
        self, entries: Entries, estimate: ArrayLike, scale: ArrayLike, coverage: float | Sequence[float]
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
        middles = [one.estimate.reshape(-1)[flat].astype(np.float64) for one in self.splits]
        units = [np.asarray(one.scale.at(flat), np.float64) for one in self.splits]
        own = [
            one.calibrated.intervals(flat, middle, unit, levels.tolist())
            for one, middle, unit in zip(self.splits, middles, units)
        ]
        tests = [np.asarray(one.calibrated.weights.log_weight(flat), np.float64) for one in self.splits]
        factors = [one.calibrated.weights.neighbour_factor(flat) for one in self.splits]
        ends = []
        for sign, side in ((-1.0, 0), (1.0, 1)):
            total = np.zeros((levels.size, flat.size))
            bracket = np.stack([sign * pair[side] for pair in own])
            # the mean of p-values at any x is needed many times: each split answers it from its own sorted list
            lists = []
            for one, test, factor in zip(self.splits, tests, factors):
                scores = np.asarray(one.scores, np.float64) * (sign if self.two_sided else 1.0)
                logs = np.asarray(one.calibrated.weights.log_weight(one.calibrated.entries), np.float64)
                shift = logs.max()
                order = np.argsort(scores, kind="stable")
                weight = np.exp(logs - shift)
                tail = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
                if factor is None:
                    near = np.full((flat.size, 0), -1, np.int64)
                    change = np.zeros((flat.size, 0))
                else:
                    near = np.asarray(factor.neighbours, np.int64)
                    change = np.where(near >= 0, weight[np.maximum(near, 0)] * np.expm1(factor.log_factor), 0.0)
                with np.errstate(over="ignore"):
                    lists.append((scores[order], tail, np.exp(test - shift), scores, near, change))
            for row, level in enumerate(levels):
                alpha = (1.0 - level) / (2.0 if self.two_sided else 1.0)
                total[row] = _ends(lists, middles, units, sign, bracket[:, row], alpha, not self.two_sided)
            ends.append(sign * total)
        return ends[0], ends[1]


def _ends(
    lists: Sequence[tuple[Floats, Floats, Floats, Floats, NDArray[np.int64], Floats]],
    middles: Sequence[Floats],
    units: Sequence[Floats],
    sign: float,
    bracket: Floats,
    alpha: float,
    folded: bool,
) -> Floats:
    """The upper ends (after a sign) by bisection between the splits' own ends; infinite where the mean never
    falls to alpha.
    """
    count = len(lists)
    low, high = bracket.min(axis=0), bracket.max(axis=0)
    furthest = np.max(
        [sign * m + u * max(part[0][-1], 0.0) for part, m, u in zip(lists, middles, units)], axis=0
    )
    high = np.where(np.isfinite(high), high, np.nextafter(furthest * (1 + 1e-12 * np.sign(furthest)), np.inf))
    low = np.where(np.isfinite(low), low, np.min([sign * m for m in middles], axis=0))
    high = np.maximum(high, low)

    def mean_p(x: Floats) -> Floats:
        def one(number: int) -> Floats:
            return _p_values(*lists[number], sign * middles[number], units[number], x, folded)

        return np.asarray(sum(pool.map(one, range(count))) / count)

    limit = alpha * (1.0 + 1e-9)
    with ThreadPoolExecutor(min(count, available_cores())) as pool:
        never = mean_p(np.full(low.size, np.inf)) > limit
        inside = mean_p(np.nextafter(high, np.inf)) > limit  # rounding of the bracket itself
        high = np.where(inside & ~never, furthest + 1e-9 * (np.abs(furthest) + 1.0), high)
        for _ in range(STEPS):
            middle = 0.5 * (low + high)
            kept = mean_p(middle) > limit
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return np.where(never, np.inf, high)


@njit(nogil=True, cache=True, error_model="numpy")
def _p_values(
    scores: Floats,
    tail: Floats,
    test: Floats,
    unsorted: Floats,
    near: NDArray[np.int64],
    change: Floats,
    middle: Floats,
    unit: Floats,
    x: Floats,
    folded: bool,
) -> Floats:
    """One split's p-value of the value x for each test entry; `folded` keeps distances from falling below zero."""
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
        beyond, whole = tail[a], tail[0]
        for n in range(near.shape[1]):
            k = near[t, n]
            if k >= 0:
                whole += change[t, n]
                if unsorted[k] >= d:
                    beyond += change[t, n]
        if test[t] == np.inf:
            found[t] = 1.0
        else:
            found[t] = (max(beyond, 0.0) + test[t]) / (max(whole, 0.0) + test[t]) if whole + test[t] > 0.0 else 1.0
    return found
