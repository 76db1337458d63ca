"""Write a result to a file; the suffix decides the format. It appears when it is complete."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corten.io.dataset import to_dataset, write_netcdf, write_zarr
from corten.io.files import suffix_of
from corten.io.names import level_names, refuse_axes
from corten.io.registry import WRITABLE, format_of, resolve
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
    writer = resolve(str(format_of(path).writer))
    writer(Path(path), Output((result, *further), table, like), overwrite)
    return Path(path)


@dataclass(frozen=True)
class Output:
    """What the writer of a format gets: one fit at one or more coverages, the table or the Dataset it comes from."""

    results: tuple[Intervals, ...]
    table: LongTable | WideTable | None = None
    like: xr.Dataset | None = None

    def further_bounds(self) -> list[tuple[str, int, str]]:
        """Of each bound of a further coverage its name, the position of its result, and which bound it is."""
        names = level_names([one.coverage for one in self.results])
        return [(name, k, end) for k, pair in enumerate(names) if k for name, end in zip(pair, names[0])]

    def further_arrays(self) -> dict[str, np.ndarray]:
        """The bounds of the further coverages by name."""
        return {name: getattr(self.results[k], f"{end}_array") for name, k, end in self.further_bounds()}

    def frame(self) -> pd.DataFrame:
        """One table of all coverages, long or wide as the table that was read."""
        if isinstance(self.table, WideTable):
            return self.table.to_frame(self.results[0], self.results[1:])
        frames = [long_form(one) if self.table is None else self.table.to_frame(one) for one in self.results]
        for name, k, end in self.further_bounds():
            frames[0][name] = frames[k][end].to_numpy()
        return frames[0]

    def dataset(self) -> xr.Dataset:
        """Everything with labels, by the CF conventions."""
        return to_dataset(self.results[0], self.like, self.results[1:])

    def file(self, path: Path, overwrite: bool) -> AbstractContextManager[Path]:
        """The temporary file of a format without labels; axes that it cannot hold are refused."""
        refuse_axes(path, [axis.name for axis in self.results[0].observed.axes])
        return whole_file(path, overwrite)


def netcdf_writer(path: Path, output: Output, overwrite: bool) -> None:
    """Write .nc and .h5."""
    write_netcdf(output.dataset(), path, overwrite=overwrite)


def zarr_writer(path: Path, output: Output, overwrite: bool) -> None:
    """Write a Zarr store."""
    write_zarr(output.dataset(), path, overwrite=overwrite)


def table_writer(path: Path, output: Output, overwrite: bool) -> None:
    """Write .csv, .csv.gz and .parquet."""
    with output.file(path, overwrite) as temporary:
        write_table(output.frame(), temporary, suffix_of(path))


def array_writer(path: Path, output: Output, overwrite: bool) -> None:
    """Write estimate, lower and upper bounds, stacked along a new first axis, as .npy."""
    first = output.results[0]
    stacked = [first.estimate_array, first.lower_array, first.upper_array, *output.further_arrays().values()]
    with output.file(path, overwrite) as temporary:
        np.save(temporary, np.stack(stacked))


def arrays_writer(path: Path, output: Output, overwrite: bool) -> None:
    """Write all arrays by name as .npz and .mat."""
    arrays = _arrays(output.results[0]) | output.further_arrays()
    if len(output.results) > 1:
        arrays["coverages"] = np.array([one.coverage for one in output.results])
    with output.file(path, overwrite) as temporary:
        write_arrays(temporary, suffix_of(path), arrays)


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
