"""The stages of a completion from disk, each a walk over runs of planes: look, scale, score, write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import numpy as np

from corten.calibration.random_split import STREAM
from corten.conformal.neighbours import NeighbourChanges
from corten.conformal.quantile import Tail, rounded_up
from corten.conformal.scores import Score
from corten.conformal.sketch import NO_CELL, ScoreSketch, cells_of
from corten.engine.memory import file_tensor, let_go, parts
from corten.engine.passes import MaskPass
from corten.engine.threads import in_order
from corten.io.chunked import ChunkedStore
from corten.io.lazy import LazyTensor
from corten.large.needs import Needs
from corten.lowrank import TensorTrain, Tucker
from corten.propensity.fitted import FittedPropensity
from corten.result import FILLED, FORECAST, INFINITE, OBSERVED, OUTSIDE

__all__ = ["Counts", "Estimate", "Scratch", "Widths", "Writing", "as_spins", "look", "scale", "score", "write"]

Tell = Callable[[float], None]
Run = tuple[int, np.ndarray, np.ndarray | None]  # first plane, values, where they lie in the domain
TESTS = 1 << 18  # missing entries whose neighbours are gathered at a time


@dataclass
class Scratch:
    """Tensors in files: spins of the full mask, of the training mask, and one number per entry.

    The number is the centred and scaled value while the completion runs, then the cell of a calibration score.
    """

    observed: np.ndarray
    train: np.ndarray
    numbers: np.ndarray

    @staticmethod
    def of(shape: tuple[int, ...]) -> Scratch:
        return Scratch(file_tensor(shape, np.int8), file_tensor(shape, np.int8), file_tensor(shape, np.float32))

    @property
    def cells(self) -> np.ndarray:
        return self.numbers.view(np.int32)


@dataclass
class Counts:
    """What a first look found: how many entries of each kind, the training entries' mean and spread, empty slices."""

    train: int = 0
    hidden: int = 0
    missing: int = 0
    outside: int = 0
    mean: float = 0.0
    squares: float = 0.0
    seen: list[np.ndarray] = field(default_factory=list)

    @property
    def spread(self) -> float:
        return float(np.sqrt(self.squares / self.train)) or 1.0

    def add_values(self, values: np.ndarray) -> None:
        """Mean and squared deviations of two samples together (Chan)."""
        if not values.size:
            return
        count, mean = values.size, float(values.mean())
        apart, whole = mean - self.mean, self.train + count
        self.squares += float(np.square(values - mean).sum()) + apart**2 * self.train * count / whole
        self.mean += apart * count / whole
        self.train = whole


@dataclass(frozen=True)
class Estimate:
    """The completion, in the data's own units, and its leverage where a score asks for it."""

    point: TensorTrain | Tucker
    centre: float
    spread: float
    dtype: np.dtype
    least: float | None = None

    def planes(self, start: int, stop: int) -> np.ndarray:
        return (self.centre + self.spread * self.point.slab(start, stop)).astype(self.dtype)

    def scale(self, start: int, stop: int) -> np.ndarray | None:
        """u(s) of the planes, or None where it is one everywhere."""
        if self.least is None:
            return None
        return np.maximum(np.sqrt(np.maximum(self.point.leverage(start, stop), 0.0)), self.least)

    def with_leverage(self, floor: float = 1e-3) -> Estimate:
        """The same with a leverage that is not let under `floor` times its median, taken over a few planes."""
        length = self.point.shape[0]
        some = np.unique(np.linspace(0, length - 1, 9).astype(int))
        middle = np.median([np.sqrt(np.maximum(self.point.leverage(i, i + 1), 0.0)) for i in some.tolist()])
        if not middle > 0:
            raise ValueError("leverage is zero at half of the entries or more: use score='absolute'")
        return Estimate(self.point, self.centre, self.spread, self.dtype, floor * float(middle))


def blocks(lazy: LazyTensor, block: int, tell: Tell) -> Iterator[Run]:
    """Runs of planes as the store reads them."""
    for start in range(0, lazy.shape[0], block):
        values, inside = lazy.read(start, min(start + block, lazy.shape[0]))
        yield start, values, inside
        tell(min(1.0, (start + block) / lazy.shape[0]))


def pieces(lazy: LazyTensor, needs: Needs, tell: Tell) -> Iterator[Run]:
    """The same cut into the runs that one thread works on."""
    for start, values, inside in blocks(lazy, needs.block, tell):
        for a in range(0, len(values), needs.planes):
            run = slice(a, a + needs.planes)
            yield start + a, values[run], None if inside is None else inside[run]


def look(lazy: LazyTensor, scratch: Scratch, block: int, train_share: float, seed: int, tell: Tell) -> Counts:
    """Read everything once: masks to scratch, split at random as `RandomSplit` does, and what there is to know."""
    rng = np.random.default_rng((seed, STREAM))
    counts = Counts(seen=[np.zeros(n, bool) for n in lazy.shape])
    for start, values, inside in blocks(lazy, block, tell):
        stop = start + len(values)
        mask = ~np.isnan(values)
        # One plane after the other from one stream: the same split as of the whole tensor at once.
        train = np.stack([plane & (rng.random(plane.shape) < train_share) for plane in mask])
        spins = np.where(mask, np.int8(1), np.int8(-1))
        if inside is not None:
            spins[~inside] = 0
        scratch.observed[start:stop], scratch.train[start:stop] = spins, train
        let_go(scratch.observed[start:stop])
        let_go(scratch.train[start:stop])
        counts.add_values(values[train].astype(np.float64))
        counts.hidden += int(np.count_nonzero(mask)) - int(np.count_nonzero(train))
        counts.missing += int(np.count_nonzero(spins == -1))
        counts.outside += int(np.count_nonzero(spins == 0))
        counts.seen[0][start:stop] = mask.reshape(len(mask), -1).any(axis=1)
        for k in range(1, mask.ndim):
            counts.seen[k] |= mask.any(axis=tuple(j for j in range(mask.ndim) if j != k))
    return counts


def scale(lazy: LazyTensor, scratch: Scratch, needs: Needs, counts: Counts, tell: Tell) -> None:
    """Read everything again: centred and scaled training values to scratch."""

    def one(item: Run) -> None:
        start, values, _ = item
        stop = start + len(values)
        scaled = (values.astype(np.float64) - counts.mean) / counts.spread
        scratch.numbers[start:stop] = np.where(scratch.train[start:stop] == 1, scaled, 0.0)
        let_go(scratch.numbers[start:stop])
        let_go(scratch.train[start:stop])

    for _ in in_order(one, blocks(lazy, needs.block, tell), needs.workers, pool="pieces"):
        pass


def as_spins(scratch: Scratch) -> None:
    """The training mask (0 and 1) as spins (-1 and 1, 0 outside the domain), in place."""
    for (_, _, train), (_, _, observed) in zip(parts(scratch.train), parts(scratch.observed)):
        train[...] = np.where(observed == 0, 0, 2 * train - 1)


def score(
    lazy: LazyTensor, scratch: Scratch, needs: Needs, estimate: Estimate, law: FittedPropensity, how: Score,
    tell: Tell,
) -> dict[Tail, ScoreSketch]:  # fmt: skip
    """Scores of the hidden entries: their cells to scratch, and one sketch per tail that the score uses."""
    passes = MaskPass(scratch.observed, law.model, 1.0)
    asked = how.tails(0.5)
    tails: list[Tail] = [tail for tail in ("lower", "upper") if getattr(asked, tail) is not None]  # type: ignore[misc]

    def one(item: Run) -> list[ScoreSketch]:
        start, values, _ = item
        stop = start + len(values)
        hidden = np.flatnonzero((scratch.observed[start:stop] == 1) & (scratch.train[start:stop] != 1))
        let_go(scratch.train[start:stop])
        middle = estimate.planes(start, stop).reshape(-1)[hidden].astype(np.float64)
        unit = estimate.scale(start, stop)
        unit = np.ones(1) if unit is None else unit.reshape(-1)[hidden]
        cells = cells_of(how.score(values.reshape(-1)[hidden].astype(np.float64), middle, unit))
        logs = -log_odds(law, passes, start, stop).reshape(-1)[hidden]
        run = np.full(values.size, NO_CELL, np.int32)
        run[hidden] = cells
        scratch.cells[start:stop] = run.reshape(values.shape)
        let_go(scratch.cells[start:stop])
        found = []
        for tail in tails:
            found.append(ScoreSketch(tail))
            found[-1].add(cells, logs)
        return found

    found = list(in_order(one, pieces(lazy, needs, tell), needs.workers, pool="pieces"))
    return {tail: reduce(ScoreSketch.merge, [part[t] for part in found]) for t, tail in enumerate(tails)}


def log_odds(law: FittedPropensity, passes: MaskPass, start: int, stop: int) -> np.ndarray:
    assert isinstance(law.parameter, TensorTrain)
    return passes.log_odds_between(law.parameter.cores, start, stop)


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "around", NeighbourChanges.of(self.estimate.point.shape, self.law.model))
        object.__setattr__(self, "passes", MaskPass(self.scratch.observed, self.law.model, 1.0))

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
        around: NeighbourChanges = self.around  # type: ignore[attr-defined]
        passes: MaskPass = self.passes  # type: ignore[attr-defined]
        radius = around.radius if self.exact else 0
        planes = around.halo(start, stop) if self.exact else np.arange(start, stop)
        runs = _runs(planes)
        odds = np.concatenate([_on(planes, a, b, lambda x, y: log_odds(self.law, passes, x, y)) for a, b in runs])
        mine = odds[radius : radius + stop - start].reshape(-1)
        if self.exact:
            parameter: TensorTrain = self.law.parameter  # type: ignore[assignment]
            b = np.concatenate([_on(planes, i, j, parameter.slab).astype(np.float32) for i, j in runs])
            cells = np.concatenate([_on(planes, i, j, lambda x, y: self.scratch.cells[x:y]) for i, j in runs])
            let_go(self.scratch.cells[start:stop])
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
