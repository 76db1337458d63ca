"""Diagnostics of weights: effective sample size, largest share, effect of approximate weights.

Weighted conformal intervals are valid for any true weights, but if few entries have nearly all the weight the intervals
are infinite or very wide. Weights are given by their logarithms, up to an additive constant; -inf for no weight.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from corten.conformal.quantile import NeighbourFactor, WeightedScores
from corten.data.arrays import Entries, Floats


def effective_sample_size(log_weights: ArrayLike) -> float:
    """Effective sample size, (sum w)^2 / sum w^2: between 1 and the number of weights; 0 if all weights are zero.

    >>> effective_sample_size(np.zeros(50)), effective_sample_size(np.log([1e9, 1.0, 1.0])) < 1.001
    (50.0, True)
    """
    w = _shifted(log_weights)
    return float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0


def pooled_effective_sample_size(log_weights: Floats, entries: Entries) -> float:
    """Effective sample size of entries that may occur several times: the weights of each entry are added first."""
    _, place = np.unique(entries, return_inverse=True)
    with np.errstate(divide="ignore"):
        return effective_sample_size(np.log(np.bincount(place, np.exp(log_weights - log_weights.max()))))


def largest_share(log_weights: ArrayLike) -> float:
    """The largest weight divided by the sum of all weights; NaN if all are zero.

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
    there = neighbour_factor.neighbours >= 0
    logs = np.where(there, np.append(scores.log_weights(), -np.inf)[neighbour_factor.neighbours], -np.inf)
    new_logs = logs + np.where(there, neighbour_factor.log_factor, 0.0)
    top = np.maximum(np.maximum(tests, scores.log_total), new_logs.max(axis=1, initial=-np.inf))
    top = np.where(top == -np.inf, 0.0, top)[:, None]
    change = np.exp(new_logs - top) - np.exp(logs - top)
    whole = np.exp(scores.log_total - top[:, 0]) + np.exp(tests - top[:, 0])
    # A sum that nearly vanishes has lost its digits, but then the other one is the larger.
    largest = np.maximum(whole, whole + change.sum(axis=1))
    gap = np.abs(change).sum(axis=1)
    return cast(Floats, np.divide(gap, largest, out=np.zeros_like(gap), where=largest > 0))


def _shifted(log_weights: ArrayLike) -> Floats:
    """The weights divided by the largest one."""
    logs = np.asarray(log_weights, dtype=np.float64).ravel()
    top = logs.max(initial=-np.inf)
    return np.exp(logs - top) if top > -np.inf else np.zeros(logs.size)
