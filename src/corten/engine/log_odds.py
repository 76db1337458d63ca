"""The log-odds of the entries of one box, and the weights they make."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

from corten.engine.arithmetic import capped, exp_of_minus, sign_of
from corten.engine.ising_rows import close_row, log_odds_row, pair_sums, sum_neighbours
from corten.engine.train_rows import F32, evaluate_row, left_vector


@njit(cache=True, nogil=True, error_model="numpy")
def field_box(
    spins, spin_start, plane_index, plane_level, rows, row_level, offsets, table, reach, periodic_last,
    first, middle, last, kind, terms, link, shift, out,
):  # fmt: skip
    """Log-odds eta of every entry the box owns, written to out[plane, row, :] (planes counted from the first owned)."""
    n = spins.shape[2]
    count_rows = rows.shape[0]
    radius = 0
    for o in range(offsets.shape[0]):
        radius = max(radius, abs(offsets[o, 0]))
    size = 2 * radius + 1
    ring_b = np.zeros((size, count_rows + 1, n + 2 * reach), F32)
    ring_s = np.zeros((size, count_rows + 1, n + 2 * reach), F32)
    left = np.zeros(last.shape[0], F32)
    sums = np.zeros(n, F32)
    slope = np.zeros(n, F32)
    owned = 0
    for lead in range(plane_index.shape[0] + radius):
        if lead < plane_index.shape[0]:
            slot, plane = lead % size, plane_index[lead]
            for row in range(count_rows):
                b = ring_b[slot, row, reach : reach + n]
                s = ring_s[slot, row, reach : reach + n]
                if plane < 0 or rows[row] < 0:
                    ring_b[slot, row, :] = F32(0.0)
                    ring_s[slot, row, :] = F32(0.0)
                    continue
                code = spins[lead - spin_start, rows[row]]
                left_vector(first, middle, plane, rows[row], left)
                evaluate_row(left, last, b)
                for j in range(n):
                    w = sign_of(code[j])
                    s[j] = b[j] * w if kind == 1 else w
                close_row(ring_b[slot, row], n, reach, periodic_last)
                close_row(ring_s[slot, row], n, reach, periodic_last)
        at = lead - radius
        if 0 <= at < plane_index.shape[0] and plane_level[at] == 0:
            slot = at % size
            for row in range(count_rows):
                if row_level[row] > 0:
                    continue
                b = ring_b[slot, row, reach : reach + n]
                if kind == 1:
                    sum_neighbours(ring_s, at, row, offsets, table, reach, sums)
                else:
                    pair_sums(ring_b, ring_s, at, row, offsets, table, reach, kind, terms, b, sums, slope)
                log_odds_row(kind, terms, link, shift, b, sums, slope, out[owned, rows[row]])
            owned += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})
def weight_row(spins, eta, top, first, second):
    """Add exp(-eta - top) and its square, where the spin is +1, lane by lane; -eta <= top everywhere there."""
    for j in range(eta.shape[0]):
        a = top + eta[j]
        a = a if a > F32(0.0) else F32(0.0)
        w = exp_of_minus(capped(a))
        w = w if F32(spins[j]) > F32(0.0) else F32(0.0)
        first[j] += w
        second[j] += w * w


@njit(cache=True, nogil=True, error_model="numpy")
def weight_sums(spins, eta):
    """Largest log-weight -eta of the entries with a positive spin, and the sums of weights and of their squares."""
    n = eta.shape[1]
    top = F32(-np.inf)
    for row in range(eta.shape[0]):
        for j in range(n):
            if spins[row, j] > 0 and -eta[row, j] > top:
                top = -eta[row, j]
    first, second = np.zeros(n, F32), np.zeros(n, F32)
    one, two = 0.0, 0.0
    if top > F32(-np.inf):
        for row in range(eta.shape[0]):
            weight_row(spins[row], eta[row], top, first, second)
            if row % 64 == 63 or row == eta.shape[0] - 1:
                one += first.astype(np.float64).sum()
                two += second.astype(np.float64).sum()
                first[:] = F32(0.0)
                second[:] = F32(0.0)
    return top, one, two
