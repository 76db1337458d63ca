"""Check NetCDF, HDF5 and Zarr before C libraries read them: no links to other files, no sizes beyond the limit."""

from __future__ import annotations

import json
import math
import os
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from corten.data.plain import Json
from corten.io.files import by_desktop, check_size

if TYPE_CHECKING:
    import h5py
    import netCDF4

_CODECS = {
    "adler32", "astype", "bitround", "blosc", "bytes", "bz2", "categorize", "crc32", "crc32c", "delta", "endian",
    "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "json2", "lz4", "lzma", "msgpack2", "packbits",
    "quantize", "sharding_indexed", "shuffle", "transpose", "vlen-array", "vlen-bytes", "vlen-utf8", "zlib", "zstd",
}  # fmt: skip
MAX_CHUNKS = 10**6  # each takes a tenth of a millisecond or more to find
_MAX_METADATA_BYTES = 64 * 2**20
_METADATA = (".zarray", "zarr.json", ".zmetadata")
_BLOSC = struct.Struct("<4B3i")  # versions, flags, item size; bytes unpacked, of a block, and of the whole frame


def check_netcdf(path: Path, max_bytes: int) -> None:
    """Refuse a NetCDF file with links to other files, or that declares more than the limit."""
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic[:3] == b"CDF" and magic[3:4] in (b"\1", b"\2", b"\5"):
        _check_classic(path, magic[3])
    elif magic == b"\x89HDF\r\n\x1a\n":
        import h5py

        with h5py.File(path, "r") as file:
            check_group(path, file, max_bytes)
    else:
        raise ValueError("it begins neither like NetCDF 3 nor like NetCDF 4")


def check_group(path: Path, file: h5py.Group, max_bytes: int) -> None:
    """Refuse links to other files, and datasets that declare more than the limit."""
    import h5py

    def link(name: str, found: object) -> None:
        if isinstance(found, h5py.ExternalLink):
            raise ValueError(f"{name!r} is a link into another file")

    def item(name: str, found: object) -> None:
        if isinstance(found, h5py.Dataset):
            refuse_outside(f"{path}, {name}", found, max_bytes)
            # Coordinates and text are read when the file is opened.
            if found.ndim == 1 or found.dtype.kind not in "biuf":
                check_size(found.shape, found.dtype.itemsize, max_bytes, f"{path}, {name}")

    file.visititems_links(link)
    file.visititems(item)


def refuse_outside(what: str, dataset: h5py.Dataset, max_bytes: int) -> None:
    """Refuse an HDF5 dataset with values in other files, or with chunks larger than their shape."""
    if dataset.is_virtual or dataset.external is not None:
        raise ValueError(f"{what} keeps its values in other files, which are never followed: copy them into one")
    if dataset.chunks is None:
        return
    size = max(dataset.dtype.itemsize, 1)
    check_size(dataset.chunks, size, max_bytes, f"{what}, a chunk,")
    whole = math.prod(dataset.chunks) * size

    def look(chunk: h5py.h5d.StoreInfo) -> None:
        # Compression never makes data an eighth larger.
        if chunk.size > whole + whole // 8 + 4096:
            raise ValueError(f"{what}: a chunk of {whole} bytes is stored as {chunk.size}: it is damaged")

    dataset.id.chunk_iter(look)


def _check_classic(path: Path, version: int) -> None:
    """Refuse a NetCDF 3 file that is cut short: the C library reads what is not there as zeros."""
    if version == 5:  # which SciPy does not know
        import netCDF4

        with netCDF4.Dataset(path) as file:
            need = _least_size(file)
        if need > path.stat().st_size:
            raise ValueError(f"declares {need} bytes and has {path.stat().st_size}: it is cut short or damaged")
        return
    from scipy.io import netcdf_file

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Maps every variable onto the file, which fails if the file is shorter; no value is read.
            file = netcdf_file(path, mmap=True)
            file.variables.clear()
            file.close()
        except MemoryError:
            raise ValueError("its header declares more than the file has: it is damaged") from None
        except Exception as problem:
            raise ValueError(f"it is cut short or damaged: {problem}") from None


def _least_size(file: netCDF4.Dataset) -> int:
    """Bytes of a CDF-5 file with these dimensions, attributes and variables: its header and its values."""

    def padded(name: str) -> int:
        return 8 + -(-len(name.encode()) // 4) * 4

    def attributes(one: netCDF4.Dataset | netCDF4.Variable) -> int:
        values = [(name, one.getncattr(name)) for name in one.ncattrs()]
        sizes = [len(v.encode()) if isinstance(v, str) else np.asarray(v).nbytes for _, v in values]
        return 12 + sum(padded(name) + 12 + -(-size // 4) * 4 for (name, _), size in zip(values, sizes))

    size = 12 + 12 + sum(padded(name) + 8 for name in file.dimensions) + attributes(file) + 12
    for name, one in file.variables.items():
        size += padded(name) + 8 + 8 * one.ndim + attributes(one) + 20 + math.prod(one.shape) * one.dtype.itemsize
    return size


def check_zarr(path: Path, max_bytes: int) -> None:
    """Refuse a Zarr folder that names codecs which run code, links outside, or declares more than may be read."""
    root, framed = path.resolve(), {}
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            at = Path(folder, name)
            if at.is_symlink() and not at.resolve().is_relative_to(root):
                raise ValueError(f"{at.relative_to(path)} is a link that leads outside the folder")
            if name in _METADATA and name in files:
                check_size((at.stat().st_size,), 1, _MAX_METADATA_BYTES, f"{path}, {name}")
                try:
                    for place, array in _arrays(at, json.loads(at.read_bytes())):
                        _check_sizes(path, array, max_bytes)
                        if (behind := _check_codecs(array)) is not None:
                            framed[place] = behind
                except RecursionError:
                    raise ValueError(f"{at.relative_to(path)} is nested too deeply") from None
    for place, behind in framed.items():
        for at in place.rglob("*"):
            kept = at.name.startswith(".z") or at.name == "zarr.json" or by_desktop(at.name)
            if at.is_file() and not kept:
                _check_frame(at.relative_to(path), at, behind, max_bytes)


def _arrays(at: Path, described: Json) -> Iterator[tuple[Path, dict[str, Json]]]:
    """The arrays that a metadata file describes, each with its folder; consolidated metadata describe many."""
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


def _check_codecs(array: dict[str, Json]) -> int | None:
    """Refuse unknown codecs; the bytes that follow a Blosc frame in a chunk, None where there are no such frames.

    Blosc trusts the sizes in a frame and may read outside its memory. Frames that are a file of their own are checked
    before; frames inside another codec are refused.
    """
    behind = None
    filters = array.get("filters")
    older = [*(filters if isinstance(filters, list) else [filters]), array.get("compressor")]
    for given in (array.get("codecs"), older):
        steps = [list(_names(one)) for one in (given if isinstance(given, list) else [given]) if one is not None]
        for name in {name for names in steps for name in names} - _CODECS:
            raise ValueError(f"it is packed by {name!r}, which corten does not trust")
        follows = 4 if len(steps) > 1 and steps[-1] == ["crc32c"] else 0
        *inner, last = steps[:-1] if follows else steps or [[]]
        if any("blosc" in names for names in (*inner, last[1:])):
            raise ValueError("it is packed by Blosc inside of something else, which is not safe: pack it by Zstandard")
        behind = follows if last == ["blosc"] else behind
    return behind


def _names(part: Json, named: bool = True) -> Iterator[str]:
    """What a codec calls itself, in the second and the third version of Zarr, then the names of codecs inside it."""
    if isinstance(part, dict):
        for key in ("id", "name"):
            if part.get(key) is not None:
                yield str(part[key]).removeprefix("numcodecs.")
        for key, one in part.items():
            yield from _names(one, key in ("codecs", "index_codecs", "filters", "compressor"))
    elif isinstance(part, list):
        for one in part:
            yield from _names(one, named)
    elif named and part is not None:
        yield str(part).removeprefix("numcodecs.")


def _check_frame(name: Path, at: Path, behind: int, max_bytes: int) -> None:
    with at.open("rb") as stream:
        head, size = stream.read(_BLOSC.size), os.fstat(stream.fileno()).st_size - behind
    if len(head) < _BLOSC.size or size < _BLOSC.size:
        raise ValueError(f"{name} is cut short: {size} bytes are no Blosc frame")
    *_, unpacked, _, packed = _BLOSC.unpack(head)
    if packed != size or unpacked < 0:
        raise ValueError(f"{name} declares a Blosc frame of {packed} bytes, and has {size}: it is damaged")
    check_size((unpacked,), 1, max_bytes, str(name))


def _check_sizes(path: Path, array: dict[str, Json], max_bytes: int) -> None:
    """Arrays of more axes are checked when they are read; coordinates are read when the folder is opened."""
    grid = array.get("chunk_grid")
    inner = grid.get("configuration") if isinstance(grid, dict) else None
    for chunks in (array.get("chunks"), inner.get("chunk_shape") if isinstance(inner, dict) else None):
        shapes: list[list[int]] = []
        for one in (array.get("shape"), chunks):
            if one is None:
                continue
            if not isinstance(one, list) or not all(type(length) is int and length >= 0 for length in one):
                raise ValueError(f"a shape or chunk is {str(one)[:80]!r}: expected whole numbers")
            shapes.append(cast(list[int], one))
            if one is chunks or len(one) == 1:
                check_size(shapes[-1], 1, max_bytes, str(path))
        number = math.prod(-(-length // max(step, 1)) for length, step in zip(shapes[0], shapes[-1])) if shapes else 0
        if number > MAX_CHUNKS:
            raise ValueError(
                f"an array of shape {shapes[0]} comes in {number} chunks, above {MAX_CHUNKS}: write larger chunks"
            )
