"""LAPACK without the lock of the interpreter, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from corten.engine.lapack import (
    addresses,
    call_at,
    cholesky,
    inverse_from_cholesky,
    numbers_of,
    symmetric_product,
)  # fmt: skip


@njit(nogil=True)
def solve(routines, factor, vector):
    lower, size, one, failed = numbers_of(len(factor))
    call_at(routines[0], (lower, size, one, factor, size, vector, size, failed))


@pytest.mark.parametrize("size", [1, 2, 37])
def test_routines_read_and_write_the_lower_triangle_only(size: int) -> None:
    rng = np.random.default_rng(size)
    root = rng.standard_normal((size, size))
    matrix, vector = root @ root.T + size * np.eye(size), rng.standard_normal(2 * size)[::2]
    above = np.triu_indices(size, 1)
    inside = matrix.copy()
    inside[above] = np.nan
    np.testing.assert_allclose(symmetric_product(inside, vector), matrix @ vector, rtol=1e-12)
    assert cholesky(inside)
    np.testing.assert_allclose(np.tril(inside), np.linalg.cholesky(matrix), rtol=1e-12)
    solution = vector.copy()
    solve(addresses("dpotrs"), inside, solution)
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, vector), rtol=1e-10)
    inverse_from_cholesky(inside)
    np.testing.assert_allclose(np.tril(inside), np.tril(np.linalg.inv(matrix)), rtol=1e-10, atol=1e-14)
    assert np.isnan(inside[above]).all()


def test_what_is_not_positive_definite_or_not_in_place_is_refused() -> None:
    assert not cholesky(np.diag([1.0, -1.0, 1.0]))
    for wrong in (np.eye(3, dtype=np.float32), np.ones((2, 3)), np.eye(8)[::2, ::2]):
        with pytest.raises(ValueError, match="square float64 matrix"):
            cholesky(wrong)
