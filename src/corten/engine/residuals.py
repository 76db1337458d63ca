"""Passes over data instead of spins: squared error of a low-rank tensor on the observed entries, and its contractions.

Dense tensors are read slab by slab; where fewer than a tenth of the entries are observed, only those are read. Without
cores to subtract the same pass contracts the data themselves, which `spectral_start` uses.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit

from corten.engine.arithmetic import FAST, INNER
from corten.engine.layout import flat_shape
from corten.engine.memory import PART_BYTES, is_mapped, let_go, read_only
from corten.engine.passes import FrameLike, pack, unpack
from corten.engine.threads import in_order, threads_for
from corten.engine.train_rows import ROWS_PER_SUM, contract_row, evaluate_row, fold_last, left_vector, spread_row

F32 = np.float32
PARTS_PER_PASS = 16  # parts of a pass, for any number of threads
NO_VALUES = read_only(np.zeros((0, 0, 0), F32))
MAX_SPARSE_SHARE = 0.1  # of observed entries, below which the coordinate form is faster


@njit(**INNER, fastmath=FAST)
def residual_row(values, mask, estimate, out):
    """out = values - estimate where observed, else 0; returns the sum of squares."""
    total = 0.0
    for j in range(out.shape[0]):
        r = F32(values[j]) - estimate[j]
        out[j] = r if mask[j] != 0 else F32(0.0)
        total += np.float64(out[j] * out[j])
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def residual_box(
    values, mask, start, subtract,
    first, middle, last, right_middle, right_last, out_first, out_middle, out_last,
):  # fmt: skip
    """Half the squared residual of planes start.. and its contractions with the cores; without values, of the mask."""
    n = mask.shape[2]
    of_mask = values.shape[0] == 0
    left = np.zeros(last.shape[0], F32)
    dots = np.zeros(last.shape[0], F32)
    estimate = np.zeros(n, F32)
    residual = np.zeros(n, F32)
    last_part = np.zeros(last.shape, F32)
    total = 0.0
    rows_done = 0
    for p in range(mask.shape[0]):
        for row in range(mask.shape[1]):
            left_vector(first, middle, start + p, row, left)
            if subtract:
                evaluate_row(left, last, estimate)
            if of_mask:
                total += residual_row(mask[p, row], mask[p, row], estimate, residual)
            else:
                total += residual_row(values[p, row], mask[p, row], estimate, residual)
            contract_row(residual, left, right_last, last_part, dots)
            spread_row(dots, first, right_middle, start + p, row, out_first, out_middle)
            rows_done += 1
            if rows_done % (4 * ROWS_PER_SUM) == 0:
                fold_last(last_part, out_last)
    fold_last(last_part, out_last)
    return 0.5 * total


@njit(cache=True, nogil=True, error_model="numpy")
def residual_entries(
    flat, values, rows, n, subtract,
    first, middle, last, right_middle, right_last, out_first, out_middle, out_last,
):  # fmt: skip
    """The same over a sorted list of observed entries; cores of the last mode are transposed to (n, bond)."""
    bond = last.shape[1]
    left = np.zeros(bond, F32)
    dots = np.zeros(bond, F32)
    total = 0.0
    here = -1
    plane = row = np.int64(0)  # a constant would compile `spread_row` once more
    for i in range(flat.shape[0]):
        line, j = flat[i] // n, flat[i] % n
        if line != here:
            if here >= 0:
                spread_row(dots, first, right_middle, plane, row, out_first, out_middle)
            here, plane, row = line, line // rows, line % rows
            left_vector(first, middle, plane, row, left)
            dots[:] = F32(0.0)
        r = values[i]
        if subtract:
            for b in range(bond):
                r -= left[b] * last[j, b]
        total += np.float64(r * r)
        for b in range(bond):
            out_last[j, b] += np.float64(left[b] * r)
            dots[b] += r * right_last[j, b]
    if here >= 0:
        spread_row(dots, first, right_middle, plane, row, out_first, out_middle)
    return 0.5 * total


class AnyResidualPass:
    """What passes over data share on all engines."""

    def loss_and_contractions(self, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        """Half the squared error on the observed entries and the contractions of its gradient. One pass."""
        loss, contractions = self.run(frame, subtract=True)
        return loss, [-c for c in contractions]

    def contractions_of_data(self, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        """Half the data's sum of squares and their contractions with a frame, missing entries as zero. One pass."""
        return self.run(frame, subtract=False)

    def run(self, frame: FrameLike, subtract: bool) -> tuple[float, list[np.ndarray]]:
        """Half the sum of squares of the data, or of the data less the tensor, and their contractions. One pass."""
        raise NotImplementedError


@dataclass
class ResidualPass(AnyResidualPass):
    """Passes over `values` (float32 or int8, the tensor's shape) where `mask` (bool or int8) is not zero."""

    values: np.ndarray
    mask: np.ndarray
    threads: int | None = None
    sparse: bool | None = None

    def __post_init__(self) -> None:
        self.shape = self.values.shape
        self.threads = self.threads or threads_for(self.values.size)
        self._flat_shape = flat_shape(self.shape)
        self._mask = self.mask.view(np.int8) if self.mask.dtype == bool else self.mask
        self._in_file = is_mapped(self.values) or is_mapped(self._mask)
        if self.sparse is None and self._in_file:
            self.sparse = False  # lists of entries could be larger than memory
        if self.sparse is None:
            self.sparse = bool(np.count_nonzero(self.mask) < MAX_SPARSE_SHARE * self.mask.size)
        planes = self.shape[0]
        edges = np.append(np.arange(0, planes, -(-planes // PARTS_PER_PASS)), planes)
        if self.sparse:
            self._where = np.flatnonzero(self.mask)
            self._found = np.ascontiguousarray(self.values.reshape(-1)[self._where], np.float32)
            edges = np.linspace(0, len(self._where), PARTS_PER_PASS + 1).astype(np.intp)
        self._parts = list(pairwise(edges.tolist()))
        self.passes = 0

    def run(self, frame: FrameLike, subtract: bool) -> tuple[float, list[np.ndarray]]:
        self.passes += 1
        cores, right = list(pack(frame.left)), list(pack(frame.right))
        if self.sparse:
            cores[2], right[2] = np.ascontiguousarray(cores[2].T), np.ascontiguousarray(right[2].T)
        work = self._over_entries if self.sparse else self._over_planes

        def one(part: tuple[int, int]) -> tuple[float, list[np.ndarray]]:
            found = [np.zeros(core.shape) for core in cores]
            return work(*part, subtract, *cores, *right[1:], *found), found

        total, sums = 0.0, [np.zeros(core.shape) for core in cores]
        for loss, found in in_order(one, self._parts, self.threads):
            total += loss
            for have, part in zip(sums, found):
                have += part
        if self.sparse:
            sums[2] = sums[2].T
        return total, unpack(sums, frame)

    def _over_planes(self, start: int, stop: int, subtract: bool, *arrays: np.ndarray) -> float:
        """The pass over planes start:stop. A file is read in steps, and pages are released once they were read."""
        values, mask = self.values.reshape(self._flat_shape), self._mask.reshape(self._flat_shape)
        step = max(1, PART_BYTES // (4 * values[0].size)) if self._in_file else stop - start
        loss = 0.0
        for a in range(start, stop, step):
            here, there = values[a : min(a + step, stop)], mask[a : min(a + step, stop)]
            # spins are their own mask: not a second array of another type, for which the kernel would be compiled again
            data = NO_VALUES if self.values is self.mask else read_only(np.asarray(here, F32))
            loss += residual_box(data, read_only(there), a, subtract, *arrays)
            let_go(here)
            let_go(there)
        return loss

    def _over_entries(self, start: int, stop: int, subtract: bool, *arrays: np.ndarray) -> float:
        """The pass over some of the observed entries."""
        _, rows, n = self._flat_shape
        where, found = self._where[start:stop], self._found[start:stop]
        return float(residual_entries(where, found, rows, n, subtract, *arrays))
