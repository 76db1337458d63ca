"""A sketch of weighted scores: cutoffs from a few thousand bins, for scores that do not fit in memory.

Guarantee. Scores are rounded *up* to a grid with 128 steps per factor of two; cutoffs of the sketch are the exact
cutoffs (`quantile.py`, with the mass of the test entry and the tie guard) of the rounded scores. So, for every test
weight and level,

    exact cutoff  <=  sketch cutoff  <=  exact cutoff + |exact cutoff| / 128   (0.8 %),

in the direction of the tail; the interval of an absolute score is at most 0.8 % wider. Rounding keeps seven bits of the
mantissa by integer arithmetic on the bits of the number: it is exact, monotone, and the same on every machine. (Scores
below 2^-1022, the smallest normal number of float64, are rounded up by at most 2^-1029.)

The sketches of parts add up to the sketch of the whole, in any order: bin weights are compensated sums, so two orders
differ by the rounding of exp() only, about 1e-14 where log-weights span a hundred.

Where setting a test entry to observed changes the weights of its neighbours (exact Ising weights), the change is added
to the bins of the neighbours during the search. If it removes all but a thousandth of the total weight, too few digits
are left for a search, and the cutoff is infinite, which is valid.

A *cell* is a position on the grid: an even number for a grid point, an odd one for the open interval between two.

Cost: two numbers per bin; one exponential per added score; one binary search per cutoff.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from corten.conformal.kernels import guide_table, running_sum, search_changed
from corten.conformal.quantile import TIE_GUARD, Tail, as_levels
from corten.data.arrays import Floats, Numbers
from corten.engine.arithmetic import INNER

KEPT_BITS = 7
_DROPPED = 52 - KEPT_BITS
NO_CELL = np.int32(-(2**31))  # the cell of an entry that is not a calibration entry

Cells = NDArray[np.int32]


def cells_of(scores: ArrayLike) -> Cells:
    """The cell of each score: an even number for a grid point, an odd one between two; the order is that of the scores.

    `cells_of(-v) == -cells_of(v)`, so the same cells are used for both tails.
    """
    values = np.ascontiguousarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("scores contain NaN; score observed entries only.")
    bits = np.abs(values).view(np.int64)
    cells = ((bits >> _DROPPED) * 2 + ((bits & ((1 << _DROPPED) - 1)) > 0)).astype(np.int32)
    return np.where(values < 0, -cells, cells)


def _edges(index: NDArray[np.int64]) -> Floats:
    """Grid points by index."""
    return np.where(index < 0, -1.0, 1.0) * (np.abs(index) << _DROPPED).view(np.float64)


@dataclass(frozen=True)
class Changes:
    """Changes of calibration weights by setting each test entry to observed: `cells` and `weights`, both (tests, N).

    `weights` are added and may be negative; they are in units of exp(`ScoreSketch.shift`). NO_CELL is skipped.
    """

    cells: Cells
    weights: Floats


class ScoreSketch:
    """Calibration scores and weights, added in parts and merged; `cutoffs` is like that of `WeightedScores`."""

    def __init__(self, tail: Tail = "upper") -> None:
        self.tail: Tail = tail
        self.size = 0
        self.shift = -np.inf  # the largest log-weight added: bin weights are in units of its exponential
        self._first = 0
        self._bins = np.zeros((2, 0))  # weights, and their rounding errors
        self._squares = 0.0

    def add(self, cells: Cells, log_weights: ArrayLike) -> None:
        """Add scores, given by their cells, with their log-weights."""
        own = np.asarray(cells, dtype=np.int32).ravel()
        logs = np.asarray(log_weights, dtype=np.float64).ravel()
        if np.isnan(logs).any() or (logs == np.inf).any():
            raise ValueError("log_weights must be finite or -inf (no weight); got NaN or +inf.")
        if not own.size:
            return
        at = self._bin(own)
        self._make_room(int(at.min()), int(at.max()))
        self._rescale(float(logs.max()))
        self.size += own.size
        if np.isfinite(self.shift):
            self._squares += _add_scores(at - self._first, np.exp(logs - self.shift), self._bins)

    def merge(self, other: ScoreSketch) -> ScoreSketch:
        """The sketch of both parts together; neither is changed."""
        both = ScoreSketch(self.tail)
        for part in (self, other):
            if part._bins.shape[1]:
                both._make_room(part._first, part._first + part._bins.shape[1] - 1)
            both._rescale(part.shift)
        for part in (self, other):
            if np.isfinite(part.shift):
                factor, at = np.exp(part.shift - both.shift), part._first - both._first
                for row in part._bins:
                    _add_scores(np.arange(at, at + row.size), row * factor, both._bins)
                both._squares += part._squares * factor**2
        both.size = self.size + other.size
        return both

    def cutoffs(
        self, log_test_weights: ArrayLike, levels: float | Sequence[float] | Numbers, changes: Changes | None = None
    ) -> Floats:
        """Cutoffs of the rounded scores, shape (levels, tests); infinite where the total weight is not sufficient."""
        tests = np.asarray(log_test_weights, dtype=np.float64).ravel()
        if np.isnan(tests).any():
            raise ValueError("log_test_weights contain NaN.")
        wanted = as_levels(levels)
        sign = 1.0 if self.tail == "upper" else -1.0
        out = np.full((wanted.size, tests.size), np.inf)
        if np.isfinite(self.shift):
            index = np.arange(self._first, self._first + self._bins.shape[1])
            sums, edges = running_sum(self._bins.sum(axis=0)), np.append(_edges(index), np.inf)
            cells = np.empty((tests.size, 0), np.int32) if changes is None else changes.cells
            ranks = np.where(cells == NO_CELL, -1, self._bin(cells) - self._first)
            with np.errstate(over="ignore"):
                own = np.exp(tests - self.shift)
            weights = np.empty(cells.shape) if changes is None else changes.weights
            found = search_changed(sums, edges, guide_table(sums), own, ranks, weights, wanted * (1 - TIE_GUARD))
            out = np.where(np.isnan(found), np.inf, found)
        return sign * out

    def effective_sample_size(self) -> float:
        """Effective sample size of the weights, (sum w)^2 / sum w^2."""
        total = float(self._bins.sum())
        return total**2 / self._squares if self._squares > 0 else 0.0

    def _bin(self, cells: Cells) -> NDArray[np.int64]:
        """The grid points to which scores are rounded in the direction of the tail."""
        return ((1 if self.tail == "upper" else -1) * cells.astype(np.int64) + 1) >> 1

    def _make_room(self, low: int, high: int) -> None:
        """Extend the bins to the grid points low..high."""
        count = self._bins.shape[1]
        if count == 0:
            self._first, self._bins = low, np.zeros((2, high - low + 1))
            return
        before, after = max(0, self._first - low), max(0, high - (self._first + count - 1))
        if before or after:
            self._first -= before
            self._bins = np.pad(self._bins, ((0, 0), (before, after)))

    def _rescale(self, top: float) -> None:
        """Raise the shift to `top` if it is larger."""
        if top > self.shift:
            factor = np.exp(self.shift - top)
            self._bins *= factor
            self._squares *= factor**2
            self.shift = top


@njit(**INNER)
def _add_to(bins, at, w):
    """Add to a bin by Neumaier's compensated sum."""
    high = bins[0, at]
    t = high + w
    if abs(high) >= abs(w):
        bins[1, at] += (high - t) + w
    else:
        bins[1, at] += (w - t) + high
    bins[0, at] = t


@njit(nogil=True, cache=True, error_model="numpy")
def _add_scores(at, weights, bins):
    """Add weights to bins; returns the sum of their squares."""
    squares = 0.0
    for i in range(at.size):
        _add_to(bins, at[i], weights[i])
        squares += weights[i] * weights[i]
    return squares
