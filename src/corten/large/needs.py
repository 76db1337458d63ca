"""Memory and disk of an out-of-core completion, predicted before it starts, and the blocks that fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

from corten.engine.layout import slab_planes
from corten.engine.memory import in_words, refuse_full_disk
from corten.io.lazy import LazyTensor

__all__ = ["Needs", "tile_entries"]

BASE = 330_000_000  # bytes of interpreter, libraries and compiled kernels, measured
PIECE_ENTRIES = 1 << 21  # larger blocks are not faster
PER_ENTRY, PER_HALO_ENTRY = 85, 25  # bytes of a block while its intervals are computed, measured
PASS_BYTES = 40_000_000  # bytes of the buffers of a pass, per thread
SCRATCH_BYTES = 7  # per entry on disk during the fit: value, mask, training mask, expected spins
KEPT_BYTES = 6  # of these, while intervals are written
TILE_ENTRY, TILE_BASE, MAX_TILE_ENTRIES = 700, 500_000_000, 1_500_000  # bytes per entry of a tile's core; coarse field
PART_ENTRY, PART_ENTRIES = 90, 20_000_000  # the part that settings are chosen from


def tile_entries(memory: int, threads: int) -> int:
    """Entries of the core of a tile, so that `threads` tiles fit in `memory` bytes."""
    room = (memory - BASE - TILE_BASE) // (threads * TILE_ENTRY)
    if room < 20_000:
        raise MemoryError(
            f"tiles of {max(0, room):,} entries would be too small: the limit of memory is {in_words(memory)}; allow "
            f"{in_words(BASE + TILE_BASE + 20_000 * threads * TILE_ENTRY)} or more"
        )
    return int(min(room, MAX_TILE_ENTRIES))


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
    def of(lazy: LazyTensor, memory: int, arrays: int, threads: int, radius: int = 1) -> Needs:
        """The most threads, then the largest blocks, within `memory` bytes; a MemoryError if one plane does not fit."""
        item = lazy.dtype.itemsize
        sizes = _aligned(min(max(1, PIECE_ENTRIES // lazy.plane), lazy.shape[0]), lazy)
        shortest = _peak(lazy, *sizes[-1], threads, 1, radius)
        for workers, (planes, block) in product(range(threads, 0, -1) if shortest <= memory else (), sizes):
            needed = _peak(lazy, planes, block, threads, workers, radius)
            if needed <= memory:
                out = lazy.size * (arrays * item + 1)
                disk = max(SCRATCH_BYTES * lazy.size, KEPT_BYTES * lazy.size + out)
                part = int(min(PART_ENTRIES, (needed - BASE) / PART_ENTRY)) // lazy.plane
                return Needs(planes, block, workers, needed, disk, min(lazy.shape[0], max(2, part)))
        least = _peak(lazy, 1, 1, threads, 1, radius)
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

    def refuse_small_disk(self, folder: Path) -> None:
        refuse_full_disk(self.disk, folder)

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


def _peak(lazy: LazyTensor, planes: int, block: int, threads: int, workers: int, radius: int) -> int:
    """Peak bytes of the larger of two steps: a pass over the mask, and computing intervals."""
    item, plane = lazy.dtype.itemsize, lazy.plane
    halo = (planes + 2 * radius) / planes if planes < lazy.shape[0] else 1.0
    ahead = -(-(2 * workers + 1) * planes // block) + 1  # blocks that threads still read while others are fetched
    work = workers * planes * plane * (PER_ENTRY + PER_HALO_ENTRY * halo) + (ahead + 1) * block * plane * item
    mapped = 3 * min(slab_planes(lazy.shape[0]) + 4 * radius, lazy.shape[0]) * plane * 2  # spins and expected ones
    passes = mapped + threads * PASS_BYTES
    cores = 64 * 20**2 * sum(lazy.shape[1:-1]) if prod(lazy.shape[1:-1]) > 1 else 0
    return int(BASE + max(work, passes) + cores)
