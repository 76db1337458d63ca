"""The scale of errors, learned from training residuals: as a function of the propensity parameter B, and by slice.

The scale uses training entries only, so that calibration and test entries are treated alike. Errors of training entries
are slightly too small, as the estimate was fitted to them, but show where errors are large. The scale depends on B, not
on the odds: the odds of an entry depend on whether its neighbours are observed, and the test entry is a neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.scale import TableScale, UnitScale

__all__ = ["training_scale"]

PARAMETER_CLASSES = 20
SWEEPS = 3  # over the axes
PRIOR_ENTRIES = 20.0  # of average error, added to every slice
MIN_RELATIVE_ERROR = 1e-3  # of the mean error

Floats = NDArray[np.float64]


def training_scale(
    errors: ArrayLike, entries: NDArray[np.intp], parameter: ArrayLike, shape: Sequence[int]
) -> TableScale | UnitScale:
    """The scale u(s) of every entry: a function of the parameter times a factor for the slice of every axis.

    `errors` belong to the training `entries` (flat); `parameter` is B of every entry. The function interpolates the
    mean absolute errors of twenty classes of B. The factors are fitted to the ratios, one axis after another, with
    twenty average entries added to every slice, which shrinks the factor of a slice with few entries towards 1.

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
    size = np.maximum(size, MIN_RELATIVE_ERROR * usual)
    table = np.exp(_Curve(flat[entries], size)(flat)).reshape(tuple(shape))
    left, index = size / table.reshape(-1)[entries], np.unravel_index(entries, tuple(shape))
    for _ in range(SWEEPS):
        for axis, length in enumerate(shape):
            count = np.bincount(index[axis], minlength=length)
            total = np.bincount(index[axis], left, minlength=length)
            factor = (total + PRIOR_ENTRIES * left.mean()) / (count + PRIOR_ENTRIES)
            left = left / factor[index[axis]]
            table *= factor.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return TableScale(table)


class _Curve:
    """The logarithm of the mean error as a function of the parameter: linear between the centres of classes."""

    def __init__(self, parameter: Floats, size: Floats) -> None:
        edges = np.unique(np.quantile(parameter, np.linspace(0.0, 1.0, PARAMETER_CLASSES + 1)[1:-1]))
        place = np.searchsorted(edges, parameter, side="right")
        count = np.bincount(place, minlength=edges.size + 1)
        kept = count > 0
        self.centre = np.bincount(place, parameter, minlength=edges.size + 1)[kept] / count[kept]
        self.value = np.log(np.bincount(place, size, minlength=edges.size + 1)[kept] / count[kept])

    def __call__(self, parameter: Floats) -> Floats:
        return np.interp(parameter, self.centre, self.value)
