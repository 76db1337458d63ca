"""Labels of pandas, xarray and cftime as plain values and arrays, and back: what a saved fit keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from corten.data.axes import zone_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from cftime import datetime


PlainVariable: TypeAlias = tuple[str, list[str], np.ndarray, dict[str, object], str | None]
"""Name, dimensions, values, attributes and time zone of a coordinate."""


def plain_labels(value: object) -> tuple[str, object] | None:
    """The kind of a label object, a key of `LABELS`, and its plain content; None for anything else."""
    if hasattr(value, "nlevels") and hasattr(value, "get_level_values"):
        return "index", [_level(value.get_level_values(k)) for k in range(value.nlevels)]
    if hasattr(value, "to_index") and hasattr(value, "xindexes"):
        return "coordinates", _plain_coordinates(cast("xr.Coordinates", value))
    if hasattr(value, "calendar") and hasattr(value, "has_year_zero"):
        date = cast("datetime", value)
        clock = [*date.timetuple()[:6], date.microsecond, date.calendar, bool(date.has_year_zero)]
        return "date", " ".join(map(str, clock))
    return None


def _level(index: pd.Index) -> tuple[np.ndarray, str | None, object]:
    """Labels, time zone and name of one level of an index; labels that a file cannot keep become text."""
    labels, zone = _without_zone(index)
    return labels if labels.dtype.kind in "biufmM" else np.array(list(map(str, labels))), zone, index.name


def _plain_coordinates(coords: xr.Coordinates) -> list[object]:
    """Variables with dimensions, values, attributes and time zone, and the levels of each stacked axis."""
    plain = coords.to_dataset()
    stacked = {dim: list(one.names) for dim, one in plain.indexes.items() if one.nlevels > 1 and dim in plain.dims}
    variables = []
    for key, one in plain.reset_index(list(stacked)).coords.items():
        values, zone = (one.values, None) if zone_of(one) is None else _without_zone(one.to_index().infer_objects())
        variables.append((key, list(one.dims), values, one.attrs, zone))
    return [variables, stacked]


def _without_zone(index: pd.Index) -> tuple[np.ndarray, str | None]:
    """Labels as an array, times with a zone in UTC, and the zone."""
    zone = getattr(index, "tz", None)
    return np.asarray(index if zone is None else index.tz_convert("UTC").tz_localize(None)), zone and str(zone)


def _zoned(labels: np.ndarray, zone: str | None) -> np.ndarray | pd.DatetimeIndex:
    """The inverse of `_without_zone`."""
    if zone is None:
        return labels
    if zone.startswith("dateutil"):  # pandas would open the file of that name
        raise ValueError("unknown time zone")
    import pandas as pd

    return pd.DatetimeIndex(labels).tz_localize("UTC").tz_convert(zone)


def _coordinates(plain: tuple[list[PlainVariable], dict[str, list[str]]]) -> xr.Coordinates:
    import xarray as xr

    variables = {key: (dims, _zoned(values, zone), attrs) for key, dims, values, attrs, zone in plain[0]}
    return xr.Dataset(coords=variables).set_index(plain[1]).coords


def _index(levels: list[tuple[np.ndarray, str | None, str]]) -> pd.Index:
    import pandas as pd

    several = [pd.Index(_zoned(labels, zone), name=name) for labels, zone, name in levels]
    return several[0] if len(several) == 1 else pd.MultiIndex.from_arrays(several)


def _date(text: str) -> datetime:
    import cftime

    *clock, calendar, year_zero = text.split()
    return cftime.datetime(*map(int, clock), calendar=calendar, has_year_zero=year_zero == "True")


LABELS: dict[str, Callable[..., object]] = {"index": _index, "coordinates": _coordinates, "date": _date}
"""From plain content back to labels, by kind."""
