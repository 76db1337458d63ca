"""Names of axes, coordinates and attributes that each format can hold, checked before the work starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from corten.data.axes import is_dataarray
from corten.io.files import suffix_of
from corten.io.registry import NETCDF, TABLES

COLUMNS = ("estimate", "lower", "upper", "flag")
COMPANIONS = ("lower", "upper", "flag", "propensity")
UNNAMED = "value"
MEMBERS = ("estimate", "lower", "upper", "flag", "axes", "coverage", "coverages", "about")
_MAX_BYTES = 255
_NETCDF_NAME = re.compile(r"[0-9A-Za-z_\u0080-\U0010ffff]([ -.0-~\u0080-\U0010ffff]*[!-.0-~\u0080-\U0010ffff])?")
_ZARR_NAME = re.compile(r"[^/\\\0]+")
_MATLAB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_FURTHER = re.compile(r"(lower|upper)_\d+(_\d+)?")


def level_names(coverages: Sequence[float], variable: str | None = None) -> list[tuple[str, str]]:
    """Names of the bounds of each coverage: lower and upper for the first, with the percentage for a further one.

    variable: the variable whose bounds they are, where a file can hold several.

    Examples
    --------
    >>> level_names([0.9, 0.95, 0.999])
    [('lower', 'upper'), ('lower_95', 'upper_95'), ('lower_99_9', 'upper_99_9')]
    >>> level_names([0.9], "sst")
    [('sst_lower', 'sst_upper')]
    """
    before = "" if variable is None else f"{variable}_"
    after = ["", *(f"_{100 * one:.10g}".replace(".", "_") for one in coverages[1:])]
    return [(f"{before}lower{one}", f"{before}upper{one}") for one in after]


def variable_name(name: str | None) -> str:
    """The name of the filled variable in a NetCDF file or Zarr store: that of the input where a file can hold it."""
    if not name:
        return UNNAMED
    longest = _MAX_BYTES - len("_propensity") - len("_99_9999")
    usable = _NETCDF_NAME.fullmatch(name) and "\\" not in name and len(name.encode("utf-8", "replace")) <= longest
    return name if usable else re.sub(r"\W", "_", name.encode("ascii", "replace").decode())[:longest]


def companion(variable: str, what: str) -> str:
    """The name of the variable that holds the "lower", "upper", "flag" or "propensity" of another."""
    return f"{variable}_{what}"


def check_labels(path: str | os.PathLike[str], data: Any) -> None:
    """Refuse labels of the input that a file of results could not hold."""
    if not is_dataarray(data):
        return
    names = [str(name) for name in (*data.dims, *data.coords)]
    variable = variable_name(None if data.name is None else str(data.name))
    refuse_for_members(path, map(str, data.dims))
    if suffix_of(path) in NETCDF:
        refuse_clash(names, variable)
        refuse_for_netcdf(path, names, [key for one in (data, *data.coords.values()) for key in one.attrs])
    elif suffix_of(path) == ".zarr":
        refuse_clash(names, variable)
        refuse_for_zarr(path, names)


def refuse_clash(names: Iterable[str], variable: str) -> None:
    """Refuse labels with the name of the filled variable or of one of its companions."""
    clash = sorted({variable, *(companion(variable, what) for what in COMPANIONS)} & {*names})
    if clash:
        raise ValueError(
            f"the input has an axis or coordinate called {', '.join(clash)}: rename it before writing a Dataset"
        )


def holds(name: str) -> bool:
    """Whether NetCDF can hold this name."""
    return bool(_NETCDF_NAME.fullmatch(name)) and len(name.encode("utf-8", "replace")) <= _MAX_BYTES


def refuse_for_netcdf(path: str | os.PathLike[str], names: Iterable[Any], attrs: Iterable[Any] = ()) -> None:
    """Refuse names that the NetCDF library would refuse."""
    for what, given in (("an axis or variable", names), ("an attribute", attrs)):
        for name in map(str, given):
            if not holds(name):
                raise ValueError(
                    f"{Path(path).name} cannot hold {what} called {name[:80]!r}: names in NetCDF begin with a letter, "
                    f"a digit or _, have no /, no control characters, no space at the end and at most {_MAX_BYTES} "
                    "bytes; rename it, or write .npz or .csv"
                )


def refuse_for_members(path: str | os.PathLike[str], axes: Iterable[str]) -> None:
    """Refuse names of axes that .npz, .mat or a table cannot hold."""
    suffix, axes = suffix_of(path), list(axes)
    taken = {".npz": MEMBERS, ".mat": MEMBERS}.get(suffix, COLUMNS if suffix in TABLES else ())
    for name in axes:
        if name in taken or (taken is MEMBERS and _FURTHER.fullmatch(name)):
            raise ValueError(
                f"the input has an axis called {name}, and {Path(path).name} needs that name for the result: rename it"
            )
        if suffix == ".npz" and not _ZARR_NAME.fullmatch(name):
            raise ValueError(
                f"{Path(path).name} cannot hold an axis called {name[:80]!r}: its name would be that of a file "
                "elsewhere, so without / or \\; rename it, or write .csv"
            )
        if suffix == ".mat" and not _MATLAB_NAME.fullmatch(name):
            raise ValueError(
                f"{Path(path).name} cannot hold an axis called {name[:80]!r}: names in MATLAB begin with a letter and "
                "have letters, digits and _ only, at most 63; rename it, or write .npz"
            )


def refuse_for_zarr(path: str | os.PathLike[str], names: Iterable[Any]) -> None:
    """Refuse names that cannot be the name of a folder."""
    for name in map(str, names):
        taken = name in (".", "..", "zarr.json") or name.startswith(".z")
        if taken or not _ZARR_NAME.fullmatch(name) or len(name.encode("utf-8", "replace")) > _MAX_BYTES:
            raise ValueError(
                f"{Path(path).name} cannot hold an axis or variable called {name[:80]!r}: in Zarr it names a folder, "
                f"so without / or \\, without .z in front and of at most {_MAX_BYTES} bytes; rename it, or write .npz "
                "or .csv"
            )
