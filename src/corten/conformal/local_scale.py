"""The learned local scale: the expected size of the error of an entry, from features of its surroundings.

The model is a ridge regression of log|r| on the features of hidden entries, times gradient boosting (gamma loss) of the
ratios. A line in the logarithm of the depth is used instead unless the model is better by two standard errors: small
fields have few independent gaps to learn from. The scale is cross-fitted by blocks: that of a hidden entry comes from a
model fitted without its block, in all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from corten.conformal.depth import depth, distances_along, steps_of_change
from corten.conformal.trees import Trees
from corten.data.axes import Axis
from corten.engine.threads import in_order

__all__ = ["EntryFeatures", "LearnedScale"]

WINDOW_CHANGES = (0.1, 0.3, 1.0)  # half-widths of averaging windows, in standard deviations of change
FOLDS = 5
BLOCKS_PER_AXIS = 6
COARSE_BLOCKS_PER_AXIS = 3  # blocks whose errors are taken as independent when two models of the scale are compared
MIN_FIT_ENTRIES = 20  # outside a fold, to fit a model without it
MAX_FIT_ENTRIES = 50_000
PREDICT_ENTRIES = 1 << 16  # whose scale is predicted at once: memory stays bounded
MIN_RELATIVE_ERROR = 1e-3  # of the median error; smaller errors are raised to it
MAX_LOG_SCALE = 12.0
MIN_GAIN_STANDARD_ERRORS = 2.0
LOG_FLOOR = 1e-6  # added before logarithms
MIN_DENSITY = np.float32(1e-4)  # of training entries: averages over fewer are dominated by rounding


@dataclass(frozen=True)
class EntryFeatures:
    """Features of entries from their surroundings; made once for a tensor, used for every round and the final fill."""

    axes: Sequence[Axis]
    change: np.ndarray
    spread: float

    @staticmethod
    def of(values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> EntryFeatures:
        """The features with lengths and heights scaled by `values` where `mask` is True."""
        spread = float(values[mask].std(dtype=np.float64)) if mask.any() else 0.0
        return EntryFeatures(axes, steps_of_change(values, mask, axes), spread if spread > 0 else 1.0)

    def at(
        self,
        entries: NDArray[np.intp],
        values: np.ndarray,
        train: np.ndarray,
        estimate: np.ndarray,
        members: Mapping[str, np.ndarray],
        deep: np.ndarray | None = None,
    ) -> NDArray[np.floating]:
        """Features of the flat `entries`, (entries, features), given the training entries and the fill from them."""
        deep = depth(train, self.axes, self.change) if deep is None else deep
        first = np.log(deep.reshape(-1)[entries] + 1e-2)
        around, own = self._surroundings(entries, values, train), self._estimates(entries, estimate, members)
        columns = chain([first], around, own)
        # Column by column into one array: of a tensor with few observed entries this is the largest array of a fit.
        most = 4 * train.ndim + len(members) + 9
        features = np.empty((len(entries), most), np.float32)
        count = 0
        for count, column in enumerate(columns, 1):
            features[:, count - 1] = column
        return features[:, :count]

    def _surroundings(self, entries: NDArray[np.intp], values: np.ndarray, train: np.ndarray) -> Iterator[np.ndarray]:
        """Distances to and densities of training entries, and the roughness of their values around an entry."""
        for k, axis in enumerate(self.axes):
            if train.shape[k] == 1:
                continue
            if axis.kind != "unordered":
                for side in distances_along(train, k, axis.periodic):
                    yield np.log1p(side.reshape(-1)[entries])
            after = math.prod(train.shape[k + 1 :])
            fibre = entries // (after * train.shape[k]) * after + entries % after
            yield np.log(train.mean(axis=k).reshape(-1)[fibre] + 0.01)
        weight = train.astype(np.float32)
        centre = float(values[train].mean(dtype=np.float64)) if train.any() else 0.0
        height = np.where(train, (values - centre) / self.spread, 0).astype(np.float32)
        density = {scale: np.maximum(self._blur(weight, scale), 0) for scale in WINDOW_CHANGES}
        for share in density.values():
            yield np.log(share.reshape(-1)[entries] + 1e-3)
        for scale in (0.3, 1.0):
            yield self._one_sided(weight, density[scale], scale).reshape(-1)[entries]
        near = density[0.3] + MIN_DENSITY
        mean = self._blur(height, 0.3) / near
        variance = self._blur(height**2, 0.3) / near - mean**2
        yield 0.5 * np.log(np.maximum(variance, 0).reshape(-1)[entries] + LOG_FLOOR)
        # The difference of each training value from the mean of its surroundings, averaged around the entry.
        own = self._own_weight(0.1)
        others = np.maximum(density[0.1] - own * weight, 0)
        local_mean = (self._blur(height, 0.1) - own * height) / (others + MIN_DENSITY)
        deviation = np.abs(height - local_mean) * weight * (others > MIN_DENSITY)
        rough = self._blur(deviation, 1.0) / (density[1.0] + MIN_DENSITY)
        yield np.log(np.maximum(rough, 0).reshape(-1)[entries] + LOG_FLOOR)

    def _one_sided(self, weight: np.ndarray, density: np.ndarray, scale: float) -> np.ndarray:
        """The distance of an entry from the centre of the training entries in its window, in half-widths.

        It is near zero among training entries and near one beyond their edge, where a fill extrapolates.
        """
        total = np.zeros(weight.shape, np.float32)
        for k, width in self._widths(scale).items():
            if not self.axes[k].periodic:
                place = np.arange(weight.shape[k], dtype=np.float32)
                place = (place - place.mean()).reshape([-1 if j == k else 1 for j in range(weight.ndim)])
                offset = (self._blur(weight * place, scale) - density * place) / (density + MIN_DENSITY)
                total += (offset * np.float32(2 / width)) ** 2
        return np.sqrt(total)

    def _estimates(
        self, entries: NDArray[np.intp], estimate: np.ndarray, members: Mapping[str, np.ndarray]
    ) -> Iterator[np.ndarray]:
        """The disagreement of the members, the gradient of the estimate, and the estimate."""
        height = (estimate / self.spread).astype(np.float32)
        for k, axis in enumerate(self.axes):
            if axis.kind != "unordered" and estimate.shape[k] > 1:
                slope = np.abs(np.gradient(height, axis=k)).reshape(-1)[entries]
                yield np.log(slope + 1e-4)
        at = [member.reshape(-1)[entries].astype(float) for member in members.values()]
        middle = height.reshape(-1)[entries]
        if len(at) > 1:
            yield np.log(np.std(at, axis=0) / self.spread + 1e-4)
            for a, b in pairwise(at):
                yield np.log(np.abs(a - b) / self.spread + 1e-4)
        yield middle

    def _widths(self, scale: float) -> dict[int, int]:
        """Widths of the window along the ordered axes, with a half-width of `scale` standard deviations of change."""
        widths = {}
        for k, axis in enumerate(self.axes):
            if axis.kind != "unordered" and axis.length > 1:
                reach = scale / self.change[k]
                widths[k] = int(min(2 * max(1, round(reach)) + 1, 2 * (axis.length // 2) + 1))
        return widths

    def _blur(self, array: np.ndarray, scale: float) -> np.ndarray:
        """The moving average over the window."""
        for k, width in self._widths(scale).items():
            mode = "wrap" if self.axes[k].periodic else "constant"
            array = ndimage.uniform_filter1d(array, width, axis=k, mode=mode)
        return array

    def _own_weight(self, scale: float) -> np.float32:
        """The weight of the central entry in the moving average."""
        return np.float32(1 / np.prod([float(w) for w in self._widths(scale).values()]))


class ScaleModel(Protocol):
    """A fitted model of the scale."""

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        """The scale at entries with these features."""
        ...


@dataclass(frozen=True)
class LearnedScale:
    """The scale of errors: cross-fitted at the hidden entries, predicted elsewhere from features.

    `hidden` is the scale of the entries it was learned from, in their order; `models` has one model for each fold of
    blocks, fitted without that fold; `fold_of` gives the fold of entries.
    """

    hidden: NDArray[np.floating]
    models: Mapping[int, ScaleModel] = field(repr=False)
    fold_of: Callable[[NDArray[np.intp]], NDArray[np.intp]] = field(repr=False)

    @staticmethod
    def fit(
        features: NDArray[np.floating],
        residuals: NDArray[np.floating],
        entries: NDArray[np.intp],
        shape: tuple[int, ...],
        seed: int,
    ) -> LearnedScale:
        """Learn from the residuals of hidden entries; the flat indices `entries` determine their blocks."""
        size = np.abs(np.asarray(residuals, dtype=float))
        typical = float(np.median(size)) or float(size.mean()) or 1.0
        size = size / typical
        fold_of = BlockFolds(tuple(shape), seed)
        fold = fold_of(entries)
        used = [f for f in np.unique(fold) if (fold != f).sum() >= MIN_FIT_ENTRIES]
        if not used:
            return LearnedScale(np.full(len(size), typical), {0: ConstantScale(typical)}, fold_of)
        fits: list[Callable[..., ScaleModel]] = [ByDepthScale.fit, partial(BoostedScale.fit, seed=seed)]
        simple, rich = (
            LearnedScale._crossed(one, features, size=size, typical=typical, fold=fold, used=used, fold_of=fold_of)
            for one in fits
        )
        gain = _loss(size, simple.hidden) - _loss(size, rich.hidden)
        return rich if exceeds(gain, block_of(entries, shape, COARSE_BLOCKS_PER_AXIS)) else simple

    @staticmethod
    def _crossed(
        fit: Callable[..., ScaleModel],
        features: NDArray[np.floating],
        size: NDArray[np.floating],
        typical: float,
        fold: NDArray[np.intp],
        used: Sequence[int],
        fold_of: Callable[[NDArray[np.intp]], NDArray[np.intp]],
    ) -> LearnedScale:
        """The scale with one model for each fold of blocks, fitted to the other folds."""

        def without(f: int) -> tuple[ScaleModel, NDArray[np.floating]]:
            outside = fold != f if f in used else np.ones(len(size), bool)
            model = fit(features[outside], size[outside], typical)
            return model, model.predict(features[fold == f])

        hidden = np.empty(len(size))
        models = {}
        folds = np.unique(fold).tolist()
        for f, (model, at_fold) in zip(folds, in_order(without, folds, pool="scale")):
            hidden[fold == f] = at_fold
            models[f] = model
        return LearnedScale(hidden, models, fold_of)

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        """The scale at entries with these features: the geometric mean of the models."""

        def at(start: int) -> NDArray[np.floating]:
            part = features[start : start + PREDICT_ENTRIES]
            logs = [np.log(model.predict(part)) for model in self.models.values()]
            return np.exp(np.mean(logs, axis=0))

        starts = range(0, len(features), PREDICT_ENTRIES)
        return np.concatenate([np.zeros(0), *in_order(at, starts, pool="scale")])

    def predict_unseen(self, features: NDArray[np.floating], entries: NDArray[np.intp]) -> NDArray[np.floating]:
        """The scale at entries that may have been learned from: each by the model fitted without its block.

        If there were too few entries to leave a block out, its model was fitted with it.
        """
        scale, fold = self.predict(features), self.fold_of(entries)
        for f, model in self.models.items():
            if len(self.models) > 1 and (fold == f).any():
                scale[fold == f] = model.predict(features[fold == f])
        return scale


def block_folds(entries: NDArray[np.intp], shape: tuple[int, ...], seed: int) -> NDArray[np.intp]:
    """The fold of every entry, the same for all entries of a block and in all rounds."""
    order = np.random.default_rng(seed).permutation(int(np.prod([min(BLOCKS_PER_AXIS, n) for n in shape])))
    return order[block_of(entries, shape, BLOCKS_PER_AXIS)] % FOLDS


@dataclass(frozen=True)
class BlockFolds:
    """`block_folds` of one shape and seed."""

    shape: tuple[int, ...]
    seed: int

    def __call__(self, entries: NDArray[np.intp]) -> NDArray[np.intp]:
        return block_folds(entries, self.shape, self.seed)


def block_of(entries: NDArray[np.intp], shape: tuple[int, ...], parts: int) -> NDArray[np.intp]:
    """The number of the block of every entry, with every axis divided into `parts`."""
    block = np.zeros(len(entries), np.intp)
    for position, n in zip(np.unravel_index(entries, shape), shape):
        count = min(parts, n)
        block = block * count + (position * count) // n
    return block


def _loss(size: NDArray[np.floating], scale: NDArray[np.floating]) -> NDArray[np.floating]:
    """The negative log-likelihood of every error, exponential with a mean proportional to its scale."""
    ratio = size / scale
    factor = float(ratio.mean()) or 1.0
    return np.log(scale * factor) + ratio / factor


def exceeds(gain: NDArray[np.floating], block: NDArray[np.intp]) -> bool:
    """Whether the gain exceeds zero by two standard errors, clustered by blocks as errors in a gap are correlated."""
    totals = np.bincount(np.unique(block, return_inverse=True)[1], gain)
    error = np.sqrt(len(totals)) * totals.std(ddof=1) if len(totals) > 1 else np.inf
    return bool(totals.sum() > MIN_GAIN_STANDARD_ERRORS * error)


@dataclass(frozen=True)
class ConstantScale:
    """The same scale everywhere, for too few hidden entries."""

    typical: float

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
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

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
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
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        if len(size) > MAX_FIT_ENTRIES:
            rows = np.random.default_rng((seed, 0x5CA1E)).choice(len(size), MAX_FIT_ENTRIES, replace=False)
            features, size = features[rows], size[rows]
        x = features.astype(float)
        centre, spread = x.mean(axis=0), x.std(axis=0)
        spread = np.where(spread > 1e-9, spread, np.inf)
        x = (x - centre) / spread
        y = np.log(np.maximum(size, MIN_RELATIVE_ERROR))
        level = float(y.mean())
        slope = np.linalg.solve(x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1]), x.T @ (y - level))
        part = BoostedScale(centre, spread, slope, level, None, typical)
        left = np.maximum(size, MIN_RELATIVE_ERROR) / part._linear(features)
        boost = HistGradientBoostingRegressor(
            loss="gamma", max_iter=100, learning_rate=0.08, max_leaf_nodes=15, min_samples_leaf=100,
            l2_regularization=1.0, early_stopping=False, random_state=seed,
        )  # fmt: skip
        # One thread: the same bits on every machine, and no waiting threads on a busy one.
        with threadpool_limits(1, user_api="openmp"):
            boost.fit(features, left)
        return BoostedScale(centre, spread, slope, level, Trees.of(boost), typical)

    def _linear(self, features: np.ndarray) -> np.ndarray:
        z = ((features - self.centre) / self.spread) @ self.slope
        return np.exp(np.clip(self.level + z, -MAX_LOG_SCALE, MAX_LOG_SCALE))

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        assert self.boost is not None
        left = self.boost.predict(features)
        return self.typical * self._linear(features) * np.maximum(left, MIN_RELATIVE_ERROR)
