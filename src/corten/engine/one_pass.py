"""Operations of iterative solvers on flat arrays that read and write every number once.

NumPy would pass over the arrays once for each product and sum, with temporary arrays as large: with many entries the
solvers would wait for memory. Sums are kept in double precision.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from corten.engine.arithmetic import FAST

COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": FAST}
PART = 2048  # numbers that stay in the cache


@njit(**COMPILED)
def sum_of_squares(values, weights):  # type: ignore[no-untyped-def]
    """The sum of weights * values^2."""
    total = 0.0
    for i in range(values.size):
        total += weights[i] * values[i] * values[i]
    return total


@njit(**COMPILED)
def next_direction(direction, residual, shrink, factor):  # type: ignore[no-untyped-def]
    """direction = factor * direction + shrink * residual."""
    for i in range(direction.size):
        direction[i] = factor * direction[i] + shrink[i] * residual[i]


@njit(**COMPILED)
def add_ratio(image, ratio, direction):  # type: ignore[no-untyped-def]
    """image += ratio * direction; the inner product of image and direction after that."""
    total = 0.0
    for i in range(image.size):
        image[i] += ratio[i] * direction[i]
        total += image[i] * direction[i]
    return total


@njit(**COMPILED)
def advance(mean, residual, direction, image, step):  # type: ignore[no-untyped-def]
    """mean += step * direction, residual -= step * image."""
    for i in range(mean.size):
        mean[i] += step * direction[i]
        residual[i] -= step * image[i]


@njit(**COMPILED)
def set_means(arrays, filled, known, kept, share, factor):  # type: ignore[no-untyped-def]
    """filled: the known values, where none is `kept` the sum of the arrays times `share`; arrays: their differences
    from that, times `factor`.
    """
    for first in range(0, filled.size, PART):
        # Slices, not indices from `first` on: only these loops become vector instructions.
        here = slice(first, min(first + PART, filled.size))
        mean, given, seen = filled[here], known[here], kept[here]
        for i in range(mean.size):
            mean[i] = 0
        for array in arrays:
            part = array[here]
            for i in range(mean.size):
                mean[i] += part[i]
        for i in range(mean.size):
            mean[i] = given[i] if seen[i] else share * mean[i]
        for array in arrays:
            part = array[here]
            for i in range(mean.size):
                part[i] = factor * (part[i] - mean[i])
