"""Data frames from CSV and Parquet, within a memory limit."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

from corten.io.files import MAX_BYTES, Limited, check_size, reading, suffix_of

# Rows of a Parquet file at a time, without and with text: repeated text is stored once, and expands to any size.
_ROWS_OF_NUMBERS, _ROWS_OF_TEXT = 1 << 16, 1024
_START = 1 << 16  # bytes of a CSV file from which its marks are found
_DECIMAL_COMMA = re.compile(rb"(^|[;\t\n])-?\d+,\d+([;\t\r\n]|$)")


def read_frame(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The table; a ValueError as soon as it is larger than `max_bytes`."""
    import pandas as pd

    with reading(path, "a table", ImportError):
        if suffix_of(path) == ".parquet":
            return _from_parquet(path, max_bytes)
        marks = _marks(path)
        with _opened(path) as stream:
            return pd.read_csv(Limited(stream, max_bytes), **marks)


def column_names(path: Path, max_bytes: int = MAX_BYTES) -> list[str]:
    """The names of the columns; no rows are read."""
    import pandas as pd

    with reading(path, "a table", ImportError):
        if suffix_of(path) == ".parquet":
            from pyarrow.parquet import ParquetFile

            with ParquetFile(path) as file:
                return [str(name) for name in file.schema_arrow.names]
        marks = _marks(path)
        with _opened(path) as stream:
            return [str(name) for name in pd.read_csv(Limited(stream, max_bytes), nrows=0, **marks).columns]


def _marks(path: Path) -> dict[str, Any]:
    """What separates columns, and the decimal mark: `;` or tabs where the first line has no comma."""
    with _opened(path) as stream:
        start = stream.read(_START)
    first, _, rest = start.partition(b"\n")
    sep = next((mark for mark in (b";", b"\t") if mark in first and b"," not in first), b",")
    decimal = "," if sep != b"," and _DECIMAL_COMMA.search(rest) else "."
    return {"sep": sep.decode(), "decimal": decimal}


def _from_parquet(path: Path, max_bytes: int) -> Any:
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        check_size((file.metadata.num_rows, file.metadata.num_columns), 8, max_bytes, "the table")
        batches, taken = [], 0
        rows = _rows_at_a_time(file, max_bytes)
        for group in range(file.num_row_groups):
            categories: dict[int, Any] = {}
            for found in file.iter_batches(rows, row_groups=[group]):
                batch, more = _sharing(found, categories)
                taken += more
                if taken > max_bytes:
                    raise ValueError(f"decompresses to more than the limit of {max_bytes} bytes: raise max_bytes")
                batches.append(batch)
        frame = Table.from_batches(batches, file.schema_arrow).to_pandas()
        # An index that is more than a count of rows becomes a column: wide tables often have times there.
        index = frame.index
        return frame.reset_index(drop=index.nlevels == 1 and index.name is None and index.dtype.kind in "iu")


def _sharing(batch: Any, categories: dict[int, Any]) -> tuple[Any, int]:
    """A batch and its bytes; categories equal to those of the previous batch are shared, not copied."""
    from pyarrow import DictionaryArray, RecordBatch, types

    columns, taken = [], 0
    for k, column in enumerate(batch.columns):
        taken += column.nbytes
        if types.is_dictionary(column.type):
            known = categories.get(k)
            if known is not None and known.equals(column.dictionary):
                taken -= column.nbytes - column.indices.nbytes
                column = DictionaryArray.from_arrays(column.indices, known, ordered=column.type.ordered)
            categories[k] = column.dictionary
        columns.append(column)
    return RecordBatch.from_arrays(columns, schema=batch.schema), taken


def _rows_at_a_time(file: Any, max_bytes: int) -> int:
    """As many rows as surely fit: no text is longer than all the text of its row group."""
    groups = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
    columns = [[group.column(k) for k in range(group.num_columns)] for group in groups]
    check_size((sum(one.num_values for group in columns for one in group),), 8, max_bytes, "the table")
    text = [
        [one.total_uncompressed_size for k, one in enumerate(group) if _unpacks(one, k, file.schema_arrow)]
        for group in columns
    ]
    longest = max(map(sum, text), default=0)
    return _ROWS_OF_NUMBERS if longest <= 0 else max(1, min(_ROWS_OF_TEXT, max_bytes // longest))


def _unpacks(column: Any, k: int, schema: Any) -> bool:
    """Whether a column holds text for every row; that of categories is stored once."""
    from pyarrow import types

    if column.physical_type != "BYTE_ARRAY":
        return bool(column.physical_type == "FIXED_LEN_BYTE_ARRAY")
    field = schema.field(k) if k < len(schema.names) else None
    if field is None or field.name != column.path_in_schema or not types.is_dictionary(field.type):
        return True  # also where columns inside of columns shift the count
    return not (types.is_string(field.type.value_type) or types.is_binary(field.type.value_type))


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if suffix_of(path) == ".csv.gz" else path.open("rb")
