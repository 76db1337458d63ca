"""The learned local scale: how large an error is usual at a cell, told from what surrounds the cell.

Ridge regression of log|r| on the features of hidden cells, times gamma-loss boosting of what it leaves; the depth
alone, where that is not better by two standard errors: small fields have few independent gaps to learn from.
Cross-fitted by blocks of cells: a hidden cell's scale never comes from a model that saw its block in any round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from corten.conformal.depth import depth, distances_along, steps_of_change

__all__ = ["CellFeatures", "LearnedScale"]

SCALES = (0.1, 0.3, 1.0)
FOLDS = 5
BLOCKS = 6
COARSE_BLOCKS = 3
"""Parts of each axis whose errors are taken as independent where two models of the scale are compared."""
MOST_ROWS = 50_000
TINY = 1e-6
THIN = np.float32(1e-4)
"""Density of training cells under which an average of them says nothing (and rounding would speak)."""


@dataclass(frozen=True)
class CellFeatures:
    """Describes cells by what surrounds them; made once for a tensor, used for every round and the final fill."""

    axes: Sequence[Any]
    change: np.ndarray
    unit: float

    @staticmethod
    def of(values: np.ndarray, mask: np.ndarray, axes: Sequence[Any]) -> CellFeatures:
        """`values` are read where `mask` is True; they set the units of length and height."""
        spread = float(values[mask].std(dtype=np.float64)) if mask.any() else 0.0
        return CellFeatures(axes, steps_of_change(values, mask, axes), spread if spread > 0 else 1.0)

    def at(
        self,
        entries: NDArray[np.intp],
        values: np.ndarray,
        train: np.ndarray,
        estimate: np.ndarray,
        members: Mapping[str, np.ndarray],
        deep: np.ndarray | None = None,
    ) -> NDArray[np.floating]:
        """Features of the flat `entries`, (entries, features), given what trained and what it led to."""
        deep = depth(train, self.axes, self.change) if deep is None else deep
        columns = [np.log(deep.reshape(-1)[entries] + 1e-2)]
        columns += self._surroundings(entries, values, train)
        columns += self._estimates(entries, estimate, members)
        return np.stack(columns, axis=1).astype(np.float32)

    def _surroundings(self, entries: NDArray[np.intp], values: np.ndarray, train: np.ndarray) -> list[np.ndarray]:
        """Distances, densities, and how rough the known values around a cell are."""
        columns = []
        for k, axis in enumerate(self.axes):
            if train.shape[k] == 1:
                continue
            if axis.kind != "unordered":
                sides = distances_along(train, k, axis.periodic)
                columns += [np.log1p(side.reshape(-1)[entries]) for side in sides]
            share = np.broadcast_to(train.mean(axis=k, keepdims=True), train.shape)
            columns.append(np.log(share.reshape(-1)[entries] + 0.01))
        weight = train.astype(np.float32)
        centre = float(values[train].mean(dtype=np.float64)) if train.any() else 0.0
        height = np.where(train, (values - centre) / self.unit, 0).astype(np.float32)
        density = {scale: np.maximum(self._blur(weight, scale), 0) for scale in SCALES}
        columns += [np.log(share.reshape(-1)[entries] + 1e-3) for share in density.values()]
        columns += [self._one_sided(weight, density[scale], scale).reshape(-1)[entries] for scale in (0.3, 1.0)]
        near = density[0.3] + THIN
        mean = self._blur(height, 0.3) / near
        variance = self._blur(height**2, 0.3) / near - mean**2
        columns.append(0.5 * np.log(np.maximum(variance, 0).reshape(-1)[entries] + TINY))
        # Each known value against its nearest surroundings without itself, then averaged around the cell.
        own = self._own_weight(0.1)
        others = np.maximum(density[0.1] - own * weight, 0)
        guess = (self._blur(height, 0.1) - own * height) / (others + THIN)
        rough = self._blur(np.abs(height - guess) * weight * (others > THIN), 1.0) / (density[1.0] + THIN)
        columns.append(np.log(np.maximum(rough, 0).reshape(-1)[entries] + TINY))
        return columns

    def _one_sided(self, weight: np.ndarray, density: np.ndarray, scale: float) -> np.ndarray:
        """How far the centre of the surrounding training cells lies off the cell, in reaches of the scale.

        Inside data it is near zero; beyond their edge, where a fill extrapolates, near one.
        """
        total = np.zeros(weight.shape, np.float32)
        for k, width in self._widths(scale).items():
            if not self.axes[k].periodic:
                place = np.arange(weight.shape[k], dtype=np.float32)
                place = (place - place.mean()).reshape([-1 if j == k else 1 for j in range(weight.ndim)])
                offset = (self._blur(weight * place, scale) - density * place) / (density + THIN)
                total += (offset * np.float32(2 / width)) ** 2
        return np.sqrt(total)

    def _estimates(
        self, entries: NDArray[np.intp], estimate: np.ndarray, members: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """How the members disagree, how steep the estimate is, and the estimate itself."""
        columns = []
        height = (estimate / self.unit).astype(np.float32)
        for k, axis in enumerate(self.axes):
            if axis.kind != "unordered" and estimate.shape[k] > 1:
                slope = np.abs(np.gradient(height, axis=k)).reshape(-1)[entries]
                columns.append(np.log(slope + 1e-4))
        at = [member.reshape(-1)[entries].astype(float) for member in members.values()]
        middle = height.reshape(-1)[entries]
        if len(at) > 1:
            columns.append(np.log(np.std(at, axis=0) / self.unit + 1e-4))
            columns += [np.log(np.abs(a - b) / self.unit + 1e-4) for a, b in pairwise(at)]
        columns.append(middle)
        return columns

    def _widths(self, scale: float) -> dict[int, int]:
        """Box widths along the ordered axes that reach `scale` standard deviations of change."""
        widths = {}
        for k, axis in enumerate(self.axes):
            if axis.kind != "unordered" and axis.length > 1:
                reach = scale / self.change[k]
                widths[k] = int(min(2 * max(1, round(reach)) + 1, 2 * (axis.length // 2) + 1))
        return widths

    def _blur(self, array: np.ndarray, scale: float) -> np.ndarray:
        for k, width in self._widths(scale).items():
            mode = "wrap" if self.axes[k].periodic else "constant"
            array = ndimage.uniform_filter1d(array, width, axis=k, mode=mode)
        return array

    def _own_weight(self, scale: float) -> np.float32:
        return np.float32(1 / np.prod([float(w) for w in self._widths(scale).values()]))


@dataclass(frozen=True)
class LearnedScale:
    """The scale of usual errors: cross-fitted at the hidden cells, predicted anywhere from features.

    `hidden` is u at the cells it was learned from, in their order; `predict` is the geometric mean of the models.
    `models` has one model for each fold of blocks that left that fold out, `fold_of` says in which fold a cell is.
    """

    hidden: NDArray[np.floating]
    models: Mapping[int, Any] = field(repr=False)
    fold_of: Callable[[NDArray[np.intp]], NDArray[np.intp]] = field(repr=False)

    @staticmethod
    def fit(
        features: NDArray[np.floating],
        residuals: NDArray[np.floating],
        entries: NDArray[np.intp],
        shape: tuple[int, ...],
        seed: int,
    ) -> LearnedScale:
        """Learn from the residuals of hidden cells; `entries` are flat indices that say which block a cell is in."""
        size = np.abs(np.asarray(residuals, dtype=float))
        typical = float(np.median(size)) or float(size.mean()) or 1.0
        size = size / typical
        fold_of = partial(block_folds, shape=shape, seed=seed)
        fold = fold_of(entries)
        used = [f for f in np.unique(fold) if (fold != f).sum() >= 20]
        if not used:
            return LearnedScale(np.full(len(size), typical), {0: _Constant(typical)}, fold_of)
        fits: list[Callable[..., Any]] = [_ByDepth.fit, partial(_Model.fit, seed=seed)]
        simple, rich = (LearnedScale._crossed(one, features, size, typical, fold, used, fold_of) for one in fits)
        better = _loss(size, simple.hidden) - _loss(size, rich.hidden)
        return rich if _exceeds(better, block_of(entries, shape, COARSE_BLOCKS)) else simple

    @staticmethod
    def _crossed(
        fit: Callable[..., Any],
        features: NDArray[np.floating],
        size: NDArray[np.floating],
        typical: float,
        fold: NDArray[np.intp],
        used: Sequence[int],
        fold_of: Callable[[NDArray[np.intp]], NDArray[np.intp]],
    ) -> LearnedScale:
        """One model for each fold of blocks, fitted to the others."""
        hidden = np.empty(len(size))
        models = {}
        for f in np.unique(fold).tolist():
            outside = fold != f if f in used else np.ones(len(size), bool)
            model = fit(features[outside], size[outside], typical)
            hidden[fold == f] = model.predict(features[fold == f])
            models[f] = model
        return LearnedScale(hidden, models, fold_of)

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        """The scale at cells with these features."""
        total = np.zeros(len(features))
        for model in self.models.values():
            total += np.log(model.predict(features))
        return np.exp(total / len(self.models))

    def predict_unseen(self, features: NDArray[np.floating], entries: NDArray[np.intp]) -> NDArray[np.floating]:
        """The scale at cells that may have been learned from: each by the model that saw no cell of its block.

        Where there were too few cells to leave a block out, its model has seen it.
        """
        scale, fold = self.predict(features), self.fold_of(entries)
        for f, model in self.models.items():
            if len(self.models) > 1 and (fold == f).any():
                scale[fold == f] = model.predict(features[fold == f])
        return scale


def block_folds(entries: NDArray[np.intp], shape: tuple[int, ...], seed: int) -> NDArray[np.intp]:
    """A fold for every cell, the same for all cells of a block and in all rounds."""
    order = np.random.default_rng(seed).permutation(int(np.prod([min(BLOCKS, n) for n in shape])))
    return order[block_of(entries, shape, BLOCKS)] % FOLDS


def block_of(entries: NDArray[np.intp], shape: tuple[int, ...], parts: int) -> NDArray[np.intp]:
    """The number of the block of every entry, with every axis cut into so many parts."""
    block = np.zeros(len(entries), np.intp)
    for cell, n in zip(np.unravel_index(entries, shape), shape):
        count = min(parts, n)
        block = block * count + (cell * count) // n
    return block


def _loss(size: NDArray[np.floating], scale: NDArray[np.floating]) -> NDArray[np.floating]:
    """Minus the log-likelihood of every error if it is exponential with mean proportional to its scale."""
    ratio = size / scale
    factor = float(ratio.mean()) or 1.0
    return np.log(scale * factor) + ratio / factor


def _exceeds(gain: NDArray[np.floating], block: NDArray[np.intp]) -> bool:
    """Whether the mean gain is above zero by two standard errors, clustered by blocks: errors in a gap are alike."""
    totals = np.bincount(np.unique(block, return_inverse=True)[1], gain)
    error = np.sqrt(len(totals)) * totals.std(ddof=1) if len(totals) > 1 else np.inf
    return bool(totals.sum() > 2 * error)


@dataclass(frozen=True)
class _Constant:
    typical: float

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        return np.full(len(features), self.typical)


@dataclass(frozen=True)
class _ByDepth:
    """One fold's model: a line in the logarithm of the depth, the first feature."""

    level: float
    slope: float
    typical: float

    @staticmethod
    def fit(features: np.ndarray, size: np.ndarray, typical: float) -> _ByDepth:
        x, y = features[:, 0].astype(float), np.log(np.maximum(size, 1e-3))
        spread = x - x.mean()
        slope = float(spread @ y / (spread @ spread + 1e-3 * len(x)))
        return _ByDepth(float(y.mean() - slope * x.mean()), slope, typical)

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        log_scale = self.level + self.slope * features[:, 0].astype(float)
        return np.asarray(self.typical * np.exp(np.clip(log_scale, -12, 12)))


@dataclass(frozen=True)
class _Model:
    """One fold's model: ridge on the log, times boosting."""

    centre: np.ndarray
    spread: np.ndarray
    slope: np.ndarray
    level: float
    boost: Any
    typical: float

    @staticmethod
    def fit(features: np.ndarray, size: np.ndarray, typical: float, seed: int) -> _Model:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        if len(size) > MOST_ROWS:
            rows = np.random.default_rng((seed, 0x5CA1E)).choice(len(size), MOST_ROWS, replace=False)
            features, size = features[rows], size[rows]
        x = features.astype(float)
        centre, spread = x.mean(axis=0), x.std(axis=0)
        spread = np.where(spread > 1e-9, spread, np.inf)
        x = (x - centre) / spread
        y = np.log(np.maximum(size, 1e-3))
        level = float(y.mean())
        slope = np.linalg.solve(x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1]), x.T @ (y - level))
        part = _Model(centre, spread, slope, level, None, typical)
        left = np.maximum(size, 1e-3) / part._linear(features)
        boost = HistGradientBoostingRegressor(
            loss="gamma", max_iter=100, learning_rate=0.08, max_leaf_nodes=15, min_samples_leaf=100,
            l2_regularization=1.0, early_stopping=False, random_state=seed,
        )  # fmt: skip
        # One thread: the same bits on every machine, and no crowd of spinning threads on a busy one.
        with threadpool_limits(1, user_api="openmp"):
            boost.fit(features, left)
        return _Model(centre, spread, slope, level, boost, typical)

    def _linear(self, features: np.ndarray) -> np.ndarray:
        z = ((features - self.centre) / self.spread) @ self.slope
        return np.exp(np.clip(self.level + z, -12, 12))

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.floating]:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, user_api="openmp"):
            left = self.boost.predict(features)
        return self.typical * self._linear(features) * np.maximum(left, 1e-3)
