"""LAPACK and BLAS of SciPy with the lock of the interpreter released: SciPy's own wrappers hold it, and threads wait.

All matrices are symmetric, of double precision and in C order. Only their lower triangle is read and written: to these
routines, which count along columns first, that is the upper one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from corten.engine.arithmetic import INNER


def cholesky(matrix: np.ndarray) -> bool:
    """Replace a positive definite matrix by its factor, in place; False if it is not positive definite."""
    size, failed = _size(matrix), ctypes.c_int(0)
    _routine("lapack", "dpotrf")(b"U", size, _data(matrix), size, ctypes.byref(failed))
    return failed.value == 0


def inverse_from_cholesky(factor: np.ndarray) -> None:
    """Replace the factor of a matrix by the inverse of the matrix, in place."""
    size, failed = _size(factor), ctypes.c_int(0)
    _routine("lapack", "dpotri")(b"U", size, _data(factor), size, ctypes.byref(failed))


def symmetric_product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The product of a matrix with a vector."""
    size, one = _size(matrix), ctypes.byref(ctypes.c_int(1))
    factor, nothing = ctypes.byref(ctypes.c_double(1.0)), ctypes.byref(ctypes.c_double(0.0))
    vector = np.ascontiguousarray(vector, np.float64)
    product = np.empty(len(vector))
    _routine("blas", "dsymv")(b"U", size, factor, _data(matrix), size, _data(vector), one, nothing, _data(product), one)
    return product


def addresses(*names: str) -> np.ndarray:
    """Where routines of LAPACK lie in memory, for compiled code that calls them by `call_at`."""
    return np.array([_address("lapack", name) for name in names], np.intp)


@intrinsic
def call_at(_: Any, address: Any, arrays: Any) -> Any:
    """Call the routine at an address with pointers to the data of a tuple of arrays, in compiled code.

    The address is an argument, not a constant, so that the compiled code can be kept on disk.
    """

    def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
        pointers = []
        for place, kind in enumerate(arrays):
            array = context.make_array(kind)(context, builder, builder.extract_value(values[1], place))
            pointers.append(builder.bitcast(array.data, cgutils.voidptr_t))
        routine = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] * len(pointers))
        builder.call(builder.inttoptr(values[0], routine.as_pointer()), pointers)
        return context.get_dummy_value()

    return types.void(address, arrays), codegen


@njit(**INNER)
def numbers_of(size):  # type: ignore[no-untyped-def]
    """What routines need to know of a matrix of this size: the triangle "U", the size, one, and a place for errors."""
    numbers = np.zeros(3, np.int32)  # one type of array: lists and strings take seconds to compile
    numbers[0], numbers[1] = size, 1
    triangle = np.empty(1, np.uint8)
    triangle[0] = 85  # "U"
    return triangle, numbers[:1], numbers[1:2], numbers[2:]


@cache
def _routine(library: str, name: str) -> Callable[..., None]:
    """A routine as a function of pointers. A call through `ctypes` releases the lock of the interpreter."""
    return ctypes.CFUNCTYPE(None)(_address(library, name))


def _address(library: str, name: str) -> int:
    return int(get_cython_function_address(f"scipy.linalg.cython_{library}", name))


def _size(matrix: np.ndarray) -> object:
    n = len(matrix)
    if matrix.shape != (n, n) or matrix.dtype != np.float64 or not matrix.flags.c_contiguous:
        raise ValueError(f"matrix is {matrix.dtype}{matrix.shape}: give a square float64 matrix in C order")
    return ctypes.byref(ctypes.c_int(n))


def _data(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
