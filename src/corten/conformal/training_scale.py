"""The usual size of an error, learned from training residuals: by parameter of the missingness, then by slice.

A scale may look at training entries only, or calibration entries would be favoured. Errors on training entries are
a little too small, as the estimate was fitted to them, but where they are large and where small they show well.
The parameter B of the missingness is read entry by entry, not the odds: odds change with the neighbours' state, and
the test entry is one of the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.scale import TableScale, UnitScale

__all__ = ["training_scale"]

CLASSES = 20
SWEEPS = 3
PRIOR = 20.0
FLOOR = 1e-3

Floats = NDArray[np.float64]


def training_scale(
    errors: ArrayLike, entries: NDArray[np.intp], parameter: ArrayLike, shape: Sequence[int]
) -> TableScale | UnitScale:
    """u(s) of every entry: a curve in the parameter times a factor for the slice of every axis.

    errors: of the training `entries` (flat), in size; parameter: B of every entry. The curve joins the mean errors
    of twenty classes of like B; the factors are fitted to what it leaves, one axis after another, a slice with few
    entries drawn to 1 as if twenty usual ones stood there.

    Examples
    --------
    >>> shape, noisy = (4, 50, 50), np.repeat([1.0, 1.0, 1.0, 5.0], 2500)
    >>> scale = training_scale(noisy, np.arange(10_000), np.zeros(shape), shape)
    >>> (scale.at(np.array([0, 9_999])) / scale.at(np.array([0]))).round(1).tolist()
    [1.0, 5.0]
    """
    size, flat = np.abs(np.asarray(errors, np.float64)), np.ravel(np.asarray(parameter, np.float64))
    usual = float(size.mean()) if size.size else 0.0
    if usual == 0.0 or not np.isfinite(usual):
        return UnitScale()
    size = np.maximum(size, FLOOR * usual)
    table = np.exp(_Curve(flat[entries], size)(flat)).reshape(tuple(shape))
    left, index = size / table.reshape(-1)[entries], np.unravel_index(entries, tuple(shape))
    for _ in range(SWEEPS):
        for axis, length in enumerate(shape):
            count = np.bincount(index[axis], minlength=length)
            factor = (np.bincount(index[axis], left, minlength=length) + PRIOR * left.mean()) / (count + PRIOR)
            left = left / factor[index[axis]]
            table *= factor.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return TableScale(table)


class _Curve:
    """The logarithm of the mean error as a function of the parameter: straight between the centres of classes."""

    def __init__(self, parameter: Floats, size: Floats) -> None:
        edges = np.unique(np.quantile(parameter, np.linspace(0.0, 1.0, CLASSES + 1)[1:-1]))
        place = np.searchsorted(edges, parameter, side="right")
        count = np.bincount(place, minlength=edges.size + 1)
        kept = count > 0
        self.centre = np.bincount(place, parameter, minlength=edges.size + 1)[kept] / count[kept]
        self.value = np.log(np.bincount(place, size, minlength=edges.size + 1)[kept] / count[kept])

    def __call__(self, parameter: Floats) -> Floats:
        return np.interp(parameter, self.centre, self.value)
