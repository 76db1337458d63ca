"""Values as a JSON tree and named arrays, and back: for saved fits and for files read by another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BufferedReader
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from corten.data.axes import is_dataarray
from corten.data.labels import LABELS, plain_labels
from corten.data.wide import is_frame
from corten.io.files import check_size
from corten.io.npy import declared

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

MAX_DEPTH = 40  # of a tree
_KINDS = "biufcmMSU"  # numbers, times and text of fixed length
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # of times that NumPy holds


class Encoder:
    """Turns values into JSON and collects their arrays; messages name the `place`.

    shares: whether an array that several values have is stored once; a decoder must then give it several times.
    """

    shares = False
    refusal = "{} is a {}, which is neither numbers, text nor dates"

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}

    def encode(self, value: Any, place: str) -> object:
        name = type(value).__name__
        if value is None or type(value) in (bool, str, int) or (type(value) is float and np.isfinite(value)):
            return value
        if isinstance(value, list):
            return [self.encode(one, place) for one in value]
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, place)
        if type(value) in (float, tuple):
            return {"!": name, "of": self.encode(str(value) if name == "float" else list(value), place)}
        if (labels := plain_labels(value)) is not None:
            return {"!": labels[0], "of": self.encode(labels[1], place)}
        if isinstance(value, Mapping):
            return {"!": "dict", "of": [[self.encode(one, place) for one in pair] for pair in value.items()]}
        raise ValueError(self.refusal.format(place, name))

    def _array(self, value: np.ndarray | np.generic, place: str) -> object:
        array = np.asarray(value)
        if array.dtype.kind in "OT":
            tag = "objects" if array.dtype.kind == "O" else "text"
            return {"!": tag, "of": [list(array.shape), self.encode(array.ravel().tolist(), place)]}
        if array.dtype.kind not in _KINDS:
            raise ValueError(self.refusal.format(place, f"array of {array.dtype}"))
        new = f"a{len(self.arrays)}"
        found = self._names.setdefault(id(array), new) if self.shares else new
        self.arrays[found] = array  # held, so that no other array can get its id
        return {"!": "scalar" if isinstance(value, np.generic) else "array", "of": found}


class Decoder:
    """The inverse of `Encoder`; each array is taken once, so that none can be copied often."""

    makers: Mapping[str, Callable[..., object]] = LABELS | {
        "float": float, "tuple": tuple, "dict": dict,
        "objects": lambda of: np.fromiter(of[1], object, len(of[1])).reshape(of[0]),
        "text": lambda of: np.array(of[1], np.dtypes.StringDType()).reshape(of[0]),
    }  # fmt: skip
    """What makes a value of the content of a node, by the kind of the node."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)

    def decode(self, node: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if not isinstance(node, dict):
            return [self.decode(one, depth + 1) for one in node] if isinstance(node, list) else node
        tag, of = node["!"], node["of"]
        if tag in ("array", "scalar"):
            return self.taken(of) if tag == "array" else self.taken(of)[()]
        if tag not in self.makers:
            raise ValueError(f"it holds a {tag!r}, which this corten does not know")
        return self.makers[tag](self.decode(of, depth + 1))

    def taken(self, name: str) -> np.ndarray:
        return self.arrays.pop(name)


class FileEncoder(Encoder):
    """Also DataArrays and tables, as they are read from files."""

    def encode(self, value: Any, place: str) -> object:
        if is_dataarray(value):
            coords = {str(key): _plain_variable(one) for key, one in value.coords.items()}
            name = None if value.name is None else str(value.name)
            return {"!": "labelled", "of": self.encode([_plain_variable(value), name, coords], place)}
        if is_frame(value):
            return {"!": "frame", "of": self.encode(_arrow_stream(value), place)}
        return super().encode(value, place)


def _plain_variable(one: xr.DataArray) -> list[object]:
    """Dimensions, values, attributes and calendar of times."""
    values = np.asarray(one.values)
    calendar = str(one.encoding.get("calendar", "")) if values.dtype.kind == "M" else ""
    return [[str(dim) for dim in one.dims], values, {str(key): text for key, text in one.attrs.items()}, calendar]


def _labelled(plain: list[Any]) -> xr.DataArray:
    import xarray as xr

    (dims, values, attrs, _), name, coords = plain
    labels = {key: tuple(one[:3]) for key, one in coords.items()}
    array = xr.DataArray(values, dims=dims, coords=labels, name=name, attrs=attrs)
    for key, (*_, calendar) in coords.items():
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


def _frame(stream: np.ndarray) -> pd.DataFrame:
    import pyarrow as pa

    try:
        table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as problem:
        raise ValueError(str(problem)) from None
    if "dateutil" in f"{table.schema.types} {table.schema.pandas_metadata}":  # pandas would open the file of that name
        raise ValueError("unknown time zone")
    return table.to_pandas()


class FileDecoder(Decoder):
    """The inverse of `FileEncoder`."""

    makers: Mapping[str, Callable[..., object]] = {**Decoder.makers, "labelled": _labelled, "frame": _frame}


def send_array(stream: IO[bytes], array: np.ndarray) -> None:
    """Write an array in the .npy format."""
    array = array if array.flags.f_contiguous else np.ascontiguousarray(array)
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
