"""Rows of the missingness model, compiled: neighbours, log-odds, likelihood and the gradient in B.

Neighbours are read from a ring of planes of which each row has `reach` more entries at both ends.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math

import numpy as np
from numba import njit

from corten.engine.arithmetic import (
    FAST,
    INNER,
    capped,
    exp_of_minus,
    link_derivative,
    link_value,
    pair_derivative,
    pair_value,
    sign_of,
)
from corten.engine.train_rows import F32, ROWS_PER_SUM


@njit(**INNER)
def close_row(row, n, reach, periodic):
    """Fill the `reach` entries before and after a row: its other end if the axis is periodic, else they stay zero."""
    if periodic:
        for j in range(reach):
            row[reach - 1 - j] = row[reach + (n - 1 - j) % n]
            row[reach + n + j] = row[reach + j % n]


@njit(**INNER)
def neighbour(ring, centre, row, offsets, table, reach, n, o):
    """The row that offset o reaches from here, shifted so that index j is j's neighbour."""
    start = reach + offsets[o, 1]
    return ring[(centre + offsets[o, 0]) % ring.shape[0], table[o, row], start : start + n]


@njit(**INNER, fastmath=FAST)
def sum_neighbours(ring, centre, row, offsets, table, reach, out):
    """out = sum of the ring over the neighbourhood; offsets come in pairs, absent rows are zeros."""
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


@njit(**INNER)
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


@njit(**INNER)
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


@njit(**INNER, fastmath={"contract", "nsz", "arcp"})
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


@njit(**INNER, fastmath=FAST)
def fold_loss(factors, linear, products, count):
    """Move float32 partial products and sums into float64; logarithms every eighth time. Returns what is done."""
    total = 0.0
    for j in range(factors.shape[0]):
        products[j] *= np.float64(factors[j])
        total += np.float64(linear[j])
        factors[j] = F32(1.0)
        linear[j] = F32(0.0)
    if count % ROWS_PER_SUM == 0:
        total += finish_loss(products)
    return total


@njit(**INNER)
def finish_loss(products):
    """Sum of the logarithms of the products, which start again from one."""
    total = 0.0
    for j in range(products.shape[0]):
        total += math.log(products[j])
        products[j] = 1.0
    return total


@njit(**INNER, fastmath=FAST)
def gradient_row(spins, v, slope, sums, c, out):
    """G = V (2 sum W g_x + 2 h') + 2 W sum V g_x: both roles of B_i."""
    two_c = F32(2.0) * c
    for j in range(out.shape[0]):
        out[j] = v[j] * slope[j] + two_c * sign_of(spins[j]) * sums[j]


@njit(**INNER)
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
    """The spin as a neighbour: +1 in training, its expectation otherwise, 0 outside the domain."""
    w = sign_of(s)
    expected = F32(tau) * F32(1.0 / 127.0)
    return expected if w < F32(0.0) else w
