"""Memory and disk of an out-of-core completion, predicted before it starts, and the blocks that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from corten.data.axes import Axis
from corten.engine.layout import slab_planes
from corten.engine.memory import in_words
from corten.io.lazy import LazyTensor
from corten.large.tiles import Tile, tile_sides, tiles_of
from corten.results.summary import duration

BASE = 330_000_000  # bytes of interpreter, libraries and compiled kernels, measured
PIECE_ENTRIES = 1 << 21  # larger blocks are not faster
PER_ENTRY, PER_HALO_ENTRY = 85, 25  # bytes of a block while its intervals are computed, measured
PASS_BYTES = 40_000_000  # bytes of the buffers of a pass, per thread
SCRATCH_BYTES = 7  # per entry on disk during the fit: value, mask, training mask, expected spins
KEPT_BYTES = 6  # of these, while intervals are written
MAX_TILE_ENTRIES, MIN_TILE_ENTRIES = 1_500_000, 20_000  # of the core of a tile
COARSE_BYTES = 100_000_000  # completion of the coarse field
TILE_BYTES, BYTES_PER_TILE_ENTRY = 70_000_000, 130  # of a thread, and per entry of its tile with the margin, measured
TILED_SCRATCH_BYTES = 6  # per entry on disk beside a copy of the values: masks, and numbers of the other way
SECONDS_OF_TILES = 20.0  # CPU time: settings of the coarse field, likelihoods of the tiles, learned scale
SECONDS_PER_TILE_ENTRY, SECONDS_PER_MISSING = 4.0e-6, 6.9e-6  # CPU time, measured (`python -m benchmarks tiles`)
FILLS_OF_SETTINGS = 28  # of a tile: settings chosen in four tiles, each then filled with all four
TILE_ROUNDS = 24  # tiles in which entries are hidden, at least; of small tiles more, but no tile more often than this
CALIBRATION_ENTRIES = 12_000_000  # entries of tiles that are filled for calibration, if 24 tiles have fewer
PART_ENTRY, PART_ENTRIES = 90, 20_000_000  # the part that settings are chosen from


@dataclass(frozen=True)
class TileNeeds:
    """Entries of the core of a tile, peak bytes of memory and disk, and seconds of one core, all predicted."""

    entries: int
    memory: int
    disk: int
    seconds: float

    @staticmethod
    def of(
        axes: Sequence[Axis], memory: int, *, threads: int, missing: int = 0, item: int = 4, arrays: int = 0
    ) -> TileNeeds:
        """The largest tiles, so that `threads` of them fit in `memory` bytes; a MemoryError if none does.

        item: bytes of a value; arrays: of values in the output.
        """
        size = prod(axis.length for axis in axes)
        entries = min(MAX_TILE_ENTRIES, size)
        while True:
            tiles = tiles_of(axes, tile_sides(axes, entries))
            largest = max(prod(tile.shape) for tile in tiles)
            needed = BASE + COARSE_BYTES + threads * (TILE_BYTES + BYTES_PER_TILE_ENTRY * largest)
            if needed <= memory:
                break
            entries = entries * 4 // 5
            if entries < MIN_TILE_ENTRIES:
                raise MemoryError(
                    f"the limit of memory is {in_words(memory)}, and {threads} tile(s) of {entries:,} entries at once "
                    f"take {in_words(needed)}: allow more memory, or use fewer threads"
                )
        disk = size * (TILED_SCRATCH_BYTES + item + arrays * item + 1)
        rounds = number_of_rounds(tiles, len(tiles))
        filled = sum(prod(tile.shape) for tile in tiles) * (1 + (rounds + FILLS_OF_SETTINGS) / len(tiles))
        seconds = SECONDS_OF_TILES + SECONDS_PER_TILE_ENTRY * filled + SECONDS_PER_MISSING * missing
        return TileNeeds(entries, needed, disk, seconds)

    def in_words(self) -> str:
        """The needs in words."""
        return (
            f"tiles of about {self.entries:,} entries: about {in_words(self.memory)} of memory, up to "
            f"{in_words(self.disk)} of disk and {duration(self.seconds)} of CPU time"
        )


def number_of_rounds(tiles: Sequence[Tile], useful: int) -> int:
    """Tiles to hide entries in: small tiles have few gaps, so more of them are needed for as many distinct gaps.

    Examples
    --------
    >>> side = slice(0, 50)
    >>> number_of_rounds([Tile((side, side, side), (side, side, side))] * 200, useful=150)
    96
    """
    size = prod(part.stop - part.start for part in tiles[0].core)
    return min(TILE_ROUNDS * useful, max(TILE_ROUNDS, CALIBRATION_ENTRIES // size))


@dataclass(frozen=True)
class Needs:
    """Planes that each of `workers` threads works on (`planes`) and that are read at once (`block`); the peak of
    memory and disk in bytes; settings are chosen on `part` planes.
    """

    planes: int
    block: int
    workers: int
    memory: int
    disk: int
    part: int

    @staticmethod
    def of(lazy: LazyTensor, memory: int, *, arrays: int, threads: int, radius: int = 1) -> Needs:
        """The most threads, then the largest blocks, within `memory` bytes; a MemoryError if one plane does not fit."""
        item = lazy.dtype.itemsize
        sizes = _aligned(min(max(1, PIECE_ENTRIES // lazy.plane), lazy.shape[0]), lazy)
        planes, block = sizes[-1]
        shortest = _peak(lazy, planes, block=block, threads=threads, workers=1, radius=radius)
        for workers, (planes, block) in product(range(threads, 0, -1) if shortest <= memory else (), sizes):
            needed = _peak(lazy, planes, block=block, threads=threads, workers=workers, radius=radius)
            if needed <= memory:
                out = lazy.size * (arrays * item + 1)
                disk = max(SCRATCH_BYTES * lazy.size, KEPT_BYTES * lazy.size + out)
                part = int(min(PART_ENTRIES, (needed - BASE) / PART_ENTRY)) // lazy.plane
                return Needs(
                    planes, block, workers=workers, memory=needed, disk=disk, part=min(lazy.shape[0], max(2, part))
                )
        least = _peak(lazy, 1, block=1, threads=threads, workers=1, radius=radius)
        if lazy.chunk > 1 and least <= memory:
            raise MemoryError(
                f"the chunks of {lazy.source} hold {lazy.chunk} planes of the first axis, {lazy.axes[0].name!r}, and "
                f"{lazy.chunk} planes are {in_words(lazy.chunk * lazy.plane * item)}: reading plane by plane would "
                f"read everything each time. Rechunk it with few planes a chunk, put the axis with the shortest chunks "
                f"first, or allow {in_words(shortest)} of memory"
            )
        raise MemoryError(
            f"one plane of {lazy.source} holds {lazy.plane:,} entries and takes about {in_words(least)}; the limit is "
            f"{in_words(memory)}: allow more memory, use fewer threads, or put the longest axis first"
        )

    def with_mask_at_once(self, lazy: LazyTensor, limit: int, engine: str) -> Needs:
        """The same for an engine that takes the whole mask, one byte per entry; JAX on the CPU is refused."""
        if engine.startswith("jax (cpu"):
            raise ValueError(
                f"engine is {engine}, which works in this machine's memory: out of core take engine='threads' or 'gpu'"
            )
        together = self.memory + lazy.size
        if together > limit:
            raise MemoryError(
                f"engine is {engine}, which takes the whole mask of {lazy.source} at once: {in_words(together)} in "
                f"all, and the limit is {in_words(limit)}: take engine='threads', which reads it from disk, or allow "
                "more memory"
            )
        return replace(self, memory=together)

    def in_words(self) -> str:
        return (
            f"{self.planes} plane(s) at a time: about {in_words(self.memory)} of memory, and up to "
            f"{in_words(self.disk)} of disk while it runs"
        )


def _aligned(most: int, lazy: LazyTensor) -> list[tuple[int, int]]:
    """Planes to work on and to read at a time, largest first, so that every chunk of the store is read once."""
    chunk = min(lazy.chunk, lazy.shape[0])
    whole = [(k * chunk, k * chunk) for k in range(most // chunk, 0, -1)]
    return whole + [(d, chunk) for d in range(min(most, chunk - 1), 0, -1) if chunk % d == 0]


def _peak(lazy: LazyTensor, planes: int, *, block: int, threads: int, workers: int, radius: int) -> int:
    """Peak bytes of the larger of two steps: a pass over the mask, and computing intervals."""
    item, plane = lazy.dtype.itemsize, lazy.plane
    halo = (planes + 2 * radius) / planes if planes < lazy.shape[0] else 1.0
    ahead = -(-(2 * workers + 1) * planes // block) + 1  # blocks that threads still read while others are fetched
    work = workers * planes * plane * (PER_ENTRY + PER_HALO_ENTRY * halo) + (ahead + 1) * block * plane * item
    mapped = 3 * min(slab_planes(lazy.shape[0]) + 4 * radius, lazy.shape[0]) * plane * 2  # spins and expected ones
    passes = mapped + threads * PASS_BYTES
    cores = 64 * 20**2 * sum(lazy.shape[1:-1]) if prod(lazy.shape[1:-1]) > 1 else 0
    return int(BASE + max(work, passes) + cores)
