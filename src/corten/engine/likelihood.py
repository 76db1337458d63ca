"""The fused slab pass: loss and gradient contractions of the missingness model, one box of the tensor at a time.

A box is a run of mode-1 planes times a run of rows (a row runs along the last mode; the modes between are flattened).
With its halo it is computed independently of the others. The parameter tensor exists only as cores (first, middle,
last); planes of B, of the field and of the residual V live in rings of 2 R + 1 planes, where R is the neighbourhood's
reach along mode 1:

    plane p + 2R   B and S = B W                       evaluate
    plane p + R    log-odds, loss, V and T = V B       neighbours of S
    plane p        gradient G, contracted at once      neighbours of T

Arithmetic per entry of the product coupling with last bond r (padded to a multiple of four): 3 r multiply-
adds (evaluate, contract twice), 2 |N| additions, one packed exponential (12 multiply-adds), one division, no
logarithm: the loss is a product of 64 factors before a logarithm is taken (8 in float32, 8 of those in
float64).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

from corten.engine.arithmetic import sign_of
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
from corten.engine.train_rows import F32, FOLD, contract_row, evaluate_row, fold_last, left_vector, spread_row


@njit(cache=True, nogil=True, error_model="numpy")
def likelihood_box(
    spins, soft, spin_start, plane_index, plane_level, rows, row_level, offsets, table, reach, periodic_last,
    first, middle, last, right_middle, right_last, first0, middle0, last0,
    kind, terms, link, shift, q, out_first, out_middle, out_last, moments,
):  # fmt: skip
    """Loss of one box, and its contributions to the three cores' contractions.

    spins: (planes, rows of the tensor, n) with halo planes, the first of them at position spin_start of
    plane_index;
    plane_index, rows: where the cores are read (-1: outside).
    Levels: 0 owns its terms, 1 needs V, 2 needs B only. table[o, row] is the neighbour's local row (the last,
    a row of zeros, if there is none). soft: empty, or expected spins in 1/127 for the thinning correction,
    with the cores (first0, ...) they came from. moments: empty, or nine sums of `moment_row` (product coupling).
    """
    n = spins.shape[2]
    thinned = soft.shape[0] > 0
    count_rows = rows.shape[0]
    radius = 0
    for o in range(offsets.shape[0]):
        radius = max(radius, abs(offsets[o, 0]))
    factorised = kind == 1
    size = (
        2 * radius + 1 if factorised else 3 * radius + 1
    )  # a pair's derivative needs B behind the gradient's plane too
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
    seen_loss = 0
    seen_last = 0
    folds = 0
    for lead in range(plane_index.shape[0] + 2 * radius):
        if lead < plane_index.shape[0]:
            slot, plane = lead % size, plane_index[lead]
            for row in range(count_rows):
                b = ring_b[slot, row, reach : reach + n]
                s = ring_s[slot, row, reach : reach + n]
                if plane < 0 or rows[row] < 0:
                    ring_b[slot, row, :] = F32(0.0)
                    ring_s[slot, row, :] = F32(0.0)
                    if thinned:
                        ring_y[slot, row, :] = F32(0.0)
                    continue
                code = spins[lead - spin_start, rows[row]]
                left_vector(first, middle, plane, rows[row], left)
                evaluate_row(left, last, b)
                if thinned:
                    left_vector(first0, middle0, plane, rows[row], left0)
                    b0 = ring_b0[slot, row, reach : reach + n]
                    evaluate_row(left0, last0, b0)
                    tau = soft[lead - spin_start, rows[row]]
                    y = ring_y[slot, row, reach : reach + n]
                    for j in range(n):
                        seen = soft_spin(code[j], tau[j])
                        s[j] = b[j] * seen
                        y[j] = b[j] * b0[j] * (F32(1.0) - seen * seen) * np.abs(sign_of(code[j]))
                    close_row(ring_y[slot, row], n, reach, periodic_last)
                elif factorised:
                    for j in range(n):
                        s[j] = b[j] * sign_of(code[j])
                else:
                    for j in range(n):
                        s[j] = sign_of(code[j])
                    close_row(ring_b[slot, row], n, reach, periodic_last)
                close_row(ring_s[slot, row], n, reach, periodic_last)
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
                    seen_loss += 1
                    if seen_loss % FOLD == 0:
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
                            seen = soft_spin(code[j], tau[j])
                            w = sign_of(code[j])
                            sums[j] = w * (seen * sums[j] - coupling * b0[j] * (F32(1.0) - seen * seen) * more[j])
                elif offsets.shape[0] > 0 and kind != 0:
                    b = ring_b[slot, row, reach : reach + n]
                    pair_sums(ring_b, ring_v, at, row, offsets, table, reach, kind, terms, b, more, sums)
                else:
                    sums[:] = F32(0.0)
                gradient_row(code, v, slope, sums, coupling, eta)
                left_vector(first, middle, plane, rows[row], left)
                contract_row(eta, left, right_last, last_part, dots)
                spread_row(dots, first, right_middle, plane, rows[row], out_first, out_middle)
                seen_last += 1
                if seen_last % (4 * FOLD) == 0:
                    fold_last(last_part, out_last)
    loss += fold_loss(factors, linear, products, 1)
    loss += finish_loss(products)
    fold_last(last_part, out_last)
    return loss
