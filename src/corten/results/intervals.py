"""Intervals: what the user gets back.

The intervals cover a new noisy observation, on average over the missing entries, not the noiseless field.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np

from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.flags import BEYOND, FILLED, FLAG_MEANINGS, FORECAST, INFINITE, OBSERVED, OUTSIDE
from corten.data.observed import ObservedTensor
from corten.results.summary import Summary

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from corten.results.mean import RegionMean

__all__ = ["IntervalSource", "Intervals"]



@runtime_checkable
class IntervalSource(Protocol):
    """What stands behind `Intervals`: a fitted model that answers any coverage without fitting again.

    Arrays have the tensor's shape; what they hold at observed cells or outside the domain is not read.
    """

    @property
    def observed(self) -> ObservedTensor: ...

    @property
    def estimate(self) -> np.ndarray: ...

    @property
    def choices(self) -> tuple[Choice, ...]: ...

    def bounds(self, coverage: float, entries: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound of every entry, or of some flat `entries` only; infinities are allowed."""
        ...

    def propensity_array(self) -> np.ndarray | None:
        """The probability of each cell to be observed, where a model of the missingness was fitted."""
        ...

    def warnings(self) -> list[str]:
        """What the user must know, in whole sentences."""
        ...

    def facts(self, coverage: float) -> dict[str, Any]:
        """Numbers for the summary, such as `effective_sample_size`; underscores are shown as spaces."""
        ...

    def settings(self) -> dict[str, Any]:
        """Seed, options and versions: what it takes to run this again."""
        ...


class Intervals:
    """An estimate and an interval for every missing entry, in the input's own kind and with its labels.

    The intervals cover a new noisy observation, on average over the missing entries, not the noiseless field.
    Observed entries keep their value with a zero-width interval; cells outside the domain are NaN. An
    infinite bound is a value: it says that the data cannot bear the coverage asked for there.

    Example:
        >>> import corten
        >>> result = corten.complete(x, coverage=0.9)                    # doctest: +SKIP
        >>> result.estimate, result.lower, result.upper                  # doctest: +SKIP
        >>> wider = result.at(0.95)                                      # doctest: +SKIP
        >>> print(result.summary())                                      # doctest: +SKIP
    """

    def __init__(self, source: IntervalSource, coverage: float) -> None:
        self.source = source
        self.coverage = check_coverage(coverage)

    @property
    def observed(self) -> ObservedTensor:
        """What was given: values, mask, domain and axes."""
        return self.source.observed

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Every automatic choice, with what it was taken from and why."""
        return tuple(self.source.choices)

    @cached_property
    def estimate(self) -> Any:
        """The filled tensor; observed entries keep their value."""
        return self.observed.wrap(self.estimate_array)

    @cached_property
    def lower(self) -> Any:
        """The lower end of each interval."""
        return self._labelled(self.lower_array, "lower")

    @cached_property
    def upper(self) -> Any:
        """The upper end of each interval."""
        return self._labelled(self.upper_array, "upper")

    @cached_property
    def width(self) -> Any:
        """upper - lower: 0 where observed, infinite where the data cannot bear this coverage."""
        return self._labelled(self.width_array, "width")

    @property
    def missing(self) -> Any:
        """True at the entries that were filled."""
        attrs = {"long_name": "entry was missing and is filled"}
        return self._plain(self.observed.missing.copy(), "missing", attrs)

    @property
    def beyond_tested(self) -> Any:
        """True at missing entries deeper inside gaps than calibration tested: the coverage there is unknown."""
        attrs = {"long_name": "entry lies deeper inside a gap than calibration tested"}
        return self._plain(self.beyond_array.copy(), "beyond_tested", attrs)

    @cached_property
    def flag(self) -> Any:
        """0 observed, 1 filled, 2 filled with an infinite interval, 3 forecast, 4 outside the domain, 5 filled beyond
        what was tested (see `beyond_tested`).
        """
        return self._plain(self.flag_array, "flag", self._flag_attrs())

    @cached_property
    def estimate_array(self) -> np.ndarray:
        return self._settled(np.array(self.source.estimate, dtype=self.observed.values.dtype))

    @cached_property
    def lower_array(self) -> np.ndarray:
        return self._settled(_round_outward(self._ends[0], self.observed.values.dtype, -np.inf))

    @cached_property
    def upper_array(self) -> np.ndarray:
        return self._settled(_round_outward(self._ends[1], self.observed.values.dtype, np.inf))

    @cached_property
    def width_array(self) -> np.ndarray:
        return np.asarray(self.upper_array - self.lower_array)

    def widths_at(self, entries: np.ndarray, coverage: float) -> np.ndarray:
        """Widths of some missing entries (flat indices) at any coverage, to the bit those of `at(coverage)`."""
        lower, upper = self.source.bounds(coverage, entries)
        kind = self.observed.values.dtype
        return np.asarray(_round_outward(upper, kind, np.inf) - _round_outward(lower, kind, -np.inf))

    @cached_property
    def beyond_array(self) -> np.ndarray:
        beyond = getattr(self.source, "beyond", None)
        return np.zeros(self.observed.shape, bool) if beyond is None else np.asarray(beyond)

    @cached_property
    def flag_array(self) -> np.ndarray:
        flag = np.full(self.observed.shape, FILLED, dtype=np.int8)
        flag[self.beyond_array] = BEYOND
        flag[np.isinf(self.width_array)] = INFINITE
        flag[self.observed.forecast] = FORECAST
        flag[self.observed.mask] = OBSERVED
        if self.observed.domain is not None:
            flag[~self.observed.domain] = OUTSIDE
        return flag

    @overload
    def at(self, coverage: float) -> Intervals: ...

    @overload
    def at(self, coverage: Sequence[float]) -> list[Intervals]: ...

    def at(self, coverage: float | Sequence[float]) -> Intervals | list[Intervals]:
        """The same model at another coverage, or at several: nothing is fitted again.

        Example:
            >>> [one.coverage for one in result.at([0.8, 0.9])]          # doctest: +SKIP
            [0.8, 0.9]
        """
        if isinstance(coverage, list | tuple) or np.ndim(coverage) > 0:
            return [Intervals(self.source, level) for level in np.ravel(coverage)]
        return Intervals(self.source, check_coverage(coverage))

    def summary(self) -> Summary:
        """What was filled, how wide the intervals are, what was chosen and why, and what to beware of."""
        return Summary.of(self)

    def mean(self, *over: str | int) -> RegionMean:
        """The mean over axes (all if none is named) with an interval; for its guarantee see `corten.results.mean`.

        Example:
            >>> result.mean("lat", "lon").upper                          # doctest: +SKIP
        """
        from corten.results.mean import region_mean

        return region_mean(self._fit(), *over, coverage=self.coverage)

    def exceedance(self, threshold: Any, fdr: float = 0.1, *, above: bool = True) -> Any:
        """True at missing entries claimed to lie above (or below) a threshold; at most `fdr` of them are false."""
        from corten.results.predictive import exceedance

        return self._plain(exceedance(self._fit(), threshold, fdr, above), "exceedance", {"fdr": fdr})

    def quantile(self, level: float) -> Any:
        """The predictive quantile of every missing entry; observed entries keep their value."""
        from corten.results.predictive import quantile

        settled = self._settled(quantile(self._fit(), level).astype(self.observed.values.dtype))
        return self.observed.wrap(settled, name=f"quantile_{level:g}")

    def draws(self, count: int, seed: int = 0) -> np.ndarray:
        """`count` filled tensors for multiple imputation, stacked in front; errors are drawn entry by entry."""
        from corten.results.predictive import draws

        return draws(self._fit(), count, seed)

    def _fit(self) -> Any:
        if not hasattr(self.source, "residuals"):
            raise TypeError("this result does not come from a fit: call corten.complete or ConformalCompleter.fit")
        return self.source

    def to_dataset(self) -> xr.Dataset:
        """estimate, lower, upper and flag as an xarray Dataset that follows the CF conventions."""
        from corten.io.dataset import to_dataset

        return to_dataset(self)

    def to_netcdf(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write `to_dataset()` to a NetCDF file: whole or not at all; an existing file is refused.

        Example:
            >>> result.to_netcdf("filled.nc")                            # doctest: +SKIP
        """
        from corten.io.dataset import write_netcdf

        return write_netcdf(self.to_dataset(), path, overwrite=overwrite)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per cell of the domain: coordinates, estimate, lower, upper, flag."""
        from corten.io.table import long_form

        return long_form(self)

    def report(self, path: str | os.PathLike[str], *, overwrite: bool = False, audit: Any = None) -> Path:
        """Write a page with figures, choices and warnings that opens in any browser; an audit adds its evidence."""
        from corten.report.page import write_report

        return Path(write_report(self, path, overwrite=overwrite, audit=audit))

    @property
    def plot(self) -> Any:
        """Figures of this result, such as `result.plot.slice(time=12)`."""
        from corten.report.figures import Plots

        return Plots(self)

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        lower, upper = self.source.bounds(self.coverage)
        return np.asarray(lower), np.asarray(upper)

    def _settled(self, array: np.ndarray) -> np.ndarray:
        """Observed cells keep their value, cells outside the domain have none."""
        seen = self.observed.mask
        array[seen] = self.observed.values[seen]
        if self.observed.domain is not None:
            array[~self.observed.domain] = np.nan
        return array

    def _labelled(self, array: np.ndarray, what: str) -> Any:
        return self.observed.wrap(array, name=what, attrs=self._bound_attrs(what))

    def _bound_attrs(self, what: str) -> dict[str, Any]:
        quantity = self.observed.attrs.get("long_name") or self.observed.name or "value"
        kind = {"lower": "lower end", "upper": "upper end", "width": "width"}[what]
        attrs: dict[str, Any] = {"long_name": f"{kind} of the {self.coverage:.4g} interval of {quantity}"}
        if "units" in self.observed.attrs:
            attrs["units"] = self.observed.attrs["units"]
        return attrs | {"coverage": self.coverage}

    def _flag_attrs(self) -> dict[str, Any]:
        return {
            "long_name": "how each entry came to its value",
            "flag_values": np.arange(len(FLAG_MEANINGS), dtype=np.int8),
            "flag_meanings": " ".join(FLAG_MEANINGS),
        }

    def _plain(self, array: np.ndarray, name: str, attrs: Mapping[str, Any]) -> Any:
        """Flags are never masked: a masked flag could not say that it is outside the domain."""
        return self.observed.wrap(array, name, attrs) if self.observed.kind == "dataarray" else array

    def __repr__(self) -> str:
        infinite = int(np.count_nonzero(np.isinf(self.width_array)))
        tail = f", {infinite} with infinite intervals" if infinite else ""
        shape = " x ".join(str(axis.length) for axis in self.observed.axes)
        filled = f"{self.observed.n_missing} entries filled{tail}"
        return f"<Intervals {shape} at {self.coverage:.4g} coverage: {filled}>"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _round_outward(bound: np.ndarray, dtype: np.dtype, away: float) -> np.ndarray:
    """Cast a bound; where rounding moved it inwards, step outwards, so that no interval loses coverage."""
    with np.errstate(over="ignore"):
        cast = np.array(bound, dtype=dtype)
    inwards = cast > bound if away < 0 else cast < bound
    cast[inwards] = np.nextafter(cast[inwards], dtype.type(away))
    return cast
