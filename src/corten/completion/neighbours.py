"""What surrounds an entry, as features: values near it, other positions that are like its own, members, and the time.

The correction of a stack is learned from them, and the scale of errors where an axis is unordered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.signal import lfilter

from corten.completion.axes_kinds import axis_kinds, standardise
from corten.completion.lagged import LaggedCorrelations
from corten.completion.unordered import MAX_MATRIX_LENGTH, position_correlations
from corten.conformal.local_scale import EntryFeatures
from corten.data.axes import Axis
from corten.engine.memory import threads_within

NEAREST_POSITIONS = 6  # of an unordered axis, by correlation
MAX_CANDIDATES = 64  # the most correlated positions, of which the nearest observed ones are taken
SHARPNESS = (1, 3)  # powers of the weights by which positions are averaged
AVERAGED_STEPS = (3, 24)  # along an ordered axis, over which a position is compared with that average
MIN_WEIGHT, PRIOR_WEIGHT = 1e-6, 0.2  # of entries that are averaged
NEAREST_ENTRIES = 2  # on each side along an ordered axis
LAGS = (-3, -2, -1, 0, 1, 2, 3)  # steps along an ordered axis at which the nearest positions are averaged
SLOPE_STEPS = (-3, -1, 1, 3)  # steps at which the estimate itself is compared
MAX_PREDICT_ENTRIES = 1 << 17  # whose features are held at once
BYTES_OF_ROW, BYTES_OF_FIELDS = 3000, 100  # while they are computed: for each of their rows, each entry of the tensor
SECONDS_PER_DAY = 86_400


def parts_of(count: int, size: int) -> tuple[list[slice], int]:
    """Parts of so many entries of a tensor of this size whose features are computed at once, and in how many threads.

    Examples
    --------
    >>> parts_of(10, 50)[0]
    [slice(0, 131072, None)]
    """
    parts = [slice(at, at + MAX_PREDICT_ENTRIES) for at in range(0, count, MAX_PREDICT_ENTRIES)]
    each = BYTES_OF_ROW * min(count, MAX_PREDICT_ENTRIES) + BYTES_OF_FIELDS * size
    return parts, threads_within(max(each, 1), max(len(parts), 1))


@dataclass(frozen=True)
class NeighbourFeatures:
    """Values near an entry relative to its estimate, members relative to it, and the time: made once for a tensor.

    describe: the features of the scale, which are used too; correlations: of the positions of the unordered axes, by
    axis, -1 of a position with itself; covariates: arrays that broadcast to the tensor; lagged: what predicts entries
    of positions at nearby steps, None if there are too few steps.
    """

    describe: EntryFeatures
    correlations: dict[int, np.ndarray] = field(repr=False)
    covariates: tuple[np.ndarray, ...] = field(default=(), repr=False)
    lagged: LaggedCorrelations | None = field(default=None, repr=False)

    @staticmethod
    def of(
        values: np.ndarray,
        mask: np.ndarray,
        describe: EntryFeatures,
        covariates: Mapping[str, np.ndarray] | None = None,
    ) -> NeighbourFeatures:
        """The features with positions compared by the entries in `mask`."""
        kinds = axis_kinds(describe.axes, mask.shape)
        short = tuple("ordered" if n > MAX_MATRIX_LENGTH else kind for kind, n in zip(kinds, mask.shape))
        known = standardise(values, mask, kinds).values
        found = position_correlations(known, mask, short)
        matrices = {k: one.matrix - 2 * np.eye(one.length) for k, one in found.items() if one.matrix is not None}
        lagged = LaggedCorrelations.of(values, mask, describe.axes) if matrices else None
        return NeighbourFeatures(describe, matrices, tuple((covariates or {}).values()), lagged)

    @cached_property
    def nearest(self) -> dict[int, np.ndarray]:
        """The other positions of each position of the unordered axes, the most correlated first."""
        return {k: np.argsort(-one, axis=1, kind="stable")[:, :-1] for k, one in self.correlations.items()}

    def on_axes(self, axes: Sequence[Axis]) -> NeighbourFeatures:
        """The same for data on other axes."""
        return replace(self, describe=self.describe.on_axes(axes))

    def applies_to(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape has the positions that the features know."""
        return all(shape[k] == len(one) for k, one in self.correlations.items())

    def at(
        self,
        entries: np.ndarray,
        values: np.ndarray,
        *,
        train: np.ndarray,
        estimate: np.ndarray,
        members: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        """Features of the flat `entries`, (entries, features): zero where a neighbour is not in `train`."""
        axes, shape = self.describe.axes, train.shape
        if not self.correlations and not self.covariates:  # no correction is tried
            return np.zeros((len(entries), 0), np.float32)
        index = np.unravel_index(entries, shape)
        middle = estimate.reshape(-1)[entries].astype(np.float64)
        spread = self.describe.spread
        rows = tuple(i[:, None] for i in index)
        columns = [(member.reshape(-1)[entries] - middle) / spread for member in members.values()]
        columns.append(middle / spread)
        ordered = [k for k, axis in enumerate(axes) if axis.kind != "unordered" and shape[k] > 1]
        known: dict[tuple[int, int], np.ndarray] = {}
        for k in ordered:
            for side in (1, -1):
                own, known[k, side] = _along(values, train, index=index, k=k, side=side, middle=middle, spread=spread)
                columns += own
            columns += [(estimate[_moved(index, k, index[k] + s, shape)] - middle) / spread for s in SLOPE_STEPS]
        data = standardise(values, train, axis_kinds(axes, shape))
        scale, centre = (np.broadcast_to(part, shape).reshape(-1)[entries] for part in (data.scale, data.centre))
        level = (middle - centre) / scale
        for k, near in self.nearest.items():
            columns += self._nearest_observed(data.values, train, index=index, k=k, level=level)
            columns += self._averages(data.values, train, entries=entries, k=k, ordered=ordered, level=level)
            count = train.sum(axis=k)
            rest = tuple(i for j, i in enumerate(index) if j != k)
            mean = data.values.sum(axis=k)[rest] / np.maximum(count[rest], 1)
            columns += [np.where(count[rest] > 0, mean - level, 0.0), count[rest], index[k]]
            # In the unit of the data: stations near each other have similar values even if their spreads differ.
            there = _placed(rows, k, near[index[k], :NEAREST_POSITIONS])
            now = np.where(train[there], values[there], np.nan)
            for o in ordered:
                for lag in LAGS if o == ordered[0] else [lag for lag in LAGS if lag]:
                    at = _moved(there, o, there[o] + lag, shape)
                    columns.append(_mean(np.where(train[at], values[at], np.nan) - middle[:, None]) / spread)
                for side in (1, -1):
                    found = known[o, side]
                    inside = (found >= 0) & (found < shape[o])
                    at = _moved(there, o, found[:, None], shape)
                    change = _mean(now - np.where(train[at], values[at], np.nan))
                    last = np.where(inside, values[_moved(index, o, found, shape)], middle)
                    columns.append(np.where(inside, (last + change - middle) / spread, 0.0))
        for k, axis in enumerate(axes):
            columns += [part[index[k]] for part in _time_of(axis, shape[k])]
        columns += [np.broadcast_to(one, shape)[index] for one in self.covariates]
        if self.lagged is not None:
            columns += self.lagged.columns(entries, values, train=train, middle=middle, spread=spread)
        return np.stack(columns, axis=1).astype(np.float32)

    def _nearest_observed(
        self, known: np.ndarray, train: np.ndarray, *, index: tuple[np.ndarray, ...], k: int, level: np.ndarray
    ) -> list[np.ndarray]:
        """The values of the nearest observed positions relative to the estimate, and their correlations."""
        near, rows = self.nearest[k][index[k], :MAX_CANDIDATES], tuple(i[:, None] for i in index)
        observed = train[_placed(rows, k, near)]
        first = np.argsort(~observed, axis=1, kind="stable")[:, :NEAREST_POSITIONS]
        place, inside = np.take_along_axis(near, first, 1), np.take_along_axis(observed, first, 1)
        value = known[_placed(rows, k, place)]
        likeness = self.correlations[k][rows[k], place]
        return [*np.where(inside, value - level[:, None], 0.0).T, *np.where(inside, likeness, 0.0).T]

    def _averages(
        self, known: np.ndarray, train: np.ndarray, *, entries: np.ndarray, k: int, ordered: Sequence[int],
        level: np.ndarray,
    ) -> list[np.ndarray]:  # fmt: skip
        """Averages of the observed positions by their correlation, relative to the estimate, and their weights.

        Also the same plus the difference of the position from such averages nearby along an ordered axis.
        """
        columns, kept = [], train.astype(float)
        for power in SHARPNESS:
            weights = 1 / (1.02 - np.clip(self.correlations[k], 0, 1)) ** power
            np.fill_diagonal(weights, 0.0)
            total, size = (np.moveaxis(np.tensordot(one, weights, (k, 1)), -1, k) for one in (known, kept))
            average, some = total / np.maximum(size, MIN_WEIGHT), size > MIN_WEIGHT
            here, inside = average.reshape(-1)[entries] - level, some.reshape(-1)[entries]
            columns += [np.where(inside, here, 0.0), np.log(size.reshape(-1)[entries] + 0.1)]
            both = train & some
            apart, counted = np.where(both, known - average, 0.0), both.astype(float)
            for axis in ordered:
                for steps in AVERAGED_STEPS:
                    sums = (_decaying_sum(one, axis, steps).reshape(-1)[entries] for one in (apart, counted))
                    offset = next(sums) / (next(sums) + PRIOR_WEIGHT)
                    columns += [np.where(inside, here + offset, 0.0), offset]
        return columns


def _decaying_sum(values: np.ndarray, axis: int, steps: float) -> np.ndarray:
    """Sums along an axis with weights exp(-distance / steps)."""
    decay = [1.0, -math.exp(-1 / steps)]
    ahead = lfilter([1.0], decay, values, axis=axis)
    back = np.flip(lfilter([1.0], decay, np.flip(values, axis), axis=axis), axis)
    return np.asarray(ahead + back - values)


def _along(
    values: np.ndarray,
    train: np.ndarray,
    *,
    index: tuple[np.ndarray, ...],
    k: int,
    side: int,
    middle: np.ndarray,
    spread: float,
) -> tuple[list[np.ndarray], np.ndarray]:
    """The nearest training values on one side along axis k relative to the estimate, and the steps to the first.

    Also the position of the first, outside the axis if there is none.
    """
    length = train.shape[k]
    step = np.arange(length, dtype=np.int32).reshape([-1 if j == k else 1 for j in range(train.ndim)])
    if side > 0:
        last = np.maximum.accumulate(np.where(train, step, -1), axis=k)
    else:
        last = np.flip(np.minimum.accumulate(np.flip(np.where(train, step, length), k), axis=k), k)
    columns, place, first = [], index[k], index[k]
    for number in range(NEAREST_ENTRIES):
        found = last[_moved(index, k, place, train.shape)]
        inside = (place >= 0) & (place < length) & (found >= 0) & (found < length)
        value = values[_moved(index, k, found, train.shape)]
        columns.append(np.where(inside, (np.where(inside, value, 0) - middle) / spread, 0.0))
        if number == 0:
            first = found
            columns.append(np.where(inside, np.abs(index[k] - found), 2 * length))
        place = np.where(inside, found - side, -1 if side > 0 else length)
    return columns, first


def _placed(index: tuple[np.ndarray, ...], k: int, place: np.ndarray) -> tuple[np.ndarray, ...]:
    """The index with other places along axis k."""
    return (*index[:k], place, *index[k + 1 :])


def _moved(index: tuple[np.ndarray, ...], k: int, place: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The index with other places along axis k, those outside it at its ends."""
    return _placed(index, k, np.clip(place, 0, shape[k] - 1))


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean of each row without NaN, 0 if there is nothing else."""
    inside = ~np.isnan(values)
    return np.where(inside, values, 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)


def _time_of(axis: Axis, length: int) -> list[np.ndarray]:
    """Hour of the day and day of the year of every position, if the coordinates are dates."""
    dates = axis.coordinates
    if dates is None or not np.issubdtype(np.asarray(dates).dtype, np.datetime64):
        return []
    dates = np.asarray(dates).astype("datetime64[s]")
    if len(dates) < length:  # later data, with more slices than the fit had
        step = np.median(np.diff(dates)) if len(dates) > 1 else np.timedelta64(1, "s")
        dates = dates[0] + step * np.arange(length)
    day, year = dates.astype("datetime64[D]"), dates.astype("datetime64[Y]")
    seconds = (dates - day.astype("datetime64[s]")).astype(float)
    of_year = (day - year.astype("datetime64[D]")).astype(float)
    return [seconds / SECONDS_PER_DAY * 24, of_year]
