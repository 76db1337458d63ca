"""A tensor read in blocks of planes of its first axis: `ObservedTensor` for data larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from corten.data import axes as _axes
from corten.data.axes import Axis
from corten.data.missing_values import MissingValue, blank_declared, codes_of, declared_by
from corten.data.never_observed import masks_of
from corten.engine.memory import is_mapped, let_go
from corten.io import npy
from corten.io.files import MAX_BYTES, Unchanged, existing, reading, suffix_of
from corten.io.formats import contents
from corten.io.provenance import surroundings
from corten.io.registry import READ_IN_PARTS
from corten.io.stores import choose, of_dataset, open_dataset

if TYPE_CHECKING:
    import xarray as xr


class Sliceable(Protocol):
    """An array that is read by slices of its first axis, such as one of Zarr or HDF5, or a memory map."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DTypeLike: ...
    def __getitem__(self, key: slice, /) -> ArrayLike: ...


ArraySource: TypeAlias = "Sliceable | xr.DataArray"
OPENABLE = READ_IN_PARTS


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """Values and domain of a tensor, read block by block; nothing is kept in memory.

    chunk: planes that the store reads at once; dtype: type of the values that `read` returns; codes: numbers that stand
    for a missing value; like: global attributes of the file and the variables that this one refers to, as a Dataset;
    masks: masks of land and sea in the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[Axis, ...]
    chunk: int
    source: str
    _read: Callable[[int, int], np.ndarray] = field(repr=False)
    _inside: Callable[[int, int], np.ndarray] | None = field(default=None, repr=False)
    name: str | None = None
    attrs: Mapping[str, object] = field(default_factory=dict, repr=False)
    coords: xr.Coordinates | None = field(default=None, repr=False)
    like: xr.Dataset | None = field(default=None, repr=False)
    _file: Unchanged | None = field(default=None, repr=False)
    codes: tuple[float, ...] = ()
    masks: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def plane(self) -> int:
        """Entries of one plane."""
        return prod(self.shape[1:])

    @property
    def labels(self) -> list[str]:
        """Names of the axes and of the coordinates."""
        return [*(str(axis.dim) for axis in self.axes), *map(str, () if self.coords is None else self.coords)]

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Values of planes start:stop (NaN where missing) and which are in the domain (None: all)."""
        values = self._taken(self._numbers, start, stop)
        infinite = np.isinf(values)
        if infinite.any():
            first = tuple(int(i) for i in np.argwhere(infinite)[0] + np.eye(1, values.ndim, dtype=int)[0] * start)
            raise ValueError(
                f"{self.source} has an infinite value at {first}: only finite numbers and NaN are allowed; "
                "set them to NaN if they stand for missing"
            )
        if self._inside is None:
            return values, None
        inside = np.broadcast_to(self._taken(self._inside, start, stop), values.shape)
        if not inside.all():
            values = np.where(inside, values, np.nan)
        return values, inside

    @property
    def has_domain(self) -> bool:
        """Whether a domain was given."""
        return self._inside is not None

    def within(self, inside: np.ndarray) -> LazyTensor:
        """The same values in a domain, of length 1 along the axes it does not depend on."""
        return replace(self, _inside=_domain(inside, None, self.shape))

    def inverted(self) -> LazyTensor:
        """The same values in the complement of the domain."""
        inside = self._inside
        assert inside is not None
        return replace(self, _inside=lambda start, stop: ~inside(start, stop))

    def refuse_changed(self, *, whole: bool = True) -> None:
        """A ValueError if the file has changed since it was opened."""
        if self._file is not None:
            self._file.check(whole=whole)

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        raw = np.ma.filled(np.ma.asarray(self._read(start, stop), self.dtype), np.nan)
        values = np.array(raw, self.dtype, order="C", copy=True if self.codes else None)
        blank_declared(values, self.codes)
        return values

    def _taken(self, take: Callable[[int, int], np.ndarray], start: int, stop: int) -> np.ndarray:
        self.refuse_changed(whole=False)
        if self._file is None:
            return take(start, stop)
        try:
            with reading(self.source, f"planes {start} to {stop}", MemoryError):
                return take(start, stop)
        except ValueError:
            self.refuse_changed()
            raise

    @classmethod
    def of(
        cls,
        x: ArraySource,
        where: ArraySource | None = None,
        *,
        periodic: Sequence[str | int] = (),
        axis_kinds: Mapping[str | int, str] | None = None,
        missing_value: MissingValue = None,
        source: str = "x",
    ) -> LazyTensor:
        """From a lazily loaded DataArray, a Zarr or HDF5 array, a memory map, or anything sliced like them."""
        labelled = x if _axes.is_dataarray(x) else None
        if not all(hasattr(x, name) for name in ("shape", "dtype", "__getitem__")):
            raise TypeError(
                f"x is a {type(x).__name__}: give the path of a file ({', '.join(OPENABLE)}), a DataArray, or an array"
            )
        shape, dtype = tuple(int(n) for n in x.shape), np.dtype(x.dtype)
        if dtype.kind not in "biuf":
            raise TypeError(f"{source} has dtype {dtype}: real numbers (float, integer, bool) are allowed")
        if len(shape) < 2 or 0 in shape:
            raise ValueError(f"{source} has shape {shape}: a tensor needs two or more axes, none of length 0")
        axes = _axes.axes_of_names(None, shape) if labelled is None else _axes.axes_of_dataarray(labelled)
        axes = _axes.refine(axes, periodic, axis_kinds or {})
        single = dtype.kind == "f" and dtype.itemsize <= 4
        attrs = {} if labelled is None else dict(labelled.attrs)

        def read(start: int, stop: int) -> np.ndarray:
            part = x[start:stop]
            if _axes.is_dataarray(part):
                return np.asarray(part.values)
            if not is_mapped(part):
                return np.asanyarray(part)
            read = np.array(part)
            let_go(cast(np.ndarray, part))
            return read

        return cls(
            shape, np.dtype(np.float32 if single else np.float64), axes, _chunk_of(x), source, read,
            None if where is None else _domain(where, labelled, shape),
            None if labelled is None or labelled.name is None else str(labelled.name),
            attrs, None if labelled is None else labelled.coords,
            codes=(*codes_of(missing_value), *declared_by(attrs)),
        )  # fmt: skip


@contextmanager
def open_lazily(
    x: str | os.PathLike[str] | ArraySource,
    where: str | ArraySource | None = None,
    *,
    variable: str | None = None,
    periodic: Sequence[str | int] = (),
    axis_kinds: Mapping[str | int, str] | None = None,
    missing_value: MissingValue = None,
) -> Iterator[LazyTensor]:
    """A `LazyTensor` of a path or array; a file is open while the block runs. where: as for `read`, or an array."""
    options: dict[str, Any] = {"periodic": periodic, "axis_kinds": axis_kinds, "missing_value": missing_value}
    if not isinstance(x, str | os.PathLike):
        if variable is not None:
            raise ValueError(f"variable is {variable!r}, but x is an array already: give the file's path, or x[name]")
        yield LazyTensor.of(x, _array(where, "x"), **options)
        return
    path, suffix = existing(x), suffix_of(x)
    file = Unchanged(path)
    if suffix not in OPENABLE:
        raise ValueError(
            f"{path} does not fit in memory, and only {', '.join(OPENABLE)} can be read block by block: convert it, or "
            "give more memory"
        )
    if suffix == ".npy":
        with reading(path, "a NumPy array", OSError):
            planes = npy.Planes.of(path)
        yield replace(LazyTensor.of(planes, _array(where, str(path)), source=str(path), **options), _file=file)
        return
    with open_dataset(path, MAX_BYTES) as dataset:
        stored = of_dataset(dataset)
        flags = where.removeprefix("!") if isinstance(where, str) else None
        name = choose(path, stored, variable, [] if flags is None else [flags])
        inside = dataset[flags] if isinstance(where, str) else where
        try:
            with reading(path, f"an array {name!r}", ValueError, TypeError):  # labels are read here
                lazy = LazyTensor.of(dataset[name], inside, source=f"{path}, {name!r}", **options)
        except (ValueError, TypeError) as problem:
            if str(path) in str(problem):
                raise
            raise ValueError(f"{path}: {problem}") from None
        if isinstance(where, str) and where.startswith("!"):
            lazy = lazy.inverted()
        small = {key: one for key, one in dataset.data_vars.items() if key != name and one.ndim < len(lazy.shape)}
        yield replace(lazy, like=surroundings(dataset, name), _file=file, masks=masks_of(lazy, small))


def stored_size(path: Path, variable: str | None = None) -> int:
    """Entries of a variable (or of the largest with two or more axes) of a file; 0 where its header does not say."""
    if suffix_of(path) not in OPENABLE or not Path(path).exists():
        return 0
    try:
        shapes = contents(Path(path), careful=True)
    except (OSError, ValueError):
        return 0  # reading the file raises the error
    if variable in shapes:
        return prod(shapes[variable])
    return max((prod(shape) for shape in shapes.values() if len(shape) > 1), default=0)


def _array(where: str | ArraySource | None, source: str) -> ArraySource | None:
    """The domain of one array, which has no variables that a name could mean."""
    if isinstance(where, str):
        raise ValueError(f"where is {where!r}, but {source} holds one array without names: give the array")
    return where


def _chunk_of(x: ArraySource) -> int:
    """Planes of the first axis that the store reads at once."""
    if _axes.is_dataarray(x):
        if x.chunks is not None:
            return int(max(x.chunks[0]))
        wanted = x.encoding.get("preferred_chunks", {}).get(x.dims[0])
        if wanted is None:
            wanted = (x.encoding.get("chunks") or x.encoding.get("chunksizes") or (1,))[0]
        return int(wanted)
    chunks = getattr(x, "chunks", None)
    return int(np.max(chunks[0])) if chunks else 1


def _domain(where: ArraySource, x: xr.DataArray | None, shape: tuple[int, ...]) -> Callable[[int, int], np.ndarray]:
    if _axes.is_dataarray(where):
        if x is None:
            raise TypeError("where is a DataArray but x is not: give where as an array, or x as a DataArray")
        _axes.check_axes(where, x)
        flags, first = where, x.dims[0]

        def named(start: int, stop: int) -> np.ndarray:
            block = slice(start, stop)
            part = flags.isel({first: block}) if first in flags.dims else flags
            return _flags(_axes.broadcast_by_name(part, x.isel({first: block})))

        return named
    sizes = tuple(int(n) for n in np.shape(where))
    _axes.refuse_other_shape("where", sizes, shape)
    return lambda start, stop: _flags(np.asarray(where[start:stop] if sizes[0] > 1 else where[:]))


def _flags(flags: np.ndarray) -> np.ndarray:
    return flags if flags.dtype == bool else np.nan_to_num(flags.astype(np.float32)) != 0
