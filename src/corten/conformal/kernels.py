"""Compiled loops of `quantile.py`: running sums, and searches in them.

All are serial and release the GIL; the caller gives chunks of test entries to a thread pool. Every result is the first
position whose running sum reaches a target, which is unique: it does not depend on chunks, threads or first guesses.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

from corten.engine.arithmetic import INNER

# Below this share of the unadjusted total, a subtraction from the running sum would lose more than three of its sixteen
# digits, and rounding could exceed the tie guard of 1e-12. The adjusted weights are then summed again.
MIN_REMAINING_SHARE = 1e-3  # of the total weight: below it a difference of sums has lost too many digits
BLOCK_ENTRIES = 64  # test entries whose neighbours are read together


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


@njit(**INNER)
def _first_reaching(sums, target, low, high, first_guess):
    """First position in [low, high) whose sum reaches the target, or `high`; fast if `first_guess` is near."""
    if low >= high:
        return high
    a = low
    b = high
    g = min(max(first_guess, low), high - 1)
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
def search_merged(sums, values, test_weights, order, levels, rows, out, start):
    """Cutoffs of test entries sorted by weight: one pass along the running sums per level.

    `test_weights` ascend and belong to test entries `start + order`; `levels` include the tie guard; `values` has the
    sorted scores and, at the end, the cutoff for a target that is not reached.
    """
    n = sums.size
    total = sums[n - 1]
    for j in range(levels.size):
        level = levels[j]
        row = rows[j]
        position = np.int64(0)  # a constant would compile the search once more
        for i in range(order.size):
            target = level * (total + test_weights[i])
            if position < n and sums[position] < target:
                position = _first_reaching(sums, target, position, n, position)
            out[row, start + order[i]] = values[position]


@njit(**INNER)
def _search_anew(log_weights, count, ranks, factors, log_test, levels, values, out, column):
    """Cutoffs of one test entry from a new sum of the adjusted weights, shifted by their maximum: O(n)."""
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
        out[j, column] = values[n]
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
                    out[j, column] = values[i]
                    j += 1
                if j == levels.size:
                    return
        whole = high + low + np.exp(log_test - top)


@njit(nogil=True, cache=True, error_model="numpy")
def guide_table(sums, buckets):
    """For equal steps of weight, the position that reaches each: first guesses for searches."""
    table = np.empty(buckets + 1, np.int32)
    step = sums[-1] / buckets
    position = 0
    for b in range(buckets + 1):
        while position < sums.size - 1 and sums[position] < b * step:
            position += 1
        table[b] = position
    return table


@njit(nogil=True, cache=True, error_model="numpy")
def search_adjusted(
    sums, log_weights, values, guide, records, log_test, neighbours, log_factor, levels, rows, out, start
):
    """Cutoffs of test entries that each change a few calibration weights: O(N log n) per entry.

    Between two changed positions the adjusted running sum is the common one plus a constant, so a level costs at most N
    comparisons and one search. `records` has, for each calibration entry in the caller's order, its rank, log-weight,
    weight and running sum; the records of a block of test entries are read together, once per neighbour, so that memory
    accesses overlap. `levels` ascend.
    """
    n = sums.size
    total = sums[n - 1]
    per_weight = (guide.size - 1) / total
    width = neighbours.shape[1]
    block = np.empty((BLOCK_ENTRIES, width, 4))
    found = np.empty((levels.size, BLOCK_ENTRIES), values.dtype)
    ranks = np.empty(width, np.int64)
    which = np.empty(width, np.int64)
    factors = np.empty(width)
    offset = np.empty(width + 1)
    reached = np.empty(width)
    for i in range(log_test.size):
        slot = i % BLOCK_ENTRIES
        if slot == 0:
            for b in range(min(BLOCK_ENTRIES, log_test.size - i)):
                for m in range(width):
                    k = max(neighbours[i + b, m], 0)
                    for c in range(4):
                        block[b, m, c] = records[k, c]
        count = np.int64(0)
        for m in range(width):
            factor = log_factor[i, m]
            if neighbours[i, m] < 0 or factor == 0.0:
                continue
            rank = np.int64(block[slot, m, 0])
            at = count
            while at > 0 and ranks[at - 1] > rank:
                at -= 1
            if at > 0 and ranks[at - 1] == rank:
                factors[at - 1] += factor
                continue
            for later in range(count, at, -1):
                ranks[later] = ranks[later - 1]
                which[later] = which[later - 1]
                factors[later] = factors[later - 1]
            ranks[at] = rank
            which[at] = m
            factors[at] = factor
            count += 1
        top = 0.0
        for m in range(count):
            top = max(top, block[slot, which[m], 1] + factors[m])
        scale = np.exp(-top) if top > 0.0 else 1.0
        offset[0] = 0.0
        for m in range(count):
            record = block[slot, which[m]]
            raised = np.exp(record[1] + factors[m] - top)
            offset[m + 1] = offset[m] + (raised - record[2] * scale)
            reached[m] = record[3] * scale + offset[m + 1]
        whole = total * scale + offset[count] + np.exp(log_test[i] - top)
        if whole < MIN_REMAINING_SHARE * total * scale:
            _search_anew(log_weights, count, ranks, factors, log_test[i], levels, values, found, slot)
        m = 0
        for j in range(levels.size if whole >= MIN_REMAINING_SHARE * total * scale else 0):
            target = levels[j] * whole
            while m < count and reached[m] < target:
                m += 1
            need = target - offset[m]
            if top > 0.0:
                need /= scale
            position = n
            if need <= total:
                # Two steps without a branch find most positions; the search finds the others.
                position = int(guide[int(max(need, 0.0) * per_weight)])
                position += int(sums[position] < need)
                position += int(sums[position] < need)
                if sums[position] < need or (position > 0 and sums[position - 1] >= need):
                    position = _first_reaching(sums, need, np.int64(0), n, position)
            if m > 0:
                position = max(position, int(ranks[m - 1]) + 1)
            if m < count:
                position = min(position, int(ranks[m]))
            found[j, slot] = values[position]
        if slot == BLOCK_ENTRIES - 1 or i == log_test.size - 1:
            for j in range(levels.size):
                for b in range(slot + 1):
                    out[rows[j], start + i - slot + b] = found[j, b]
