"""Read gridded TEC of the Madrigal database (`gps*g.hdf5`), in either of its two layouts."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corten.io.files import MAX_BYTES, check_size, existing, reading
from corten.io.guards import check_group
from corten.io.table import from_table

if TYPE_CHECKING:
    import h5py
    import xarray as xr

__all__ = ["is_madrigal", "read_madrigal"]

TABLE, ARRAY = "Data/Table Layout", "Data/Array Layout"
_CLOCK = ("year", "month", "day", "hour", "min", "sec")
_NAMES = {"tec": "vertical total electron content", "dtec": "error of the vertical total electron content"}
_ATTRS = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}, "time": {}}


def is_madrigal(file: h5py.File) -> bool:
    """Whether an open HDF5 file has one of the Madrigal layouts."""
    return _inside(file, TABLE) or _inside(file, ARRAY)


def _inside(file: h5py.File, place: str) -> bool:
    """Whether the file itself has the place: links that could lead into another file are not followed."""
    import h5py

    group = place.split("/")[0]
    links = file.get(group, getlink=True), file.get(place, getlink=True) if group in file else None
    return all(isinstance(link, h5py.HardLink) for link in links)


def read_madrigal(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> xr.Dataset:
    """Read `tec` (and `dtec`, where present) over lat, lon, time, in TECU.

    Entries without a row are missing. Missing steps are inserted in regular axes; several rows of one entry are
    averaged and counted in the attribute `duplicates`.

    Examples
    --------
    >>> tec = read_madrigal("gps170908g.002.hdf5").tec                # doctest: +SKIP
    """
    import h5py

    found = existing(path)
    try:
        with h5py.File(found, "r") as file:
            check_group(found, file, max_bytes)
            if _inside(file, ARRAY) and "2D Parameters" in file[ARRAY]:
                return _from_arrays(found, file[ARRAY], max_bytes)
            if _inside(file, TABLE):
                return _from_rows(found, file[TABLE], max_bytes)
            raise ValueError(
                f"{found} has neither '{TABLE}' nor '{ARRAY}/2D Parameters', which a Madrigal grid has; "
                f"it holds {', '.join(file) or 'nothing'}"
            )
    except Exception as problem:
        if str(found) in str(problem):
            raise
        with reading(found, "Madrigal HDF5"):
            raise problem


def _from_rows(path: Path, table: h5py.Dataset, max_bytes: int) -> xr.Dataset:
    import pandas as pd

    fields = {name.lower(): name for name in table.dtype.names or ()}
    wanted = (*_CLOCK, "gdlat", "glon", "tec")
    absent = [name for name in wanted if name not in fields]
    if absent:
        raise ValueError(f"{path}: '{TABLE}' lacks {', '.join(absent)}; it has {', '.join(fields) or 'no columns'}")
    check_size(table.shape, table.dtype.itemsize, max_bytes, str(path))
    rows = table[()]
    if not len(rows):
        raise ValueError(f"{path}: '{TABLE}' has no rows")
    clock = [rows[fields[name]].astype(np.float64) for name in _CLOCK]
    if not all(np.isfinite(part).all() for part in clock):
        raise ValueError(f"{path}: '{TABLE}' has rows without a time")
    months = ((clock[0] - 1970) * 12 + clock[1] - 1).astype("timedelta64[M]") + np.datetime64("1970-01", "M")
    seconds = 86400 * (clock[2] - 1) + 3600 * clock[3] + 60 * clock[4] + np.floor(clock[5])
    times = months.astype("datetime64[s]") + seconds.astype("timedelta64[s]")
    columns = {"lat": rows[fields["gdlat"]].astype(float), "lon": rows[fields["glon"]].astype(float)}
    for name, column in columns.items():
        if not np.isfinite(column).all():
            raise ValueError(f"{path}: '{TABLE}' has rows without {name}")
    columns["time"] = times
    values = {}
    for name in ("tec", "dtec"):
        if name in fields:
            numbers = rows[fields[name]].astype(np.float64)
            frame = pd.DataFrame(columns | {name: np.where(np.isfinite(numbers), numbers, np.nan)})
            grid = from_table(frame, name, list(columns), max_bytes=max_bytes, source=str(path))
            values[name] = grid.data.values
    return _dataset(values, {name: grid.data.coords[name].values for name in columns}, grid.duplicates)


def _from_arrays(path: Path, group: h5py.Group, max_bytes: int) -> xr.Dataset:
    needed = ("timestamps", "gdlat", "glon", "2D Parameters/tec")
    absent = [name for name in needed if name not in group]
    if absent:
        raise ValueError(f"{path}: '{ARRAY}' lacks {', '.join(absent)}; it has {', '.join(group)}")
    axes: dict[str, np.ndarray] = {
        "lat": np.asarray(group["gdlat"][()], dtype=float),
        "lon": np.asarray(group["glon"][()], dtype=float),
        "time": np.floor(group["timestamps"][()]).astype("timedelta64[s]") + np.datetime64("1970-01-01", "s"),
    }
    lengths = tuple(len(labels) for labels in axes.values())
    values = {}
    for name in ("tec", "dtec"):
        stored = group["2D Parameters"].get(name)
        if stored is None:
            continue
        check_size(stored.shape, 8, max_bytes, f"{path}, {name}")
        orders = [order for order in permutations(range(3)) if stored.shape == tuple(lengths[k] for k in order)]
        if not orders:
            raise ValueError(f"{path}: {name} has shape {stored.shape}, expected lat x lon x time, {lengths}")
        # The usual order comes first; another one is taken only if the lengths exclude it.
        values[name] = np.asarray(stored[()], dtype=float).transpose(np.argsort(orders[0]))
    return _dataset(values, axes, 0)


def _dataset(values: dict[str, np.ndarray], axes: dict[str, np.ndarray], duplicates: int) -> xr.Dataset:
    import xarray as xr

    coords: dict[str, tuple[str, np.ndarray, dict[str, str]]] = {
        name: (name, labels.astype("datetime64[ns]") if name == "time" else labels, _ATTRS[name])
        for name, labels in axes.items()
    }
    variables = {
        name: (list(axes), array, {"units": "TECU", "long_name": _NAMES[name]}) for name, array in values.items()
    }
    return xr.Dataset(variables, coords=coords, attrs={"source_format": "Madrigal", "duplicates": duplicates})
