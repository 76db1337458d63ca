"""A result as an xarray Dataset that follows the CF conventions, and as a NetCDF or Zarr file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.data.axes import in_utc
from corten.data.plain import FOOTNOTE, plain
from corten.io.names import refuse_clash, refuse_for_netcdf, refuse_for_zarr
from corten.io.whole import whole_file

if TYPE_CHECKING:
    import xarray as xr

    from corten.results.intervals import Intervals
    from corten.results.summary import Summary

__all__ = ["own_attrs", "prepare_for_file", "store_attrs", "to_dataset", "write_netcdf", "write_zarr"]

CONVENTIONS = "CF-1.11"
# These describe how the input was packed or its range, and would be wrong for what we write.
_OF_THE_INPUT = {
    "_FillValue", "missing_value", "scale_factor", "add_offset", "coordinates", "ancillary_variables",
    "valid_min", "valid_max", "valid_range", "actual_range", "bounds", "history",
    "flag_values", "flag_meanings", "flag_masks",
}  # fmt: skip


def to_dataset(result: Intervals) -> xr.Dataset:
    """estimate, lower, upper, flag (and the probability of being observed, where known) with CF attributes.

    All settings, the seed, every automatic choice and every warning are in the global attributes.
    """
    import xarray as xr

    observed = result.observed
    dims = [str(axis.dim) for axis in observed.axes]
    refuse_clash([*dims, *map(str, observed.coords if observed.coords is not None else ())])
    coords: Any = observed.coords
    if coords is None:
        coords = {
            axis.name: (axis.name, axis.coordinates, {} if axis.units is None else {"units": axis.units})
            for axis in observed.axes
            if axis.coordinates is not None
        }
    quantity = str(observed.attrs.get("long_name") or observed.name or "value")
    own = own_attrs(observed.attrs)
    arrays = {"estimate": result.estimate_array, "lower": result.lower_array, "upper": result.upper_array}
    attrs: dict[str, dict[str, Any]] = {
        "estimate": own | {"long_name": f"{quantity}, gaps filled"},
        "lower": result._bound_attrs("lower"),
        "upper": result._bound_attrs("upper"),
        "flag": result._flag_attrs(),
    }
    arrays["flag"] = result.flag_array
    probability = result.source.propensity_array()
    if probability is not None:
        arrays["propensity"] = np.where(observed.inside, probability, np.nan)
        attrs["propensity"] = {"long_name": f"probability that {quantity} is observed", "units": "1"}
    if "standard_name" in own:
        attrs["flag"]["standard_name"] = f"{own['standard_name']} status_flag"
    for end in ("lower", "upper"):
        attrs[end]["comment"] = FOOTNOTE
    attrs["estimate"]["ancillary_variables"] = " ".join(name for name in arrays if name != "estimate")
    variables = {name: (dims, array, attrs[name]) for name, array in arrays.items()}
    return xr.Dataset(variables, coords=coords, attrs=_global_attrs(result, quantity))


def own_attrs(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Attributes of the input that are true of its filled version too."""
    return {key: value for key, value in attrs.items() if key not in _OF_THE_INPUT}


def _global_attrs(result: Intervals, quantity: str) -> dict[str, Any]:
    before = result.observed.attrs.get("history")
    return store_attrs(quantity, before, result.summary(), result.source.warnings(), result.source.settings())


def store_attrs(
    quantity: str, before: Any, summary: Summary, warnings: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What a file of results says of itself: conventions, history, choices, summary, warnings, settings."""
    from corten import __version__

    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    done = f"{now} corten {__version__}: gaps filled, {summary.coverage:.4g} intervals"
    attrs: dict[str, Any] = {
        "Conventions": CONVENTIONS,
        "title": f"{quantity}: gaps filled, with intervals",
        "source": f"corten {__version__}, conformal Riemannian tensor completion",
        "history": f"{done}\n{before}" if before else done,
        "comment": FOOTNOTE,
        "coverage": summary.coverage,
        "corten_choices": json.dumps(plain([vars(choice) for choice in summary.choices])),
        "corten_summary": json.dumps(summary.to_dict()),
    }
    if warnings:
        attrs["corten_warnings"] = "\n".join(warnings)
    return attrs | {f"corten_{key}": value for key, value in _file_attrs(settings).items()}


def _file_attrs(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes that any file format can hold: numbers, text and arrays of numbers; the rest as JSON."""
    held: dict[str, Any] = {}
    for key, value in attrs.items():
        simple = isinstance(value, str | int | float | np.integer | np.floating) and not isinstance(
            value, bool
        )
        numbers = (
            isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.ndim <= 1 and value.size > 0
        )
        held[str(key)] = value if simple or numbers else json.dumps(plain(value))
    return held


def prepare_for_file(dataset: xr.Dataset) -> xr.Dataset:
    """A copy without what files cannot hold: odd attributes, stacked indexes, time zones (times become UTC, and an
    attribute says so), encodings of another file.
    """
    import pandas as pd

    dataset = in_utc(dataset)
    stacked = [name for name, index in dataset.indexes.items() if isinstance(index, pd.MultiIndex)]
    ready = dataset.copy(deep=False)
    for dim in {dataset[name].dims[0] for name in stacked}:
        ready = ready.reset_index(dim)
    ready.attrs = _file_attrs(dataset.attrs)
    for variable in ready.variables.values():
        variable.attrs = _file_attrs(variable.attrs)
        variable.encoding = {key: variable.encoding[key] for key in ("calendar",) if key in variable.encoding}
    return ready


_NETCDF = Lock()  # the library in C crashes where two threads of a cluster's worker write at once


def write_netcdf(dataset: xr.Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a compressed NetCDF-4 file, whole or not at all."""
    ready = prepare_for_file(dataset)
    named: Any = (ready, *ready.variables.values())
    refuse_for_netcdf(path, [*ready.variables, *ready.dims], [key for one in named for key in one.attrs])
    numeric = [name for name, data in ready.data_vars.items() if data.dtype.kind in "iuf" and data.ndim]
    with whole_file(path, overwrite) as temporary, _NETCDF:
        try:
            ready.to_netcdf(
                temporary, format="NETCDF4", encoding={name: {"zlib": True, "complevel": 4} for name in numeric}
            )
        except RuntimeError as problem:  # how the library tells of a disk that is full while it closes a file
            raise OSError(
                f"{path} could not be written ({problem}): the disk may be full; make room, or write elsewhere"
            ) from None
    return Path(path)


def write_zarr(dataset: xr.Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a Zarr store (a folder), whole or not at all."""
    refuse_for_zarr(path, [*dataset.variables, *dataset.dims])
    with whole_file(path, overwrite, store=True) as temporary:
        # Version 2 of the format holds text coordinates that version 3 has not standardised yet.
        prepare_for_file(dataset).to_zarr(temporary, mode="w-", zarr_format=2, consolidated=True)
    return Path(path)
