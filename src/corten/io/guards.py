"""Check NetCDF and HDF5 files before C libraries read them: no links to other files, no sizes beyond the limit."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from corten.io.files import check_size


def check_netcdf(path: Path, max_bytes: int) -> None:
    """Refuse a NetCDF file with links to other files, or that declares more than the limit."""
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic[:3] == b"CDF" and magic[3:4] in (b"\1", b"\2", b"\5"):
        _check_classic(path, magic[3])
    elif magic == b"\x89HDF\r\n\x1a\n":
        import h5py

        with h5py.File(path, "r") as file:
            _check_group(path, file, max_bytes)
    else:
        raise ValueError("it begins neither like NetCDF 3 nor like NetCDF 4")


def _check_group(path: Path, file: Any, max_bytes: int) -> None:
    import h5py

    def link(name: str, found: Any) -> None:
        if isinstance(found, h5py.ExternalLink):
            raise ValueError(f"{name!r} is a link into another file")

    def item(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            refuse_outside(f"{path}, {name}", found, max_bytes)
            # Coordinates and text are read when the file is opened.
            if found.ndim == 1 or found.dtype.kind not in "biuf":
                check_size(found.shape, found.dtype.itemsize, max_bytes, f"{path}, {name}")

    file.visititems_links(link)
    file.visititems(item)


def refuse_outside(what: str, dataset: Any, max_bytes: int) -> None:
    """Refuse an HDF5 dataset with values in other files, or with chunks larger than their shape."""
    if dataset.is_virtual or dataset.external is not None:
        raise ValueError(f"{what} keeps its values in other files, which are never followed: copy them into one")
    if dataset.chunks is None:
        return
    size = max(dataset.dtype.itemsize, 1)
    check_size(dataset.chunks, size, max_bytes, f"{what}, a chunk,")
    whole = math.prod(dataset.chunks) * size

    def look(chunk: Any) -> None:
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


def _least_size(file: Any) -> int:
    """Bytes of a CDF-5 file with these dimensions, attributes and variables: its header and its values."""

    def padded(name: str) -> int:
        return 8 + -(-len(name.encode()) // 4) * 4

    def attributes(one: Any) -> int:
        values = [(name, one.getncattr(name)) for name in one.ncattrs()]
        sizes = [len(v.encode()) if isinstance(v, str) else np.asarray(v).nbytes for _, v in values]
        return 12 + sum(padded(name) + 12 + -(-size // 4) * 4 for (name, _), size in zip(values, sizes))

    size = 12 + 12 + sum(padded(name) + 8 for name in file.dimensions) + attributes(file) + 12
    for name, one in file.variables.items():
        size += padded(name) + 8 + 8 * one.ndim + attributes(one) + 20 + math.prod(one.shape) * one.dtype.itemsize
    return size
