"""Scales u(s) > 0: residuals are divided by the scale to give scores, and cutoffs multiplied by it to give intervals.

Any scale that does not depend on the values of calibration entries is valid; a good one is large where errors are
large. The scale that is learned from residuals of hidden entries is in `local_scale.py`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LeverageScale", "Scale", "TableScale", "UnitScale"]


@runtime_checkable
class Scale(Protocol):
    """The method of a scale: u(s) > 0 of entries given by flat indices."""

    def at(self, entries: NDArray[np.intp]) -> NDArray[np.floating]: ...


class UnitScale:
    """The same scale everywhere: scores are plain residuals.

    Examples
    --------
    >>> UnitScale().at(np.array([4, 7]))
    array([1., 1.])
    """

    def at(self, entries: NDArray[np.intp]) -> NDArray[np.floating]:
        return np.ones(np.shape(entries))


class LeverageScale:
    """The leverage of each entry as scale: ||P_T(I_s)||, the norm of its projection on the tangent space.

    Parameters
    ----------
    leverage : array
        The leverage of every entry; finite and not negative.
    floor : float, default 1e-3
        Leverages below `floor` times their median are raised to it: with a leverage of zero, any residual would give an
        infinite score.

    Raises
    ------
    ValueError
        If a leverage is negative or not finite, or half of them are zero.

    Examples
    --------
    >>> LeverageScale(np.array([[1.0, 0.0], [2.0, 3.0]]), floor=0.1).at(np.array([0, 1, 3]))
    array([1.  , 0.15, 3.  ])
    """

    def __init__(self, leverage: ArrayLike, floor: float = 1e-3) -> None:
        flat = np.ravel(np.asarray(leverage))
        if not flat.size or not np.isfinite(flat).all() or (flat < 0).any():
            raise ValueError("leverage has negative or non-finite values; give finite values of at least 0.")
        if not floor > 0:
            raise ValueError(f"floor is {floor!r}; give a positive number.")
        middle = float(np.median(flat))
        if middle == 0:
            raise ValueError("leverage is zero at half of the entries or more: use score='absolute'")
        self.leverage, self.floor = flat, floor
        self._least = floor * middle

    def at(self, entries: NDArray[np.intp]) -> NDArray[np.floating]:
        return np.maximum(self.leverage[entries], self._least)


class TableScale:
    """A scale given at every entry, such as a learned one after its fit.

    Examples
    --------
    >>> TableScale(np.array([[1.0, 2.0], [3.0, 4.0]])).at(np.array([1, 2]))
    array([2., 3.])
    """

    def __init__(self, table: ArrayLike) -> None:
        self.table = np.ravel(np.asarray(table))

    def at(self, entries: NDArray[np.intp]) -> NDArray[np.floating]:
        return np.asarray(self.table[entries])
