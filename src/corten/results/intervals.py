"""Intervals: estimate and bounds of every missing entry at one coverage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np
from numpy.typing import ArrayLike

from corten.conformal.quantile import rounded_out
from corten.data.blocks import blocks
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.flags import BEYOND, FORECAST, INFINITE, NEVER, flags
from corten.data.missing_values import MissingValue
from corten.data.never_observed import find_never_observed
from corten.data.observed import LikeInput, ObservedTensor, TensorLike
from corten.evidence.audit_table import Audit
from corten.evidence.score_log import ScoreLog
from corten.evidence.verification import Given, verify
from corten.io.dataset import bound_attrs, flag_attrs, to_dataset, write_netcdf
from corten.io.provenance import quantity_of
from corten.io.table import long_form
from corten.report.figures import Plots
from corten.report.page import write_report
from corten.results.draws import draws
from corten.results.mean import RegionMean, region_mean
from corten.results.predictive import exceedance, quantile
from corten.results.summary import Summary

if TYPE_CHECKING:
    import pandas as pd
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

        With pseudo-gaps they lie deeper inside gaps than those; after a random split where almost nothing is observed,
        or at places without any observation, unless chance explains these.
        """
        attrs = {"long_name": "entry is beyond what calibration tested"}
        return self._plain(self.beyond_array.copy(), "beyond_tested", attrs)

    @cached_property
    def flag(self) -> LikeInput:
        """How each entry got its value.

        0 observed, 1 filled, 2 filled with an infinite interval, 3 forecast, 4 outside the domain, 5 filled deeper
        inside a gap than calibration tested (see `beyond_tested`), 6 filled at a place without any observation.
        """
        return self._plain(self.flag_array, "flag", flag_attrs())

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

    def summary(self, full: bool = False) -> Summary:
        """What was filled, typical width and error, coverage on hidden entries, and what to be careful about.

        Parameters
        ----------
        full : bool, default False
            Whether every number and every setting with its reason is shown, instead of about ten lines.

        Returns
        -------
        Summary
            ``print`` shows it, ``to_dict()`` gives plain numbers and text.

        Notes
        -----
        The error is that of entries that calibration hid, beside that of the best plain method on them: linear
        interpolation along one axis, or the mean of a slice where no axis is ordered. The coverage is that of the
        entries hidden in one round by a cutoff from the other rounds; `Fitted.audit` is a stronger test.
        """
        return Summary.of(self, full)

    def mean(self, *over: str | int) -> RegionMean:
        """The mean over axes, with an interval; see `corten.results.mean.region_mean` for its guarantee.

        Parameters
        ----------
        *over : str or int
            Axes to average over, by name or position. Default: all of them.

        Returns
        -------
        RegionMean
            One mean for each position of the other axes. Not for grouped, joint or robust intervals.
        """
        return region_mean(self.source, *over, coverage=self.coverage)

    def exceedance(self, threshold: ArrayLike, fdr: float = 0.1, *, above: bool = True) -> LikeInput:
        """Missing entries that lie above (or below) a threshold, with a limited share of false ones.

        Parameters
        ----------
        threshold : float or array
            In the unit of the data; NaN where no answer is wanted.
        fdr : float, default 0.1
            Expected share of false entries among the selected ones (false discovery rate).
        above : bool, default True
            Select entries above the threshold; False: below.

        Returns
        -------
        boolean array or xarray.DataArray
            True at the selected entries. The rate holds on average, if entries are missing independently with the
            fitted odds.
        """
        return self._plain(exceedance(self.source, threshold, fdr, above), "exceedance", {"fdr": fdr})

    def quantile(self, level: float) -> LikeInput:
        """The predictive quantile of every missing entry.

        Parameters
        ----------
        level : float
            Probability of a value at or below the quantile, between 0 and 1.

        Returns
        -------
        array or xarray.DataArray
            In the unit of the data; observed entries keep their value.

        Notes
        -----
        Quantiles never decrease with the level. The median is the estimate plus the median error of hidden entries. A
        quantile is a bound of the two-sided interval of signed errors: a value lies at or below one above the median
        with probability *at least* `level`, and at or above one below the median with probability at least 1 - `level`.
        """
        settled = self._settled(quantile(self.source, level).astype(self.observed.values.dtype))
        return self.observed.wrap(settled, name=f"quantile_{level:g}")

    def draws(
        self, count: int, seed: int = 0, *, statistic: Callable[[np.ndarray], ArrayLike] | None = None
    ) -> np.ndarray:
        """Filled tensors with random errors, for means, totals, areas and joint events, and for multiple imputation.

        Parameters
        ----------
        count : int
            Number of tensors.
        seed : int, default 0
            Seed of the draws. With the same seed, the first draws of a larger `count` are the same.
        statistic : function, optional
            Called with each filled tensor, a plain array; its answers are returned instead of the tensors. Only one
            tensor is in memory at a time.

        Returns
        -------
        numpy.ndarray
            Of shape ``(count, *shape)``, or one answer of `statistic` for each draw. Each entry has the distribution of
            `quantile`; errors are correlated like those of hidden entries, see `corten.results.draws.draws`.

        Examples
        --------
        >>> area = result.draws(200, statistic=lambda x: np.mean(x > 30.0))  # doctest: +SKIP
        """
        return draws(self.source, count, seed, statistic)

    def verify(
        self,
        late: TensorLike,
        log: str | os.PathLike[str] | None = None,
        *,
        axis: str | int | None = None,
        target: float | None = None,
        label: str = "",
        missing_value: MissingValue = None,
    ) -> ScoreLog:
        """Compare values that arrived late with these intervals.

        Parameters
        ----------
        late, log, axis, target, label, missing_value
            As for `Fitted.verify`.
        """
        given = Given(
            estimate=self.estimate,
            lower=self.lower_array,
            upper=self.upper_array,
            missing=self.observed.missing,
            axes=self.observed.axes,
            coverage=self.coverage,
            units=str(self.observed.attrs.get("units", "")),
        )
        return verify(given, late, log, axis=axis, target=target, label=label, missing_value=missing_value)

    def to_dataset(self, like: xr.Dataset | None = None) -> xr.Dataset:
        """The filled variable, its bounds and flags as a Dataset that follows the CF conventions.

        Parameters
        ----------
        like : xarray.Dataset, optional
            The Dataset that the input comes from. Its global attributes, grid mapping and bounds of coordinates, which
            a single DataArray does not have, are copied.

        Returns
        -------
        xarray.Dataset
            The variable, say ``sst`` ("value" if it has no name), with ``sst_lower``, ``sst_upper``, ``sst_flag`` and,
            with a propensity model, ``sst_propensity``. The attribute ``corten_settings`` holds all settings.
        """
        return to_dataset(self, like)

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
        return write_netcdf(self.to_dataset(like), path, overwrite=overwrite)

    def to_dataframe(self) -> pd.DataFrame:
        """A long table with one row per entry of the domain: coordinates, estimate, lower, upper and flag."""
        return long_form(self)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        audit: Audit | None = None,
        scores: ScoreLog | None = None,
    ) -> Path:
        """Write an HTML page with figures, settings and warnings; it opens in any browser without a network.

        Parameters
        ----------
        path, overwrite
            As for `Fitted.save`, but for the suffix ``.html``.
        audit : Audit, optional
            The result of ``fitted.audit()``; adds the coverage that it found.
        scores : ScoreLog, optional
            Scores of the past, from ``fitted.verify`` or ``ScoreLog.read``; adds the coverage over time.
        """
        return write_report(self, path, overwrite=overwrite, audit=audit, scores=scores)

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
        attrs = bound_attrs(what, quantity_of(self.observed.attrs, self.observed.name), self.coverage)
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
