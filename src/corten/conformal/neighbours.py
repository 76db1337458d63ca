"""Changes of calibration weights when a missing entry is set to observed, for a block of planes.

The rule is that of `ExactIsingWeights`: the weight of each calibration neighbour k is multiplied by
exp(-4 g(B_k, B_t)). Only a block of planes with its halo is needed, not tables of the whole tensor.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from corten.conformal.sketch import NO_CELL, Changes
from corten.data.arrays import Entries
from corten.engine.arithmetic import pair_value
from corten.engine.layout import Layout, flat_shape
from corten.engine.passes import Model


@dataclass(frozen=True)
class NeighbourChanges:
    """Neighbours of the entries of a tensor under a model, for blocks of planes with a halo of `radius` planes."""

    model: Model
    layout: Layout

    @staticmethod
    def of(shape: tuple[int, ...], model: Model) -> NeighbourChanges:
        """The neighbours for a shape and a model."""
        return NeighbourChanges(model, Layout.of(shape, model.offsets, model.periodic, slab=shape[0], tile=shape[1]))

    @property
    def radius(self) -> int:
        """The number of halo planes on either side."""
        return self.layout.radius

    def halo(self, start: int, stop: int) -> Entries:
        """The planes start - radius .. stop + radius, wrapped on a periodic axis, -1 where there is none."""
        return self.layout.between(start, stop)[0].plane_index

    def changes(
        self,
        tests: Entries,
        planes: Entries,
        *,
        cells: NDArray[np.int32],
        log_odds: NDArray[np.float32],
        parameter: NDArray[np.float32],
        shift: float,
    ) -> Changes:
        """Changes by test entries, given by flat indices into the block; the arrays cover the `planes` of `halo`.

        `shift` is that of the sketch that the changes are applied to.
        """
        box = self.layout.boxes[0]
        flat = (len(planes), *flat_shape(self.layout.shape)[1:])
        width = len(self.layout.offsets)
        found = np.full((tests.size, width), NO_CELL, np.int32)
        weights = np.zeros((tests.size, width))
        terms = np.ascontiguousarray(self.model.terms, np.float64).reshape(-1, 3)
        _gather(
            tests, planes, self.radius, cells.reshape(flat), log_odds.reshape(flat), parameter.reshape(flat),
            self.layout.offsets, box.table, self.layout.periodic_last, self.model.coupling_kind, terms, shift,
            found, weights,
        )  # fmt: skip
        return Changes(found, weights)


@njit(nogil=True, cache=True, error_model="numpy")
def _gather(tests, planes, radius, cells, eta, b, offsets, table, periodic, kind, terms, shift, found, weights):
    """Write the cells of the calibration neighbours and the changes of their weights to `found` and `weights`."""
    rows, n = cells.shape[1], cells.shape[2]
    for i in range(tests.size):
        at, j = tests[i] // n, tests[i] % n
        p, row = at // rows + radius, at % rows
        own = b[p, row, j]
        for o in range(offsets.shape[0]):
            p2, row2, j2 = p + offsets[o, 0], table[o, row], j + offsets[o, 1]
            if periodic:
                j2 %= n
            if row2 >= rows or j2 < 0 or j2 >= n or planes[p2] < 0 or cells[p2, row2, j2] == NO_CELL:
                continue
            g = pair_value(kind, terms, b[p2, row2, j2], own)
            found[i, o] = cells[p2, row2, j2]
            weights[i, o] = np.exp(-np.float64(eta[p2, row2, j2]) - shift) * np.expm1(-4.0 * np.float64(g))
