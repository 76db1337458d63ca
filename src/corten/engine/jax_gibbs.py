"""Gibbs sweeps on a JAX device, from the random numbers of `gibbs`: a hash of (seed, sweep, row, column).

The hash is computed bit for bit as there; numbers of 64 bits are switched on for it. Log-odds are rounded a little
differently, so a draw differs only where the random number falls within rounding of its threshold, about once in ten
million.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from corten.engine.arrays import DeviceArrays
from corten.engine.gibbs import GOLDEN, GibbsPlan, sweep_key

Array = jax.Array


def sweep(plan: GibbsPlan, spins: np.ndarray, sweeps: int, *, seed: int, first: int, device: jax.Device) -> np.ndarray:
    """Draw `sweeps` sweeps, numbered from `first`; see `gibbs.sweep`."""
    keys = [sweep_key(np.uint64(seed % 2**64), number) for number in range(first, first + sweeps)]
    arrays = (
        np.asarray(spins, np.int8).reshape(plan.weight.shape), np.array(keys, np.uint64), plan.weight,
        np.float32(plan.strength), plan.field, plan.pairs, plan.row_of.astype(np.int32), plan.row_phase,
        plan.column_phase,
    )  # fmt: skip
    with DeviceArrays(device).running():
        placed = jax.device_put(arrays, device)
        state = _sweeps(*placed, tuple(plan.steps.tolist()), plan.pad, plan.wraps, plan.colours)
    return np.asarray(state).reshape(plan.shape)


@partial(jax.jit, static_argnames=("steps", "pad", "wraps", "colours"))
def _sweeps(
    spins: Array, keys: Array, weight: Array, strength: Array, field: Array, pairs: Array, row_of: Array,
    row_phase: Array, column_phase: Array, steps: tuple[int, ...], pad: int, wraps: bool, colours: int,
) -> Array:  # fmt: skip
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
            total = total + (near * pairs[o] if pairs.shape[0] else near)
        return strength * weight * total + field

    def one(state: Array, key: Array) -> tuple[Array, None]:
        words = _mix64(key + jnp.arange(1, lines + 1, dtype=jnp.uint64) * jnp.uint64(GOLDEN))
        low, high = words.astype(jnp.uint32), (words >> 32).astype(jnp.uint32)
        bits = _random32(jnp.arange(length, dtype=jnp.uint32)[None, :], low[:, None], high[:, None])
        u = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)

        def draw(colour: Array, state: Array) -> Array:
            eta = log_odds(state)
            t = jnp.exp(-jnp.abs(eta))
            unlikely = u * (1.0 + t) < t
            drawn = jnp.where((eta >= 0) != unlikely, jnp.int8(1), jnp.int8(-1))
            return jnp.where((colour_of == colour) & (state != 0), drawn, state)

        return lax.fori_loop(0, colours, draw, state), None

    return lax.scan(one, spins, keys)[0]


def _mix64(x: Array) -> Array:
    """As `gibbs._mix64`."""
    x = (x ^ (x >> 30)) * jnp.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27)) * jnp.uint64(0x94D049BB133111EB)
    return x ^ (x >> 31)


def _random32(column: Array, low: Array, high: Array) -> Array:
    """As `gibbs._random32`."""
    x = column * jnp.uint32(0x9E3779B9) + low
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    x = (x ^ (x >> 16)) + high
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
    return x ^ (x >> 15)
