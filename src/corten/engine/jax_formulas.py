"""The missingness model's formulas as array expressions, in the same safe forms as `ising_rows` and `arithmetic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import log_ndtr

from corten.engine.arithmetic import LOGIT, PROBIT, PRODUCT, SIGMOID

LOG_ROOT_TWO_PI = 0.9189385332046727


@dataclass(frozen=True)
class Formula:
    """What of a model shapes the compiled code. Coefficients are arguments: another strength compiles nothing."""

    kind: int
    powers: tuple[tuple[int, int], ...]
    link: int
    offsets: tuple[tuple[int, ...], ...]
    periodic: tuple[bool, ...]
    whole: bool  # train share one, which has its own safe form

    @property
    def radius(self) -> int:
        return max((abs(o[0]) for o in self.offsets), default=0)

    @property
    def factorises(self) -> bool:
        return self.kind == PRODUCT


@dataclass(frozen=True)
class Shift:
    """Neighbours of a block of planes that has `margin` further planes on either side."""

    offsets: tuple[tuple[int, ...], ...]
    periodic: tuple[bool, ...]
    margin: int

    def take(self, block: jax.Array, offset: Sequence[int]) -> jax.Array:
        """The array whose entry i is the block's entry i + offset; zero outside, the other end where periodic."""
        start = self.margin + offset[0]
        out = lax.slice_in_dim(block, start, start + block.shape[0] - 2 * self.margin, axis=0)
        for axis, step in enumerate(offset):
            if axis == 0 or step == 0:
                continue
            if self.periodic[axis]:
                out = jnp.roll(out, -step, axis)
            elif abs(step) >= out.shape[axis]:
                out = jnp.zeros_like(out)
            else:
                edges = [(0, 0, 0)] * out.ndim
                edges[axis] = (-step, step, 0)
                out = lax.pad(out, jnp.zeros((), out.dtype), edges)
        return out

    def centre(self, block: jax.Array) -> jax.Array:
        """The requested planes themselves."""
        return lax.slice_in_dim(block, self.margin, block.shape[0] - self.margin, axis=0)

    def total(self, block: jax.Array) -> jax.Array:
        """Sum over the neighbourhood."""
        if not self.offsets:
            return jnp.zeros_like(self.centre(block))
        out = self.take(block, self.offsets[0])
        for offset in self.offsets[1:]:
            out = out + self.take(block, offset)
        return out


def sign_of(code: jax.Array) -> jax.Array:
    """The spin +1, -1 or 0 of a code of -2..2."""
    return jnp.clip(code.astype(jnp.float32), -1.0, 1.0)


def soft_spin(w: jax.Array, tau: jax.Array) -> jax.Array:
    """The spin as a neighbour: its expectation (in 1/127) where it is not in training."""
    return jnp.where(w < 0, tau.astype(jnp.float32) * jnp.float32(1 / 127), w)


def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x)) without overflow."""
    t = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1.0, t) / (1.0 + t)


def pair(formula: Formula, terms: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """g(x, y) and its derivative in x."""
    if formula.kind == SIGMOID:
        s = sigmoid(x * y)
        return terms[0] * (s - 0.5), terms[0] * y * s * (1.0 - s)
    value, slope = jnp.zeros_like(x), jnp.zeros_like(x)
    for t, (a, b) in enumerate(formula.powers):
        other = terms[t] * _power(y, b)
        value = value + other * _power(x, a)
        if a:
            slope = slope + other * a * _power(x, a - 1)
    return value, slope


def _power(x: jax.Array, exponent: int) -> jax.Array:
    out = jnp.ones_like(x)
    for _ in range(exponent):
        out = out * x
    return out


def pair_sums(
    formula: Formula, terms: jax.Array, shift: Shift, b: jax.Array, w: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """sum_j g(B_i, B_j) w_j and sum_j g_x(B_i, B_j) w_j for couplings that do not factorise."""
    here = shift.centre(b)
    field, slope = jnp.zeros_like(here), jnp.zeros_like(here)
    for offset in shift.offsets:
        value, derivative = pair(formula, terms, here, shift.take(b, offset))
        near = shift.take(w, offset)
        field, slope = field + value * near, slope + derivative * near
    return field, slope


def link(kind: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """2 h(x) and 2 h'(x)."""
    if kind == LOGIT:
        return x, jnp.ones_like(x)
    if kind == PROBIT:
        above, below = log_ndtr(x), log_ndtr(-x)
        return above - below, jnp.exp(-0.5 * x * x - LOG_ROOT_TWO_PI - above - below)
    return jnp.zeros_like(x), jnp.zeros_like(x)


def log_odds(
    formula: Formula, terms: jax.Array, b: jax.Array, field: jax.Array, slope: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """eta = 2 sum g W + 2 h(B) and its derivative in B_i. A product coupling needs the sum of B W only."""
    own, own_slope = link(formula.link, b)
    if formula.factorises:
        slope = 2.0 * terms[0] * field
        return b * slope + own, slope + own_slope
    assert slope is not None
    return 2.0 * field + own, 2.0 * slope + own_slope


def likelihood(codes: jax.Array, eta: jax.Array, q: jax.Array, whole: bool) -> tuple[jax.Array, jax.Array]:
    """V of eq. vanilla-gradient and the loss of each entry without -log q; see `ising_rows.likelihood_row`."""
    active = jnp.abs(codes) == 1
    up_spin = codes > 0
    if whole:
        toward = jnp.where(up_spin, eta, -eta)
        t = jnp.exp(-jnp.abs(toward))
        tail = jnp.where(toward >= 0, t, 1.0) / (1.0 + t)
        v = jnp.where(up_spin, -tail, tail)
        loss = jnp.log1p(t) + jnp.maximum(-toward, 0.0)
    else:
        t = jnp.exp(-jnp.abs(eta))
        up = 1.0 + t
        missing = jnp.where(eta >= 0, t, 1.0)
        rest = (1.0 - q) * (up - missing) + missing
        den = jnp.where(up_spin, 1.0, rest)
        inverse = 1.0 / (up * den)
        v = jnp.where(up_spin, -missing, q * t) * inverse
        linear = jnp.where(up_spin, jnp.maximum(-eta, 0.0), 0.0)
        loss = jnp.log(up * up * inverse) + linear
    return jnp.where(active, v, 0.0), jnp.where(active, loss, 0.0)
