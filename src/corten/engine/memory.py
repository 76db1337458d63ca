"""How much memory there is, how much a fit will need, and tensors in files for what does not fit.

A tensor in a file is a memory map whose file has no name: it is removed with its last reader, however that ends.
Pages that were read stay in memory, so code that reads such a tensor in order gives them back (`let_go`). Results do
not depend on it.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from corten.engine.threads import default_threads

USABLE_SHARE = 0.6  # of the available memory that one fit may use
READ_AHEAD_BYTES = max(1 << 16, mmap.PAGESIZE)  # pages around a page that is read are loaded with it
PART_BYTES = 1 << 24  # of a file that are read at a time


@dataclass(frozen=True)
class _Limit:
    memory: int
    folder: Path
    named: bool = False


_LIMIT: ContextVar[_Limit | None] = ContextVar("corten_memory", default=None)


@contextmanager
def limited(memory: int, folder: Path, *, named: bool = False) -> Iterator[None]:
    """Inside, `memory` bytes are all there is, and what does not fit goes to files in `folder`.

    named: the files have names, so that other processes can open them; the caller removes the folder.
    """
    token = _LIMIT.set(_Limit(memory, folder, named))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def threads_within(bytes_each: float, most: int) -> int:
    """Threads for work that takes so many bytes each: at most `most`, and no more than memory allows, but one."""
    return max(1, min(most, default_threads(), int(USABLE_SHARE * available() / bytes_each)))


def available() -> int:
    """Bytes that can be had without swapping: a `limited` block's, CORTEN_MEMORY (bytes), or what the system says."""
    limit = _LIMIT.get()
    if limit is not None:
        return limit.memory
    given = os.environ.get("CORTEN_MEMORY", "")
    if given:
        if not given.isdigit() or int(given) == 0:
            raise ValueError(f"CORTEN_MEMORY is {given!r}; give a whole number of bytes")
        return int(given)
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
    """An int8 tensor to write into: in memory where it fits, else in a file."""
    size = prod(shape)
    if size <= 1 << 24 or (_LIMIT.get() is None and size <= USABLE_SHARE * available()):
        return np.empty(tuple(shape), np.int8)
    return file_tensor(shape, np.int8)


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that is not written to: kernels are compiled once for arrays in memory and in files opened to read."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def file_tensor(shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """A tensor of zeros in a file that is removed with its last reader; its space on the disk is taken now.

    Writing to a map on a full disk would kill the process, so a disk too small is an error here and nowhere later.
    """
    limit = _LIMIT.get()
    size = prod(shape) * np.dtype(dtype).itemsize
    folder = limit.folder if limit is not None else Path(tempfile.gettempdir())
    kind: Callable[..., AbstractContextManager[IO]] = tempfile.TemporaryFile
    if limit is not None and limit.named:
        kind = partial(tempfile.NamedTemporaryFile, delete=False)
    with kind(prefix=".corten-", suffix=".scratch", dir=folder) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as problem:
            raise full_disk(folder, size, "a scratch file", problem) from None
        return np.memmap(file, dtype, "r+", shape=tuple(shape))  # type: ignore[call-overload]


@dataclass(frozen=True)
class MappedFile:
    """A tensor in a file with a name, as another process opens it."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @staticmethod
    def of(array: np.ndarray) -> np.ndarray | MappedFile:
        """A tensor in a named file as that file; any other array as it is."""
        if not is_mapped(array) or not isinstance(getattr(array, "filename", None), str | Path):
            return array
        array.flush()  # type: ignore[attr-defined]
        return MappedFile(str(array.filename), array.dtype, array.shape)  # type: ignore[attr-defined]

    def open(self) -> np.ndarray:
        """The tensor, to be read."""
        return np.memmap(self.path, self.dtype, "r", shape=self.shape)


def is_mapped(array: object) -> bool:
    """Whether an array lives in a file."""
    return isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None


def let_go(array: np.ndarray) -> None:
    """Give the pages of (a part of) a tensor in a file back to the system, with those mapped around them; nothing is
    lost. Pages that are copied on write (mode "c") are kept: what was written to them is nowhere else.
    """
    if not is_mapped(array) or getattr(array, "mode", "") == "c" or not array.size or not hasattr(mmap.mmap, "madvise"):
        return
    whole: mmap.mmap = array._mmap  # type: ignore[attr-defined]
    low, high = np.lib.array_utils.byte_bounds(array)
    base, step = np.frombuffer(whole, np.uint8).ctypes.data, READ_AHEAD_BYTES
    start, stop = max(base, low // step * step) - base, -(-high // step) * step - base
    whole.madvise(mmap.MADV_DONTNEED, start, min(stop, len(whole)) - start)


def parts(array: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Blocks of planes (start, stop, array[start:stop]); pages of a file are released once they were read."""
    each = max(1, prod(array.shape[1:]) * array.dtype.itemsize)
    step = max(1, PART_BYTES // each)
    for start in range(0, array.shape[0], step):
        part = array[start : start + step]
        yield start, start + part.shape[0], part
        let_go(part)


def refuse_beyond(needed: int, what: str, advice: str) -> None:
    """Refuse before starting, with both numbers, what would not fit."""
    room = available()
    if needed > room:
        raise MemoryError(f"{what} needs about {in_words(needed)}, and {in_words(room)} are available: {advice}")


def refuse_full_disk(needed: int, folder: Path) -> None:
    """Refuse before starting what would not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"{folder} has {in_words(free)} free, and up to {in_words(needed)} are needed while it runs: make "
            "room, or write elsewhere"
        )


def full_disk(folder: Path, needed: int, what: str, problem: OSError) -> OSError:
    """An error that says which disk is full, and what for."""
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    reason = problem.strerror or str(problem)
    return OSError(
        problem.errno or 0,
        f"{what} of {in_words(needed)} could not be made in {folder}, where {in_words(free)} are free ({reason}): "
        "make room, or write elsewhere",
    )


def read_size(size: int | float | str) -> int:
    """A number of bytes, or text such as "800 MB" or "1.5GB"."""
    units = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
    if isinstance(size, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)b?(?:ytes)?\s*", size.lower())
        try:
            number = float(found[1]) * units[found[2]] if found else 0.0
        except ValueError:
            number = 0.0
    else:
        number = 0.0 if isinstance(size, bool) or not np.isfinite(size) else float(size)
    if number < 1:
        raise ValueError(f"memory is {size!r}; give a number of bytes, or text such as '800 MB' or '1.5 GB'")
    return int(number)


def in_words(size: float) -> str:
    """A number of bytes as people write it."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"
