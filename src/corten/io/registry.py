"""The file formats: their suffixes, readers, writers and the packages they need.

A new format is one more `Format` here, a function that opens a file as named variables, and one that writes a result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from corten.io.files import suffix_of
from corten.io.ionex import is_ionex_name

if TYPE_CHECKING:
    from pathlib import Path

    from corten.io.stores import Variables


@dataclass(frozen=True)
class Format:
    """One file format.

    opener: the function that opens a file as named variables; None: a long table, read by pandas or pyarrow.
    writer: the function that writes a result, (path, output, overwrite) -> None; None: read only.
    apart: whether a file is read in a process of its own: "never" (read by Python alone), "careful" (by C libraries
    that can crash: where the caller asks for it), "always" (by a library that crashes easily).
    in_parts: whether it can be read block by block, for tensors larger than memory.
    needs: modules beyond the base installation; extra: the extra that has them.
    """

    name: str
    suffixes: tuple[str, ...]
    opener: str | None
    writer: str | None = None
    apart: Literal["never", "careful", "always"] = "never"
    in_parts: bool = False
    needs: tuple[str, ...] = ()
    extra: str = "files"

    def open(self, path: Path, max_bytes: int) -> AbstractContextManager[Variables]:
        """Call the opener, after a check of the packages it needs."""
        self.refuse_absent()
        for name in self.needs:
            try:
                import_module(name)
            except Exception as problem:  # such as a C library that the package does not find
                raise ImportError(f"reading {self.name} needs the package {name}, which fails: {problem}") from None
        opened: AbstractContextManager[Variables] = resolve(str(self.opener))(path, max_bytes)
        return opened

    def refuse_absent(self) -> None:
        """An ImportError that names the missing package and the extra that has it."""
        absent = [name for name in self.needs if find_spec(name) is None]
        if absent:
            raise ImportError(f"{self.name} needs the package {absent[0]}: pip install 'corten[{self.extra}]'")


_STORES, _WRITERS = "corten.io.stores:", "corten.io.writers:"
_NETCDF, _ZARR = _WRITERS + "netcdf_writer", _WRITERS + "zarr_writer"
_ARRAY, _ARRAYS, _TABLE = _WRITERS + "array_writer", _WRITERS + "arrays_writer", _WRITERS + "table_writer"
_GRIB = (".grib", ".grib2", ".grb", ".grb2")
FORMATS = (
    Format("NetCDF", (".nc", ".nc4", ".cdf"), _STORES + "open_variables", _NETCDF, "careful", in_parts=True),
    Format("Zarr", (".zarr",), _STORES + "open_variables", _ZARR, "careful", in_parts=True, needs=("zarr",)),
    Format("npz", (".npz",), _STORES + "open_npz", _ARRAYS),
    Format("NumPy array", (".npy",), _STORES + "open_npy", _ARRAY, in_parts=True),
    Format("MAT", (".mat",), _STORES + "open_mat", _ARRAYS, "always"),
    Format("HDF5", (".h5", ".hdf5"), _STORES + "open_hdf5", _NETCDF, "careful"),
    Format("GeoTIFF", (".tif", ".tiff"), _STORES + "open_geotiff", None, "careful", needs=("rioxarray",), extra="geo"),
    Format("GRIB", _GRIB, _STORES + "open_grib", None, "careful", needs=("cfgrib",), extra="geo"),
    Format("CSV", (".csv", ".csv.gz"), None, _TABLE),
    Format("Parquet", (".parquet",), None, _TABLE, "careful", needs=("pyarrow",)),
    Format("IONEX", (".inx", ".ionex", ".19i (any year; also .Z and .gz)"), _STORES + "open_ionex"),
)
READABLE = tuple(suffix for one in FORMATS for suffix in one.suffixes)
WRITABLE = tuple(suffix for one in FORMATS for suffix in one.suffixes if one.writer is not None)
READ_IN_PARTS = tuple(suffix for one in FORMATS for suffix in one.suffixes if one.in_parts)
TABLES = tuple(suffix for one in FORMATS for suffix in one.suffixes if one.opener is None)
NETCDF = tuple(suffix for one in FORMATS for suffix in one.suffixes if one.writer == _NETCDF)


def format_of(path: str | os.PathLike[str]) -> Format:
    """The format of a file by its name."""
    suffix = suffix_of(path)
    for one in FORMATS:
        if suffix in one.suffixes or (one.name == "IONEX" and is_ionex_name(path)):
            return one
    raise ValueError(f"{path} has an unknown suffix; the known ones are {', '.join(READABLE)}")


def resolve(name: str) -> Callable[..., Any]:
    """The function of a name such as "corten.io.stores:open_npy", imported when it is needed."""
    module, function = name.split(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
