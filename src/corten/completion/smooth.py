"""The kernel pyramid: averages with wide kernels, then with narrower kernels of the residuals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from corten.completion.axes_kinds import Basis, axis_kinds, basis_of, standardise
from corten.completion.positions import Grid, grids_of, moved_grids
from corten.completion.protocol import Fill
from corten.completion.spectral_solver import rows_of
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine.arrays import Array, Arrays, HostArrays

Filter = Callable[[Array], Array]

KERNEL_WIDTHS = (40.0, 20.0, 10.0, 5.0, 3.0, 2.0, 1.5, 1.0, 0.7)  # standard deviations of the kernels, in steps
MIN_SUPPORT = 1e-4  # total kernel weight of observed entries below which a level adds little
MAX_KERNEL_STEPS = 64  # beyond it the response of the continuous Gaussian is used


def gaussian_symbol(width: float, frequencies: np.ndarray) -> np.ndarray:
    """The response of the sampled Gaussian filter of this width, one at frequency zero."""
    reach = max(1, int(np.ceil(5 * width)))
    distance = np.arange(1, reach + 1)
    kernel = np.exp(-0.5 * (distance / max(width, 1e-3)) ** 2)
    if reach > MAX_KERNEL_STEPS:
        return np.exp(-0.5 * (width * frequencies) ** 2)
    response = 1 + 2 * np.cos(np.outer(frequencies, distance)) @ kernel
    return response / (1 + 2 * kernel.sum())


@dataclass(frozen=True)
class AxisFilter:
    """A smoothing filter along one axis: a matrix, or a response in the basis of a long axis."""

    basis: Basis
    response: np.ndarray
    matrix: np.ndarray | None

    def __call__(self, array: Array) -> np.ndarray:
        array = np.asarray(array)
        shape = [1] * array.ndim
        shape[self.basis.axis] = -1
        response = self.response.astype(array.dtype).reshape(shape)
        return self.basis.inverse(self.basis.forward(array) * response)

    def dense(self) -> np.ndarray:
        """The filter as a matrix, also along a long axis."""
        if self.matrix is not None:
            return self.matrix
        rows = rows_of(self.basis, np.float64)
        return np.maximum((rows.T * self.response) @ rows, 0).astype(np.float32)


def axis_filter(basis: Basis, width: float) -> AxisFilter:
    """The Gaussian filter of this width (in steps) along one axis."""
    made = AxisFilter(basis, gaussian_symbol(width, basis.frequencies), None)
    if basis.rows is None:
        return made
    return replace(made, matrix=made.dense() if basis.positions is None else _gaussian_between(basis, width))


def _gaussian_between(basis: Basis, width: float) -> np.ndarray:
    """Gaussian weights between positions, reflected at the ends of an ordered axis, around a periodic one."""
    x, size = np.asarray(basis.positions), len(basis.frequencies)
    distance = np.abs(np.subtract.outer(x, x))
    if basis.kind == "periodic":
        images = [np.minimum(distance, size - distance)]
    else:
        mirrored = np.add.outer(x, x) + 1
        images = [distance, mirrored, 2 * size - mirrored]
    weights = sum(np.exp(-0.5 * (image / width) ** 2) for image in images)
    return np.asarray(weights / (np.sqrt(2 * np.pi) * width), dtype=np.float32)


@dataclass(frozen=True)
class PreparedSmooth:
    """The pyramid with its relative width along every axis, in steps of its grid."""

    kinds: tuple[str, ...]
    stretch: tuple[float, ...]
    choices: tuple[Choice, ...] = ()
    grids: tuple[Grid, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill from the widest to the narrowest kernel."""
        data = standardise(values, mask, self.kinds)
        known, kept = (one.astype(np.float32)[None] for one in (data.values, mask))
        return Fill(data.undo(np.asarray(pyramid(HostArrays(), self, known, kept)[0], np.float64)))

    def on_axes(self, axes: Sequence[Axis]) -> PreparedSmooth:
        """The same widths, in the unit of the coordinates, on other axes; in steps if it was made without axes."""
        if not self.grids:
            return self
        grids, ratios = moved_grids(self.grids, axes)
        return replace(self, stretch=tuple(s * r for s, r in zip(self.stretch, ratios)), grids=grids)

    def levels(self, arrays: Arrays, shape: tuple[int, ...]) -> Iterator[dict[int, Filter | Array]]:
        """The filters of each level by axis: first averaged over unordered axes, then separate for their positions.

        A filter is a matrix; on the host also a function, for long axes and for averages.
        """
        on_host = isinstance(arrays, HostArrays)
        grids = self.grids or grids_of(None, shape)
        unordered = [k for k, kind in enumerate(self.kinds) if kind == "unordered" and shape[k] > 1]
        ordered = [k for k, kind in enumerate(self.kinds) if kind != "unordered" and shape[k] > 1]
        bases = {}
        for k in ordered:
            kind, size, positions = self.kinds[k], grids[k].size, grids[k].positions
            bases[k] = basis_of(kind, k + 1, length=size, positions=positions, extended=on_host, on_host=on_host)

        def smooth(k: int, width: float) -> Filter | Array:
            made = axis_filter(bases[k], width * self.stretch[k])
            return made if on_host and made.matrix is None else arrays.put(made.dense())

        def average(k: int) -> Filter | Array:
            return _average(k + 1) if on_host else arrays.put(np.full((shape[k],) * 2, 1 / shape[k], np.float32))

        for pooled in product((True, False), repeat=min(len(unordered), 3)):
            if ordered or any(pooled):
                averages = {k: average(k) for k, pool in zip(unordered, pooled) if pool}
                for width in KERNEL_WIDTHS if ordered else (1.0,):
                    yield averages | {k: smooth(k, width) for k in ordered}


def _average(axis: int) -> Filter:
    """The mean over an axis, as a filter: the axis has length one then, and the filters of other axes cost less."""
    return lambda array: array.mean(axis=axis, keepdims=True)


def pyramid(arrays: Arrays, prepared: PreparedSmooth, known: Array, kept: Array) -> Array:
    """Averages with kernels from wide to narrow, for a batch of rounds of standardised values, on the host or a device.

    `known` is zero where `kept` is zero.
    """
    left, estimate = known + 0, arrays.xp.zeros_like(known)
    for filters in prepared.levels(arrays, kept.shape[1:]):
        level = arrays.compiled(_level, axes=tuple(filters))
        left, estimate = level(tuple(filters.values()), kept, left, estimate)
    return estimate


def _level(
    arrays: Arrays,
    filters: tuple[Filter | Array, ...],
    kept: Array,
    left: Array,
    estimate: Array,
    *,
    axes: tuple[int, ...],
) -> tuple[Array, Array]:
    """One level of the pyramid: what is left of the values, and the estimate."""

    def averaged(array: Array) -> Array:
        for k, one in zip(axes, filters):
            array = one(array) if callable(one) else arrays.along(one, array, k + 1)
        return array

    support = averaged(kept) + MIN_SUPPORT
    step = averaged(left) / support
    estimate += step
    left -= step * kept
    return left, estimate


@dataclass(frozen=True)
class SmoothCompletion:
    """Fill a smooth field by kernel averages, from wide to narrow, with a relative width for every axis.

    It has no parameters and fits nothing. Far from all observed entries the estimate is the mean.

    Examples
    --------
    >>> x = np.add.outer(np.linspace(0, 1, 12), np.linspace(0, 2, 15))
    >>> mask = np.random.default_rng(0).random(x.shape) < 0.7
    >>> filled = SmoothCompletion().prepare(x, mask, (), seed=0).fill(x, mask).estimate
    >>> bool(np.abs(filled - x)[~mask].mean() < 0.1)
    True
    """

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedSmooth:
        """Choose the relative width along every axis from its length."""
        kinds = axis_kinds(axes, mask.shape)
        lengths = np.array([n for n, kind in zip(mask.shape, kinds) if kind != "unordered"], dtype=float)
        typical = float(np.exp(np.log(lengths).mean())) if lengths.size else 1.0
        stretch = tuple(n / typical if kind != "unordered" else 1.0 for n, kind in zip(mask.shape, kinds))
        grids = grids_of(axes, mask.shape)
        stretch = tuple(s * grid.usual_step for s, grid in zip(stretch, grids))
        choice = Choice(
            "kernel width per axis",
            ", ".join(f"{s:.2f}" for s in stretch),
            "relative width of the smoothing kernels: length of the axis over the geometric mean of all lengths",
            code="scale_by_length",
            values={"scales": stretch},
        )
        return PreparedSmooth(kinds, stretch, (choice,), grids)
