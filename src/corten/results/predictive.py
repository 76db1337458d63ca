"""Grouped, joint and robust intervals, exceedances, and the predictive distribution of every missing entry.

With merged splits each split has its own list of scores; p-values, evidence or distributions are averaged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.scores import Signed
from corten.conformal.selection import claimed, evidence
from corten.conformal.shaped import Grouped, Joint, Robust, check_odds_error, robust_level
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.data.observed import LikeInput
from corten.results.groups import Groups, group_numbers, joint_budget, lists_of, splits_of

if TYPE_CHECKING:
    from corten.results.fitted import Fitted
    from corten.results.intervals import Intervals

MIN_COVERAGE = 1e-12  # stands for 0: the median is both bounds of an interval of coverage 0


def reshaped(
    fitted: Fitted, odds_error: float = 1.0, groups: Groups | None = None, joint: Groups | None = None
) -> Fitted:
    """The same fit with grouped, joint or robust intervals; the options are those of `Fitted.intervals`."""
    if fitted.calibrated is None:
        return fitted
    factor = check_odds_error(odds_error)
    calibrated = fitted.calibrated
    choices: list[Choice] = []
    if groups is not None:
        numbers, names = group_numbers(fitted.observed, groups)
        calibrated = Grouped(calibrated if isinstance(calibrated, Grouped) else splits_of(fitted), numbers)
        what = groups if isinstance(groups, str) else f"{len(names)} groups"
        because = "requested; small groups also use entries of other groups"
        choices.append(Choice("intervals", f"per {what}", because, code="groups", values=_named("groups", groups)))
    if joint is not None:
        slices, _ = group_numbers(fitted.observed, joint)
        inner = calibrated if isinstance(calibrated, Grouped) else splits_of(fitted)
        calibrated = Joint(inner, slices, fitted.missing_entries, joint_budget(fitted, slices))
        counts = np.bincount(np.ravel(slices)[fitted.missing_entries])
        beyond = calibrated.entries_beyond(0.9, int(np.median(counts[counts > 0])))
        because = f"requested; at 90 % about {beyond:.1g} calibration entries lie outside those of a typical slice"
        if beyond < 1.0:
            because += ", so its width is extrapolated; score='adaptive' makes this more reliable where noise varies"
        what = joint if isinstance(joint, str) else "the given groups"
        values = {**_named("joint", joint), "beyond": beyond}
        choices.append(Choice("intervals", f"jointly over each slice of {what}", because, code="joint", values=values))
    if factor > 1.0:
        calibrated = Robust(calibrated, factor)
        because = f"odds may be wrong by a factor of {factor:g}: 90 % needs the level {robust_level(0.9, factor):.4f}"
        values = {"odds_error": factor}
        choices.append(Choice("odds error", f"{factor:g}", because, code="odds_error", values=values))
    return replace(fitted, calibrated=calibrated, choices=(*fitted.choices, *choices)) if choices else fitted


def _named(option: str, groups: Groups) -> dict[str, object]:
    """The option and its value if it names axes; {} for labels, which are as many as entries."""
    names = (groups,) if isinstance(groups, str | int) else groups
    by_axis = isinstance(names, tuple | list) and all(isinstance(one, str | int) for one in names)
    return {option: groups} if by_axis else {}


def signed_scores(fitted: Fitted) -> NDArray[np.float64]:
    """(truth - estimate) / scale of the calibration entries, whatever score the fit uses."""
    assert fitted.calibrated is not None
    if isinstance(fitted.calibrated.score, Signed):
        return np.asarray(fitted.scores, np.float64)
    if fitted.residuals.size != fitted.scores.size:
        raise ValueError("this fit has no residuals (it was saved by an older corten): fit again")
    return np.copysign(np.abs(fitted.scores), fitted.residuals)


def signed_lists(fitted: Fitted) -> list[tuple[CalibratedSplit, NDArray[np.float64]]]:
    """Every list of scores of a fit with its signed scores."""
    lists = lists_of(fitted)
    return list(zip(lists, np.split(signed_scores(fitted), np.cumsum([one.scores.size for one in lists])[:-1])))


def quantile(result: Intervals, level: float) -> LikeInput:
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
    if isinstance(level, bool) or not 0.0 < float(level) < 1.0:
        raise ValueError(f"level is {level!r}: give a number strictly between 0 and 1, such as 0.3")
    fitted = result.source
    found = np.array(fitted.estimate, np.float64)
    if fitted.calibrated is not None:
        signed = splits_of(fitted).with_scores(Signed(), signed_scores(fitted))
        lower, upper = replace(fitted, calibrated=signed).bounds(max(abs(2.0 * level - 1.0), MIN_COVERAGE))
        found = lower if level < 0.5 else upper
    settled = result._settled(found.astype(result.observed.values.dtype))
    return result.observed.wrap(settled, name=f"quantile_{level:g}")


def exceedance(result: Intervals, threshold: ArrayLike, fdr: float = 0.1, *, above: bool = True) -> LikeInput:
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
    fitted = result.source
    claims = np.zeros(fitted.observed.shape, bool)
    if fitted.calibrated is None:
        return result._plain(claims, "exceedance", {"fdr": fdr})
    where, sign = fitted.missing_entries, 1.0 if above else -1.0
    limit = np.broadcast_to(np.asarray(threshold, np.float64), fitted.observed.shape).reshape(-1)[where]
    where, limit = where[~np.isnan(limit)], limit[~np.isnan(limit)]
    lists = signed_lists(fitted)
    # At the whole rate, one of merged splits that does not select an entry could undo all others.
    rate = fdr if len(lists) == 1 else fdr / 2
    found = np.zeros(where.size)
    for one, scores in lists:
        middle = one.estimate.reshape(-1)[where].astype(np.float64)
        at_limit = sign * (one.to_model(where, limit) - middle) / one.scale.at(where)
        logs, tests = one.log_weights, one.weights.log_weight(where)
        found += evidence(sign * scores, logs, thresholds=at_limit, log_test_weights=tests, fdr=rate) / len(lists)
    claims.reshape(-1)[where] = claimed(found, fdr)
    return result._plain(claims, "exceedance", {"fdr": fdr})
