"""Steps of reading: apply flags, blank declared missing values, sort labels, fold a time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from corten.data.axes import broadcast_by_name, is_dataarray
from corten.data.missing_values import blank_declared
from corten.io.folding import fold_time


def spread(path: Path, name: str, flags: Any, data: Any) -> np.ndarray:
    """Flags in the shape of the data: matched by axis names if both have them, else by lengths, first axes first."""
    if is_dataarray(flags) and is_dataarray(data):
        try:
            return broadcast_by_name(flags, data)
        except ValueError as problem:
            raise ValueError(f"{path}, {name!r}: {str(problem).replace('where', name)}") from None
    plain, shape = np.asarray(flags), data.shape
    fitting = [
        axes for axes in combinations(range(len(shape)), plain.ndim) if plain.shape == tuple(shape[k] for k in axes)
    ]
    if not fitting or (len(fitting) > 1 and fitting[0] != tuple(range(plain.ndim))):
        raise ValueError(f"{path}: {name!r} has shape {plain.shape}, the data {shape}: they must agree")
    return plain.reshape([length if k in fitting[0] else 1 for k, length in enumerate(shape)])


def comparable(path: Path, name: str, flags: np.ndarray, accept: Sequence[float | str]) -> np.ndarray:
    """The accepted flags in the type of the flags; text from a command line becomes numbers."""
    if isinstance(accept, str) or not np.iterable(accept):
        raise TypeError(f"accept is {accept!r}: give a list of flags, such as [0, 1]")
    try:
        return np.array(list(accept)).astype(flags.dtype if flags.dtype.kind in "OUS" else np.float64)
    except ValueError:
        raise ValueError(f"accept is {list(accept)}, but the flags {name!r} in {path} are numbers") from None


def blank(data: Any, keep: np.ndarray) -> Any:
    """The data, missing where `keep` is False."""
    if is_dataarray(data):
        return data.copy(data=blank(data.values, keep))
    data = np.asarray(data)
    wide = np.float32 if data.dtype.kind == "f" and data.dtype.itemsize <= 4 else np.float64
    return np.where(np.broadcast_to(keep, data.shape), data, np.array(np.nan)).astype(wide)


def without_codes(data: Any, codes: Sequence[float]) -> tuple[Any, tuple[str, ...]]:
    """The data with declared missing values as NaN, and notes about them."""
    if not codes or np.asarray(data).dtype.kind not in "iuf":
        return data, ()
    data = blank(data, np.array(True))
    found = blank_declared(data.values if is_dataarray(data) else data, codes)
    return data, tuple(f"missing value {one.taken}: {one.because}" for one in found)


def in_sorted_order(data: Any, where: Any, axis_kinds: Mapping[str, str]) -> tuple[Any, Any, tuple[str, ...]]:
    """Sort ordered axes by their coordinate; repeated coordinates are refused later."""
    notes = []
    for dim in data.dims if is_dataarray(data) else ():
        values = data[dim].values
        if dim not in data.coords or values.dtype.kind not in "iufM" or axis_kinds.get(str(dim)) == "unordered":
            continue
        if (np.sort(values) == values).all() or (np.sort(values)[::-1] == values).all():
            continue
        data, where = data.sortby(dim), None if where is None else where.sortby(dim)
        notes.append(f"the coordinates of {dim} were not sorted, and are now")
    return data, where, tuple(notes)


def folded(path: Path, data: Any, where: Any, fold: Mapping[str, tuple[str, str]]) -> tuple[Any, Any]:
    """Data and domain with a time axis folded into two; entries without a time are outside the domain."""
    if not is_dataarray(data):
        raise ValueError(f"{path} has no axis names, so fold cannot find its time axis: name them (axes=)")
    folded, reached = fold_time(data, fold)
    if where is None:
        return folded, reached
    inside, _ = fold_time(where.astype(np.float32), fold)
    return folded, inside == 1
