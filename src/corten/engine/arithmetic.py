"""Row arithmetic that compiled kernels share: a packed exponential and the links' safe forms.

Numba's wheels contain no vector mathematics library, so `math.exp` in a loop is one scalar call per entry.
`exp_of_minus` is branch free and made of multiplications, so LLVM packs it sixteen entries at a time.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

F32 = np.float32

# For functions that only other kernels call: no entry points for Python and C, a sixth of the time to compile.
NO_ENTRY: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
FAST = {"contract", "nsz", "reassoc", "arcp"}
INNER: dict[str, Any] = {"cache": True, "error_model": "numpy", **NO_ENTRY}

# Kinds as `corten.propensity` writes them into a kernel's arguments.
ZERO, PRODUCT, POLYNOMIAL, SIGMOID = 0, 1, 2, 3
LOGIT, PROBIT, NO_LINK = 0, 1, 2


@njit(cache=True, nogil=True, inline="always")
def exp_of_minus(a):
    """exp(-a) for 0 <= a <= 87, in float32, relative error below 1e-7; `capped` brings any a there."""
    n = np.int32(a * F32(-1.44269504) - F32(0.5))
    f = F32(n)
    r = -a - f * F32(0.693359375) - f * F32(-2.12194440e-4)
    y = F32(1.9875691e-4)
    y = y * r + F32(1.3981999e-3)
    y = y * r + F32(8.3334519e-3)
    y = y * r + F32(4.1665795e-2)
    y = y * r + F32(1.6666665e-1)
    y = y * r + F32(5.0000001e-1)
    y = y * r * r + r + F32(1.0)
    return y * np.int32((n + np.int32(127)) << np.int32(23)).view(F32)


@njit(cache=True, nogil=True, inline="always")
def capped(a):
    """a, or 87 where exp(-a) would leave float32's normal range: there 1 + exp(-a) is 1 all the same."""
    return a if a < F32(87.0) else F32(87.0)


@njit(cache=True, nogil=True, inline="always")
def sign_of(code):
    """The spin +1, -1 or 0 of a code of -2..2."""
    s = F32(code)
    s = s if s < F32(1.0) else F32(1.0)
    return s if s > F32(-1.0) else F32(-1.0)


@njit(**INNER)
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow."""
    if x >= F32(0.0):
        return F32(1.0) / (F32(1.0) + exp_of_minus(capped(x)))
    t = exp_of_minus(capped(-x))
    return t / (F32(1.0) + t)


@njit(**INNER)
def log_normal_cdf(x):
    """log Phi(x), by the asymptotic series where erfc would underflow."""
    if x > -10.0:
        return math.log(0.5 * math.erfc(-x * 0.7071067811865476))
    z = 1.0 / (x * x)
    return -0.5 * x * x - math.log(-x) - 0.9189385332046727 + math.log1p(-z * (1.0 - 3.0 * z * (1.0 - 5.0 * z)))


@njit(**INNER)
def link_value(kind, x):
    """h(x): half the log-odds that an entry without neighbours is observed."""
    if kind == 0:
        return F32(0.5) * x
    if kind == 1:
        return F32(0.5 * (log_normal_cdf(np.float64(x)) - log_normal_cdf(-np.float64(x))))
    return F32(0.0)


@njit(**INNER)
def link_derivative(kind, x):
    """h'(x)."""
    if kind == 0:
        return F32(0.5)
    if kind == 1:
        z = np.float64(x)
        log_density = -0.5 * z * z - 0.9189385332046727
        return F32(0.5 * math.exp(log_density - log_normal_cdf(z) - log_normal_cdf(-z)))
    return F32(0.0)


@njit(**INNER)
def pair_value(kind, terms, x, y):
    """g(x, y) of any coupling."""
    if kind == 3:
        return F32(terms[0, 0]) * (sigmoid(x * y) - F32(0.5))
    total = F32(0.0)
    for t in range(terms.shape[0]):
        v = F32(terms[t, 0])
        for _ in range(int(terms[t, 1])):
            v *= x
        for _ in range(int(terms[t, 2])):
            v *= y
        total += v
    return total


@njit(**INNER)
def pair_derivative(kind, terms, x, y):
    """dg/dx (x, y) of any coupling."""
    if kind == 3:
        s = sigmoid(x * y)
        return F32(terms[0, 0]) * y * s * (F32(1.0) - s)
    total = F32(0.0)
    for t in range(terms.shape[0]):
        a = int(terms[t, 1])
        if a == 0:
            continue
        v = F32(terms[t, 0]) * F32(a)
        for _ in range(a - 1):
            v *= x
        for _ in range(int(terms[t, 2])):
            v *= y
        total += v
    return total
