"""Block-Gibbs sweeps over a spin tensor: one compiled pass per colour, the same bits for any number of threads.

The model is the Ising model of the paper: spin W_i given the rest has log-odds
eta_i = 2 sum_j g(B_i, B_j) W_j + 2 h(B_i). Entries of one colour are no neighbours, so they are drawn together.
Each random number is a hash of (seed, sweep, row, column), so slabs and threads cannot change the result. Entries with
spin 0 are outside the domain: they are never drawn and have no influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from corten.engine.arithmetic import PRODUCT, ZERO, capped, exp_of_minus
from corten.engine.layout import neighbours_of
from corten.engine.threads import in_order

if TYPE_CHECKING:
    from corten.propensity.coupling import Coupling

MIN_ENTRIES_FOR_THREADS = 60_000  # with fewer, threads cost more than they save
TASK_ENTRIES = 131_072  # of one colour and sweep that a thread takes at once
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # of the hash from which random numbers are made


@dataclass(frozen=True, eq=False)
class GibbsPlan:
    """What does not change between sweeps. Rows run along the last axis; the other axes are flattened.

    Rows that neighbours read are padded by `pad` columns at both ends (zeros, or copies where the axis
    wraps), and a further row of zeros is the missing neighbour: no loop tests for the ends of the tensor.
    With a product coupling eta_i = strength weight_i sum_j weight_j W_j + field_i, weight B and strength 2c.
    Otherwise both are 1, and `pairs` holds 2 g for every offset.
    """

    shape: tuple[int, ...]
    weight: NDArray[np.float32]
    strength: float
    field: NDArray[np.float32]
    pairs: NDArray[np.float32]
    row_of: NDArray[np.int64]
    steps: NDArray[np.int64]
    pad: int
    wraps: bool
    colours: int
    row_phase: NDArray[np.int32]
    column_phase: NDArray[np.int32]


def prepare(
    parameter: np.ndarray,
    field: np.ndarray,
    *,
    coupling: Coupling,
    offsets: np.ndarray,
    periodic: Sequence[bool],
    colours: int,
    phases: Sequence[np.ndarray],
) -> GibbsPlan:
    """Work out once what every sweep needs: pair strengths, neighbouring rows, colours.

    `field` is 2 h(B); `coupling` has `value(x, y)` and `code()`; `colours` and `phases` give entry i the colour
    sum_k phases[k][i_k] mod colours.
    """
    shape = parameter.shape
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
    else:
        weight, strength = np.ones_like(table), 1.0
        padded, length = _padded(table, pad, wraps), shape[-1]
        # Where there is no neighbour the strength is not used: the spin there is 0.
        near = (padded[row_of[o], pad + step : pad + step + length] for o, step in enumerate(offsets[:, -1].tolist()))
        pairs = np.array([2.0 * coupling.value(table, other) for other in near], np.float32).reshape(-1, *table.shape)
    own = np.ascontiguousarray(field, dtype=np.float32).reshape(table.shape)
    if np.array_equal(own, table):
        own = table  # the logit link: one array less to stream through memory
    return GibbsPlan(
        shape=shape,
        weight=weight,
        strength=strength,
        field=own,
        pairs=pairs,
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
    spins: np.ndarray,
    sweeps: int,
    seed: int,
    first: int = 0,
    threads: int = 1,
) -> np.ndarray:
    """Draw `sweeps` sweeps, numbered from `first`; the given spins stay as they are."""
    if spins.shape != plan.shape:
        raise ValueError(f"spins has shape {spins.shape}; the plan is for {plan.shape}.")
    state = np.array(spins, dtype=np.int8, order="C")
    current = state.reshape(plan.weight.shape)
    carried = _padded(plan.weight * current, plan.pad, plan.wraps)
    lines = len(current)
    everything = np.arange(plan.colours)

    def run(numbers: range, colours: np.ndarray, rows: range) -> None:
        sweep_rows(
            current, carried, plan.weight, np.float32(plan.strength), plan.field,
            plan.pairs, plan.row_of, plan.steps, plan.pad, plan.wraps, plan.colours, plan.row_phase, plan.column_phase,
            np.uint64(seed % 2**64), numbers.start, numbers.stop, colours, rows.start, rows.stop,
        )  # fmt: skip

    if threads == 1 or current.size < MIN_ENTRIES_FOR_THREADS:
        run(range(first, first + sweeps), everything, range(lines))
        return state
    rows = max(1, TASK_ENTRIES // plan.shape[-1])
    parts = [range(start, min(lines, start + rows)) for start in range(0, lines, rows)]
    for number in range(first, first + sweeps):
        for colour in everything:
            once, one = range(number, number + 1), everything[colour : colour + 1]
            list(in_order(partial(run, once, one), parts, threads))
    return state


def _padded(table: np.ndarray, pad: int, wraps: bool) -> np.ndarray:
    """Pad rows at both ends, with copies from the other end where the axis wraps, and add a row of zeros."""
    lines, length = table.shape
    padded = np.zeros((lines + 1, length + 2 * pad), dtype=np.float32)
    padded[:lines, pad : pad + length] = table
    if wraps and pad:
        padded[:lines, :pad] = table[:, length - pad :]
        padded[:lines, pad + length :] = table[:, :pad]
    return padded


@njit(cache=True, nogil=True, inline="always")
def _mix64(x: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def sweep_key(key: np.uint64, number: int) -> np.uint64:  # pragma: no cover - compiled
    """The key of a sweep, to which its rows are mixed."""
    return _mix64(_mix64(key + GOLDEN) + GOLDEN * np.uint64(number + 1))


@njit(cache=True, nogil=True, inline="always")
def _random32(column, low, high):  # type: ignore[no-untyped-def]
    """Hash (column, low, high) to 32 random bits: two rounds of a 32-bit mixer, a key word before each."""
    x = np.uint32(np.uint32(column * np.uint32(0x9E3779B9)) + low)
    x = np.uint32((x ^ np.uint32(x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ np.uint32(x >> np.uint32(15))) * np.uint32(0x846CA68B))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) + high)
    x = np.uint32((x ^ np.uint32(x >> np.uint32(17))) * np.uint32(0xED5AD4BB))
    x = np.uint32((x ^ np.uint32(x >> np.uint32(11))) * np.uint32(0xAC4C1B51))
    return np.uint32(x ^ np.uint32(x >> np.uint32(15)))


@njit(cache=True, nogil=True, inline="always")
def _draw(eta: np.float32, low: np.uint32, high: np.uint32, column: int) -> np.int8:  # pragma: no cover
    # the unlikely spin has probability t/(1+t), t = exp(-|eta|): no overflow, small u resolved to 2^-32
    t = exp_of_minus(capped(abs(eta)))
    bits = _random32(np.uint32(column), low, high)  # type: ignore[call-arg,var-annotated]
    u = (np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-32)
    unlikely = u * (np.float32(1.0) + t) < t
    return np.int8(1) if (eta >= np.float32(0.0)) != unlikely else np.int8(-1)


@njit(cache=True, nogil=True)
def sweep_rows(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    spins, carried, weight, strength, field, pairs, row_of, steps, pad, wraps, colours, row_phase, column_phase,
    key, first, last, todo, start, stop,
):  # fmt: skip
    length = spins.shape[1]
    offsets = len(steps)
    by_pairs = len(pairs) > 0
    zeros = carried[len(carried) - 1, :length]
    present = np.zeros(colours, dtype=np.bool_)
    present[column_phase] = True
    work = np.zeros(length, dtype=np.float32)
    for number in range(first, last):
        for colour in todo:
            for row in range(start, stop):
                target = (colour - row_phase[row]) % colours
                if not present[target]:
                    continue
                work[:] = np.float32(0.0)
                if by_pairs:
                    for o in range(offsets):
                        begin, other = pad + steps[o], row_of[o, row]
                        values, strengths = carried[other, begin : begin + length], pairs[o, row]
                        for column in range(length):
                            work[column] += strengths[column] * values[column]
                else:
                    for o in range(0, offsets, 2):
                        begin = pad + steps[o]
                        one, two = carried[row_of[o, row], begin : begin + length], zeros
                        if o + 1 < offsets:
                            begin = pad + steps[o + 1]
                            two = carried[row_of[o + 1, row], begin : begin + length]
                        for column in range(length):
                            work[column] += one[column] + two[column]
                word = _mix64(sweep_key(key, number) + GOLDEN * np.uint64(row + 1))
                low, high = np.uint32(word & np.uint64(0xFFFFFFFF)), np.uint32(word >> np.uint64(32))
                own, moved = spins[row], carried[row, pad : pad + length]
                own_field, own_weight = field[row], weight[row]
                goal = np.int32(target)
                for column in range(length):
                    eta = strength * own_weight[column] * work[column] + own_field[column]
                    drawn = _draw(eta, low, high, column)
                    keep = (column_phase[column] != goal) | (own[column] == 0)
                    spin = own[column] if keep else drawn
                    own[column] = spin
                    moved[column] = own_weight[column] * np.float32(spin)
                if wraps:
                    for column in range(pad):
                        carried[row, column] = moved[length - pad + column]
                        carried[row, pad + length + column] = moved[column]
