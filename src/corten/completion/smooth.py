"""The kernel pyramid: fill from wide averages first, then from ever narrower ones of what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from corten.completion.axes_kinds import Basis, along, axis_kinds, basis_of, standardise
from corten.completion.protocol import Fill
from corten.data.choices import Choice

__all__ = ["PreparedSmooth", "SmoothCompletion"]

WIDTHS = (40.0, 20.0, 10.0, 5.0, 3.0, 2.0, 1.5, 1.0, 0.7)
FLOOR = 1e-4
"""Support below which a level adds little: there the wider levels have the last word."""


def gaussian_symbol(width: float, frequencies: np.ndarray) -> np.ndarray:
    """Response of the sampled Gaussian filter of that width, one at frequency zero."""
    reach = max(1, int(np.ceil(5 * width)))
    distance = np.arange(1, reach + 1)
    kernel = np.exp(-0.5 * (distance / max(width, 1e-3)) ** 2)
    if reach > 64:
        return np.exp(-0.5 * (width * frequencies) ** 2)
    response = 1 + 2 * np.cos(np.outer(frequencies, distance)) @ kernel
    return response / (1 + 2 * kernel.sum())


@dataclass(frozen=True)
class AxisFilter:
    """A smoothing filter along one axis: a small matrix, or a response in the basis of a long axis."""

    basis: Basis
    response: np.ndarray
    matrix: np.ndarray | None

    def __call__(self, array: np.ndarray) -> np.ndarray:
        if self.matrix is not None:
            return along(self.matrix, array, self.basis.axis)
        shape = [1] * array.ndim
        shape[self.basis.axis] = -1
        response = self.response.astype(array.dtype).reshape(shape)
        return self.basis.inverse(self.basis.forward(array) * response)


def axis_filter(basis: Basis, width: float) -> AxisFilter:
    """The Gaussian filter of that width (in steps) along one axis."""
    response = gaussian_symbol(width, basis.frequencies)
    matrix = None
    if basis.rows is not None:
        rows = basis.rows.astype(np.float64)
        matrix = np.maximum((rows.T * response) @ rows, 0).astype(np.float32)
    return AxisFilter(basis, response, matrix)


@dataclass(frozen=True)
class PreparedSmooth:
    """The pyramid with its widths along every axis chosen."""

    kinds: tuple[str, ...]
    stretch: tuple[float, ...]
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        data = standardise(values, mask, self.kinds)
        left = data.values.astype(np.float32)
        weight = mask.astype(np.float32)
        estimate = np.zeros(mask.shape, np.float32)
        for level in self._levels(mask.shape):
            support = weight
            mean = left
            for smooth in level:
                support = smooth(support)
                mean = smooth(mean)
            step = mean / (support + FLOOR)
            estimate += step
            left -= step * weight
        return Fill(data.undo(estimate.astype(np.float64)))

    def _levels(self, shape: tuple[int, ...]) -> list[list[Any]]:
        """The filters of all levels: first what all units share, then what is each one's own."""
        bases = [basis_of(kind, k, n) for k, (kind, n) in enumerate(zip(self.kinds, shape))]
        units = [k for k, kind in enumerate(self.kinds) if kind == "unordered" and shape[k] > 1]
        ordered = [k for k, kind in enumerate(self.kinds) if kind != "unordered" and shape[k] > 1]
        levels: list[list[Any]] = []
        for pooled in product((True, False), repeat=min(len(units), 3)):
            if not ordered and not any(pooled):
                continue
            average = [_average(k, shape[k]) for k, pool in zip(units, pooled) if pool]
            for width in WIDTHS if ordered else (1.0,):
                smooth = [axis_filter(bases[k], width * self.stretch[k]) for k in ordered]
                levels.append([*smooth, *average])
        return levels


def _average(axis: int, length: int) -> Any:
    matrix = np.full((length, length), 1 / length, np.float32)
    return lambda array: along(matrix, array, axis)


@dataclass(frozen=True)
class SmoothCompletion:
    """Fill a smooth field from its surroundings, coarse to fine, with its own scale along every axis.

    Needs no fitting and never fails: far from all data it gives the mean.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.add.outer(np.linspace(0, 1, 12), np.linspace(0, 2, 15))
    >>> mask = np.random.default_rng(0).random(x.shape) < 0.7
    >>> filled = SmoothCompletion().prepare(x, mask, (), seed=0).fill(x, mask).estimate
    >>> bool(np.abs(filled - x)[~mask].mean() < 0.1)
    True
    """

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> PreparedSmooth:
        kinds = axis_kinds(axes, mask.shape)
        lengths = np.array([n for n, kind in zip(mask.shape, kinds) if kind != "unordered"], dtype=float)
        typical = float(np.exp(np.log(lengths).mean())) if lengths.size else 1.0
        stretch = tuple(n / typical if kind != "unordered" else 1.0 for n, kind in zip(mask.shape, kinds))
        choice = Choice(
            "pyramid scale per axis",
            ", ".join(f"{s:.2f}" for s in stretch),
            "length of the axis over the typical length",
        )
        return PreparedSmooth(kinds, stretch, (choice,))
