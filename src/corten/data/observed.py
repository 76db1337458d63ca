"""What was observed: values, mask, domain and axes; the only place that knows input types and labels.

Everything behind this file works on plain arrays. `ObservedTensor.of` takes what people have (arrays with
NaN, masked arrays, xarray.DataArray, nested lists), `ObservedTensor.wrap` gives the same kind back, labelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from corten.data import axes as _axes
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.data.missing_values import MissingValue, blank_declared, codes_of, report_suspects
from corten.data.order import unordered_axes
from corten.data.printable import printable

__all__ = ["Axis", "ObservedTensor", "largest_size", "refuse_extreme"]

FARTHEST = 1e100

InputKind = Literal["array", "masked", "dataarray"]


@dataclass(frozen=True, eq=False)
class ObservedTensor:
    """A tensor with gaps: values (NaN where not observed), mask (True = observed), domain and axes.

    `domain` is None where every cell could be observed; a cell outside it is neither a gap nor a neighbour.
    All arrays are read-only copies: the input is never modified and later changes to it are not seen.

    Example:
        >>> tensor = ObservedTensor.of([[1.0, float("nan")], [3.0, 4.0]])
        >>> tensor.n_observed, tensor.n_missing, tensor.complete
        (3, 1, False)
    """

    values: np.ndarray
    mask: np.ndarray
    domain: np.ndarray | None
    axes: tuple[Axis, ...]
    name: str | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    kind: InputKind = "array"
    coords: Any = None
    choices: tuple[Choice, ...] = ()

    @classmethod
    def of(
        cls,
        x: Any,
        where: Any = None,
        *,
        axes: Sequence[str | Axis] | None = None,
        periodic: Sequence[str | int] = (),
        axis_kinds: Mapping[str | int, str] | None = None,
        missing_value: MissingValue = None,
    ) -> ObservedTensor:
        """Read a tensor with gaps from what people have.

        Args:
            x: array with NaN, masked array, xarray.DataArray or nested lists; two or more modes. Integers and
                booleans are answered in float64, float32 stays float32.
            where: the domain, True where a cell could be observed (land in an ocean field is not a gap). An
                array of the same shape (lengths of 1 are repeated) or a DataArray, matched by name.
            axes: names (or `Axis` objects) for plain arrays; a DataArray brings its own.
            periodic: axes that close on themselves, by name or position. A longitude in degrees that covers
                the full circle is recognised without being named.
            axis_kinds: "ordered" (neighbours are alike) or "unordered" (stations, people), by name or position. Left
                out: axes with text labels are unordered, other labels ordered; for an axis without labels, held-out
                error decides (see `corten.data.order` and `choices`).
            missing_value: numbers that stand for a missing value, such as -9999 or [-9999, 1e20]; the attributes
                `_FillValue` and `missing_value` of a DataArray are honoured too. A repeated extreme value that stands
                far outside all others and is not declared is reported by a warning.

        Example:
            >>> x = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
            >>> tensor = ObservedTensor.of(x, axes=("station", "hour"), axis_kinds={"station": "unordered"})
            >>> [(axis.name, axis.kind) for axis in tensor.axes]
            [('station', 'unordered'), ('hour', 'ordered')]
        """
        if isinstance(x, cls):
            if where is None and axes is None and not periodic and not axis_kinds and missing_value is None:
                return x
            raise TypeError(
                "x is an ObservedTensor already: give where, axes, periodic, axis_kinds and missing_value when it is "
                "made"
            )
        refuse_foreign(x)
        labelled = _axes.is_dataarray(x)
        if labelled and axes is not None:
            raise ValueError(
                "axes= is for plain arrays; x is a DataArray and has its own: x.rename(old='new') renames one"
            )
        kind: InputKind = (
            "dataarray" if labelled else "masked" if isinstance(x, np.ma.MaskedArray) else "array"
        )
        values, seen, choices = _numbers(x, (*codes_of(missing_value), *_declared(x)))
        if values.ndim < 2:
            raise ValueError(
                f"x has {values.ndim} mode(s), shape {values.shape}: a tensor needs two or more "
                "(a mode of length 1 is fine: x[:, None])"
            )
        if 0 in values.shape:
            raise ValueError(f"x has a mode of length 0, shape {values.shape}: there is nothing to fill")
        described = _axes.axes_of_dataarray(x) if labelled else _axes.axes_of_names(axes, values.shape)
        described = _axes.refine(described, periodic, axis_kinds or {})
        choices += _zones(x) if labelled else ()
        domain = _domain(where, x, values.shape, labelled)
        if domain is not None:
            seen &= domain
        infinite = np.isinf(values)
        infinite &= seen
        if infinite.any():
            first = tuple(int(i) for i in np.argwhere(infinite)[0])
            raise ValueError(
                f"x has {int(infinite.sum())} infinite value(s), the first at {first}: only finite numbers "
                "and NaN "
                "are allowed; set them to NaN if they stand for missing (np.where(np.isinf(x), np.nan, x))"
            )
        if not seen.any():
            inside = " inside the domain given by where=" if domain is not None else ""
            raise ValueError(
                f"x has no observed value{inside}: all {values.size} are missing, so nothing can be learned"
            )
        values[~seen] = np.nan
        refuse_extreme(largest_size(values))
        choices += report_suspects(values)
        if not labelled:
            described, found = _ordered_or_units(described, axes, periodic, axis_kinds or {}, values, seen)
            choices = (*found, *choices)
        for array in (values, seen, *(() if domain is None else (domain,))):
            array.setflags(write=False)
        return cls(
            values=values,
            mask=seen,
            domain=domain,
            axes=described,
            name=None if not labelled or x.name is None else str(x.name),
            attrs=dict(x.attrs) if labelled else {},
            kind=kind,
            coords=x.coords.copy(deep=True) if labelled else None,
            choices=choices,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @cached_property
    def missing(self) -> np.ndarray:
        """Cells to fill: in the domain and not observed."""
        missing = ~self.mask
        if self.domain is not None:
            missing &= self.domain
        missing.setflags(write=False)
        return missing

    @cached_property
    def n_observed(self) -> int:
        return int(np.count_nonzero(self.mask))

    @cached_property
    def n_missing(self) -> int:
        return int(np.count_nonzero(self.missing))

    @property
    def complete(self) -> bool:
        """Nothing is missing: there is nothing to fill."""
        return self.n_missing == 0

    @property
    def inside(self) -> np.ndarray:
        """The domain as an array, all True where none was given."""
        return np.ones(self.shape, dtype=bool) if self.domain is None else self.domain

    def axis(self, name: str | int) -> int:
        """The position of an axis by name; unknown names are refused with the known ones."""
        return _axes.position(name, [axis.name for axis in self.axes], "axis")

    def empty_slices(self) -> list[tuple[str, int]]:
        """Slices without any observation that have cells in the domain: (axis name, index) of each.

        Example:
            >>> ObservedTensor.of([[1.0, 2.0], [float("nan"), float("nan")]]).empty_slices()
            [('axis_0', 1)]
        """
        found: list[tuple[str, int]] = []
        for k, axis in enumerate(self.axes):
            seen, wanted = self._seen_along(k), self._wanted_along(k)
            found += [(axis.name, int(index)) for index in np.flatnonzero(wanted & ~seen)]
        return found

    @cached_property
    def forecast(self) -> np.ndarray:
        """Missing cells before the first or beyond the last observed slice of an ordered time axis."""
        beyond = np.zeros(self.shape, dtype=bool)
        for k, axis in enumerate(self.axes):
            if not (axis.is_time and axis.kind == "ordered") or axis.periodic:
                continue
            seen = np.flatnonzero(self._seen_along(k))
            index = np.arange(axis.length).reshape([-1 if j == k else 1 for j in range(len(self.shape))])
            beyond |= (index < seen[0]) | (index > seen[-1])
        beyond &= self.missing
        beyond.setflags(write=False)
        return beyond

    def wrap(self, array: np.ndarray, name: str | None = None, attrs: Mapping[str, Any] | None = None) -> Any:
        """Give `array` the input's own kind: ndarray, masked array (outside the domain masked) or DataArray.

        A DataArray keeps dims and coordinates; `name` and `attrs` replace the input's own where given.
        """
        array = np.asarray(array)
        if array.shape != self.shape:
            raise ValueError(f"array has shape {array.shape}, the tensor {self.shape}: they must agree")
        if self.kind == "dataarray":
            import xarray as xr

            own = dict(self.attrs if attrs is None else attrs)
            label = self.name if name is None else name
            dims = [axis.dim for axis in self.axes]
            return xr.DataArray(array, coords=self.coords, dims=dims, name=label, attrs=own)
        if self.kind == "masked":
            outside = np.zeros(self.shape, dtype=bool) if self.domain is None else ~self.domain
            return np.ma.MaskedArray(array, mask=outside)
        return array

    def _seen_along(self, k: int) -> np.ndarray:
        return np.asarray(self.mask.any(axis=self._others(k)))

    def _wanted_along(self, k: int) -> np.ndarray:
        return np.asarray(self.missing.any(axis=self._others(k)))

    def _others(self, k: int) -> tuple[int, ...]:
        return tuple(j for j in range(len(self.shape)) if j != k)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis.name}: {axis.length}" for axis in self.axes)
        outside = "" if self.domain is None else f", {int((~self.domain).sum())} outside the domain"
        counts = f"{self.n_observed} observed, {self.n_missing} missing{outside}"
        return printable(f"<ObservedTensor {self.name or ''}({sizes}) {counts}>")


def refuse_foreign(x: Any) -> None:
    """Say what to do with containers that are not one tensor (tables, datasets, file names)."""
    module, kind = type(x).__module__.split(".")[0], type(x).__name__
    if module == "xarray" and kind == "Dataset":
        raise TypeError(
            f"x is a Dataset, a tensor is one variable of it: x[name] with name one of {sorted(map(str, x))}"
        )
    if module == "pandas":
        raise TypeError(
            f"x is a pandas {kind}: a long table becomes a tensor by corten.io.from_table(table, value=...), "
            "a plain matrix by x.to_numpy()"
        )
    if isinstance(x, str | bytes) or hasattr(x, "__fspath__"):
        raise TypeError(f"x is the text {str(x)!r}: read a file first, corten.io.read(path).data")


def _zones(x: Any) -> tuple[Choice, ...]:
    """What is done with times that have a zone."""
    zones = {str(dim): _axes.zone_of(x.coords[dim]) for dim in x.dims if dim in x.coords}
    said = "the labels have the zone {}: they are compared in UTC; results keep the zone, files hold UTC"
    return tuple(Choice(f"times of {dim}", "UTC", said.format(zone)) for dim, zone in zones.items() if zone is not None)


def _ordered_or_units(
    described: tuple[Axis, ...],
    given: Sequence[str | Axis] | None,
    periodic: Sequence[str | int],
    axis_kinds: Mapping[str | int, str],
    values: np.ndarray,
    seen: np.ndarray,
) -> tuple[tuple[Axis, ...], tuple[Choice, ...]]:
    """Axes that nobody described, told apart by the values: ordered ones, and units whose order means nothing."""
    names = [axis.name for axis in described]
    closed = (periodic,) if isinstance(periodic, str | int) else periodic
    said = {_axes.position(name, names, "axis") for name in (*closed, *axis_kinds)}
    said |= {k for k, one in enumerate(given or ()) if isinstance(one, Axis)}
    if len(said) == len(described):
        return described, ()
    axes, choices = list(described), []
    for found in unordered_axes(values, seen):
        k = int(str(found.values["axis"]))
        if k not in said:
            axes[k] = replace(axes[k], kind="unordered")
            choices.append(replace(found, what=f"kind of {names[k]}"))
    return tuple(axes), tuple(choices)


def _declared(x: Any) -> tuple[float, ...]:
    """Missing values that the attributes of a DataArray declare (they are there where nobody has decoded them)."""
    attrs = x.attrs if _axes.is_dataarray(x) else {}
    given = [np.ravel(attrs[key]) for key in ("_FillValue", "missing_value") if key in attrs]
    return tuple(float(one) for values in given if values.dtype.kind in "iuf" for one in values)


def _numbers(x: Any, codes: Sequence[float]) -> tuple[np.ndarray, np.ndarray, tuple[Choice, ...]]:
    """A fresh float array, where it holds a number, and a word on codes and on integers that no double can be."""
    covered = np.ma.getmaskarray(x) if isinstance(x, np.ma.MaskedArray) else None
    try:
        raw = np.asarray(x.data if covered is not None else x)
    except ValueError as problem:
        raise ValueError(
            f"x is not a full array: {problem}; every row of a nested list needs the same length"
        ) from None
    if raw.dtype.kind not in "biuf":
        advice = {
            "c": "complete the real and the imaginary part apart (x.real, x.imag)",
            "O": "convert it (x.astype(float)); None becomes NaN by that",
            "M": "dates are labels, not values: subtract a start and divide by a unit",
            "m": "divide by a unit (x / np.timedelta64(1, 's'))",
        }.get(raw.dtype.kind, "convert it to numbers first")
        raise TypeError(f"x has dtype {raw.dtype}: real numbers (float, integer, bool) are allowed; {advice}")
    single = raw.dtype.kind == "f" and raw.dtype.itemsize <= 4
    values = np.array(raw, dtype=np.float32 if single else np.float64, order="C", copy=True)
    said = blank_declared(values, codes)
    seen = ~np.isnan(values)
    if covered is not None:
        seen &= ~covered
    if raw.dtype.kind not in "iu" or raw.dtype.itemsize < 8 or np.abs(values[seen]).max(initial=0.0) <= 2.0**53:
        return values, seen, said
    because = "Integers above 2**53 were rounded to doubles: subtract an offset first where their last digits matter."
    return values, seen, (*said, Choice("values", "rounded", because, code="integers_rounded"))


def largest_size(values: np.ndarray) -> float:
    """The largest absolute value; NaN does not count, and 0 is the answer where there are no others."""
    return max(float(np.fmax.reduce(values, None, initial=0.0)), -float(np.fmin.reduce(values, None, initial=0.0)))


def refuse_extreme(largest: float) -> None:
    """Squares must fit in double precision: beyond, an answer would be wrong without a word."""
    if largest > FARTHEST or 0.0 < largest < 1 / FARTHEST:
        raise ValueError(
            f"the largest value of x is {largest:.1e}: only sizes between {1 / FARTHEST:.0e} and {FARTHEST:.0e} can be "
            "computed with; give x in another unit"
        )


def _domain(where: Any, x: Any, shape: tuple[int, ...], labelled: bool) -> np.ndarray | None:
    """The domain as a boolean array of the tensor's shape, or None where it is everything."""
    if where is None:
        return None
    if _axes.is_dataarray(where):
        if not labelled:
            raise TypeError("where is a DataArray but x is not: give where.to_numpy(), or x as a DataArray")
        where = _axes.broadcast_by_name(where, x)
    flags = np.ma.filled(where, False) if isinstance(where, np.ma.MaskedArray) else np.asarray(where)
    if flags.ndim != len(shape) or any(m not in (1, n) for m, n in zip(flags.shape, shape)):
        raise ValueError(
            f"where has shape {flags.shape}, x has {shape}: give one flag per cell, or length 1 along the "
            "modes it "
            "does not depend on (where[:, :, None])"
        )
    if flags.dtype != bool:
        if flags.dtype.kind not in "iuf" or not np.isin(flags, (0, 1)).all():
            raise TypeError(
                f"where has dtype {flags.dtype} and is not only 0 and 1: give booleans, True = could be "
                "observed"
            )
        flags = flags.astype(bool)
    if flags.all():
        return None
    if not flags.any():
        raise ValueError(
            "where is False everywhere: True marks cells that could be observed (perhaps it is inverted: "
            "~where)"
        )
    return np.array(np.broadcast_to(flags, shape), order="C")
