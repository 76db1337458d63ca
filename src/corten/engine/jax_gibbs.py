"""Gibbs sweeps on a JAX device, from the random numbers of `gibbs`: a hash of (seed, sweep, row, column).

The hash is computed bit for bit as there, its 64-bit row keys in pairs of 32-bit words. Log-odds are rounded a little
differently, so a draw differs only where the random number falls within rounding of its threshold, about once in ten
million.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from corten.engine.gibbs import GOLDEN, GibbsPlan, sweep_key

Array = jax.Array
Steps = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]  # of the offsets: steps, pairs, where strengths lie


def sweep(plan: GibbsPlan, spins: np.ndarray, sweeps: int, *, seed: int, first: int, device: jax.Device) -> np.ndarray:
    """Draw `sweeps` sweeps, numbered from `first`; see `gibbs.sweep`."""
    keys = [int(sweep_key(np.uint64(seed % 2**64), number)) for number in range(first, first + sweeps)]
    words = np.array([[key & 0xFFFFFFFF, key >> 32] for key in keys], np.uint32).reshape(-1, 2)
    arrays = (
        np.asarray(spins, np.int8).reshape(plan.weight.shape), words, plan.weight, np.float32(plan.strength),
        plan.field, plan.pairs, plan.row_of.astype(np.int32), plan.row_phase, plan.column_phase,
    )  # fmt: skip
    shape = tuple(plan.steps.tolist()), tuple(plan.pair_of.tolist()), tuple(plan.at_neighbour.tolist())
    state = _sweeps(*jax.device_put(arrays, device), shape, plan.pad, plan.wraps, plan.colours)
    return np.asarray(state).reshape(plan.shape)


@partial(jax.jit, static_argnames=("shape", "pad", "wraps", "colours"))
def _sweeps(
    spins: Array, words: Array, weight: Array, strength: Array, field: Array, pairs: Array, row_of: Array,
    row_phase: Array, column_phase: Array, shape: Steps, pad: int, wraps: bool, colours: int,
) -> Array:  # fmt: skip
    steps, pair_of, at_neighbour = shape
    lines, length = weight.shape
    colour_of = (row_phase[:, None] + column_phase[None, :]) % colours

    def padded(table: Array) -> Array:
        if wraps and pad:
            table = jnp.concatenate([table[:, length - pad :], table, table[:, :pad]], axis=1)
            return jnp.pad(table, ((0, 1), (0, 0)))
        return jnp.pad(table, ((0, 1), (pad, pad)))

    def log_odds(state: Array) -> Array:
        carried = padded(weight * state.astype(jnp.float32))
        total = jnp.zeros_like(weight)
        for o, step in enumerate(steps):
            near = lax.slice_in_dim(carried, pad + step, pad + step + length, axis=1)[row_of[o]]
            if pairs.shape[0]:
                own = pairs[pair_of[o]]
                if at_neighbour[o]:
                    near = near * lax.slice_in_dim(own, pad + step, pad + step + length, axis=1)[row_of[o]]
                else:
                    near = near * own[:lines, pad : pad + length]
            total = total + near
        return strength * weight * total + field

    def one(state: Array, word: Array) -> tuple[Array, None]:
        low, high = _row_words(word, lines)
        bits = _random32(jnp.arange(length, dtype=jnp.uint32)[None, :], low[:, None], high[:, None])
        u = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)

        def draw(colour: Array, state: Array) -> Array:
            eta = log_odds(state)
            t = jnp.exp(-jnp.abs(eta))
            unlikely = u * (1.0 + t) < t
            drawn = jnp.where((eta >= 0) != unlikely, jnp.int8(1), jnp.int8(-1))
            return jnp.where((colour_of == colour) & (state != 0), drawn, state)

        return lax.fori_loop(0, colours, draw, state), None

    return lax.scan(one, spins, words)[0]


def _row_words(word: Array, lines: int) -> tuple[Array, Array]:
    """Low and high words of mix64(key + golden (row + 1)) for every row."""
    rows = jnp.arange(1, lines + 1, dtype=jnp.uint32)
    low, high = _times((rows, jnp.zeros_like(rows)), int(GOLDEN))
    total = low + word[0]
    x = total, high + word[1] + (total < low).astype(jnp.uint32)
    x = _times(_fold(x, 30), 0xBF58476D1CE4E5B9)
    x = _times(_fold(x, 27), 0x94D049BB133111EB)
    return _fold(x, 31)


def _fold(x: tuple[Array, Array], shift: int) -> tuple[Array, Array]:
    """x ^ (x >> shift) of 64-bit numbers, shift below 32."""
    low, high = x
    return low ^ ((low >> shift) | (high << (32 - shift))), high ^ (high >> shift)


def _times(x: tuple[Array, Array], constant: int) -> tuple[Array, Array]:
    """The low 64 bits of a product with a constant, in 16-bit halves where a carry is needed."""
    low, high = x
    c_low, c_high = jnp.uint32(constant & 0xFFFFFFFF), jnp.uint32(constant >> 32)
    a, b = low & 0xFFFF, low >> 16
    c, d = c_low & 0xFFFF, c_low >> 16
    cross = (a * c >> 16) + (b * c & 0xFFFF) + (a * d & 0xFFFF)
    carried = b * d + (b * c >> 16) + (a * d >> 16) + (cross >> 16)
    return low * c_low, carried + low * c_high + high * c_low


def _random32(column: Array, low: Array, high: Array) -> Array:
    """As `gibbs._random32`."""
    x = column * jnp.uint32(0x9E3779B9) + low
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    x = (x ^ (x >> 16)) + high
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
    return x ^ (x >> 15)
