"""How deep cells lie inside gaps, and weights that give hidden cells the depths of the missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

__all__ = ["DepthWeights", "depth", "distance_along", "distances_along", "steps_of_change"]

BINS = 20
CLIP = 20.0


def steps_of_change(values: np.ndarray, mask: np.ndarray, axes: Sequence[Any]) -> np.ndarray:
    """Typical change of the field in one step along each axis, in its standard deviations (nan along units).

    It makes steps along different axes comparable: a depth measured with it says how much may have changed since
    the nearest observation.
    """
    spread = float(values[mask].std(dtype=np.float64)) if mask.any() else 0.0
    change = np.full(mask.ndim, np.nan)
    for k, axis in enumerate(axes):
        if axis.kind == "unordered":
            continue
        near = [slice(None)] * mask.ndim
        far = list(near)
        near[k], far[k] = slice(None, -1), slice(1, None)
        both = mask[tuple(near)] & mask[tuple(far)]
        if both.sum() < 10 or not spread > 0:
            change[k] = 1 / max(mask.shape[k], 2)
            continue
        difference = values[tuple(far)][both] - values[tuple(near)][both]
        change[k] = float(np.sqrt(np.mean(difference.astype(float) ** 2))) / spread
    return np.clip(change, 1e-3, 2.0)


def depth(train: np.ndarray, axes: Sequence[Any], change: np.ndarray) -> np.ndarray:
    """Distance of every cell to the nearest training cell, in units of change; within a unit, never across.

    Where a unit has no training cell at all, the depth is that of the whole slice.
    """
    ordered = [k for k, axis in enumerate(axes) if axis.kind != "unordered"]
    units = [k for k in range(train.ndim) if k not in ordered]
    if not ordered:
        return np.where(train, 0.0, 1.0).astype(np.float32)
    step = change[ordered]
    furthest = float(np.sqrt(np.sum((step * np.array([train.shape[k] for k in ordered])) ** 2)))
    whole = np.moveaxis(train, units, range(len(units)))
    stacked = whole.reshape(-1, *whole.shape[len(units) :])
    result = np.empty(stacked.shape, np.float32)
    wrap = [(n // 2, n // 2) if axes[k].periodic else (0, 0) for k, n in zip(ordered, stacked.shape[1:])]
    inner = tuple(slice(a, a + n) for (a, _), n in zip(wrap, stacked.shape[1:]))
    for one, out in zip(stacked, result):
        if not one.any():
            out[...] = furthest
            continue
        padded = np.pad(~one, wrap, mode="wrap")
        out[...] = ndimage.distance_transform_edt(padded, sampling=step)[inner]
    return np.moveaxis(result.reshape(whole.shape), range(len(units)), units)


def distance_along(train: np.ndarray, axis: int, periodic: bool) -> np.ndarray:
    """Steps to the nearest training cell of the same fibre; the axis length where the fibre has none."""
    return distances_along(train, axis, periodic)[0]


def distances_along(train: np.ndarray, axis: int, periodic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Steps to the nearest training cell of the same fibre, and to the nearest one on the other side.

    The second tells a cell that lies between known ones from one beyond them; twice the axis length where there is
    none on that side.
    """
    moved = np.moveaxis(train, axis, -1)
    n = moved.shape[-1]
    if periodic:
        moved = np.concatenate([moved, moved, moved], axis=-1)
    position = np.arange(moved.shape[-1], dtype=np.float32)
    last = np.maximum.accumulate(np.where(moved, position, -np.inf), axis=-1)
    following = np.minimum.accumulate(np.where(moved, position, np.inf)[..., ::-1], axis=-1)[..., ::-1]
    before, after = position - last, following - position
    near, far = np.minimum(np.minimum(before, after), n), np.minimum(np.maximum(before, after), 2 * n)
    if periodic:
        near, far = near[..., n : 2 * n], far[..., n : 2 * n]
    return np.moveaxis(near, -1, axis), np.moveaxis(far, -1, axis)


@dataclass(frozen=True)
class DepthWeights:
    """Weights that give hidden cells the depths of the missing ones: a cell counts as often as missing cells lie there.

    The log ratio of two depth histograms, missing over hidden, in twenty bins of equal hidden counts; ratios are
    clipped to [1/20, 20], so that no bin speaks for all.

    Examples
    --------
    >>> DepthWeights.of(np.array([1.0, 1.0, 2.0, 2.0]), np.array([1.0, 2.0, 2.0, 2.0])).at(np.array([2.0])).round(3)
    array([0.405])
    """

    edges: np.ndarray
    log_ratio: np.ndarray

    @staticmethod
    def of(hidden: np.ndarray, missing: np.ndarray) -> DepthWeights:
        """From the depths of hidden and of missing cells."""
        edges = np.unique(np.quantile(hidden, np.linspace(0, 1, BINS + 1)[1:-1]))
        count = len(edges) + 1
        share_hidden = np.bincount(np.searchsorted(edges, hidden), minlength=count) / max(len(hidden), 1)
        share_missing = np.bincount(np.searchsorted(edges, missing), minlength=count) / max(len(missing), 1)
        ratio = np.clip(share_missing / np.maximum(share_hidden, 1e-12), 1 / CLIP, CLIP)
        return DepthWeights(edges, np.log(ratio))

    def at(self, depths: np.ndarray) -> np.ndarray:
        """Log-weights of cells at these depths."""
        return np.asarray(self.log_ratio[np.searchsorted(self.edges, depths)])
