"""Small operations on cores, dense tensors and matrices, shared by the files of this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
CHUNK_ITEMS = 1 << 16
EXTRA_COLUMNS = 10  # of a random sketch, beyond the rank
POWER_ITERATIONS = 2


def frozen(array: npt.ArrayLike) -> Floats:
    """A read-only float64 copy (or the array itself, if it is one already)."""
    given = np.asarray(array)
    if given.dtype == np.float64 and not given.flags.writeable and given.flags.c_contiguous:
        return given
    kept = np.array(given, dtype=np.float64, order="C")
    kept.flags.writeable = False
    return kept


def full(x: npt.ArrayLike) -> npt.NDArray:
    """A dense tensor to work on, float32 or float64; a ValueError if an entry is missing."""
    given = np.asarray(x)
    work = given if given.dtype == np.float32 else given.astype(np.float64)
    if not np.isfinite(work).all():
        raise ValueError("x: contains NaN or infinity; fill the missing entries first")
    return work


def absorb(matrix: Floats, core: Floats) -> Floats:
    """Multiply a core by a matrix on its left bond."""
    return (matrix @ core.reshape(core.shape[0], -1)).reshape(matrix.shape[0], core.shape[1], core.shape[2])


def corner(a: Floats, b: Floats | None, d: Floats) -> Floats:
    """The block core [[a, b], [0, d]] along the bonds; None is zero."""
    block = np.zeros((a.shape[0] + d.shape[0], a.shape[1], a.shape[2] + d.shape[2]))
    block[: a.shape[0], :, : a.shape[2]] = a
    block[a.shape[0] :, :, a.shape[2] :] = d
    if b is not None:
        block[: a.shape[0], :, a.shape[2] :] = b
    return block


def interface(cores: Sequence[Floats]) -> Floats:
    """Dense product of neighbouring cores that begin with bond rank 1: shape (d, ..., d', r)."""
    dense = cores[0].reshape(-1, cores[0].shape[2])
    for core in cores[1:]:
        dense = (dense @ core.reshape(core.shape[0], -1)).reshape(-1, core.shape[2])
    return dense.reshape(*(core.shape[1] for core in cores), cores[-1].shape[2])


def rows(cores: Sequence[Floats], index: Sequence[npt.NDArray[np.intp]]) -> Floats:
    """Rows (n, r) of the left interface of some cores at n positions."""
    head = cores[0][0, index[0]]
    for core, i in zip(cores[1:], index[1:]):
        head = np.einsum("na,anb->nb", head, core[:, i], optimize=True)
    return head


def chunks(count: int, length: int = CHUNK_ITEMS) -> Iterator[slice]:
    """Slices of at most `length` items that together cover `count` items."""
    for start in range(0, count, length):
        yield slice(start, min(start + length, count))


def multiply(tensor: npt.NDArray, matrix: npt.NDArray, mode: int) -> npt.NDArray:
    """Multiply a dense tensor by a matrix along one mode."""
    return np.moveaxis(np.tensordot(matrix, tensor, (1, mode)), 0, mode)


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
