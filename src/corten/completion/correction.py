"""A learned correction of the stack: boosted trees that predict its error at an entry from what surrounds the entry.

The trees are fitted to the errors of hidden entries by absolute loss, cross-fitted by blocks: an observed entry that is
hidden is corrected by trees that were fitted without its block, a missing entry by the mean of the trees of all blocks,
none of which were fitted to it. The correction is used only if it lowers the absolute error of the hidden entries by
two standard errors, and also far from the entries it was fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
from scipy.signal import lfilter

from corten.completion.axes_kinds import axis_kinds, standardise
from corten.completion.lagged import LaggedCorrelations
from corten.completion.protocol import Fill, PreparedMix, on_axes
from corten.completion.unordered import MAX_MATRIX_LENGTH, position_correlations
from corten.conformal.local_scale import COARSE_BLOCKS_PER_AXIS, BlockFolds, EntryFeatures, block_of, exceeds
from corten.conformal.trees import Trees, fit_trees
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine.threads import in_order

NEAREST_POSITIONS = 6  # of an unordered axis, by correlation
MAX_CANDIDATES = 64  # the most correlated positions, of which the nearest observed ones are taken
SHARPNESS = (1, 3)  # powers of the weights by which positions are averaged
AVERAGED_STEPS = (3, 24)  # along an ordered axis, over which a position is compared with that average
MIN_WEIGHT, PRIOR_WEIGHT = 1e-6, 0.2  # of entries that are averaged
NEAREST_ENTRIES = 2  # on each side along an ordered axis
LAGS = (-3, -2, -1, 0, 1, 2, 3)  # steps along an ordered axis at which the nearest positions are averaged
SLOPE_STEPS = (-3, -1, 1, 3)  # steps at which the estimate itself is compared
MIN_CORRECTION_ENTRIES = 3000  # with fewer, no correction is tried
MAX_CORRECTION_ENTRIES = 80_000
MAX_PREDICT_ENTRIES = 1 << 18  # whose features are held at once
MAX_SCREEN_ENTRIES, SCREEN_TREES = 15_000, 40  # of a first fit, which shows whether a larger one can lower the error
PARTS_OF_AXIS = 3  # of an ordered axis
MIN_CORRECTION_GAIN = 0.01  # of the mean absolute error, in blocks and far away
TREES, LEARNING_RATE, LEAVES, MIN_LEAF_ENTRIES = 150, 0.1, 31, 40
SECONDS_PER_DAY = 86_400


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
            there = tuple(near[index[k], :NEAREST_POSITIONS] if j == k else i[:, None] for j, i in enumerate(index))
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
        near = self.nearest[k][index[k], :MAX_CANDIDATES]
        observed = train[tuple(near if j == k else i[:, None] for j, i in enumerate(index))]
        first = np.argsort(~observed, axis=1, kind="stable")[:, :NEAREST_POSITIONS]
        place, inside = np.take_along_axis(near, first, 1), np.take_along_axis(observed, first, 1)
        value = known[tuple(place if j == k else i[:, None] for j, i in enumerate(index))]
        likeness = self.correlations[k][index[k][:, None], place]
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
        at = tuple(np.clip(place, 0, length - 1) if j == k else i for j, i in enumerate(index))
        found = last[at]
        inside = (place >= 0) & (place < length) & (found >= 0) & (found < length)
        value = values[tuple(np.clip(found, 0, length - 1) if j == k else i for j, i in enumerate(index))]
        columns.append(np.where(inside, (np.where(inside, value, 0) - middle) / spread, 0.0))
        if number == 0:
            first = found
            columns.append(np.where(inside, np.abs(index[k] - found), 2 * length))
        place = np.where(inside, found - side, -1 if side > 0 else length)
    return columns, first


def _moved(index: tuple[np.ndarray, ...], k: int, place: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The index with other places along axis k, those outside it at its ends."""
    return tuple(np.clip(place, 0, shape[k] - 1) if j == k else i for j, i in enumerate(index))


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


@dataclass(frozen=True)
class Correction:
    """Trees for each fold of blocks, fitted without that fold, with the features they use.

    observed: the entries that were observed in the fit, some of which the trees were fitted to.
    """

    describe: NeighbourFeatures
    models: Mapping[int, Trees] = field(repr=False)
    fold_of: BlockFolds
    observed: np.ndarray = field(repr=False)

    def predict(self, features: np.ndarray, entries: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """What is added to the estimates of entries with these features.

        Of entries that were observed in the fit it comes from trees fitted without their block: errors in a block are
        alike. Of the others it is the mean of all trees. shape: of later data, if it is not that of the fit.
        """
        fold_of = replace(self.fold_of, shape=shape or self.fold_of.shape)
        moved = fold_of != self.fold_of
        fold, total = fold_of(entries), np.zeros(len(entries))
        own = np.ones(len(entries), bool) if moved else self.observed.reshape(-1)[entries]
        for number, trees in self.models.items():
            weight = np.where(own, fold == number, 1 / len(self.models))
            inside = weight > 0
            if inside.any():
                total[inside] += weight[inside] * self.describe.describe.spread * trees.sum(features[inside])
        return total


@dataclass(frozen=True)
class PreparedCorrected:
    """A prepared stack whose estimates of entries outside the mask are corrected.

    first: the stack whose mix the features are computed from, that of the rounds. Data with other positions along an
    unordered axis are not corrected.
    """

    stack: PreparedMix
    first: PreparedMix
    correction: Correction
    choice: Choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The settings of the stack and of the correction."""
        return (*self.stack.choices, self.choice)

    def on_axes(self, axes: Sequence[Axis]) -> PreparedCorrected:
        """The same stack and correction for data on other axes."""
        stack = cast(PreparedMix, on_axes(self.stack, axes))
        correction = replace(self.correction, describe=self.correction.describe.on_axes(axes))
        return replace(self, stack=stack, correction=correction)

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill from the entries where `mask` is True, and correct the others."""
        fill = self.stack.fill(values, mask)
        entries = np.flatnonzero(~mask)
        describe = self.correction.describe
        if not describe.applies_to(mask.shape):
            return fill
        mixed = self.first.mix(fill.members)
        estimate = np.array(fill.estimate)
        for part in np.array_split(entries, -(-len(entries) // MAX_PREDICT_ENTRIES) or 1):
            features = np.hstack(
                [
                    one.at(part, values=values, train=mask, estimate=mixed, members=fill.members)
                    for one in (describe.describe, describe)
                ]
            )
            estimate.reshape(-1)[part] += self.correction.predict(features, part, mask.shape)
        return Fill(estimate, fill.members)


def learn_correction(
    describe: NeighbourFeatures,
    features: np.ndarray,
    *,
    residuals: np.ndarray,
    entries: np.ndarray,
    observed: np.ndarray,
    seed: int,
) -> tuple[Correction | None, Choice]:
    """The correction learned from the residuals of hidden entries, or None; and the record of the choice.

    observed: the mask of the data, whose hidden entries are at the flat `entries`.
    """
    shape = observed.shape
    if len(entries) < MIN_CORRECTION_ENTRIES:
        return None, _choice(False, f"{len(entries)} hidden entries are fewer than {MIN_CORRECTION_ENTRIES}", 0.0)
    if not describe.correlations and not describe.covariates:
        return None, _choice(False, "it is learned only where an axis is unordered or covariates are given", 0.0)
    fold_of = BlockFolds(shape, seed)
    fold = fold_of(entries)
    spread = describe.describe.spread
    target = np.asarray(residuals, np.float64) / spread
    rng = np.random.default_rng((seed, 0xC0))
    share = _gain_far_away(features, target, entries, axes=describe.describe.axes, rng=rng, seed=seed)
    if share < MIN_CORRECTION_GAIN:
        because = f"trees fitted to other parts of an ordered axis changed the absolute error by {-share:.1%}"
        return None, _choice(False, f"{because}, less than {MIN_CORRECTION_GAIN:.0%} is not used", share)
    numbers = np.unique(fold).tolist()
    rows = [_some(np.flatnonzero(fold != number), MAX_CORRECTION_ENTRIES, rng) for number in numbers]
    models = in_order(lambda own: _fit(features, target, own, TREES, seed), rows)
    correction = Correction(describe, dict(zip(numbers, models)), fold_of, observed)
    gain = np.abs(target) - np.abs(target - correction.predict(features, entries) / spread)
    share = float(gain.sum() / max(np.abs(target).sum(), 1e-300))
    used = share >= MIN_CORRECTION_GAIN and exceeds(gain, block_of(entries, shape, COARSE_BLOCKS_PER_AXIS))
    because = (
        f"it changes the mean absolute error of entries hidden in blocks it was not fitted to by {-share:.1%}, "
        f"{'more' if used else 'not more'} than two standard errors and {MIN_CORRECTION_GAIN:.0%}"
    )
    return (correction if used else None), _choice(used, because, share)


def _gain_far_away(
    features: np.ndarray,
    target: np.ndarray,
    entries: np.ndarray,
    *,
    axes: Sequence[Axis],
    rng: np.random.Generator,
    seed: int,
) -> float:
    """The decrease of the absolute error, as a share, in parts of an ordered axis that small trees were not fitted to.

    The smallest over the ordered axes, or the first that is too small. Errors of a smooth field are alike in
    neighbouring blocks: trees can learn the places of large errors, which are not those of the gap. They gain in
    neighbouring blocks, but not far away.
    """
    shape = tuple(axis.length for axis in axes)
    index, shares = np.unravel_index(entries, shape), []

    def errors_without(rows: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
        """Absolute errors inside a part, before and after a correction that was fitted outside it."""
        out, inside = rows
        trees = _fit(features, target, out, SCREEN_TREES, seed)
        return float(np.abs(target[inside]).sum()), float(np.abs(target[inside] - trees.sum(features[inside])).sum())

    for k, axis in enumerate(axes):
        if axis.kind == "unordered" or shape[k] < 2 * PARTS_OF_AXIS:
            continue
        part = index[k] * PARTS_OF_AXIS // shape[k]
        drawn = [
            [_some(np.flatnonzero(rows), MAX_SCREEN_ENTRIES, rng) for rows in (part != number, part == number)]
            for number in range(PARTS_OF_AXIS)
        ]
        enough = [(out, inside) for out, inside in drawn if len(out) >= MIN_CORRECTION_ENTRIES // 4 and len(inside)]
        before, after = (sum(errors) for errors in zip((0.0, 0.0), *in_order(errors_without, enough)))
        shares.append((before - after) / before if before > 0 else 0.0)
        if shares[-1] < MIN_CORRECTION_GAIN:
            break
    return min(shares, default=0.0)


def _choice(used: bool, because: str, share: float) -> Choice:
    taken = "boosted trees" if used else "none"
    code = "correction_used" if used else "correction_not_used"
    return Choice("correction of the stack", taken, because, code=code, values={"gain": share})


def _some(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _fit(features: np.ndarray, target: np.ndarray, rows: Sequence[int] | np.ndarray, trees: int, seed: int) -> Trees:
    """Boosted trees by absolute loss."""
    return fit_trees(
        features[rows], target[rows], loss="absolute_error", trees=trees, learning_rate=LEARNING_RATE, leaves=LEAVES,
        least=MIN_LEAF_ENTRIES, seed=seed,
    )  # fmt: skip
