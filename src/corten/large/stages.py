"""The stages of an out-of-core completion up to its scores, each a loop over blocks: look, scale, score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from corten.calibration.split import SEED_STREAM
from corten.conformal.quantile import Tail
from corten.conformal.scores import Score
from corten.conformal.sketch import NO_CELL, ScoreSketch, cells_of
from corten.data.axes import Axis
from corten.data.observed import largest_size, refuse_extreme
from corten.engine.memory import file_tensor, let_go, parts
from corten.engine.passes import MaskPass
from corten.engine.threads import in_order
from corten.io.lazy import LazyTensor
from corten.large.needs import Needs
from corten.lowrank import TensorTrain, Tucker
from corten.propensity.fitted import FittedPropensity

Tell = Callable[[float], None]
Block = tuple[int, np.ndarray, np.ndarray | None]  # first plane, values, which entries are in the domain


@dataclass
class Scratch:
    """Tensors in files: spins of the full mask, of the training mask, and one number per entry.

    The number is the centred and scaled value during the completion, then the sketch cell of a calibration score.
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
    """Numbers of entries of each kind, mean and spread of the training set, and which slices have observed entries."""

    train: int = 0
    hidden: int = 0
    missing: int = 0
    outside: int = 0
    mean: float = 0.0
    squares: float = 0.0
    has_observed: list[np.ndarray] = field(default_factory=list)

    @property
    def spread(self) -> float:
        return float(np.sqrt(self.squares / self.train)) or 1.0

    def add_values(self, values: np.ndarray) -> None:
        """Mean and squared deviations of two samples together (Chan)."""
        if not values.size:
            return
        count, mean = values.size, float(values.mean())
        difference, whole = mean - self.mean, self.train + count
        self.squares += float(np.square(values - mean).sum()) + difference**2 * self.train * count / whole
        self.mean += difference * count / whole
        self.train = whole


@dataclass(frozen=True)
class Estimate:
    """The completion in the unit of the data, and its leverage for the normalized score."""

    point: TensorTrain | Tucker
    centre: float
    spread: float
    dtype: np.dtype
    least: float | None = None

    def planes(self, start: int, stop: int) -> np.ndarray:
        return (self.centre + self.spread * self.point.slab(start, stop)).astype(self.dtype)

    def scale(self, start: int, stop: int) -> np.ndarray | None:
        """The scale of the scores in these planes, or None if it is one everywhere."""
        if self.least is None:
            return None
        return np.maximum(np.sqrt(np.maximum(self.point.leverage(start, stop), 0.0)), self.least)

    def with_leverage(self, floor: float = 1e-3) -> Estimate:
        """The same with a leverage of at least `floor` times its median over a few planes."""
        length = self.point.shape[0]
        some = np.unique(np.linspace(0, length - 1, 9).astype(int))
        middle = np.median([np.sqrt(np.maximum(self.point.leverage(i, i + 1), 0.0)) for i in some.tolist()])
        if not middle > 0:
            raise ValueError("leverage is zero at half of the entries or more: use score='absolute'")
        return Estimate(self.point, self.centre, self.spread, self.dtype, floor * float(middle))


def forecasts(axes: Sequence[Axis], has_observed: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each axis, which positions lie before the first or after the last observed time."""
    found = []
    for axis, known in zip(axes, has_observed):
        observed, index = np.flatnonzero(known), np.arange(axis.length)
        timed = axis.is_time and axis.kind == "ordered" and not axis.periodic
        found.append(timed & ((index < observed[0]) | (index > observed[-1])))
    return found


def blocks(lazy: LazyTensor, block: int, tell: Tell) -> Iterator[Block]:
    """Blocks as the store reads them."""
    for start in range(0, lazy.shape[0], block):
        values, inside = lazy.read(start, min(start + block, lazy.shape[0]))
        yield start, values, inside
        tell(min(1.0, (start + block) / lazy.shape[0]))


def pieces(lazy: LazyTensor, needs: Needs, tell: Tell) -> Iterator[Block]:
    """The same, cut into the blocks that one thread works on."""
    for start, values, inside in blocks(lazy, needs.block, tell):
        for a in range(0, len(values), needs.planes):
            part = slice(a, a + needs.planes)
            yield start + a, values[part], None if inside is None else inside[part]


def look(lazy: LazyTensor, scratch: Scratch, block: int, train_share: float, seed: int, tell: Tell) -> Counts:
    """Read everything once: masks to scratch, split as `SplitCalibration` splits many entries, and counts."""
    rng = np.random.default_rng((seed, SEED_STREAM))
    counts = Counts(has_observed=[np.zeros(n, bool) for n in lazy.shape])
    largest = 0.0
    for start, values, inside in blocks(lazy, block, tell):
        stop = start + len(values)
        mask = ~np.isnan(values)
        largest = max(largest, largest_size(values))
        if largest > 1:  # small values may be followed by larger ones; too large ones cannot be squared
            refuse_extreme(largest)
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
        counts.has_observed[0][start:stop] = mask.reshape(len(mask), -1).any(axis=1)
        for k in range(1, mask.ndim):
            counts.has_observed[k] |= mask.any(axis=tuple(j for j in range(mask.ndim) if j != k))
    refuse_extreme(largest)
    return counts


def scale(lazy: LazyTensor, scratch: Scratch, needs: Needs, counts: Counts, tell: Tell) -> None:
    """Read everything again: centred and scaled training values to scratch."""

    def one(item: Block) -> None:
        start, values, _ = item
        stop = start + len(values)
        scaled = (values.astype(np.float64) - counts.mean) / counts.spread
        scratch.numbers[start:stop] = np.where(scratch.train[start:stop] == 1, scaled, 0.0)
        let_go(scratch.numbers[start:stop])
        let_go(scratch.train[start:stop])

    for _ in in_order(one, blocks(lazy, needs.block, tell), needs.workers):
        pass


def as_spins(scratch: Scratch) -> None:
    """The training mask (0 and 1) as spins (-1 and 1, 0 outside the domain), in place."""
    for (_, _, train), (_, _, observed) in zip(parts(scratch.train), parts(scratch.observed)):
        train[...] = np.where(observed == 0, 0, 2 * train - 1)


def score(
    lazy: LazyTensor, scratch: Scratch, needs: Needs, estimate: Estimate, propensity: FittedPropensity, score: Score,
    tell: Tell,
) -> dict[Tail, ScoreSketch]:  # fmt: skip
    """Scores of the calibration set: their sketch cells to scratch, and one sketch per tail that the score uses."""
    passes = MaskPass(scratch.observed, propensity.model, 1.0)
    asked = score.tails(0.5)
    tails: list[Tail] = [tail for tail in ("lower", "upper") if getattr(asked, tail) is not None]  # type: ignore[misc]

    def one(item: Block) -> list[ScoreSketch]:
        start, values, _ = item
        stop = start + len(values)
        hidden = np.flatnonzero((scratch.observed[start:stop] == 1) & (scratch.train[start:stop] != 1))
        let_go(scratch.train[start:stop])
        middle = estimate.planes(start, stop).reshape(-1)[hidden].astype(np.float64)
        unit = estimate.scale(start, stop)
        unit = np.ones(1) if unit is None else unit.reshape(-1)[hidden]
        cells = cells_of(score.score(values.reshape(-1)[hidden].astype(np.float64), middle, unit))
        logs = propensity.limited(-log_odds(propensity, passes, start, stop).reshape(-1)[hidden], True)
        every = np.full(values.size, NO_CELL, np.int32)
        every[hidden] = cells
        scratch.cells[start:stop] = every.reshape(values.shape)
        let_go(scratch.cells[start:stop])
        found = []
        for tail in tails:
            found.append(ScoreSketch(tail))
            found[-1].add(cells, logs)
        return found

    found = list(in_order(one, pieces(lazy, needs, tell), needs.workers))
    return {tail: reduce(ScoreSketch.merge, [part[t] for part in found]) for t, tail in enumerate(tails)}


def log_odds(propensity: FittedPropensity, passes: MaskPass, start: int, stop: int) -> np.ndarray:
    assert isinstance(propensity.parameter, TensorTrain)
    return passes.log_odds_between(propensity.parameter.cores, start, stop)
