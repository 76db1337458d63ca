"""How a tensor is cut into boxes, and which rows are neighbours inside a box.

A tensor is treated as (planes, rows, n): mode 1, the modes between flattened, and the last mode. The cut depends on the
shape and the neighbourhood only, not on the number of threads, so sums are added in the same order on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

SLAB_PLANES = 40  # halo planes are evaluated twice: fewer than this costs more than it spreads (measured)
RING_BYTES = 3_000_000  # rings beyond this leave a core's share of the caches; below it halos cost more (measured)
RINGS_PER_BOX = 5


@dataclass(frozen=True)
class Box:
    """Planes [start, stop) times a range of rows, with the halo they need."""

    start: int
    stop: int
    spin_start: int
    plane_index: np.ndarray
    plane_level: np.ndarray
    rows: np.ndarray
    row_level: np.ndarray
    table: np.ndarray

    @property
    def planes(self) -> np.ndarray:
        """Global indices of the planes that exist, halo included, in the order of the kernel."""
        return self.plane_index[self.plane_index >= 0]


@dataclass(frozen=True)
class Layout:
    """The boxes of a shape under a neighbourhood of offsets, with periodic axes marked."""

    shape: tuple[int, ...]
    offsets: np.ndarray  # (even number, 2): shift along mode 1 and along the last mode
    reach: int
    periodic_last: bool
    boxes: tuple[Box, ...]
    radius: int
    periodic_first: bool

    @property
    def flat_shape(self) -> tuple[int, int, int]:
        return flat_shape(self.shape)

    def between(self, start: int, stop: int) -> list[Box]:
        """Boxes that own planes [start, stop), with the rows of the boxes of the first slab."""
        index, level = _halo(start, stop, self.shape[0], self.radius, self.periodic_first)
        index, level = index[level < 2], level[level < 2]  # neighbours of neighbours matter to a gradient only
        spin_start = int(np.argmax(index >= 0))
        first = [box for box in self.boxes if box.start == self.boxes[0].start]
        return [Box(start, stop, spin_start, index, level, b.rows, b.row_level, b.table) for b in first]

    @staticmethod
    def of(
        shape: Sequence[int],
        offsets: np.ndarray,
        periodic: Sequence[bool],
        slab: int | None = None,
        tile: int | None = None,
    ) -> Layout:
        """Cut `shape` into boxes; `slab` planes and `tile` mode-2 indices a box, by default what fits the caches."""
        shape = tuple(int(d) for d in shape)
        offsets = np.asarray(offsets, dtype=np.int64).reshape(-1, len(shape))
        planes = shape[0]
        radius = int(np.abs(offsets[:, 0]).max(initial=0))
        if slab is None:
            slab = slab_planes(planes)
        if tile is None:
            tile = _tile_for(shape, offsets, radius)
            if slab == planes and tile == shape[1] and tile >= 16:
                tile = -(-tile // 2)  # one slab: two boxes, or a second thread would have nothing to do
        middle = shape[1:-1]
        boxes = []
        for start in range(0, planes, slab):
            stop = min(start + slab, planes)
            index, level = _halo(start, stop, planes, radius, bool(periodic[0]))
            spin_start = int(np.argmax(index >= 0))
            for first in range(0, middle[0] if middle else 1, tile if middle else 1):
                last = min(first + tile, middle[0]) if middle else 1
                local, row_level, table = _rows(middle, first, last, offsets[:, 1:-1], periodic[1:-1])
                boxes.append(Box(start, stop, spin_start, index, level, local, row_level, table))
        pairs = offsets[:, [0, -1]]
        if len(pairs) % 2:  # neighbours are summed in pairs; an odd one out is paired with the row of zeros
            pairs = np.vstack([pairs, np.zeros((1, 2), np.int64)])
            nothing = [np.full((1, len(box.rows)), len(box.rows)) for box in boxes]
            boxes = [replace(box, table=np.vstack([box.table, row])) for box, row in zip(boxes, nothing)]
        reach, ends = int(np.abs(offsets[:, -1]).max(initial=0)), (bool(periodic[0]), bool(periodic[-1]))
        return Layout(shape, np.ascontiguousarray(pairs), reach, ends[1], tuple(boxes), radius, ends[0])


def slab_planes(planes: int) -> int:
    """Planes of a slab: about forty, and an even number of slabs where there are several."""
    slabs = max(1, planes // SLAB_PLANES)
    return -(-planes // (slabs + slabs % 2 if slabs > 1 else 1))


def flat_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(planes, rows, n) of a shape of two or more modes."""
    return int(shape[0]), int(prod(shape[1:-1])), int(shape[-1])


def _tile_for(shape: tuple[int, ...], offsets: np.ndarray, radius: int) -> int:
    """Mode-2 indices a box may hold so that its rings stay in cache; halos make very thin tiles wasteful."""
    if len(shape) == 2:
        return 1
    inner = prod(shape[2:])
    halo = 4 * int(np.abs(offsets[:, 1]).max(initial=0))
    fits = RING_BYTES // (4 * inner * RINGS_PER_BOX * (2 * radius + 1)) - halo
    fits = max(fits, 2 * halo, 8)
    return shape[1] if fits >= shape[1] else -(-shape[1] // -(-shape[1] // fits))


def _halo(start: int, stop: int, length: int, radius: int, periodic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Positions start - 2R .. stop + 2R of an axis (-1 where there is none) and how much of each is needed."""
    positions = np.arange(start - 2 * radius, stop + 2 * radius)
    distance = np.maximum(np.maximum(start - positions, positions - (stop - 1)), 0)
    level = np.where(distance == 0, 0, np.where(distance <= radius, 1, 2)).astype(np.int8)
    inside = (positions >= 0) & (positions < length)
    index = positions % length if periodic else np.where(inside, positions, -1)
    return index.astype(np.int64), level


def _rows(
    middle: tuple[int, ...], first: int, last: int, shifts: np.ndarray, periodic: Sequence[bool]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local rows of a tile, their levels, and the local row of each neighbour (one past the last if there is none)."""
    if not middle:
        return np.zeros(1, np.int64), np.zeros(1, np.int8), np.zeros((len(shifts), 1), np.int64)
    whole = first == 0 and last == middle[0]
    radius = 0 if whole else int(np.abs(shifts[:, 0]).max(initial=0))
    index, level = _halo(first, last, middle[0], radius, bool(periodic[0]))
    local_shape = (len(index), *middle[1:])
    count = prod(local_shape)
    where = np.indices(local_shape).reshape(len(middle), count)
    flat = np.ravel_multi_index((np.maximum(index[where[0]], 0), *where[1:]), middle)
    rows = np.where(index[where[0]] < 0, -1, flat)
    closes = [bool(periodic[0]) and whole, *periodic[1:]]  # a tile that is not the whole axis has its halo instead
    table = neighbours_of(np.arange(count), shifts, local_shape, closes).T
    return rows.astype(np.int64), level[where[0]], np.ascontiguousarray(np.where(table < 0, count, table), np.int64)


def neighbours_of(flat: np.ndarray, offsets: np.ndarray, shape: Sequence[int], periodic: Sequence[bool]) -> np.ndarray:
    """Flat indices that offsets lead to from flat indices, (entries, offsets), -1 where there is none."""
    index = np.stack(np.unravel_index(flat, tuple(shape)), axis=-1)
    target = index[:, None, :] + offsets[None, :, :]
    inside = np.ones(target.shape[:2], dtype=bool)
    result = np.zeros(target.shape[:2], dtype=np.intp)
    for axis, length in enumerate(shape):
        position = target[..., axis]
        if periodic[axis]:
            position = position % length
        else:
            inside &= (position >= 0) & (position < length)
        result = result * length + position
    result[~inside] = -1
    return result
