"""What a fit found on the entries that its calibration hid: the error beside a plain method, and the coverage.

Nothing is fitted again. The error is that of the calibration entries. The coverage is out of sample: the cutoff for the
entries of a round comes from the scores of the other rounds (for one random split: of the other folds of its
calibration entries). A cutoff from all scores covers these same scores by construction, and would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from corten.conformal.quantile import Tail, WeightedScores
from corten.conformal.split import CalibratedSplit
from corten.data.axes import Axis

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

MAX_COMPARED_ENTRIES = 20_000  # hidden entries on which a plain method is tried
MIN_SCORES = 20  # calibration entries below which nothing is said
SCORE_FOLDS = 5  # of the calibration entries of one random split
MOST_ROUNDS = (0.1, 0.9)  # quantiles between which most rounds lie


@dataclass(frozen=True)
class HiddenError:
    """Mean absolute errors on hidden entries, in the unit of the data, weighted like the missing entries."""

    error: float  # of the fit
    baseline: str  # name of the best plain method
    baseline_error: float  # of that method on the same entries
    entries: int


@dataclass(frozen=True)
class HiddenCoverage:
    """Coverage of hidden entries by cutoffs from other rounds, splits or folds, weighted like the missing entries."""

    found: float
    low: float  # most parts have a coverage between low and high
    high: float
    parts: int  # number of rounds or folds
    kind: str  # "rounds" or "folds"


def hidden_error(fitted: Fitted) -> HiddenError | None:
    """The error of a fit on hidden entries and that of the best plain method, or None if there are too few entries.

    Plain methods are linear interpolation along one ordered axis, and the mean of the slice at one position of an axis.
    The best of them on these entries is compared, which favours the plain method.
    """
    calibrated = fitted.calibrated
    if fitted.carried:  # the hidden entries lie in other data
        return None
    if calibrated is None or len(fitted.entries) < MIN_SCORES or len(fitted.residuals) != len(fitted.entries):
        return None
    entries, number = np.asarray(fitted.entries), np.asarray(calibrated.round_numbers)
    if int(number.max()) + 1 != len(fitted.rounds):  # scores of an earlier fit, or rounds that cannot be told apart
        return None
    places = np.arange(0, len(entries), -(-len(entries) // MAX_COMPARED_ENTRIES))
    weight = _weights(np.asarray(calibrated.log_weights)[places])
    axes = fitted.observed.axes
    ordered = [k for k, axis in enumerate(axes) if axis.kind != "unordered" and axis.length > 1]
    methods: list[tuple[str, Method]]
    methods = [(f"interpolation along {axes[k].name}", partial(linear_along, k=k, axis=axes[k])) for k in ordered]
    longer = [k for k, axis in enumerate(axes) if axis.length > 1] or [0]
    methods += [(f"means of {axes[k].name}", partial(mean_of_slice, k=k)) for k in longer]
    error, plain = np.empty(places.size), np.empty((len(methods), places.size))
    values = fitted.observed.values
    for k in np.unique(number[places]):
        own = number[places] == k
        at = entries[places[own]]
        error[own] = np.abs(_data_residuals(fitted, at, fitted.residuals[places[own]]))
        train = fitted.rounds[k].train
        if train.shape != values.shape or train.reshape(-1)[at].any():
            return None
        for row, (_, method) in zip(plain, methods):
            row[own] = np.abs(values.reshape(-1)[at] - method(values, train, at))
    if not np.isfinite(error).all():
        return None
    by_method = plain @ weight
    best = int(np.argmin(by_method))
    return HiddenError(float(error @ weight), methods[best][0], float(by_method[best]), len(entries))


def hidden_coverage(fitted: Fitted, coverage: float) -> HiddenCoverage | None:
    """The coverage of hidden entries whose cutoff comes from other hidden entries.

    None for grouped, joint and robust intervals, which have no list of scores of their own, and for few entries.
    """
    lists = () if fitted.calibrated is None else fitted.calibrated.lists
    if not lists or len(fitted.entries) < MIN_SCORES:
        return None
    of_lists, by_part = [], np.empty(0)
    rounds = len(lists) > 1 or int(lists[0].round_numbers.max()) > 0
    for one in lists:
        part = one.round_numbers
        if not part.any():
            part = np.random.default_rng(0).permutation(len(one.scores)) % SCORE_FOLDS
        weight = _weights(one.log_weights)
        covered = _covered_by_others(one, part, coverage)
        of_lists.append(float(weight @ covered))
        within, whole = np.bincount(part, weight * covered), np.bincount(part, weight)
        by_part = within[whole > 0] / whole[whole > 0]
    by_part = np.array(of_lists) if len(lists) > 1 else by_part
    low, high = np.quantile(by_part, MOST_ROUNDS)
    found = sum(of_lists) / len(lists)
    return HiddenCoverage(found, float(low), float(high), by_part.size, "rounds" if rounds else "folds")


def _covered_by_others(one: CalibratedSplit, part: np.ndarray, coverage: float) -> np.ndarray:
    """Whether each score lies within the cutoffs computed from the scores of the other parts."""
    scores, logs = np.asarray(one.scores, np.float64), np.asarray(one.log_weights, np.float64)
    tails = one.score.tails(coverage)
    levels: list[tuple[Tail, float | None, np.ufunc]] = [
        ("lower", tails.lower, np.greater_equal), ("upper", tails.upper, np.less_equal)
    ]  # fmt: skip
    covered = np.ones(scores.size, bool)
    for number in np.unique(part):
        own = part == number
        for tail, level, within in levels:
            if level is not None:
                cutoff = WeightedScores(scores[~own], logs[~own], tail).cutoffs(logs[own], level)[0]
                covered[own] &= within(scores[own], cutoff)
    return covered


def _weights(log_weights: np.ndarray) -> np.ndarray:
    """Weights with sum one."""
    weight = np.exp(np.asarray(log_weights, np.float64) - np.max(log_weights))
    return np.asarray(weight / weight.sum())


def _data_residuals(fitted: Fitted, entries: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Residuals in the unit of the data, of entries of one round."""
    base: object = fitted.calibrated
    while hasattr(base, "inner"):
        base = base.inner
    if not isinstance(base, CalibratedSplit):  # merged splits have residuals in the unit of the data
        return residuals
    truth = fitted.observed.values.reshape(-1)[entries].astype(np.float64)
    return np.asarray(truth - base.to_data(entries, base.to_model(entries, truth) - residuals))


Method = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def linear_along(values: np.ndarray, train: np.ndarray, entries: np.ndarray, *, k: int, axis: Axis) -> np.ndarray:
    """Linear interpolation along axis k between training entries, the nearest one at an end.

    Entries whose line has no training entry get the mean of all training entries.
    """
    index = np.array(np.unravel_index(entries, values.shape))
    place, other = index[k], np.delete(index, k, axis=0)
    length, lines = axis.length, [int(n) for n in np.delete(values.shape, k)]
    rows, row = np.unique(np.ravel_multi_index(tuple(other), tuple(lines)), return_inverse=True)
    picked = np.unravel_index(rows, tuple(lines))
    data, known = (np.moveaxis(one, k, -1)[picked] for one in (values, train))
    at = _coordinates(axis)
    if axis.periodic:
        turn = (at[-1] - at[0]) * length / max(length - 1, 1)
        data, known = (np.concatenate([one] * 3, axis=1) for one in (data, known))
        at, place = np.concatenate([at - turn, at, at + turn]), place + length
    position = np.arange(at.size)
    before = np.maximum.accumulate(np.where(known, position, -1), axis=1)[row, place]
    after = np.minimum.accumulate(np.where(known, position, at.size)[:, ::-1], axis=1)[:, ::-1][row, place]
    left, right = before >= 0, after < at.size
    low, high = np.where(left, before, after), np.where(right, after, before)
    low, high = np.where(left | right, low, 0), np.where(left | right, high, 0)
    span = at[high] - at[low]
    share = np.divide(at[place] - at[low], span, out=np.zeros(place.size), where=span != 0)
    found = data[row, low] + share * (data[row, high].astype(np.float64) - data[row, low])
    return np.where(left | right, found, values[train].mean(dtype=np.float64))


def mean_of_slice(values: np.ndarray, train: np.ndarray, entries: np.ndarray, k: int) -> np.ndarray:
    """The mean of the training entries at the same position of axis k, or of all if there is none.

    >>> x = np.array([[1.0, 3.0, 9.0], [5.0, 9.0, 9.0]])
    >>> mean_of_slice(x, x < 9, np.array([2, 4]), 0)
    array([2., 5.])
    """
    others = tuple(j for j in range(values.ndim) if j != k)
    count = train.sum(axis=others)
    total = np.sum(values, axis=others, where=train, dtype=np.float64)
    mean = np.where(count > 0, total / np.maximum(count, 1), values[train].mean(dtype=np.float64))
    return np.asarray(mean[np.unravel_index(entries, values.shape)[k]])


def _coordinates(axis: Axis) -> np.ndarray:
    """Positions of an ordered axis as numbers."""
    given = axis.coordinates
    if given is None or given.dtype.kind not in "iufM":
        return np.arange(axis.length, dtype=np.float64)
    return np.asarray((given - given[0]).astype(np.float64))
