"""NumPy array files: nothing is unpickled, and the size that a header declares is not trusted."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

MAX_NPY_HEADER = 1 << 16  # bytes
_PART_BYTES = 1 << 24  # read at a time from a file in Fortran order
_SKIP_BYTES = 1 << 16  # more than this is faster to skip than to read
_MAX_RATIO = 1100  # deflate compresses at most 1032 to 1
_READERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


def declared(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, type, whether in Fortran order; a ValueError where `size` bytes cannot hold that. Values come next."""
    try:
        version = np.lib.format.read_magic(stream)
        if version[0] not in _READERS:
            raise ValueError(f"expected version 1 or 2 of the npy format, found {version[0]}")
        length = stream.read(2 * version[0])
        if int.from_bytes(length, "little") > MAX_NPY_HEADER:  # checked before it is read: NumPy checks afterwards
            raise ValueError(f"its header declares {int.from_bytes(length, 'little')} bytes, above {MAX_NPY_HEADER}")
        header = io.BytesIO(length + stream.read(int.from_bytes(length, "little")))
        shape, fortran, dtype = _READERS[version[0]](header)
    except Exception as problem:  # the header is Python text, which can be invalid in many ways
        raise ValueError(f"its header cannot be understood: {problem}") from None
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}: lengths must be whole numbers of at least 0")
    need = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and need > size:
        raise ValueError(f"it declares {need} bytes but holds {size}: it is cut short or damaged")
    return tuple(shape), dtype, bool(fortran)


@dataclass(frozen=True)
class Planes:
    """A .npy file sliced along its first axis. It is not memory-mapped: a map of a truncated file ends the process."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    begin: int

    @staticmethod
    def of(path: Path) -> Planes:
        with path.open("rb") as stream:
            return Planes(path, *declared(stream, path.stat().st_size), stream.tell())

    def __getitem__(self, block: slice) -> np.ndarray:
        start, stop, _ = block.indices(self.shape[0])
        rest = self.shape[1:]
        plane = math.prod(rest)
        with self.path.open("rb", buffering=0) as stream:
            if not self.fortran:
                return self._take(stream, start * plane, (stop - start) * plane).reshape(-1, *rest)
            # In Fortran order the planes are spread over the file: read all of it, or skip if the gaps are large.
            lines, length = np.empty((plane, stop - start), self.dtype), self.shape[0]
            if (length - (stop - start)) * self.dtype.itemsize > _SKIP_BYTES:
                for at in range(plane):
                    lines[at] = self._take(stream, at * length + start, stop - start)
                return lines.reshape(*reversed(rest), stop - start).T
            step = max(1, _PART_BYTES // (length * self.dtype.itemsize))
            for at in range(0, plane, step):
                count = min(step, plane - at)
                part = self._take(stream, at * length, count * length).reshape(count, length)
                lines[at : at + count] = part[:, start:stop]
        return lines.reshape(*reversed(rest), -1).T

    def _take(self, stream: IO[bytes], first: int, count: int) -> np.ndarray:
        stream.seek(self.begin + first * self.dtype.itemsize)
        found = np.fromfile(stream, self.dtype, count)
        if found.size < count:
            raise ValueError(f"it is cut short: {count - found.size} of {count} values are not there")
        return found


def member_size(info: zipfile.ZipInfo) -> int:
    """Upper limit of the bytes of a member, whatever the archive declares."""
    return min(info.file_size, _MAX_RATIO * info.compress_size + 1024)
