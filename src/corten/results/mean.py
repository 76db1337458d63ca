"""Intervals for the mean over a region or a time span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from corten.conformal.split import CalibratedSplit
from corten.data.arrays import Entries, Floats
from corten.results.groups import DRAWS, group_numbers, hidden_groups, like_missing, lists_of, refuse_carried

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from corten.results.fitted import Fitted
    from corten.results.intervals import Intervals

Averaged: TypeAlias = "float | Floats | pd.Series | xr.DataArray"
"""A number, or an array with the axes that are left, in the type of the input."""
PARTS_PER_NEEDED = 2.0  # parts of a single group, over the 1/(1 - c) that a quantile of level c needs
SEED = 0  # of the draws of calibration entries
ERROR_QUANTILES = 32  # that represent the distribution of errors in a mean through a transform


@dataclass(frozen=True, eq=False)
class RegionMean:
    """The mean over some axes and its interval. Returned by `Intervals.mean`.

    estimate, lower and upper have one value for each position of the other axes, in the unit of the data and with the
    labels of the input; they are floats if there is no other axis.
    """

    estimate: Averaged
    lower: Averaged
    upper: Averaged
    coverage: float  #: Nominal coverage.
    over: tuple[str, ...]  #: The axes that were averaged over.


def region_mean(result: Intervals, *over: str | int) -> RegionMean:
    """The mean of observed and missing entries over axes, with an interval.

    Parameters
    ----------
    *over : str or int
        Axes to average over, by name or position. Default: all of them.

    Returns
    -------
    RegionMean
        One mean for each position of the other axes. Not for grouped, joint or robust intervals.

    Notes
    -----
    The error of the mean is the mean error of the missing entries times their share. It is calibrated on groups of
    calibration entries: from those of every slice some are drawn by weight, so that they resemble missing entries, at
    most as many as are missing. The quantile of their absolute mean error over slices (counting one more, the new one)
    is the half-width. If a slice has fewer calibration entries than missing ones, the interval is wider than needed and
    never narrower, provided that errors within a slice are exchangeable.

    The coverage holds on average over slices with similar errors, for the fitted odds. With fewer slices than
    1 / (1 - coverage), the entries of each slice are divided at random into parts instead; the interval is then wide.

    Under a transform the estimate is the mean of each entry's value over the distribution of the errors (Duan's
    smearing estimate), because the transform of a mean is not the mean. With bounds of the data, the interval contains
    only means that values within the bounds can have.
    """
    fitted, level = result.source, result.coverage
    refuse_carried(fitted, "means")
    observed = fitted.observed
    places = [observed.axis(one) for one in over] or list(range(len(observed.shape)))
    left = [k for k in range(len(observed.shape)) if k not in places]
    shape = tuple(observed.shape[k] for k in left)
    slices = np.ravel(group_numbers(observed, left)[0] if left else np.zeros(observed.shape, np.intp))
    count = int(np.prod(shape))
    inside = np.bincount(slices, observed.inside.ravel(), minlength=count)
    missing = np.bincount(slices, observed.missing.ravel(), minlength=count).astype(np.intp)
    expected, errors = _expected(fitted)
    filled = np.where(observed.mask, observed.values, expected).astype(np.float64).ravel()
    total = np.bincount(slices, np.where(observed.inside.ravel(), filled, 0.0), minlength=count)
    half = np.zeros(count)
    if fitted.calibrated is not None:
        half = _half_widths(fitted, errors, slices=slices, missing=missing, level=level)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle, half = total / inside, half * missing / inside
    half[missing == 0] = 0.0
    names = tuple(observed.axes[k].name for k in places)
    lower, upper = middle - half, middle + half
    if fitted.limits is not None:
        known = np.bincount(slices, np.where(observed.mask, observed.values, 0.0).ravel(), count).astype(np.float64)
        # Sums over each slice if every missing entry had the value of a limit.
        ends = [known + np.where(missing > 0, np.maximum(missing, 1) * limit, 0.0) for limit in fitted.limits]
        least, most = (end / np.maximum(inside, 1) for end in ends)
        lower, upper = np.maximum(lower, least), np.minimum(upper, most)
    answer = [_labelled(fitted, part.reshape(shape), left) for part in (middle, lower, upper)]
    return RegionMean(answer[0], answer[1], answer[2], level, names)


def _expected(fitted: Fitted) -> tuple[Floats, Floats]:
    """The expected value of every missing entry, as a full array, and the errors of such expectations at the
    calibration entries; both in the unit of the data.
    """
    errors = np.asarray(fitted.residuals, np.float64)
    full = np.array(fitted.estimate, np.float64)
    if fitted.calibrated is None:
        return full, errors
    lists, rounds, where = lists_of(fitted), fitted.calibrated.round_numbers, fitted.missing_entries
    truth = fitted.observed.values.reshape(-1).astype(np.float64)
    if all(one.change is None for one in lists):
        if fitted.limits is not None:  # errors of estimates within the limits
            own = truth[fitted.entries]
            errors = own - np.clip(own - errors, *fitted.limits)
        return full, errors
    logs = fitted.log_weights.astype(np.float64)
    of_list, moved = np.zeros(rounds.size, np.intp), errors  # errors after the transform
    if len(lists) > 1:
        of_list = rounds
        pairs = ((one, one.entries) for one in lists)
        moved = np.concatenate([one.to_model(at, truth[at]) - one.estimate.reshape(-1)[at] for one, at in pairs])
    typical = [_typical(moved[of_list == k], logs[of_list == k]) for k in range(len(lists))]
    errors = np.empty(moved.size)
    for number in np.unique(rounds):
        here = np.flatnonzero(rounds == number)
        at, k = fitted.entries[here], int(of_list[here[0]])
        middle = lists[k].to_model(at, truth[at]) - moved[here]
        errors[here] = truth[at] - _smeared(lists[k], at, middle, typical[k], fitted.limits)
    middles = [one.estimate.reshape(-1)[where].astype(np.float64) for one in lists]
    parts = [_smeared(one, where, m, t, fitted.limits) for one, m, t in zip(lists, middles, typical)]
    full.reshape(-1)[where] = np.mean(parts, axis=0)
    return full, errors


def _typical(errors: Floats, logs: Floats) -> Floats:
    """Quantiles of the weighted distribution of errors, less their mean, so that they add no bias."""
    order = np.argsort(errors)
    sums = np.cumsum(np.exp(logs[order] - logs.max()))
    places = np.searchsorted(sums, (np.arange(ERROR_QUANTILES) + 0.5) / ERROR_QUANTILES * sums[-1])
    taken = errors[order[np.minimum(places, order.size - 1)]]
    return np.asarray(taken - taken.mean())


def _smeared(
    one: CalibratedSplit, entries: Entries, middle: Floats, typical: Floats, limits: tuple[float, float] | None
) -> Floats:
    """The mean of some entries over the distribution of the errors about `middle`, in the unit of the data."""
    values = [one.to_data(entries, middle + error) for error in typical]
    return np.mean(values if limits is None else np.clip(values, *limits), axis=0)


def _half_widths(
    fitted: Fitted, residuals: Floats, *, slices: Entries, missing: Entries, level: float
) -> Floats:
    """A quantile of the mean error of groups for every slice; slices with similar numbers of missing entries share
    one.
    """
    entries, logs = fitted.entries, fitted.log_weights.astype(np.float64)
    place = hidden_groups(fitted, slices)
    enough = int(place.max(initial=0)) + 1 >= 1.0 / (1.0 - level)
    sizes = 2 ** np.floor(np.log2(np.maximum(missing, 1))).astype(np.intp)
    half = np.zeros(missing.size)
    if enough:
        for size in np.unique(sizes[missing > 0]):
            half[sizes == size] = _quantile(residuals, logs, place=place, size=int(size), level=level)
        return half
    for number in np.flatnonzero(missing):
        own = slices[entries] == number
        parts = int(np.ceil(PARTS_PER_NEEDED / (1.0 - level)))
        if np.count_nonzero(own) < parts:
            half[number] = np.inf
            continue
        part = np.random.default_rng([SEED, int(number)]).permutation(np.count_nonzero(own)) % parts
        half[number] = _quantile(residuals[own], logs[own], place=part, size=int(sizes[number]), level=level)
    return half


def _quantile(residuals: Floats, logs: Floats, *, place: Entries, size: int, level: float) -> float:
    """The conformal quantile over groups of the absolute mean error of at most `size` entries drawn by weight."""
    found: list[Floats] = []
    for number in range(DRAWS):
        rng = np.random.default_rng([SEED, size, number])
        taken = rng.permutation(np.flatnonzero(like_missing(logs, rng)))
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


def _labelled(fitted: Fitted, array: Floats, left: list[int]) -> Averaged:
    observed = fitted.observed
    if not left:
        return float(array)
    if observed.table is not None:
        import pandas as pd

        return pd.Series(array, index=observed.table.columns if left == [1] else observed.table.index)
    if observed.kind != "dataarray":
        return array
    import xarray as xr

    dims = [observed.axes[k].dim for k in left]
    known = {dim: observed.coords[dim] for dim in dims if observed.coords is not None and dim in observed.coords}
    return xr.DataArray(array, coords=known, dims=dims, name=observed.name, attrs=dict(observed.attrs))
