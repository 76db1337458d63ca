"""The compiled Gibbs sweep over rows: neighbours summed, one random number an entry, spins drawn.

A random number is a hash of (seed, sweep, row, column), so the order of work cannot change it.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


@njit(cache=True, nogil=True, inline="always")
def _mix64(x: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def _row_key(key: np.uint64, number: int, row: int) -> np.uint64:  # pragma: no cover - compiled
    golden = np.uint64(0x9E3779B97F4A7C15)
    x = _mix64(key + golden)
    x = _mix64(x + golden * np.uint64(number + 1))
    return _mix64(x + golden * np.uint64(row + 1))


@intrinsic
def _random32(context, column, low, high):  # type: ignore[no-untyped-def]
    """Hash (column, low, high) to 32 random bits: two rounds of a 32-bit mixer, a key word before each.

    Written for the compiler itself: Numba would compute in 64 bits, in half as many lanes.
    """
    word = types.uint32

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        def constant(number: int):  # type: ignore[no-untyped-def]
            return context.get_constant(word, number)

        def fold(x, shift: int):  # type: ignore[no-untyped-def]
            return builder.xor(x, builder.lshr(x, constant(shift)))

        x, low, high = arguments
        x = builder.add(builder.mul(x, constant(0x9E3779B9)), low)
        x = builder.mul(fold(x, 16), constant(0x7FEB352D))
        x = builder.mul(fold(x, 15), constant(0x846CA68B))
        x = builder.add(fold(x, 16), high)
        x = builder.mul(fold(x, 17), constant(0xED5AD4BB))
        x = builder.mul(fold(x, 11), constant(0xAC4C1B51))
        return fold(x, 15)

    return word(word, word, word), build


@njit(cache=True, nogil=True, inline="always")
def _exp_negative(x: np.float32) -> np.float32:  # pragma: no cover - compiled
    """exp(x) for x <= 0, relative error below 1e-6; a polynomial because wheels bring no vector exp."""
    x = max(x, np.float32(-80.0))
    scaled = x * np.float32(1.44269504)
    whole = np.int32(scaled - np.float32(0.5))
    rest = (scaled - np.float32(whole)) * np.float32(0.69314718)
    value = np.float32(0.0013930436)
    value = value * rest + np.float32(0.008333333)
    value = value * rest + np.float32(0.041666666)
    value = value * rest + np.float32(0.16666667)
    value = value * rest + np.float32(0.5)
    value = value * rest + np.float32(1.0)
    value = value * rest + np.float32(1.0)
    power = np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)
    return value * power


@njit(cache=True, nogil=True, inline="always")
def _draw(eta: np.float32, low: np.uint32, high: np.uint32, column: int) -> np.int8:  # pragma: no cover
    # the unlikely spin has probability t/(1+t), t = exp(-|eta|): no overflow, small u resolved to 2^-32
    t = _exp_negative(-abs(eta))
    bits = _random32(np.uint32(column), low, high)  # type: ignore[call-arg,var-annotated]
    u = (np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-32)
    unlikely = u * (np.float32(1.0) + t) < t
    return np.int8(1) if (eta >= np.float32(0.0)) != unlikely else np.int8(-1)


@njit(cache=True, nogil=True)
def sweep_rows(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    spins, carried, weight, strength, field, pairs, pair_of, at_neighbour,
    row_of, steps, pad, wraps, colours, row_phase, column_phase,
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
                        values = carried[other, begin : begin + length]
                        if at_neighbour[o]:
                            strengths = pairs[pair_of[o], other, begin : begin + length]
                        else:
                            strengths = pairs[pair_of[o], row, pad : pad + length]
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
                word = _row_key(key, number, row)
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
