"""The depth of entries inside gaps, and weights that give hidden entries the depths of the missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from corten.data.axes import Axis
from corten.engine.arrays import Array, Arrays, HostArrays

DEPTH_BINS = 20
MAX_WEIGHT_RATIO = 20.0  # of a bin, so that no bin dominates
MIN_CHANGE_PAIRS = 10  # of neighbouring observed entries, to estimate the change along an axis


def steps_of_change(values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
    """Root mean square change of the field in one step along each axis, in standard deviations of the field.

    It is NaN along unordered axes. It makes steps along different axes comparable.
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
        if both.sum() < MIN_CHANGE_PAIRS or not spread > 0:
            change[k] = 1 / max(mask.shape[k], 2)
            continue
        difference = values[tuple(far)][both] - values[tuple(near)][both]
        change[k] = float(np.sqrt(np.mean(difference.astype(float) ** 2))) / spread
    return np.clip(change, 1e-3, 2.0)


def depth(train: np.ndarray, axes: Sequence[Axis], change: np.ndarray) -> np.ndarray:
    """Distance of every entry to the nearest training entry along ordered axes, with steps of length `change`.

    At a position of the unordered axes without training entries it is the diameter of the slice.
    """
    ordered = [k for k, axis in enumerate(axes) if axis.kind != "unordered"]
    unordered = [k for k in range(train.ndim) if k not in ordered]
    if not ordered:
        return np.where(train, 0.0, 1.0).astype(np.float32)
    if len(ordered) == 1:
        (k,) = ordered
        return (np.float32(change[k]) * distance_along(train, k, axes[k].periodic)).astype(np.float32)
    step = change[ordered]
    furthest = float(np.sqrt(np.sum((step * np.array([train.shape[k] for k in ordered])) ** 2)))
    if not train.any():
        return np.full(train.shape, furthest, np.float32)
    whole = np.moveaxis(train, unordered, range(len(unordered)))
    stacked = whole.reshape(-1, *whole.shape[len(unordered) :])
    wrap = [(0, 0)] + [(n // 2, n // 2) if axes[k].periodic else (0, 0) for k, n in zip(ordered, stacked.shape[1:])]
    inner = tuple(slice(a, a + n) for (a, _), n in zip(wrap, stacked.shape))
    # Slices lie so far apart that a training entry of another slice is never nearer than one of the same slice.
    apart = [2 * furthest, *step]
    padded = np.pad(~stacked, wrap, mode="wrap")
    distance = ndimage.distance_transform_edt(padded, sampling=apart)[inner].astype(np.float32)
    result = np.minimum(distance, np.float32(furthest))
    return np.moveaxis(result.reshape(whole.shape), range(len(unordered)), unordered)


def distance_along(train: np.ndarray, axis: int, periodic: bool) -> np.ndarray:
    """Steps along the axis to the nearest training entry; the axis length if there is none."""
    return np.asarray(distances_along(train, axis, periodic=periodic)[0])


def distances_along(
    train: Array, axis: int, *, periodic: bool, arrays: Arrays | None = None, most: int | None = None
) -> tuple[Array, Array]:
    """Steps along the axis to the nearest training entry, and to the nearest one on the other side.

    The second separates entries between training entries from those beyond them. The first is at most `most`, the
    second twice that, also if there is no training entry on that side; default: the length of the axis.
    """
    arrays = arrays or HostArrays()
    xp = arrays.xp
    moved = xp.moveaxis(train, axis, -1) > 0
    n = moved.shape[-1]
    if periodic:
        moved = xp.concatenate([moved, moved, moved], axis=-1)
    position = np.arange(moved.shape[-1], dtype=np.float32)
    before = position - arrays.running_max(xp.where(moved, position, -np.inf))
    after = -arrays.running_max(xp.where(moved, -position, -np.inf)[..., ::-1])[..., ::-1] - position
    most = most or n
    near, far = xp.minimum(xp.minimum(before, after), most), xp.minimum(xp.maximum(before, after), 2 * most)
    if periodic:
        near, far = near[..., n : 2 * n], far[..., n : 2 * n]
    return xp.moveaxis(near, -1, axis), xp.moveaxis(far, -1, axis)


@dataclass(frozen=True)
class DepthWeights:
    """Weights that give hidden entries the distribution of depths of the missing entries.

    The logarithm of the ratio of two histograms of depths, missing over hidden, in twenty bins with equal numbers of
    hidden entries; ratios are clipped to [1/20, 20].
    """

    edges: np.ndarray
    log_ratio: np.ndarray

    @staticmethod
    def of(hidden: np.ndarray, missing: np.ndarray, log_weights: np.ndarray | None = None) -> DepthWeights:
        """The weights from the depths of hidden and of missing entries; `log_weights` of the hidden ones by age."""
        edges = np.unique(np.quantile(hidden, np.linspace(0, 1, DEPTH_BINS + 1)[1:-1]))
        count = len(edges) + 1
        weights = None if log_weights is None else np.exp(log_weights - log_weights.max(initial=-np.inf))
        total = len(hidden) if weights is None else float(weights.sum())
        share_hidden = np.bincount(np.searchsorted(edges, hidden), weights, minlength=count) / max(total, 1e-300)
        share_missing = np.bincount(np.searchsorted(edges, missing), minlength=count) / max(len(missing), 1)
        ratio = np.clip(share_missing / np.maximum(share_hidden, 1e-12), 1 / MAX_WEIGHT_RATIO, MAX_WEIGHT_RATIO)
        return DepthWeights(edges, np.log(ratio))

    def at(self, depths: np.ndarray) -> np.ndarray:
        """Log-weights of entries at these depths."""
        return np.asarray(self.log_ratio[np.searchsorted(self.edges, depths)])
