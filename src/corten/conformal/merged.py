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
        found = []
        for side, sign in enumerate((-1.0, 1.0)):
            sides = [_Side(one, sign, self.two_sided) for one in tests]
            bracket = np.stack([sign * pair[side] for pair in own], axis=1)
            alphas = (1.0 - levels) / (2.0 if self.two_sided else 1.0)
            found.append(sign * np.stack([_upper_bounds(sides, *each) for each in zip(bracket, alphas)]))
        # At low coverage the set may be empty if the splits disagree; the mean of their estimates is always included.
        middle = np.mean([one.split.to_data(flat, one.middle) for one in tests], axis=0)
        return np.minimum(found[0], middle), np.maximum(found[1], middle)


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


class _Side:
    """The p-values of test entries in one split for upper bounds, or for lower ones with all signs changed."""

    def __init__(self, tests: _SplitTests, sign: float, two_sided: bool) -> None:
        self.tests, self.sign, self.folded = tests, sign, not two_sided
        self.middle = sign * tests.middle
        self.scores = np.asarray(tests.split.scores, np.float64) * (sign if two_sided else 1.0)
        logs = np.asarray(tests.split.log_weights, np.float64)
        shift = float(logs.max())
        logs = logs - shift
        order, self.weight = np.argsort(self.scores, kind="stable"), np.exp(logs)
        self.sorted = self.scores[order]
        self.tail = np.concatenate([np.cumsum(self.weight[order][::-1])[::-1], [0.0]])
        self.near, new = np.full((0, tests.flat.size), -1, np.intp), np.zeros((0, tests.flat.size))
        if tests.factor is not None:
            self.near = np.ascontiguousarray(tests.factor.neighbours.T, np.intp)
            new = np.where(self.near >= 0, logs[self.near] + tests.factor.log_factor.T, -np.inf)
        # A very large new weight is kept finite: all weights of its test entry are divided by a factor.
        lowered = np.maximum(new.max(axis=0, initial=0.0) - MAX_EXPONENT, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            self.test, self.lower = np.exp(tests.log_weight - shift - lowered), np.exp(-lowered)
            self.new = np.exp(new - lowered)
        self.near_scores, before = self.scores[self.near], self.tail[0] * self.lower
        self.change = np.where(self.near >= 0, self.new - self.weight[self.near] * self.lower, 0.0)
        whole = before + self.change.sum(axis=0)
        # Too few digits are left of these sums: they are made again.
        self.few: list[int] = np.flatnonzero(whole < MIN_REMAINING_SHARE * before).tolist()
        whole[self.few] = [self._weights_of(t).sum() for t in self.few]
        self.total = np.maximum(whole, 0.0) + self.test
        self.certain = np.flatnonzero(~(np.isfinite(self.total) & (self.total > 0.0)))  # no weight, or an infinite one

    def _weights_of(self, t: int) -> Floats:
        """The weights of all calibration entries for a test entry, itself observed."""
        own, there = self.weight * self.lower[t], self.near[:, t] >= 0
        own[self.near[there, t]] = self.new[there, t]
        return own

    def to_data(self, values: Floats) -> Floats:
        """Values of the modelled variable in that of the data, both times the sign."""
        return self.sign * self.tests.split.to_data(self.tests.flat, self.sign * values)

    def p_values(self, x: Floats) -> Floats:
        """The p-values of the values sign * x."""
        tests = self.tests
        distance = (self.sign * tests.split.to_model(tests.flat, self.sign * x) - self.middle) / tests.scale
        distance = np.maximum(distance, 0.0) if self.folded else distance
        beyond = self.tail.take(np.searchsorted(self.sorted, distance)) * self.lower
        if len(self.near):
            beyond += (self.change * (self.near_scores >= distance)).sum(axis=0)
        for t in self.few:
            beyond[t] = self._weights_of(t)[self.scores >= distance[t]].sum()
        with np.errstate(invalid="ignore"):
            found = (np.maximum(beyond, 0.0) + self.test) / self.total
        found[self.certain] = 1.0
        return found


def _upper_bounds(sides: Sequence[_Side], bracket: Floats, alpha: float) -> Floats:
    """The upper bounds (times the sign), by bisection between the bounds of the splits.

    Where the mean p-value never falls to alpha it is the upper limit of the variable, infinite without a transform.
    """
    count = len(sides)
    low, high = bracket.min(axis=0), bracket.max(axis=0)
    reach = [one.to_data(one.middle + one.tests.scale * max(float(one.sorted[-1]), 0.0)) for one in sides]
    furthest = np.max(reach, axis=0)
    high = np.where(np.isfinite(high), high, np.nextafter(furthest * (1 + 1e-12 * np.sign(furthest)), np.inf))
    low = np.where(np.isfinite(low), low, np.min([one.to_data(one.middle) for one in sides], axis=0))
    high = np.maximum(high, low)
    edge = np.max([one.to_data(np.full(low.size, np.inf)) for one in sides], axis=0)

    def mean_p(x: Floats) -> Floats:
        return np.asarray(sum(pool.map(lambda one: one.p_values(x), sides)) / count)

    limit = alpha * (1.0 + 1e-9)
    with ThreadPoolExecutor(min(count, default_threads())) as pool:
        never = (mean_p(edge) > limit) | ~np.isfinite(high)
        inside = mean_p(np.nextafter(high, np.inf)) > limit  # by rounding of the bracket
        high = np.where(inside & ~never, furthest + 1e-9 * (np.abs(furthest) + np.abs(low)), high)
        for _ in range(BISECTION_STEPS):
            middle = 0.5 * (low + high)
            if ((middle <= low) | (middle >= high)).all():
                break
            kept = mean_p(middle) > limit
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return np.where(never, edge, high)
