"""Block-Gibbs sweeps over a spin tensor: one fused pass per colour, the same bits for any number of threads.

The model is the Ising model of the paper: spin W_i given the rest has log-odds
eta_i = 2 sum_j g(B_i, B_j) W_j + 2 h(B_i). Entries of one colour are no neighbours, so they are drawn together.
Each random number is a hash of (seed, sweep, row, column), never of the order of work, so slabs and threads
cannot change the result. Entries with spin 0 lie outside the domain: they are never drawn and have no influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corten.engine.arithmetic import PRODUCT, ZERO
from corten.engine.gibbs_rows import sweep_rows
from corten.engine.layout import neighbours_of

_MIN_ENTRIES_FOR_THREADS = 60_000  # with fewer, threads cost more than they save
_TASK_ENTRIES = 131_072


@dataclass(frozen=True, eq=False)
class GibbsPlan:
    """What does not change between sweeps. Rows run along the last axis; the other axes are flattened.

    Rows that neighbours read are padded by `pad` columns at both ends (zeros, or copies where the axis
    wraps), and one more row of zeros stands for a missing neighbour: no loop needs to test where the tensor ends.
    With a product coupling eta_i = strength weight_i sum_j weight_j W_j + field_i, weight B and strength 2c.
    Otherwise both are 1, and `pairs` holds 2 g of every pair once: offset o finds it in `pairs[pair_of[o]]`,
    at the neighbour where `at_neighbour[o]`.
    """

    shape: tuple[int, ...]
    weight: NDArray[np.float32]
    strength: float
    field: NDArray[np.float32]
    pairs: NDArray[np.float32]
    pair_of: NDArray[np.int64]
    at_neighbour: NDArray[np.bool_]
    row_of: NDArray[np.int64]
    steps: NDArray[np.int64]
    pad: int
    wraps: bool
    colours: int
    row_phase: NDArray[np.int32]
    column_phase: NDArray[np.int32]


def prepare(
    parameter: NDArray[np.floating],
    field: NDArray[np.floating],
    coupling: Any,
    offsets: NDArray[np.int64],
    periodic: Sequence[bool],
    colours: int,
    phases: Sequence[NDArray[np.int64]],
) -> GibbsPlan:
    """Work out once what every sweep needs: pair strengths, neighbouring rows, colours.

    `field` is 2 h(B); `coupling` has `value(x, y)` and `code()`; `colours` and `phases` give entry i the colour
    sum_k phases[k][i_k] mod colours.
    """
    shape = parameter.shape
    if len(shape) < 2:
        raise ValueError(f"parameter has {len(shape)} axes; a tensor has at least two.")
    code = coupling.code()
    if code.kind == ZERO or len(offsets) == 0:
        offsets, colours = np.zeros((0, len(shape)), dtype=np.int64), 1
    lines = int(np.prod(shape[:-1]))
    table = np.ascontiguousarray(parameter, dtype=np.float32).reshape(lines, shape[-1])
    reached = neighbours_of(np.arange(lines), offsets[:, :-1], shape[:-1], periodic).T
    row_of = np.ascontiguousarray(np.where(reached < 0, lines, reached), np.int64)
    row_phase = np.zeros((), dtype=np.int64)
    for phase in phases[:-1]:
        row_phase = np.add.outer(row_phase, phase)
    pad = int(np.abs(offsets[:, -1]).max()) if len(offsets) else 0
    wraps = bool(periodic[-1])
    if code.kind == PRODUCT:
        weight, strength = table, 2.0 * float(code.terms[0, 0])
        pairs = np.zeros((0, 0, 0), dtype=np.float32)
        pair_of, at_neighbour = np.zeros(len(offsets), dtype=np.int64), np.zeros(len(offsets), dtype=np.bool_)
    else:
        weight, strength = np.ones_like(table), 1.0
        pairs, pair_of, at_neighbour = _pair_strengths(table, coupling, offsets, row_of, pad, wraps)
    own = np.ascontiguousarray(field, dtype=np.float32).reshape(table.shape)
    if np.array_equal(own, table):
        own = table  # the logit link: one array less to stream through memory
    return GibbsPlan(
        shape=shape,
        weight=weight,
        strength=strength,
        field=own,
        pairs=pairs,
        pair_of=pair_of,
        at_neighbour=at_neighbour,
        row_of=row_of,
        steps=np.ascontiguousarray(offsets[:, -1], dtype=np.int64),
        pad=pad,
        wraps=wraps,
        colours=int(colours),
        row_phase=np.ascontiguousarray(row_phase % colours, dtype=np.int32).ravel(),
        column_phase=np.ascontiguousarray(np.asarray(phases[-1]) % colours, dtype=np.int32),
    )


def sweep(
    plan: GibbsPlan,
    spins: NDArray[np.int8],
    sweeps: int,
    seed: int,
    first: int = 0,
    threads: int = 1,
    slab: int | None = None,
) -> NDArray[np.int8]:
    """Draw `sweeps` sweeps, numbered from `first`, and give the new spins; the given ones stay as they are.

    `slab` is how many planes of the first axis one task takes. Neither it nor `threads` changes a bit.
    """
    if spins.shape != plan.shape:
        raise ValueError(f"spins has shape {spins.shape}; the plan is for {plan.shape}.")
    state = np.array(spins, dtype=np.int8, order="C")
    current = state.reshape(plan.weight.shape)
    carried = _padded(plan.weight * current, plan.pad, plan.wraps)
    lines = len(current)
    everything = np.arange(plan.colours)
    if slab is None and (threads == 1 or current.size < _MIN_ENTRIES_FOR_THREADS):
        _run(plan, current, carried, seed, range(first, first + sweeps), everything, range(lines))
        return state
    planes = slab or max(1, _TASK_ENTRIES * plan.shape[0] // current.size)
    rows = planes * (lines // plan.shape[0])
    parts = [range(start, min(lines, start + rows)) for start in range(0, lines, rows)]
    with ThreadPoolExecutor(threads) as pool:
        for number in range(first, first + sweeps):
            for colour in everything:
                once, one = range(number, number + 1), everything[colour : colour + 1]
                tasks = [pool.submit(_run, plan, current, carried, seed, once, one, part) for part in parts]
                for task in tasks:
                    task.result()
    return state


def _run(
    plan: GibbsPlan,
    spins: NDArray[np.int8],
    carried: NDArray[np.float32],
    seed: int,
    numbers: range,
    colours: NDArray[np.int64],
    rows: range,
) -> None:
    """Run the kernel over some rows, sweeps and colours."""
    sweep_rows(
        spins, carried, plan.weight, np.float32(plan.strength), plan.field,
        plan.pairs, plan.pair_of, plan.at_neighbour,
        plan.row_of, plan.steps, plan.pad, plan.wraps, plan.colours, plan.row_phase, plan.column_phase,
        np.uint64(seed % 2**64), numbers.start, numbers.stop, colours, rows.start, rows.stop,
    )  # fmt: skip


def _padded(table: NDArray[np.float32], pad: int, wraps: bool) -> NDArray[np.float32]:
    """Pad rows at both ends, with copies from the other end where the axis wraps, and add a row of zeros."""
    lines, length = table.shape
    padded = np.zeros((lines + 1, length + 2 * pad), dtype=np.float32)
    padded[:lines, pad : pad + length] = table
    if wraps and pad:
        padded[:lines, :pad] = table[:, length - pad :]
        padded[:lines, pad + length :] = table[:, :pad]
    return padded


def _pair_strengths(
    table: NDArray[np.float32],
    coupling: Any,
    offsets: NDArray[np.int64],
    row_of: NDArray[np.int64],
    pad: int,
    wraps: bool,
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Compute 2 g(B_i, B_j) once for every pair: of two opposite offsets one stores it, one looks it up."""
    stored: dict[tuple[int, ...], int] = {}
    pair_of = np.zeros(len(offsets), dtype=np.int64)
    at_neighbour = np.zeros(len(offsets), dtype=np.bool_)
    strengths: list[NDArray[np.float32]] = []
    padded = _padded(table, pad, wraps)
    for number, offset in enumerate(offsets.tolist()):
        opposite = stored.get(tuple(-step for step in offset))
        if opposite is not None:
            pair_of[number], at_neighbour[number] = opposite, True
            continue
        start = pad + offset[-1]
        # Where there is no neighbour the strength is not used: the spin there is 0.
        other = padded[row_of[number], start : start + table.shape[1]]
        strength = 2.0 * np.asarray(coupling.value(table, other), dtype=np.float32)
        stored[tuple(offset)] = pair_of[number] = len(strengths)
        strengths.append(_padded(strength, pad, wraps))
    pairs = np.stack(strengths) if strengths else np.zeros((0, 0, 0), dtype=np.float32)
    return pairs, pair_of, at_neighbour
