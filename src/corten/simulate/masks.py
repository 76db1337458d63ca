"""Masks that hide entries at random, in blocks, in patches, or by an Ising model; True is observed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import gaussian_filter

from corten.data.arrays import Flags, Floats
from corten.propensity.coupling import Product
from corten.simulate.gibbs import ising

__all__ = ["block_mask", "ising_mask", "patch_mask", "random_mask"]


def random_mask(shape: Sequence[int], missing: float = 0.3, seed: int = 0) -> Flags:
    """Hide each entry on its own with probability `missing`.

    Examples
    --------
    >>> random_mask((20, 20), missing=0.25).shape
    (20, 20)
    """
    _check_share(missing)
    return np.random.default_rng(seed).random(tuple(shape)) >= missing


def block_mask(shape: Sequence[int], missing: float = 0.3, size: int | Sequence[int] = 4, seed: int = 0) -> Flags:
    """Hide boxes of a given size, placed at random, until at least a share `missing` is hidden.

    Examples
    --------
    >>> bool(1 - block_mask((20, 20), missing=0.3).mean() >= 0.3)
    True
    """
    _check_share(missing)
    sizes = (size,) * len(shape) if isinstance(size, int) else tuple(size)
    if len(sizes) != len(shape) or min(sizes) < 1:
        raise ValueError(f"size is {size!r}; give one length or one per axis, each 1 or more.")
    rng = np.random.default_rng(seed)
    mask = np.ones(tuple(shape), dtype=bool)
    hidden, wanted = 0, missing * mask.size
    while hidden < wanted:
        box = tuple(
            slice(max(0, corner), corner + side)
            for corner, side in zip(rng.integers([1 - s for s in sizes], shape).tolist(), sizes)
        )
        hidden += int(np.count_nonzero(mask[box]))
        mask[box] = False
    return mask


def patch_mask(shape: Sequence[int], missing: float = 0.3, size: float | Sequence[float] = 3.0, seed: int = 0) -> Flags:
    """Hide rounded patches, like clouds: where a smooth random field of correlation length `size` is low.

    Examples
    --------
    >>> round(1 - float(patch_mask((40, 40), missing=0.3).mean()), 2)
    0.3
    """
    _check_share(missing)
    field = _smooth(shape, size, seed)
    return field >= np.quantile(field, missing)


def ising_mask(
    shape: Sequence[int],
    missing: float = 0.3,
    size: float | Sequence[float] = 4.0,
    strength: float = 1 / 15,
    contrast: float = 2.0,
    seed: int = 0,
) -> Flags:
    """Draw a mask from the Ising model over a smooth parameter: noisy patches, about `missing` of it hidden.

    Examples
    --------
    >>> ising_mask((20, 20, 20), missing=0.4).dtype
    dtype('bool')
    """
    _check_share(missing)
    field = _smooth(shape, size, seed)
    parameter = contrast * (field - np.quantile(field, missing)) / (field.std() or 1.0)
    return ising(parameter, Product(strength), seed=seed)


def _smooth(shape: Sequence[int], size: float | Sequence[float], seed: int) -> Floats:
    return gaussian_filter(np.random.default_rng(seed).standard_normal(tuple(shape)), size, mode="wrap")


def _check_share(missing: float) -> None:
    if not 0.0 <= missing < 1.0:
        raise ValueError(f"missing is {missing}; give a share from 0 up to, but not, 1.")
