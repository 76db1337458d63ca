"""The last stage of a completion from disk: every run of planes becomes estimate, intervals and flags in a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from corten.conformal.neighbours import NeighbourChanges
from corten.conformal.quantile import Tail, rounded_up
from corten.conformal.scores import Score
from corten.conformal.sketch import ScoreSketch, cells_of
from corten.data.flags import FILLED, FORECAST, INFINITE, OBSERVED, OUTSIDE
from corten.engine.memory import let_go
from corten.engine.passes import MaskPass
from corten.engine.threads import in_order
from corten.io.chunked import ChunkedStore
from corten.io.lazy import LazyTensor
from corten.large.needs import Needs
from corten.large.stages import Estimate, Run, Scratch, Tell, log_odds, pieces
from corten.lowrank import TensorTrain
from corten.propensity.fitted import FittedPropensity

__all__ = ["Widths", "Writing", "write"]

TESTS = 1 << 18  # missing entries whose neighbours are gathered at a time


@dataclass
class Widths:
    """Widths of the finite intervals, their distribution in a sketch, and how many are infinite."""

    infinite: int = 0
    forecast: int = 0
    total: float = 0.0
    sketch: ScoreSketch = field(default_factory=ScoreSketch)

    def with_part(self, other: Widths) -> Widths:
        return Widths(
            self.infinite + other.infinite, self.forecast + other.forecast, self.total + other.total,
            self.sketch.merge(other.sketch),
        )  # fmt: skip

    @property
    def mean(self) -> float | None:
        return self.total / self.sketch.size if self.sketch.size else None

    @property
    def median(self) -> float | None:
        return float(self.sketch.cutoffs([-np.inf], 0.5)[0, 0]) if self.sketch.size else None


@dataclass(frozen=True)
class Writing:
    """Everything a run of planes needs to become estimate, intervals and flags."""

    scratch: Scratch
    estimate: Estimate
    law: FittedPropensity
    how: Score
    sketches: dict[Tail, ScoreSketch]
    coverages: Sequence[float]
    names: Sequence[tuple[str, str]]
    exact: bool
    limits: tuple[float, float] | None
    beyond: list[np.ndarray]
    store: ChunkedStore

    @cached_property
    def around(self) -> NeighbourChanges:
        return NeighbourChanges.of(self.estimate.point.shape, self.law.model)

    @cached_property
    def passes(self) -> MaskPass:
        return MaskPass(self.scratch.observed, self.law.model, 1.0)

    def run(self, item: Run) -> Widths:
        """Fill and write one run of planes."""
        start, values, inside = item
        stop = start + len(values)
        spins = np.asarray(self.scratch.observed[start:stop])
        tests = np.flatnonzero(spins == -1)
        seen, outside = spins == 1, None if inside is None else ~inside
        made = self.estimate.planes(start, stop)
        middle = made.reshape(-1)[tests].astype(np.float64)
        unit = self.estimate.scale(start, stop)
        unit = np.ones(tests.size) if unit is None else unit.reshape(-1)[tests]
        flag = np.full(values.shape, FILLED, np.int8)
        widths = Widths()
        ends = self._ends(tests, middle, unit, start, stop)
        for level, names in enumerate(self.names):
            low, high = ends[0][level], ends[1][level]
            if self.limits is not None:
                low, high = np.clip(low, *self.limits), np.clip(high, *self.limits)
            low, high = -rounded_up(-low, values.dtype), rounded_up(high, values.dtype)
            for name, end in zip(names, (low, high)):
                array = values.copy()  # observed entries keep their value; outside the domain there is none
                array.reshape(-1)[tests] = end
                self.store.put(name, start, array)
            if level == 0:
                width = (high - low).astype(np.float64)
                finite = np.isfinite(width)
                widths.infinite, widths.total = int(width.size - finite.sum()), float(width[finite].sum())
                widths.sketch.add(cells_of(width[finite]), np.zeros(int(finite.sum())))
                flag.reshape(-1)[tests[~finite]] = INFINITE
        if self.limits is not None:
            made = np.clip(made, *self.limits)
        self.store.put("estimate", start, np.where(seen | (spins == 0), values, made))
        for k, late in enumerate(self.beyond):
            run = late[start:stop] if k == 0 else late
            flag[np.broadcast_to(run.reshape([-1 if j == k else 1 for j in range(flag.ndim)]), flag.shape)] = FORECAST
        flag[seen] = OBSERVED
        if outside is not None:
            flag[outside] = OUTSIDE
        self.store.put("flag", start, flag)
        widths.forecast = int(np.count_nonzero(flag == FORECAST))
        let_go(self.scratch.observed[start:stop])
        return widths

    def _ends(
        self, tests: np.ndarray, middle: np.ndarray, unit: np.ndarray, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of missing entries, (coverages, tests)."""
        around, passes = self.around, self.passes
        radius = around.radius if self.exact else 0
        planes = around.halo(start, stop) if self.exact else np.arange(start, stop)
        runs = _runs(planes)
        odds = np.concatenate([_on(planes, a, b, lambda x, y: log_odds(self.law, passes, x, y)) for a, b in runs])
        mine = odds[radius : radius + stop - start].reshape(-1)
        if self.exact:
            parameter: TensorTrain = self.law.parameter  # type: ignore[assignment]
            b = np.concatenate([_on(planes, i, j, parameter.slab).astype(np.float32) for i, j in runs])
            cells = np.concatenate([_on(planes, i, j, lambda x, y: self.scratch.cells[x:y]) for i, j in runs])
            for i, j in runs:  # the neighbours' planes too: the run they belong to may be over already
                let_go(self.scratch.cells[max(0, planes[i]) : planes[j - 1] + 1])
        low = np.empty((len(self.coverages), tests.size))
        high = np.empty((len(self.coverages), tests.size))
        for a in range(0, tests.size, TESTS):
            some = slice(a, a + TESTS)
            logs = -mine[tests[some]].astype(np.float64)
            cuts: dict[str, np.ndarray | None] = {"lower": None, "upper": None}
            changes = None
            for tail, sketch in self.sketches.items():
                if self.exact and changes is None:
                    changes = around.changes(tests[some], planes, cells, odds, b, sketch.shift)
                levels = [getattr(self.how.tails(c), tail) for c in self.coverages]
                cuts[tail] = sketch.cutoffs(logs, levels, changes)
            low[:, some], high[:, some] = self.how.invert(middle[some], unit[some], cuts["lower"], cuts["upper"])
        return low, high


def _runs(planes: np.ndarray) -> list[tuple[int, int]]:
    """Positions [a, b) in `planes` whose values follow each other, so that each run is one slice."""
    breaks = np.flatnonzero((np.diff(planes) != 1) | (planes[:-1] < 0)) + 1
    edges = [0, *breaks.tolist(), len(planes)]
    return list(pairwise(edges))


def _on(planes: np.ndarray, a: int, b: int, read: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """A run of planes, zeros where there is no plane."""
    if planes[a] < 0:
        return np.zeros_like(read(0, 1))
    return np.asarray(read(int(planes[a]), int(planes[b - 1]) + 1))


def write(lazy: LazyTensor, needs: Needs, writing: Writing, tell: Tell) -> Widths:
    """Write every run of planes; threads share the runs, each run has chunks of its own."""
    found = in_order(writing.run, pieces(lazy, needs, tell), needs.workers, pool="pieces")
    return reduce(Widths.with_part, found, Widths())
