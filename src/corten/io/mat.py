"""Read MATLAB files of versions 4 and 5: arrays of numbers; everything else is named, never interpreted.

Written here because the usual reader, in C, crashes on damaged files. All sizes are checked against the bytes that are
there, and a compressed variable is unpacked to what its own dimensions ask for and no further.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corten.io.files import check_size

__all__ = ["MatArray", "list_arrays"]

_MATRIX, _COMPRESSED = 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_OLD = {0: "f8", 1: "f4", 2: "i4", 3: "i2", 4: "u2", 5: "u1"}
_LOGICAL, _COMPLEX = 0x02, 0x08
_FRONT = 4096  # unpacked bytes in which flags, dimensions and name of a variable are looked for


@dataclass(frozen=True)
class MatArray:
    """A variable: its shape, its type (object where it is no array of real numbers), and how to load it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], np.ndarray]


def list_arrays(path: Path, max_bytes: int) -> dict[str, MatArray]:
    """The variables of a file by name; a ValueError says at which byte it stops making sense."""
    size = path.stat().st_size
    check_size((size,), 1, max_bytes, str(path))
    raw = path.read_bytes()
    if len(raw) < 20:
        raise ValueError(f"{len(raw)} bytes are too few for a MAT file")
    if 0 in raw[:4]:
        return dict(_version_4(raw))
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128], "")
    if not order:
        raise ValueError("byte 126: expected IM or MI, which tell the order of bytes")
    return dict(_version_5(raw, order))


def _version_5(raw: bytes, order: str) -> Iterator[tuple[str, MatArray]]:
    at = 128
    while at < len(raw):
        kind, start, stop, at = _element(raw, at, order, padded=True)
        if kind == _COMPRESSED:
            at = stop
            name, one = _compressed(raw[start:stop], order, start)
        elif kind == _MATRIX:
            name, one = _matrix(raw[start:stop], order, start, stop - start)
        else:
            raise ValueError(f"byte {start}: expected a variable, found an element of kind {kind}")
        if name:
            yield name, one


def _element(raw: bytes, at: int, order: str, padded: bool, size: int | None = None) -> tuple[int, int, int, int]:
    """Kind, first and last byte of an element, and where the next begins; small ones live inside their own tag.

    size: where only the front of `raw` is there, how many bytes it has in all.
    """
    if at + 8 > len(raw):
        raise ValueError(f"byte {at}: expected another element (the file is cut short)")
    kind, count = struct.unpack_from(f"{order}II", raw, at)
    if kind >> 16:
        kind, count = kind & 0xFFFF, kind >> 16
        if count > 4:
            raise ValueError(f"byte {at}: a small element has at most 4 bytes, found {count}")
        return kind, at + 4, at + 4 + count, at + 8
    start, stop = at + 8, at + 8 + count
    if stop > (len(raw) if size is None else size):
        raise ValueError(f"byte {at}: declares {count} bytes, more than the file has")
    return kind, start, stop, -(-stop // 8) * 8 if padded else stop


def _compressed(packed: bytes, order: str, place: int) -> tuple[str, MatArray]:
    front = _unpacked(packed, 8 + _FRONT, place)
    if len(front) < 8:
        raise ValueError(f"byte {place}: a compressed variable is cut short")
    kind, count = struct.unpack_from(f"{order}II", front)
    if kind != _MATRIX:
        raise ValueError(f"byte {place}: expected a variable inside a compressed element, found kind {kind}")
    if count > 1100 * len(packed) + 1024:
        raise ValueError(f"byte {place}: declares {count} bytes, more than its {len(packed)} can unpack to")
    name, one = _matrix(front[8:], order, place, count)
    if one.dtype.hasobject:
        return name, one

    def load() -> np.ndarray:
        return _matrix(_unpacked(packed, 8 + count, place)[8:], order, place, count)[1].load()

    return name, MatArray(one.shape, one.dtype, load)


def _unpacked(packed: bytes, most: int, place: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(packed, most)
    except zlib.error as problem:
        raise ValueError(f"byte {place}: a compressed variable is damaged: {problem}") from None


def _matrix(raw: bytes, order: str, place: int, size: int) -> tuple[str, MatArray]:
    """A variable from its bytes; of a compressed one, `raw` may be the front of `size` bytes only."""
    kind, start, stop, at = _element(raw, 0, order, True)
    if kind != 6 or stop - start != 8:
        raise ValueError(f"byte {place}: expected the flags of a variable")
    (flags,) = struct.unpack_from(f"{order}I", raw, start)
    kind, start, stop, at = _element(raw, at, order, True)
    if kind != 5 or (stop - start) % 4 or not 8 <= stop - start <= 128:
        raise ValueError(f"byte {place}: expected the dimensions of a variable")
    shape = struct.unpack_from(f"{order}{(stop - start) // 4}i", raw, start)
    if min(shape) < 0:
        raise ValueError(f"byte {place}: a variable has the shape {shape}")
    kind, start, stop, at = _element(raw, at, order, True)
    name = raw[start:stop].decode("ascii", "replace")
    known = _CLASSES.get(flags & 0xFF)
    if known is None or (flags >> 8) & _COMPLEX:
        return name, MatArray(shape, np.dtype(object), _refused)
    dtype = np.dtype(bool if (flags >> 8) & _LOGICAL else known)
    kind, start, stop, _ = _element(raw, at, order, True, size)
    if kind not in _STORED:
        raise ValueError(f"byte {place}: the numbers of {name!r} have the unknown kind {kind}")
    stored = np.dtype(order + _STORED[kind])
    if math.prod(shape) * stored.itemsize != stop - start:
        raise ValueError(f"byte {place}: {name!r} has the shape {shape}, but {stop - start} bytes of {stored.name}")

    def load() -> np.ndarray:
        numbers = np.frombuffer(raw[start:stop], stored)
        if numbers.size != math.prod(shape):
            raise ValueError(f"byte {place}: {name!r} is cut short")
        return numbers.astype(dtype).reshape(shape, order="F")

    return name, MatArray(shape, dtype, load)


def _version_4(raw: bytes) -> Iterator[tuple[str, MatArray]]:
    at = 0
    while at < len(raw):
        if at + 20 > len(raw):
            raise ValueError(f"byte {at}: expected another variable (the file is cut short)")
        order = "<" if struct.unpack_from("<i", raw, at)[0] in range(1000) else ">"
        kind, rows, columns, imaginary, length = struct.unpack_from(f"{order}5i", raw, at)
        thousands, rest = divmod(kind, 1000)
        stored, meaning = _OLD.get(rest // 10), rest % 10
        if thousands not in (0, 1) or rest // 100 or stored is None or meaning > 2 or imaginary not in (0, 1):
            raise ValueError(f"byte {at}: expected a variable of MAT version 4, found kind {kind}")
        if min(rows, columns) < 0 or not 1 <= length <= 4096:
            raise ValueError(f"byte {at}: a variable of {rows} x {columns} with a name of {length} bytes")
        dtype = np.dtype(order + stored)
        start = at + 20 + length
        stop = start + rows * columns * dtype.itemsize
        if stop + imaginary * (stop - start) > len(raw):
            raise ValueError(f"byte {at}: declares {rows} x {columns} numbers, more than the file has")
        name = raw[at + 20 : start].rstrip(b"\0").decode("ascii", "replace")
        numbers = meaning == 0 and not imaginary
        yield (
            name,
            MatArray((rows, columns), dtype if numbers else np.dtype(object), _loader(raw, start, stop, dtype, rows)),
        )
        at = stop + imaginary * (stop - start)


def _loader(raw: bytes, start: int, stop: int, dtype: np.dtype, rows: int) -> Callable[[], np.ndarray]:
    def load() -> np.ndarray:
        numbers = np.frombuffer(raw[start:stop], dtype).astype(dtype.newbyteorder("="))
        return numbers.reshape(rows, -1, order="F") if rows else numbers.reshape(0, 0)

    return load


def _refused() -> np.ndarray:
    raise ValueError("holds no array of real numbers")
