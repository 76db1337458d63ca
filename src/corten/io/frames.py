"""Data frames from CSV and Parquet, within a memory limit."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import TYPE_CHECKING

from corten.io.files import MAX_BYTES, check_size, reading, suffix_of

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.parquet import ParquetFile

MAX_TEXT_ROWS = 1024  # of a Parquet file, read at a time while its text is counted
_START = 1 << 16  # bytes of a CSV file from which its marks are found
_DECIMAL_COMMA = re.compile(rb"(^|[;\t\n])-?\d+,\d+([;\t\r\n]|$)")


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
