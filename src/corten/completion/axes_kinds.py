"""Operations along axes of each kind (ordered, periodic, unordered): move gaps, transform, standardise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import scipy.fft
from numpy.typing import DTypeLike
from scipy import ndimage

from corten.data.axes import Axis
from corten.engine.arrays import HostArrays

MAX_PRODUCT_LENGTH = 384  # up to this axis length a matrix product is as fast as a fast transform of any length
MAX_DENSE_LENGTH_ON_HOST = 144  # the same on the host of lengths with small prime factors, or near one of them
MAX_EXTENDED_SHARE = 0.01  # of a shorter axis may be empty positions at its end: more of them change the estimate
MAX_DENSE_GRID = 1000  # the same for positions between the points of a grid; with fast transforms they are rounded
MAX_COPIES = 16  # of the gaps, that hide entries together
MIN_FOLDED_LENGTH = 32  # below this axis length a matrix product is faster than two halves and their sums
MIN_STATIONS = 10  # positions of an unordered axis
MAX_PRIOR_ENTRIES = 5.0  # average entries added to each position of an unordered axis


def axis_kinds(axes: Sequence[Axis] | None, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The kind of each axis: "ordered", "periodic" or "unordered"; without axes all are ordered."""
    if not axes:
        return ("ordered",) * len(shape)
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} axes were given for {len(shape)} dimensions: give one for each")
    return tuple("unordered" if a.kind == "unordered" else "periodic" if a.periodic else "ordered" for a in axes)


def has_stations(kinds: Sequence[str], shape: Sequence[int]) -> bool:
    """Whether an unordered axis has many positions: stations or sensors, rather than a few years or variables.

    Examples
    --------
    >>> has_stations(("unordered", "ordered"), (36, 8759)), has_stations(("ordered", "unordered"), (100, 6))
    (True, False)
    """
    return any(kind == "unordered" and n >= MIN_STATIONS for kind, n in zip(kinds, shape))


def along(matrix: np.ndarray, array: np.ndarray, axis: int) -> np.ndarray:
    """The product of `matrix` and every fibre of `array` along `axis`."""
    return np.asarray(HostArrays().along(matrix, array, axis))


def move_gap(
    gap: np.ndarray,
    kinds: Sequence[str],
    *,
    rng: np.random.Generator,
    kept: Sequence[int] = (),
    extents: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    moves: np.ndarray | None = None,
) -> np.ndarray:
    """A randomly moved copy of the gap: reflected and shifted periodically along ordered axes, permuted along others.

    Periodic shifts keep the size of the gap. Along the axes `kept` the copy is reflected only, so that a gap at the
    edge of the data stays at an edge. Along the axes of `extents` it is shifted so far that these positions, first and
    last, stay inside: a gap between observed entries is not cut into parts at two edges, which are harder to fill.
    moves: for each axis two numbers between 0 and 1 that give reflection and shift; default: from `rng`.
    """
    index = []
    for k, (n, kind) in enumerate(zip(gap.shape, kinds)):
        if kind == "unordered":
            index.append(rng.permutation(n))
            continue
        steps = np.arange(n)
        reflected = (rng.random() if moves is None else moves[k, 0]) < 0.5
        steps = steps[::-1] if reflected else steps
        least, most = 0, n - 1
        if k in extents:
            first, last = extents[k]
            first, last = (n - 1 - last, n - 1 - first) if reflected else (first, last)
            least, most = -first, n - 1 - last
        if k not in kept:
            own = rng.integers(least, most + 1) if moves is None else least + int(moves[k, 1] * (most + 1 - least))
            steps = np.roll(steps, own)
        index.append(steps)
    return gap[np.ix_(*index)]


def pseudo_gap(mask: np.ndarray, kinds: Sequence[str], rng: np.random.Generator, most: float) -> np.ndarray:
    """Observed entries under a moved copy of the gaps, or under several copies at once, at most a share `most` of them.

    Settings are compared there. If one copy of many gaps were hidden, they would be settings for much sparser data.
    """
    hidden = mask
    for _ in range(MAX_COPIES):
        hidden = hidden & move_gap(~mask, kinds, rng=rng)
        if np.count_nonzero(hidden) <= most * np.count_nonzero(mask):
            break
    return hidden


def edges_of(gap: np.ndarray, kinds: Sequence[str]) -> tuple[int, ...]:
    """The ordered, not periodic axes at whose first or last position the largest connected gap lies."""
    extents = extents_of(gap, kinds)
    # A gap from edge to edge has no edge to keep.
    return tuple(k for k, (first, last) in extents.items() if (first == 0) != (last == gap.shape[k] - 1))


def extents_of(gap: np.ndarray, kinds: Sequence[str]) -> dict[int, tuple[int, int]]:
    """The first and the last position of the largest connected gap along the ordered, not periodic axes."""
    parts, count = ndimage.label(gap)
    if count == 0:
        return {}
    largest = parts == 1 + int(np.argmax(np.bincount(parts.ravel())[1:]))
    found = {}
    for k, kind in enumerate(kinds):
        if kind == "ordered" and gap.shape[k] > 1:
            at = np.flatnonzero(largest.any(axis=tuple(j for j in range(gap.ndim) if j != k)))
            found[k] = (int(at[0]), int(at[-1]))
    return found


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis along one axis in which stationary kernels are diagonal.

    Cosines for an ordered axis (kernels are reflected at the boundaries), the Hartley basis for a periodic one, and
    given eigenvectors for an unordered one. `frequencies` are in radians per step. `folded` are the left halves of the
    rows that are even and of those that are odd about the middle of the axis, in this order: products with them cost
    half as much as products with `rows`. `cosines` are the numbers of the cosines at equal steps, None for others.
    `positions` are those of the entries on a grid that has more points than there are entries; then `forward` is the
    transpose of `inverse`, which evaluates the functions of the basis there. `length` is the number of positions of an
    axis that is followed by empty ones, up to a length with small prime factors: its fast transforms are several times
    faster than those of a length with a large one.
    """

    axis: int
    kind: str
    frequencies: np.ndarray
    rows: np.ndarray | None
    folded: tuple[np.ndarray, np.ndarray] | None = None
    cosines: np.ndarray | None = None
    positions: np.ndarray | None = None
    length: int | None = None

    def forward(self, array: np.ndarray, overwrite: bool = False) -> np.ndarray:
        """The coefficients of an array in the basis; with `overwrite` they may take the memory of the array."""
        if self.folded is not None:
            return self._fold(array, *self.folded)
        if self.rows is not None:
            return along(self.rows, array, self.axis)
        if self.positions is not None:
            shape = (*array.shape[: self.axis], len(self.frequencies), *array.shape[self.axis + 1 :])
            starts = np.flatnonzero(np.diff(self.positions, prepend=-1))  # entries on the same point are added
            at: tuple[slice | None, ...] = (slice(None),) * self.axis
            spread = np.zeros(shape, array.dtype)
            spread[(*at, self.positions[starts])] = np.add.reduceat(array, starts, axis=self.axis)
            array, overwrite = spread, True
        if self.kind == "periodic":
            spectrum = scipy.fft.fft(array, axis=self.axis, norm="ortho")
            return np.ascontiguousarray(spectrum.real - spectrum.imag)
        return scipy.fft.dct(array, n=len(self.frequencies), axis=self.axis, norm="ortho", overwrite_x=overwrite)

    def inverse(self, array: np.ndarray, overwrite: bool = False) -> np.ndarray:
        """The array with these coefficients; with `overwrite` it may take their memory."""
        if self.folded is not None:
            return self._unfold(array, *self.folded)
        if self.rows is not None:
            return along(self.rows.T, array, self.axis)
        if self.positions is not None:
            return replace(self, positions=None).inverse(array, overwrite).take(self.positions, axis=self.axis)
        if self.kind == "periodic":
            return self.forward(array)
        field = scipy.fft.idct(array, axis=self.axis, norm="ortho", overwrite_x=overwrite)
        if self.length is None:
            return field
        return np.ascontiguousarray(field[(slice(None),) * self.axis + (slice(self.length),)])

    def _fold(self, array: np.ndarray, even: np.ndarray, odd: np.ndarray) -> np.ndarray:
        """Coefficients: even rows times the sum of both halves of the axis, odd rows times their difference."""
        half, rest = even.shape[1], odd.shape[1]
        out = np.empty(array.shape, np.result_type(array, even))
        if self.axis == array.ndim - 1:
            mirror = array[..., : -rest - 1 : -1]
            total = array[..., :half].copy()
            total[..., :rest] += mirror
            np.matmul(total, even.T, out=out[..., :half])
            np.matmul(array[..., :rest] - mirror, odd.T, out=out[..., half:])
            return out
        fibres, result = self._fibres(array), self._fibres(out)
        mirror = fibres[:, : -rest - 1 : -1]
        total = fibres[:, :half].copy()
        total[:, :rest] += mirror
        np.matmul(even, total, out=result[:, :half])
        np.matmul(odd, fibres[:, :rest] - mirror, out=result[:, half:])
        return out

    def _unfold(self, array: np.ndarray, even: np.ndarray, odd: np.ndarray) -> np.ndarray:
        """The inverse of `_fold`."""
        half, rest = even.shape[1], odd.shape[1]
        out = np.empty(array.shape, np.result_type(array, even))
        if self.axis == array.ndim - 1:
            total, difference = array[..., :half] @ even, array[..., half:] @ odd
            out[..., :half] = total
            out[..., :rest] += difference
            np.subtract(total[..., :rest], difference, out=out[..., : -rest - 1 : -1])
            return out
        fibres, result = self._fibres(array), self._fibres(out)
        total, difference = np.matmul(even.T, fibres[:, :half]), np.matmul(odd.T, fibres[:, half:])
        result[:, :half] = total
        result[:, :rest] += difference
        np.subtract(total[:, :rest], difference, out=result[:, : -rest - 1 : -1])
        return out

    def _fibres(self, array: np.ndarray) -> np.ndarray:
        """The array as (before, along the axis, after)."""
        before, after = np.prod(array.shape[: self.axis], dtype=int), np.prod(array.shape[self.axis + 1 :], dtype=int)
        return array.reshape(before, array.shape[self.axis], after)


def transformed_fast(length: int) -> bool:
    """Whether fast transforms are used along an ordered axis of this length on the host.

    Examples
    --------
    >>> [transformed_fast(length) for length in (120, 193, 200, 215, 400)]
    [False, False, True, True, True]
    """
    near = scipy.fft.next_fast_len(length, real=True) <= (1 + MAX_EXTENDED_SHARE) * length
    return length > (MAX_DENSE_LENGTH_ON_HOST if near else MAX_PRODUCT_LENGTH)


def basis_of(
    kind: str,
    axis: int,
    *,
    length: int,
    dtype: DTypeLike = np.float64,
    eigenvectors: np.ndarray | None = None,
    positions: np.ndarray | None = None,
    extended: bool = False,
    on_host: bool = False,
) -> Basis:
    """The basis of one axis; an unordered axis takes `eigenvectors` (columns).

    `length` is that of the grid. `positions` are those of the entries where they are not the points of the grid; along
    a long axis they are rounded to the grid. `extended`: a long ordered axis may be followed by empty positions. On the
    host a shorter axis has fast transforms too if its length is near one with small prime factors.
    """
    long = transformed_fast(length) if on_host else length > MAX_PRODUCT_LENGTH
    if extended and kind == "ordered" and positions is None and long:
        points = np.arange(scipy.fft.next_fast_len(length, real=True))
        return Basis(axis, kind, np.pi * points / len(points), None, cosines=points, length=length)
    steps = np.arange(length)
    rows: np.ndarray | None
    if kind == "unordered":
        rows = np.eye(length) if eigenvectors is None else eigenvectors.T
        return Basis(axis, kind, np.zeros(length), np.ascontiguousarray(rows, dtype=dtype))
    if kind == "periodic":
        frequencies = 2 * np.pi * np.minimum(steps, length - steps) / length
    else:
        frequencies = np.pi * steps / length
    if positions is not None and max(length, len(positions)) > MAX_DENSE_GRID:
        rounded = np.minimum(np.rint(positions), length - 1).astype(np.intp)
        return Basis(axis, kind, frequencies, None, positions=rounded)
    rows = None
    if positions is not None:
        rows = np.ascontiguousarray(_rows_at(kind, length, positions), dtype=dtype)
    elif length <= MAX_PRODUCT_LENGTH:
        basis = Basis(axis=0, kind=kind, frequencies=frequencies, rows=None)
        rows = np.ascontiguousarray(basis.forward(np.eye(length)), dtype=dtype)
    if positions is not None:
        return Basis(axis, kind, frequencies, rows, positions=positions)
    if rows is None or kind != "ordered" or length < MIN_FOLDED_LENGTH:
        return Basis(axis, kind, frequencies, rows, cosines=steps if kind == "ordered" else None)
    parity = np.r_[0:length:2, 1:length:2]  # cosines of even number are even about the middle of the axis
    rows, half = rows[parity], (length + 1) // 2
    folded = np.ascontiguousarray(rows[:half, :half]), np.ascontiguousarray(rows[half:, : length - half])
    return Basis(axis, kind, frequencies[parity], rows, folded=folded, cosines=parity)


def _rows_at(kind: str, length: int, positions: np.ndarray) -> np.ndarray:
    """The functions of the basis of a grid at any positions, (functions, positions)."""
    steps = np.arange(length)
    if kind == "periodic":
        signed = np.where(2 * steps > length, steps - length, steps)  # of two equal ones on the grid the slow function
        angle = 2 * np.pi * np.outer(signed, positions) / length
        return (np.cos(angle) + np.sin(angle)) / np.sqrt(length)
    scale = np.where(steps == 0, 1.0, np.sqrt(2.0)) / np.sqrt(length)
    return np.asarray(scale[:, None] * np.cos(np.pi * np.outer(steps, positions + 0.5) / length))


@dataclass(frozen=True)
class Standardised:
    """Standardised observed values (zero elsewhere), with their centre and scale."""

    values: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    def undo(self, array: np.ndarray) -> np.ndarray:
        """The array in the variable of the data."""
        return array * self.scale + self.centre


def standardise(values: np.ndarray, mask: np.ndarray, kinds: Sequence[str]) -> Standardised:
    """The observed values with mean 0 and standard deviation 1, for each position of the unordered axes.

    Means and standard deviations of a position are shrunk towards those of all (as if up to five average entries had
    been observed in addition), so that a position with few observed entries, or none, has those of the others.
    """
    count = float(mask.sum())
    y = np.where(mask, values, 0.0).astype(np.float64)
    ones = (1,) * mask.ndim
    mean = y.sum() / max(count, 1.0)
    y -= mean * mask
    spread = float(np.sqrt((y**2).sum() / max(count, 1.0)))
    spread = spread if spread > 1e-14 * max(abs(mean), 1e-300) else 1.0
    y /= spread
    centre, scale = np.full(ones, mean), np.full(ones, spread)
    for k, kind in enumerate(kinds):
        if kind != "unordered" or mask.shape[k] == 1:
            continue
        rest = tuple(j for j in range(mask.ndim) if j != k)
        observed = mask.sum(axis=rest, keepdims=True)
        own = y.sum(axis=rest, keepdims=True) / np.maximum(observed, 1)
        y -= own * mask
        # Standard deviations are shrunk on the log scale: positions may differ by orders of magnitude (pollutants).
        each = (y**2).sum(axis=rest, keepdims=True) / np.maximum(observed - 1, 1)
        log_spread = 0.5 * np.log(np.maximum(each, 1e-12))
        usual = float((log_spread * (observed > 1)).sum() / max((observed > 1).sum(), 1))
        width = np.exp((log_spread * observed + usual * MAX_PRIOR_ENTRIES) / (observed + MAX_PRIOR_ENTRIES))
        between = float((own**2 * (observed > 0)).sum() / max((observed > 0).sum(), 1))
        shift = own * observed / (observed + np.minimum(width**2 / max(between, 1e-12), MAX_PRIOR_ENTRIES))
        y += (own - shift) * mask
        y /= width
        centre = centre + scale * shift
        scale = scale * width
    # Rounded to single precision: the same data in another unit differ in the last bits of double precision, and the
    # fit of a covariance would amplify the difference. All members compute in single precision.
    return Standardised(y.astype(np.float32).astype(np.float64), centre, scale)
