"""How much memory there is, how much a fit will need, and where byte tensors go that do not fit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

__all__ = ["available", "byte_tensor", "in_words", "refuse_beyond"]

ROOM = 0.6  # share of what is available that one fit may plan on


def available() -> int:
    """Bytes that can be had without swapping: CORTEN_MEMORY (bytes) if set, else what the system says."""
    asked = os.environ.get("CORTEN_MEMORY", "")
    if asked:
        if not asked.isdigit() or int(asked) == 0:
            raise ValueError(f"CORTEN_MEMORY is {asked!r}; give a whole number of bytes")
        return int(asked)
    found = _from_system()
    return found if found is not None else 1 << 33


def _from_system() -> int | None:
    limits = []
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    group, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if group.exists() and used.exists():
        text = group.read_text().strip()
        if text.isdigit():
            limits.append(max(0, int(text) - int(used.read_text())))
    if not limits and hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return min(limits, default=None)  # type: ignore[type-var]


def byte_tensor(shape: Sequence[int]) -> np.ndarray:
    """An int8 tensor to write into: in memory where it fits, else a file that vanishes with its last reader."""
    size = prod(shape)
    if size <= 1 << 24 or size <= ROOM * available():
        return np.empty(tuple(shape), np.int8)
    with tempfile.NamedTemporaryFile(prefix="corten-", suffix=".spins") as file:
        file.truncate(size)
        return np.memmap(file.name, np.int8, "r+", shape=tuple(shape))


def refuse_beyond(needed: int, what: str, advice: str) -> None:
    """Refuse before starting, with both numbers, what would not fit."""
    room = available()
    if needed > room:
        raise MemoryError(f"{what} needs about {in_words(needed)}, and {in_words(room)} are available: {advice}")


def in_words(size: float) -> str:
    """A number of bytes as people write it.

    Example:
        >>> in_words(3_200_000_000)
        '3.2 GB'
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
