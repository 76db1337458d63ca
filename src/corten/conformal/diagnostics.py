"""Diagnostics of weights: effective sample size, largest share, effect of approximate weights.

Weighted conformal intervals are valid for any true weights, but if few entries have nearly all the weight the intervals
are infinite or very wide.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from corten.conformal.quantile import NeighbourFactor, WeightedScores
from corten.data.arrays import Floats

__all__ = ["effective_sample_size", "largest_share", "weight_gap"]

MIN_REMAINING_SHARE = 1e-3  # of the total weight: below it a difference of sums has lost too many digits


def effective_sample_size(log_weights: ArrayLike) -> float:
    """Effective sample size, (sum w)^2 / sum w^2.

    Parameters
    ----------
    log_weights : array
        Logarithms of the weights, up to an additive constant; -inf for no weight.

    Returns
    -------
    float
        Between 1 and the number of weights; 0 if all weights are zero.

    Examples
    --------
    >>> effective_sample_size(np.zeros(50)), effective_sample_size(np.log([1e9, 1.0, 1.0])) < 1.001
    (50.0, True)
    """
    w = _shifted(log_weights)
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0


def largest_share(log_weights: ArrayLike) -> float:
    """The largest weight divided by the sum of all weights.

    Parameters
    ----------
    log_weights : array
        Logarithms of the weights, up to an additive constant; -inf for no weight.

    Returns
    -------
    float
        NaN if all weights are zero.

    Examples
    --------
    >>> largest_share(np.log([1.0, 1.0, 2.0]))
    0.5
    """
    w = _shifted(log_weights)
    return float(w.max() / w.sum()) if w.any() else float("nan")


def weight_gap(scores: WeightedScores, log_test_weights: ArrayLike, neighbour_factor: NeighbourFactor) -> Floats:
    """A bound on ``|F* - F|``, the change of each test entry's score distribution by approximate weights.

    Parameters
    ----------
    scores : WeightedScores
        The calibration scores with their weights.
    log_test_weights : array
        Log-weights of the test entries, on the scale of the calibration weights.
    neighbour_factor : NeighbourFactor
        Changes of calibration weights by each test entry.

    Returns
    -------
    array, shape (tests,)

    Notes
    -----
    With a the approximate and a~ the exact unnormalised weights, and A, A~ their sums including the test entry, the
    bound is the sum over the calibration neighbours of ``|a~ - a| / max(A, A~)``. It replaces the bound printed in
    Proposition approx-weight-error (equation CDF-deviation-bound), which holds only if gamma there is the maximum of g.

    Examples
    --------
    >>> factor = NeighbourFactor(np.array([[0]]), np.log(np.array([[3.0]])))
    >>> weight_gap(WeightedScores([1.0, 2.0], np.zeros(2)), np.zeros(1), factor)
    array([0.4])
    """
    tests = np.asarray(log_test_weights, dtype=np.float64).ravel()
    logs, factor = _neighbour_logs(scores, neighbour_factor)
    top = np.maximum(tests, scores.log_total)
    top = np.maximum(top, (logs + factor).max(axis=1, initial=-np.inf))
    top = np.where(top == -np.inf, 0.0, top)[:, None]
    before, after = np.exp(logs - top), np.exp(logs + factor - top)
    test = np.exp(tests - top[:, 0])
    whole = np.exp(scores.log_total - top[:, 0]) + test
    adjusted = np.exp(_adjusted_log_total(scores, neighbour_factor) - top[:, 0]) + test
    largest = np.maximum(whole, adjusted)
    gap = np.abs(after - before).sum(axis=1)
    return cast(Floats, np.divide(gap, largest, out=np.zeros_like(gap), where=largest > 0))


def _neighbour_logs(scores: WeightedScores, factor: NeighbourFactor) -> tuple[Floats, Floats]:
    """Log-weight and log-factor of each neighbour, -inf and 0 where there is none."""
    there = factor.neighbours >= 0
    logs = np.where(there, np.append(scores.log_weights(), -np.inf)[factor.neighbours], -np.inf)
    return logs, np.where(there, factor.log_factor, 0.0)


def _adjusted_log_total(scores: WeightedScores, factor: NeighbourFactor) -> Floats:
    """Logarithm of the sum of the calibration weights, adjusted for each test entry."""
    every = scores.log_weights()
    logs, change = _neighbour_logs(scores, factor)
    top = np.maximum(scores.log_total, (logs + change).max(axis=1, initial=-np.inf))
    if scores.log_total == -np.inf:
        return np.asarray(top)
    before, after = np.exp(logs - top[:, None]), np.exp(logs + change - top[:, None])
    rest = np.exp(scores.log_total - top)
    total = rest + (after - before).sum(axis=1)
    nearly_gone = total < MIN_REMAINING_SHARE * rest
    with np.errstate(divide="ignore", invalid="ignore"):
        log_total = np.asarray(top + np.log(total))
    for t in np.flatnonzero(nearly_gone):
        # The difference has lost its digits; the new sum is in logarithms, as it may underflow.
        adjusted = every.copy()
        near = factor.neighbours[t] >= 0
        np.add.at(adjusted, factor.neighbours[t][near], factor.log_factor[t][near])
        highest = adjusted.max()
        log_total[t] = highest + np.log(np.exp(adjusted - highest).sum()) if highest > -np.inf else -np.inf
    return log_total


def _shifted(log_weights: ArrayLike) -> Floats:
    """The weights divided by the largest one."""
    logs = np.asarray(log_weights, dtype=np.float64).ravel()
    top = logs.max(initial=-np.inf)
    return np.exp(logs - top) if top > -np.inf else np.zeros(logs.size)
