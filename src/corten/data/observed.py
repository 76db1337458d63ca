"""The input of a fit: values, mask, domain and axes. Only this module knows input types and labels.

`ObservedTensor.of` reads arrays with NaN, masked arrays, xarray.DataArray, pandas.DataFrame and nested lists;
`ObservedTensor.wrap` returns arrays of the same type, with labels. Everything else works on plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from corten.data import axes as _axes
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.data.covariates import Covariates, covariates_of
from corten.data.missing_values import MissingValue, blank_declared, codes_of, declared_by, report_suspects
from corten.data.order import unordered_axes
from corten.data.printable import printable
from corten.data.wide import WideLabels, frame_of, is_foreign_frame, is_frame, matrix_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

TO_FOLD = "fold a regular series into days x hours (x.reshape(-1, 24) of an array), or interpolate it with pandas"
MAX_SIZE = 1e100  # of the largest absolute value; 1 / MAX_SIZE is the smallest

InputKind = Literal["array", "masked", "dataarray", "frame"]
TensorLike: TypeAlias = "ArrayLike | pd.DataFrame | xr.DataArray | ObservedTensor"
DomainLike: TypeAlias = "ArrayLike | pd.DataFrame | xr.DataArray | None"
LikeInput: TypeAlias = "np.ndarray | pd.DataFrame | xr.DataArray"
"""An array in the type of the input."""


@dataclass(frozen=True, eq=False)
class ObservedTensor:
    """A tensor with missing entries: values, mask, domain and axes. Made by `ObservedTensor.of`.

    Attributes
    ----------
    values : numpy.ndarray
        The values; NaN where not observed.
    mask : numpy.ndarray of bool
        True where observed.
    domain : numpy.ndarray of bool or None
        True where an entry could be observed; None if this is everywhere.
    axes : tuple of Axis
        Name, coordinates, kind and period of each axis.
    name : str or None
        Name of the variable.
    attrs : mapping
        Attributes of a DataArray, such as units.
    kind : {"array", "masked", "dataarray", "frame"}
        Type of the input.
    coords : xarray coordinates or None
        Coordinates of a DataArray or DataFrame.
    choices : tuple of Choice
        What was found in the data: kinds of axes, suspected missing values.
    table : WideLabels or None
        Index and columns of a DataFrame.
    covariates : mapping from name to numpy.ndarray
        Other arrays that broadcast to the tensor.

    Notes
    -----
    All arrays are read-only copies: the input is not modified, and later changes to it have no effect.

    Examples
    --------
    >>> tensor = ObservedTensor.of([[1.0, float("nan")], [3.0, 4.0]])
    >>> tensor.n_observed, tensor.n_missing, tensor.complete
    (3, 1, False)
    """

    values: np.ndarray
    mask: np.ndarray
    domain: np.ndarray | None
    axes: tuple[Axis, ...]
    name: str | None = None
    attrs: Mapping[str, object] = field(default_factory=dict)
    kind: InputKind = "array"
    coords: xr.Coordinates | None = None
    choices: tuple[Choice, ...] = ()
    table: WideLabels | None = None
    covariates: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        x: TensorLike,
        where: DomainLike = None,
        *,
        axes: Sequence[str | Axis] | None = None,
        periodic: Sequence[str | int] = (),
        axis_kinds: Mapping[str | int, str] | None = None,
        missing_value: MissingValue = None,
        covariates: Covariates | None = None,
    ) -> ObservedTensor:
        """Read a tensor with missing entries.

        Parameters
        ----------
        x : array with NaN, masked array, xarray.DataArray, pandas.DataFrame or nested lists
            The tensor, with two or more axes; those of a DataFrame are rows and columns. Integers and booleans become
            float64; float32 stays float32.
        where, periodic, axis_kinds, missing_value, covariates
            As for `corten.complete`.
        axes : sequence of str or Axis, optional
            Names of the axes of a plain array. Default: ``axis_0``, ``axis_1``, ...

        Returns
        -------
        ObservedTensor

        Raises
        ------
        ValueError, TypeError
            If x is no tensor of finite numbers and NaN, has no observed value, or its description does not fit.

        Warns
        -----
        UserWarning
            If a repeated extreme value far outside all others looks like a missing value.

        Examples
        --------
        >>> x = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
        >>> tensor = ObservedTensor.of(x, axes=("station", "hour"), axis_kinds={"station": "unordered"})
        >>> [(axis.name, axis.kind) for axis in tensor.axes]
        [('station', 'unordered'), ('hour', 'ordered')]
        """
        if isinstance(x, cls):
            if where is None and axes is None and not periodic and not axis_kinds and missing_value is None:
                if covariates is None:
                    return x
                like = x.wrap(x.values) if x.kind == "dataarray" else x.values
                return replace(x, covariates=covariates_of(covariates, like, x.shape, x.table))
            raise TypeError(
                "x is an ObservedTensor, which has its domain and axes: give where, axes, periodic, axis_kinds and "
                "missing_value to ObservedTensor.of"
            )
        table = None
        if is_foreign_frame(x):
            x = frame_of(x)
        if is_frame(x):
            x, table = matrix_of(x)
            where = table.flags(where)
        refuse_foreign(x)
        labelled = x if _axes.is_dataarray(x) else None
        if labelled is not None and axes is not None:
            how = "x.rename(old='new')" if table is None else "x.rename_axis(index='time', columns='station')"
            raise ValueError(f"axes= is for plain arrays; x has axes with names of its own: {how} changes them")
        kind: InputKind = "masked" if isinstance(x, np.ma.MaskedArray) else "array"
        kind = "frame" if table is not None else kind if labelled is None else "dataarray"
        attrs = {} if labelled is None else dict(labelled.attrs)
        values, mask, choices = _numbers(x, (*codes_of(missing_value), *declared_by(attrs)))
        if values.ndim < 2:
            raise ValueError(
                f"x has shape {values.shape}: two or more axes are needed; {TO_FOLD} "
                "(x[:, None] has an axis of length 1)"
            )
        if 0 in values.shape:
            raise ValueError(f"x has an axis of length 0, shape {values.shape}: it has no entries")
        described = _axes.axes_of_names(axes, values.shape) if labelled is None else _axes.axes_of_dataarray(labelled)
        described = _axes.refine(described, periodic, axis_kinds or {})
        choices += () if labelled is None else _zones(labelled)
        domain = _domain(where, labelled, values.shape)
        if domain is not None:
            mask &= domain
        infinite = np.isinf(values)
        infinite &= mask
        if infinite.any():
            first = tuple(int(i) for i in np.argwhere(infinite)[0])
            raise ValueError(
                f"x has {int(infinite.sum())} infinite value(s), the first at {first}: only finite numbers and NaN "
                "are allowed; set them to NaN if they stand for missing (np.where(np.isinf(x), np.nan, x))"
            )
        if not mask.any():
            inside = " inside the domain given by where=" if domain is not None else ""
            raise ValueError(
                f"x has no observed value{inside}: all {values.size} entries are missing, so nothing can be estimated"
            )
        values[~mask] = np.nan
        refuse_extreme(largest_size(values))
        choices += report_suspects(values)
        if labelled is None or table is not None:
            described, found = _ordered_or_not(
                described, axes, periodic=periodic, axis_kinds=axis_kinds or {}, values=values, mask=mask
            )
            choices = (*found, *choices)
        for array in (values, mask, *(() if domain is None else (domain,))):
            array.setflags(write=False)
        return cls(
            values=values, mask=mask, domain=domain, axes=described,
            name=None if labelled is None or labelled.name is None else str(labelled.name), attrs=attrs, kind=kind,
            coords=None if labelled is None else labelled.coords.copy(deep=True), choices=choices, table=table,
            covariates=covariates_of(covariates, x, values.shape, table),
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self.values.shape

    @cached_property
    def missing(self) -> np.ndarray:
        """True at the entries to fill: in the domain and not observed."""
        missing = ~self.mask
        if self.domain is not None:
            missing &= self.domain
        missing.setflags(write=False)
        return missing

    @cached_property
    def n_observed(self) -> int:
        """Number of observed entries."""
        return int(np.count_nonzero(self.mask))

    @cached_property
    def n_missing(self) -> int:
        """Number of missing entries."""
        return int(np.count_nonzero(self.missing))

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.n_missing == 0

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Values and domain of planes start:stop of the first axis, as `Source` asks."""
        return self.values[start:stop], None if self.domain is None else self.domain[start:stop]

    @property
    def inside(self) -> np.ndarray:
        """The domain as an array; True everywhere if none was given."""
        return np.ones(self.shape, dtype=bool) if self.domain is None else self.domain

    def axis(self, name: str | int) -> int:
        """The position of an axis by name or position; a ValueError with the known names if it is unknown."""
        return _axes.position(name, [axis.name for axis in self.axes], "axis")

    def empty_slices(self) -> list[tuple[str, int]]:
        """Slices with missing entries and without any observation: (axis name, index) of each.

        Examples
        --------
        >>> ObservedTensor.of([[1.0, 2.0], [float("nan"), float("nan")]]).empty_slices()
        [('axis_0', 1)]
        """
        found: list[tuple[str, int]] = []
        for k, axis in enumerate(self.axes):
            observed, missing = (array.any(axis=self._others(k)) for array in (self.mask, self.missing))
            found += [(axis.name, int(index)) for index in np.flatnonzero(missing & ~observed)]
        return found

    @cached_property
    def forecast(self) -> np.ndarray:
        """True at missing entries before the first or after the last observed slice of an ordered time axis."""
        beyond = np.zeros(self.shape, dtype=bool)
        for k, axis in enumerate(self.axes):
            late = axis.forecast(np.asarray(self.mask.any(axis=self._others(k))))
            if late is not None:
                beyond |= late.reshape([-1 if j == k else 1 for j in range(len(self.shape))])
        beyond &= self.missing
        beyond.setflags(write=False)
        return beyond

    def wrap(self, array: np.ndarray, name: str | None = None, attrs: Mapping[str, object] | None = None) -> LikeInput:
        """An array of the tensor's shape in the type of the input; a masked array is masked outside the domain.

        name, attrs: of a DataArray; those of the input by default.
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
        return array if self.table is None else self.table.frame(array)

    def _others(self, k: int) -> tuple[int, ...]:
        return tuple(j for j in range(len(self.shape)) if j != k)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis.name}: {axis.length}" for axis in self.axes)
        outside = "" if self.domain is None else f", {int((~self.domain).sum())} outside the domain"
        counts = f"{self.n_observed} observed, {self.n_missing} missing{outside}"
        return printable(f"<ObservedTensor {self.name or ''}({sizes}) {counts}>")


def refuse_foreign(x: object) -> None:
    """Refuse None and containers that are not one tensor (tables, datasets, file names) with advice."""
    if x is None:
        raise TypeError("x is None: give an array with NaN, a masked array, a pandas.DataFrame or an xarray.DataArray")
    module, kind = type(x).__module__.split(".")[0], type(x).__name__
    if module == "xarray" and kind == "Dataset":
        raise TypeError(
            "x is a Dataset: corten.complete(x) fills every variable; here give one of them, x[name] with name one of "
            f"{sorted(map(str, cast('xr.Dataset', x)))}"
        )
    if module in ("pandas", "polars"):
        cures = {
            "LazyFrame": "give x.collect()",
            "Series": f"two or more axes are needed; {TO_FOLD}",
        }
        raise TypeError(f"x is a {module} {kind}: {cures.get(kind, 'give a table with rows and columns, or an array')}")
    if isinstance(x, str | bytes) or hasattr(x, "__fspath__"):
        raise TypeError(f"x is the text {str(x)!r}: read a file first, corten.io.read(path).data")


def _zones(x: xr.DataArray) -> tuple[Choice, ...]:
    """Records of times with a zone."""
    zones = {str(dim): _axes.zone_of(x.coords[dim]) for dim in x.dims if dim in x.coords}
    said = "the labels have the zone {}: they are compared in UTC; results keep the zone, files hold UTC"
    return tuple(Choice(f"times of {dim}", "UTC", said.format(zone)) for dim, zone in zones.items() if zone is not None)


def _ordered_or_not(
    described: tuple[Axis, ...], given: Sequence[str | Axis] | None, *, periodic: Sequence[str | int],
    axis_kinds: Mapping[str | int, str], values: np.ndarray, mask: np.ndarray,
) -> tuple[tuple[Axis, ...], tuple[Choice, ...]]:  # fmt: skip
    """The kinds of axes without a description, found from the values: ordered or unordered."""
    names = [axis.name for axis in described]
    closed = (periodic,) if isinstance(periodic, str | int) else periodic
    said = {_axes.position(name, names, "axis") for name in (*closed, *axis_kinds)}
    said |= {k for k, one in enumerate(given or ()) if isinstance(one, Axis)}
    said |= {k for k, one in enumerate(described) if given is None and one.coordinates is not None}
    if len(said) == len(described):
        return described, ()
    axes, choices = list(described), []
    for found in unordered_axes(values, mask):
        k = int(str(found.values["axis"]))
        if k not in said:
            axes[k] = replace(axes[k], kind="unordered")
            because = f"{found.because}; axis_kinds={{{names[k]!r}: 'ordered'}} overrides this"
            choices.append(replace(found, what=f"kind of {names[k]}", because=because))
    return tuple(axes), tuple(choices)


def _numbers(x: TensorLike, codes: Sequence[float]) -> tuple[np.ndarray, np.ndarray, tuple[Choice, ...]]:
    """A new float array, a mask of its numbers, and records of missing values and of rounded integers."""
    covered = np.ma.getmaskarray(x) if isinstance(x, np.ma.MaskedArray) else None
    try:
        raw = np.asarray(x.data if isinstance(x, np.ma.MaskedArray) else x)
    except ValueError as problem:
        raise ValueError(
            f"x is not a full array: {problem}; every row of a nested list needs the same length"
        ) from None
    if raw.dtype.kind not in "biuf":
        advice = {
            "c": "complete the real and the imaginary part apart (x.real, x.imag)",
            "O": "convert it (np.asarray(x, dtype=float)); None becomes NaN by that",
            "M": "dates are labels, not values: subtract a start and divide by a unit",
            "m": "divide by a unit (x / np.timedelta64(1, 's'))",
        }.get(raw.dtype.kind, "convert it to numbers first")
        raise TypeError(f"x has dtype {raw.dtype}: real numbers (float, integer, bool) are allowed; {advice}")
    single = raw.dtype.kind == "f" and raw.dtype.itemsize <= 4
    values = np.array(raw, dtype=np.float32 if single else np.float64, order="C", copy=True)
    records = blank_declared(values, codes)
    mask = ~np.isnan(values)
    if covered is not None:
        mask &= ~covered
    if raw.dtype.kind not in "iu" or raw.dtype.itemsize < 8 or np.abs(values[mask]).max(initial=0.0) <= 2.0**53:
        return values, mask, records
    because = "Integers above 2**53 were rounded to doubles: subtract an offset first where their last digits matter."
    return values, mask, (*records, Choice("values", "rounded", because, code="integers_rounded"))


def largest_size(values: np.ndarray) -> float:
    """The largest absolute value, without NaN; 0 if there is none."""
    return max(float(np.fmax.reduce(values, None, initial=0.0)), -float(np.fmin.reduce(values, None, initial=0.0)))


def refuse_extreme(largest: float) -> None:
    """Refuse values whose squares do not fit in double precision."""
    if largest > MAX_SIZE or 0.0 < largest < 1 / MAX_SIZE:
        raise ValueError(
            f"the largest value of x is {largest:.1e}: sizes between {1 / MAX_SIZE:.0e} and {MAX_SIZE:.0e} are "
            "allowed; give x in another unit"
        )


def _domain(where: DomainLike, x: xr.DataArray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """The domain as a boolean array of the tensor's shape, or None if it is everything."""
    if where is None:
        return None
    if _axes.is_dataarray(where):
        if x is None:
            raise TypeError("where is a DataArray but x is not: give where.to_numpy(), or x as a DataArray")
        where = _axes.broadcast_by_name(where, x)
    flags = np.ma.filled(where, False) if isinstance(where, np.ma.MaskedArray) else np.asarray(where)
    _axes.refuse_other_shape("where", flags.shape, shape)
    if flags.dtype != bool:
        if flags.dtype.kind not in "iuf" or not np.isin(flags, (0, 1)).all():
            raise TypeError(
                f"where has dtype {flags.dtype} and values other than 0 and 1: give booleans, True = could be observed"
            )
        flags = flags.astype(bool)
    if flags.all():
        return None
    if not flags.any():
        raise ValueError(
            "where is False everywhere: True marks entries that could be observed (perhaps it is inverted: ~where)"
        )
    return np.array(np.broadcast_to(flags, shape), order="C")
