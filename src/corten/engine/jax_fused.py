"""One fused GPU kernel for the commonest pass: product coupling, logit link, adjacent neighbours, three modes.

A program owns a tile of rows times 128 columns and advances along mode 1. Of plane x it evaluates B = sum_a first[x, a]
tile_a and S = 2 c B W; of plane x - 1 the log-odds, loss, V and T = V B; of plane x - 2 the gradient G, folded at once
into sum_x first[x, a] G (the contractions with the middle and last cores) and into sum G right_a (with the first).
Neighbours along mode 1, and most rows, are in registers; columns, and rows of other warpgroups, go through shared
memory with one barrier a plane.

Tiles overlap by one entry on all sides. There a spin is coded as held out, so it has an influence but no term; a tile
computes its own share of the gradient of such an entry, and the shares add up. Per entry the kernel reads 1.2 bytes and
writes 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from operator import add, mul
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as gpu

from corten.engine.jax_slab import EXACT, Formula, Packing

Array = jax.Array
LANES = 128
GROUPS = 4  # warpgroups of a program


@dataclass(frozen=True)
class Tiling:
    """How planes times (rows, columns) are divided among programs; `deep` rows a warpgroup."""

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


@partial(
    jax.jit, static_argnames=("formula", "tiling", "packing", "rank"), compiler_options={"xla_gpu_autotune_level": 0}
)
def fused_pass(
    spins: Array,
    rows: Array,
    columns: Array,
    vector: Array,
    formula: Formula,
    tiling: Tiling,
    packing: Packing,
    rank: int,
) -> Array:
    """Losses of tiles and the three contractions, as `jax_slab.likelihood_pass`; the first three from `tiled`."""
    cores = packing.unpack(vector)
    down, across = tiling.grid

    def tiles(middle: Array, last: Array) -> Array:
        whole = jnp.einsum("arb,bn->arn", taken(middle, rows, 1), taken(last, columns, 1), precision=EXACT)
        whole = whole.reshape(rank, down, tiling.tall, across, LANES).transpose(1, 3, 0, 2, 4)
        return whole.reshape(down * across, rank, tiling.tall, LANES)

    right = tiles(cores["right_middle"], cores["right_last"])
    first = jnp.pad(cores["first"][: tiling.planes + 4], ((0, tiling.steps - tiling.planes - 4), (0, 0)))
    numbers = jnp.stack([2.0 * cores["terms"][0], cores["share"][0]])
    count = cores["count"].astype(jnp.int32)
    sums, firsts, losses = _launch(
        spins, tiles(cores["middle"], cores["last"]), right, first, numbers, count, formula.whole, tiling, rank
    )
    whole = (
        sums.reshape(down, across, rank, tiling.tall, LANES)
        .transpose(2, 0, 3, 1, 4)
        .reshape(rank, down * tiling.tall, -1)
    )
    middle = jnp.einsum("arn,bn->arb", whole, taken(cores["right_last"], columns, 1), precision=EXACT)
    last = jnp.einsum("arb,arn->bn", taken(cores["middle"], rows, 1), whole, precision=EXACT)
    middle = jnp.einsum("arb,rs->asb", middle, _one_hot(rows, tiling.rows), precision=EXACT)
    last = jnp.einsum("bn,nm->bm", last, _one_hot(columns, tiling.columns), precision=EXACT)
    parts = (jnp.sum(losses, (1, 2)), jnp.sum(firsts[:, : tiling.planes], (0, 3)), middle, last)
    return jnp.concatenate([x.reshape(-1) for x in parts])


def _one_hot(index: Array, length: int) -> Array:
    return (index[:, None] == jnp.arange(length)).astype(jnp.float32)


def _launch(
    spins: Array, tiles: Array, right: Array, first: Array, numbers: Array, count: Array,
    whole: bool, tiling: Tiling, rank: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    count_of_tiles = tiles.shape[0]
    line = -(-first.size // LANES) * LANES
    first = jnp.pad(first.reshape(-1), (0, line - first.size))
    f32 = jnp.float32
    buffer = (tiling.tall + 2) * LANES + 2 * LANES
    return gpu.kernel(
        partial(_kernel, tiling=tiling, rank=rank, whole=whole),
        out_type=(
            jax.ShapeDtypeStruct((count_of_tiles, rank, tiling.tall, LANES), f32),
            jax.ShapeDtypeStruct((count_of_tiles, tiling.steps, rank, LANES), f32),
            jax.ShapeDtypeStruct((count_of_tiles, GROUPS, LANES), f32),
        ),
        scratch_types=(
            gpu.SMEM((4, buffer), f32),
            gpu.SMEM((2, rank, GROUPS, LANES), f32),
            gpu.SMEM((line,), f32),
            gpu.Barrier(num_arrivals=GROUPS),
        ),
        grid=(count_of_tiles,),
        grid_names=("tile",),
        num_threads=GROUPS,
        thread_name="group",
        compiler_params=gpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
    )(spins, tiles, right, first, numbers, count)


class Ref(Protocol):
    """Memory inside a kernel."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, at: object) -> Array: ...
    def __setitem__(self, at: object, value: Array) -> None: ...


def _kernel(
    spins: Ref, tiles: Ref, right: Ref, first: Ref, numbers: Ref, count: Ref,
    sums: Ref, firsts: Ref, losses: Ref, board: Ref, ends: Ref, factors: Ref, barrier: Any,
    *, tiling: Tiling, rank: int, whole: bool,
) -> None:  # fmt: skip
    tile, group = lax.axis_index("tile"), lax.axis_index("group")
    deep = tiling.deep
    top = group * deep
    zero = tiles[tile, 0, top, :] * 0.0  # a vector that is laid out over the lanes, as a constant is not

    def synchronise() -> None:
        gpu.barrier_arrive(barrier)
        gpu.barrier_wait(barrier)

    def cells(kind: int | Array, row: int | Array, over: int = 0) -> Array:
        return board[kind, pl.ds((row + 2) * LANES + over, LANES)]

    def show(kind: int | Array, row: int | Array, value: Array) -> None:
        board[kind, pl.ds((row + 2) * LANES, LANES)] = value

    for kind in range(4):
        for row in range(-2, deep + 2):
            show(kind, top + row, zero)
    for a in range(rank):
        for half in range(2):
            ends[half, a, group, :] = zero
    for at in range(0, factors.shape[0], GROUPS * LANES):
        start = jnp.minimum(at + group * LANES, factors.shape[0] - LANES)
        factors[pl.ds(start, LANES)] = first[pl.ds(start, LANES)]
    synchronise()
    shape = [[tiles[tile, a, top + i, :] for a in range(rank)] for i in range(deep)]
    mirror = [[right[tile, a, top + i, :] for a in range(rank)] for i in range(deep)]
    twice, share, planes = numbers[0], numbers[1], count[0]

    def around(kind: int | Array, rows: list[Array]) -> list[Array]:
        lined = [cells(kind, top - 1), *rows, cells(kind, top + deep)]
        return [(lined[i] + lined[i + 2]) + (cells(kind, top + i, -1) + cells(kind, top + i, 1)) for i in range(deep)]

    def plane(x: Array, carry: Any) -> Any:
        write = x % 2
        b, s, s_before, code, w, w_before, t, u, ahead, total, loss = carry
        near_s, near_t = around(1 - write, s), around(3 - write, t)
        new_code = [c.astype(jnp.float32) for c in ahead]
        ahead = [spins[tile, x + 1, top + i, :] for i in range(deep)]
        mine = (x >= 4) & (x - 4 < planes)
        head = [factors[x * rank + a] for a in range(rank)]
        tail = [jnp.where(mine, factors[jnp.maximum(x - 2, 0) * rank + a], 0.0) for a in range(rank)]
        new_b, new_w, new_s, new_t, new_u, ups, rests = [], [], [], [], [], [], []
        ends_here = [zero] * rank
        total = [list(row) for row in total]
        for i in range(deep):
            new_b.append(reduce(add, map(mul, shape[i], head)))
            new_w.append(twice * _clipped(new_code[i]))
            new_s.append(new_b[i] * new_w[i])
            slope = (near_s[i] + (s_before[i] + new_s[i])) + 1.0
            v, up, rest = _likelihood(code[i], b[i] * slope, share, whole)
            ups.append(up)
            rests.append(rest)
            new_t.append(v * b[i])
            new_u.append(v * slope + w[i] * t[i])
            g = u[i] + w_before[i] * (near_t[i] + new_t[i])
            for a in range(rank):
                total[i][a] = total[i][a] + g * tail[a]
                ends_here[a] = g * mirror[i][a] if i == 0 else ends_here[a] + g * mirror[i][a]
            show(write, top + i, new_s[i])
            show(2 + write, top + i, new_t[i])
        for a in range(rank):
            ends[write, a, group, :] = ends_here[a]
        counts = jnp.where((x >= 3) & (x - 3 < planes), 1.0, 0.0)
        up = reduce(mul, ups)  # its square stays far below float32's largest number
        loss = loss + counts * (jnp.log(up * up) + reduce(add, rests))
        done = jnp.maximum(x - 5, 0)  # the ends of the plane before, which all groups have shown by now
        for k in range(-(-rank // GROUPS)):
            turn = k * GROUPS + group

            @pl.when(turn < rank)
            def _(turn: Array = turn) -> None:
                parts = [ends[1 - write, turn, other, :] for other in range(GROUPS)]
                firsts[tile, done, turn, :] = (parts[0] + parts[1]) + (parts[2] + parts[3])

        synchronise()
        return new_b, new_s, s, new_code, new_w, w, new_t, new_u, ahead, total, loss

    rows = [zero] * deep
    ahead = [spins[tile, 0, top + i, :] for i in range(deep)]
    carry = (rows,) * 8 + (ahead, [[zero] * rank for _ in range(deep)], zero)
    *_, total, loss = lax.fori_loop(0, tiling.steps, plane, carry)
    for i in range(deep):
        for a in range(rank):
            sums[tile, a, top + i, :] = total[i][a]
    losses[tile, group, :] = loss


def _clipped(code: Array) -> Array:
    return jnp.minimum(jnp.maximum(code, -1.0), 1.0)


def _likelihood(code: Array, eta: Array, share: Array, whole: bool) -> tuple[Array, Array, Array]:
    """V, a factor whose square's logarithm is part of the loss, and the rest; see `ising_rows.likelihood_row`.

    An entry without a term is one observed at log-odds 100: no V, no loss. A reciprocal is exp(-log), two fast
    instructions, and the logarithm is the loss's own.
    """
    up_spin = code != -1.0
    toward = jnp.where(up_spin, eta, -eta) if whole else eta
    toward = jnp.where(jnp.abs(code) == 1.0, toward, 100.0)
    t = jnp.exp(-jnp.abs(toward))
    up = 1.0 + t
    missing = jnp.where(toward >= 0.0, t, 1.0)
    below = jnp.maximum(-toward, 0.0)
    if whole:
        log_up = jnp.log(up)
        tail = missing * jnp.exp(-log_up)
        return jnp.where(up_spin, -tail, tail), up, below - log_up
    den = jnp.where(up_spin, 1.0, (1.0 - share) * (up - missing) + missing)
    log_both = jnp.log(up * den)
    v = jnp.where(up_spin, -missing, share * t) * jnp.exp(-log_both)
    return v, up, jnp.where(up_spin, below, 0.0) - log_both
