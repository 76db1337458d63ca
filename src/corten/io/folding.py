"""Fold a time axis into day x slot, and unfold it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from corten.data.axes import position

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["fold_time", "regular_axis", "unfold_time"]

_DAY = np.timedelta64(1, "D")
_TICK = "datetime64[us]"


def regular_axis(values: np.ndarray) -> np.ndarray | None:
    """The regular axis behind sorted values, missing steps inserted; None if steps differ, or under half are there."""
    n = len(values)
    if n < 2:
        return values
    numbers = values.astype(np.int64) if values.dtype.kind in "mMiu" else values.astype(np.float64)
    gaps = np.diff(numbers)
    step = gaps.min()
    counts = np.rint(gaps / step)
    length = int(counts.sum()) + 1
    if np.abs(gaps / step - counts).max() > 1e-3 or length > 2 * n:
        return None
    place = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    if values.dtype.kind in "mMiu":
        full = (numbers[0] + step * np.arange(length)).astype(values.dtype)
    else:
        full = np.interp(np.arange(length), place, numbers).astype(values.dtype)
    full[place] = values
    return full


def fold_time(data: xr.DataArray, fold: Mapping[str, tuple[str, str]]) -> tuple[xr.DataArray, xr.DataArray | None]:
    """Fold a regular datetime axis into day x slot; give the folded array and its domain.

    Slots of the first and last day that the axis does not reach are outside the domain (None: all reached).
    The folded array keeps the original times as a day x slot coordinate, so that `unfold_time` restores it.

    Examples
    --------
    >>> folded, where = fold_time(data, {"time": ("day", "slot")})           # doctest: +SKIP
    >>> unfold_time(folded, {"time": ("day", "slot")}).identical(data)       # doctest: +SKIP
    True
    """
    import xarray as xr

    where: xr.DataArray | None = None
    for name, (day, slot) in fold.items():
        axis = position(name, [str(dim) for dim in data.dims], "fold")
        if name not in data.coords or data.coords[name].dtype.kind != "M":
            raise ValueError(f"fold names {name!r}, which has no datetime coordinate: only times fold into day x slot")
        taken = [new for new in (day, slot) if new != name and (new in data.dims or new in data.coords)]
        if taken or day == slot or name in (day, slot):
            raise ValueError(
                f"fold={{{name!r}: ({day!r}, {slot!r})}}: the two new axes need names that are not used yet"
            )
        times = data.coords[name].values
        if len(times) < 2 or not (np.diff(times.astype(_TICK)) > np.timedelta64(0)).all():
            raise ValueError(f"fold: the times of {name!r} must be two or more and increasing: sort them first")
        if regular_axis(times) is None:
            raise ValueError(f"fold: {name!r} is irregular, so it has no slots: put it on a regular axis first")
        ticks = times.astype(_TICK)
        step = np.diff(ticks).min()
        slots = int(_DAY // step)
        first = ticks[0].astype("datetime64[D]")
        phase = (ticks[0] - first) % step
        index = ((ticks - phase - first) // step).astype(np.intp)
        if slots < 2 or slots * step != _DAY:
            raise ValueError(
                f"fold: the step of {name!r}, {step / np.timedelta64(1, 'h'):g} hours, does not divide a day"
            )
        days = int(index[-1]) // slots + 1
        whole = data.transpose(*[d for d in data.dims if d != name], name)
        folded = np.full((*whole.shape[:-1], days * slots), np.nan, dtype=np.result_type(data.dtype, np.float32))
        folded[..., index] = whole.values
        label = np.full(days * slots, np.datetime64("NaT"), dtype=times.dtype)
        label[index] = times
        hours = (phase + step * np.arange(slots)) / np.timedelta64(1, "h")
        coords = {key: value for key, value in data.coords.items() if name not in value.dims}
        coords |= {
            day: (day, first + np.arange(days) * _DAY),
            slot: (slot, hours, {"units": "hours", "long_name": "time of day"}),
            name: ((day, slot), label.reshape(days, slots), data.coords[name].attrs),
        }
        dims = [*whole.dims[:-1], day, slot]
        order = [*data.dims[:axis], day, slot, *data.dims[axis + 1 :]]
        values = folded.reshape(*whole.shape[:-1], days, slots)
        inside = xr.DataArray(~np.isnat(label).reshape(days, slots), dims=(day, slot))
        data = xr.DataArray(values, coords=coords, dims=dims, name=data.name, attrs=data.attrs).transpose(*order)
        where = inside if where is None else where & inside
    return data, None if where is None or bool(where.all()) else where


def unfold_time(data: xr.DataArray, fold: Mapping[str, tuple[str, str]]) -> xr.DataArray:
    """Undo `fold_time`: join day x slot into one time axis at its old place, padding dropped."""
    for name, (day, slot) in reversed(list(fold.items())):
        names = [str(dim) for dim in data.dims]
        axis = position(day, names, "fold")
        position(slot, names, "fold")
        if name not in data.coords or set(data.coords[name].dims) != {day, slot}:
            raise ValueError(
                f"the array has no coordinate {name!r} over {day} x {slot}: it was not folded by fold_time"
            )
        rest = [dim for dim in data.dims if dim not in (day, slot)]
        flat = data.stack(joined=(day, slot), create_index=False).drop_vars([day, slot], errors="ignore")
        whole = flat.isel(joined=flat[name].notnull().values).swap_dims(joined=name)
        data = whole.transpose(*rest[:axis], name, *rest[axis:])
    return data
