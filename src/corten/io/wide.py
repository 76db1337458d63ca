"""Wide tables in files: rows such as times, and one column of numbers per station; they come back as wide tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        """The table with its gaps filled, followed by the lower bound, upper bound and flag of each column.

        Column A is followed by A_lower, A_upper and A_flag after the last of the table's own columns; `further` adds
        bounds of other coverages, such as A_lower_95.
        """
        import pandas as pd

        results, own = (result, *further), self.frame[[*self.rows]].copy()
        names = level_names([one.coverage for one in results])
        filled = {name: self._column(result.estimate_array, k) for k, name in enumerate(self.columns)}
        added: dict[str, Any] = {}
        for k, column in enumerate(self.columns):
            for (lower, upper), one in zip(names, results):
                added[f"{column}_{lower}"] = self._column(one.lower_array, k)
                added[f"{column}_{upper}"] = self._column(one.upper_array, k)
            added[f"{column}_flag"] = self._column(result.flag_array, k)
        made = pd.concat([own, pd.DataFrame(filled | added, index=own.index)], axis=1)
        made.attrs["corten"] = about(result)
        return made

    def _column(self, array: np.ndarray, k: int) -> np.ndarray:
        column = np.empty(len(self.order), array.dtype)
        column[self.order] = array[:, k]
        return column


def why_not_wide(frame: pd.DataFrame) -> str:
    """Why a table is not wide; empty if it is.

    The first column of a wide table labels the rows, and two or more columns follow, all of numbers. Labels are text or
    dates, or numbers that increase, each given once.
    """
    import pandas as pd

    if frame.shape[1] < 3:
        return "it has fewer than three columns"
    first, name = frame.iloc[:, 0], frame.columns[0]
    text = [str(column) for column, kind in frame.dtypes.iloc[1:].items() if not _holds_numbers(kind)]
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
    """A wide table as a matrix, and the way back to the table.

    The first column labels the rows if it does not look like data (see `why_not_wide`). axes: names of rows and
    columns, by default the name of the first column, and "column"; source: what to call the table in errors. A value
    that is no number, or a label that is given twice, is a ValueError.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"day": ["2024-01-01", "2024-01-02"], "Bern": [1.0, None], "Zug": [3.0, 4.0]})
    >>> from_wide(frame).data.dims, from_wide(frame).columns
    (('day', 'column'), ('Bern', 'Zug'))
    """
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
    coords: dict[str, Any] = {}
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


def _holds_numbers(kind: Any) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(kind)) and not pd.api.types.is_bool_dtype(kind)
