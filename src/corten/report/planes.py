"""Which two axes make an image, the aspect of its entries, and the texts of the ticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import cos, floor, log10, radians
from typing import TYPE_CHECKING

import numpy as np

from corten.data.axes import DEGREES_EAST, DEGREES_NORTH, Axis, is_latitude, is_longitude, unit_of
from corten.data.observed import ObservedTensor

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

MAX_FROM_HALF = 0.25  # distance of the observed share of a series from one half
MAX_UNEVENNESS = 1e-2  # relative, between steps of an evenly spaced axis


@dataclass(frozen=True)
class Plane:
    """Two axes as an image; `aspect`: height of an entry over its width; `up`, `right`: where coordinates increase."""

    rows: int
    columns: int
    aspect: float | None
    up: bool
    right: bool


def planes(axes: Sequence[Axis]) -> list[Plane]:
    """Every pair of axes as an image: a map (latitude and longitude) first, then images without time."""
    found = [_plane(axes, a, b) for a, b in combinations(range(len(axes)), 2)]

    def order(plane: Plane) -> tuple[bool, bool, int]:
        pair = axes[plane.rows], axes[plane.columns]
        is_map = is_latitude(pair[0]) and is_longitude(pair[1])
        return not is_map, any(axis.is_time for axis in pair), -pair[0].length * pair[1].length

    return sorted(found, key=order)


def _plane(axes: Sequence[Axis], a: int, b: int) -> Plane:
    """Longitude and time are horizontal, latitude is vertical."""
    swap = axes[a].is_time or (is_longitude(axes[a]) and not axes[b].is_time) or is_latitude(axes[b])
    rows, columns = (b, a) if swap and not (axes[a].is_time and axes[b].is_time) else (a, b)
    tall, wide = axes[rows], axes[columns]
    # The last index is on top only along an increasing axis that is not time.
    return Plane(rows, columns, _aspect(tall, wide), _direction(tall, "iuf") > 0, _direction(wide, "iufM") >= 0)


def _aspect(tall: Axis, wide: Axis) -> float | None:
    """Height of an entry over its width, if both axes have the same unit."""
    high, broad = _step(tall), _step(wide)
    if is_latitude(tall) and is_longitude(wide) and high and broad and tall.coordinates is not None:
        middle = radians(float(np.mean(np.clip(tall.coordinates.astype(float), -80.0, 80.0))))
        return high / (broad * cos(middle))
    if tall.units is not None and tall.units == wide.units and high and broad and not tall.is_time:
        return high / broad
    return None


def _step(axis: Axis) -> float | None:
    """The step of an evenly spaced numeric axis."""
    values = axis.coordinates
    if values is None or values.dtype.kind not in "iuf" or axis.length < 2:
        return None
    steps = np.diff(values.astype(float))
    step = float(np.median(steps))
    even = step != 0 and np.all(np.abs(steps - step) <= MAX_UNEVENNESS * abs(step))
    return abs(step) if even else None


def _direction(axis: Axis, kinds: str) -> int:
    """1 if the coordinates of an ordered axis increase, -1 if they decrease; 0 for names or other kinds of numbers."""
    values = axis.coordinates
    if values is None or values.dtype.kind not in kinds or axis.kind == "unordered" or axis.length < 2:
        return 0
    return int(values[-1] > values[0]) - int(values[-1] < values[0])


def title(axis: Axis) -> str:
    """The name of the axis with its unit."""
    values = axis.coordinates
    if values is not None and values.dtype.kind == "M" and values.size:
        first, last = (str(day) for day in np.datetime_as_string(values[[0, -1]], unit="D"))
        if first[:4] == last[:4]:
            return f"{axis.name} ({first if first == last else first[:4]})"
        return axis.name
    unit = {**dict.fromkeys(DEGREES_NORTH, "°N"), **dict.fromkeys(DEGREES_EAST, "°E")}.get(unit_of(axis), axis.units)
    return f"{axis.name} ({unit})" if unit else axis.name


def default_index(observed: ObservedTensor, axis: int) -> int:
    """The slice whose share of missing entries is nearest to that of the tensor; the middle one of several."""
    others = tuple(k for k in range(len(observed.shape)) if k != axis)
    share = observed.missing.mean(axis=others)
    centre = np.abs(np.arange(share.size) - (share.size - 1) / 2) / share.size
    return int(np.argmin(np.round(np.abs(share - share.mean()), 2) + 1e-3 * centre))


def default_entry(result: Intervals) -> tuple[int, ...]:
    """An entry of the default slice with a finite interval, whose series is about half observed."""
    observed = result.observed
    index: list[int] = [default_index(observed, k) for k in range(len(observed.shape))]
    first = planes(observed.axes)[0]
    others = [k for k in range(len(index)) if k not in (first.rows, first.columns)]
    along = others[0] if others else first.columns
    slots: list[int | slice] = [index[k] if k in others else slice(None) for k in range(len(index))]
    wanted = observed.missing[tuple(slots)] & np.isfinite(result.width_array[tuple(slots)])
    if wanted.any():
        wide = slots.copy()
        wide[along] = slice(None)
        observed_share = observed.mask[tuple(wide)].mean(
            axis=sum(isinstance(slot, slice) for slot in wide[:along]), keepdims=not others
        )
        from_half = np.abs(np.broadcast_to(observed_share, wanted.shape) - 0.5)
        widths = result.width_array[tuple(slots)]
        # The widest of those whose series is observed by 25 % to 75 %, or else the nearest to 50 %.
        best = np.where(wanted & (from_half <= MAX_FROM_HALF), widths, np.where(wanted, -from_half - 1.0, -np.inf))
        row, column = np.unravel_index(int(np.argmax(best)), best.shape)
        index[min(first.rows, first.columns)], index[max(first.rows, first.columns)] = int(row), int(column)
    return tuple(index)


def value_range(estimate: np.ndarray) -> tuple[float, float]:
    """The colour range of data and estimate: all but the outermost half percent on each side."""
    finite = estimate[np.isfinite(estimate)]
    low, high = map(float, np.quantile(finite, (0.005, 0.995))) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def width_range(result: Intervals) -> tuple[float, float]:
    """The colour range of widths: up to the 99 % quantile of the finite ones."""
    width = result.width_array[result.observed.missing]
    finite = width[np.isfinite(width)]
    return 0.0, (float(np.quantile(finite, 0.99)) if finite.size else 0.0) or 1.0


def numbers(axis: Axis) -> np.ndarray | None:
    """Coordinates as floats for ticks (milliseconds since 1970 for dates); None for names."""
    values = axis.coordinates
    if values is None or axis.kind == "unordered" or axis.length < 2:
        return None
    if values.dtype.kind == "M":
        return values.astype("datetime64[ms]").astype(np.int64).astype(float)
    return values.astype(float) if values.dtype.kind in "iuf" else None


def labels(axis: Axis) -> list[str]:
    """Short names of all slices, with as many digits as tell neighbours apart."""
    values = axis.coordinates
    if values is None:
        return [str(index) for index in range(axis.length)]
    if values.dtype.kind == "M":
        return [str(text).replace("T", " ") for text in values.astype(f"datetime64[{_resolution(values)}]")]
    if values.dtype.kind == "f" and np.isfinite(values).all():
        steps = np.abs(np.diff(values.astype(float)))
        least = float(steps[steps > 0].min(initial=np.inf))
        whole = bool(np.all(values == np.round(values)))
        digits = 0 if whole or not np.isfinite(least) else min(max(2 - floor(log10(least)), 0), 9)
        return [f"{value:.{digits}f}" if whole or np.isfinite(least) else f"{value:g}" for value in values]
    return [axis.label(index) for index in range(axis.length)]


def _resolution(dates: np.ndarray) -> str:
    """The coarsest unit that loses nothing."""
    for unit in ("D", "m", "s", "ms"):
        if np.all(dates.astype(f"datetime64[{unit}]") == dates):
            return unit
    return "us"
