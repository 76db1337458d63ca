"""Wide tables in files: rows such as times, and one column of numbers per station; they come back as wide tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corten.data.missing_values import MissingValue, blank_declared, codes_of
from corten.data.wide import labels_of
from corten.io.files import MAX_BYTES, check_size
from corten.io.names import level_names
from corten.io.table import about, labels_in_order, numbers_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from corten.results.intervals import Intervals


@dataclass(frozen=True, eq=False)
class WideTable:
    """A wide table read as a matrix: `data` to complete, and the way back to columns.

    `rows` has the column of row labels, or nothing; `order` the rows of the table in the order of `data`.
    """

    data: xr.DataArray
    frame: pd.DataFrame
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    order: np.ndarray

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading changed."""
        in_order = (self.order == np.arange(len(self.order))).all()
        return () if in_order else (f"the rows were sorted by {self.rows[0]}",)

    def to_frame(self, result: Intervals, further: Sequence[Intervals] = ()) -> pd.DataFrame:
        """The filled table, then A_lower, A_upper (`further`: A_lower_95, ...) and A_flag of each column A."""
        import pandas as pd

        results, own = (result, *further), self.frame[[*self.rows]].copy()
        arrays: dict[str, np.ndarray] = {}
        for names, one in zip(level_names([one.coverage for one in results]), results):
            arrays |= dict(zip(names, (one.lower_array, one.upper_array)))
        arrays["flag"] = result.flag_array
        back = np.argsort(self.order)
        columns = dict(zip(self.columns, result.estimate_array[back].T))
        for k, name in enumerate(self.columns):
            columns |= {f"{name}_{what}": array[back, k] for what, array in arrays.items()}
        made = pd.concat([own, pd.DataFrame(columns, index=own.index)], axis=1)
        made.attrs["corten"] = about(result)
        return made


def why_not_wide(frame: pd.DataFrame) -> str:
    """Why a table is not wide, with labels of rows (text, or increasing numbers) and columns of numbers; or empty."""
    import pandas as pd

    if frame.shape[1] < 3:
        return "it has fewer than three columns"
    first, name = frame.iloc[:, 0], frame.columns[0]
    is_number, is_bool = pd.api.types.is_numeric_dtype, pd.api.types.is_bool_dtype
    text = [str(name) for name, kind in frame.dtypes.iloc[1:].items() if is_bool(kind) or not is_number(kind)]
    if text:
        return f"column {text[0]!r} is not numbers: remove it"
    if first.isna().any():
        return f"column {name!r} has an empty label"
    if not first.is_unique:
        twice = first[first.duplicated()].iloc[0]
        return f"column {name!r} has the label {twice} twice: average these rows, or keep one"
    if pd.api.types.is_numeric_dtype(first.dtype) and not first.is_monotonic_increasing:
        return f"the numbers in column {name!r} do not increase"
    return ""


def from_wide(
    frame: pd.DataFrame,
    axes: Sequence[str] | None = None,
    *,
    missing_value: MissingValue = None,
    max_bytes: int = MAX_BYTES,
    source: str = "the table",
) -> WideTable:
    """A wide table as a matrix and the way back; axes: names of rows and columns, by default the first column's."""
    import pandas as pd
    import xarray as xr

    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if frame.columns.has_duplicates:
        raise ValueError(f"{source} has a column name twice; the columns are {', '.join(frame.columns)}")
    if frame.empty:
        raise ValueError(f"{source} has no rows or no columns")
    first = frame.iloc[:, 0]
    labelled = int(
        not pd.api.types.is_numeric_dtype(first.dtype)
        or bool(first.notna().all() and first.is_unique and first.is_monotonic_increasing)
    )
    rows, columns = tuple(frame.columns[:labelled]), tuple(frame.columns[labelled:])
    results = [name for name in columns if {f"{name}_lower", f"{name}_upper", f"{name}_flag"} <= {*columns}]
    if results:
        name = results[0]
        raise ValueError(f"{source} is a result of corten: it has {name}, {name}_lower, {name}_upper and {name}_flag")
    check_size((len(frame), max(len(columns), 1)), 8, max_bytes, source)
    values = np.empty((len(frame), len(columns)))
    for k, name in enumerate(columns):
        values[:, k] = numbers_of(frame[name], name, source)
    blank_declared(values, codes_of(missing_value))
    dims = [rows[0] if rows and not rows[0].startswith("Unnamed: ") else "row", "column"]
    if axes is not None:
        dims = [str(name) for name in axes]
    if len(dims) != 2 or dims[0] == dims[1]:
        raise ValueError(f"{source} is a wide table, a matrix: name its two axes, rows and columns, not {dims}")
    coords: dict[str, np.ndarray | pd.DatetimeIndex | None] = {}
    order = np.arange(len(frame))
    if rows:
        labels = labels_in_order(first, rows[0], source, max_bytes)
        if pd.Index(labels).has_duplicates:
            raise ValueError(f"{source}: {rows[0]!r} has a label twice; a long table is read with --layout long")
        order = np.argsort(labels, kind="stable") if labels.dtype.kind in "iufM" else order
        coords[dims[0]] = labels[order]
    coords[dims[1]] = labels_of(pd.Index(columns))
    data = xr.DataArray(values[order], dims=dims, coords=coords)
    return WideTable(data, frame, rows, columns, order)
