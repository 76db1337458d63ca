"""Can these weights bear the coverage asked for? Numbers that say so before anybody believes an interval.

Weighted conformal intervals stay valid when a few entries carry all the weight, but they become infinite or
useless.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.quantile import TIE_GUARD, NeighbourFactor, WeightedScores

__all__ = [
    "effective_sample_size",
    "highest_finite_coverage",
    "infinite_share",
    "largest_share",
    "weight_gap",
]


def effective_sample_size(log_weights: ArrayLike) -> float:
    """How many equally weighted entries the weights are worth: (sum w)^2 / sum w^2; 0 without any weight.

    Examples
    --------
    >>> effective_sample_size(np.zeros(50)), effective_sample_size(np.log([1e9, 1.0, 1.0])) < 1.001
    (50.0, True)
    """
    w = _shifted(log_weights)
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0


def largest_share(log_weights: ArrayLike) -> float:
    """The share of the total weight held by its heaviest entry; NaN without any weight.

    Examples
    --------
    >>> largest_share(np.log([1.0, 1.0, 2.0]))
    0.5
    """
    w = _shifted(log_weights)
    return float(w.max() / w.sum()) if w.any() else float("nan")


def highest_finite_coverage(
    scores: WeightedScores,
    log_test_weights: ArrayLike,
    neighbour_factor: NeighbourFactor | None = None,
) -> NDArray[np.float64]:
    """The highest coverage at which a test entry's cutoff is still finite: the calibration weights' share.

    Assumes finite scores. A two-sided score needs (1 + c)/2 to stay under it.

    Examples
    --------
    >>> highest_finite_coverage(WeightedScores(np.arange(9.0), np.zeros(9)), np.zeros(1))
    array([0.9])
    """
    tests = np.asarray(log_test_weights, dtype=np.float64).ravel()
    if neighbour_factor is None:
        log_total = np.full(tests.shape, scores.log_total)
    else:
        log_total = _adjusted_log_total(scores, neighbour_factor)
    with np.errstate(over="ignore", invalid="ignore"):
        share = 1.0 / (1.0 + np.exp(tests - log_total))
    return np.asarray(np.where(log_total == -np.inf, 0.0, share))


def infinite_share(
    scores: WeightedScores,
    log_test_weights: ArrayLike,
    coverage: float,
    neighbour_factor: NeighbourFactor | None = None,
) -> float:
    """The share of test entries whose cutoff at this level is infinite; NaN for no test entries.

    Examples
    --------
    >>> infinite_share(WeightedScores([1.0, 2.0], np.zeros(2)), np.log([0.1, 5.0]), coverage=0.8)
    0.5
    """
    highest = highest_finite_coverage(scores, log_test_weights, neighbour_factor)
    return float(np.mean(coverage * (1.0 - TIE_GUARD) > highest)) if highest.size else float("nan")


def weight_gap(
    scores: WeightedScores, log_test_weights: ArrayLike, neighbour_factor: NeighbourFactor
) -> NDArray[np.float64]:
    """How far approximate weights can move the score distribution of each test entry: a bound on |F* - F|.

    With a the approximate and a~ the exact unnormalised weights and A, A~ their sums with the test entry's,
    the bound is sum over its calibration neighbours of |a~ - a| / max(A, A~). It takes the place of the
    bound printed in Proposition approx-weight-error, which fails unless gamma there is read as the maximum
    of g.

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
    return cast(NDArray[np.float64], np.divide(gap, largest, out=np.zeros_like(gap), where=largest > 0))


def _neighbour_logs(
    scores: WeightedScores, factor: NeighbourFactor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-weight and log-factor of each neighbour, -inf and 0 where there is none."""
    there = factor.neighbours >= 0
    logs = np.where(there, np.append(scores.log_weights(), -np.inf)[factor.neighbours], -np.inf)
    return logs, np.where(there, factor.log_factor, 0.0)


def _adjusted_log_total(scores: WeightedScores, factor: NeighbourFactor) -> NDArray[np.float64]:
    """Log of the calibration weights' sum after each test entry's adjustment."""
    every = scores.log_weights()
    logs, change = _neighbour_logs(scores, factor)
    top = np.maximum(scores.log_total, (logs + change).max(axis=1, initial=-np.inf))
    if scores.log_total == -np.inf:
        return np.asarray(top)
    before, after = np.exp(logs - top[:, None]), np.exp(logs + change - top[:, None])
    rest = np.exp(scores.log_total - top)
    total = rest + (after - before).sum(axis=1)
    nearly_gone = total < 1e-3 * rest
    with np.errstate(divide="ignore", invalid="ignore"):
        log_total = np.asarray(top + np.log(total))
    for t in np.flatnonzero(nearly_gone):
        # The difference has no digits left, so sum anew; in logs, because what is left may be smaller than any number.
        adjusted = every.copy()
        near = factor.neighbours[t] >= 0
        np.add.at(adjusted, factor.neighbours[t][near], factor.log_factor[t][near])
        highest = adjusted.max()
        log_total[t] = highest + np.log(np.exp(adjusted - highest).sum()) if highest > -np.inf else -np.inf
    return log_total


def _shifted(log_weights: ArrayLike) -> NDArray[np.float64]:
    logs = np.asarray(log_weights, dtype=np.float64).ravel()
    top = logs.max(initial=-np.inf)
    return np.exp(logs - top) if top > -np.inf else np.zeros(logs.size)
