"""Intervals for the mean over a region or a time span: the number most people publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corten.fitted import Fitted
from corten.regions import DRAWS, _like_missing, axes_of, group_numbers
from corten.result import check_coverage

__all__ = ["RegionMean", "region_mean"]

PARTS = 2.0
"""A single group is cut into this many times the 1/(1 - c) parts that a quantile of level c needs."""


@dataclass(frozen=True, eq=False)
class RegionMean:
    """The mean over some axes and its interval, one for each place along the axes that are left.

    Arrays, or DataArrays with the labels that are left where the input had labels; plain numbers where no axis is
    left.
    """

    estimate: Any
    lower: Any
    upper: Any
    coverage: float
    over: tuple[str, ...]


def region_mean(fitted: Fitted, *over: str | int, coverage: float = 0.9, seed: int = 0) -> RegionMean:
    """The mean over axes (all if none is named) of observed and missing entries together, with an interval.

    Observed entries are known, so the error is that of the missing ones' mean times their share. It is calibrated
    on hidden groups: from the calibration entries of every slice some are drawn by weight, so that they look like
    missing ones, at most as many as are missing, and the quantile of their |mean error| over slices, with one more
    slice for the one to come, is the half-width. Fewer calibration than missing entries make it wider than needed,
    never narrower, if errors within a slice are exchangeable.

    Guarantee: on average over slices whose errors are alike, for the fitted odds. With fewer slices than 1/(1 -
    coverage) each slice's entries are cut into random parts instead: that holds what the parts have in common, and
    is wide.
    """
    level = check_coverage(coverage)
    observed = fitted.observed
    if fitted.undo is not None:
        raise ValueError("mean needs a fit without transform: errors do not average in a changed variable")
    places = axes_of(observed, over)
    left = [k for k in range(len(observed.shape)) if k not in places]
    shape = tuple(observed.shape[k] for k in left)
    slices = group_numbers(observed, tuple(left))[0] if left else np.zeros(observed.shape, np.intp)
    slices = np.ravel(slices)
    count = int(np.prod(shape)) if left else 1
    inside = np.bincount(slices, observed.inside.ravel(), minlength=count)
    missing = np.bincount(slices, observed.missing.ravel(), minlength=count).astype(np.intp)
    filled = np.where(observed.mask, observed.values, fitted.estimate).astype(np.float64).ravel()
    total = np.bincount(slices, np.where(observed.inside.ravel(), filled, 0.0), minlength=count)
    half = np.zeros(count)
    if fitted.calibrated is not None:
        half = _half_widths(fitted, slices, missing, level, seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle, half = total / inside, half * missing / inside
    half[missing == 0] = 0.0
    names = tuple(observed.axes[k].name for k in places)
    ends = [_labelled(fitted, part.reshape(shape), left) for part in (middle, middle - half, middle + half)]
    return RegionMean(ends[0], ends[1], ends[2], level, names)


def _half_widths(
    fitted: Fitted, slices: NDArray[np.intp], missing: NDArray[np.intp], level: float, seed: int
) -> NDArray[np.float64]:
    """A quantile of the mean error of hidden groups for every slice; slices with like numbers of missing
    entries share one.
    """
    entries, residuals = fitted.entries, np.asarray(fitted.residuals, np.float64)
    logs = fitted.log_weights.astype(np.float64)
    rounds = np.cumsum(np.diff(entries, prepend=entries[:1]) < 0)
    _, place = np.unique(slices[entries] + rounds * (int(slices.max()) + 1), return_inverse=True)
    enough = int(place.max(initial=0)) + 1 >= 1.0 / (1.0 - level)
    sizes = 2 ** np.floor(np.log2(np.maximum(missing, 1))).astype(np.intp)
    half = np.zeros(missing.size)
    if enough:
        for size in np.unique(sizes[missing > 0]):
            half[sizes == size] = _quantile(residuals, logs, place, int(size), level, seed)
        return half
    for number in np.flatnonzero(missing):
        own = slices[entries] == number
        parts = int(np.ceil(PARTS / (1.0 - level)))
        if np.count_nonzero(own) < parts:
            half[number] = np.inf
            continue
        part = np.random.default_rng([seed, int(number)]).permutation(np.count_nonzero(own)) % parts
        half[number] = _quantile(residuals[own], logs[own], part, int(sizes[number]), level, seed)
    return half


def _quantile(
    residuals: NDArray[np.float64],
    logs: NDArray[np.float64],
    place: NDArray[np.intp],
    size: int,
    level: float,
    seed: int,
) -> float:
    """The conformal quantile over groups of the absolute mean error of at most `size` entries drawn by weight."""
    found: list[NDArray[np.float64]] = []
    for number in range(DRAWS):
        rng = np.random.default_rng([seed, size, number])
        taken = rng.permutation(np.flatnonzero(_like_missing(logs, rng)))
        order = np.argsort(place[taken], kind="stable")
        group = place[taken][order]
        first = np.searchsorted(group, group)
        kept = np.arange(group.size) - first < size
        count = np.bincount(group[kept])
        mean = np.bincount(group[kept], residuals[taken][order][kept])[count > 0] / count[count > 0]
        found.append(np.abs(mean))
    pooled, groups = np.sort(np.concatenate(found)), float(np.mean([one.size for one in found]))
    k = np.ceil(level * (groups + 1.0) - 1e-9)
    if k > groups:
        return float("inf")
    return float(pooled[min(int(np.ceil(k / groups * pooled.size)) - 1, pooled.size - 1)])


def _labelled(fitted: Fitted, array: NDArray[np.float64], left: list[int]) -> Any:
    observed = fitted.observed
    if not left:
        return float(array)
    if observed.kind != "dataarray":
        return array
    import xarray as xr

    dims = [observed.axes[k].dim for k in left]
    known = {dim: observed.coords[dim] for dim in dims if observed.coords is not None and dim in observed.coords}
    return xr.DataArray(array, coords=known, dims=dims, name=observed.name, attrs=dict(observed.attrs))
