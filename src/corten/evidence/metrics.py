"""Measures of intervals where the truth is known: coverage, width, interval score.

`covered`, `widths`, `interval_scores` and `standard_error` take plain arrays. The other functions take a result and
return one number, or a table, for its filled entries. They share these parameters:

truth : array
    True values, in the shape and unit of the result; entries with unknown truth (NaN, masked) are ignored.
result : Intervals
    Any object with `lower`, `upper`, `missing`, `coverage` and, for `miscoverage`, `at(level)`. An entry with a NaN
    bound counts as not covered.
where : boolean array, optional
    Entries to use. Default: all filled entries. The measure is NaN if there are none.

The intervals cover a new *noisy* observation, on average over the missing entries: compare them with noisy truth.

Examples
--------
>>> corten.metrics.coverage(truth, result), corten.metrics.width(result)     # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.data.axes import is_dataarray
from corten.data.coverage import check_coverage
from corten.data.observed import LikeInput

__all__ = [
    "Group", "IntervalsLike", "coverage", "coverage_by_decile", "coverage_by_slice", "covered", "crps",
    "infinite_share", "interval_score", "interval_scores", "miscoverage", "standard_error", "width", "widths",
]  # fmt: skip

_PAPER_COVERAGES = tuple(round(0.80 + 0.01 * k, 2) for k in range(20))


class IntervalsLike(Protocol):
    """A result that can be measured."""

    @property
    def lower(self) -> LikeInput: ...
    @property
    def upper(self) -> LikeInput: ...
    @property
    def missing(self) -> LikeInput: ...
    @property
    def coverage(self) -> float: ...


class Predictive(IntervalsLike, Protocol):
    """A result with intervals of any coverage and predictive quantiles."""

    def at(self, coverage: float, /) -> IntervalsLike: ...
    def quantile(self, level: float) -> LikeInput: ...


class Group(NamedTuple):
    """Coverage of one group of entries, a slice or a decile: its number, the share covered and its standard error for
    independent entries, and the number of entries.
    """

    label: int
    coverage: float
    standard_error: float
    entries: int


def covered(truth: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> NDArray[np.bool_]:
    """Whether each value lies in its closed interval.

    >>> covered([1.0, 5.0, 2.0], [0.0, 0.0, -np.inf], [1.0, 1.0, np.inf])
    array([ True, False,  True])
    """
    x, low, high = _plain(truth), _plain(lower), _plain(upper)
    return np.asarray((low <= x) & (x <= high))


def widths(lower: ArrayLike, upper: ArrayLike) -> NDArray[np.float64]:
    """Width of each interval; infinite where a bound is.

    >>> widths([0.0, -np.inf], [1.5, np.inf])
    array([1.5, inf])
    """
    return np.asarray(_plain(upper) - _plain(lower))


def interval_scores(truth: ArrayLike, lower: ArrayLike, upper: ArrayLike, coverage: float) -> NDArray[np.float64]:
    """Winkler score of each interval: the width plus 2/(1 - coverage) times the distance to a value outside.

    Lower is better; the true quantiles are best on average. It is infinite for an infinite interval.

    >>> interval_scores([0.5, 2.0], [0.0, 0.0], [1.0, 1.0], coverage=0.9)
    array([ 1., 21.])
    """
    miss_cost = 2.0 / (1.0 - check_coverage(coverage))
    x, low, high = _plain(truth), _plain(lower), _plain(upper)
    miss = np.maximum(low - x, 0.0) + np.maximum(x - high, 0.0)
    return np.asarray((high - low) + miss_cost * miss)


def standard_error(values: ArrayLike) -> float:
    """Standard error of the mean of per-entry values, such as `covered` or `widths`, for independent entries.

    NaN for fewer than two values or for infinite ones. Errors of neighbouring entries are correlated in real tensors,
    so the true standard error is larger.

    >>> round(standard_error(covered([1.0, 3.0], [0.0, 0.0], [2.0, 2.0])), 3)
    0.5
    """
    x = _plain(values).ravel()
    if x.size < 2 or not np.isfinite(x).all():
        return float("nan")
    return float(x.std(ddof=1) / np.sqrt(x.size))


def coverage(truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Empirical coverage: the share of the filled entries whose truth lies in the interval."""
    x, use = _known(truth, result, where)
    return _mean(covered(x, result.lower, result.upper)[use])


def miscoverage(
    truth: ArrayLike, result: Predictive, levels: Sequence[float] = _PAPER_COVERAGES, where: ArrayLike | None = None
) -> float:
    """Mean absolute difference of nominal and empirical coverage over levels, in percent (equation coverage-l1-loss).

    The default levels are those of the paper, 0.80, 0.81, ..., 0.99. 0 is best.
    """
    differences = [abs(level - coverage(truth, result.at(level), where)) for level in levels]
    return 100.0 * float(np.mean(differences))


def width(result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Mean width of the finite intervals, in the unit of the data; report it together with `infinite_share`."""
    every = widths(result.lower, result.upper)[_use(result, where)]
    return _mean(every[np.isfinite(every)])


def infinite_share(result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Share of the filled entries with an infinite lower or upper bound."""
    infinite = np.isinf(_plain(result.lower)) | np.isinf(_plain(result.upper))
    return _mean(infinite[_use(result, where)])


def interval_score(truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Mean Winkler score (`interval_scores`) at the coverage of the result; infinite if one interval is."""
    x, use = _known(truth, result, where)
    lower, upper = _plain(result.lower)[use], _plain(result.upper)[use]
    return _mean(interval_scores(x[use], lower, upper, float(result.coverage)))


def crps(truth: ArrayLike, result: Predictive, where: ArrayLike | None = None, levels: int = 50) -> float:
    """Mean continuous ranked probability score of the predictive distributions, in the unit of the data.

    It is the integral over levels p of twice the quantile (pinball) loss at p, computed at the midpoints of `levels`
    equal parts of [0, 1]: more parts are more accurate and take longer. Lower is better; of distributions that are
    single values it is the mean absolute error.
    """
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise ValueError(f"levels is {levels!r}: give a whole number of at least 1")
    x, use = _known(truth, result, where)
    total = np.zeros(int(np.count_nonzero(use)))
    for level in (np.arange(levels) + 0.5) / levels:
        above = x[use] - _plain(result.quantile(float(level)))[use]
        total += np.maximum(level * above, (level - 1.0) * above)
    return _mean(2.0 * total / levels)


def coverage_by_slice(
    truth: ArrayLike, result: IntervalsLike, axis: int | str, where: ArrayLike | None = None
) -> list[Group]:
    """Empirical coverage in each slice along an axis, given by its position or, if the result is labelled, its name.

    Slices without entries have coverage NaN.
    """
    number = _axis_number(result, axis)
    x, use = _known(truth, result, where)
    labels: NDArray[np.intp] = np.broadcast_to(np.indices(use.shape, sparse=True)[number], use.shape)
    return _grouped(covered(x, result.lower, result.upper)[use], labels[use], use.shape[number])


def coverage_by_decile(
    truth: ArrayLike, result: IntervalsLike, values: ArrayLike, where: ArrayLike | None = None, groups: int = 10
) -> list[Group]:
    """Empirical coverage in groups of equal size, ordered by `values`, one per entry, such as the propensity.

    Group 0 has the smallest values. Ties are divided, so that groups have equal size.
    """
    x, use = _known(truth, result, where)
    by = _like(values, result.lower)[use]
    labels = np.empty(by.size, dtype=np.intp)
    labels[np.argsort(by, kind="stable")] = np.arange(by.size) * groups // max(by.size, 1)
    return _grouped(covered(x, result.lower, result.upper)[use], labels, groups)


def _grouped(inside: NDArray[np.bool_], labels: NDArray[np.integer], groups: int) -> list[Group]:
    entries = np.bincount(labels, minlength=groups)
    hits = np.bincount(labels, weights=inside, minlength=groups)
    table = []
    for label, (count, hit) in enumerate(zip(entries.tolist(), hits.tolist(), strict=True)):
        share = hit / count if count else float("nan")
        error = float(np.sqrt(share * (1 - share) / (count - 1))) if count > 1 else float("nan")
        table.append(Group(label, share, error, count))
    return table


def _known(
    truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The truth on the axes of the result, and the entries to use: filled, in `where`, and with a known truth."""
    x = _like(truth, result.lower)
    return x, _use(result, where) & ~np.isnan(x)


def _use(result: IntervalsLike, where: ArrayLike | None) -> NDArray[np.bool_]:
    use = np.asarray(result.missing, dtype=bool)
    if where is None:
        return use
    region = np.asarray(_aligned(where, result.lower))
    if region.dtype != bool:
        raise TypeError(f"where has dtype {region.dtype}; give booleans, True at the entries to use")
    return use & region


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _plain(array: ArrayLike) -> NDArray[np.float64]:
    if isinstance(array, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(array), np.nan, np.asarray(array.data, dtype=np.float64))
    return np.asarray(array, dtype=np.float64)


def _aligned(array: ArrayLike, like: LikeInput) -> ArrayLike:
    """The array with its named axes in the order of `like`, where both have names."""
    if is_dataarray(array) and is_dataarray(like) and array.dims != like.dims and set(array.dims) == set(like.dims):
        return array.transpose(*like.dims)
    return array


def _like(array: ArrayLike, like: LikeInput) -> NDArray[np.float64]:
    x = _plain(_aligned(array, like))
    if x.shape != np.shape(like):
        raise ValueError(f"shapes differ: the result has {np.shape(like)}, the given array {x.shape}")
    return x


def _axis_number(result: IntervalsLike, axis: int | str) -> int:
    if isinstance(axis, str):
        names = tuple(getattr(result.lower, "dims", ()))
        if axis not in names:
            raise ValueError(f"axis is {axis!r}; the result has {names}: give a name or a number")
        return names.index(axis)
    return range(np.ndim(result.lower))[axis]
