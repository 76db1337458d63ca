"""Small operations on tensor-train cores, shared by the files of this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CHUNK_ENTRIES = 1 << 16


def frozen(array: npt.ArrayLike) -> Array:
    """A read-only float64 copy (or the array itself, if it is one already)."""
    given = np.asarray(array)
    if given.dtype == np.float64 and not given.flags.writeable and given.flags.c_contiguous:
        return given
    kept = np.array(given, dtype=np.float64, order="C")
    kept.flags.writeable = False
    return kept


def absorb(matrix: Array, core: Array) -> Array:
    """Multiply a core by a matrix on its left bond."""
    return (matrix @ core.reshape(core.shape[0], -1)).reshape(matrix.shape[0], core.shape[1], core.shape[2])


def corner(a: Array, b: Array | None, c: Array | None, d: Array) -> Array:
    """The block core [[a, b], [c, d]] along the bonds; None is zero."""
    block = np.zeros((a.shape[0] + d.shape[0], a.shape[1], a.shape[2] + d.shape[2]))
    block[: a.shape[0], :, : a.shape[2]] = a
    block[a.shape[0] :, :, a.shape[2] :] = d
    if b is not None:
        block[: a.shape[0], :, a.shape[2] :] = b
    if c is not None:
        block[a.shape[0] :, :, : a.shape[2]] = c
    return block


def interface(cores: Sequence[Array]) -> Array:
    """Dense product of neighbouring cores that begin with bond rank 1: shape (d, ..., d', r)."""
    dense = cores[0].reshape(-1, cores[0].shape[2])
    for core in cores[1:]:
        dense = (dense @ core.reshape(core.shape[0], -1)).reshape(-1, core.shape[2])
    return dense.reshape(*(core.shape[1] for core in cores), cores[-1].shape[2])


def rows(cores: Sequence[Array], index: Sequence[npt.NDArray[np.intp]]) -> Array:
    """Rows (n, r) of the left interface of some cores at n positions."""
    head = cores[0][0, index[0]]
    for core, i in zip(cores[1:], index[1:]):
        head = np.einsum("na,anb->nb", head, core[:, i], optimize=True)
    return head


def chunks(count: int, length: int = CHUNK_ENTRIES) -> Iterator[slice]:
    """Slices that walk through `count` items in bounded pieces."""
    for start in range(0, count, length):
        yield slice(start, min(start + length, count))


def multiply(tensor: npt.NDArray, matrix: npt.NDArray, mode: int) -> npt.NDArray:
    """Multiply a dense tensor by a matrix along one mode."""
    return np.moveaxis(np.tensordot(matrix, tensor, (1, mode)), 0, mode)
