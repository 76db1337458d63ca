"""Rows of a tensor train, compiled: its values along the last mode, and a gradient row folded back into the cores.

The train comes as three cores (first, middle, last): the middle modes are flattened, the last bond is padded
to a multiple of four.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

from corten.engine.arithmetic import FAST, INNER

F32 = np.float32
ROWS_PER_SUM = 8  # rows whose loss factors, and whose last-core contributions, are gathered in float32 before float64


@njit(**INNER)
def left_vector(first, middle, plane, row, out):
    """The row's coefficients in the last core: first[plane] . middle[:, row, :]."""
    for b in range(out.shape[0]):
        out[b] = F32(0.0)
    for a in range(first.shape[1]):
        u = first[plane, a]
        for b in range(out.shape[0]):
            out[b] += u * middle[a, row, b]


@njit(**INNER, fastmath=FAST)
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


@njit(**INNER, fastmath=FAST)
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


@njit(**INNER, fastmath=FAST)
def fold_last(part, whole):
    """Move the last core's float32 partial sums into float64."""
    for b in range(whole.shape[0]):
        p, w = part[b], whole[b]
        for j in range(w.shape[0]):
            w[j] += np.float64(p[j])
            p[j] = F32(0.0)


@njit(**INNER, fastmath=FAST)
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
