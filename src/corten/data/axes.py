"""Axes: names, coordinates, kind and period, read from the input."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeGuard, TypeVar

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Labelled = TypeVar("Labelled", "xr.DataArray", "xr.Dataset")

AxisKind = Literal["ordered", "unordered"]
AXIS_KINDS = ("ordered", "unordered")
LONGITUDE_NAMES = {"lon", "long", "longitude", "glon"}
LATITUDE_NAMES = {"lat", "latitude", "glat", "gdlat"}
ANGLE = re.compile("deg(ree)?s?([ _]?(n|e|north|east))?", re.IGNORECASE)
DEGREES_EAST = {"degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese"}
DEGREES_NORTH = {"degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn"}


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a tensor.

    Parameters
    ----------
    name : str
        Name.
    length : int
        Number of positions.
    coordinates : array, optional
        One coordinate per position: numbers, dates or names.
    kind : {"ordered", "unordered"}, default "ordered"
        Whether neighbouring positions are alike (latitude, time) or have no order (stations).
    periodic : bool, default False
        Whether the last position is next to the first.
    units : str, optional
        Unit of the coordinates.
    key : hashable, optional
        The name as the input has it, if that is not text.

    Examples
    --------
    >>> Axis("lon", 4, np.array([0.0, 90.0, 180.0, 270.0]), "ordered", True, "degrees_east").label(1)
    '90.0'
    """

    name: str
    length: int
    coordinates: np.ndarray | None = None
    kind: AxisKind = "ordered"
    periodic: bool = False
    units: str | None = None
    key: Hashable = None

    @property
    def dim(self) -> Hashable:
        """The name as in the input (xarray allows names that are not text)."""
        return self.name if self.key is None else self.key

    @property
    def is_time(self) -> bool:
        """Whether the coordinates are dates or the name is time."""
        return self.name.lower() == "time" or (self.coordinates is not None and _is_dates(self.coordinates))

    def forecast(self, known: np.ndarray) -> np.ndarray | None:
        """Positions before the first or after the last one in `known`, of an ordered time; None for other axes."""
        if not (self.is_time and self.kind == "ordered") or self.periodic:
            return None
        observed, index = np.flatnonzero(known), np.arange(self.length)
        return (index < observed[0]) | (index > observed[-1])

    def label(self, index: int) -> str:
        """The name of one slice: its coordinate, or its index without coordinates."""
        if self.coordinates is None:
            return str(index)
        value = self.coordinates[index]
        if isinstance(value, np.datetime64):
            if value != value.astype("M8[s]"):
                return str(np.datetime_as_string(value)).rstrip("0")
            return str(np.datetime_as_string(value, unit="s")).removesuffix("T00:00:00")
        return str(value)


def is_dataarray(x: object) -> TypeGuard[xr.DataArray]:
    """Whether x is an xarray.DataArray, without importing xarray."""
    return any(c.__name__ == "DataArray" and c.__module__.split(".")[0] == "xarray" for c in type(x).__mro__)


def zone_of(coordinate: xr.DataArray) -> str | None:
    """The time zone of a coordinate of times, or None."""
    if coordinate.ndim != 1 or (isinstance(coordinate.dtype, np.dtype) and not coordinate.dtype.hasobject):
        return None
    zone = getattr(_times(coordinate), "tz", None)
    return None if zone is None else str(zone)


def in_utc(data: Labelled) -> Labelled:
    """A DataArray or Dataset whose times are in UTC, as files hold no zones; the attribute `time_zone` says so."""
    zones = {name: zone for name, one in data.coords.items() if (zone := zone_of(one)) is not None}
    changed = {
        name: (one.dims, _utc(one), {**one.attrs, "time_zone": f"UTC, converted from {zone}"})
        for name, zone in zones.items()
        for one in [data.coords[name]]
    }
    return data.drop_vars(list(changed)).assign_coords(changed) if changed else data


def _utc(coordinate: xr.DataArray) -> np.ndarray:
    return np.asarray(_times(coordinate).tz_convert("UTC").tz_localize(None).to_numpy())


def _times(coordinate: xr.DataArray) -> pd.Index:
    """The index of a coordinate, times that are objects as times; a stacked index holds no times."""
    index = coordinate.to_index()
    return index if index.nlevels > 1 else index.infer_objects()


def position(name: str | int, names: Sequence[str], argument: str) -> int:
    """The position of an axis by name or position; a ValueError with the known names if it is unknown."""
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        if -len(names) <= name < len(names):
            return int(name) % len(names)
        raise ValueError(f"{argument} names axis {name}, but there are {len(names)}: 0 to {len(names) - 1}")
    if str(name) in names:
        return names.index(str(name))
    raise ValueError(f"{argument} names the unknown axis {name!r}; the axes are {', '.join(names)}")


def axes_of_names(names: Sequence[str | Axis] | None, shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """Axes of a plain array, from names or ready `Axis` objects; `axis_0`, `axis_1`, ... by default."""
    given: Sequence[str | Axis] = [f"axis_{k}" for k in range(len(shape))] if names is None else names
    if isinstance(given, str):
        raise TypeError(f"axes is the text {given!r}: give one name per axis, such as axes=('lat', 'lon', 'time')")
    if len(given) != len(shape):
        raise ValueError(
            f"axes has {len(given)} name(s), x has {len(shape)} axes of shape {shape}: give one name per axis"
        )
    found = []
    for length, one in zip(shape, given):
        if not isinstance(one, Axis):
            found.append(Axis(str(one), length))
            continue
        known = length if one.coordinates is None else len(one.coordinates)
        if (one.length, known) != (length, length):
            raise ValueError(
                f"axes: {one.name!r} has length {one.length} and {known} coordinates, that axis of x has "
                f"length {length}"
            )
        found.append(one)
    labels = [axis.name for axis in found]
    if len(set(labels)) != len(labels):
        raise ValueError(f"axes has a name twice: {', '.join(labels)}; every axis needs its own")
    return tuple(found)


def cut_axes(axes: Sequence[Axis], box: tuple[slice, ...]) -> tuple[Axis, ...]:
    """The axes of a box; a periodic axis that is cut is not periodic in it."""
    return tuple(
        replace(
            axis,
            length=part.stop - part.start,
            coordinates=None if axis.coordinates is None else axis.coordinates[part],
            periodic=axis.periodic and part.stop - part.start == axis.length,
        )
        for axis, part in zip(axes, box)
    )


def axes_of_dataarray(x: xr.DataArray) -> tuple[Axis, ...]:
    """Axes of a DataArray with their coordinates; text labels are unordered, all others ordered."""
    found = []
    for dim, length in zip(x.dims, x.shape):
        coordinates, units = None, None
        if dim in x.coords:
            zoned = zone_of(x.coords[dim]) is not None
            coordinates = _utc(x.coords[dim]) if zoned else np.asarray(x.coords[dim].values)
            units = x.coords[dim].attrs.get("units")
        kind: AxisKind = "ordered" if coordinates is None or _is_numeric(coordinates) else "unordered"
        unit, key = None if units is None else str(units), None if isinstance(dim, str) else dim
        found.append(Axis(str(dim), length, coordinates, kind, units=unit, key=key))
    return tuple(found)


def refine(
    axes: tuple[Axis, ...], periodic: Sequence[str | int], axis_kinds: Mapping[str | int, str]
) -> tuple[Axis, ...]:
    """Axes with the kind and period that the user gives; finds full circles of longitude and checks the order."""
    names = [axis.name for axis in axes]
    if isinstance(periodic, str | int):
        periodic = (periodic,)
    closed = {position(name, names, "periodic") for name in periodic}
    kinds: dict[int, AxisKind] = {}
    for name, kind in axis_kinds.items():
        if kind not in AXIS_KINDS:
            raise ValueError(f"axis_kinds: {name!r} is {kind!r}; allowed are {', '.join(map(repr, AXIS_KINDS))}")
        kinds[position(name, names, "axis_kinds")] = "unordered" if kind == "unordered" else "ordered"
    refined = []
    for k, axis in enumerate(axes):
        kind = kinds.get(k, axis.kind)
        _refuse_infinite(axis)
        if k in closed and kind == "unordered":
            raise ValueError(f"axis {axis.name!r} is unordered, so it has no period: remove it from periodic")
        if kind == "ordered":
            _check_sorted(axis)
        circle = kind == "ordered" and (k in closed or axis.periodic or _full_circle(axis))
        refined.append(replace(axis, kind=kind, periodic=circle))
    return tuple(refined)


def numbers_of(axis: Axis) -> tuple[np.ndarray, str] | None:
    """Coordinates as numbers with their unit: dates in seconds, longitudes without a jump; None if they are names."""
    values = axis.coordinates
    if values is None or not _is_numeric(values):
        return None
    if values.dtype.kind == "O":
        return np.array([(one - values[0]).total_seconds() for one in values]), "s"
    if values.dtype.kind in "mM":
        # Months and years have no fixed length: they are counted as dates.
        fine = values.astype("datetime64[us]" if values.dtype.kind == "M" else "timedelta64[us]")
        return (fine - fine[0]) / np.timedelta64(1, "s"), "s"
    unit = axis.units or ("degrees" if _is_longitude(axis) or axis.name.lower() in LATITUDE_NAMES else "")
    return _unwrapped(axis, values), "degrees" if ANGLE.fullmatch(unit) else unit


def longest_unordered(axes: Sequence[Axis]) -> int:
    """The number of positions of the longest unordered axis, 0 if all axes are ordered."""
    return max((axis.length for axis in axes if axis.kind == "unordered"), default=0)


def is_distance(axis: Axis) -> bool:
    """Whether coordinates measure how far positions are apart: times, degrees. Levels, depths or doses may not."""
    known = numbers_of(axis)
    return known is not None and known[1] in ("s", "degrees")


def period_of(axis: Axis) -> float | None:
    """The length of the circle of a periodic axis, in the unit of its coordinates; None if it is not known."""
    return 360.0 if _is_longitude(axis) else None


def check_axes(where: xr.DataArray, x: xr.DataArray) -> None:
    """Refuse a DataArray of flags whose axes are not among those of x, or have other coordinates."""
    extra = [str(dim) for dim in where.dims if dim not in x.dims]
    if extra:
        raise ValueError(
            f"where has the axis {', '.join(extra)} that x does not have; the axes of x are "
            f"{', '.join(map(str, x.dims))}"
        )
    for dim in where.dims:
        if where.sizes[dim] != x.sizes[dim]:
            raise ValueError(
                f"where has length {where.sizes[dim]} along {dim!r}, x has {x.sizes[dim]}: they must have "
                "the same positions"
            )
        both = dim in where.coords and dim in x.coords
        if both and not np.array_equal(where.coords[dim].values, x.coords[dim].values):
            raise ValueError(f"where and x have different coordinates along {dim!r}: align them first (xarray.align)")


def broadcast_by_name(where: xr.DataArray, x: xr.DataArray) -> np.ndarray:
    """A DataArray of flags in the order of the axes of x, matched by name; coordinates must be equal."""
    check_axes(where, x)
    ordered = where.transpose(*[dim for dim in x.dims if dim in where.dims])
    shape = [x.sizes[dim] if dim in where.dims else 1 for dim in x.dims]
    return np.asarray(ordered.values).reshape(shape)


def refuse_other_shape(what: str, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuse an array whose axes are not those of x, each as long or of length 1."""
    if len(sizes) != len(shape) or any(m not in (1, n) for m, n in zip(sizes, shape)):
        raise ValueError(
            f"{what} has shape {sizes}, x has {shape}: give one flag per entry, or length 1 along the axes it does not "
            f"depend on ({what}[:, :, None])"
        )


def _is_dates(coordinates: np.ndarray) -> bool:
    if coordinates.dtype.kind == "M":
        return True
    # Dates of other calendars are cftime objects, which have a year.
    return coordinates.dtype == object and coordinates.size > 0 and all(hasattr(c, "year") for c in coordinates)


def _is_numeric(coordinates: np.ndarray) -> bool:
    return coordinates.dtype.kind in "iufmM" or _is_dates(coordinates)


def _refuse_infinite(axis: Axis) -> None:
    values = axis.coordinates
    if values is not None and values.dtype.kind == "f" and np.isinf(values).any():
        first = int(np.flatnonzero(np.isinf(values))[0])
        raise ValueError(
            f"the coordinate of axis {axis.name!r} is infinite at position {first}: every slice needs a finite "
            "coordinate; leave that slice out (x.isel) or correct it"
        )


def _check_sorted(axis: Axis) -> None:
    values = axis.coordinates
    if values is None or not _is_numeric(values):
        return
    missing = np.isnat(values) if values.dtype.kind in "mM" else values != values
    if missing.any():
        raise ValueError(f"axis {axis.name!r} has {int(missing.sum())} missing coordinate(s): every slice needs one")
    values = _unwrapped(axis, values)
    before, after = values[:-1], values[1:]
    if (after > before).all() or (after < before).all():
        return
    what, cure = "is not sorted", f"sort it (x.sortby({axis.name!r}))"
    if len(np.unique(values)) < len(values):
        what, cure = "repeats values", f"average the repeated slices (x.groupby({axis.name!r}).mean())"
    raise ValueError(
        f"the coordinate of axis {axis.name!r} {what}, so it has no order: {cure}, "
        f"or give axis_kinds={{{axis.name!r}: 'unordered'}}"
    )


def unit_of(axis: Axis) -> str:
    """The unit of the coordinates in one spelling."""
    return (axis.units or "").lower().replace(" ", "_")


def is_latitude(axis: Axis) -> bool:
    """By name or unit."""
    return axis.name.lower() in LATITUDE_NAMES or unit_of(axis) in DEGREES_NORTH


def is_longitude(axis: Axis) -> bool:
    """By name or unit."""
    return axis.name.lower() in LONGITUDE_NAMES or unit_of(axis) in DEGREES_EAST


def _is_longitude(axis: Axis) -> bool:
    """Whether the axis is a longitude in degrees, by name or unit."""
    if axis.coordinates is None or axis.coordinates.dtype.kind not in "iuf":
        return False
    units = unit_of(axis)
    return (axis.name.lower() in LONGITUDE_NAMES and (not units or units.startswith("deg"))) or units in DEGREES_EAST


def _unwrapped(axis: Axis, values: np.ndarray) -> np.ndarray:
    """Coordinates as float64 or dates; longitudes that jump once by a full circle (355, 0 or 175, -180) continue."""
    if not _is_longitude(axis):
        return values.astype(np.float64) if values.dtype.kind in "iuf" else values
    numbers = values.astype(np.float64)
    steps = np.diff(numbers)
    jumps = np.flatnonzero(np.abs(steps) > 180.0)
    if len(jumps) == 1:
        continued = numbers.copy()
        continued[jumps[0] + 1 :] -= 360.0 * np.sign(steps[jumps[0]])
        others = np.sign(np.delete(steps, jumps))
        # A jump against the direction of all other steps; two longitudes far apart are no jump.
        if len(others) and (others == -np.sign(steps[jumps[0]])).all() and np.ptp(continued) <= 360.0:
            return continued
    return numbers


def _full_circle(axis: Axis) -> bool:
    """Whether the axis is a longitude that covers the full circle: length times step is 360 degrees."""
    if axis.length < 3 or not _is_longitude(axis):
        return False
    steps = np.diff(_unwrapped(axis, np.asarray(axis.coordinates)))
    step = abs(float(steps.mean()))
    return bool(np.allclose(np.abs(steps), step, rtol=1e-3) and abs(step * axis.length - 360.0) < 0.01 * step)
