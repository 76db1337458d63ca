"""Correlation between the positions of an unordered axis, such as stations or years."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from corten.completion.axes_kinds import Basis, basis_of

MAX_MATRIX_LENGTH = 1000  # longer axes have one common correlation for all pairs
SAMPLED_POSITIONS = 250  # of a longer axis, from which the common correlation is estimated
CORRELATION_SHRINKAGE = 0.05  # of all correlations
PRIOR_PAIRS = 5.0  # uncorrelated pairs of entries added to every pair of positions
MIN_EIGENVALUE = 0.01


@dataclass(frozen=True)
class PositionCorrelation:
    """Correlation along one unordered axis: a full matrix or, for a long axis, one number for all pairs."""

    length: int
    matrix: np.ndarray | None
    common: float = 0.0

    def between(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The correlation of pairs of positions."""
        if self.matrix is not None:
            return self.matrix[first, second]
        return np.where(first == second, 1.0, self.common)

    def spectrum(self, axis: int, dtype: DTypeLike) -> tuple[Basis, np.ndarray]:
        """A basis in which the correlation is diagonal, and its eigenvalues there."""
        if self.matrix is not None:
            eigenvalues, vectors = np.linalg.eigh(self.matrix)
            return basis_of("unordered", axis, length=self.length, dtype=dtype, eigenvectors=vectors), np.maximum(
                eigenvalues, 0
            )
        # Equal correlation: the constant vector, which is first in the cosine basis, and its orthogonal complement.
        eigenvalues = np.full(self.length, 1 - self.common)
        eigenvalues[0] = 1 + (self.length - 1) * self.common
        return basis_of("ordered", axis, length=self.length, dtype=dtype), eigenvalues


def position_correlations(values: np.ndarray, mask: np.ndarray, kinds: Sequence[str]) -> dict[int, PositionCorrelation]:
    """The correlation along every unordered axis; `values` are standardised and zero where not observed."""
    found = {}
    for k, kind in enumerate(kinds):
        length = mask.shape[k]
        if kind != "unordered" or length == 1:
            continue
        count = length if length <= MAX_MATRIX_LENGTH else SAMPLED_POSITIONS
        some = np.linspace(0, length - 1, count).astype(np.intp)
        matrix = _correlation(np.take(values, some, axis=k), np.take(mask, some, axis=k), k)
        if length <= MAX_MATRIX_LENGTH:
            found[k] = PositionCorrelation(length, matrix)
        else:
            common = (matrix.sum() - len(some)) / (len(some) * (len(some) - 1))
            found[k] = PositionCorrelation(length, None, float(np.clip(common, 0.0, 0.99)))
    return found


def _correlation(values: np.ndarray, mask: np.ndarray, axis: int) -> np.ndarray:
    """Correlations from the entries observed at both of two positions, shrunk towards zero for few pairs."""
    y = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    m = np.moveaxis(mask, axis, 0).reshape(values.shape[axis], -1).astype(y.dtype)
    pairs = m @ m.T
    both = (y**2) @ m.T
    cross = (y @ y.T) / np.sqrt(np.maximum(both * both.T, 1e-12))
    cross *= (1 - CORRELATION_SHRINKAGE) * pairs / (pairs + PRIOR_PAIRS)
    np.fill_diagonal(cross, 1.0)
    eigenvalues, vectors = np.linalg.eigh((cross + cross.T) / 2)
    fixed = (vectors * np.maximum(eigenvalues, MIN_EIGENVALUE)) @ vectors.T
    d = np.sqrt(np.diag(fixed))
    return fixed / np.outer(d, d)
