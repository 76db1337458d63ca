"""Weighted conformalized selection: which missing entries exceed a threshold, with a controlled false discovery rate.

The procedure of Benjamini and Hochberg on weighted conformal p-values does not control the rate in general, as the
p-values depend on each other through the weights. Weighted conformalized selection (Jin and Candes 2023) does, for
independent entries with true odds: for each candidate j it applies the procedure to p-values that do not depend on j,
and prunes the result. With e-values, as here, several splits are merged by the mean of their e-values.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from corten.data.arrays import Flags, Floats


def evidence(
    scores: ArrayLike, log_weights: ArrayLike, *, thresholds: ArrayLike, log_test_weights: ArrayLike, fdr: float
) -> Floats:
    """The e-value of each test entry for exceeding its threshold; `claimed` selects entries from e-values.

    `scores` and `log_weights` belong to the calibration entries; `thresholds` are the scores that the test entries
    would have at the limit, and `log_test_weights` their log-weights.

    With p_j the weighted share of scores below threshold j and R_j the size of the Benjamini-Hochberg selection with
    the p-value of j set to 0 and j as the test entry in all others, e_j = m / (fdr R_j) if p_j <= fdr R_j / m and 0
    otherwise. The sum of e_j over the entries that do not exceed their threshold has a mean of at most m; so has its
    mean over several splits, whatever their dependence.
    """
    values = np.asarray(scores, np.float64).ravel()
    limits, logs = np.asarray(thresholds, np.float64).ravel(), np.asarray(log_weights, np.float64).ravel()
    tests = np.asarray(log_test_weights, np.float64).ravel()
    if not 0 < fdr < 1:
        raise ValueError(f"fdr is {fdr!r}: give a share strictly between 0 and 1, such as 0.1")
    found = np.zeros(limits.size)
    if not values.size or not limits.size:
        return found
    top = max(float(logs.max()), float(tests.max()))
    order = np.argsort(values, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(np.exp(logs[order] - top))])
    rank = np.argsort(limits, kind="stable")
    below = sums[np.searchsorted(values[order], limits[rank], side="left")]
    weight = np.exp(tests[rank] - top)
    sizes, p = _sizes(below, limits[rank], weight, float(sums[-1]), float(fdr))
    found[rank] = np.where(p <= fdr * sizes / limits.size, limits.size / (fdr * sizes), 0.0)
    return found


def claimed(evidence: Floats, fdr: float) -> Flags:
    """The largest set in which every e-value is at least m / (fdr times its size) (Wang and Ramdas 2022)."""
    largest = np.sort(evidence)[::-1]
    sufficient = largest * fdr * np.arange(1, largest.size + 1) >= largest.size * (1.0 - 1e-12)
    able = np.flatnonzero(sufficient)
    return evidence >= largest[able[-1]] if able.size else np.zeros(evidence.size, bool)


@njit(nogil=True, cache=True, error_model="numpy")
def _sizes(below: Floats, limits: Floats, weight: Floats, total: float, fdr: float) -> tuple[NDArray[np.int64], Floats]:
    """For each test entry, sorted by threshold, the size of the selection that does not depend on it, and its p-value.

    For candidate j the others have p_l = (below_l + w_j [limit_j < limit_l]) / (total + w_j), which rises with l; the
    procedure keeps the largest r with p of the r-th smallest at most fdr r / m, where j itself is first with p = 0. The
    search starts at an upper bound for all candidates, so it is short if no single weight is large.
    """
    m = below.size
    heaviest = weight.max()
    highest = 1
    for r in range(m, 1, -1):
        if below[r - 2] / (total + heaviest) <= fdr * r / m:
            highest = r
            break
    sizes = np.ones(m, np.int64)
    p = np.empty(m)
    for j in range(m):
        p[j] = (below[j] + weight[j]) / (total + weight[j])
        if p[j] > fdr:
            continue
        for r in range(highest, 1, -1):
            # the (r-1)-th smallest among the others
            other = r - 2 if r - 2 < j else r - 1
            mass = below[other] + (weight[j] if limits[j] < limits[other] else 0.0)
            if mass / (total + weight[j]) <= fdr * r / m:
                sizes[j] = r
                break
    return sizes, p
