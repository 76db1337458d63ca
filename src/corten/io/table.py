"""Long tables: coordinate columns and a value column become a tensor, and come back with intervals; tables in files."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corten.data.axes import zone_of
from corten.data.missing_values import MissingValue, blank_declared, codes_of, report_suspects
from corten.data.plain import plain
from corten.data.wide import is_frame, refuse_other_dates
from corten.io.files import MAX_BYTES, check_size, reading, suffix_of
from corten.io.folding import fold_time, regular_axis, unfold_time

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from pyarrow.parquet import ParquetFile

    from corten.results.intervals import Intervals

__all__ = ["LongTable", "about", "from_table", "labels_in_order", "long_form", "numbers_of"]

_DATE = re.compile(r"\s*\d{4}-\d{2}-\d{2}")
_OFFSET = re.compile(r"\d\d:\d\d.*([Zz]|[+-]\d\d(:?\d\d)?)\s*$")
ANSWERS = ("estimate", "lower", "upper", "flag")
MAX_TEXT_ROWS = 1024  # of a Parquet file, read at a time while its text is counted
_START = 1 << 16  # bytes of a CSV file from which its marks are found
_DECIMAL_COMMA = re.compile(rb"(^|[;\t\n])-?\d+,\d+([;\t\r\n]|$)")


@dataclass(frozen=True, eq=False)
class LongTable:
    """A long table read as a tensor: `data` (and `where`) to complete, and the way back to rows.

    `duplicates` counts the rows that share an entry with another row (they are averaged), `inserted` the steps
    inserted in each regular axis. `zones` has the time zone of each column whose times have one: the
    tensor has them in UTC, `to_frame` gives them back in their zone.
    """

    data: xr.DataArray
    where: xr.DataArray | None
    frame: pd.DataFrame
    value: str
    coordinates: tuple[str, ...]
    entries: np.ndarray
    duplicates: int
    inserted: Mapping[str, int]
    fold: Mapping[str, tuple[str, str]]
    zones: Mapping[str, tzinfo | str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading changed."""
        notes = [f"{count} missing step(s) inserted along {axis}" for axis, count in self.inserted.items()]
        if self.duplicates:
            notes.append(f"{self.duplicates} row(s) share an entry with another row: their mean is used")
        for axis, zone in self.zones.items():
            notes.append(f"the times of {axis} are in the zone {zone}, and used in UTC")
        return tuple(notes)

    def to_frame(self, result: Intervals) -> pd.DataFrame:
        """The rows in their order with estimate, lower, upper and flag; then rows for the other missing entries.

        Examples
        --------
        >>> table = from_table(frame, value="speed")                              # doctest: +SKIP
        >>> table.to_frame(corten.complete(table.data, where=table.where))        # doctest: +SKIP
        """
        import pandas as pd

        clash = [name for name in ANSWERS if name in self.frame.columns]
        if clash:
            raise ValueError(f"the table already has the column {', '.join(clash)}: rename it first")
        arrays = {name: unfold_time(_labelled(result, name), self.fold) for name in ANSWERS}
        grid = arrays["estimate"]
        answers = {name: array.transpose(*self.coordinates).values.ravel() for name, array in arrays.items()}
        there = np.zeros(grid.size, dtype=bool)
        there[self.entries] = True
        extra = np.flatnonzero(~there & (answers["flag"] != 4))
        rows = np.concatenate([self.entries, extra])
        places = np.unravel_index(extra, tuple(grid.sizes[name] for name in self.coordinates))
        labels: dict[str, np.ndarray | pd.DatetimeIndex] = {
            name: grid.coords[name].values[place] for name, place in zip(self.coordinates, places)
        }
        for name, zone in self.zones.items():
            labels[name] = pd.DatetimeIndex(labels[name]).tz_localize("UTC").tz_convert(zone)
        whole = self.frame.reset_index(drop=True)
        if extra.size:
            whole = pd.concat([whole, pd.DataFrame(labels)], ignore_index=True)
        answered = whole.assign(**{name: array[rows] for name, array in answers.items()})
        answered.attrs["corten"] = about(result)
        return answered


def from_table(
    frame: pd.DataFrame,
    value: str | None = None,
    coordinates: Sequence[str] | None = None,
    *,
    axis_kinds: Mapping[str, str] | None = None,
    fold: Mapping[str, tuple[str, str]] | None = None,
    missing_value: MissingValue = None,
    max_bytes: int = MAX_BYTES,
    source: str = "the table",
) -> LongTable:
    """Read a long table as a tensor.

    Text columns become unordered axes in order of appearance. Numeric and datetime columns are sorted, and where they
    are regular the missing steps are inserted.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per entry. Rows may be missing, or share an entry.
    value : str, optional
        The column of values. Default: "value" if there is one.
    coordinates : sequence of str, optional
        The columns that become axes. Default: all others.
    axis_kinds : mapping from column to {"ordered", "unordered"}, optional
        ``{"station": "unordered"}`` keeps a numeric column as it is: no steps are inserted.
    fold : mapping from column to (str, str), optional
        ``{"time": ("day", "slot")}`` turns a datetime axis into two axes.
    missing_value : float or sequence of float, optional
        Numbers that stand for a missing value, such as -9999 or [-9999, 1e20].
    max_bytes : int
        Size of the largest tensor that is made.
    source : str
        The name of the table in errors.

    Returns
    -------
    LongTable
        The tensor and what is needed to write the table back.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"x": [0, 0, 1], "t": [0, 1, 3], "value": [1.0, 2.0, 3.0]})
    >>> from_table(frame).data.shape
    (2, 4)
    """
    import xarray as xr

    if not is_frame(frame):
        raise TypeError(f"{source} is a {type(frame).__name__}, not a pandas.DataFrame: convert it (x.to_pandas())")
    value, coordinates = _columns(frame, value, coordinates, source)
    kinds = dict(axis_kinds or {})
    unknown = [name for name in kinds if name not in coordinates]
    if unknown:
        raise ValueError(f"axis_kinds names {unknown[0]!r}, which is no coordinate; they are {', '.join(coordinates)}")
    if frame.empty:
        raise ValueError(f"{source} has no rows")
    numbers = numbers_of(frame[value], value, source)
    blank_declared(numbers, codes_of(missing_value))
    axes: dict[str, np.ndarray] = {}
    places: list[np.ndarray] = []
    inserted: dict[str, int] = {}
    zones: dict[str, tzinfo | str] = {}
    for name in coordinates:
        labels, place, zone = _axis(frame[name], name, source, max_bytes)
        if zone is not None:
            zones[name] = zone
        full = None if kinds.get(name) == "unordered" or labels.dtype.kind not in "iufmM" else regular_axis(labels)
        if full is not None and len(full) > len(labels):
            inserted[name] = len(full) - len(labels)
            place = np.searchsorted(full, labels)[place]
            labels = full
        axes[name] = labels
        places.append(place)
    shape = tuple(len(labels) for labels in axes.values())
    check_size(shape, 8, max_bytes, source)
    entries = np.ravel_multi_index(places, shape)
    duplicates = int(len(entries) - len(np.unique(entries)))
    if duplicates:
        report_suspects(numbers)  # averaged with other rows, a code is no longer a repeated value
    finite = ~np.isnan(numbers)
    count = np.bincount(entries[finite], minlength=int(np.prod(shape)))
    total = np.bincount(entries[finite], weights=numbers[finite], minlength=int(np.prod(shape)))
    values = np.full(count.shape, np.nan)
    np.divide(total, count, out=values, where=count > 0)
    attrs = {key: text for key, text in frame.attrs.items() if key in ("units", "long_name")}
    data = xr.DataArray(values.reshape(shape), coords=axes, dims=list(axes), name=value, attrs=attrs)
    where = None
    if fold:
        data, where = fold_time(data, fold)
    return LongTable(
        data=data, where=where, frame=frame, value=value, coordinates=tuple(coordinates), entries=entries,
        duplicates=duplicates, inserted=inserted, fold=dict(fold or {}), zones=zones,
    )  # fmt: skip


def long_form(result: Intervals) -> pd.DataFrame:
    """One row per entry of the domain: coordinates, estimate, lower, upper, flag."""
    import pandas as pd

    observed = result.observed
    keep = np.flatnonzero(observed.inside)
    columns: dict[str, np.ndarray | pd.Index] = {}
    for axis, place in zip(observed.axes, np.unravel_index(keep, observed.shape)):
        given = None if observed.coords is None else observed.coords.get(axis.dim)
        labels = axis.coordinates if given is None or not zone_of(given) else given.to_index()
        columns[axis.name] = place if labels is None else labels[place]
    arrays = (result.estimate_array, result.lower_array, result.upper_array, result.flag_array)
    frame = pd.DataFrame(columns | {name: array.ravel()[keep] for name, array in zip(ANSWERS, arrays)})
    frame.attrs["corten"] = about(result)
    return frame


def about(result: Intervals) -> str:
    """What was done, as JSON: summary, seed and all settings. Tables carry it in `attrs`, Parquet files keep it."""
    return json.dumps({"summary": result.summary().to_dict(), "settings": plain(result.source.settings())})


def _labelled(result: Intervals, name: str) -> xr.DataArray:
    if result.observed.kind != "dataarray":
        raise TypeError("the result does not come from a DataArray: complete table.data, which carries the labels")
    array: xr.DataArray = getattr(result, name)
    return array


def _columns(
    frame: pd.DataFrame, value: str | None, coordinates: Sequence[str] | None, source: str
) -> tuple[str, tuple[str, ...]]:
    names = [str(name) for name in frame.columns]
    known = f"the columns are {', '.join(names)}"
    if len(set(names)) != len(names):
        raise ValueError(f"{source} has a column name twice; {known}")
    if value is None:
        if "value" not in names:
            raise ValueError(f"{source}: name the column of values of a long table (value=); {known}")
        value = "value"
    chosen = tuple(name for name in names if name != value) if coordinates is None else tuple(coordinates)
    unknown = [name for name in (value, *chosen) if name not in names]
    if unknown:
        raise ValueError(f"{source} has no column {unknown[0]!r}; {known}")
    if value in chosen:
        raise ValueError(f"{source}: {value!r} cannot be both value and coordinate")
    if len(chosen) < 2:
        raise ValueError(f"{source}: a tensor needs two or more coordinate columns, got {', '.join(chosen) or 'none'}")
    return value, chosen


def numbers_of(column: pd.Series, name: str, source: str) -> np.ndarray:
    """A column as numbers, NaN where it is empty; text is refused by row and column."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    bad = numbers.isna() & column.notna()
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{source}: row {row + 1}, column {name!r}: expected a number, found {str(column.iloc[row])!r}"
        )
    return np.array(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _axis(
    column: pd.Series, name: str, source: str, max_bytes: int
) -> tuple[np.ndarray, np.ndarray, tzinfo | str | None]:
    """Distinct labels (sorted, or in order of appearance for text), the place of each row, and a time zone or None."""
    import pandas as pd

    values, zone = _labels(column, name, source)
    if values.dtype == object:
        place, labels = pd.factorize(values)
        return _text(labels, name, source, max_bytes), np.asarray(place, dtype=np.intp), None
    labels, place = np.unique(values, return_inverse=True)
    return labels, np.asarray(place, dtype=np.intp), zone


def labels_in_order(column: pd.Series, name: str, source: str, max_bytes: int) -> np.ndarray:
    """A column of labels as numbers, times in UTC or text, one for each row."""
    values, _ = _labels(column, name, source)
    return _text(values, name, source, max_bytes) if values.dtype == object else values


def _text(labels: np.ndarray, name: str, source: str, max_bytes: int) -> np.ndarray:
    # As an array every label is as long as the longest, four bytes a letter.
    check_size((len(labels), max(map(len, labels))), 4, max_bytes, f"{source}, the labels of {name!r},")
    return np.asarray(labels, dtype=str)


def _labels(column: pd.Series, name: str, source: str) -> tuple[np.ndarray, tzinfo | str | None]:
    """Labels as numbers, times in UTC or (dtype object) text, and a time zone or None."""
    import pandas as pd

    zone = None
    if column.isna().any():
        row = int(np.flatnonzero(column.isna())[0])
        raise ValueError(
            f"{source}: row {row + 1} has no {name!r}: every row needs all its coordinates (a table with one "
            "column per station is wide: leave out the variable)"
        )
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        zone = getattr(column.dt, "tz", None)
        values = (column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)).to_numpy()
    elif pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        values = column.to_numpy()
        if values.dtype == object:
            values = column.to_numpy(dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError(f"{source}: column {name!r} has an infinite coordinate")
    else:
        text = column.astype(str).to_numpy(dtype=object)
        if not all(_DATE.match(one) for one in text):
            refuse_other_dates(text, f"{source}: labels in column {name!r}", "write them as 2024-01-31 00:00")
            return text, None
        zone = "UTC" if any(_OFFSET.search(one) for one in text) else None
        try:
            values = pd.to_datetime(pd.Series(text), format="ISO8601", utc=True).dt.tz_localize(None).to_numpy()
        except ValueError as problem:
            raise ValueError(f"{source}: column {name!r} looks like dates but one is not: {problem}") from None
    return values, zone


def read_frame(path: Path, max_bytes: int = MAX_BYTES, rows: int | None = None) -> pd.DataFrame:
    """The table, or its names of columns alone (rows=0); a ValueError as soon as it is larger than `max_bytes`."""
    import pandas as pd

    with reading(path, "a table", ImportError):
        if suffix_of(path) == ".parquet":
            return _from_parquet(path, max_bytes, rows)
        packed = suffix_of(path) == ".csv.gz"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            # The seek of a packed file unpacks, and stops at the end.
            _refuse_larger(stream.seek(max_bytes + 1) if packed else path.stat().st_size, max_bytes)
            stream.seek(0)
            marks = _marks(stream.read(_START))
            stream.seek(0)
            return pd.read_csv(stream, nrows=rows, **marks)


def _marks(start: bytes) -> dict[str, str]:
    """What separates columns, and the decimal mark: `;` or tabs where the first line has no comma."""
    first, _, rest = start.partition(b"\n")
    sep = next((mark for mark in (b";", b"\t") if mark in first and b"," not in first), b",")
    decimal = "," if sep != b"," and _DECIMAL_COMMA.search(rest) else "."
    return {"sep": sep.decode(), "decimal": decimal}


def _from_parquet(path: Path, max_bytes: int, rows: int | None) -> pd.DataFrame:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        schema, about = file.schema_arrow, file.metadata
        if rows == 0:
            return schema.empty_table().to_pandas(ignore_metadata=True)
        if nested := [one.name for one in schema if pa.types.is_nested(one.type)]:
            raise ValueError(f"column {nested[0]!r} holds lists or records: leave it out, or write them as columns")
        fixed = [one.type.bit_width // 8 for one in schema if pa.types.is_fixed_size_binary(one.type)]
        check_size((about.num_rows, 8 * len(schema) + sum(fixed)), 1, max_bytes, "the table")
        _refuse_larger_text(file, max_bytes)
        table = file.read()
    _refuse_larger(table.nbytes, max_bytes)
    frame = table.to_pandas()
    # An index that is more than a count of rows becomes a column: wide tables often have times there.
    index = frame.index
    return frame.reset_index(drop=index.nlevels == 1 and index.name is None and index.dtype.kind in "iu")


def _refuse_larger_text(file: ParquetFile, max_bytes: int) -> None:
    """Count text before all of it is read: repeated text and prefixes are stored once, and expand to any size."""
    import pyarrow as pa

    kinds = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    groups = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
    text, longest = [], 1  # no text is longer than all the text of its row group
    for k, one in enumerate(file.schema_arrow):
        chunks = [group.column(k) for group in groups]
        if one.type in kinds or any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks):
            text.append(one.name)
            longest = max(longest, *(chunk.total_uncompressed_size for chunk in chunks), 1)
    taken = 0
    rows = max(1, min(MAX_TEXT_ROWS, max_bytes // (longest * max(len(text), 1))))
    for batch in file.iter_batches(rows, columns=text) if text else ():
        taken += batch.nbytes
        _refuse_larger(taken, max_bytes)


def _refuse_larger(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ValueError(f"decompresses to more than the limit of {max_bytes} bytes: raise max_bytes")
