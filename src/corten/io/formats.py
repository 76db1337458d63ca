"""Read a tensor from a file; the suffix decides the format. Nothing is unpickled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

import numpy as np

from corten.data.axes import broadcast_by_name, is_dataarray
from corten.data.missing_values import MissingValue, blank_declared, codes_of
from corten.data.never_observed import is_mask_name
from corten.io.apart import OPERATIONS, read_apart
from corten.io.files import MAX_BYTES, Unchanged, check_size, existing, reading
from corten.io.folding import fold_time
from corten.io.names import UNNAMED
from corten.io.registry import READABLE, format_of, resolve
from corten.io.stores import Stored, choose
from corten.io.table import LongTable, from_table, read_frame
from corten.io.wide import WideTable, from_wide, why_not_wide
from corten.io.writers import WRITABLE, check_target, write

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from corten.io.lazy import LazyTensor

ArrayData: TypeAlias = "np.ndarray | xr.DataArray"

__all__ = ["READABLE", "WRITABLE", "Loaded", "check_target", "contents", "read", "write"]


class About(TypedDict):
    """Global attributes of a file, and the variables that others refer to."""

    attrs: dict[str, object]
    variables: Mapping[str, ArrayData]


class Read(TypedDict):
    """What `load` reads of a file: one variable, its name, further ones that were asked for, masks of land."""

    name: str
    data: ArrayData
    others: dict[str, ArrayData]
    masks: dict[str, ArrayData]
    about: About


@dataclass(frozen=True, eq=False)
class Loaded:
    """A tensor from a file: `data` and its domain `where` (None = everywhere), ready for `corten.complete`.

    `notes` says what reading changed (duplicates averaged, steps inserted); `table` has the rows of a table; `masks`
    has the masks of land and sea in the file, by name, in shapes that broadcast to the data's; `like` has the global
    attributes of a NetCDF file or Zarr store, its grid mapping and bounds: give it to `write`; `covariates` are other
    arrays for the fit, by name.
    """

    data: ArrayData
    where: ArrayData | None
    path: Path
    variable: str
    notes: tuple[str, ...] = ()
    table: LongTable | WideTable | None = None
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    like: xr.Dataset | None = None
    covariates: Mapping[str, np.ndarray] = field(default_factory=dict)


def read(
    path: str | os.PathLike[str],
    variable: str | None = None,
    *,
    domain: str | None = None,
    quality: str | None = None,
    accept: Sequence[float | str] | None = None,
    axes: Sequence[str] | None = None,
    layout: str = "auto",
    axis_kinds: Mapping[str, str] | None = None,
    fold: Mapping[str, tuple[str, str]] | None = None,
    missing_value: MissingValue = None,
    max_bytes: int = MAX_BYTES,
    careful: bool = False,
) -> Loaded:
    """Read one variable of a file as a tensor.

    Parameters
    ----------
    path : str or path
        .nc .zarr .npz .npy .csv .csv.gz .parquet .h5 (Madrigal grids are recognised) .mat .tif .grib or IONEX.
    variable : str, optional
        The variable to read; for tables, the column of values. Default: the only one that fits.
    domain : str, optional
        A variable that is nonzero where an entry could be observed, such as a sea mask; ``"!land"`` is one that is
        nonzero where it could not.
    quality : str, optional
        A variable of flags. Only entries whose flag is in `accept` are observed.
    accept : sequence of float or str, optional
        The accepted flags.
    axes : sequence of str, optional
        Names of the axes for files without names (npz, npy, mat). A one-dimensional variable of such a name becomes
        its coordinate. For long tables: the coordinate columns.
    layout : {"auto", "long", "wide"}, default "auto"
        Of a table: "long" has one row per entry, "wide" one column per station (say). "auto" is long if `variable` or
        `axes` is given or a column is called value; else it is wide if the first column labels the rows and all others
        hold numbers.
    axis_kinds : mapping from axis to {"ordered", "unordered"}, optional
        ``{"station": "unordered"}`` keeps a numeric coordinate as it is: no sorting, no steps inserted.
    fold : mapping from axis to (str, str), optional
        ``{"time": ("day", "slot")}`` turns a datetime axis into two axes.
    missing_value : float or sequence of float, optional
        Numbers that stand for a missing value and that no attribute of the file declares.
    max_bytes : int
        Larger tensors are refused before they are read.
    careful : bool, default False
        For files from others: formats of C libraries are read in a separate process, which may crash.

    Returns
    -------
    Loaded
        It is a ValueError or OSError that names the file if that cannot be read as a tensor.

    Examples
    --------
    >>> loaded = read("sst.nc", "sst", domain="sea")                  # doctest: +SKIP
    >>> result = corten.complete(loaded.data, where=loaded.where)     # doctest: +SKIP
    >>> write("filled.nc", result, like=loaded.like)                  # doctest: +SKIP
    """
    found = existing(path)
    if layout not in ("auto", "long", "wide"):
        raise ValueError(f'layout is {layout!r}; give "auto", "long" or "wide"')
    if (quality is None) != (accept is None):
        raise ValueError("quality (the variable of flags) and accept (the flags that count) go together")
    if isinstance(accept, str) or not (accept is None or np.iterable(accept)):
        raise TypeError(f"accept is {accept!r}: give a list of flags, such as [0, 1]")
    wanted = _Wanted(
        found, variable, domain=domain, quality=quality, accept=() if accept is None else accept, axes=axes,
        axis_kinds=dict(axis_kinds or {}), fold=fold or {}, codes=codes_of(missing_value),
        max_bytes=max_bytes, careful=careful, layout=layout,
    )  # fmt: skip
    return wanted.table() if format_of(found).opener is None else wanted.tensor()


def contents(path: Path, *, max_bytes: int = MAX_BYTES, careful: bool = False) -> dict[str, tuple[int, ...]]:
    """The variables of a file and their shapes, or the columns of a table, () each; nothing is loaded."""
    found = _guarded(existing(path), "contents", max_bytes, careful)
    return {name: tuple(shape) for name, shape in found.items()}


def read_columns(path: Path, *, max_bytes: int = MAX_BYTES, careful: bool = False) -> pd.DataFrame:
    """A table as it is."""
    return _guarded(existing(path), "frame", max_bytes, careful)


def _guarded(path: Path, operation: str, max_bytes: int, careful: bool, **arguments: object) -> Any:
    """The result of an operation on a file, in another process where that is safer; a file that changes is refused."""
    file, form = Unchanged(path), format_of(path)
    if form.apart == "always" or (careful and form.apart == "careful"):
        form.refuse_absent()
        found = read_apart(path, operation, max_bytes=max_bytes, **arguments)
    else:
        found = resolve(OPERATIONS[operation])(path, max_bytes=max_bytes, **arguments)
    file.check(whole=True)
    return found


_EXPECTED = (ValueError, TypeError, OSError, ImportError)


def list_contents(path: Path, *, max_bytes: int) -> dict[str, tuple[int, ...]]:
    """As `contents`, in this process."""
    with reading(path, "a tensor", *_EXPECTED):
        if format_of(path).opener is None:
            return dict.fromkeys(map(str, read_frame(path, max_bytes, rows=0).columns), ())
        with format_of(path).open(path, max_bytes) as store:
            return {name: one.shape for name, one in store.items()}


def load(path: Path, *, max_bytes: int, variable: str | None, extra: Sequence[str], axes: Sequence[str] | None) -> Read:
    """The variable, its name, and further variables by name."""
    with reading(path, "a tensor", *_EXPECTED), format_of(path).open(path, max_bytes) as store:
        name = choose(path, store, variable, extra)
        data = _load(path, store, name, max_bytes)
        if axes is not None and not is_dataarray(data):
            data = _name_axes(path, store, data=np.asarray(data), axes=axes, name=name, max_bytes=max_bytes)
        masks = [key for key in store if is_mask_name(key) and key not in (name, *extra) and len(store[key].shape) > 1]
        kept = {key: _load(path, store, key, max_bytes) for key in masks if store[key].dtype.kind in "biuf"}
        others = {key: _load(path, store, key, max_bytes) for key in extra}
        variables = {}
        for key in store.beside(name):
            with suppress(ValueError):  # damaged, but not asked for
                variables[key] = _load(path, store, key, max_bytes)
        about: About = {"attrs": dict(store.attrs), "variables": variables}
        return {"name": name, "data": data, "others": others, "masks": kept, "about": about}


@dataclass(frozen=True)
class _Wanted:
    """What `read` was asked for."""

    path: Path
    variable: str | None
    domain: str | None
    quality: str | None
    accept: Sequence[float | str]
    axes: Sequence[str] | None
    axis_kinds: dict[str, str]
    fold: Mapping[str, tuple[str, str]]
    codes: tuple[float, ...]
    max_bytes: int
    careful: bool
    layout: str

    @property
    def extra(self) -> list[str]:
        """Variables of flags."""
        names = (None if self.domain is None else self.domain.removeprefix("!"), self.quality)
        return sorted({name for name in names if name is not None})

    def inside(self, flags: ArrayData) -> np.ndarray:
        return inside_of(flags, str(self.domain))

    def accepted(self, flags: np.ndarray) -> np.ndarray:
        """True where a flag is one of the accepted ones; text from a command line becomes numbers."""
        kind = flags.dtype if flags.dtype.kind in "OUS" else np.float64
        try:
            return np.isin(flags, np.array(list(self.accept)).astype(kind))
        except ValueError:
            raise ValueError(
                f"accept is {list(self.accept)}, but the flags {self.quality!r} in {self.path} are numbers"
            ) from None

    def tensor(self) -> Loaded:
        axes = None if self.axes is None else list(self.axes)
        asked = {"variable": self.variable, "extra": self.extra, "axes": axes}
        read: Read = _guarded(self.path, "load", self.max_bytes, self.careful, **asked)
        name, data = read["name"], read["data"]
        flags = {key: spread(self.path, key, other, data) for key, other in read["others"].items()}
        data, declared = _without_codes(data, self.codes)
        if self.quality is not None:
            data = _blank(data, self.accepted(flags[self.quality]))
        where: ArrayData | None = None
        if self.domain is not None:
            where = domain_like(self.inside(flags[self.domain.removeprefix("!")]), data)
        masks = {}
        for key, mask in read["masks"].items():
            with suppress(ValueError):  # a mask of something else
                masks[key] = spread(self.path, key, mask, data)
        data, where, notes = _in_sorted_order(data, where, self.axis_kinds)
        if self.fold:
            data, where = _folded(self.path, data, where, self.fold)
        if self.fold or any("sorted" in note for note in notes):
            masks = {}  # their axes are those of the file
        return Loaded(data, where, self.path, name, (*declared, *notes), masks=masks, like=_like(read["about"]))

    def table(self) -> Loaded:
        """Flags act on rows, before rows of one entry are averaged; an entry without a row is missing."""
        frame = _guarded(self.path, "frame", self.max_bytes, self.careful)
        names, value, axes = [str(name) for name in frame.columns], self.variable or "value", self.axes
        described = self.variable is not None or axes is not None or value in names or bool(self.extra)
        reason = why_not_wide(frame) if self.layout == "auto" and not described else ""
        if self.layout == "wide" or (self.layout == "auto" and not described and not reason):
            return self.wide(frame)
        if reason:
            raise ValueError(
                f"{self.path} is not a wide table, with one column per station: {reason}. Of a long table, with one "
                f"row per entry, name the column of values (value=); the columns are {', '.join(names)}"
            )
        unknown = sorted({*self.extra} - {*names})
        if unknown:
            raise ValueError(f"{self.path} has no column {unknown[0]!r}; the columns are {', '.join(names)}")
        if axes is None:
            axes = [name for name in names if name not in {value, *self.extra}]
        kept = frame
        if self.quality is not None and value in names:
            kept = frame.assign(**{value: frame[value].where(self.accepted(frame[self.quality].to_numpy()))})
        options: dict[str, Any] = {
            "axis_kinds": self.axis_kinds, "max_bytes": self.max_bytes, "source": str(self.path)
        }  # fmt: skip
        table = replace(from_table(kept, self.variable, axes, missing_value=self.codes, **options), frame=frame)
        data, where = table.data, None
        if self.domain is not None:
            flags = from_table(frame, self.domain.removeprefix("!"), axes, **options).data
            where = flags.copy(data=self.inside(flags))
        if self.fold:
            data, where = _folded(self.path, data, where, self.fold)
        table = replace(table, data=data, where=where, fold=dict(self.fold))
        return Loaded(data, where, path=self.path, variable=table.value, notes=table.notes, table=table)

    def wide(self, frame: pd.DataFrame) -> Loaded:
        """A wide table has one variable, without a column of flags."""
        asked = {"variable": self.variable, "domain": self.domain, "quality": self.quality, "fold": self.fold or None}
        given = [name for name, one in asked.items() if one is not None]
        if given:
            raise ValueError(f"{self.path} is read as a wide table, which has no {given[0]}: use a long one (layout)")
        table = from_wide(frame, self.axes, missing_value=self.codes, max_bytes=self.max_bytes, source=str(self.path))
        return Loaded(table.data, None, path=self.path, variable=UNNAMED, notes=table.notes, table=table)


def spread(path: Path, name: str, flags: ArrayData, data: ArrayData | LazyTensor) -> np.ndarray:
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


def inside_of(flags: ArrayData, name: str) -> np.ndarray:
    """True in the domain, where a variable is nonzero (with ! before its name: zero); what is not known is zero."""
    nonzero: np.ndarray = np.nan_to_num(np.asarray(flags, dtype=float)) != 0
    return ~nonzero if name.startswith("!") else nonzero


def domain_like(inside: np.ndarray, data: ArrayData) -> ArrayData:
    """A domain in the shape of the data, with their labels if they have any."""
    whole = np.array(np.broadcast_to(inside, data.shape))
    return data.copy(data=whole) if is_dataarray(data) else whole


def _blank(data: ArrayData, keep: np.ndarray) -> ArrayData:
    """The data, missing where `keep` is False."""
    if is_dataarray(data):
        return data.copy(data=_blank(data.values, keep))
    data = np.asarray(data)
    wide = np.float32 if data.dtype.kind == "f" and data.dtype.itemsize <= 4 else np.float64
    return np.where(np.broadcast_to(keep, data.shape), data, np.array(np.nan)).astype(wide)


def _without_codes(data: ArrayData, codes: Sequence[float]) -> tuple[ArrayData, tuple[str, ...]]:
    """The data with declared missing values as NaN, and notes about them."""
    if not codes or np.asarray(data).dtype.kind not in "iuf":
        return data, ()
    data = _blank(data, np.array(True))
    found = blank_declared(data.values if is_dataarray(data) else cast(np.ndarray, data), codes)
    return data, tuple(f"missing value {one.taken}: {one.because}" for one in found)


def _in_sorted_order(
    data: ArrayData, where: ArrayData | None, axis_kinds: Mapping[str, str]
) -> tuple[ArrayData, ArrayData | None, tuple[str, ...]]:
    """Sort ordered axes by their coordinate; repeated coordinates are refused later."""
    notes = []
    if not is_dataarray(data):
        return data, where, ()
    for dim in data.dims:
        values = data[dim].values
        if dim not in data.coords or values.dtype.kind not in "iufM" or axis_kinds.get(str(dim)) == "unordered":
            continue
        if (np.sort(values) == values).all() or (np.sort(values)[::-1] == values).all():
            continue
        data, where = data.sortby(dim), where.sortby(dim) if is_dataarray(where) else None
        notes.append(f"the coordinates of {dim} were not sorted, and are now")
    return data, where, tuple(notes)


def _folded(
    path: Path, data: ArrayData, where: ArrayData | None, fold: Mapping[str, tuple[str, str]]
) -> tuple[xr.DataArray, xr.DataArray | None]:
    """Data and domain with a time axis folded into two; entries without a time are outside the domain."""
    if not is_dataarray(data):
        raise ValueError(f"{path} has no axis names, so fold cannot find its time axis: name them (axes=)")
    folded, reached = fold_time(data, fold)
    if not is_dataarray(where):  # a domain has labels where the data have
        return folded, reached
    inside, _ = fold_time(where.astype(np.float32), fold)
    return folded, inside == 1


def _load(path: Path, store: Mapping[str, Stored], name: str, max_bytes: int) -> ArrayData:
    one = store[name]
    if one.dtype.hasobject and one.dims is None:
        raise ValueError(f"{path}: {name!r} holds objects, not numbers; objects are never unpickled")
    check_size(one.shape, max(one.dtype.itemsize, 1), max_bytes, f"{path}, {name}")
    with reading(path, f"an array {name!r} of shape {one.shape}"):
        return one.load()


def _like(about: About) -> xr.Dataset | None:
    """Global attributes and variables beside the data as a Dataset; None if there are none."""
    if not about["attrs"] and not about["variables"]:
        return None
    import xarray as xr

    variables = {name: one.variable for name, one in about["variables"].items() if is_dataarray(one)}
    return xr.Dataset(variables, attrs=about["attrs"])


def _name_axes(
    path: Path, store: Mapping[str, Stored], *, data: np.ndarray, axes: Sequence[str], name: str, max_bytes: int
) -> xr.DataArray:
    """Give names to the axes of a plain array, and coordinates where the file has them under that name."""
    import xarray as xr

    if len(axes) != data.ndim or len(set(axes)) != len(axes):
        raise ValueError(f"axes names {', '.join(axes)}, but {name!r} in {path} has shape {data.shape}: one name each")
    coords = {}
    for axis, length in zip(axes, data.shape):
        if axis in store and int(np.prod(store[axis].shape)) == length:
            coords[axis] = np.ravel(_load(path, store, axis, max_bytes))
    return xr.DataArray(data, dims=list(axes), coords=coords, name=name)
