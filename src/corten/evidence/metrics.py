"""Measures of intervals where the truth is known: coverage, width, interval score.

`covered`, `widths` and `interval_scores` take plain arrays and return one number per entry. `coverage`, `width` and the
other functions take a result and return one number for its filled entries. A result is any object with `lower`,
`upper`, `missing`, `coverage` and, for `miscoverage`, `at(level)`. The truth may be a NumPy array, a masked array or an
xarray.DataArray, in the unit of the result. Entries with unknown truth (NaN, masked) are ignored; an entry with a NaN
bound counts as not covered. Infinite bounds are allowed.

The intervals cover a new *noisy* observation, on average over the missing entries: compare them with noisy truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Group",
    "IntervalsLike",
    "coverage",
    "coverage_by_decile",
    "coverage_by_slice",
    "covered",
    "infinite_share",
    "interval_score",
    "interval_scores",
    "miscoverage",
    "standard_error",
    "width",
    "widths",
]

_PAPER_COVERAGES = tuple(round(0.80 + 0.01 * k, 2) for k in range(20))


class IntervalsLike(Protocol):
    """A result that can be measured."""

    @property
    def lower(self) -> Any: ...
    @property
    def upper(self) -> Any: ...
    @property
    def missing(self) -> Any: ...
    @property
    def coverage(self) -> float: ...
    def at(self, coverage: float, /) -> IntervalsLike: ...


class Group(NamedTuple):
    """Coverage of one group of entries: a slice, or a decile.

    Attributes
    ----------
    label : int
        Number of the group.
    coverage, standard_error : float
        Share of covered entries, and its standard error for independent entries.
    entries : int
        Number of entries.

    Examples
    --------
    >>> Group(0, 0.9, 0.03, 100).coverage
    0.9
    """

    label: int
    coverage: float
    standard_error: float
    entries: int


def covered(truth: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> NDArray[np.bool_]:
    """Whether each value lies in its closed interval.

    Parameters
    ----------
    truth, lower, upper : array
        Values and bounds, of one shape and unit.

    Returns
    -------
    boolean array

    Examples
    --------
    >>> covered([1.0, 5.0, 2.0], [0.0, 0.0, -np.inf], [1.0, 1.0, np.inf])
    array([ True, False,  True])
    """
    x, low, high = _plain(truth), _plain(lower), _plain(upper)
    return np.asarray((low <= x) & (x <= high))


def widths(lower: ArrayLike, upper: ArrayLike) -> NDArray[np.float64]:
    """Width of each interval; infinite where a bound is.

    Parameters
    ----------
    lower, upper : array
        Bounds.

    Returns
    -------
    array

    Examples
    --------
    >>> widths([0.0, -np.inf], [1.5, np.inf])
    array([1.5, inf])
    """
    return np.asarray(_plain(upper) - _plain(lower))


def interval_scores(
    truth: ArrayLike, lower: ArrayLike, upper: ArrayLike, coverage: float
) -> NDArray[np.float64]:
    """Winkler score of each interval: the width plus 2/(1 - coverage) times the distance to a value outside.

    Parameters
    ----------
    truth, lower, upper : array
        Values and bounds, of one shape and unit.
    coverage : float
        Nominal coverage, between 0 and 1.

    Returns
    -------
    array
        Lower is better; the true quantiles are best on average. Infinite for an infinite interval.

    Raises
    ------
    ValueError
        If `coverage` is not between 0 and 1.

    Examples
    --------
    >>> interval_scores([0.5, 2.0], [0.0, 0.0], [1.0, 1.0], coverage=0.9)
    array([ 1., 21.])
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage!r}; give a number strictly between 0 and 1, such as 0.9")
    x, low, high = _plain(truth), _plain(lower), _plain(upper)
    miss = np.maximum(low - x, 0.0) + np.maximum(x - high, 0.0)
    return np.asarray((high - low) + 2.0 / (1.0 - coverage) * miss)


def standard_error(values: ArrayLike) -> float:
    """Standard error of the mean of per-entry values, for independent entries.

    Parameters
    ----------
    values : array
        One value per entry, such as `covered` or `widths`.

    Returns
    -------
    float
        NaN for fewer than two values or for infinite ones. Errors of neighbouring entries are correlated in real
        tensors, so the true standard error is larger.

    Examples
    --------
    >>> round(standard_error(covered([1.0, 3.0], [0.0, 0.0], [2.0, 2.0])), 3)
    0.5
    """
    x = _plain(values).ravel()
    if x.size < 2 or not np.isfinite(x).all():
        return float("nan")
    return float(x.std(ddof=1) / np.sqrt(x.size))


def coverage(truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Empirical coverage: the share of the filled entries whose truth lies in the interval.

    Parameters
    ----------
    truth : array
        True values, in the shape and unit of the result.
    result : Intervals
        The result.
    where : boolean array, optional
        Entries to use. Default: all filled entries.

    Returns
    -------
    float
        To be compared with ``result.coverage``; NaN if there are no entries.

    Examples
    --------
    >>> corten.metrics.coverage(truth, result)                       # doctest: +SKIP
    """
    return _mean(covered(*_entries(truth, result, where)))


def miscoverage(
    truth: ArrayLike,
    result: IntervalsLike,
    levels: Sequence[float] = _PAPER_COVERAGES,
    where: ArrayLike | None = None,
) -> float:
    """Mean absolute difference between nominal and empirical coverage, in percent.

    Parameters
    ----------
    truth : array
        True values, in the shape and unit of the result.
    result : Intervals
        The result.
    levels : sequence of float, default 0.80, 0.81, ..., 0.99
        Nominal coverages.
    where : boolean array, optional
        Entries to use. Default: all filled entries.

    Returns
    -------
    float
        0 is best.

    Notes
    -----
    Equation coverage-l1-loss of the paper.
    """
    differences = [abs(level - coverage(truth, result.at(level), where)) for level in levels]
    return 100.0 * float(np.mean(differences))


def width(result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Mean width of the finite intervals; report it together with `infinite_share`.

    Parameters
    ----------
    result : Intervals
        The result.
    where : boolean array, optional
        Entries to use. Default: all filled entries.

    Returns
    -------
    float
        In the unit of the data; NaN if no interval is finite.
    """
    every = widths(*_bounds(result, where))
    return _mean(every[np.isfinite(every)])


def infinite_share(result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Share of the filled entries with an infinite lower or upper bound.

    Parameters
    ----------
    result : Intervals
        The result.
    where : boolean array, optional
        Entries to use. Default: all filled entries.

    Returns
    -------
    float
    """
    lower, upper = _bounds(result, where)
    return _mean(np.isinf(lower) | np.isinf(upper))


def interval_score(truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None = None) -> float:
    """Mean Winkler score at the coverage of the result.

    Parameters
    ----------
    truth : array
        True values, in the shape and unit of the result.
    result : Intervals
        The result.
    where : boolean array, optional
        Entries to use. Default: all filled entries.

    Returns
    -------
    float
        Infinite if one interval is infinite.
    """
    return _mean(interval_scores(*_entries(truth, result, where), coverage=float(result.coverage)))


def coverage_by_slice(
    truth: ArrayLike, result: IntervalsLike, axis: int | str, where: ArrayLike | None = None
) -> list[Group]:
    """Empirical coverage in each slice along an axis.

    Parameters
    ----------
    truth : array
        True values, in the shape and unit of the result.
    result : Intervals
        The result.
    axis : int or str
        Position of the axis, or its name if the result is labelled.
    where : boolean array, optional
        Entries to use. Default: all filled entries.

    Returns
    -------
    list of Group
        Slices without entries have coverage NaN.

    Raises
    ------
    ValueError
        If the axis is unknown.
    """
    number = _axis_number(result, axis)
    inside, use = _inside(truth, result, where)
    labels = np.broadcast_to(
        np.arange(use.shape[number]).reshape([-1 if k == number else 1 for k in range(use.ndim)]), use.shape
    )
    return _grouped(inside[use], labels[use], use.shape[number])


def coverage_by_decile(
    truth: ArrayLike,
    result: IntervalsLike,
    values: ArrayLike,
    where: ArrayLike | None = None,
    groups: int = 10,
) -> list[Group]:
    """Empirical coverage in groups of equal size, ordered by some values such as the propensity.

    Parameters
    ----------
    truth : array
        True values, in the shape and unit of the result.
    result : Intervals
        The result.
    values : array
        One value per entry, by which entries are ordered.
    where : boolean array, optional
        Entries to use. Default: all filled entries.
    groups : int, default 10
        Number of groups.

    Returns
    -------
    list of Group
        Group 0 has the smallest values. Ties are divided, so that groups have equal size.
    """
    inside, use = _inside(truth, result, where)
    by = _like(values, result.lower)[use]
    labels = np.empty(by.size, dtype=np.intp)
    labels[np.argsort(by, kind="stable")] = np.arange(by.size) * groups // max(by.size, 1)
    return _grouped(inside[use], labels, groups)


def _grouped(inside: NDArray[np.bool_], labels: NDArray[np.integer], groups: int) -> list[Group]:
    entries = np.bincount(labels, minlength=groups)
    hits = np.bincount(labels, weights=inside, minlength=groups)
    table = []
    for label, (count, hit) in enumerate(zip(entries.tolist(), hits.tolist(), strict=True)):
        share = hit / count if count else float("nan")
        error = float(np.sqrt(share * (1 - share) / (count - 1))) if count > 1 else float("nan")
        table.append(Group(label, share, error, count))
    return table


def _inside(
    truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    x = _like(truth, result.lower)
    return covered(x, result.lower, result.upper), _use(result, where) & ~np.isnan(x)


def _entries(
    truth: ArrayLike, result: IntervalsLike, where: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    x = _like(truth, result.lower)
    use = _use(result, where) & ~np.isnan(x)
    return x[use], _plain(result.lower)[use], _plain(result.upper)[use]


def _bounds(
    result: IntervalsLike, where: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    use = _use(result, where)
    return _plain(result.lower)[use], _plain(result.upper)[use]


def _use(result: IntervalsLike, where: ArrayLike | None) -> NDArray[np.bool_]:
    use = np.asarray(result.missing, dtype=bool)
    if where is None:
        return use
    region = np.asarray(_aligned(where, result.lower))
    if region.dtype != bool:
        raise TypeError(f"where has dtype {region.dtype}; give booleans, True at the entries to use")
    return use & region


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if values.size else float("nan")


def _plain(array: Any) -> NDArray[np.float64]:
    if isinstance(array, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(array), np.nan, np.asarray(array.data, dtype=np.float64))
    return np.asarray(array, dtype=np.float64)


def _aligned(array: Any, like: Any) -> Any:
    """The array with its named axes in the order of `like`, where both have names."""
    names, wanted = getattr(array, "dims", None), getattr(like, "dims", None)
    if names is not None and wanted is not None and names != wanted and set(names) == set(wanted):
        return array.transpose(*wanted)
    return array


def _like(array: Any, like: Any) -> NDArray[np.float64]:
    x = _plain(_aligned(array, like))
    if x.shape != np.shape(like):
        raise ValueError(f"shapes differ: the result has {np.shape(like)}, the given array {x.shape}")
    return x


def _axis_number(result: IntervalsLike, axis: int | str) -> int:
    if isinstance(axis, str):
        names = tuple(getattr(result.lower, "dims", ()))
        if axis not in names:
            raise ValueError(
                f"axis is {axis!r}; the result has {names}: give a name or a number"
            )
        return names.index(axis)
    return range(np.ndim(result.lower))[axis]
