"""Looks at a Zarr folder before it is opened: its metadata, and the frames that Blosc, a library in C, trusts."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corten.io.files import by_desktop, check_size

__all__ = ["check_zarr"]

_CODECS = {
    "adler32", "astype", "bitround", "blosc", "bytes", "bz2", "categorize", "crc32", "crc32c", "delta", "endian",
    "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "json2", "lz4", "lzma", "msgpack2", "packbits",
    "quantize", "sharding_indexed", "shuffle", "transpose", "vlen-array", "vlen-bytes", "vlen-utf8", "zlib", "zstd",
}  # fmt: skip
MOST_CHUNKS = 10**6  # each costs a tenth of a millisecond or more to look for
_LARGEST_METADATA = 64 * 2**20
_METADATA = (".zarray", "zarr.json", ".zmetadata")
_BLOSC = struct.Struct("<4B3i")  # versions, flags, item size; bytes unpacked, of a block, and of the whole frame


def check_zarr(path: Path, max_bytes: int) -> None:
    """Refuse a Zarr folder that names codecs which run code, links outside, or declares more than may be read."""
    root, framed = path.resolve(), {}
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            at = Path(folder, name)
            if at.is_symlink() and not at.resolve().is_relative_to(root):
                raise ValueError(f"{at.relative_to(path)} is a link that leads outside the folder")
        for name in files:
            if name in _METADATA:
                at = Path(folder, name)
                check_size((at.stat().st_size,), 1, _LARGEST_METADATA, f"{path}, {name}")
                try:
                    described = json.loads(at.read_bytes())
                except RecursionError:
                    raise ValueError(f"{at.relative_to(path)} is nested too deeply") from None
                _check_metadata(path, described, max_bytes)
                for place, array in _arrays(at, described):
                    behind = _behind_blosc(array)
                    if behind is not None:
                        framed[place] = behind
    for place, behind in framed.items():
        for at in place.rglob("*"):
            kept = at.name.startswith(".z") or at.name == "zarr.json" or by_desktop(at.name)
            if at.is_file() and not kept:
                _check_frame(at.relative_to(path), at, behind, max_bytes)


def _arrays(at: Path, described: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The arrays that a metadata file describes, each with its folder."""
    if not isinstance(described, dict):
        return
    if at.name != ".zmetadata":
        yield at.parent, described
    inner = described if at.name == ".zmetadata" else described.get("consolidated_metadata")
    listed = inner.get("metadata") if isinstance(inner, dict) else None
    for key, one in listed.items() if isinstance(listed, dict) else ():
        if ".." in Path(key).parts or Path(key).is_absolute():
            raise ValueError(f"{at.name} describes {key!r}, outside the folder")
        place = at.parent / key
        if isinstance(one, dict):
            yield (place.parent if place.name == ".zarray" else place), one


def _behind_blosc(array: dict[str, Any]) -> int | None:
    """Bytes that follow a Blosc frame in the chunks of an array; None where there are no such frames.

    Blosc believes the sizes in a frame, which may lead it out of its memory. Frames that are a whole file can be looked
    at before; those inside of something else are refused.
    """
    codecs, behind = array.get("codecs"), None
    for steps in (codecs if isinstance(codecs, list) else [], [array.get("filters"), array.get("compressor")]):
        *inner, last = steps or [None]
        follows = 0
        if inner and "crc32c" in _names(last):
            *inner, last = inner
            follows = 4
        whole = "blosc" in _names(last)
        if _mentions_blosc(inner) or (_mentions_blosc(last) and not whole):
            raise ValueError("it is packed by Blosc inside of something else, which is not safe: pack it by Zstandard")
        behind = follows if whole else behind
    return behind


def _mentions_blosc(part: Any) -> bool:
    todo = [part]
    while todo:
        one = todo.pop()
        if "blosc" in _names(one):
            return True
        todo += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
    return False


def _check_frame(name: Path, at: Path, behind: int, max_bytes: int) -> None:
    with at.open("rb") as stream:
        head, size = stream.read(_BLOSC.size), os.fstat(stream.fileno()).st_size - behind
    if len(head) < _BLOSC.size or size < _BLOSC.size:
        raise ValueError(f"{name} is cut short: {size} bytes are no Blosc frame")
    *_, unpacked, _, packed = _BLOSC.unpack(head)
    if packed != size or unpacked < 0:
        raise ValueError(f"{name} declares a Blosc frame of {packed} bytes, and has {size}: it is damaged")
    check_size((unpacked,), 1, max_bytes, str(name))


def _names(codec: Any) -> set[str]:
    """What a codec calls itself, in the second and the third version of Zarr."""
    given = [codec.get("id"), codec.get("name")] if isinstance(codec, dict) else [codec]
    return {str(name).removeprefix("numcodecs.") for name in given if name is not None and name != []}


def _check_metadata(path: Path, described: Any, max_bytes: int) -> None:
    """Every array described in a metadata file, wherever it stands in it (consolidated metadata hold many)."""
    todo = [described]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
            continue
        if not isinstance(one, dict):
            continue
        todo += one.values()
        for key in ("compressor", "filters", "codecs", "index_codecs"):
            listed = one.get(key)
            for codec in listed if isinstance(listed, list) else [listed]:
                _check_codec(codec)
        if "shape" in one:
            _check_shape(path, one["shape"], max_bytes)
            grid = one.get("chunk_grid")
            inner = grid.get("configuration") if isinstance(grid, dict) else None
            for chunks in (one.get("chunks"), inner.get("chunk_shape") if isinstance(inner, dict) else None):
                _check_shape(path, chunks, max_bytes, every=True)
                _check_number(one["shape"], chunks)


def _check_number(shape: list[int], chunks: list[int] | None) -> None:
    number = math.prod(-(-length // max(step, 1)) for length, step in zip(shape, chunks or shape))
    if number > MOST_CHUNKS:
        raise ValueError(
            f"an array of shape {shape} comes in {number} chunks, above {MOST_CHUNKS}: write larger chunks"
        )


def _check_codec(codec: Any) -> None:
    for name in _names(codec) - _CODECS:
        raise ValueError(f"it is packed by {name!r}, which corten does not trust")


def _check_shape(path: Path, shape: Any, max_bytes: int, every: bool = False) -> None:
    if shape is None:
        return
    if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"a shape or chunk is {str(shape)[:80]!r}: expected whole numbers")
    # Arrays of more modes are checked when they are read; coordinates are read when the folder is opened.
    if every or len(shape) == 1:
        check_size(shape, 1, max_bytes, str(path))
