"""New data on the axes of a fit: checked against them, and joined to the data of the fit."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from corten.data.axes import Axis, is_dataarray
from corten.data.missing_values import MissingValue
from corten.data.observed import DomainLike, ObservedTensor, TensorLike
from corten.data.wide import is_frame, matrix_of

MAX_STEP_DIFFERENCE = 0.1  # relative: months have 28 to 31 days
MAX_OFFSET = 0.01  # of a step, by which positions may lie off the grid of the fit
MAX_ROUNDING = 1e-6  # relative, of the only position of an axis


def matching(
    fit: ObservedTensor, x: TensorLike, *, where: DomainLike = None, missing_value: MissingValue = None, least: int = 2
) -> ObservedTensor:
    """New data as a tensor with the axes of `fit`; kinds and periods are those of the fit.

    Names, units and positions must agree, and without `where` the domain is that of the fit. Along one ordered axis the
    positions may be others, with the same step (a time axis where the fit has one), and `least` of them or more.
    """
    labelled = is_dataarray(x) or is_frame(x)
    if hasattr(x, "data_vars"):
        name = fit.name if fit.name in x.data_vars else next(iter(x.data_vars), None)
        raise TypeError(f"x is a Dataset: give the variable that the fit fills, x[{name!r}]")
    if is_dataarray(x):
        _same_names(fit, [str(dim) for dim in x.dims])
    elif not isinstance(x, ObservedTensor) and np.ndim(x) != len(fit.axes):
        raise ValueError(f"the new data have {np.ndim(x)} axes, the fit has {_named(fit.axes)}: give the same axes")
    if isinstance(x, ObservedTensor):
        new = ObservedTensor.of(x, where, missing_value=missing_value)
        _same_names(fit, [axis.name for axis in new.axes])
    else:
        new = ObservedTensor.of(
            x,
            where,
            axes=None if labelled else [axis.name for axis in fit.axes],
            periodic=[axis.name for axis in fit.axes if axis.periodic],
            axis_kinds={axis.name: axis.kind for axis in fit.axes},
            missing_value=missing_value,
        )
    units = [str(one.attrs.get("units", "")) for one in (fit, new)]
    if all(units) and units[0] != units[1]:
        raise ValueError(f"the new data are in {units[1]}, the fit is in {units[0]}: convert them to {units[0]}")
    for old, own in zip(fit.axes, new.axes):
        if (own.kind, own.periodic) != (old.kind, old.periodic):
            raise ValueError(f"axis {own.name!r} is not of the kind that it has in the fit, {old.kind}")
        if old.units and own.units and old.units != own.units and "since" not in old.units:
            raise ValueError(f"axis {own.name!r} is in {own.units}, in the fit in {old.units}: convert its coordinate")
    moved = [k for k, (old, own) in enumerate(zip(fit.axes, new.axes)) if not _same_positions(old, own)]
    if len(moved) > 1:
        free = [k for k in moved if _can_move(fit.axes[k])]
        continues = next((k for k in free if fit.axes[k].is_time), free[-1] if free else -1)
        differ = "; ".join(_difference(fit.axes[k], new.axes[k]) for k in moved if k != continues)
        raise ValueError(f"the new data lie on another grid: {differ}. Select or interpolate the positions of the fit")
    for k in moved:
        _may_move(fit, fit.axes[k], new.axes[k], least)
    return _in_domain(fit, new, moved) if where is None and new.domain is None else new


def _in_domain(fit: ObservedTensor, new: ObservedTensor, moved: list[int]) -> ObservedTensor:
    """The new data in the domain of the fit, such as the sea; everywhere if that varies along an axis that moved."""
    if fit.domain is None:
        return new
    domain: np.ndarray = fit.domain
    for k in moved:
        first = np.take(domain, [0], axis=k)
        if not np.all(domain == first):
            return new
        domain = np.repeat(first, new.shape[k], axis=k)
    mask = new.mask & domain
    if not mask.any():
        raise ValueError("the new data have no observed value in the domain of the fit")
    return replace(new, mask=mask, domain=domain, values=np.where(mask, new.values, np.nan))


def moving_axis(fit: ObservedTensor, new: ObservedTensor, axis: str | int | None) -> int:
    """The axis along which new slices are joined: `axis`, or the one that differs, or the only possible one."""
    moved = [k for k, (old, own) in enumerate(zip(fit.axes, new.axes)) if not _same_positions(old, own)]
    if axis is not None:
        k = fit.axis(axis)
        if not _can_move(fit.axes[k]):
            raise ValueError(f"axis {fit.axes[k].name!r} cannot grow: give an ordered axis that is not periodic")
        for other in moved:
            if other != k:
                differ = _difference(fit.axes[other], new.axes[other])
                raise ValueError(f"slices along {fit.axes[k].name!r} need the other axes of the fit, but {differ}")
        return k
    found = _possible(fit, moved)
    if len(found) != 1:
        raise ValueError(f"along which axis do the new slices lie? Give axis=, one of {_named(fit.axes)}")
    return found[0]


def _possible(fit: ObservedTensor, moved: list[int]) -> list[int]:
    """Axes along which new slices may lie; `moved` are those with other positions."""
    free = [k for k, one in enumerate(fit.axes) if _can_move(one)]
    return moved or [k for k in free if fit.axes[k].is_time] or free


def fresh_slices(fit: ObservedTensor, new: ObservedTensor) -> np.ndarray:
    """True at the entries of new data in slices that the fit does not have, or has with other values.

    Slices lie along the only axis that can have new ones; if there are several, all entries are new, or none.
    """
    found = _possible(fit, [k for k, pair in enumerate(zip(fit.axes, new.axes)) if not _same_positions(*pair)])
    own = replace(new, values=new.values.astype(fit.values.dtype))
    if len(found) != 1:
        return np.full(new.shape, not all(_same_slice(fit, i, own, i, 0) for i in range(new.shape[0])))
    (k,) = found
    old_at, new_at = fit.axes[k].coordinates, new.axes[k].coordinates
    if old_at is None or new_at is None:
        where = np.where(np.arange(new.shape[k]) < fit.shape[k], np.arange(new.shape[k]), -1)
    else:
        place = {one: i for i, one in enumerate(old_at.tolist())}
        where = np.array([place.get(one, -1) for one in on_grid(new_at, old_at).tolist()])
    fresh = np.array([i < 0 or not _same_slice(fit, i, own, j, k) for j, i in enumerate(where.tolist())])
    return np.broadcast_to(fresh.reshape([-1 if j == k else 1 for j in range(len(new.shape))]), new.shape)


class Joined(NamedTuple):
    """A window of old and new slices along one axis.

    place: for every old position its place in the window, -1 if it was replaced or left the window; fresh: True at the
    places of the window with new slices. A slice that is the same as before is an old one.
    """

    observed: ObservedTensor
    place: np.ndarray
    fresh: np.ndarray


def joined(fit: ObservedTensor, new: ObservedTensor, axis: int, window: int) -> Joined:
    """The last `window` slices of old and new data along an axis; new slices replace old ones at the same position.

    Without coordinates the new slices are appended.
    """
    old_at, new_at = fit.axes[axis].coordinates, new.axes[axis].coordinates
    n_old, n_new = fit.shape[axis], new.shape[axis]
    if fit.kind == "dataarray" and old_at is not None and new_at is None:
        name = fit.axes[axis].name
        raise ValueError(f"the new slices have no coordinate {name!r}, and those of the fit have: assign it to them")
    if old_at is None or new_at is None:
        kept = np.ones(n_old, bool)
        order = np.arange(n_old + n_new)
    else:
        new_at = on_grid(new_at, old_at)
        kept = ~np.isin(old_at, new_at)
        at = np.concatenate([old_at[kept], new_at])
        order = np.argsort(at, kind="stable")
        if n_old > 1 and old_at[1] < old_at[0]:
            order = order[::-1]
    order = order[-window:]
    where_now = np.full(n_old + n_new, -1)
    where_now[order] = np.arange(len(order))
    place = np.full(n_old, -1)
    place[kept] = where_now[: int(kept.sum())]

    def join(old: np.ndarray, own: np.ndarray) -> np.ndarray:
        both = np.concatenate([np.compress(kept, old, axis), own], axis)
        made = np.ascontiguousarray(np.take(both, order, axis))
        made.setflags(write=False)
        return made

    coords, table = fit.coords, None
    if fit.table is not None and new.table is not None:
        table = fit.table.joined(new.table, axis, kept, order)
        coords = matrix_of(table.frame(join(fit.values, new.values)))[0].coords
    if fit.kind == "dataarray":
        import xarray as xr

        dim = fit.axes[axis].dim
        first, second = (cast(xr.DataArray, one.wrap(one.mask)) for one in (fit, new))
        first = first.isel({dim: kept})
        second = second.drop_vars([name for name in second.coords if name not in first.coords])
        if dim in second.coords:
            second = second.assign_coords({dim: second[dim].copy(data=new_at)})
        both = xr.concat([first, second], dim, coords="minimal", compat="override", join="override")
        coords = both.isel({dim: order}).coords
    values = join(fit.values, new.values.astype(fit.values.dtype))
    own = fit.axes[axis]
    positions = None if old_at is None or new_at is None else np.concatenate([old_at[kept], new_at])[order]
    axes = list(fit.axes)
    axes[axis] = replace(own, length=len(order), coordinates=positions)
    domain = None if fit.domain is None and new.domain is None else join(fit.inside, new.inside)
    tensor = replace(
        fit, values=values, mask=join(fit.mask, new.mask), domain=domain, axes=tuple(axes), coords=coords, choices=(),
        table=table, kind="array" if fit.table is not None and table is None else fit.kind,
    )  # fmt: skip
    fresh = order >= int(kept.sum())
    for old in np.flatnonzero(~kept).tolist():
        assert old_at is not None and new_at is not None
        now = where_now[int(kept.sum()) + int(np.flatnonzero(new_at == old_at[old])[0])]
        if now >= 0 and _same_slice(fit, old, tensor, now, axis):
            place[old], fresh[now] = now, False
    return Joined(tensor, place, fresh)


def _same_slice(one: ObservedTensor, i: int, two: ObservedTensor, j: int, axis: int) -> bool:
    """Whether slice i of one tensor has the values and the domain of slice j of another."""
    pairs = [(one.values, two.values), (one.mask, two.mask), (one.inside, two.inside)]
    return all(np.array_equal(np.take(a, i, axis), np.take(b, j, axis), equal_nan=True) for a, b in pairs)


def _same_names(fit: ObservedTensor, names: list[str]) -> None:
    wanted = [axis.name for axis in fit.axes]
    if names == wanted:
        return
    if sorted(names) == sorted(wanted):
        arguments = ", ".join(map(repr, wanted))
        raise ValueError(
            f"the new data have the axes in the order {', '.join(names)}, the fit has {', '.join(wanted)}: give "
            f"x.transpose({arguments})"
        )
    lacks = [name for name in wanted if name not in names]
    advice = f"rename {', '.join(name for name in names if name not in wanted)}"
    if len(names) < len(wanted):
        advice = f"{' and '.join(lacks)} is needed even for one position, such as x.isel({lacks[0]}=[0])"
    raise ValueError(f"the new data have the axes {', '.join(names)}, the fit has {', '.join(wanted)}: {advice}")


def _named(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name} ({axis.length})" for axis in axes)


def _can_move(axis: Axis) -> bool:
    return axis.kind == "ordered" and not axis.periodic


def _same_positions(old: Axis, new: Axis) -> bool:
    """Whether two axes have the same positions; without coordinates on one side the lengths decide."""
    if old.length != new.length:
        return False
    if old.coordinates is None or new.coordinates is None:
        return True
    return bool(np.array_equal(old.coordinates, on_grid(new.coordinates, old.coordinates)))


def on_grid(own: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Positions, each replaced by that of `grid` if it differs from it by rounding only: 0.1 in single precision.

    Examples
    --------
    >>> on_grid(np.array([0.5, 1.0000001, 9.0]), np.array([1.0, 2.0]))
    array([0.5, 1. , 9. ])
    """
    if not (own.dtype.kind in "iuf" and grid.dtype.kind in "iuf" and len(grid)):
        return own
    at = np.sort(grid)
    nearest = at[np.searchsorted((at[1:] + at[:-1]) / 2, own)]
    allowed = MAX_OFFSET * float(np.diff(at.astype(float)).min()) if len(at) > 1 else MAX_ROUNDING * abs(float(at[0]))
    return np.where(np.abs(own - nearest.astype(float)) <= allowed, nearest, own)


def _difference(old: Axis, new: Axis) -> str:
    """How the positions along an axis differ from those of the fit."""
    at, own = old.coordinates, new.coordinates
    if at is None or own is None:
        return f"axis {old.name!r} has length {new.length}, in the fit {old.length}"
    if len(at) == len(own) and np.array_equal(np.sort(at), np.sort(own)):
        return f"axis {old.name!r} has the positions of the fit in another order"
    new_range, old_range = (f"{one.length} positions from {one.label(0)} to {one.label(-1)}" for one in (new, old))
    return f"axis {old.name!r} has {new_range}, in the fit {old_range}"


def _may_move(fit: ObservedTensor, old: Axis, new: Axis, least: int) -> None:
    """Refuse positions along one axis that are not a continuation of those of the fit."""
    where = f"the new data lie on another grid: axis {old.name!r}"
    if not _can_move(old):
        what = "unordered, so that its positions must be those of the fit" if old.kind == "unordered" else "periodic"
        raise ValueError(f"{where} has other positions, but it is {what}")
    if not old.is_time and any(one.is_time and _can_move(one) for one in fit.axes):
        raise ValueError(
            f"the new data lie on another grid: {_difference(old, new)}. Only the time may continue; select or "
            "interpolate the positions of the fit"
        )
    if new.length < min(least, old.length):
        raise ValueError(f"{where} has {new.length} position(s): give {least} or more, such as the last of the fit too")
    if old.coordinates is None or new.coordinates is None or min(old.length, new.length) < 2:
        return
    kinds = {one.dtype.kind for one in (old.coordinates, new.coordinates)}
    if kinds <= set("US"):
        return  # names have no step
    if len(kinds) > 1 and not kinds <= set("iuf"):
        raise ValueError(f"{where} has coordinates of type {new.coordinates.dtype}, in the fit {old.coordinates.dtype}")
    steps = [float(np.median(_steps(one))) for one in (old.coordinates, new.coordinates)]
    if steps[0] * steps[1] <= 0 or abs(steps[1] / steps[0] - 1) > MAX_STEP_DIFFERENCE:
        raise ValueError(f"{where} has a step of {_step(new)}, in the fit {_step(old)}: interpolate to the same grid")
    if not old.is_time:
        offset = (new.coordinates.astype(float) - float(old.coordinates[0])) / steps[0]
        if np.abs(offset - np.rint(offset)).max() > MAX_OFFSET:
            raise ValueError(f"{where} has positions between those of the fit: interpolate to the same grid")


def _steps(coordinates: np.ndarray) -> np.ndarray:
    """Differences of coordinates as numbers; those of dates in seconds."""
    steps = np.diff(coordinates)
    if steps.dtype.kind == "m":
        return steps / np.timedelta64(1, "s")
    if steps.dtype == object:
        return np.array([one.total_seconds() for one in steps])
    return steps.astype(float)


def _step(axis: Axis) -> str:
    assert axis.coordinates is not None
    middle = float(np.median(_steps(axis.coordinates)))
    return f"{middle:g} s" if axis.coordinates.dtype.kind in "MO" else f"{middle:g} {axis.units or ''}".strip()
