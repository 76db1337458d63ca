"""The fused slab pass: loss and gradient contractions of the missingness model, one box of the tensor at a time.

A box is a run of mode-1 planes times a run of rows (a row runs along the last mode; the modes between are
flattened). With its halo it needs nobody else. The parameter tensor exists only as cores (first, middle,
last); planes of B, of the field and of the residual V live in rings of 2 R + 1 planes, where R is the
neighbourhood's reach along mode 1:

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

import math

import numpy as np
from numba import njit

from corten.engine.arithmetic import (
    capped,
    exp_of_minus,
    link_derivative,
    link_value,
    pair_derivative,
    pair_value,
    sign_of,
)

F32 = np.float32
FAST = {"contract", "nsz", "reassoc", "arcp"}
FOLD = 8  # rows whose loss factors, and whose last-core contributions, are gathered in float32 before float64


@njit(cache=True, nogil=True, error_model="numpy")
def left_vector(first, middle, plane, row, out):
    """The row's coefficients in the last core: first[plane] . middle[:, row, :]."""
    for b in range(out.shape[0]):
        out[b] = F32(0.0)
    for a in range(first.shape[1]):
        u = first[plane, a]
        for b in range(out.shape[0]):
            out[b] += u * middle[a, row, b]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def evaluate_row(left, last, out):
    """out = left . last, four bonds at a time."""
    n = out.shape[0]
    for b in range(0, left.shape[0], 4):
        l0, l1, l2, l3 = left[b], left[b + 1], left[b + 2], left[b + 3]
        c0, c1, c2, c3 = last[b], last[b + 1], last[b + 2], last[b + 3]
        if b == 0:
            for j in range(n):
                out[j] = l0 * c0[j] + l1 * c1[j] + l2 * c2[j] + l3 * c3[j]
        else:
            for j in range(n):
                out[j] += l0 * c0[j] + l1 * c1[j] + l2 * c2[j] + l3 * c3[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def contract_row(gradient, left, right_last, last_sum, dots):
    """Fold one gradient row into the last core's sum (left x gradient) and return its dots with the right core."""
    n = gradient.shape[0]
    for b in range(0, left.shape[0], 4):
        l0, l1, l2, l3 = left[b], left[b + 1], left[b + 2], left[b + 3]
        s0, s1, s2, s3 = last_sum[b], last_sum[b + 1], last_sum[b + 2], last_sum[b + 3]
        v0, v1, v2, v3 = right_last[b], right_last[b + 1], right_last[b + 2], right_last[b + 3]
        d0 = d1 = d2 = d3 = F32(0.0)
        for j in range(n):
            g = gradient[j]
            s0[j] += l0 * g
            s1[j] += l1 * g
            s2[j] += l2 * g
            s3[j] += l3 * g
            d0 += g * v0[j]
            d1 += g * v1[j]
            d2 += g * v2[j]
            d3 += g * v3[j]
        dots[b], dots[b + 1], dots[b + 2], dots[b + 3] = d0, d1, d2, d3


@njit(cache=True, nogil=True, error_model="numpy")
def close_row(row, n, reach, periodic):
    """Fill the reach cells before and after a row: its other end if the axis is periodic, else they stay zero."""
    if periodic:
        for j in range(reach):
            row[reach - 1 - j] = row[reach + (n - 1 - j) % n]
            row[reach + n + j] = row[reach + j % n]


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def neighbour(ring, centre, row, offsets, table, reach, n, o):
    """The row that offset o reaches from here, shifted so that index j is j's neighbour."""
    start = reach + offsets[o, 1]
    return ring[(centre + offsets[o, 0]) % ring.shape[0], table[o, row], start : start + n]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def sum_neighbours(ring, centre, row, offsets, table, reach, out):
    """out = sum over the neighbourhood of what stands in the ring; offsets come in pairs, absent rows are zeros."""
    n = out.shape[0]
    count = offsets.shape[0]
    sixes = count - count % 6
    if count == 0:
        for j in range(n):
            out[j] = F32(0.0)
    for o in range(0, sixes, 6):
        a = neighbour(ring, centre, row, offsets, table, reach, n, o)
        b = neighbour(ring, centre, row, offsets, table, reach, n, o + 1)
        c = neighbour(ring, centre, row, offsets, table, reach, n, o + 2)
        d = neighbour(ring, centre, row, offsets, table, reach, n, o + 3)
        e = neighbour(ring, centre, row, offsets, table, reach, n, o + 4)
        f = neighbour(ring, centre, row, offsets, table, reach, n, o + 5)
        if o == 0:
            for j in range(n):
                out[j] = a[j] + b[j] + c[j] + d[j] + e[j] + f[j]
        else:
            for j in range(n):
                out[j] += a[j] + b[j] + c[j] + d[j] + e[j] + f[j]
    for o in range(sixes, count, 2):
        a = neighbour(ring, centre, row, offsets, table, reach, n, o)
        b = neighbour(ring, centre, row, offsets, table, reach, n, o + 1)
        if o == 0:
            for j in range(n):
                out[j] = a[j] + b[j]
        else:
            for j in range(n):
                out[j] += a[j] + b[j]


@njit(cache=True, nogil=True, error_model="numpy")
def pair_sums(ring_b, ring_w, centre, row, offsets, table, reach, kind, terms, centre_b, field, slope):
    """field = sum_j g(B_i, B_j) w_j and slope = sum_j g_x(B_i, B_j) w_j for couplings that do not factorise."""
    n = field.shape[0]
    for j in range(n):
        field[j] = F32(0.0)
        slope[j] = F32(0.0)
    for o in range(offsets.shape[0]):
        b = neighbour(ring_b, centre, row, offsets, table, reach, n, o)
        w = neighbour(ring_w, centre, row, offsets, table, reach, n, o)
        for j in range(n):
            field[j] += pair_value(kind, terms, centre_b[j], b[j]) * w[j]
            slope[j] += pair_derivative(kind, terms, centre_b[j], b[j]) * w[j]


@njit(cache=True, nogil=True, error_model="numpy")
def log_odds_row(kind, terms, link, shift, b, field, slope, eta):
    """eta = 2 sum g W + 2 h(B), h's offset in `shift`; slope becomes its derivative in B_i."""
    n = eta.shape[0]
    if kind == 1:
        c = F32(2.0 * terms[0, 0])
        if link == 0:
            for j in range(n):
                slope[j] = c * field[j] + F32(1.0)
                eta[j] = b[j] * slope[j]
        else:
            for j in range(n):
                slope[j] = c * field[j]
                eta[j] = b[j] * slope[j]
                slope[j] += F32(2.0) * link_derivative(link, b[j])
                eta[j] += F32(2.0) * link_value(link, b[j])
    elif link == 0:
        for j in range(n):
            eta[j] = F32(2.0) * field[j] + b[j]
            slope[j] = F32(2.0) * slope[j] + F32(1.0)
    else:
        for j in range(n):
            eta[j] = F32(2.0) * field[j] + F32(2.0) * link_value(link, b[j])
            slope[j] = F32(2.0) * slope[j] + F32(2.0) * link_derivative(link, b[j])
    if shift != F32(0.0):
        for j in range(n):
            eta[j] += shift


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})
def likelihood_row(spins, eta, q, v, factors, linear):
    """V of eq. vanilla-gradient, and the loss as a product of factors plus a linear part; no clipping, no overflow.

    With t = exp(-|eta|): -log(q p) = log1p(t) + max(-eta, 0) - log q, and -log(1 - q p) = log1p(t) - log(1 -
    q + t) for eta >= 0, log1p(t) - log1p((1 - q) t) otherwise. q = 1 has its own branch because log(t) is
    then eta itself.
    """
    one, zero = F32(1.0), F32(0.0)
    rest = one - q
    if q < one:
        for j in range(eta.shape[0]):
            e = eta[j]
            s = F32(spins[j])
            size = np.abs(e)
            t = exp_of_minus(capped(size))
            up = one + t
            missing = t if e >= zero else one  # (1 - p) (1 + t)
            den = rest * (up - missing) + missing  # (1 - q p) (1 + t)
            den = one if s > zero else den
            inv = one / (up * den)
            value = -missing if s > zero else q * t
            active = np.abs(s) == one
            v[j] = value * inv if active else zero
            factors[j] *= up * up * inv if active else one
            below = size if e < zero else zero
            linear[j] += below if s == one else zero
    else:
        for j in range(eta.shape[0]):
            s = F32(spins[j])
            e = eta[j] if s > zero else -eta[j]
            size = np.abs(e)
            t = exp_of_minus(capped(size))
            up = one + t
            tail = (t if e >= zero else one) / up
            active = np.abs(s) == one
            value = -tail if s > zero else tail
            v[j] = value if active else zero
            factors[j] *= up if active else one
            below = size if e < zero else zero
            linear[j] += below if active else zero


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def fold_loss(factors, linear, products, count):
    """Move float32 partial products and sums into float64; logarithms every eighth time. Returns what is done."""
    total = 0.0
    for j in range(factors.shape[0]):
        products[j] *= np.float64(factors[j])
        total += np.float64(linear[j])
        factors[j] = F32(1.0)
        linear[j] = F32(0.0)
    if count % FOLD == 0:
        total += finish_loss(products)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def finish_loss(products):
    """Sum of the logarithms of the products, which start again from one."""
    total = 0.0
    for j in range(products.shape[0]):
        total += math.log(products[j])
        products[j] = 1.0
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def fold_last(part, whole):
    """Move the last core's float32 partial sums into float64."""
    for b in range(whole.shape[0]):
        p, w = part[b], whole[b]
        for j in range(w.shape[0]):
            w[j] += np.float64(p[j])
            p[j] = F32(0.0)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def spread_row(dots, first, right_middle, plane, row, out_first, out_middle):
    """Carry a row's dots inwards, to the first core and to the middle."""
    for a in range(out_middle.shape[0]):
        u = np.float64(first[plane, a])
        total = 0.0
        for b in range(out_middle.shape[2]):
            d = np.float64(dots[b])
            out_middle[a, row, b] += u * d
            total += d * np.float64(right_middle[a, row, b])
        out_first[plane, a] += total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def gradient_row(spins, v, slope, sums, c, out):
    """G = V (2 sum W g_x + 2 h') + 2 W sum V g_x: both roles of B_i."""
    two_c = F32(2.0) * c
    for j in range(out.shape[0]):
        out[j] = v[j] * slope[j] + two_c * sign_of(spins[j]) * sums[j]


@njit(cache=True, nogil=True, error_model="numpy")
def moment_row(v, b, field, moments):
    """Add V x and V^2 x x' of a row, x = (2 B sum B W, B, 2): how eta moves with strength, size of B and offset."""
    for j in range(v.shape[0]):
        g, x0, x1 = np.float64(v[j]), 2.0 * np.float64(b[j]) * np.float64(field[j]), np.float64(b[j])
        moments[0] += g * x0
        moments[1] += g * x1
        moments[2] += g * 2.0
        g *= g
        moments[3] += g * x0 * x0
        moments[4] += g * x0 * x1
        moments[5] += g * x0 * 2.0
        moments[6] += g * x1 * x1
        moments[7] += g * x1 * 2.0
        moments[8] += g * 4.0


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def soft_spin(s, tau):
    """The spin a neighbour sees: +1 where in training, its expectation where not, 0 outside the domain."""
    w = sign_of(s)
    expected = F32(tau) * F32(1.0 / 127.0)
    return expected if w < F32(0.0) else w


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
                            sums[j] = w * (
                                seen * sums[j] - coupling * b0[j] * (F32(1.0) - seen * seen) * more[j]
                            )
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
