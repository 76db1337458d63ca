"""Values as JSON and .npy arrays, sent between the process that reads a file and this one. Never pickled."""

from __future__ import annotations

from io import BufferedReader
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from corten.data.axes import is_dataarray
from corten.data.plain import Json
from corten.data.wide import is_frame
from corten.io.files import check_size
from corten.io.npy import declared

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_SIMPLE = str | int | float | bool | None
_KINDS = "biufcmMSU"  # numbers, times and text of fixed length
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # of times that NumPy holds
_CLOCK = "microseconds since 1970-01-01"


def encode(value: object, arrays: list[np.ndarray]) -> Json:
    """JSON that stands for the value; arrays are appended to `arrays` and referred to by their position."""
    if isinstance(value, np.generic):
        return {"scalar": encode(np.asarray(value), arrays)}
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, np.ndarray):
        return _encode_array(value, arrays)
    if isinstance(value, list | tuple):
        return [encode(one, arrays) for one in value]
    if isinstance(value, dict):
        return {"dict": [[str(key), encode(one, arrays)] for key, one in value.items()]}
    if is_dataarray(value):
        coords: list[Json] = [[str(key), _encode_variable(one, arrays)] for key, one in value.coords.items()]
        name = None if value.name is None else str(value.name)
        return {"labelled": _encode_variable(value, arrays), "name": name, "coords": coords}
    if is_frame(value):
        return {"frame": _encode_array(_arrow_stream(value), arrays)}
    raise _unknown(value)


def decode(tree: Any, arrays: dict[int, np.ndarray]) -> Any:
    """The value that `encode` was given; each array is taken from `arrays` once, so that none can be copied often."""
    match tree:
        case str() | int() | float() | None:
            return tree
        case list():
            return [decode(one, arrays) for one in tree]
        case {"array": place}:
            return arrays.pop(place)
        case {"scalar": one}:
            return decode(one, arrays)[()]
        case {"dict": items}:
            return {key: decode(one, arrays) for key, one in items}
        case {"text": words, "shape": shape, "objects": objects}:
            return np.array(words, object if objects else np.dtypes.StringDType()).reshape(shape)
        case {"dates": numbers, "calendar": calendar}:
            import cftime

            return np.asarray(
                cftime.num2date(decode(numbers, arrays), _CLOCK, calendar, only_use_cftime_datetimes=True)
            )
        case {"labelled": variable, "name": name, "coords": coords}:
            return _decode_labelled(variable, name, coords, arrays)
        case {"frame": stream}:
            return _decode_frame(decode(stream, arrays))
    raise ValueError(f"unknown value {str(tree)[:80]}")


def send_array(stream: IO[bytes], array: np.ndarray) -> None:
    """Write an array in the .npy format."""
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
    stream.write(_memory(array))


def receive_array(stream: IO[bytes], max_bytes: int, what: str) -> np.ndarray:
    """Read an array that `send_array` wrote; one that is larger than the limit, or of objects, is a ValueError."""
    shape, dtype, fortran = declared(stream, max_bytes)
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    check_size(shape, max(dtype.itemsize, 1), max_bytes, what)  # NumPy gives text of length 0 a byte
    array = np.empty(shape, dtype, order="F" if fortran else "C")
    if array.nbytes and cast("BufferedReader", stream).readinto(_memory(array)) < array.nbytes:
        raise EOFError
    return array


def _memory(array: np.ndarray) -> memoryview:
    """The memory of an array as bytes, in memory order."""
    return memoryview(array.reshape(-1, order="A").view(np.uint8)) if array.nbytes else memoryview(b"")  # type: ignore[arg-type]


def _unknown(value: object) -> ValueError:
    return ValueError(f"it holds a {type(value).__name__}, which is neither numbers, text nor dates")


def _encode_array(value: np.ndarray, arrays: list[np.ndarray]) -> Json:
    if value.dtype.kind in _KINDS:
        arrays.append(value if value.flags.f_contiguous else np.ascontiguousarray(value))
        return {"array": len(arrays) - 1}
    if value.dtype.kind not in "OT":
        raise ValueError(f"it holds values of type {value.dtype}, which are neither numbers, text nor dates")
    flat = value.ravel().tolist()
    if flat and all(hasattr(one, "calendar") for one in flat):
        import cftime

        calendar = str(flat[0].calendar)
        numbers = np.asarray(cftime.date2num(value, _CLOCK, calendar), np.int64)
        return {"dates": _encode_array(numbers, arrays), "calendar": calendar}
    for one in flat:
        if not isinstance(one, str) and one is not None and one == one:
            raise _unknown(one)
    words: list[Json] = [one if isinstance(one, str) else None for one in flat]
    return {"text": words, "shape": list(value.shape), "objects": value.dtype.kind == "O"}


def _encode_variable(one: xr.DataArray, arrays: list[np.ndarray]) -> Json:
    values = np.asarray(one.values)
    calendar = str(one.encoding.get("calendar", "")) if values.dtype.kind == "M" else ""
    return [[str(dim) for dim in one.dims], encode(values, arrays), encode(dict(one.attrs), arrays), calendar]


def _decode_labelled(variable: Any, name: str | None, coords: Any, arrays: dict[int, np.ndarray]) -> xr.DataArray:
    import xarray as xr

    dims, values, attrs, _ = (decode(one, arrays) for one in variable)
    labels = {key: (found[0], decode(found[1], arrays), decode(found[2], arrays)) for key, found in coords}
    array = xr.DataArray(values, dims=dims, coords=labels, name=name, attrs=attrs)
    for key, (*_, calendar) in coords:
        if calendar in _CALENDARS:
            array.coords[key].encoding["calendar"] = calendar
    return array


def _arrow_stream(frame: pd.DataFrame) -> np.ndarray:
    """A table as an Arrow stream; only Parquet files, which need pyarrow too, are read apart as tables."""
    import pyarrow as pa

    table, sink = pa.Table.from_pandas(frame, preserve_index=False), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _decode_frame(stream: np.ndarray) -> pd.DataFrame:
    import pyarrow as pa

    try:
        table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as problem:
        raise ValueError(str(problem)) from None
    if "dateutil" in f"{table.schema.types} {table.schema.pandas_metadata}":  # pandas would open the file of that name
        raise ValueError("unknown time zone")
    return table.to_pandas()
