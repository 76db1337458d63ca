"""Merged splits: a value belongs to the interval if the mean of the splits' p-values exceeds 1 - coverage.

For the upper bound of test entry t, split k has p_k(x) = (weight of its scores >= d_k(x), plus w_t) / (all its weight +
w_t), with d_k(x) = (T_k(x) - m_k) / u_k from its own transform, estimate and scale; for a symmetric score d is at least
0, which only adds values. Every p_k decreases with x, and so does their mean. The bound is the largest x with a mean
above 1 - c (half of it per side for a two-sided score). It lies between the smallest and the largest bound of the
splits, where it is found by bisection and rounded outwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from corten.conformal.calibrated import CalibratedScores
from corten.conformal.diagnostics import pooled_effective_sample_size
from corten.conformal.kernels import MIN_REMAINING_SHARE
from corten.conformal.quantile import as_levels
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.data.arrays import Entries, Floats, Numbers
from corten.engine.threads import default_threads

MERGED_CHUNK_ENTRIES = 1 << 16  # test entries computed at once
BISECTION_STEPS = 64  # to the last digit: rounding must not put a bound inside that of a lower coverage
MAX_EXPONENT = 600.0  # the exponential of more, times a few, would overflow


class MergedSplits:
    """K calibrated splits with merged intervals, in the variable of the data."""

    beyond = None

    def __init__(self, splits: Sequence[CalibratedSplit]) -> None:
        self.lists = self.splits = tuple(splits)
        self.score = self.splits[0].score
        self.change = self.splits[0].change
        self.two_sided = self.score.tails(0.5).lower is not None
        self.entries = np.concatenate([one.entries for one in self.splits])

    @cached_property
    def scores(self) -> Numbers:
        return np.concatenate([one.scores for one in self.splits])

    @property
    def round_numbers(self) -> Entries:
        """The split that hid each calibration entry."""
        return np.repeat(np.arange(len(self.splits)), [one.scores.size for one in self.splits])

    def mapped(self, change: Callable[[CalibratedScores], CalibratedScores]) -> MergedSplits:
        """The same splits with their lists of scores changed."""
        return MergedSplits([one.mapped(change) for one in self.splits])

    def with_scores(self, score: Score, scores: ArrayLike) -> MergedSplits:
        """The same splits with another score: `scores` belong to `entries`."""
        parts = np.split(np.asarray(scores), np.cumsum([one.scores.size for one in self.splits])[:-1])
        return MergedSplits([one.with_scores(score, part) for one, part in zip(self.splits, parts)])

    def for_file(self, method: bool) -> MergedSplits:
        """What a saved fit keeps."""
        return MergedSplits([one.for_file(method) for one in self.splits])

    def to_data(self, entries: Entries, values: Floats) -> Floats:
        """The values themselves: each split transforms back before the bounds are merged."""
        return values

    def data_estimate(self) -> np.ndarray:
        """The mean of the splits' estimates, in the variable of the data."""
        return np.ascontiguousarray(np.mean([one.data_estimate() for one in self.splits], 0))

    def possible_range(self, entries: Entries) -> tuple[ArrayLike, ArrayLike]:
        """The lowest and the highest value of each entry in the range of some split's transform."""
        low, high = (
            [one.to_data(entries, np.full(entries.size, limit)) for one in self.splits] for limit in (-np.inf, np.inf)
        )
        return np.min(low, axis=0), np.max(high, axis=0)

    @cached_property
    def weights(self) -> PooledWeights:
        """The weight of each calibration entry in its split; for a missing entry the mean of the log-weights."""
        every = np.arange(self.splits[0].estimate.size)
        table = np.mean([one.weights.log_weight(every) for one in self.splits], axis=0)
        return PooledWeights(self.entries, self.log_weights, table)

    @cached_property
    def log_weights(self) -> Floats:
        return np.concatenate([one.log_weights for one in self.splits]).astype(np.float64)

    def effective_sample_size(self) -> float:
        """Effective sample size; the weights of an entry that calibrates in several splits are added first."""
        return pooled_effective_sample_size(self.log_weights, self.entries)

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> tuple[Numbers, Numbers]:
        """Lower and upper bounds, (levels, entries)."""
        levels = as_levels(coverage)
        flat = np.asarray(entries).ravel()
        lower, upper = np.empty((2, levels.size, flat.size))
        for start in range(0, flat.size, MERGED_CHUNK_ENTRIES):
            part = slice(start, min(start + MERGED_CHUNK_ENTRIES, flat.size))
            lower[:, part], upper[:, part] = self._chunk(flat[part], levels)
        return lower, upper

    def _chunk(self, flat: Entries, levels: Floats) -> tuple[Floats, Floats]:
        """Lower and upper bounds of some entries."""
        tests = [_SplitTests(one, flat) for one in self.splits]
        own = [one.bounds(levels) for one in tests]
        bounds = []
        for sign, side in ((-1.0, 0), (1.0, 1)):
            total = np.zeros((levels.size, flat.size))
            bracket = np.stack([sign * pair[side] for pair in own])
            lists = [one.sorted(sign, self.two_sided) for one in tests]
            for row, level in enumerate(levels):
                alpha = (1.0 - level) / (2.0 if self.two_sided else 1.0)
                total[row] = _upper_bounds(
                    tests, lists, sign=sign, bracket=bracket[:, row], alpha=alpha, folded=not self.two_sided
                )
            bounds.append(sign * total)
        # At low coverage the set may be empty if the splits disagree; the mean of their estimates is always included.
        middle = np.mean([one.split.to_data(flat, one.middle) for one in tests], axis=0)
        return np.minimum(bounds[0], middle), np.maximum(bounds[1], middle)


_Sorted = tuple[np.ndarray, ...]  # the first arguments of `_p_values`


class _SplitTests:
    """Test entries in one split: their estimates, scales, log-weights and changes of calibration weights."""

    def __init__(self, split: CalibratedSplit, flat: Entries) -> None:
        self.split, self.flat = split, flat
        self.middle = split.estimate.reshape(-1)[flat].astype(np.float64)
        self.scale = np.asarray(split.scale.at(flat), np.float64)
        self.log_weight = np.asarray(split.weights.log_weight(flat), np.float64)
        self.factor = split.weights.neighbour_factor(flat)

    def bounds(self, levels: Floats) -> tuple[Floats, Floats]:
        """The bounds of this split in the variable of the data, (levels, entries)."""
        pair = self.split.intervals(self.flat, levels.tolist())
        lower, upper = (np.stack([self.split.to_data(self.flat, np.asarray(row)) for row in side]) for side in pair)
        return lower, upper

    def sorted(self, sign: float, two_sided: bool) -> _Sorted:
        """The scores of the split in the form that `_p_values` reads."""
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
            lowered = np.maximum(new.max(axis=1, initial=0.0) - MAX_EXPONENT, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            test = np.exp(self.log_weight - shift - lowered)
            return scores[order], tail, weight, np.exp(-lowered), test, scores, near, np.exp(new - lowered[:, None])

    def furthest(self, sign: float, list_: _Sorted) -> Floats:
        """The value (times the sign) of the largest score of the split."""
        value = self.middle + sign * self.scale * max(float(list_[0][-1]), 0.0)
        return sign * self.split.to_data(self.flat, value)

    def p_values(self, sign: float, list_: _Sorted, x: Floats, folded: bool) -> Floats:
        """The p-values p_k of the values sign * x."""
        z = self.split.to_model(self.flat, sign * x)
        kernel: Callable[..., Floats] = _p_values
        return np.asarray(kernel(*list_, sign * self.middle, self.scale, sign * z, folded))


def _upper_bounds(
    tests: Sequence[_SplitTests], lists: Sequence[_Sorted], *, sign: float, bracket: Floats, alpha: float, folded: bool
) -> Floats:
    """The upper bounds (times a sign), by bisection between the bounds of the splits.

    Where the mean p-value never falls to alpha it is the upper limit of the variable, infinite without a transform.
    """
    count, flat = len(lists), tests[0].flat
    changed = any(one.split.change is not None for one in tests)
    low, high = bracket.min(axis=0), bracket.max(axis=0)
    furthest = np.max([one.furthest(sign, part) for one, part in zip(tests, lists)], axis=0)
    high = np.where(np.isfinite(high), high, np.nextafter(furthest * (1 + 1e-12 * np.sign(furthest)), np.inf))
    nearest = np.min([sign * one.split.to_data(flat, one.middle) for one in tests], axis=0)
    low = np.where(np.isfinite(low), low, nearest)
    high = np.maximum(high, low)
    edge = np.max([sign * one.split.to_data(flat, np.full(flat.size, sign * np.inf)) for one in tests], axis=0)

    def mean_p(x: Floats) -> Floats:
        found = pool.map(lambda k: tests[k].p_values(sign, lists[k], x, folded), range(count))
        return np.asarray(sum(found) / count)

    limit = alpha * (1.0 + 1e-9)
    with ThreadPoolExecutor(min(count, default_threads())) as pool:
        never = (mean_p(np.full(low.size, np.inf) if not changed else edge) > limit) | ~np.isfinite(high)
        inside = mean_p(np.nextafter(high, np.inf)) > limit  # by rounding of the bracket
        high = np.where(inside & ~never, furthest + 1e-9 * (np.abs(furthest) + np.abs(low)), high)
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (low + high)
            if ((middle <= low) | (middle >= high)).all():
                break
            kept = mean_p(middle) > limit
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return np.where(never, edge, high)


@njit(nogil=True, cache=True, error_model="numpy")
def _p_values(scores, tail, weight, lower, test, unsorted, near, new, middle, scale, x, folded):  # type: ignore[no-untyped-def]
    """The p-values of one split at the value x of each test entry; with `folded` distances are at least zero.

    `new` has the weights of neighbours with the test entry set to observed; `lower` the factor of all weights for that
    entry, one unless a new weight is very large. Where nearly all weight is removed, the weights are summed again.
    """
    found = np.empty(x.size)
    for t in range(x.size):
        d = (x[t] - middle[t]) / scale[t]
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
        if whole < MIN_REMAINING_SHARE * tail[0] * lower[t]:
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
