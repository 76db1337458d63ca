"""What a result file keeps of the file it comes from: attributes, history, grid mapping, bounds of coordinates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from corten import __version__
from corten.data.choices import Choice
from corten.data.never_observed import Described
from corten.data.plain import FOOTNOTE, plain
from corten.io.names import UNNAMED, holds

if TYPE_CHECKING:
    import xarray as xr

CONVENTIONS = "CF-1.11"
REFERENCES = ("grid_mapping", "cell_measures", "bounds", "climatology")  # attributes that name other variables
_CF = re.compile(r"(CF|COARDS)\b.*", re.IGNORECASE)
# These describe the packing or range of the input, and would be wrong for the output.
_OF_THE_INPUT = {
    "_FillValue", "missing_value", "scale_factor", "add_offset", "coordinates", "ancillary_variables",
    "valid_min", "valid_max", "valid_range", "actual_range", "bounds", "history",
    "flag_values", "flag_meanings", "flag_masks",
}  # fmt: skip
# These name one file, or say which of its variables are coordinates.
_OF_THE_FILE = {"id", "uuid", "tracking_id", "checksum", "coordinates"}


def own_attrs(attrs: Mapping[str, object]) -> dict[str, object]:
    """Attributes of a variable that are true of its filled version too."""
    return {key: value for key, value in attrs.items() if key not in _OF_THE_INPUT}


def quantity_of(attrs: Mapping[str, object], name: str | None) -> str:
    """What was measured, in words."""
    return str(attrs.get("long_name") or name or UNNAMED)


def about_result(
    x: Described, like: xr.Dataset | None, *, coverage: float, choices: Sequence[Choice], warnings: Sequence[str],
    settings: Mapping[str, object],
) -> dict[str, object]:  # fmt: skip
    """Global attributes of a result of x: those of `like`, history and comment continued, settings as JSON."""
    before = {key: one for key, one in x.attrs.items() if key == "history"} | ({} if like is None else dict(like.attrs))
    quantity = quantity_of(x.attrs, x.name)
    names = {key: str(key) for key in before if key not in _OF_THE_FILE and not str(key).startswith("corten_")}
    kept = {name: before[key] for key, name in names.items() if holds(name)}
    done = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} corten {__version__}: gaps filled, {coverage:.4g} intervals"
    others = [one for one in re.split(r"[,\s]+", str(kept.get("Conventions", ""))) if one and not _CF.fullmatch(one)]
    title = kept.get("title")
    chosen = {choice.what: plain(choice.taken) for choice in choices}
    return kept | {
        "Conventions": ", ".join([CONVENTIONS, *others]),
        "title": f"{title}, gaps filled" if title else f"{quantity}: gaps filled, with prediction intervals",
        "source": kept.get("source") or f"corten {__version__}, conformal Riemannian tensor completion",
        "history": _appended(kept.get("history"), [done], "\n"),
        "comment": _appended(kept.get("comment"), [FOOTNOTE, *warnings], "\n"),
        "corten_settings": json.dumps(
            plain({"coverage": coverage, **settings, "chosen": chosen}), separators=(",", ":")
        ),
    }


def _appended(before: object, after: Iterable[str], between: str) -> str:
    """Text with further text after it; nothing is said twice."""
    said = str(before).rstrip() if before else ""
    return between.join([*([said] if said else []), *(one for one in after if one not in said)])


def file_attrs(attrs: Mapping[str, object]) -> dict[str, object]:
    """Attributes that any file format can hold: numbers, text and arrays of numbers; the rest as JSON."""
    held: dict[str, object] = {}
    for key, value in attrs.items():
        if isinstance(value, list) and value and all(type(one) in (int, float) for one in value):
            value = np.array(value)
        simple = isinstance(value, str | int | float | np.integer | np.floating) and not isinstance(value, bool)
        numbers = isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.ndim <= 1 and value.size > 0
        held[str(key)] = value if simple or numbers else json.dumps(plain(value))
    return held


def referred(attrs: Mapping[str, object]) -> list[str]:
    """Variables that attributes refer to: a grid mapping, cell measures, the bounds of a coordinate."""
    found: list[str] = []
    for key in REFERENCES:
        words = text.split() if isinstance(text := attrs.get(key), str) else []
        if key == "cell_measures":
            words = [word for word in words if not word.endswith(":")]
        elif any(word.endswith(":") for word in words):  # a grid mapping of its coordinates, "crs: x y"
            words = [word.removesuffix(":") for word in words if word.endswith(":")]
        found += words
    return found


def surroundings(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """Global attributes, and the variables that one variable and its coordinates refer to; nothing is loaded."""
    described = [dataset[name], *dataset[name].coords.values()]
    wanted = [other for one in described for other in referred(one.encoding | one.attrs) if other in dataset.variables]
    return dataset[list(dict.fromkeys(wanted))]


def with_references(dataset: xr.Dataset, like: xr.Dataset | None) -> xr.Dataset:
    """A Dataset with the variables of `like` that its attributes refer to, and without references to nothing."""
    marks = {"grid_mapping_name", "crs_wkt", "spatial_ref"}
    grids = [name for name, one in dataset.coords.items() if not one.dims and marks & {*one.attrs}]
    dataset = dataset.reset_coords(grids).copy(deep=False)  # as a coordinate it would be taken for a position
    if grids:
        for name, one in dataset.data_vars.items():
            if name not in grids:
                one.attrs.setdefault("grid_mapping", str(grids[0]))
    added: dict[str, xr.Variable] = {}
    for variable in dataset.variables.values():
        kept = dict(variable.attrs)
        for key in REFERENCES:
            names = referred({key: kept.get(key)})
            added |= {name: like[name].variable for name in names if like is not None and _fits(like, name, dataset)}
            if key in kept and not all(name in added or name in dataset.variables for name in names):
                del kept[key]
        variable.attrs = kept
    return dataset.assign({name: one for name, one in added.items() if name not in dataset.variables})


def _fits(like: xr.Dataset, name: str, dataset: xr.Dataset) -> bool:
    """Whether a variable of `like` has the axes of the Dataset, position by position."""
    if name not in like.variables:
        return False
    for dim in like[name].dims:
        if dim not in dataset.sizes:
            continue
        if like.sizes[dim] != dataset.sizes[dim]:
            return False
        labelled = dim in like.coords and dim in dataset.coords
        if labelled and not np.array_equal(like[dim].values, dataset[dim].values):
            return False
    return True
