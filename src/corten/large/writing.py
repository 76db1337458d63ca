"""The last stage of an out-of-core completion: estimate, intervals and flags of every block go to a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from corten.conformal.neighbours import NeighbourChanges
from corten.conformal.quantile import Tail, rounded_up
from corten.conformal.scores import Score
from corten.conformal.sketch import ScoreSketch, cells_of
from corten.data.flags import BEYOND, FILLED, FORECAST, INFINITE, NEVER, OBSERVED, OUTSIDE
from corten.engine.memory import let_go
from corten.engine.passes import MaskPass
from corten.io.chunked import ChunkedStore
from corten.io.names import companion
from corten.large.gaps import FilledTile, TiledField, TiledModel
from corten.large.stages import Block, Estimate, Scratch, log_odds
from corten.large.tiles import Box, Tile
from corten.lowrank import TensorTrain
from corten.propensity.fitted import FittedPropensity

MAX_TESTS = 1 << 18  # missing entries whose neighbours are gathered at a time


@dataclass
class Widths:
    """Widths of the finite intervals, their distribution in a sketch, and how many are infinite."""

    infinite: int = 0
    forecast: int = 0
    beyond: int = 0
    total: float = 0.0
    sketch: ScoreSketch = field(default_factory=ScoreSketch)

    @property
    def mean(self) -> float | None:
        return self.total / self.sketch.size if self.sketch.size else None

    @property
    def median(self) -> float | None:
        return float(self.sketch.cutoffs([-np.inf], 0.5)[0, 0]) if self.sketch.size else None


def sum_of(parts: Iterable[Widths]) -> Widths:
    """The widths of all parts together."""
    found = Widths()
    for one in parts:
        found.infinite, found.forecast = found.infinite + one.infinite, found.forecast + one.forecast
        found.beyond, found.total = found.beyond + one.beyond, found.total + one.total
        found.sketch = found.sketch.merge(one.sketch)
    return found


@dataclass(frozen=True)
class Output:
    """The arrays of a result: their names, limits of the values, and for each axis which positions are forecasts.

    never: True at places that are never observed, of length 1 along the times.
    """

    main: str
    names: Sequence[tuple[str, str]]
    limits: tuple[float, float] | None
    late: list[np.ndarray]
    never: np.ndarray | None = None

    def arrays(self, box: Box, filled: FilledTile, widths: Widths) -> Iterator[tuple[str, np.ndarray]]:
        """Bounds, estimate and flags of a box by their names, one at a time; adds to `widths`."""
        values, spins, missing = filled.values, filled.spins, filled.missing
        flag = np.full(values.shape, FILLED, np.int8)
        if self.never is not None:
            here = tuple(one if n > 1 else slice(None) for one, n in zip(box, self.never.shape))
            flag[np.broadcast_to(self.never[here], flag.shape)] = NEVER
        flag.reshape(-1)[missing[filled.beyond]] = BEYOND
        for level, names in enumerate(self.names):
            low, high = filled.lower[level], filled.upper[level]
            if self.limits is not None:
                low, high = np.clip(low, *self.limits), np.clip(high, *self.limits)
            low, high = -rounded_up(-low, values.dtype), rounded_up(high, values.dtype)
            for name, bound in zip(names, (low, high)):
                array = values.copy()  # observed entries keep their value; outside the domain there is none
                array.reshape(-1)[missing] = bound
                yield name, array
            if level == 0:
                width = (high - low).astype(np.float64)
                finite = np.isfinite(width)
                widths.infinite, widths.total = int(width.size - finite.sum()), float(width[finite].sum())
                widths.sketch.add(cells_of(width[finite]), np.zeros(int(finite.sum())))
                flag.reshape(-1)[missing[~finite]] = INFINITE
        estimate = filled.estimate if self.limits is None else np.clip(filled.estimate, *self.limits)
        yield self.main, np.where(spins == -1, estimate, values)
        for k, late in enumerate(self.late):
            shape = [-1 if j == k else 1 for j in range(flag.ndim)]
            flag[np.broadcast_to(late[box[k]].reshape(shape), flag.shape)] = FORECAST
        flag[spins == 1] = OBSERVED
        flag[spins == 0] = OUTSIDE
        widths.forecast = int(np.count_nonzero(flag == FORECAST))
        widths.beyond = int(np.count_nonzero(flag == BEYOND))
        yield companion(self.main, "flag"), flag


@dataclass(frozen=True)
class Writing:
    """What computing the estimate, intervals and flags of a block needs."""

    scratch: Scratch
    estimate: Estimate
    propensity: FittedPropensity
    score: Score
    sketches: dict[Tail, ScoreSketch]
    coverages: Sequence[float]
    exact: bool
    output: Output
    store: ChunkedStore

    @cached_property
    def around(self) -> NeighbourChanges:
        return NeighbourChanges.of(self.estimate.point.shape, self.propensity.model)

    @cached_property
    def passes(self) -> MaskPass:
        return MaskPass(self.scratch.observed, self.propensity.model, 1.0)

    def run(self, item: Block) -> Widths:
        """Fill and write one block."""
        start, values, _ = item
        stop = start + len(values)
        spins = np.asarray(self.scratch.observed[start:stop])
        tests = np.flatnonzero(spins == -1)
        estimate = self.estimate.planes(start, stop)
        middle = estimate.reshape(-1)[tests].astype(np.float64)
        unit = self.estimate.scale(start, stop)
        unit = np.ones(tests.size) if unit is None else unit.reshape(-1)[tests]
        lower, upper = self._bounds(tests, middle, unit, start, stop)
        box = (slice(start, stop), *(slice(None) for _ in values.shape[1:]))
        widths = Widths()
        filled = FilledTile(spins, values, estimate, tests, lower, upper, np.zeros(tests.size, bool))
        for name, array in self.output.arrays(box, filled, widths):
            self.store.put(name, start, array)
        let_go(self.scratch.observed[start:stop])
        return widths

    def _bounds(
        self, tests: np.ndarray, middle: np.ndarray, unit: np.ndarray, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the missing entries, (coverages, tests)."""
        around, passes = self.around, self.passes
        radius = around.radius if self.exact else 0
        planes = around.halo(start, stop) if self.exact else np.arange(start, stop)
        slices = _consecutive(planes)
        eta = partial(log_odds, self.propensity, passes)
        odds = np.concatenate([_on(planes, a, b, eta) for a, b in slices])
        mine = odds[radius : radius + stop - start].reshape(-1)
        if self.exact:
            parameter: TensorTrain = self.propensity.parameter  # type: ignore[assignment]
            b = np.concatenate([_on(planes, i, j, parameter.slab).astype(np.float32) for i, j in slices])
            cells = np.concatenate([_on(planes, i, j, lambda x, y: self.scratch.cells[x:y]) for i, j in slices])
            for i, j in slices:  # the neighbours' planes too: their block may be done already
                let_go(self.scratch.cells[max(0, planes[i]) : planes[j - 1] + 1])
        low = np.empty((len(self.coverages), tests.size))
        high = np.empty((len(self.coverages), tests.size))
        for a in range(0, tests.size, MAX_TESTS):
            some = slice(a, a + MAX_TESTS)
            logs = self.propensity.limited(-mine[tests[some]].astype(np.float64), False)
            cuts: dict[str, np.ndarray | None] = {"lower": None, "upper": None}
            changes = None
            for tail, sketch in self.sketches.items():
                if self.exact and changes is None:
                    changes = around.changes(tests[some], planes, cells, odds, b, sketch.shift)
                levels = [getattr(self.score.tails(c), tail) for c in self.coverages]
                cuts[tail] = sketch.cutoffs(logs, levels, changes)
            low[:, some], high[:, some] = self.score.invert(middle[some], unit[some], cuts["lower"], cuts["upper"])
        return low, high


def _consecutive(planes: np.ndarray) -> list[tuple[int, int]]:
    """Positions [a, b) in `planes` whose values are consecutive, so that each is one slice."""
    breaks = np.flatnonzero((np.diff(planes) != 1) | (planes[:-1] < 0)) + 1
    edges = [0, *breaks.tolist(), len(planes)]
    return list(pairwise(edges))


def _on(planes: np.ndarray, a: int, b: int, read: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Planes a to b of the list; zeros where there is no plane."""
    if planes[a] < 0:
        return np.zeros_like(read(0, 1))
    return np.asarray(read(int(planes[a]), int(planes[b - 1]) + 1))


@dataclass(frozen=True)
class TileArrays:
    """Makes all arrays of a result for a tile."""

    model: TiledModel
    coverages: Sequence[float]
    output: Output

    def of(self, tile: Tile, values: np.ndarray, spins: np.ndarray) -> tuple[dict[str, np.ndarray], Widths]:
        """Estimate, bounds and flags of the core by their names, from the values and spins of the padded box."""
        widths = Widths()
        filled = self.model.fill(tile, values, spins, self.coverages)
        return dict(self.output.arrays(tile.core, filled, widths)), widths


@dataclass(frozen=True)
class TileWriting:
    """What writing filled tiles needs; the chunks of the store are the tiles."""

    data: TiledField
    arrays: TileArrays
    store: ChunkedStore

    def put(self, tile: Tile) -> Widths:
        """Fill and write one tile."""
        arrays, widths = self.arrays.of(tile, *self.data.read(tile.padded))
        for name, array in arrays.items():
            self.store.put_box(name, tile.core, array)
        return widths
