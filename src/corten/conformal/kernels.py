"""The compiled loops under `quantile.py`: running sums, and searches in them.

All are serial and release the GIL; the caller hands chunks of test entries to a thread pool. Every answer
is "the first position whose running weight reaches a target", which is unique, so neither the chunks, nor
the threads, nor the starting guesses can change a result.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["running_sum", "search_adjusted", "search_merged"]

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Answers = NDArray[np.floating]

# Below this share of the unadjusted total, subtracting from the running sum would cancel more than three of
# its sixteen digits, and the tie guard of 1e-12 would no longer stand above the rounding: sum the weights
# anew instead.
_DOMINATED = 1e-3


@njit(nogil=True, cache=True, error_model="numpy")
def running_sum(weights: Floats) -> Floats:
    """Running sums of non-negative weights, each within a few units in the last place (Neumaier)."""
    sums = np.empty(weights.size)
    high = 0.0
    low = 0.0
    last = 0.0
    for i in range(weights.size):
        w = weights[i]
        t = high + w
        if high >= w:
            low += (high - t) + w
        else:
            low += (w - t) + high
        high = t
        last = max(last, high + low)
        sums[i] = last
    return sums


@njit(nogil=True, cache=True, error_model="numpy")
def _first_reaching(sums: Floats, target: float, low: int, high: int, guess: int) -> int:
    """First position in [low, high) whose sum reaches the target, or `high`; quick when `guess` is near."""
    if low >= high:
        return high
    a = low
    b = high
    g = min(max(guess, low), high - 1)
    step = 1
    if sums[g] < target:
        a = g + 1
        while a < high:
            probe = min(g + step, high - 1)
            if sums[probe] >= target:
                b = probe
                break
            a = probe + 1
            step *= 2
    else:
        b = g
        while b > low:
            probe = max(g - step, low)
            if sums[probe] < target:
                a = probe + 1
                break
            b = probe
            step *= 2
    while a < b:
        middle = (a + b) >> 1
        if sums[middle] >= target:
            b = middle
        else:
            a = middle + 1
    return b


@njit(nogil=True, cache=True, error_model="numpy")
def search_merged(
    sums: Floats,
    values: Answers,
    test_weights: Floats,
    order: Whole,
    levels: Floats,
    rows: Whole,
    out: Answers,
    start: int,
) -> None:
    """Cutoffs for test entries sorted by weight: one walk along the running sums per level.

    `test_weights` ascend and belong to test entries `start + order`; `levels` carry the tie guard already;
    `values` holds the sorted scores and, at the end, what to answer when the target is not reached.
    """
    n = sums.size
    total = sums[n - 1]
    for j in range(levels.size):
        level = levels[j]
        row = rows[j]
        position = 0
        for i in range(order.size):
            target = level * (total + test_weights[i])
            if position < n and sums[position] < target:
                position = _first_reaching(sums, target, position, n, position)
            out[row, start + order[i]] = values[position]


@njit(nogil=True, cache=True, error_model="numpy")
def _search_anew(
    log_weights: Floats,
    count: int,
    ranks: Whole,
    factors: Floats,
    log_test: float,
    levels: Floats,
    rows: Whole,
    values: Answers,
    out: Answers,
    column: int,
) -> None:
    """Cutoffs of one test entry from a fresh sum of the adjusted weights, shifted by their maximum: O(n)."""
    n = log_weights.size
    top = log_test
    next_ = 0
    for i in range(n):
        a = log_weights[i]
        if next_ < count and ranks[next_] == i:
            a += factors[next_]
            next_ += 1
        top = max(top, a)
    for j in range(levels.size):
        out[rows[j], column] = values[n]
    if top == -np.inf:
        return
    whole = 0.0
    for sweep in range(2):
        high = 0.0
        low = 0.0
        next_ = 0
        j = 0
        for i in range(n):
            a = log_weights[i]
            if next_ < count and ranks[next_] == i:
                a += factors[next_]
                next_ += 1
            w = np.exp(a - top)
            t = high + w
            if high >= w:
                low += (high - t) + w
            else:
                low += (w - t) + high
            high = t
            if sweep == 1:
                while j < levels.size and high + low >= levels[j] * whole:
                    out[rows[j], column] = values[i]
                    j += 1
                if j == levels.size:
                    return
        whole = high + low + np.exp(log_test - top)


@njit(nogil=True, cache=True, error_model="numpy")
def search_adjusted(
    sums: Floats,
    weights: Floats,
    log_weights: Floats,
    values: Answers,
    rank_of: Whole,
    log_test: Floats,
    order: Whole,
    neighbours: Whole,
    log_factor: Floats,
    levels: Floats,
    rows: Whole,
    out: Answers,
    start: int,
) -> None:
    """Cutoffs for test entries that each change a few calibration weights: O(N log n) per entry.

    Between two changed positions the adjusted running sum is the common one plus a constant, so a level
    costs N comparisons and one search. `order` only makes the guesses good; `levels` ascend.
    """
    n = sums.size
    total = sums[n - 1]
    width = neighbours.shape[1]
    ranks = np.empty(width, np.int64)
    factors = np.empty(width)
    offset = np.empty(width + 1)
    reached = np.empty(width)
    guess = np.zeros(levels.size, np.int64)
    for i in order:
        count = 0
        for m in range(width):
            k = neighbours[i, m]
            if k < 0 or log_factor[i, m] == 0.0:
                continue
            rank = rank_of[k]
            at = count
            while at > 0 and ranks[at - 1] > rank:
                at -= 1
            if at > 0 and ranks[at - 1] == rank:
                factors[at - 1] += log_factor[i, m]
                continue
            for later in range(count, at, -1):
                ranks[later] = ranks[later - 1]
                factors[later] = factors[later - 1]
            ranks[at] = rank
            factors[at] = log_factor[i, m]
            count += 1
        top = 0.0
        for m in range(count):
            top = max(top, log_weights[ranks[m]] + factors[m])
        scale = np.exp(-top) if top > 0.0 else 1.0
        offset[0] = 0.0
        for m in range(count):
            rank = ranks[m]
            raised = np.exp(log_weights[rank] + factors[m] - top)
            offset[m + 1] = offset[m] + (raised - weights[rank] * scale)
            reached[m] = sums[rank] * scale + offset[m + 1]
        whole = total * scale + offset[count] + np.exp(log_test[i] - top)
        if whole < _DOMINATED * total * scale:
            _search_anew(
                log_weights, count, ranks, factors, log_test[i], levels, rows, values, out, start + i
            )
            continue
        for j in range(levels.size):
            target = levels[j] * whole
            m = 0
            while m < count and reached[m] < target:
                m += 1
            low = ranks[m - 1] + 1 if m > 0 else 0
            high = ranks[m] if m < count else n
            position = _first_reaching(sums, (target - offset[m]) / scale, low, high, guess[j])
            guess[j] = position
            out[rows[j], start + i] = values[position]
