"""Write a result to a file, whole or not at all; the suffix says how."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.io.dataset import to_dataset, write_netcdf, write_zarr
from corten.io.files import suffix_of
from corten.io.names import NETCDF, TABLES, refuse_for_members
from corten.io.table import LongTable, about, long_form
from corten.io.whole import refuse_taken, whole_file

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

__all__ = ["WRITABLE", "check_target", "write"]

WRITABLE = (*NETCDF, ".zarr", ".npz", ".npy", *TABLES, ".mat")
_FORMULA = re.compile(r"[=+\-@\t\n]")


def check_target(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Refuse a target before the long work starts: unknown suffix, existing file, absent folder."""
    if suffix_of(path) not in WRITABLE:
        raise ValueError(f"{path} has no suffix to write by; the known ones are {', '.join(WRITABLE)}")
    refuse_taken(Path(path), overwrite, store=suffix_of(path) == ".zarr")


def write(
    path: str | os.PathLike[str],
    result: Intervals,
    *,
    overwrite: bool = False,
    table: LongTable | None = None,
) -> Path:
    """Write a result; an existing file is refused.

    .nc .h5 .zarr hold everything with labels; .npz and .mat the arrays and coordinates; .npy estimate, lower
    and upper stacked along a new first mode; .csv .csv.gz .parquet one row per cell or, given the `table`
    that was read, its own rows in their order followed by rows for the missing cells. All but .npy and .csv, which
    have no place for it, hold the seed and all settings.

    Example:
        >>> write("filled.nc", result)                                    # doctest: +SKIP
    """
    check_target(path, overwrite)
    suffix = suffix_of(path)
    if suffix in NETCDF:
        return write_netcdf(to_dataset(result), path, overwrite=overwrite)
    if suffix == ".zarr":
        return write_zarr(to_dataset(result), path, overwrite=overwrite)
    refuse_for_members(path, [axis.name for axis in result.observed.axes])
    with whole_file(path, overwrite) as temporary:
        if suffix in TABLES:
            write_table(long_form(result) if table is None else table.to_frame(result), temporary, suffix)
        elif suffix == ".npy":
            np.save(temporary, np.stack([result.estimate_array, result.lower_array, result.upper_array]))
        elif suffix == ".npz":
            # Passed as one mapping: an axis may be called anything, "file" included.
            _save_npz(temporary, _arrays(result))
        else:
            from scipy.io import savemat

            savemat(temporary, _arrays(result), appendmat=False, do_compression=True, long_field_names=True)
    return Path(path)


def write_table(frame: Any, path: Path, suffix: str) -> None:
    """Write a table as .parquet, .csv or .csv.gz.

    In .csv text that a spreadsheet would take for a formula (=, +, -, @, a tab or a return in front) gets a ' in front,
    in cells and in the names of columns; numbers, also as text, stay as they are. A return inside text becomes a line
    feed, which is quoted: what follows it would be the start of a row.
    """
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
        return
    safe = frame.rename(columns=_no_formula)
    for k, kind in enumerate(safe.dtypes):
        if kind.kind in "OU" or str(kind) in ("string", "str", "category"):
            safe.isetitem(k, safe.iloc[:, k].astype(object).map(_no_formula))
    safe.to_csv(path, index=False, compression="gzip" if suffix.endswith(".gz") else None)


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _arrays(result: Intervals) -> dict[str, np.ndarray]:
    """All arrays by name, coordinates as numbers or text, and what was done as JSON."""
    found: dict[str, Any] = {}
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


def _save_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import zipfile

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
