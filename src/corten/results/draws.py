"""Random filled tensors with calibrated errors that are dependent like the errors of hidden entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from corten.conformal.split import CalibratedSplit
from corten.data.arrays import Entries, Floats
from corten.results.dependence import Dependence, learn_dependence
from corten.results.groups import splits_of
from corten.results.predictive import signed_lists, signed_scores

if TYPE_CHECKING:
    from corten.results.fitted import Fitted
    from corten.results.intervals import Intervals


def draws(
    result: Intervals, count: int, seed: int = 0, *, statistic: Callable[[Floats], ArrayLike] | None = None
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
        Of shape ``(count, *shape)``, or one answer of `statistic` for each draw.

    Notes
    -----
    A field of correlated standard normal numbers is mapped, entry by entry, to the distribution of `quantile` (a
    Gaussian copula). Its correlation is that of the errors of hidden entries, see `corten.results.dependence`, and the
    same in all gaps. With merged splits each draw is from one of the splits, taken at random.

    Examples
    --------
    >>> area = result.draws(200, statistic=lambda x: np.mean(x > 30.0))  # doctest: +SKIP
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count is {count!r}: give a whole number of at least 1")
    each = _each(result.source, count, seed)
    if statistic is not None:
        return np.stack([np.asarray(statistic(one)) for one in each])
    filled = np.empty((count, *result.observed.shape))
    for place, one in zip(filled, each):
        place[...] = one
    return filled


def _each(fitted: Fitted, count: int, seed: int) -> Iterator[Floats]:
    """The draws, one after the other, each in an array of its own."""
    observed, where = fitted.observed, fitted.missing_entries
    known = np.array(fitted.estimate, np.float64)
    known[observed.mask] = observed.values[observed.mask]
    if observed.domain is not None:
        known[~observed.domain] = np.nan
    if fitted.calibrated is None:
        for _ in range(count):
            yield known.copy()
        return
    tables = [_Quantiles(one, scores) for one, scores in signed_lists(fitted)]
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        one = int(rng.integers(len(tables)))
        level = ndtr(fitted.dependence.draw(observed.axes, rng).reshape(-1)[where])
        values = tables[one].at(where, level)
        filled = known.copy()
        filled.reshape(-1)[where] = values if fitted.limits is None else np.clip(values, *fitted.limits)
        yield filled


class _Quantiles:
    """The distribution of every missing entry under one list of scores, by its quantiles."""

    def __init__(self, source: CalibratedSplit, scores: Floats) -> None:
        order = np.argsort(scores, kind="stable")
        logs = np.asarray(source.log_weights, np.float64)[order]
        self.source, self.scores = source, scores[order]
        self.sums = np.cumsum(np.exp(logs - logs.max()))

    def at(self, entries: Entries, level: Floats) -> Floats:
        """The quantile of each entry at a level of its own, in the unit of the data."""
        taken = np.searchsorted(self.sums, level * self.sums[-1], side="right")
        middle = self.source.estimate.reshape(-1)[entries].astype(np.float64)
        error = self.source.scale.at(entries) * self.scores[np.minimum(taken, self.scores.size - 1)]
        return self.source.to_data(entries, middle + error)


def dependence_of(fitted: Fitted) -> Dependence:
    """The dependence of the errors of a fit, learned from its calibration entries."""
    calibrated, axes = splits_of(fitted), fitted.observed.axes
    local = calibrated.local if isinstance(calibrated, CalibratedSplit) else None
    if local is not None:
        axes = tuple(local.describe.axes)  # of the data that were calibrated, after `Fitted.fill` those of the fit
    elif fitted.carried:
        return Dependence.none(len(axes))
    signed, errors = signed_scores(fitted), np.asarray(fitted.residuals, np.float64)
    return learn_dependence(
        np.asarray(fitted.entries), signed, log_weights=np.asarray(fitted.log_weights, np.float64),
        scale=np.divide(errors, signed, out=np.zeros(len(errors)), where=signed != 0),
        rounds=np.asarray(calibrated.round_numbers), axes=axes,
    )  # fmt: skip
