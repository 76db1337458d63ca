"""The learned local scale: the expected size of the error of an entry, from features of its surroundings.

The model is a ridge regression of log|r| on the features of hidden entries, times gradient boosting (gamma loss) of the
ratios. A line in the logarithm of the depth is used instead unless the model is better by two standard errors: small
fields have few independent gaps to learn from. The scale is cross-fitted by blocks: that of a hidden entry comes from a
model fitted without its block, in all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from corten.conformal.depth import depth, distances_along, steps_of_change
from corten.conformal.trees import Trees, fit_trees
from corten.data.arrays import Entries, Numbers
from corten.data.axes import Axis
from corten.engine.arrays import Array, Arrays, HostArrays
from corten.engine.threads import in_order

WINDOW_CHANGES = (0.1, 0.3, 1.0)  # half-widths of averaging windows, in standard deviations of change
SCALE_FOLDS = 5
MIN_BLOCK_LENGTH = 8  # positions along an axis: shorter blocks hold errors that are correlated with those of the next
MIN_BLOCKS_PER_AXIS, MAX_BLOCKS_PER_AXIS = 3, 6
COARSE_BLOCKS_PER_AXIS = 3  # blocks whose errors are taken as independent when two models of the scale are compared
MIN_SCALE_ENTRIES = 20  # outside a fold, to fit a model without it
MAX_SCALE_ENTRIES, MAX_FIT_NUMBERS = 50_000, 2_000_000  # the latter: entries times features
PREDICT_ENTRIES = 1 << 14  # whose scale is predicted at once: memory stays bounded, and many cores have work
MIN_RELATIVE_ERROR = 1e-3  # of the median error; smaller errors are raised to it
MAX_LOG_SCALE = 12.0
MAX_DEVIATION = 4.0  # of a feature from its mean, in standard deviations: a line is far off beyond the data
MIN_GAIN_STANDARD_ERRORS = 2.0
LOG_FLOOR = 1e-6  # added before logarithms
MIN_DENSITY = np.float32(1e-4)  # of training entries: averages over fewer are dominated by rounding


@dataclass(frozen=True)
class EntryFeatures:
    """Features of entries from their surroundings; made once for a tensor, used for every round and the final fill.

    lengths: of the axes of the tensor that they were made for, if `axes` are others; they limit distances.
    """

    axes: Sequence[Axis]
    change: np.ndarray
    spread: float
    lengths: tuple[int, ...] = ()

    @staticmethod
    def of(values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> EntryFeatures:
        """The features with lengths and heights scaled by `values` where `mask` is True."""
        spread = float(values[mask].std(dtype=np.float64)) if mask.any() else 0.0
        return EntryFeatures(axes, steps_of_change(values, mask, axes), spread if spread > 0 else 1.0)

    def on_axes(self, axes: Sequence[Axis]) -> EntryFeatures:
        """The same features for data on other axes: that of "no training entry on this side" keeps its value."""
        return replace(self, axes=axes, lengths=self.lengths or tuple(axis.length for axis in self.axes))

    def at(
        self,
        entries: Entries,
        values: np.ndarray,
        *,
        train: np.ndarray,
        estimate: np.ndarray,
        members: Mapping[str, np.ndarray],
        deep: np.ndarray | None = None,
    ) -> Numbers:
        """Features of the flat `entries`, (entries, features), given the training entries and the fill from them."""
        deep = depth(train, self.axes, self.change) if deep is None else deep
        centre = float(values[train].mean(dtype=np.float64)) if train.any() else 0.0
        fields = Fields(
            deep=deep[None],
            kept=train.astype(np.float32)[None],
            height=np.where(train, (values - centre) / self.spread, 0).astype(np.float32)[None],
            estimate=(estimate / self.spread).astype(np.float32)[None],
            members=tuple(member[None].astype(float, copy=False) for member in members.values()),
            unit=1 / self.spread,
        )
        # Column by column into one array: of a tensor with few observed entries this is the largest array of a fit.
        most = 4 * train.ndim + len(members) + 9
        features = np.empty((len(entries), most), np.float32)
        count = 0
        for count, column in enumerate(columns(HostArrays(), self.layout, entries[None], fields), 1):
            features[:, count - 1] = column[0]
        return features[:, :count]

    @property
    def layout(self) -> Layout:
        """The axes as a setting of a program."""
        return Layout(
            tuple(axis.kind != "unordered" for axis in self.axes),
            tuple(bool(axis.periodic) for axis in self.axes),
            tuple(np.asarray(self.change, float).tolist()),
            self.lengths,
        )


class Layout(NamedTuple):
    """Of each axis whether it is ordered and periodic, the change in one step, and what limits distances if not it."""

    ordered: tuple[bool, ...]
    periodic: tuple[bool, ...]
    change: tuple[float, ...]
    lengths: tuple[int, ...] = ()

    def widths(self, scale: float, shape: Sequence[int]) -> dict[int, int]:
        """Widths of the window along the ordered axes, with a half-width of `scale` standard deviations of change."""
        return {
            k: int(min(2 * max(1, round(scale / self.change[k])) + 1, 2 * (n // 2) + 1))
            for k, n in enumerate(shape)
            if self.ordered[k] and n > 1
        }

    def blur(self, arrays: Arrays, array: Array, scale: float) -> Array:
        """The moving average over the window."""
        for k, width in self.widths(scale, array.shape[1:]).items():
            array = arrays.moving_average(array, width, k + 1, self.periodic[k])
        return array


class Fields(NamedTuple):
    """What features are computed from, for a batch of rounds.

    deep: depths; kept: one at training entries; height: their values, relative to a level, and zero elsewhere;
    estimate: relative to any level, as its members; height and estimate are in spreads of the data, and members are
    after multiplication by `unit`.
    """

    deep: Array
    kept: Array
    height: Array
    estimate: Array
    members: tuple[Array, ...]
    unit: Array | float


def columns(arrays: Arrays, layout: Layout, entries: Array, fields: Fields) -> Iterator[Array]:
    """The features one by one, each (rounds, entries), at the flat `entries` of each round; the estimate is the last.

    The code is the same for NumPy and JAX.
    """
    xp, shape = arrays.xp, fields.kept.shape[1:]
    kept, height = fields.kept, fields.height
    at, blur = partial(arrays.at, entries=entries), partial(layout.blur, arrays)
    yield xp.log(at(fields.deep) + 1e-2)
    # Distances to and densities of training entries.
    for k, n in enumerate(shape):
        if n == 1:
            continue
        if layout.ordered[k]:
            most = layout.lengths[k] if layout.lengths else n
            for side in distances_along(kept, k + 1, periodic=layout.periodic[k], arrays=arrays, most=most):
                yield xp.log1p(at(side))
        after = math.prod(shape[k + 1 :])
        fibre = entries // (after * n) * after + entries % after
        yield xp.log(arrays.at(kept.mean(axis=k + 1), fibre) + 0.01)
    density = {scale: xp.maximum(blur(kept, scale), 0) for scale in WINDOW_CHANGES}
    for share in density.values():
        yield xp.log(at(share) + 1e-3)
    for scale in (0.3, 1.0):
        yield _one_sided(arrays, layout, entries, kept=kept, density=density[scale], scale=scale)
    # The roughness of training values around an entry.
    near = density[0.3] + MIN_DENSITY
    variance = at(blur(height**2, 0.3) / near - (blur(height, 0.3) / near) ** 2)
    yield 0.5 * xp.log(xp.maximum(variance, 0) + LOG_FLOOR)
    # The difference of each training value from the mean of its surroundings, averaged around the entry.
    own = 1 / math.prod(layout.widths(0.1, shape).values())  # weight of the central entry in the moving average
    others = xp.maximum(density[0.1] - own * kept, 0)
    local_mean = (blur(height, 0.1) - own * height) / (others + MIN_DENSITY)
    deviation = xp.abs(height - local_mean) * kept * (others > MIN_DENSITY)
    rough = at(blur(deviation, 1.0) / (density[1.0] + MIN_DENSITY))
    yield xp.log(xp.maximum(rough, 0) + LOG_FLOOR)
    # The gradient of the estimate, the disagreement of its members, and the estimate.
    for k, n in enumerate(shape):
        if layout.ordered[k] and n > 1:
            yield xp.log(at(abs(xp.gradient(fields.estimate, axis=k + 1))) + 1e-4)
    each = [at(member) * fields.unit for member in fields.members]
    if len(each) > 1:
        yield xp.log(xp.std(xp.stack(each), axis=0) + 1e-4)
        for a, b in pairwise(each):
            yield xp.log(xp.abs(a - b) + 1e-4)
    yield at(fields.estimate)


def _one_sided(arrays: Arrays, layout: Layout, entries: Array, *, kept: Array, density: Array, scale: float) -> Array:
    """The distance of an entry from the centre of the training entries in its window, in half-widths.

    It is near zero among training entries and near one beyond their edge, where a fill extrapolates.
    """
    shape = kept.shape[1:]
    total = arrays.xp.zeros(entries.shape, np.float32)
    for k, width in layout.widths(scale, shape).items():
        if not layout.periodic[k]:
            place = np.arange(shape[k], dtype=np.float32)
            place = (place - place.mean()).reshape([-1 if j == k else 1 for j in range(len(shape))])
            offset = (layout.blur(arrays, kept * place, scale) - density * place) / (density + MIN_DENSITY)
            total += (arrays.at(offset, entries) * np.float32(2 / width)) ** 2
    return arrays.xp.sqrt(total)


class ScaleModel(Protocol):
    """A fitted model of the scale: `predict` gives it at entries with these features."""

    def predict(self, features: Numbers) -> Numbers: ...


@dataclass(frozen=True)
class LearnedScale:
    """The scale of errors: cross-fitted at the hidden entries, predicted elsewhere from features.

    `hidden` is the scale of the entries it was learned from, in their order; `models` has one model for each fold of
    blocks, fitted without that fold; `fold_of` gives the fold of entries.
    """

    hidden: Numbers
    models: Mapping[int, ScaleModel] = field(repr=False)
    fold_of: Callable[[Entries], Entries] = field(repr=False)

    @staticmethod
    def fit(
        features: Numbers, residuals: Numbers, *, entries: Entries, shape: tuple[int, ...], seed: int
    ) -> LearnedScale:
        """Learn from the residuals of hidden entries; the flat indices `entries` determine their blocks."""
        size = np.abs(np.asarray(residuals, dtype=float))
        typical = float(np.median(size)) or float(size.mean()) or 1.0
        size = size / typical
        fold_of = BlockFolds(tuple(shape), seed)
        fold = fold_of(entries)
        folds = np.unique(fold).tolist()
        left_out = [f for f in folds if (fold != f).sum() >= MIN_SCALE_ENTRIES]
        if not left_out:
            return LearnedScale(np.full(len(size), typical), {0: ConstantScale(typical)}, fold_of)

        def crossed(fit: Callable[..., ScaleModel]) -> LearnedScale:
            """The scale with one model for each fold of blocks, fitted to the other folds."""

            def without(f: int) -> tuple[ScaleModel, Numbers]:
                outside = fold != f if f in left_out else np.ones(len(size), bool)
                model = fit(features[outside], size[outside], typical)
                return model, model.predict(features[fold == f])

            hidden, models = np.empty(len(size)), {}
            for f, (model, at_fold) in zip(folds, in_order(without, folds)):
                hidden[fold == f], models[f] = at_fold, model
            return LearnedScale(hidden, models, fold_of)

        simple, rich = crossed(ByDepthScale.fit), crossed(partial(BoostedScale.fit, seed=seed))
        gain = _loss(size, simple.hidden) - _loss(size, rich.hidden)
        return rich if exceeds(gain, block_of(entries, shape, COARSE_BLOCKS_PER_AXIS)) else simple

    def predict(self, features: Numbers) -> Numbers:
        """The scale at entries with these features: the geometric mean of the models.

        It stays in the range of the scales that it was learned from: a line beyond them soon is far off.
        """

        def at(start: int) -> Numbers:
            part = features[start : start + PREDICT_ENTRIES]
            return np.exp(np.mean([np.log(model.predict(part)) for model in self.models.values()], axis=0))

        starts = range(0, len(features), PREDICT_ENTRIES)
        scale = np.concatenate([np.zeros(0), *in_order(at, starts)])
        return np.clip(scale, self.hidden.min(), self.hidden.max())

    def predict_unseen(self, features: Numbers, entries: Entries) -> Numbers:
        """The scale at entries that may have been learned from: each by the model fitted without its block.

        If there were too few entries to leave a block out, its model was fitted with it.
        """
        scale, fold = self.predict(features), self.fold_of(entries)
        for f, model in self.models.items():
            if len(self.models) > 1 and (fold == f).any():
                scale[fold == f] = model.predict(features[fold == f])
        return scale


@dataclass(frozen=True)
class BlockFolds:
    """The fold of every entry, the same for all entries of a block and in all rounds."""

    shape: tuple[int, ...]
    seed: int
    count: int = SCALE_FOLDS

    def __call__(self, entries: Entries) -> Entries:
        parts = [min(n, max(MIN_BLOCKS_PER_AXIS, min(n // MIN_BLOCK_LENGTH, MAX_BLOCKS_PER_AXIS))) for n in self.shape]
        order = np.random.default_rng(self.seed).permutation(int(np.prod(parts)))
        return order[block_of(entries, self.shape, parts)] % self.count


def block_folds(entries: Entries, shape: tuple[int, ...], seed: int) -> Entries:
    """`BlockFolds` of some entries."""
    return BlockFolds(shape, seed)(entries)


def block_of(entries: Entries, shape: tuple[int, ...], parts: int | Sequence[int]) -> Entries:
    """The number of the block of every entry, with every axis divided into `parts`."""
    block = np.zeros(len(entries), np.intp)
    for position, n, most in zip(np.unravel_index(entries, shape), shape, np.broadcast_to(parts, len(shape)).tolist()):
        count = min(most, n)
        block = block * count + (position * count) // n
    return block


def _loss(size: Numbers, scale: Numbers) -> Numbers:
    """The negative log-likelihood of every error, exponential with a mean proportional to its scale."""
    ratio = size / scale
    factor = float(ratio.mean()) or 1.0
    return np.log(scale * factor) + ratio / factor


def exceeds(gain: Numbers, block: Entries) -> bool:
    """Whether the gain exceeds zero by two standard errors, clustered by blocks as errors in a gap are correlated."""
    totals = np.bincount(np.unique(block, return_inverse=True)[1], gain)
    error = np.sqrt(len(totals)) * totals.std(ddof=1) if len(totals) > 1 else np.inf
    return bool(totals.sum() > MIN_GAIN_STANDARD_ERRORS * error)


@dataclass(frozen=True)
class ConstantScale:
    """The same scale everywhere, for too few hidden entries."""

    typical: float

    def predict(self, features: Numbers) -> Numbers:
        return np.full(len(features), self.typical)


@dataclass(frozen=True)
class ByDepthScale:
    """The model of one fold: log-linear in the first feature, the logarithm of the depth."""

    level: float
    slope: float
    typical: float

    @staticmethod
    def fit(features: np.ndarray, size: np.ndarray, typical: float) -> ByDepthScale:
        x, y = features[:, 0].astype(float), np.log(np.maximum(size, MIN_RELATIVE_ERROR))
        spread = x - x.mean()
        slope = float(spread @ y / (spread @ spread + 1e-3 * len(x)))
        return ByDepthScale(float(y.mean() - slope * x.mean()), slope, typical)

    def predict(self, features: Numbers) -> Numbers:
        log_scale = self.level + self.slope * features[:, 0].astype(float)
        return np.asarray(self.typical * np.exp(np.clip(log_scale, -MAX_LOG_SCALE, MAX_LOG_SCALE)))


@dataclass(frozen=True)
class BoostedScale:
    """The model of one fold: ridge regression on the logarithm, times boosting."""

    centre: np.ndarray
    spread: np.ndarray
    slope: np.ndarray
    level: float
    boost: Trees | None
    typical: float

    @staticmethod
    def fit(features: np.ndarray, size: np.ndarray, typical: float, seed: int) -> BoostedScale:
        most = min(MAX_SCALE_ENTRIES, MAX_FIT_NUMBERS // features.shape[1])
        if len(size) > most:
            rows = np.random.default_rng((seed, 0x5CA1E)).choice(len(size), most, replace=False)
            features, size = features[rows], size[rows]
        x = features.astype(float)
        centre, spread = x.mean(axis=0), x.std(axis=0)
        spread = np.where(spread > 1e-9, spread, np.inf)
        x = np.clip((x - centre) / spread, -MAX_DEVIATION, MAX_DEVIATION)
        y = np.log(np.maximum(size, MIN_RELATIVE_ERROR))
        level = float(y.mean())
        slope = np.linalg.solve(x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1]), x.T @ (y - level))
        part = BoostedScale(centre, spread, slope=slope, level=level, boost=None, typical=typical)
        left = np.maximum(size, MIN_RELATIVE_ERROR) / part._linear(features)
        boost = fit_trees(features, left, loss="gamma", trees=50, learning_rate=0.15, leaves=15, least=100, seed=seed)
        return replace(part, boost=boost)

    def _linear(self, features: np.ndarray) -> np.ndarray:
        x = np.clip((features - self.centre) / self.spread, -MAX_DEVIATION, MAX_DEVIATION)
        return np.exp(np.clip(self.level + x @ self.slope, -MAX_LOG_SCALE, MAX_LOG_SCALE))

    def predict(self, features: Numbers) -> Numbers:
        assert self.boost is not None
        left = self.boost.predict(features)
        return self.typical * self._linear(features) * np.maximum(left, MIN_RELATIVE_ERROR)
