"""A result as an xarray Dataset that follows the CF conventions, and as a NetCDF or Zarr file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from corten.data.axes import in_utc
from corten.data.flags import FLAG_MEANINGS
from corten.data.plain import FOOTNOTE
from corten.io.names import companion, level_names, refuse_clash, refuse_names, variable_name
from corten.io.provenance import about_result, file_attrs, own_attrs, quantity_of, with_references
from corten.io.stores import NAMES_OF, is_text
from corten.io.whole import whole_file

if TYPE_CHECKING:
    import xarray as xr

    from corten.results.intervals import Intervals


def to_dataset(result: Intervals, like: xr.Dataset | None = None, further: Sequence[Intervals] = ()) -> xr.Dataset:
    """The filled variable, its bounds and flags as a Dataset that follows the CF conventions.

    Parameters
    ----------
    like : xarray.Dataset, optional
        The Dataset that the input comes from. Its global attributes, grid mapping and bounds of coordinates, which
        a single DataArray does not have, are copied.

    further : sequence of Intervals, optional
        The same fit at other coverages, whose bounds are added: ``sst_lower_95``, ``sst_upper_95``.

    Returns
    -------
    xarray.Dataset
        The variable, say ``sst`` ("value" if it has no name), with ``sst_lower``, ``sst_upper``, ``sst_flag`` and,
        with a propensity model, ``sst_propensity``. The attribute ``corten_settings`` holds all settings.
    """
    import xarray as xr

    observed, results = result.observed, (result, *further)
    name = variable_name(observed.name)
    dims = [str(axis.dim) for axis in observed.axes]
    refuse_clash([*dims, *map(str, observed.coords if observed.coords is not None else ())], name)
    coords: xr.Coordinates | dict[str, tuple[str, np.ndarray, dict[str, str]]] | None = observed.coords
    if coords is None:
        coords = {
            axis.name: (axis.name, axis.coordinates, {} if axis.units is None else {"units": axis.units})
            for axis in observed.axes
            if axis.coordinates is not None
        }
    coverages = [one.coverage for one in results]
    arrays = {name: result.estimate_array, companion(name, "flag"): result.flag_array}
    for (lower, upper), one in zip(level_names(coverages, name), results):
        arrays |= {lower: one.lower_array, upper: one.upper_array}
    probability = result.source.probabilities
    if probability is not None:
        arrays[companion(name, "propensity")] = np.where(observed.inside, probability, np.nan)
    attrs = described(observed.attrs, observed.name, coverages, propensity=probability is not None)
    about = about_result(
        observed, like, coverage=result.coverage, choices=result.choices, warnings=result.source.warnings(),
        settings=result.source.settings(),
    )  # fmt: skip
    variables = {key: (dims, arrays[key], own) for key, own in attrs.items()}
    return with_references(xr.Dataset(variables, coords=coords, attrs=about), like)


def described(
    attrs: Mapping[str, object], name: str | None, coverages: Sequence[float], *, propensity: bool = False
) -> dict[str, dict[str, object]]:
    """Every variable of a result and its attributes by the CF conventions, from those of the input."""
    quantity, main, first = quantity_of(attrs, name), variable_name(name), own_attrs(attrs)
    first["long_name"] = quantity
    first.setdefault("units", "1")  # what the conventions assume where nothing is said
    grid = {key: first[key] for key in ("grid_mapping", "cell_measures") if key in first}
    found: dict[str, dict[str, object]] = {}
    for pair, coverage in zip(level_names(coverages, main), coverages):
        for bound, what in zip(pair, ("lower", "upper")):
            about = bound_attrs(what, quantity, coverage)
            found[bound] = about | {"units": first["units"], "comment": FOOTNOTE} | grid
    found[companion(main, "flag")] = flag_attrs() | grid
    if propensity:
        about = {"long_name": f"probability that {quantity} is observed", "units": "1"}
        found[companion(main, "propensity")] = about | grid
    return {main: first | {"ancillary_variables": " ".join(found)}} | found


def bound_attrs(what: str, quantity: str, coverage: float) -> dict[str, object]:
    """Attributes of a lower or upper bound, or of a width."""
    kind = {"lower": "lower bound", "upper": "upper bound", "width": "width"}[what]
    return {"long_name": f"{kind} of the {coverage:.4g} prediction interval of {quantity}", "coverage": coverage}


def flag_attrs() -> dict[str, object]:
    """Attributes of the flags."""
    return {
        "long_name": "how each entry got its value",
        "standard_name": "status_flag",
        "flag_values": np.arange(len(FLAG_MEANINGS), dtype=np.int8),
        "flag_meanings": " ".join(FLAG_MEANINGS),
    }


def prepare_for_file(dataset: xr.Dataset) -> xr.Dataset:
    """A copy that files can hold: plain attributes, no stacked indexes, times in UTC, no encodings of another file."""
    import pandas as pd

    dataset = in_utc(dataset)
    stacked = [name for name, index in dataset.indexes.items() if isinstance(index, pd.MultiIndex)]
    ready = dataset.copy(deep=False)
    for dim in {dataset[name].dims[0] for name in stacked}:
        ready = ready.reset_index(dim)
    ready.attrs = file_attrs(dataset.attrs)
    for variable in ready.variables.values():
        variable.attrs = file_attrs(variable.attrs)
        variable.encoding = _small_integers(variable)
    for name, one in ready.coords.items():
        attrs = ready.variables[name].attrs
        if one.dtype.kind == "M" and one.dims == (name,):
            attrs.setdefault("standard_name", "time")
        if not {"standard_name", "long_name"} & {*attrs}:
            attrs["long_name"] = str(name)
        of_axis = [key for key in (name, one.attrs.get("bounds")) if key in ready.variables]
        if one.dtype.kind in "fM" and not one.isnull().any():
            for key in of_axis:
                ready.variables[key].encoding["_FillValue"] = None  # allowed only where a value can be missing
        if one.dtype.kind == "M" and len(of_axis) == 2:
            for key in of_axis:
                ready.variables[key].encoding |= {"units": TIME_UNITS, "dtype": "float64"}  # both need the same
    return ready


def with_text_aside(dataset: xr.Dataset) -> xr.Dataset:
    """Text labels as auxiliary coordinates, station_name for station, as CF asks; `stores.opened` gives them back."""
    for dim in map(str, dataset.dims):
        other = f"{dim}{NAMES_OF}"
        # A name with a space cannot be listed in the attribute `coordinates`.
        text = " " not in dim and dim in dataset.coords and is_text(dataset[dim])
        if text and other not in dataset.variables and other not in dataset.dims:
            labels = dataset.variables[dim]
            dataset = dataset.drop_vars(dim).assign_coords({other: (dim, labels.values, labels.attrs)})
    return dataset


def _small_integers(variable: xr.Variable) -> dict[str, object]:
    """How integers and times are stored: in 32 bits where they fit (CF before 1.9), times in the unit of their file."""
    from xarray.coding.times import encode_cf_datetime

    kept = {key: variable.encoding[key] for key in ("calendar",) if key in variable.encoding}
    numbers: np.ndarray = variable.values if variable.dtype == np.int64 else np.empty(0)
    if variable.dtype.kind == "M" and variable.size and not variable.isnull().any():
        for given in dict.fromkeys([variable.encoding.get("units"), None]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a unit that does not divide the steps
                numbers, units, calendar = encode_cf_datetime(variable.values, given, kept.get("calendar"))
            if numbers.dtype == np.int64:
                kept |= {"units": units, "calendar": calendar}
                break
    limits = np.iinfo(np.int32)
    if numbers.dtype == np.int64 and numbers.size and limits.min <= numbers.min() <= numbers.max() <= limits.max:
        kept["dtype"] = "int32"
    return kept


TIME_UNITS = "seconds since 1970-01-01"
_NETCDF = Lock()  # the C library crashes when two threads of a cluster worker write at once


def write_netcdf(dataset: xr.Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a compressed NetCDF-4 file; it appears when it is complete."""
    ready = with_text_aside(prepare_for_file(dataset))
    named: list[xr.Dataset | xr.Variable] = [ready, *ready.variables.values()]
    refuse_names(path, "NetCDF", [*ready.variables, *ready.dims], [key for one in named for key in one.attrs])
    numeric = [name for name, data in ready.data_vars.items() if data.dtype.kind in "iuf" and data.ndim]
    packing: dict[str, object] = {"zlib": True, "complevel": 4}
    packed = {name: {**packing, **ready[name].encoding} for name in numeric}
    with whole_file(path, overwrite) as temporary, _NETCDF:
        try:
            ready.to_netcdf(temporary, format="NETCDF4", encoding=packed)
        except RuntimeError as problem:  # raised by the library if the disk is full when a file is closed
            raise OSError(
                f"{path} could not be written ({problem}): the disk may be full; make room, or write elsewhere"
            ) from None
    return Path(path)


def write_zarr(dataset: xr.Dataset, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a Zarr store (a folder); it appears when it is complete."""
    refuse_names(path, "Zarr", [*dataset.variables, *dataset.dims])
    with whole_file(path, overwrite, store=True) as temporary:
        # Version 2 of the format holds text coordinates that version 3 has not standardised yet.
        prepare_for_file(dataset).to_zarr(temporary, mode="w-", zarr_format=2, consolidated=True)
    return Path(path)
