"""Values as JSON and raw arrays, sent between the process that reads a file and this one. Never pickled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from corten.data.axes import is_dataarray

_DTYPE = re.compile(r"[<>|=]?[biufcmMSU][0-9]+(\[[0-9]*[a-zA-Z]+\])?")
_EXTENSION = re.compile(r"object|str|string|boolean|U?Int(8|16|32|64)|Float(32|64)")
_MAX_AXES = 64
_SIMPLE = str | int | float | bool | None
Arrays = dict[int, np.ndarray]  # by position
CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # of times that NumPy holds
_CLOCK = "microseconds since 1970-01-01"


def encode(value: Any, arrays: list[np.ndarray]) -> Any:
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
        coords = [[str(key), _encode_variable(one, arrays)] for key, one in value.coords.items()]
        name = None if value.name is None else str(value.name)
        return {"labelled": [name, _encode_variable(value, arrays), coords]}
    if type(value).__name__ == "DataFrame":
        columns = [[str(name), _encode_column(str(name), value[name], arrays)] for name in value.columns]
        return {"frame": columns, "attrs": encode(dict(value.attrs), arrays)}
    raise ValueError(f"it holds a {type(value).__name__}, which is neither numbers, text nor dates")


def decode(tree: Any, arrays: Arrays) -> Any:
    """The value that `encode` was given; each array is taken from `arrays` once, so that none can be copied often."""
    if isinstance(tree, _SIMPLE):
        return tree
    if isinstance(tree, list):
        return [decode(one, arrays) for one in tree]
    for tag, decoder in _DECODERS.items():
        if tag in tree:
            return decoder(tree, arrays)
    raise ValueError(f"unknown value {sorted(tree)}")


def described(array: np.ndarray) -> dict[str, Any]:
    """Type, shape and order of an array, sent before its bytes."""
    across = array.flags.f_contiguous and not array.flags.c_contiguous
    return {"dtype": array.dtype.str, "shape": list(array.shape), "order": "F" if across else "C"}


def declared_bytes(about: Any) -> int:
    """Bytes of an array of that description; only numbers, dates and text of fixed length are allowed."""
    kind, shape = about["dtype"], about["shape"]
    if not _DTYPE.fullmatch(kind) or len(shape) > _MAX_AXES or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"unknown array {kind!r:.40}, {shape!r:.80}")
    return math.prod(shape) * max(np.dtype(kind).itemsize, 1)  # NumPy gives text of length 0 a byte


def array_of(about: Any) -> np.ndarray:
    """An empty array of a description that `declared_bytes` has checked."""
    return np.empty(tuple(about["shape"]), np.dtype(about["dtype"]), order="F" if about["order"] == "F" else "C")


def raw_bytes(array: np.ndarray) -> Any:
    """The memory of an array as bytes, in memory order; the receiver writes into it."""
    return memoryview(array.reshape(-1, order="A").view(np.uint8)) if array.nbytes else b""  # type: ignore[arg-type]


def _encode_array(value: np.ndarray, arrays: list[np.ndarray]) -> Any:
    if value.dtype == object:
        return _encode_objects(value, arrays)
    if value.dtype.kind == "T":
        return {"strings": _encode_objects(value.astype(object), arrays)}
    if not _DTYPE.fullmatch(value.dtype.str):
        raise ValueError(f"it holds values of type {value.dtype}, which are neither numbers, text nor dates")
    arrays.append(value if value.flags.f_contiguous else np.ascontiguousarray(value))
    return {"array": len(arrays) - 1}


def _encode_objects(value: np.ndarray, arrays: list[np.ndarray]) -> Any:
    """Text as its bytes and lengths; dates of other calendars as numbers."""
    flat = value.ravel().tolist()
    if flat and all(hasattr(one, "calendar") for one in flat):
        import cftime

        calendar = str(flat[0].calendar)
        numbers = np.asarray(cftime.date2num(value, _CLOCK, calendar), np.int64)
        return {"dates": _encode_array(numbers, arrays), "calendar": calendar}
    return {"text": _encode_text(flat, arrays), "shape": list(value.shape)}


def _encode_text(flat: list[Any], arrays: list[np.ndarray]) -> Any:
    """Missing text has the length -1."""
    packed = []
    for one in flat:
        if not isinstance(one, str) and one is not None and one == one:
            raise ValueError(f"it holds a {type(one).__name__}, which is neither numbers, text nor dates")
        packed.append(one.encode("utf-8", "surrogatepass") if isinstance(one, str) else None)
    lengths = np.array([-1 if one is None else len(one) for one in packed], np.int64)
    joined = np.frombuffer(b"".join(one for one in packed if one is not None), np.uint8)
    return [_encode_array(joined, arrays), _encode_array(lengths, arrays)]


def _encode_variable(one: Any, arrays: list[np.ndarray]) -> Any:
    values = np.asarray(one.values)
    calendar = str(one.encoding.get("calendar", "")) if values.dtype.kind == "M" else ""
    return [[str(dim) for dim in one.dims], encode(values, arrays), encode(dict(one.attrs), arrays), calendar]


def _encode_column(name: str, column: Any, arrays: list[np.ndarray]) -> Any:
    import pandas as pd

    kind = column.dtype
    if isinstance(kind, np.dtype) and not kind.hasobject:
        return {"plain": _encode_array(column.to_numpy(), arrays)}
    if isinstance(kind, pd.CategoricalDtype):
        known = _encode_column(name, pd.Series(kind.categories), arrays)
        return {"codes": _encode_array(column.cat.codes.to_numpy(), arrays), "known": known, "ordered": kind.ordered}
    if isinstance(kind, pd.DatetimeTZDtype):
        return {"zone": str(kind.tz), "plain": _encode_array(column.dt.tz_convert(None).to_numpy(), arrays)}
    if not _EXTENSION.fullmatch(str(kind)):
        column = column.astype(object)
    absent = column.isna().to_numpy()
    values = [None if gone else _plain(name, one) for one, gone in zip(column.tolist(), absent)]
    if all(isinstance(one, str | None) for one in values):
        return {"words": _encode_text(values, arrays), "kind": str(column.dtype)}
    return {"values": values, "kind": str(column.dtype)}


def _plain(name: str, one: Any) -> Any:
    if isinstance(one, str | bool | int | float):
        return one
    if isinstance(one, date | datetime):
        return one.isoformat()
    if isinstance(one, Decimal):
        return float(one)
    raise ValueError(f"column {name!r} holds a {type(one).__name__}, which is neither a number, text nor a date")


def _decode_labelled(tree: Any, arrays: Arrays) -> Any:
    import xarray as xr

    name, data, coords = tree["labelled"]
    dims, values, attrs, _ = (decode(one, arrays) for one in data)
    labels = {key: (found[0], decode(found[1], arrays), decode(found[2], arrays)) for key, found in coords}
    array = xr.DataArray(values, dims=dims, coords=labels, name=name, attrs=attrs)
    for key, found in coords:
        if found[3] in CALENDARS:
            array.coords[key].encoding["calendar"] = found[3]
    return array


def _decode_frame(tree: Any, arrays: Arrays) -> Any:
    import pandas as pd

    names = [name for name, _ in tree["frame"]]
    frame = pd.DataFrame(dict(enumerate(_decode_column(one, arrays) for _, one in tree["frame"])))
    frame.columns = pd.Index(names)
    frame.attrs.update(decode(tree["attrs"], arrays))
    return frame


def _decode_column(tree: Any, arrays: Arrays) -> Any:
    import pandas as pd

    if "codes" in tree:
        known = pd.Index(_decode_column(tree["known"], arrays))
        return pd.Series(pd.Categorical.from_codes(decode(tree["codes"], arrays), known, ordered=tree["ordered"]))
    if "plain" in tree:
        column = pd.Series(decode(tree["plain"], arrays))
        if str(tree.get("zone")).startswith("dateutil"):  # pandas would open the file of that name
            raise ValueError(f"unknown time zone {tree['zone']!r:.40}")
        return column if "zone" not in tree else column.dt.tz_localize("UTC").dt.tz_convert(tree["zone"])
    if not _EXTENSION.fullmatch(tree["kind"]):
        raise ValueError(f"unknown column {tree['kind']!r:.40}")
    values = _decode_text(tree["words"], arrays) if "words" in tree else tree["values"]
    return pd.Series(values, dtype=tree["kind"])


def _decode_text(tree: Any, arrays: Arrays) -> list[str | None]:
    joined, lengths = (decode(one, arrays) for one in tree)
    joined, at, found = joined.tobytes(), 0, []
    for length in lengths.tolist():
        found.append(None if length < 0 else joined[at : at + length].decode("utf-8", "surrogatepass"))
        at += max(length, 0)
    return found


def _decode_words(tree: Any, arrays: Arrays) -> np.ndarray:
    words = _decode_text(tree["text"], arrays)
    if math.prod(tree["shape"]) != len(words):
        raise ValueError("text of another shape")
    array = np.empty(len(words), object)
    array[:] = words
    return array.reshape(tree["shape"])


def _decode_dates(tree: Any, arrays: Arrays) -> np.ndarray:
    import cftime

    numbers = decode(tree["dates"], arrays)
    return np.asarray(cftime.num2date(numbers, _CLOCK, tree["calendar"], only_use_cftime_datetimes=True))


_DECODERS: dict[str, Callable[[Any, Arrays], Any]] = {
    "array": lambda tree, arrays: arrays.pop(tree["array"]),
    "scalar": lambda tree, arrays: decode(tree["scalar"], arrays)[()],
    "dict": lambda tree, arrays: {key: decode(one, arrays) for key, one in tree["dict"]},
    "labelled": _decode_labelled,
    "strings": lambda tree, arrays: decode(tree["strings"], arrays).astype(np.dtypes.StringDType()),
    "frame": _decode_frame,
    "text": _decode_words,
    "dates": _decode_dates,
}
