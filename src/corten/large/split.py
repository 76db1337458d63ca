"""The random split of a tensor in files: the walk of `calibrate_round` in `calibration/split.py`, block by block.

Drawing the training entries, fitting the propensity model, scoring a block and computing its bounds are the functions
that a split in memory calls, with the whole tensor as its one block. docs/architecture.md lists what is different here,
because of the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise

import numpy as np

from corten.calibration.split import score_block
from corten.calibration.task import EngineLike, Progress, fit_propensity
from corten.completion.riemannian import LowRankEstimate, PreparedLowRank, descend_on
from corten.conformal.calibrated import ScoreLists, tails_of
from corten.conformal.quantile import Tail
from corten.conformal.scale import LeverageScale
from corten.conformal.scores import Score
from corten.conformal.sketch import NO_CELL, Changes, ScoreSketch, cells_of
from corten.data.blocks import Block, blocks, cut
from corten.data.choices import Choice
from corten.engine.layout import neighbours_of
from corten.engine.memory import let_go, parts
from corten.engine.passes import MaskPass
from corten.engine.threads import in_order
from corten.io.chunked import ChunkedStore
from corten.io.lazy import LazyTensor
from corten.large import settings
from corten.large.gaps import FilledTile
from corten.large.needs import Needs
from corten.large.settings import LowRank
from corten.large.stages import Counts, Scratch
from corten.large.writing import Output, Widths, sum_of
from corten.lowrank import TensorTrain
from corten.propensity.fitted import FittedPropensity, PropensityModel

MAX_TESTS = 1 << 16  # missing entries whose neighbours are gathered at a time


@dataclass(frozen=True)
class Split:
    """A tensor in files whose training entries are drawn; the methods are the steps of a split, in their order."""

    lazy: LazyTensor
    scratch: Scratch
    counts: Counts
    needs: Needs
    train_share: float
    tell: Progress

    def complete(self, completion: LowRank, seed: int) -> tuple[LowRankEstimate, tuple[Choice, ...]]:
        """Complete from the training entries, whose rank is chosen on a part; the estimate, and what was chosen."""
        scratch, counts = self.scratch, self.counts

        def scale(block: Block) -> None:
            planes = slice(block.start, block.stop)
            scaled = (block.values.astype(np.float64) - counts.mean) / counts.spread
            scratch.numbers[planes] = np.where(scratch.train[planes] == 1, scaled, 0.0)
            let_go(scratch.numbers[planes])
            let_go(scratch.train[planes])

        whole = blocks(self.lazy, self.needs.block, lambda share: self.tell("reading", (1 + share) / 2))
        for _ in in_order(scale, whole, self.needs.workers):
            pass
        self.tell("completion", 0.0)
        prepared: PreparedLowRank = settings.prepared(
            completion, self.lazy, scratch=scratch, planes=self.needs.part, seed=seed
        )
        point, _ = descend_on(prepared, scratch.numbers, scratch.train, counts.train)
        self.tell("completion", 1.0)
        return LowRankEstimate(point, counts.mean, counts.spread, self.lazy.dtype), prepared.choices

    def model_missingness(
        self, model: PropensityModel, engine: EngineLike
    ) -> tuple[FittedPropensity, tuple[Choice, ...]]:
        """Fit the propensity model to the training mask; its open settings are chosen on a part."""
        self.tell("missingness", 0.0)
        train = self.scratch.train
        for (_, _, trains), (_, _, observed) in zip(parts(train), parts(self.scratch.observed)):
            trains[...] = np.where(observed == 0, 0, 2 * trains - 1)  # spins
        chosen, choices = settings.settled(
            model, self.lazy, scratch=self.scratch, planes=self.needs.part, train_share=self.train_share
        )
        fitted = fit_propensity(chosen, train, train_share=self.train_share, axes=self.lazy.axes, engine=engine)
        if not isinstance(fitted.parameter, TensorTrain):
            raise ValueError("propensity: in out-of-core mode a known parameter must be a TensorTrain, not an array")
        self.tell("missingness", 1.0)
        return fitted, (*choices, *fitted.choices)

    def score(self, intervals: BlockIntervals) -> dict[Tail, ScoreSketch]:
        """Score the calibration entries: their cells to scratch, and one sketch for each tail that the score uses."""
        scratch, tails = self.scratch, tails_of(intervals.score)

        def one(block: Block) -> list[ScoreSketch]:
            planes = slice(block.start, block.stop)
            hidden = np.flatnonzero((scratch.observed[planes] == 1) & (scratch.train[planes] != 1))
            let_go(scratch.train[planes])
            estimate, scale = intervals.estimate.planes(block.start, block.stop), intervals.scale(block, hidden)
            cells = cells_of(score_block(intervals.score, block, estimate=estimate, entries=hidden, scale=scale)[0])
            odds = intervals.log_odds(block.start, block.stop).reshape(-1)[hidden]
            logs = intervals.propensity.limited(-odds, True)
            every = np.full(block.values.size, NO_CELL, np.int32)
            every[hidden] = cells
            scratch.cells[planes] = every.reshape(block.values.shape)
            let_go(scratch.cells[planes])
            found = [ScoreSketch(tail) for tail in tails]
            for sketch in found:
                sketch.add(cells, logs)
            return found

        found = list(in_order(one, self._pieces("calibration"), self.needs.workers))
        return {tail: reduce(ScoreSketch.merge, [part[t] for part in found]) for t, tail in enumerate(tails)}

    def write(
        self, intervals: BlockIntervals, sketches: dict[Tail, ScoreSketch], output: Output, store: ChunkedStore
    ) -> Widths:
        """Write estimate, bounds and flags of every block."""

        def one(block: Block) -> Widths:
            widths, filled = Widths(), intervals.of(block, sketches, output.coverages)
            box = (slice(block.start, block.stop), *(slice(None) for _ in block.values.shape[1:]))
            for name, array in output.arrays(box, filled, widths):
                store.put_box(name, box[:1], array)
            return widths

        return sum_of(in_order(one, self._pieces("writing"), self.needs.workers))

    def _pieces(self, stage: str) -> Iterator[Block]:
        """The blocks that one thread works on."""
        return cut(blocks(self.lazy, self.needs.block, lambda share: self.tell(stage, share)), self.needs.planes)


class BlockIntervals:
    """Estimate, scale and weights of the entries of any block, and the intervals of its missing entries."""

    def __init__(
        self, scratch: Scratch, estimate: LowRankEstimate, propensity: FittedPropensity, score: Score, weights: str
    ) -> None:
        self.scratch, self.estimate, self.propensity, self.score = scratch, estimate, propensity, score
        self.exact = weights == "exact" and not propensity.independent
        some = np.unique(np.linspace(0, estimate.point.shape[0] - 1, 9).astype(int)).tolist()
        leverage = [estimate.leverage(i, i + 1) for i in some] if score.needs_leverage else None
        self.least = None if leverage is None else LeverageScale(leverage).least
        self._passes = MaskPass(scratch.observed, propensity.model, 1.0)
        self._parameter: TensorTrain = propensity.parameter  # type: ignore[assignment]

    def log_odds(self, start: int, stop: int) -> np.ndarray:
        """Log-odds of being observed, given the full mask."""
        return self._passes.log_odds_between(self._parameter.cores, start, stop)

    def scale(self, block: Block, entries: np.ndarray) -> np.ndarray:
        """The scale of the scores of entries of a block, given by flat indices into it."""
        if self.least is None:
            return np.ones(entries.size)
        return np.maximum(self.estimate.leverage(block.start, block.stop), self.least).reshape(-1)[entries]

    def of(self, block: Block, sketches: dict[Tail, ScoreSketch], coverages: Sequence[float]) -> FilledTile:
        """Estimate and intervals of a block."""
        spins = block.spins
        missing = np.flatnonzero(spins == -1)
        estimate = self.estimate.planes(block.start, block.stop)
        middle = estimate.reshape(-1)[missing].astype(np.float64)
        weights = self._weights(block, next(iter(sketches.values())).shift)
        lists = ScoreLists(self.score, sketches, weights, chunk=MAX_TESTS)
        lower, upper = lists.intervals(missing, middle, self.scale(block, missing), coverages)
        return FilledTile(
            spins, block.values, estimate=estimate, missing=missing, lower=lower, upper=upper,
            beyond=np.zeros(missing.size, bool),
        )  # fmt: skip

    def _weights(self, block: Block, shift: float) -> PlaneWeights:
        """The weights of a block, on the scale of a sketch, whose `shift` is that of all tails."""
        start, stop = block.start, block.stop
        if not self.exact:
            return PlaneWeights(self.propensity, self.log_odds(start, stop).reshape(-1))
        planes, radius = halo(self.propensity, start, stop)
        odds = _on_planes(planes, self.log_odds)
        parameter = _on_planes(planes, lambda a, b: self._parameter.slab(a, b).astype(np.float32))
        cells = _on_planes(planes, lambda a, b: self.scratch.cells[a:b])
        cells[planes < 0] = NO_CELL
        for a, b in _consecutive(planes):  # the neighbours' planes too: their block may be done already
            let_go(self.scratch.cells[max(0, planes[a]) : planes[b - 1] + 1])
        changes = partial(changes_of, self.propensity, cells=cells, log_odds=odds, parameter=parameter, shift=shift)
        return PlaneWeights(self.propensity, odds[radius : radius + stop - start].reshape(-1), changes)


@dataclass(frozen=True)
class PlaneWeights:
    """Weights of the entries of some planes, by flat indices into them; `Weights` of a whole tensor, but for these."""

    propensity: FittedPropensity
    log_odds: np.ndarray
    changes: Callable[[np.ndarray], Changes] | None = None

    def log_weight(self, entries: np.ndarray) -> np.ndarray:
        return self.propensity.limited(-self.log_odds[entries].astype(np.float64), False)

    def neighbour_factor(self, test: np.ndarray) -> Changes | None:
        return None if self.changes is None else self.changes(test)


def halo(propensity: FittedPropensity, start: int, stop: int) -> tuple[np.ndarray, int]:
    """The planes start:stop and those of their neighbours, -1 where there is none; how many come before."""
    count, radius = propensity.shape[0], propensity.neighborhood.radius[0]
    planes = np.arange(start - radius, stop + radius)
    if propensity.neighborhood.periodic[0]:
        return planes % count, radius
    return np.where((planes >= 0) & (planes < count), planes, -1), radius


def changes_of(
    propensity: FittedPropensity,
    tests: np.ndarray,
    *,
    cells: np.ndarray,
    log_odds: np.ndarray,
    parameter: np.ndarray,
    shift: float,
) -> Changes:
    """Changes of weights when test entries, flat indices into a block, are set to observed: as `ExactIsingWeights`.

    They are in units of exp(shift); the arrays have the planes of the `halo` of the block.
    """
    hood = propensity.neighborhood
    own = tests + hood.radius[0] * cells[0].size
    near = neighbours_of(own, hood.offsets, cells.shape, (False, *hood.periodic[1:]))
    found = np.where(near >= 0, cells.reshape(-1)[near], NO_CELL)
    row, column = np.nonzero(found != NO_CELL)
    there, b = near[row, column], parameter.reshape(-1)
    pair = np.asarray(propensity.coupling.value(b[there], b[own[row]]), np.float64)
    weights = np.zeros(found.shape)
    weights[row, column] = np.exp(-log_odds.reshape(-1)[there].astype(np.float64) - shift) * np.expm1(-4.0 * pair)
    return Changes(found, weights)


def _consecutive(planes: np.ndarray) -> list[tuple[int, int]]:
    """Positions [a, b) in `planes` whose values are consecutive, so that each is one slice."""
    breaks = np.flatnonzero((np.diff(planes) != 1) | (planes[:-1] < 0)) + 1
    return list(pairwise([0, *breaks.tolist(), len(planes)]))


def _on_planes(planes: np.ndarray, read: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """What `read` gives for these planes; zeros where there is none (-1)."""
    found = []
    for a, b in _consecutive(planes):
        there = planes[a] >= 0
        found.append(read(int(planes[a]), int(planes[b - 1]) + 1) if there else np.zeros_like(read(0, 1)))
    return np.concatenate(found)
