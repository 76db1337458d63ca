"""Scales u(s) > 0: a score is divided by it, an interval multiplied.

Any scale is valid that does not look at hidden entries; a good one makes intervals wide only where they
must be. The scale that is learned from residuals lives in `local_scale.py`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LeverageScale", "Scale", "TableScale", "UnitScale"]


@runtime_checkable
class Scale(Protocol):
    """What a scale must offer: u(s) > 0 for entries given by their flat indices."""

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
    """The completion's relative uncertainty of each entry, ||P_T(I_s)|| for a low-rank one, as scale.

    Leverages under `floor` times their median are raised to it: an entry that the estimate claims to know
    perfectly would have an infinite score at the smallest residual.

    Examples
    --------
    >>> LeverageScale(np.array([[1.0, 0.0], [2.0, 3.0]]), floor=0.1).at(np.array([0, 1, 3]))
    array([1.  , 0.15, 3.  ])
    """

    def __init__(self, leverage: ArrayLike, floor: float = 1e-3) -> None:
        flat = np.ravel(np.asarray(leverage))
        if not flat.size or not np.isfinite(flat).all() or (flat < 0).any():
            raise ValueError("leverage must be finite and not negative everywhere.")
        if not floor > 0:
            raise ValueError(f"floor must be positive; got {floor!r}.")
        middle = float(np.median(flat))
        if middle == 0:
            raise ValueError("leverage is zero at half of the entries or more: use score='absolute'")
        self.leverage, self.floor = flat, floor
        self._least = floor * middle

    def at(self, entries: NDArray[np.intp]) -> NDArray[np.floating]:
        return np.maximum(self.leverage[entries], self._least)


class TableScale:
    """A scale known at every entry, as a learned one is after it was fitted.

    Examples
    --------
    >>> TableScale(np.array([[1.0, 2.0], [3.0, 4.0]])).at(np.array([1, 2]))
    array([2., 3.])
    """

    def __init__(self, table: ArrayLike) -> None:
        self.table = np.ravel(np.asarray(table))

    def at(self, entries: NDArray[np.intp]) -> NDArray[np.floating]:
        return np.asarray(self.table[entries])
