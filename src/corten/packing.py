"""Turns values and allowed objects into JSON and arrays, and back: what a saved file may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

__all__ = ["Packer", "Unpacker"]

_TAG = "!"


class Packer:
    """Turns values into JSON and collects their arrays; `known` objects are kept field by field.

    Example:
        >>> packer = Packer(())
        >>> packer.pack({"a": (1, np.arange(3))})
        {'a': {'!': 'tuple', 'of': [1, {'!': 'array', 'name': 'a0'}]}}
        >>> Unpacker((), packer.arrays).unpack(packer.pack((float("inf"), None)))
        (inf, None)
    """

    def __init__(self, known: Sequence[type]) -> None:
        self.known: dict[str, Any] = {one.__name__: one for one in known}
        self.arrays: dict[str, np.ndarray] = {}
        self._named: dict[int, str] = {}

    def pack(self, value: Any, where: str = "value") -> Any:
        """The value as JSON; what cannot be kept is refused by the name of its place."""
        if value is None or isinstance(value, bool | str) or (isinstance(value, int) and type(value) is int):
            return value
        if isinstance(value, float) and type(value) is float:
            return value if np.isfinite(value) else {_TAG: "float", "of": str(value)}
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, where)
        if isinstance(value, list | tuple):
            packed = [self.pack(one, f"{where}[{k}]") for k, one in enumerate(value)]
            return packed if isinstance(value, list) else {_TAG: "tuple", "of": packed}
        if isinstance(value, Mapping) and not _is_coordinates(value):
            return self._mapping(value, where)
        if self.known.get(type(value).__name__) is type(value):
            names = [one.name for one in fields(type(value))]
            own = {name: self.pack(getattr(value, name), f"{where}.{name}") for name in names}
            return {_TAG: type(value).__name__, "of": own}
        if _is_coordinates(value):
            return {_TAG: "coordinates", "of": self._coordinates(value, where)}
        if _is_calendar_date(value):
            return {_TAG: "date", "of": _date_parts(value)}
        raise ValueError(
            f"{where} is a {type(value).__name__}, which cannot be saved: only numbers, text, dates and arrays can"
        )

    def _array(self, value: Any, where: str) -> Any:
        array = np.asarray(value)
        if array.dtype.kind in "OT":
            items = [self.pack(one, where) for one in array.ravel().tolist()]
            return {_TAG: "objects", "shape": list(array.shape), "of": items}
        if array.dtype.kind not in "biufcmMUS":
            raise ValueError(f"{where} has dtype {array.dtype}, which cannot be saved")
        # A domain or a mask is often shared between parts: it is kept once.
        name = self._named.get(id(value))
        if name is None:
            name = f"a{len(self.arrays)}"
            self.arrays[name] = value if isinstance(value, np.ndarray) else array
            self._named[id(self.arrays[name])] = name
        return {_TAG: "scalar" if isinstance(value, np.generic) else "array", "name": name}

    def _mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: self.pack(one, f"{where}[{key!r}]") for key, one in value.items()}
        pairs = [[self.pack(key, where), self.pack(one, f"{where}[{key!r}]")] for key, one in value.items()]
        return {_TAG: "mapping", "of": pairs}

    def _coordinates(self, coords: Any, where: str) -> dict[str, Any]:
        """Variables in their order; the levels of a stacked axis stand under the name of the axis."""
        import pandas as pd

        stacked = {
            str(index.name): list(index.names)
            for index in coords.to_dataset().indexes.values()
            if isinstance(index, pd.MultiIndex)
        }
        variables = [
            [self.pack(key, where), [self.pack(dim, where) for dim in one.dims],
             self.pack(one.values, f"coordinate {key}"), self.pack(dict(one.attrs), f"attributes of {key}")]
            for key, one in coords.items()
            if str(key) not in stacked
        ]  # fmt: skip
        return {"variables": variables, "stacked": stacked}


class Unpacker:
    """Gives back what a `Packer` made."""

    def __init__(self, known: Sequence[type], arrays: Mapping[str, np.ndarray]) -> None:
        self.known: dict[str, Any] = {one.__name__: one for one in known}
        self.arrays = arrays

    def unpack(self, packed: Any) -> Any:
        """The value of its JSON; a tag nobody knows is a ValueError."""
        if isinstance(packed, list):
            return [self.unpack(one) for one in packed]
        if not isinstance(packed, dict):
            return packed
        tag = packed.get(_TAG)
        if tag is None:
            return {key: self.unpack(one) for key, one in packed.items()}
        if tag in ("array", "scalar"):
            array = self.arrays[packed["name"]]
            return array if tag == "array" else array[()]
        of = packed["of"]
        if tag == "objects":
            return self._objects(packed["shape"], of)
        if tag == "coordinates":
            return self._coordinates(of)
        if tag in self.known:
            return self.known[tag](**{key: self.unpack(one) for key, one in of.items()})
        simple = {
            "tuple": lambda: tuple(self.unpack(one) for one in of),
            "float": lambda: float(of),
            "mapping": lambda: {self.unpack(key): self.unpack(one) for key, one in of},
            "date": lambda: _date_of(of),
        }
        if tag not in simple:
            raise ValueError(f"the file holds a {tag!r}, which this corten does not know")
        return simple[tag]()

    def _objects(self, shape: list[int], of: list[Any]) -> np.ndarray:
        array = np.empty(len(of), dtype=object)
        array[:] = [self.unpack(one) for one in of]
        return array.reshape(shape)

    def _coordinates(self, of: dict[str, Any]) -> Any:
        import pandas as pd
        import xarray as xr

        levels = {name for names in of["stacked"].values() for name in names}
        read = [[self.unpack(part) for part in one] for one in of["variables"]]
        coords: Any = xr.Coordinates(
            {key: (dims, values, attrs) for key, dims, values, attrs in read if key not in levels}
        )
        values = {key: array for key, _, array, _ in read}
        for dim, names in of["stacked"].items():
            index = pd.MultiIndex.from_arrays([values[name] for name in names], names=names)
            coords = coords.merge(xr.Coordinates.from_pandas_multiindex(index, dim)).coords
        return coords


def _is_coordinates(value: Any) -> bool:
    """An xarray object of coordinates, found out without importing xarray."""
    return any(c.__name__ == "Coordinates" and c.__module__.split(".")[0] == "xarray" for c in type(value).__mro__)


def _is_calendar_date(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "cftime" and hasattr(value, "calendar")


def _date_parts(value: Any) -> list[Any]:
    clock = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
    return [*clock, value.calendar, bool(value.has_year_zero)]


def _date_of(parts: list[Any]) -> Any:
    import cftime

    *clock, calendar, year_zero = parts
    return cftime.datetime(*clock, calendar=calendar, has_year_zero=year_zero)
