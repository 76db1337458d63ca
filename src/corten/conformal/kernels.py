"""Compiled loops of `quantile.py` and `sketch.py`: running sums, and searches in them.

All are serial and release the GIL; the caller gives chunks of test entries to a thread pool. Every result is the first
position whose running sum reaches a target, which is unique: it does not depend on chunks, threads or first guesses.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

MIN_REMAINING_SHARE = 1e-3  # of the total weight: below it a difference of sums has lost too many digits
GUIDES_PER_SCORE = 4  # equal steps of weight with known positions, for each position


@njit(nogil=True, cache=True, error_model="numpy")
def running_sum(weights):
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
def search_ascending(sums, values, targets):
    """The values at the first positions whose sum reaches each of ascending targets, the last value where none does."""
    out = np.empty(targets.size)
    position = 0
    for i in range(targets.size):
        while position < sums.size and sums[position] < targets[i]:
            position += 1
        out[i] = values[position]
    return out


@njit(nogil=True, cache=True, error_model="numpy")
def guide_table(sums):
    """For equal steps of weight, the position that reaches each: first guesses for searches."""
    buckets = GUIDES_PER_SCORE * sums.size
    table = np.empty(buckets + 1, np.int32)
    step = sums[-1] / buckets
    position = 0
    for b in range(buckets + 1):
        while position < sums.size - 1 and sums[position] < b * step:
            position += 1
        table[b] = position
    return table


@njit(nogil=True, cache=True, error_model="numpy")
def search_changed(sums, values, guide, tests, ranks, changes, levels):
    """Cutoffs (levels, tests) of test entries that each change a few weights, NaN where too few digits are left.

    tests: weights of the test entries; ranks, changes: positions of changed weights, -1 for none, and what is added to
    each; levels: with the tie guard. `values` has the sorted scores and, at the end, the cutoff for a target that is
    not reached. Between two changed positions the running sum is the common one plus a constant, so a level costs at
    most N comparisons and one search.
    """
    out = np.full((levels.size, tests.size), np.nan)
    n = sums.size
    total = sums[n - 1]
    per_weight = (guide.size - 1) / total
    width = ranks.shape[1]
    at = np.empty(width + 1, np.int64)
    offset = np.empty(width + 1)
    for i in range(tests.size):
        count = 0
        for m in range(width):
            rank = np.int64(ranks[i, m])
            if rank < 0:
                continue
            place = count
            while place > 0 and at[place - 1] > rank:
                place -= 1
            if place > 0 and at[place - 1] == rank:
                offset[place - 1] += changes[i, m]
                continue
            for later in range(count, place, -1):
                at[later], offset[later] = at[later - 1], offset[later - 1]
            at[place], offset[place] = rank, changes[i, m]
            count += 1
        for m in range(1, count):
            offset[m] += offset[m - 1]
        whole = total + (offset[count - 1] if count else 0.0) + tests[i]
        if not MIN_REMAINING_SHARE * total <= whole < np.inf:
            continue
        for j in range(levels.size):
            target = levels[j] * whole
            m = 0
            while m < count and sums[at[m]] + offset[m] < target:
                m += 1
            need = target - offset[m - 1] if m > 0 else target
            position = n
            if need <= total:
                # Two steps without a branch find most positions; the search finds the others.
                position = int(guide[int(max(need, 0.0) * per_weight)])
                position += int(sums[position] < need)
                position += int(sums[position] < need)
                if sums[position] < need or (position > 0 and sums[position - 1] >= need):
                    position = int(np.searchsorted(sums, need))
            if m > 0:
                position = max(position, at[m - 1] + 1)
            if m < count:
                position = min(position, at[m])
            out[j, i] = values[position]
    return out
