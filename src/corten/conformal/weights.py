"""Conformal weights: the odds of being missing of each entry.

A weights object has `log_weight(entries)`, the negative log-odds of being observed, and `neighbour_factor(test)`, for
models in which the weights of the neighbours change if a test entry is set to observed. Only ratios of weights matter.
The neighbour sum in the log-odds is over the *full* mask, with calibration entries observed: with the training mask, as
printed in Algorithm CTC, intervals are not valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.quantile import NeighbourFactor
from corten.data.arrays import Entries, Numbers

LogWeight = Callable[[Entries], Numbers]


@runtime_checkable
class Weights(Protocol):
    """The methods of a weights object; entries are flat indices."""

    def log_weight(self, entries: Entries) -> Numbers: ...  # of entries of the tensor as test entries
    def of_calibration(self, entries: Entries) -> Numbers: ...  # of the calibration entries, in the order of scores
    def neighbour_factor(self, test: Entries) -> NeighbourFactor | None: ...  # changes of calibration weights


class WithoutNeighbours:
    """Weights that are the same for calibration and test entries, and that no test entry changes."""

    def log_weight(self, entries: Entries) -> Numbers:
        raise NotImplementedError

    def of_calibration(self, entries: Entries) -> Numbers:
        return self.log_weight(entries)

    def neighbour_factor(self, test: Entries) -> NeighbourFactor | None:
        return None


class UniformWeights(WithoutNeighbours):
    """Equal weights, correct if all entries are missing with the same probability."""

    def log_weight(self, entries: Entries) -> Numbers:
        return np.zeros(np.shape(entries))


class OddsWeights(WithoutNeighbours):
    """Weights by the odds of being missing, (1 - p)/p: exact for independent missingness, else approximate.

    log_weights: the log-odds of being missing, -eta, of every entry (of the tensor's shape), or a function of flat
    indices. Equation (conformal-weight-approx) of the paper.

    >>> OddsWeights(np.array([[0.0, 1.0], [2.0, 3.0]])).log_weight(np.array([1, 2]))
    array([1., 2.])
    """

    def __init__(self, log_weights: ArrayLike | LogWeight) -> None:
        self.log_weights = log_weights if callable(log_weights) else np.ravel(np.asarray(log_weights))

    def log_weight(self, entries: Entries) -> Numbers:
        known = self.log_weights
        return np.asarray(known(entries) if callable(known) else known[entries])


class PooledWeights(WithoutNeighbours):
    """Weights of scores pooled over rounds: an entry hidden in two rounds has a weight in each.

    calibration: flat indices of the hidden entries, in the order of their scores; at_calibration: their log-weights;
    table: the log-weight of every entry of the tensor, used for missing entries.

    >>> weights = PooledWeights(np.array([2, 2]), np.array([0.5, 0.7]), np.zeros(4))
    >>> weights.of_calibration(np.array([2, 2])), weights.log_weight(np.array([1]))
    (array([0.5, 0.7]), array([0.]))
    """

    def __init__(self, calibration: Entries, at_calibration: ArrayLike, table: ArrayLike) -> None:
        self.calibration = np.asarray(calibration)
        self.at_calibration = np.asarray(at_calibration, dtype=np.float64)
        self.table = np.ravel(np.asarray(table))

    def log_weight(self, entries: Entries) -> Numbers:
        return np.asarray(self.table[entries])

    def of_calibration(self, entries: Entries) -> Numbers:
        return self.at_calibration


class ExactIsingWeights(OddsWeights):
    """Exact weights of a coupled model: the test entry is set to observed.

    Equation (Ising-model-conformal-weight-exact) of the paper. Changing W_t from -1 to +1 multiplies the weight of each
    calibration neighbour k by exp(-4 g(B_k, B_t)) and changes nothing else.

    log_weights: as for `OddsWeights`; shape: of the tensor; calibration: flat indices of the calibration entries, in
    the order of their scores; neighbours: from flat indices to those of their neighbours, (entries, N), -1 for none;
    pair: from two arrays of flat indices a, b to g(B_a, B_b).

    >>> line = lambda flat: np.stack([flat - 1, np.where(flat < 3, flat + 1, -1)], axis=1)
    >>> weights = ExactIsingWeights(
    ...     np.zeros(4), shape=(4,), calibration=np.array([2, 0]), neighbours=line,
    ...     pair=lambda a, b: np.full(a.shape, 0.25))
    >>> factor = weights.neighbour_factor(np.array([1, 3]))
    >>> factor.neighbours.tolist(), factor.log_factor.tolist()
    ([[1, 0], [0, -1]], [[-1.0, -1.0], [-1.0, 0.0]])
    """

    def __init__(
        self,
        log_weights: ArrayLike | LogWeight,
        *,
        shape: tuple[int, ...],
        calibration: Entries,
        neighbours: Callable[[Entries], NDArray[np.integer]],
        pair: Callable[[Entries, Entries], Numbers],
    ) -> None:
        super().__init__(log_weights)
        size = int(np.prod(shape))
        self._position = np.full(size, -1, dtype=np.int32 if size < np.iinfo(np.int32).max else np.int64)
        self._position[calibration] = np.arange(len(calibration))
        self.shape, self.calibration = shape, calibration
        self.neighbours, self.pair = neighbours, pair

    def neighbour_factor(self, test: Entries) -> NeighbourFactor:
        around = self.neighbours(test)
        position = np.where(around >= 0, self._position[around], -1)
        row, column = np.nonzero(position >= 0)
        log_factor = np.zeros(position.shape)
        log_factor[row, column] = -4.0 * self.pair(around[row, column].astype(np.intp), test[row])
        return NeighbourFactor(position, log_factor)
