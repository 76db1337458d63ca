"""Scales u(s) > 0: residuals are divided by the scale to give scores, and cutoffs multiplied by it to give intervals.

Any scale that does not depend on the values of calibration entries is valid; a good one is large where errors are
large. The scale that is learned from residuals of hidden entries is in `local_scale.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from corten.data.arrays import Entries, Floats, Numbers

PARAMETER_CLASSES = 20
SWEEPS = 3  # over the axes
PRIOR_ENTRIES = 20.0  # of average error, added to every slice
MIN_RELATIVE_ERROR = 1e-3  # of the mean error


@runtime_checkable
class Scale(Protocol):
    """The method of a scale: u(s) > 0 of entries given by flat indices."""

    def at(self, entries: Entries) -> Numbers: ...


class UnitScale:
    """The same scale everywhere: scores are plain residuals."""

    def at(self, entries: Entries) -> Numbers:
        return np.ones(np.shape(entries))


class LeverageScale:
    """The leverage of each entry as scale: ||P_T(I_s)||, the norm of its projection on the tangent space.

    Leverages below `floor` times their median are raised to it: with a leverage of zero, any residual would give an
    infinite score. A negative or infinite leverage, and zeros at half of the entries, are a ValueError.

    >>> LeverageScale(np.array([[1.0, 0.0], [2.0, 3.0]]), floor=0.1).at(np.array([0, 1, 3]))
    array([1.  , 0.15, 3.  ])
    """

    def __init__(self, leverage: ArrayLike, floor: float = 1e-3) -> None:
        flat = np.ravel(np.asarray(leverage))
        if not flat.size or not np.isfinite(flat).all() or (flat < 0).any():
            raise ValueError("leverage has negative or non-finite values; give finite values of at least 0.")
        middle = float(np.median(flat))
        if middle == 0:
            raise ValueError("leverage is zero at half of the entries or more: use score='absolute'")
        self.leverage, self.floor = flat, floor
        self.least = floor * middle

    def at(self, entries: Entries) -> Numbers:
        return np.maximum(self.leverage[entries], self.least)


class TableScale:
    """A scale given at every entry, such as a learned one after its fit."""

    def __init__(self, table: ArrayLike) -> None:
        self.table = np.ravel(np.asarray(table))

    def at(self, entries: Entries) -> Numbers:
        return np.asarray(self.table[entries])


def training_scale(
    errors: ArrayLike, entries: Entries, parameter: ArrayLike, shape: Sequence[int]
) -> TableScale | UnitScale:
    """The scale u(s) of every entry: a function of the parameter times a factor for the slice of every axis.

    `errors` belong to the training `entries` (flat); `parameter` is B of every entry. The function interpolates the
    mean absolute errors of twenty classes of B. The factors are fitted to the ratios, one axis after another, with
    twenty average entries added to every slice, which shrinks the factor of a slice with few entries towards 1.

    Only training entries are used, so that calibration and test entries are treated alike. Their errors are slightly
    too small, as the estimate was fitted to them, but show where errors are large. The scale depends on B, not on the
    odds: the odds of an entry depend on whether its neighbours are observed, and the test entry is a neighbour.
    """
    size, flat = np.abs(np.asarray(errors, np.float64)), np.ravel(np.asarray(parameter, np.float64))
    usual = float(size.mean()) if size.size else 0.0
    if usual == 0.0 or not np.isfinite(usual):
        return UnitScale()
    size = np.maximum(size, MIN_RELATIVE_ERROR * usual)
    table = _mean_by_parameter(flat[entries], size, flat).reshape(tuple(shape))
    left, index = size / table.reshape(-1)[entries], np.unravel_index(entries, tuple(shape))
    for _ in range(SWEEPS):
        for axis, length in enumerate(shape):
            count = np.bincount(index[axis], minlength=length)
            total = np.bincount(index[axis], left, minlength=length)
            factor = (total + PRIOR_ENTRIES * left.mean()) / (count + PRIOR_ENTRIES)
            left = left / factor[index[axis]]
            table *= factor.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return TableScale(table)


def _mean_by_parameter(parameter: Floats, size: Floats, at: Floats) -> Floats:
    """The mean error as a function of the parameter: its logarithm is linear between the centres of classes."""
    edges = np.unique(np.quantile(parameter, np.linspace(0.0, 1.0, PARAMETER_CLASSES + 1)[1:-1]))
    place = np.searchsorted(edges, parameter, side="right")
    count = np.bincount(place, minlength=edges.size + 1)
    kept = count > 0
    centre = np.bincount(place, parameter, minlength=edges.size + 1)[kept] / count[kept]
    value = np.log(np.bincount(place, size, minlength=edges.size + 1)[kept] / count[kept])
    return np.exp(np.interp(at, centre, value))
