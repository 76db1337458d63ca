"""Names of axes, coordinates and attributes that each format can hold, checked before the work starts."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from corten.data.axes import is_dataarray
from corten.io.files import suffix_of
from corten.io.registry import NETCDF, TABLES

COLUMNS = ("estimate", "lower", "upper", "flag")
COMPANIONS = ("lower", "upper", "flag", "propensity")
UNNAMED = "value"
MEMBERS = ("estimate", "lower", "upper", "flag", "axes", "coverage", "coverages", "about")
_MAX_BYTES = 255
_RULES = {
    "NetCDF": (
        r"[0-9A-Za-z_\u0080-\U0010ffff]([ -.0-~\u0080-\U0010ffff]*[!-.0-~\u0080-\U0010ffff])?",
        "names in NetCDF begin with a letter, a digit or _, have no /, no control characters and no space at the end",
    ),
    "Zarr": (r"(?!\.z|\.\.?$|zarr\.json$)[^/\\\0]+", "in Zarr it names a folder, so without / or \\ or .z in front"),
    "npz": (r"[^/\\\0]+", "its name would be that of a file elsewhere, so without / or \\"),
    "MAT": (r"[A-Za-z][A-Za-z0-9_]{0,62}", "names in MATLAB are a letter, then letters, digits and _, at most 63"),
}
"""For each format that limits names: what they look like, as a pattern and in words."""


def level_names(coverages: Sequence[float], variable: str | None = None) -> list[tuple[str, str]]:
    """Names of the bounds of each coverage: (lower, upper), then (lower_95, upper_95), after `variable` and _."""
    before = "" if variable is None else f"{variable}_"
    after = ["", *(f"_{100 * one:.10g}".replace(".", "_") for one in coverages[1:])]
    return [(f"{before}lower{one}", f"{before}upper{one}") for one in after]


def variable_name(name: str | None) -> str:
    """The name of the filled variable in a NetCDF file or Zarr store: that of the input where a file can hold it."""
    if not name:
        return UNNAMED
    longest = _MAX_BYTES - len("_propensity") - len("_99_9999")
    usable = holds(name) and "\\" not in name and len(name.encode("utf-8", "replace")) <= longest
    return name if usable else re.sub(r"\W", "_", name.encode("ascii", "replace").decode())[:longest]


def companion(variable: str, what: str) -> str:
    """The name of the variable that holds the "lower", "upper", "flag" or "propensity" of another."""
    return f"{variable}_{what}"


def check_labels(path: str | os.PathLike[str], data: object) -> None:
    """Refuse labels of the input that a file of results could not hold."""
    if not is_dataarray(data):
        return
    refuse_axes(path, map(str, data.dims))
    if suffix_of(path) in (*NETCDF, ".zarr"):
        names = [str(name) for name in (*data.dims, *data.coords)]
        refuse_clash(names, variable_name(None if data.name is None else str(data.name)))
        kind = "Zarr" if suffix_of(path) == ".zarr" else "NetCDF"
        refuse_names(path, kind, names, [key for one in (data, *data.coords.values()) for key in one.attrs])


def refuse_clash(names: Iterable[str], variable: str) -> None:
    """Refuse labels with the name of the filled variable or of one of its companions."""
    clash = sorted({variable, *(companion(variable, what) for what in COMPANIONS)} & {*names})
    if clash:
        raise ValueError(
            f"the input has an axis or coordinate called {', '.join(clash)}: rename it before writing a Dataset"
        )


def refuse_axes(path: str | os.PathLike[str], axes: Iterable[str]) -> None:
    """Refuse names of axes that .npz, .mat or a table cannot hold, or needs for the result."""
    suffix, axes = suffix_of(path), list(axes)
    if suffix in (".npz", ".mat"):
        taken = [name for name in axes if name in MEMBERS or re.fullmatch(r"(lower|upper)_\d+(_\d+)?", name)]
    else:
        taken = [name for name in axes if suffix in TABLES and name in COLUMNS]
    if taken:
        raise ValueError(
            f"the input has an axis called {taken[0]}, and {Path(path).name} needs that name for the result: rename it"
        )
    if suffix in (".npz", ".mat"):
        refuse_names(path, "npz" if suffix == ".npz" else "MAT", axes)


def refuse_names(
    path: str | os.PathLike[str], kind: str, names: Iterable[Hashable], attrs: Iterable[Hashable] = ()
) -> None:
    """Refuse names that a kind of file cannot hold; only NetCDF limits those of attributes."""
    given = [("an axis or variable", name) for name in map(str, names)]
    given += [("an attribute", name) for name in map(str, attrs) if kind == "NetCDF"]
    for what, name in given:
        if not holds(name, kind):
            raise ValueError(
                f"{Path(path).name} cannot hold {what} called {name[:80]!r}: {_RULES[kind][1]}, and of at most "
                f"{_MAX_BYTES} bytes; rename it, or write another format, such as .csv"
            )


def holds(name: str, kind: str = "NetCDF") -> bool:
    """Whether a format can hold this name."""
    return bool(re.fullmatch(_RULES[kind][0], name)) and len(name.encode("utf-8", "replace")) <= _MAX_BYTES
