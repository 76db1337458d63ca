"""Intervals: estimate and bounds of every missing entry at one coverage."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np

from corten.conformal.quantile import rounded_out
from corten.data.blocks import blocks
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.flags import BEYOND, FORECAST, INFINITE, NEVER, flags
from corten.data.never_observed import find_never_observed
from corten.data.observed import LikeInput, ObservedTensor
from corten.evidence import verification
from corten.io import dataset
from corten.io.provenance import quantity_of
from corten.io.table import long_form
from corten.report import page
from corten.report.figures import Plots
from corten.results import draws, mean, predictive, summary

if TYPE_CHECKING:
    import xarray as xr

    from corten.results.fitted import Fitted

INSTEAD = {
    **{name: f"result.source.{name}, of the fit" for name in ("audit", "fill", "save", "settings", "update")},
    **{name: f"result.to_dataframe().{name}(path)" for name in ("to_csv", "to_excel", "to_parquet")},
    **dict.fromkeys(("values", "to_numpy"), "result.estimate"), "to_zarr": "result.to_dataset().to_zarr(path)",
}  # fmt: skip
"""Names that people try, and what they mean."""


class Intervals:
    """Estimate and prediction interval of every missing entry, in the type and with the labels of the input.

    Returned by `corten.complete` and `Fitted.intervals`.

    Parameters
    ----------
    source : Fitted
        The fit that gives estimates and bounds.
    coverage : float
        Nominal coverage, between 0 and 1.

    Notes
    -----
    The intervals cover a new noisy observation, on average over the missing entries, not the noiseless field.
    Observed entries keep their value and have an interval of width 0. Entries outside the domain are NaN. A bound is
    infinite where the calibration entries do not suffice for a finite interval at this coverage.

    Examples
    --------
    >>> result = corten.complete(x, coverage=0.9)                    # doctest: +SKIP
    >>> narrow, wide = result.at([0.8, 0.95])                        # doctest: +SKIP
    >>> print(result.summary())                                      # doctest: +SKIP
    >>> result.mean("lat", "lon").upper                              # doctest: +SKIP
    >>> hot, median = result.exceedance(30.0), result.quantile(0.5)  # doctest: +SKIP
    >>> result.to_netcdf("filled.nc")                                # doctest: +SKIP
    >>> result.report("report.html")                                 # doctest: +SKIP
    """

    def __init__(self, source: Fitted, coverage: float) -> None:
        self.source = source
        self.coverage = check_coverage(coverage)

    @property
    def observed(self) -> ObservedTensor:
        """The input: values, mask, domain and axes."""
        return self.source.observed

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Every automatic setting, with its value, the reason and the candidates."""
        return tuple(self.source.choices)

    @cached_property
    def estimate(self) -> LikeInput:
        """The filled tensor; observed entries keep their value."""
        return self.observed.wrap(self.estimate_array)

    @cached_property
    def lower(self) -> LikeInput:
        """Lower bound of each interval; -inf where it is not finite."""
        return self._labelled(self.lower_array, "lower")

    @cached_property
    def upper(self) -> LikeInput:
        """Upper bound of each interval; inf where it is not finite."""
        return self._labelled(self.upper_array, "upper")

    @cached_property
    def width(self) -> LikeInput:
        """Upper minus lower bound: 0 at observed entries, infinite where a bound is infinite."""
        return self._labelled(self.width_array, "width")

    @property
    def missing(self) -> LikeInput:
        """True at the entries that were filled."""
        return self._plain(self.observed.missing.copy(), "missing", {"long_name": "entry was missing and is filled"})

    @property
    def beyond_tested(self) -> LikeInput:
        """True at missing entries that calibration did not test: the coverage there is unknown.

        With pseudo-gaps they lie deeper inside gaps than those; after a random split in slices with too few observed
        entries, or at places without any observation, unless chance explains these.
        """
        attrs = {"long_name": "entry is beyond what calibration tested"}
        return self._plain(self.beyond_array.copy(), "beyond_tested", attrs)

    @cached_property
    def flag(self) -> LikeInput:
        """How each entry got its value.

        0 observed, 1 filled, 2 filled with an infinite interval, 3 forecast, 4 outside the domain, 5 filled deeper
        inside a gap than calibration tested (see `beyond_tested`), 6 filled at a place without any observation.
        """
        return self._plain(self.flag_array, "flag", dataset.flag_attrs())

    @cached_property
    def estimate_array(self) -> np.ndarray:
        """`estimate` as a plain array."""
        return self._settled(np.array(self.source.estimate, dtype=self.observed.values.dtype))

    @cached_property
    def lower_array(self) -> np.ndarray:
        """`lower` as a plain array."""
        return self._settled(self._bounds[0])

    @cached_property
    def upper_array(self) -> np.ndarray:
        """`upper` as a plain array."""
        return self._settled(self._bounds[1])

    @cached_property
    def width_array(self) -> np.ndarray:
        """`width` as a plain array."""
        return np.asarray(self.upper_array - self.lower_array)

    def widths_at(self, entries: np.ndarray, coverage: float) -> np.ndarray:
        """Widths of some missing entries (flat indices) at any coverage, equal to those of `at(coverage)`."""
        lower, upper = rounded_out(self.source.bounds(coverage, entries), self.observed.values.dtype)
        return np.asarray(upper - lower)

    @cached_property
    def beyond_array(self) -> np.ndarray:
        """`beyond_tested` as a plain array."""
        beyond = np.zeros(self.observed.shape, bool) if self.source.beyond is None else self.source.beyond
        whole_places = any(one.code.startswith("pseudo_gaps") for one in self.choices)
        return beyond if whole_places else np.asarray(beyond | self.never_array)

    @cached_property
    def never_array(self) -> np.ndarray:
        """Missing entries of places without any observation; none where chance explains these places."""
        found = find_never_observed(self.observed)
        if found is None or found.by_chance:
            return np.zeros(self.observed.shape, bool)
        return np.asarray(self.observed.missing & found.places)

    @cached_property
    def flag_array(self) -> np.ndarray:
        """`flag` as a plain array."""
        infinite, late = np.isinf(self.width_array), self.observed.forecast
        marks = ((NEVER, self.never_array), (BEYOND, self.source.beyond), (INFINITE, infinite), (FORECAST, late))
        (whole,) = blocks(self.observed)
        return flags(whole.spins, marks)

    @overload
    def at(self, coverage: float) -> Intervals: ...

    @overload
    def at(self, coverage: Sequence[float]) -> list[Intervals]: ...

    def at(self, coverage: float | Sequence[float]) -> Intervals | list[Intervals]:
        """The intervals at another coverage, or a list of several; nothing is fitted again.

        Parameters
        ----------
        coverage : float or sequence of float
            Nominal coverage.
        """
        if np.ndim(coverage) > 0:
            return [Intervals(self.source, level) for level in np.ravel(coverage)]
        return Intervals(self.source, check_coverage(coverage))

    summary = summary.summary
    mean = mean.region_mean
    exceedance = predictive.exceedance
    quantile = predictive.quantile
    draws = draws.draws
    verify = verification.verify
    to_dataset = dataset.to_dataset

    def to_netcdf(
        self, path: str | os.PathLike[str], *, like: xr.Dataset | None = None, overwrite: bool = False
    ) -> Path:
        """Write `to_dataset(like)` to a NetCDF file, whole or not at all.

        Parameters
        ----------
        path, overwrite
            As for `Fitted.save`, but for the suffix ``.nc``.
        like
            As for `to_dataset`.
        """
        return dataset.write_netcdf(self.to_dataset(like), path, overwrite=overwrite)

    to_dataframe = long_form
    report = page.write_report

    def __getattr__(self, name: str) -> NoReturn:
        """The error for a name that is not here, with the name that is meant where it is known."""
        remedy = INSTEAD.get(name, "result.to_dataframe() or result.to_dataset()" if name.startswith("to_") else "")
        raise AttributeError(f"Intervals has no {name!r}" + (f": use {remedy}" if remedy else ""), name=name, obj=self)

    @property
    def plot(self) -> Plots:
        """Figures of this result: ``result.plot()`` at a glance, or one of them as ``result.plot.slice(time=12)``."""
        return Plots(self)

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return rounded_out(self.source.bounds(self.coverage), self.observed.values.dtype)

    def _settled(self, array: np.ndarray) -> np.ndarray:
        """The array with the values of observed entries, and NaN outside the domain."""
        array[self.observed.mask] = self.observed.values[self.observed.mask]
        if self.observed.domain is not None:
            array[~self.observed.domain] = np.nan
        return array

    def _labelled(self, array: np.ndarray, what: str) -> LikeInput:
        attrs = dataset.bound_attrs(what, quantity_of(self.observed.attrs, self.observed.name), self.coverage)
        units = {key: value for key, value in self.observed.attrs.items() if key == "units"}
        return self.observed.wrap(array, name=what, attrs=attrs | units)

    def _plain(self, array: np.ndarray, name: str, attrs: Mapping[str, object]) -> LikeInput:
        """Labelled like the input but never masked: a masked flag could not mark entries outside the domain."""
        return self.observed.wrap(array, name, attrs) if self.observed.kind in ("dataarray", "frame") else array

    def __dir__(self) -> list[str]:
        """Names for users: no private names, and not the plain arrays that other modules use."""
        names = [name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")]
        return [name for name in names if not name.endswith("_array") and name != "widths_at"]

    def __repr__(self) -> str:
        infinite = int(np.count_nonzero(np.isinf(self.width_array)))
        tail = f", {infinite} with infinite intervals" if infinite else ""
        shape = " x ".join(str(axis.length) for axis in self.observed.axes)
        filled = f"{self.observed.n_missing} entries filled{tail}"
        return f"<Intervals {shape} at {self.coverage:.4g} coverage: {filled}>"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()
