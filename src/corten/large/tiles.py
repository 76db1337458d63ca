"""Tiles: boxes that cover a tensor larger than memory, each read with a margin, and a coarse field of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
from scipy import ndimage

from corten.data.axes import Axis

Box = tuple[slice, ...]

MAX_COARSE_ENTRIES = 250_000
MIN_CELL_ENTRIES = 8  # entries in a coarse cell, at least: two steps along each of three axes
MARGIN = 12  # steps read around a tile along each axis that is cut


@dataclass(frozen=True)
class Tile:
    """A box of the tensor (`core`), and the larger box that it is filled from (`padded`)."""

    core: Box
    padded: Box

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the padded box."""
        return tuple(part.stop - part.start for part in self.padded)

    @property
    def inner(self) -> Box:
        """The core within the padded box."""
        return tuple(slice(c.start - p.start, c.stop - p.start) for c, p in zip(self.core, self.padded))

    def common(self, other: Tile) -> tuple[Box, Box]:
        """The entries that two padded boxes share, as boxes within each of them; empty boxes if there are none."""
        ends = [(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(self.padded, other.padded)]
        one, two = (
            tuple(slice(low - p.start, max(low, high) - p.start) for (low, high), p in zip(ends, tile.padded))
            for tile in (self, other)
        )
        return one, two

    def entries(self, which: np.ndarray) -> np.ndarray:
        """Flat indices in the padded box of the entries of the core where `which`, an array of the padded box."""
        inside = np.zeros(self.shape, bool)
        inside[self.inner] = which[self.inner]
        return np.flatnonzero(inside)

    def of_tensor(self, entries: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Flat indices in the tensor of flat indices in the padded box."""
        places = np.unravel_index(entries, self.shape)
        return np.ravel_multi_index([at + part.start for at, part in zip(places, self.padded)], shape)


def tile_sides(axes: Sequence[Axis], entries: int) -> tuple[int, ...]:
    """Lengths of a tile of about `entries` entries: the longest sides are cut first, unordered axes are not cut.

    A periodic axis is not cut: its ends would not meet.

    Examples
    --------
    >>> tile_sides([Axis("y", 1000), Axis("x", 1000), Axis("day", 100)], 1_000_000)
    (100, 100, 100)
    """
    sides = [axis.length for axis in axes]
    free = [k for k, axis in enumerate(axes) if axis.kind != "unordered" and not axis.periodic]
    while prod(sides) > entries and any(sides[k] > 1 for k in free):
        k = max(free, key=lambda k: sides[k])
        others = [sides[j] for j in free if j != k]
        fits = max(1, entries * sides[k] // prod(sides))
        sides[k] = max(fits, min(sides[k] - 1, max(others, default=1)))
    # Equal tiles: the last one of an axis is not a thin rest.
    return tuple(-(-axis.length // -(-axis.length // side)) for axis, side in zip(axes, sides))


def tiles_of(axes: Sequence[Axis], sides: Sequence[int], margin: int = MARGIN) -> list[Tile]:
    """All tiles with these sides, in the order of the tensor."""
    parts = []
    for axis, side in zip(axes, sides):
        along_axis = []
        for start in range(0, axis.length, side):
            stop = min(start + side, axis.length)
            around = margin if side < axis.length else 0
            along_axis.append((slice(start, stop), slice(max(0, start - around), min(axis.length, stop + around))))
        parts.append(along_axis)
    return [Tile(tuple(core for core, _ in box), tuple(padded for _, padded in box)) for box in product(*parts)]


def coarse_factors(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Steps of each axis in one coarse step, so that the coarse field fits in memory.

    Examples
    --------
    >>> coarse_factors([Axis("y", 1000), Axis("x", 1000), Axis("day", 100)])
    (8, 8, 7)
    """
    factors = [1] * len(axes)
    free = [k for k, axis in enumerate(axes) if axis.kind != "unordered"]
    lengths = [axis.length for axis in axes]
    entries = min(MAX_COARSE_ENTRIES, max(1, prod(lengths) // MIN_CELL_ENTRIES))
    while prod(-(-n // f) for n, f in zip(lengths, factors)) > entries:
        able = [k for k in free if lengths[k] > factors[k]]
        if not able:
            break
        k = min(able, key=lambda k: (factors[k], -lengths[k]))
        factors[k] += 1
    return tuple(factors)


def cell_sums(
    start: Sequence[int], values: np.ndarray, used: np.ndarray, factors: Sequence[int]
) -> tuple[Box, np.ndarray, np.ndarray]:
    """The coarse cells that a box at `start` touches, and the sums and numbers of its values in them where `used`."""
    total, count = np.where(used, values, 0.0).astype(np.float64), used.astype(np.float64)
    box = []
    for k, (first, factor) in enumerate(zip(start, factors)):
        cells = np.arange(first, first + values.shape[k]) // factor
        edges = np.flatnonzero(np.diff(cells, prepend=-1))
        total, count = (np.add.reduceat(a, edges, axis=k) for a in (total, count))
        box.append(slice(int(cells[0]), int(cells[-1]) + 1))
    return tuple(box), total, count


@dataclass
class Coarse:
    """Sums and counts of the observed values in coarse cells; the coarse field is their means."""

    shape: tuple[int, ...]
    factors: tuple[int, ...]
    total: np.ndarray
    count: np.ndarray

    @staticmethod
    def of(axes: Sequence[Axis]) -> Coarse:
        """An empty coarse field."""
        shape, factors = tuple(axis.length for axis in axes), coarse_factors(axes)
        small = tuple(-(-n // f) for n, f in zip(shape, factors))
        return Coarse(shape, factors, np.zeros(small), np.zeros(small))

    def add(self, start: Sequence[int], values: np.ndarray, used: np.ndarray, sign: float = 1.0) -> None:
        """Add the values of a box that begins at `start` where `used`; with sign -1 take them away."""
        self.add_sums(*cell_sums(start, values, used, self.factors), sign)

    def add_sums(self, box: Box, total: np.ndarray, count: np.ndarray, sign: float = 1.0) -> None:
        """Add what `cell_sums` found."""
        self.total[box] += sign * total
        self.count[box] += sign * count

    def without(self, parts: Iterable[tuple[Sequence[int], np.ndarray, np.ndarray]]) -> Coarse:
        """The coarse field without some entries, each part as `add` takes it."""
        other = Coarse(self.shape, self.factors, self.total.copy(), self.count.copy())
        for start, values, used in parts:
            other.add(start, values, used, sign=-1.0)
        return other

    @property
    def mask(self) -> np.ndarray:
        """Which cells have observed entries."""
        return self.count > 0.5

    @property
    def values(self) -> np.ndarray:
        """The means of the cells, NaN where nothing is observed."""
        return np.divide(self.total, self.count, out=np.full(self.total.shape, np.nan), where=self.mask)

    def axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """The axes of the coarse field; coordinates are those in the middle of the cells."""
        found = []
        for axis, factor, n in zip(axes, self.factors, self.total.shape):
            middle = np.minimum(np.arange(n) * factor + factor // 2, axis.length - 1)
            coordinates = None if axis.coordinates is None else axis.coordinates[middle]
            found.append(replace(axis, length=n, coordinates=coordinates))
        return tuple(found)

    def far_field(self, estimate: np.ndarray) -> FarField:
        """A coarse estimate, to be used in cells deep inside gaps: nothing is observed within `MARGIN` steps."""
        # Along an unordered axis the factor is one, and cells beside each other are nothing alike.
        near = [2 * -(-MARGIN // factor) + 1 if factor > 1 else 1 for factor in self.factors]
        deep = ~ndimage.maximum_filter(self.mask, size=near, mode="constant")
        return FarField(self.shape, self.factors, deep, estimate.astype(np.float32))


@dataclass(frozen=True)
class FarField:
    """A coarse estimate of the whole tensor, used where nothing near says more."""

    shape: tuple[int, ...]
    factors: tuple[int, ...]
    deep: np.ndarray
    estimate: np.ndarray

    def anchors(self, box: Box) -> tuple[np.ndarray, np.ndarray]:
        """Values of the coarse estimate in a box, and where they stand: in the middle of deep cells."""
        values = np.zeros([part.stop - part.start for part in box], np.float32)
        placed = np.zeros(values.shape, bool)
        middles, cells = [], []
        for part, factor, n, length in zip(box, self.factors, self.deep.shape, self.shape):
            middle = np.minimum(np.arange(n) * factor + factor // 2, length - 1)
            inside = np.flatnonzero((middle >= part.start) & (middle < part.stop))
            cells.append(inside)
            middles.append(middle[inside] - part.start)
        values[np.ix_(*middles)] = self.estimate[np.ix_(*cells)]
        placed[np.ix_(*middles)] = self.deep[np.ix_(*cells)]
        return values, placed
