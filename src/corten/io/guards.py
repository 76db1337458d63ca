"""Looks at a file before the libraries in C do: nothing outside it is read, nothing inflates, no code is run."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corten.io.files import check_size

__all__ = ["check_netcdf", "refuse_outside"]

_LARGEST_METADATA = 64 * 2**20
_TYPES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}


def check_netcdf(path: Path, max_bytes: int) -> None:
    """Refuse a NetCDF file that would make its library reach outside, or allocate more than is there."""
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic[:3] == b"CDF":
        _Classic(path, max_bytes).check()
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
            # Coordinates and text are read when the file is opened, before anybody asks for them.
            if found.ndim == 1 or found.dtype.kind not in "biuf":
                check_size(found.shape, found.dtype.itemsize, max_bytes, f"{path}, {name}")

    file.visititems_links(link)
    file.visititems(item)


def refuse_outside(what: str, dataset: Any, max_bytes: int) -> None:
    """Refuse an HDF5 dataset whose values lie in other files, or whose chunks would inflate beyond their shape."""
    if dataset.is_virtual or dataset.external is not None:
        raise ValueError(f"{what} keeps its values in other files, which are never followed: copy them into one")
    if dataset.chunks is None:
        return
    size = max(dataset.dtype.itemsize, 1)
    check_size(dataset.chunks, size, max_bytes, f"{what}, a chunk,")
    whole = math.prod(dataset.chunks) * size

    def look(chunk: Any) -> None:
        # Packing never makes data an eighth larger: this chunk would unpack to something else.
        if chunk.size > whole + whole // 8 + 4096:
            raise ValueError(f"{what}: a chunk of {whole} bytes is stored as {chunk.size}: it is damaged")

    dataset.id.chunk_iter(look)


class _Classic:
    """The header of a NetCDF 3 file (versions 1, 2 and 5), read only as far as its sizes."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes, self.size = path, max_bytes, path.stat().st_size
        with path.open("rb") as stream:
            self.raw = stream.read(_LARGEST_METADATA)
        self.at, self.records = 4, 0
        self.version = self.raw[3]
        if self.version not in (1, 2, 5):
            raise ValueError(f"byte 3: NetCDF 3 has versions 1, 2 and 5, found {self.version}")

    def check(self) -> None:
        self.count_or_streaming()
        dimensions = [self.dimension() for _ in self.entries(10)]
        for _ in self.entries(12):
            self.attribute()
        for _ in self.entries(11):
            self.variable(dimensions)

    def take(self, code: str) -> int:
        size = struct.calcsize(code)
        if self.at + size > len(self.raw):
            raise ValueError(f"byte {self.at}: the header is cut short")
        (number,) = struct.unpack_from(f">{code}", self.raw, self.at)
        self.at += size
        if number < 0:
            raise ValueError(f"byte {self.at - size}: expected a size, found {number}")
        return int(number)

    def count(self) -> int:
        return self.take("q" if self.version == 5 else "i")

    def count_or_streaming(self) -> None:
        width = 8 if self.version == 5 else 4
        if self.raw[self.at : self.at + width] == b"\xff" * width:
            self.at += width
        else:
            self.records = self.count()

    def entries(self, tag: int) -> Iterator[None]:
        """The entries of a list, as many as could stand in the bytes that are left."""
        place, found, number = self.at, self.take("i"), self.count()
        if found not in (0, tag) or (found == 0 and number):
            raise ValueError(f"byte {place}: expected the list {tag}, found {found}")
        if number > (len(self.raw) - self.at) // 8:
            raise ValueError(f"byte {place}: declares {number} entries, more than the file has room for")
        for _ in range(number):
            yield

    def skip(self, size: int) -> None:
        self.at += -(-size // 4) * 4
        if self.at > len(self.raw):
            raise ValueError(f"byte {self.at}: the header is cut short")

    def dimension(self) -> int:
        self.skip(self.count())
        return self.count()

    def attribute(self) -> None:
        self.skip(self.count())
        self.skip(self.item_size() * self.count())

    def item_size(self) -> int:
        kind = self.take("i")
        if kind not in _TYPES:
            raise ValueError(f"byte {self.at - 4}: there is no type {kind}")
        return _TYPES[kind]

    def variable(self, dimensions: list[int]) -> None:
        place = self.at
        self.skip(self.count())
        modes = [self.count() for _ in range(min(self.count(), 1025))]
        if len(modes) > 1024 or any(one >= len(dimensions) for one in modes):
            raise ValueError(f"byte {place}: a variable has modes that the file has not")
        for _ in self.entries(12):
            self.attribute()
        item = self.item_size()
        self.count()
        begin = self.take("i" if self.version == 1 else "q")
        lengths = [dimensions[one] for one in modes]
        per_record = bool(lengths) and lengths[0] == 0
        need = math.prod(lengths[1:] if per_record else lengths) * item * (self.records if per_record else 1)
        if need and begin + need > self.size:
            raise ValueError(
                f"byte {place}: declares {need} bytes from byte {begin} on: the file is cut short or damaged"
            )
