"""Spins laid out for the fused kernel: tiles of rows times 128 columns that overlap by one entry all round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
LANES = 128
GROUPS = 4  # warpgroups of a program


@dataclass(frozen=True)
class Tiling:
    """How a run of planes times (rows, columns) is shared by programs; `deep` rows a warpgroup."""

    planes: int
    rows: int
    columns: int
    periodic: tuple[bool, ...]
    deep: int = 4

    @property
    def tall(self) -> int:
        return GROUPS * self.deep

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.rows // (self.tall - 2)), -(-self.columns // (LANES - 2))

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def steps(self) -> int:
        return self.planes + 5

    def index(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """Where every tile's rows (axis 1) or columns (axis 2) are in the tensor (-1: outside), and which it owns."""
        length, size = (self.rows, self.tall) if axis == 1 else (self.columns, LANES)
        at = np.arange(self.grid[axis - 1])[:, None] * (size - 2) + np.arange(size) - 1
        inside = (at >= 0) & (at < length)
        edge = np.zeros(size, bool)
        edge[[0, -1]] = True
        known = inside | (self.periodic[axis] & ((at == -1) | (at == length)))
        return np.where(known, at % length, -1).reshape(-1), (inside & ~edge).reshape(-1)


def taken(block: Array, index: Array, axis: int) -> Array:
    """Entries of an axis at an index, zero where it is -1."""
    shape = [-1 if k == axis else 1 for k in range(block.ndim)]
    return jnp.take(block, jnp.maximum(index, 0), axis) * (index >= 0).reshape(shape).astype(block.dtype)


def tiled(spins: Array, tiling: Tiling) -> tuple[Array, Array, Array]:
    """Spins laid out for the kernel, and where its rows and columns are in the tensor: what `fused_pass` reads."""
    (rows, own_rows), (columns, own_columns) = tiling.index(1), tiling.index(2)
    device = next(iter(spins.devices()))
    index = jax.device_put((rows.astype(np.int32), columns.astype(np.int32)), device)
    return _tiled_spins(spins, *index, own_rows, own_columns, tiling), *index


@partial(jax.jit, static_argnames=("tiling",))
def _tiled_spins(
    spins: Array, rows: Array, columns: Array, own_rows: Array, own_columns: Array, tiling: Tiling
) -> Array:
    """Spins (with two halo planes on either side) as (tiles, steps + 1, tall, lanes), overlaps coded as held out."""
    spins = spins[: tiling.planes + 4]
    spins = jnp.pad(spins, ((0, tiling.steps + 1 - spins.shape[0]), (0, 0), (0, 0)))
    down, across = tiling.grid

    def one(strip: tuple[Array, Array]) -> Array:
        index, own = strip
        block = taken(taken(spins, index, 1), columns, 2)
        block = jnp.where(own[None, :, None] & own_columns[None, None, :], block, jnp.sign(block) * jnp.int8(2))
        return block.reshape(-1, tiling.tall, across, LANES).transpose(2, 0, 1, 3)

    tiles = lax.map(one, (rows.reshape(down, -1), own_rows.reshape(down, -1)))
    return tiles.reshape(down * across, -1, tiling.tall, LANES)
