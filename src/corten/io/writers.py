"""Write a result to a file; the suffix decides the format. It appears when it is complete."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corten.io.dataset import to_dataset, write_netcdf, write_zarr
from corten.io.files import suffix_of
from corten.io.names import level_names, refuse_axes
from corten.io.registry import NETCDF, TABLES, WRITABLE
from corten.io.table import LongTable, about, long_form
from corten.io.whole import refuse_taken, whole_file
from corten.io.wide import WideTable

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from corten.results.intervals import Intervals

_FORMULA = re.compile(r"^(?=[\t\n])|(^|(?<=[;\t\n]))(?=[=+\-@＝＋－＠])")  # full-width signs too


def check_target(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Refuse a target before the long work starts: unknown suffix, existing file, absent folder."""
    if suffix_of(path) not in WRITABLE:
        raise ValueError(f"{path} has no known suffix; files can be written as {', '.join(WRITABLE)}")
    refuse_taken(Path(path), overwrite, store=suffix_of(path) == ".zarr")


def write(
    path: str | os.PathLike[str],
    result: Intervals,
    *,
    further: Sequence[Intervals] = (),
    overwrite: bool = False,
    table: LongTable | WideTable | None = None,
    like: xr.Dataset | None = None,
) -> Path:
    """Write a result; an existing file is refused.

    further: the same fit at other coverages, written beside it as lower_95, upper_95 (in .nc and .zarr sst_lower_95).
    like: the Dataset that the input comes from: .nc and .zarr get its global attributes, grid mapping and bounds.
    .nc .h5 .zarr hold everything with labels; .npz and .mat the arrays and coordinates; .npy estimate, lower
    and upper stacked along a new first axis; .csv .csv.gz .parquet one row per entry or, given the `table`
    that was read, its own rows in their order followed by rows for the missing entries (a wide table: its own columns,
    filled, followed by the bounds and flags of each). All but .npy and .csv, which
    have no place for it, hold the seed and all settings.

    Examples
    --------
    >>> write("filled.nc", result)                                    # doctest: +SKIP
    """
    check_target(path, overwrite)
    suffix = suffix_of(path)
    if suffix in NETCDF or suffix == ".zarr":
        store = write_zarr if suffix == ".zarr" else write_netcdf
        return store(to_dataset(result, like, further), path, overwrite=overwrite)
    results = (result, *further)
    names = level_names([one.coverage for one in results])
    # Of each further bound its name, the position of its result, and which bound it is.
    bounds = [(name, k, end) for k, pair in enumerate(names) if k for name, end in zip(pair, names[0])]
    arrays = {name: getattr(results[k], f"{end}_array") for name, k, end in bounds}
    refuse_axes(path, [axis.name for axis in result.observed.axes])
    with whole_file(path, overwrite) as temporary:
        if suffix in TABLES:
            write_table(_table(results, bounds, table), temporary, suffix)
        elif suffix == ".npy":
            np.save(
                temporary, np.stack([result.estimate_array, result.lower_array, result.upper_array, *arrays.values()])
            )
        else:
            if further:
                arrays["coverages"] = np.array([one.coverage for one in results])
            write_arrays(temporary, suffix, _arrays(result) | arrays)
    return Path(path)


def _table(
    results: Sequence[Intervals], bounds: Sequence[tuple[str, int, str]], table: LongTable | WideTable | None
) -> pd.DataFrame:
    """One table of all coverages, long or wide as the table that was read."""
    if isinstance(table, WideTable):
        return table.to_frame(results[0], results[1:])
    frames = [long_form(one) if table is None else table.to_frame(one) for one in results]
    for name, k, end in bounds:
        frames[0][name] = frames[k][end].to_numpy()
    return frames[0]


def write_table(frame: pd.DataFrame, path: Path, suffix: str) -> None:
    """Write a table as .parquet, .csv or .csv.gz.

    In .csv text that a spreadsheet would take for a formula (=, +, -, @, a tab or a return in front, also after a
    semicolon, tab or return, where some spreadsheets begin a cell) gets a ' in front, in values and in the names of
    columns; numbers, also as text, stay as they are. A return inside text becomes a line feed, which is quoted: what
    follows it would be the start of a row.
    """
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
        return
    safe = frame.rename(columns=_no_formula)
    for k, kind in enumerate(safe.dtypes):
        if kind.kind in "OU" or str(kind) in ("string", "str", "category"):
            safe.isetitem(k, safe.iloc[:, k].astype(object).map(_no_formula))
    safe.to_csv(path, index=False, compression="gzip" if suffix.endswith(".gz") else None)


def _no_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    try:
        float(value)
    except ValueError:
        return _FORMULA.sub("'", value)
    return value


def _arrays(result: Intervals) -> dict[str, np.ndarray]:
    """All arrays by name, coordinates as numbers or text, and what was done as JSON."""
    found: dict[str, np.ndarray] = {}
    for axis in result.observed.axes:
        if axis.coordinates is not None:
            labels = axis.coordinates
            found[axis.name] = labels if labels.dtype.kind in "biuf" else labels.astype(str)
    found |= {
        "estimate": result.estimate_array,
        "lower": result.lower_array,
        "upper": result.upper_array,
        "flag": result.flag_array,
        "axes": np.array([axis.name for axis in result.observed.axes]),
        "coverage": np.array(result.coverage),
        "about": np.array(about(result)),
    }
    return found


def write_arrays(path: Path, suffix: str, arrays: dict[str, np.ndarray]) -> None:
    """Write .npz or .mat. NumPy's own function takes names as arguments, and an axis may be called "file"."""
    if suffix == ".mat":
        from scipy.io import savemat

        savemat(path, arrays, appendmat=False, do_compression=True, long_field_names=True)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
