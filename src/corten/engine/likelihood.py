"""The compiled passes over one box of a mask: loss and gradient contractions; log-odds.

A box is a range of mode-1 planes times a range of rows (a row is along the last mode; the modes between are flattened).
With its halo it is computed independently of the others. The parameter tensor exists only as cores (first, middle,
last); planes of B, of the field and of the residual V are kept in rings of 2 R + 1 planes, where R is the
neighbourhood's reach along mode 1:

    plane p + 2R   B and S = B W                       evaluate
    plane p + R    log-odds, loss, V and T = V B       neighbours of S
    plane p        gradient G, contracted at once      neighbours of T

Arithmetic per entry of the product coupling with last bond r (padded to a multiple of four): 3 r multiply-adds
(evaluate, contract twice), 2 |N| additions, one packed exponential (12 multiply-adds), one division, no logarithm: the
loss is a product of 64 factors before a logarithm is taken (8 in float32, 8 of those in float64).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

from corten.engine.arithmetic import INNER, sign_of
from corten.engine.ising_rows import (
    close_row,
    finish_loss,
    fold_loss,
    gradient_row,
    likelihood_row,
    log_odds_row,
    moment_row,
    pair_sums,
    soft_spin,
    sum_neighbours,
)
from corten.engine.train_rows import F32, ROWS_PER_SUM, contract_row, evaluate_row, fold_last, left_vector, spread_row


@njit(**INNER)
def enter_plane(
    spins, held, plane, rows, first, middle, last, left, factorised, thinned, reach, periodic_last, ring_b, ring_s
):  # fmt: skip
    """Evaluate B and S (B W, or W where the coupling does not factorise) of one plane into its place in the rings.

    If `thinned`, S is left to the caller, except for rows outside the tensor, where it is zero.
    """
    n = spins.shape[2]
    for row in range(rows.shape[0]):
        if plane < 0 or rows[row] < 0:
            ring_b[row, :] = F32(0.0)
            ring_s[row, :] = F32(0.0)
            continue
        b, s = ring_b[row, reach : reach + n], ring_s[row, reach : reach + n]
        code = spins[held, rows[row]]
        left_vector(first, middle, plane, rows[row], left)
        evaluate_row(left, last, b)
        if thinned:
            continue
        for j in range(n):
            w = sign_of(code[j])
            s[j] = b[j] * w if factorised else w
        close_row(ring_b[row], n, reach, periodic_last)
        close_row(ring_s[row], n, reach, periodic_last)


@njit(cache=True, nogil=True, error_model="numpy")
def likelihood_box(
    spins, soft, spin_start, plane_index, plane_level, rows, row_level, offsets, table, radius, reach, periodic_last,
    first, middle, last, right_middle, right_last, first0, middle0, last0,
    kind, terms, link, shift, q, out_first, out_middle, out_last, moments,
):  # fmt: skip
    """Loss of one box, and its contributions to the three cores' contractions.

    spins: (planes, rows of the tensor, n) with halo planes, the first of them at position spin_start of plane_index.
    plane_index, rows: where the cores are read (-1: outside). Levels: 0 owns its terms, 1 needs V, 2 needs B only.
    table[o, row]: the neighbour's local row (the last, a row of zeros, if there is none). soft: empty, or expected
    spins in 1/127 for the thinning correction, with the cores (first0, ...) they came from. moments: empty, or nine
    sums of `moment_row` (product coupling).
    """
    n = spins.shape[2]
    thinned = soft.shape[0] > 0
    count_rows = rows.shape[0]
    factorised = kind == 1
    # a derivative of a pair also needs B behind the plane of the gradient
    size = 2 * radius + 1 if factorised else 3 * radius + 1
    stride = n + 2 * reach
    ring_b = np.zeros((size, count_rows + 1, stride), F32)
    ring_s = np.zeros((size, count_rows + 1, stride), F32)
    ring_v = np.zeros((size, count_rows + 1, stride), F32)
    ring_t = np.zeros((size, count_rows + 1, stride), F32)
    ring_slope = np.zeros((size, count_rows + 1, n), F32)
    extra = size if thinned else 0
    ring_b0 = np.zeros((extra, count_rows + 1, stride), F32)
    ring_y = np.zeros((extra, count_rows + 1, stride), F32)
    ring_z = np.zeros((extra, count_rows + 1, stride), F32)
    left = np.zeros(last.shape[0], F32)
    left0 = np.zeros(last0.shape[0], F32)
    dots = np.zeros(last.shape[0], F32)
    sums = np.zeros(n, F32)
    more = np.zeros(n, F32)
    eta = np.zeros(n, F32)
    factors = np.ones(n, F32)
    linear = np.zeros(n, F32)
    products = np.ones(n, np.float64)
    last_part = np.zeros(last.shape, F32)
    coupling = F32(terms[0, 0]) if factorised else F32(1.0)
    loss = 0.0
    rows_loss = 0
    rows_last = 0
    folds = 0
    for lead in range(plane_index.shape[0] + 2 * radius):
        if lead < plane_index.shape[0]:
            slot, plane, held = lead % size, plane_index[lead], lead - spin_start
            enter_plane(
                spins, held, plane, rows, first, middle, last, left, factorised, thinned, reach,
                periodic_last, ring_b[slot], ring_s[slot],
            )  # fmt: skip
            if thinned:
                enter_plane(
                    spins, held, plane, rows, first0, middle0, last0, left0, factorised, thinned, reach,
                    periodic_last, ring_b0[slot], ring_y[slot],
                )  # fmt: skip
                for row in range(count_rows):
                    if plane >= 0 and rows[row] >= 0:
                        code, tau = spins[held, rows[row]], soft[held, rows[row]]
                        b, b0 = ring_b[slot, row, reach : reach + n], ring_b0[slot, row, reach : reach + n]
                        s, y = ring_s[slot, row, reach : reach + n], ring_y[slot, row, reach : reach + n]
                        for j in range(n):
                            expected = soft_spin(code[j], tau[j])
                            s[j] = b[j] * expected
                            y[j] = b[j] * b0[j] * (F32(1.0) - expected * expected) * np.abs(sign_of(code[j]))
                        close_row(ring_s[slot, row], n, reach, periodic_last)
                        close_row(ring_y[slot, row], n, reach, periodic_last)
        at = lead - radius
        if 0 <= at < plane_index.shape[0] and plane_level[at] <= 1:
            slot, plane = at % size, plane_index[at]
            for row in range(count_rows):
                if row_level[row] > 1:
                    continue
                v = ring_v[slot, row, reach : reach + n]
                t = ring_t[slot, row, reach : reach + n]
                if plane < 0 or rows[row] < 0:
                    ring_v[slot, row, :] = F32(0.0)
                    ring_t[slot, row, :] = F32(0.0)
                    if thinned:
                        ring_z[slot, row, :] = F32(0.0)
                    continue
                code = spins[at - spin_start, rows[row]]
                b = ring_b[slot, row, reach : reach + n]
                slope = ring_slope[slot, row]
                if factorised:
                    sum_neighbours(ring_s, at, row, offsets, table, reach, sums)
                    if thinned:
                        b0 = ring_b0[slot, row, reach : reach + n]
                        sum_neighbours(ring_y, at, row, offsets, table, reach, more)
                        for j in range(n):
                            sums[j] -= coupling * b0[j] * sign_of(code[j]) * more[j]
                else:
                    pair_sums(ring_b, ring_s, at, row, offsets, table, reach, kind, terms, b, sums, slope)
                log_odds_row(kind, terms, link, shift, b, sums, slope, eta)
                own = plane_level[at] == 0 and row_level[row] == 0
                if own:
                    likelihood_row(code, eta, q, v, factors, linear)
                    if moments.shape[0] > 0:
                        moment_row(v, b, sums, moments)
                    rows_loss += 1
                    if rows_loss % ROWS_PER_SUM == 0:
                        folds += 1
                        loss += fold_loss(factors, linear, products, folds)
                else:
                    likelihood_row(code, eta, q, v, more, sums)
                if factorised:
                    for j in range(n):
                        t[j] = v[j] * b[j]
                    if thinned:
                        b0 = ring_b0[slot, row, reach : reach + n]
                        z = ring_z[slot, row, reach : reach + n]
                        for j in range(n):
                            z[j] = t[j] * b0[j] * sign_of(code[j])
                        close_row(ring_z[slot, row], n, reach, periodic_last)
                    close_row(ring_t[slot, row], n, reach, periodic_last)
                else:
                    close_row(ring_v[slot, row], n, reach, periodic_last)
        at = lead - 2 * radius
        if 0 <= at < plane_index.shape[0] and plane_level[at] == 0:
            slot, plane = at % size, plane_index[at]
            for row in range(count_rows):
                if row_level[row] > 0:
                    continue
                code = spins[at - spin_start, rows[row]]
                v = ring_v[slot, row, reach : reach + n]
                slope = ring_slope[slot, row]
                if factorised:
                    sum_neighbours(ring_t, at, row, offsets, table, reach, sums)
                    if thinned:
                        b0 = ring_b0[slot, row, reach : reach + n]
                        tau = soft[at - spin_start, rows[row]]
                        sum_neighbours(ring_z, at, row, offsets, table, reach, more)
                        for j in range(n):
                            expected = soft_spin(code[j], tau[j])
                            w = sign_of(code[j])
                            rest = F32(1.0) - expected * expected
                            sums[j] = w * (expected * sums[j] - coupling * b0[j] * rest * more[j])
                elif offsets.shape[0] > 0 and kind != 0:
                    b = ring_b[slot, row, reach : reach + n]
                    pair_sums(ring_b, ring_v, at, row, offsets, table, reach, kind, terms, b, more, sums)
                else:
                    sums[:] = F32(0.0)
                gradient_row(code, v, slope, sums, coupling, eta)
                left_vector(first, middle, plane, rows[row], left)
                contract_row(eta, left, right_last, last_part, dots)
                spread_row(dots, first, right_middle, plane, rows[row], out_first, out_middle)
                rows_last += 1
                if rows_last % (4 * ROWS_PER_SUM) == 0:
                    fold_last(last_part, out_last)
    loss += fold_loss(factors, linear, products, np.int64(1))
    loss += finish_loss(products)
    fold_last(last_part, out_last)
    return loss


@njit(cache=True, nogil=True, error_model="numpy")
def field_box(
    spins, spin_start, plane_index, plane_level, rows, row_level, offsets, table, radius, reach, periodic_last,
    first, middle, last, kind, terms, link, shift, out,
):  # fmt: skip
    """Log-odds eta of every entry the box owns, written to out[plane, row, :] (planes counted from the first owned)."""
    n = spins.shape[2]
    count_rows = rows.shape[0]
    size = 2 * radius + 1
    ring_b = np.zeros((size, count_rows + 1, n + 2 * reach), F32)
    ring_s = np.zeros((size, count_rows + 1, n + 2 * reach), F32)
    left = np.zeros(last.shape[0], F32)
    sums = np.zeros(n, F32)
    slope = np.zeros(n, F32)
    owned = 0
    for lead in range(plane_index.shape[0] + radius):
        if lead < plane_index.shape[0]:
            slot = lead % size
            enter_plane(
                spins, lead - spin_start, plane_index[lead], rows, first, middle, last, left, kind == 1,
                np.bool_(False), reach, periodic_last, ring_b[slot], ring_s[slot],
            )  # fmt: skip
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
