"""Conditional means of Gaussian processes by conjugate gradients, for a batch of rounds, on the host or on a device.

With reflecting ends the prior covariance is diagonal in the cosine basis. The coefficients c of the mean satisfy
(noise / spectrum + B M B') c = B M y, with B the transform and M the mask. Conjugate gradients need two transforms an
iteration. The preconditioner is the sum of two: the inverse as if every entry were observed, and the exact inverse on
the modes with the largest variance. The first alone leaves smooth directions inside gaps, which need several hundred
iterations; those are the directions that the second solves.

The code is the same for NumPy and JAX (`corten.engine.arrays`). On the host the transforms are those of `Basis`, folded
or fast; on a device they are products with dense matrices, and ten iterations are one compiled program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import ceil, prod, sqrt
from operator import add
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Union, cast

import numpy as np
from numpy.typing import DTypeLike

from corten.completion.axes_kinds import MAX_PRODUCT_LENGTH, Basis
from corten.engine.arrays import Array, Arrays, HostArrays, Inverses
from corten.engine.threads import in_order

if TYPE_CHECKING:
    from corten.completion.gaussian_process import SpectralPrior

COARSE_MODES, FEWEST_MODES = 1500, 200
"""At most so many modes are solved exactly: a dense matrix of this size is inverted once in a fill."""
LARGE_VARIANCE = 1000
"""Modes with less variance than this, in variances of the noise, need no exact solution: they converge soon."""
COARSE_NUMBERS = 2e7
"""Numbers in the largest array of products of two modes along one axis."""
MAX_ENTRIES_ON_HOST, MAX_ROUNDS_ON_HOST = 100_000, 16
"""Entries of a tensor and rounds up to which the systems of these modes are set up on the host."""
MAX_POSITIONS = 1 << 14
"""Positions of an axis whose products of modes are held at once."""
BETWEEN_CHECKS = 10
"""Iterations between two checks whether the missing entries still change."""
SETTLED, SETTLED_IN_NOISE = (2e-3, 8e-3), 0.03
"""Iterations stop when ten of them move the missing entries by less than a share of the standard deviation of the
noise. The limits of that are in standard deviations of the data."""
MAX_JOINED_LENGTH = 64
"""Neighbouring short axes with at most so many positions together are transformed by one product on the host."""
RESIDUAL_TOLERANCE = 1e-10
"""A round has converged when its preconditioned residual falls below this share of the largest one."""

Box = tuple[tuple[int, tuple[int, ...] | None, tuple[int, ...], int], ...]


Transform = Union[Basis, "Joined", Array]


class System(NamedTuple):
    """The equations of a batch of rounds: (noise / spectrum + B M B') c = B M y.

    transforms: for each axis of the tensor its basis on the host, its rows on a device, None if the axis has length
    one; ratio: noise / spectrum; shrink: the inverse as if every entry were observed; kept: the weights M; modes: flat
    indices of the modes with the largest variance, and inverse that of the system restricted to them.
    """

    transforms: tuple[Transform | None, ...]
    ratio: Array
    shrink: Array
    kept: Array
    modes: Array
    inverse: Inverses

    def to_coefficients(self, arrays: Arrays, fields: Array) -> Array:
        """Coefficients of fields."""
        array = fields
        for k, one in enumerate(self.transforms):
            if isinstance(one, Basis | Joined):
                array = one.forward(arrays.get(array), overwrite=array is not fields)
            elif one is not None:
                array = arrays.along(one, array, k + 1)
        return array

    def to_field(self, arrays: Arrays, coefficients: Array) -> Array:
        """Fields with these coefficients."""
        array = coefficients
        for k, one in enumerate(self.transforms):
            if isinstance(one, Basis | Joined):
                array = one.inverse(arrays.get(array), overwrite=array is not coefficients)
            elif one is not None:
                array = arrays.along(one.swapaxes(-1, -2), array, k + 1)
        return array


class Joined(NamedTuple):
    """The basis of all axes from the number `axis` on, for arrays behind an axis of rounds."""

    axis: int
    rows: np.ndarray

    def forward(self, array: np.ndarray, overwrite: bool = False) -> np.ndarray:
        """The coefficients of an array in the basis."""
        return (array.reshape(-1, len(self.rows)) @ self.rows.T).reshape(array.shape)

    def inverse(self, array: np.ndarray, overwrite: bool = False) -> np.ndarray:
        """The array with these coefficients."""
        return (array.reshape(-1, len(self.rows)) @ self.rows).reshape(array.shape)


class Iterate(NamedTuple):
    """Conjugate gradients between two iterations; `going`: whether a round has not converged."""

    mean: Array
    residual: Array
    direction: Array
    before: Array
    first: Array
    going: Array


def condition(
    arrays: Arrays, priors: Sequence[SpectralPrior], *, values: Array, kept: Array, start: Array, iterations: int
) -> Array:
    """Means of the fields given `values` with weights `kept` (0 where missing), (rounds, ...).

    `priors` has one prior for each round or one for all; the last round may be there several times, with the same
    prior, to fill up a batch. Iterations begin with `start`. They stop when the missing entries of all rounds have
    settled.
    """
    with arrays.running():
        system = system_of(arrays, priors, kept)
        state = arrays.compiled(first_iterate)(system, values, start)
        field: Array | None = None
        noise = np.array([float(prior.noise) for prior in priors]).reshape(-1, *(1,) * (values.ndim - 1))
        limit = arrays.put(np.clip(SETTLED_IN_NOISE * np.sqrt(noise), *SETTLED))
        to_field, settled = arrays.compiled(_field), arrays.compiled(_settled)
        for done in range(0, iterations, BETWEEN_CHECKS):
            steps = min(BETWEEN_CHECKS, iterations - done)
            state = arrays.repeated(iterate, steps)(system, state)
            if done + steps == iterations or not bool(state.going.any()):
                break
            before, field = field, to_field(system, state)
            if before is not None and bool(settled(kept, before, field, limit)):
                return field
        return to_field(system, state)


def first_iterate(arrays: Arrays, system: System, values: Array, start: Array) -> Iterate:
    """The coefficients of a start, shrunk, and what they leave."""
    mean = system.to_coefficients(arrays, start) * system.shrink
    residual = system.to_coefficients(arrays, system.kept * (values - system.to_field(arrays, mean)))
    residual -= system.ratio * mean
    ones = arrays.xp.ones((len(values), *(1,) * (values.ndim - 1)), residual.dtype)
    nothing = arrays.xp.zeros_like(mean)
    return Iterate(mean, residual, direction=nothing, before=ones, first=0 * ones, going=ones > 0)


def iterate(arrays: Arrays, system: System, now: Iterate) -> Iterate:
    """One iteration of preconditioned conjugate gradients. A round that has converged keeps its mean."""
    xp = arrays.xp
    mean, residual, direction, before, first, _ = now
    part = residual.reshape(len(residual), -1)[:, system.modes]
    solved = arrays.times(system.inverse, part)
    on_modes = arrays.inner(part.astype(solved.dtype), solved).reshape(before.shape)
    size = (arrays.sum_of_squares(residual, system.shrink) + on_modes).astype(residual.dtype)
    first = xp.maximum(first, size)
    factor = xp.where(before > 0, size / xp.where(before > 0, before, 1), 0)
    direction = arrays.add_at(arrays.next_direction(direction, residual, system.shrink, factor), system.modes, solved)
    observed = system.to_field(arrays, direction)
    observed *= system.kept
    image, curvature = arrays.with_ratio(system.to_coefficients(arrays, observed), system.ratio, direction)
    # A curvature of zero: residuals too small to be squared; there is nothing left to fit.
    going = (size > RESIDUAL_TOLERANCE * first) & (curvature > 0)
    step = xp.where(going, size / xp.where(going, curvature, 1), 0)
    mean, residual = arrays.advanced(mean, residual, direction=direction, image=image, step=step)
    return Iterate(mean, residual, direction, before=size, first=first, going=going)


def _field(arrays: Arrays, system: System, state: Iterate) -> Array:
    return system.to_field(arrays, state.mean)


def _settled(arrays: Arrays, kept: Array, before: Array, after: Array, limit: Array) -> bool | Array:
    """Whether the missing entries of every round differ by less than `limit`, root mean square."""
    missing = kept == 0
    change = missing * (after - before)
    count = missing.sum(axis=tuple(range(1, kept.ndim)), keepdims=True)
    return arrays.xp.all(arrays.inner(change, change) <= limit**2 * count)


def system_of(arrays: Arrays, priors: Sequence[SpectralPrior], kept: Array, most: int | None = None) -> System:
    """The equations of rounds with these weights `kept`; at most so many modes are solved exactly."""
    first, shape = priors[0], kept.shape[1:]
    spectrum = np.stack([prior.spectrum for prior in priors])
    number = first.spectrum.dtype.type
    ratio = np.stack([prior.noise / prior.spectrum for prior in priors])
    # A grid that is finer than the entries has fewer than one entry for each of its points.
    shrink = 1 / (number(kept[0].size / first.spectrum.size) + ratio)
    on_host = isinstance(arrays, HostArrays)
    if most is None:
        # A device has arrays of the same shape, and the same programs, for all fields of this size.
        large = int((spectrum.max(axis=0) > LARGE_VARIANCE * first.noise).sum()) if on_host else COARSE_MODES
        most = max(min(kept[0].size, FEWEST_MODES), min(COARSE_MODES, kept[0].size // 20, large))
    chosen = box_of_modes(first.bases, spectrum.max(axis=0), most)
    every: list[np.ndarray] = [np.arange(1)] * len(shape)
    for basis, modes in zip(first.bases, chosen):
        every[basis.axis] = modes
    at = np.ravel_multi_index(np.ix_(*every), first.spectrum.shape).ravel()
    box = tuple(
        (
            basis.axis,
            None if basis.cosines is None else tuple(basis.cosines[modes].tolist()),
            tuple(modes.tolist()),
            len(basis.frequencies),
        )
        for basis, modes in zip(first.bases, chosen)
    )
    if on_host:
        given: dict[int, Transform] = {one.axis - 1: one for one in _joined(first.bases, len(shape))}
    else:
        given = {basis.axis: arrays.put(_rows_of_rounds(priors, number, i)) for i, basis in enumerate(first.bases)}
    # A few small systems are set up on the host: a program for each number of modes takes seconds to compile.
    few = len(kept) <= MAX_ROUNDS_ON_HOST and kept[0].size <= MAX_ENTRIES_ON_HOST
    making: Arrays = HostArrays() if on_host or few else arrays
    restrict = making.compiled(system_on_modes, box=box)
    weights = kept if on_host or making is arrays else arrays.get(kept)

    def restricted(b: int) -> Array:
        prior, own = (priors[b], ratio[b]) if len(priors) > 1 else (first, ratio[0])
        rows = tuple(
            making.put(rows_of(basis, number, modes).astype(np.float64))
            for basis, modes in zip(prior.bases, chosen)
            if basis.cosines is None
        )
        here = making.put(own.ravel()[at].astype(np.float64))
        return restrict(rows, here, weights[b])

    def inverse(b: int) -> Array:
        return arrays.inverse_of_positive(restricted(b))

    # The last round of a batch may be repeated to fill it up.
    count = len(kept)
    while len(priors) > 1 and count > 1 and priors[count - 1] is priors[count - 2]:
        count -= 1
    if on_host:
        inverses = list(in_order(inverse, range(count)))
    else:
        systems = in_order(restricted, range(count), 1 if making is arrays else None)
        inverses = [arrays.padded_inverse(system, most) for system in systems]
    inverses += inverses[-1:] * (len(kept) - count)
    if not on_host:
        # Every solve with this number of entries has arrays of the same shape, and the same programs.
        at = np.pad(at, (0, most - len(at)))
    transforms = tuple(given.get(k) for k in range(len(shape)))
    of_all = arrays.put(ratio), arrays.put(shrink)
    return System(transforms, *of_all, kept, arrays.put(at), arrays.together(inverses))


def _joined(bases: Sequence[Basis], axes: int) -> list[Basis | Joined]:
    """The bases behind an axis of rounds, those of the last axes as one if they are short."""
    moved = [replace(basis, axis=basis.axis + 1) for basis in bases]
    short: list[Basis] = []
    while moved and moved[-1].axis == axes - len(short) and moved[-1].rows is not None and moved[-1].folded is None:
        rows = moved[-1].rows
        size = len(rows) * prod(len(one.frequencies) for one in short)
        if rows.shape[0] != rows.shape[1] or size > MAX_JOINED_LENGTH:
            break
        short.insert(0, moved.pop())
    if len(short) < 2:
        return [*moved, *short]
    return [*moved, Joined(short[0].axis, reduce(np.kron, [cast(np.ndarray, one.rows) for one in short]))]


def _rows_of_rounds(priors: Sequence[SpectralPrior], dtype: DTypeLike, number: int) -> np.ndarray:
    """The functions of one basis of the priors: a matrix, or one for each round if they differ."""
    bases = [prior.bases[number] for prior in priors]
    if len(bases) > 1 and bases[0].kind == "unordered":
        return np.stack([rows_of(basis, dtype) for basis in bases])
    return rows_of(bases[0], dtype)


def rows_of(basis: Basis, dtype: DTypeLike, modes: np.ndarray | None = None) -> np.ndarray:
    """The functions of a basis, or some of them, as the rows of a matrix."""
    if basis.rows is not None:
        return basis.rows if modes is None else basis.rows[modes]
    length = len(basis.frequencies)
    modes = np.arange(length) if modes is None else modes
    unit = np.zeros((len(modes), length), dtype)
    unit[np.arange(len(modes)), modes] = 1
    return replace(basis, axis=1, folded=None).inverse(unit)


def box_of_modes(bases: Sequence[Basis], spectrum: np.ndarray, most: int) -> list[np.ndarray]:
    """Modes along each axis, added one by one where the variance is largest, at most `most` in the box."""
    profiles = [spectrum.max(axis=tuple(k for k in range(spectrum.ndim) if k != basis.axis)) for basis in bases]
    orders = [np.argsort(-profile, kind="stable") for profile in profiles]
    counts = [1] * len(bases)
    limits = [min(len(p), max(1, int(np.sqrt(COARSE_NUMBERS / len(p))))) for p in profiles]
    while True:
        size = int(np.prod(counts))
        free = [i for i, n in enumerate(counts) if n < limits[i] and size // n * (n + 1) <= most]
        if not free:
            return [np.sort(order[:n]) for order, n in zip(orders, counts)]
        counts[max(free, key=lambda i: profiles[i][orders[i][counts[i]]])] += 1


def system_on_modes(arrays: Arrays, rows: tuple[Array, ...], ratio: Array, kept: Array, *, box: Box) -> Array:
    """The matrix of one round restricted to a box of modes.

    box: for each axis its number, the numbers of its cosines (None for another basis, whose functions are the next of
    `rows`), its modes, and the length of its grid. Double precision: directions that live in gaps have eigenvalues far
    below the rounding of single precision.
    """
    xp, shape = arrays.xp, kept.shape
    given = dict(zip([axis for axis, cosines, _, _ in box if cosines is None], rows))
    products = kept.astype(np.float64)[None]
    # An axis with few modes for its length first: it makes the array smaller.
    for axis, cosines, modes, length in sorted(box, key=lambda one: len(one[2]) ** 2 / shape[one[0]]):
        if isinstance(arrays, HostArrays) and cosines is not None and shape[axis] > MAX_PRODUCT_LENGTH:
            products = _sums_along(arrays.get(products), axis + 1, 2 * max(cosines) + 1, length)
            continue
        parts = []
        for start in range(0, shape[axis], MAX_POSITIONS):  # of a long axis: matrices of all positions take much memory
            here = slice(start, min(start + MAX_POSITIONS, shape[axis]))
            if cosines is not None:
                matrix = xp.asarray(_sums_of_cosines(cosines, length, here))
            else:
                own = given[axis][:, here]
                matrix = (own[:, None, :] * own[None, :, :]).reshape(len(modes) ** 2, -1)
            parts.append(arrays.along(matrix, products[(slice(None),) * (axis + 1) + (here,)], axis + 1))
        products = reduce(add, parts)
    for axis, cosines, _, length in box:
        if cosines is not None:
            products = _products_of_cosines(xp, products, np.array(cosines), axis + 1, length)
    counts = [len(modes) for _, _, modes, _ in box]
    size = int(np.prod(counts))
    split = products.reshape([n for count in counts for n in (count, count)])
    order = [*range(0, split.ndim, 2), *range(1, split.ndim, 2)]
    system = split.transpose(order).reshape(size, size)
    return system + xp.diag(ratio)


def _sums_of_cosines(numbers: Sequence[int], length: int, here: slice) -> np.ndarray:
    """Cosines of all numbers up to twice the largest of `numbers` at some positions, without their norms."""
    return np.cos(np.pi / length * np.outer(np.arange(2 * max(numbers) + 1), np.arange(here.start, here.stop) + 0.5))


def _sums_along(array: np.ndarray, axis: int, count: int, length: int) -> np.ndarray:
    """Sums of an array times the first `count` cosines along a long axis, without their norms.

    The axis is cut into blocks: cosine and sine of a sum of angles need those of one block and of the starts only.
    """
    moved = np.moveaxis(array, axis, -1)
    side = ceil(sqrt(moved.shape[-1]))
    blocks = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, side**2 - moved.shape[-1])])
    blocks = blocks.reshape(*moved.shape[:-1], side, side)
    angles = np.pi / length * np.arange(count)
    inside, starts = np.outer(np.arange(side) + 0.5, angles), np.outer(np.arange(side) * side, angles)
    sums = (blocks @ np.cos(inside)) * np.cos(starts) - (blocks @ np.sin(inside)) * np.sin(starts)
    return np.moveaxis(sums.sum(axis=-2), -1, axis)


def _products_of_cosines(xp: ModuleType, sums: Array, numbers: np.ndarray, axis: int, length: int) -> Array:
    """Sums of products of all pairs of normed cosines, from sums of cosines: 2 cos a cos b = cos(a-b) + cos(a+b)."""
    norm = np.where(numbers == 0, np.sqrt(1 / length), np.sqrt(2 / length))
    difference, total = np.abs(np.subtract.outer(numbers, numbers)).ravel(), np.add.outer(numbers, numbers).ravel()
    share = (np.outer(norm, norm) / 2).reshape([-1 if k == axis else 1 for k in range(sums.ndim)])
    return share * (xp.take(sums, difference, axis=axis) + xp.take(sums, total, axis=axis))
