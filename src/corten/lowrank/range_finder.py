"""Leading left singular vectors of a matrix: exact where it is small, by random sketching where large."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EXTRA_COLUMNS = 10  # of a sketch, beyond the rank
POWER_ITERATIONS = 2


def leading_left(matrix: npt.NDArray, rank: int, rng: np.random.Generator) -> npt.NDArray:
    """Orthonormal columns spanning (nearly) the best left subspace of the given rank.

    The sketch reads the m x n matrix six times, O(m n (rank + 10)) against O(m n min(m, n)) of an SVD, and is
    used only where cheaper; with two power iterations it loses a few per cent of the discarded tail at most.
    """
    m, n = matrix.shape
    if rank > min(m, n):
        raise ValueError(f"rank: {rank} columns of a {m} x {n} matrix; at most {min(m, n)} are possible")
    if rank == m:
        return np.eye(m, dtype=matrix.dtype)
    width = rank + EXTRA_COLUMNS
    if 4 * width >= min(m, n):
        return _left_vectors(matrix)[:, :rank]
    basis = np.linalg.qr(matrix @ rng.standard_normal((n, width)).astype(matrix.dtype))[0]
    for _ in range(POWER_ITERATIONS):
        basis = np.linalg.qr(matrix.T @ basis)[0]
        basis = np.linalg.qr(matrix @ basis)[0]
    return basis @ _left_vectors(basis.T @ matrix)[:, :rank]


def _left_vectors(matrix: npt.NDArray) -> npt.NDArray:
    m, n = matrix.shape
    if n > 2 * m:  # the long side carries no information on the left vectors beyond its triangular factor
        matrix = np.transpose(np.linalg.qr(matrix.T, mode="r"))
    return np.linalg.svd(matrix, full_matrices=False)[0]
