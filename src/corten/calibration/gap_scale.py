"""The scale and the weights of gap calibration, learned from the hidden entries of all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
from scipy.ndimage import maximum_filter1d

from corten.calibration.gap_rounds import Run
from corten.calibration.round_entries import Surroundings
from corten.completion.neighbours import NeighbourFeatures, parts_of
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.diagnostics import effective_sample_size
from corten.conformal.local_scale import COARSE_BLOCKS_PER_AXIS, EntryFeatures, LearnedScale, block_of, exceeds
from corten.conformal.quantile import Tail, WeightedScores
from corten.conformal.scale import TableScale
from corten.conformal.scores import Absolute, Automatic, Score, Signed
from corten.conformal.weights import PooledWeights
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.plain import percent
from corten.engine.threads import in_order

__all__ = [
    "AtMissing", "Local", "choose_score", "deeper_than_near", "first_estimate", "learn_locally", "reach",
    "surroundings", "tested_depth",
]  # fmt: skip

MIN_TESTING_ROUNDS = 4
"""A depth counts as tested if hidden entries of this many rounds reach it: errors inside one gap are correlated, so the
entries of one round are little more than one test."""

SHAPE_COVERAGES = np.arange(1, 20, 2) / 20  # of the intervals by which a symmetric and an asymmetric shape are compared
TAILS: tuple[Tail, Tail] = ("lower", "upper")
MIN_ASYMMETRIC_SIZE = 200.0  # effective size of the hidden entries: each tail of an interval rests on half as many

NEAR_SHARE, PARTS_PER_AXIS = 1 / 3, 9  # how far from an entry the rounds that test its depth hide, in parts of an axis


class AtMissing(NamedTuple):
    """Scale and weights of the missing entries of a tensor; beyond: True at those deeper than calibration tested."""

    scale: TableScale
    weights: PooledWeights
    beyond: np.ndarray
    by_depth: DepthWeights


@dataclass(frozen=True)
class Local:
    """What was learned from the hidden entries, for the missing entries of the same data and of later data.

    describe, first: features, and the completion whose estimates they are computed from; learned: the scale model;
    depths: of the hidden entries, in the order of the scores; tested: the largest depth that calibration tested;
    by_depth: weights for the missing entries of the data; log_ages: log-weights by the age of the hidden entries, or
    None if all are of the same age; neighbours: the features of neighbours that the scale uses too, or None.
    """

    describe: EntryFeatures
    first: Prepared
    learned: LearnedScale
    depths: np.ndarray
    tested: float
    by_depth: DepthWeights | None = None
    log_ages: np.ndarray | None = None
    neighbours: NeighbourFeatures | None = None

    def scale_features(
        self, entries: np.ndarray, features: np.ndarray, *, values: np.ndarray, train: np.ndarray, fill: Fill
    ) -> np.ndarray:
        """All features of entries that the scale uses, given those of `describe`; `fill` is computed from `train`."""
        if self.neighbours is None:
            return features
        near = self.neighbours.at(
            entries, values, train=train, estimate=first_estimate(self.first, fill), members=fill.members
        )
        return np.hstack([features, near])

    def hidden_again(
        self, entries: np.ndarray, values: np.ndarray, train: np.ndarray, fill: Fill
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scale and log-weight of observed entries that are hidden again, with `fill` computed from `train`.

        Their scale comes from models fitted without their blocks, as for a missing entry.
        """
        assert self.by_depth is not None
        around = _described(self.describe, self.first, entries=entries, values=values, train=train, fill=fill)
        features = self.scale_features(entries, around.features, values=values, train=train, fill=fill)
        return self.learned.predict_unseen(features, entries), self.by_depth.at(around.depths)

    def on_axes(self, axes: Sequence[Axis]) -> Local:
        """The same for data on other axes."""
        near = self.neighbours and self.neighbours.on_axes(axes)
        return replace(self, describe=self.describe.on_axes(axes), neighbours=near)

    def at_missing(
        self, observed: ObservedTensor, fill: Fill, *, hidden: np.ndarray, round_sizes: Sequence[int],
        around: Surroundings | None = None,
    ) -> AtMissing:  # fmt: skip
        """Scale and weights of the missing entries of `observed`.

        The weights give the hidden entries the depths of these missing entries. `hidden` are the entries of the scores,
        round by round, and `round_sizes` their numbers.
        """
        missing = np.flatnonzero(observed.missing)
        features, missing_depth = around or surroundings(self.describe, self.first, observed, fill)
        scale, table = np.ones(observed.values.size), np.zeros(observed.values.size)
        local = self.on_axes(observed.axes)

        def predicted(part: slice) -> np.ndarray:
            own = local.scale_features(
                missing[part], features[part], values=observed.values, train=observed.mask, fill=fill
            )
            return self.learned.predict(own)

        parts, threads = parts_of(missing.size, observed.values.size)
        for part, own in zip(parts, in_order(predicted, parts, threads)):
            scale[missing[part]] = own
        by_depth = DepthWeights.of(self.depths, missing_depth, self.log_ages)
        table[missing] = by_depth.at(missing_depth)
        at_hidden = by_depth.at(self.depths)
        if self.log_ages is not None:
            at_hidden = at_hidden + self.log_ages
        beyond = np.zeros(observed.shape, bool)
        beyond.reshape(-1)[missing] = missing_depth > self.tested
        shape = tuple(axis.length for axis in self.describe.axes)
        if observed.shape == shape:  # the scores of other data have other positions
            beyond.reshape(-1)[missing] |= deeper_than_near(
                missing, missing_depth, hidden=hidden, hidden_depths=self.depths, round_sizes=round_sizes,
                axes=observed.axes,
            )  # fmt: skip
        return AtMissing(TableScale(scale), PooledWeights(hidden, at_hidden, table), beyond, by_depth)


def surroundings(describe: EntryFeatures, first: Prepared, observed: ObservedTensor, fill: Fill) -> Surroundings:
    """Features and depths of the missing entries of `observed`."""
    describe, missing = describe.on_axes(observed.axes), np.flatnonzero(observed.missing)
    return _described(describe, first, entries=missing, values=observed.values, train=observed.mask, fill=fill)


def _described(
    describe: EntryFeatures, first: Prepared, *, entries: np.ndarray, values: np.ndarray, train: np.ndarray, fill: Fill
) -> Surroundings:
    """Features and depths of entries, with `fill` computed from `train`."""
    deep, estimate = depth(train, describe.axes, describe.change), first_estimate(first, fill)
    features = describe.at(entries, values=values, train=train, estimate=estimate, members=fill.members, deep=deep)
    return Surroundings(features, deep.reshape(-1)[entries])


def learn_locally(run: Run, observed: ObservedTensor, seed: int) -> Local:
    """Learn the scale of errors from features of the hidden entries, and keep their depths for the weights.

    The scale is cross-fitted by blocks: the model for a hidden entry was fitted without its block, in all rounds.
    """
    residuals = run.truth - run.estimate
    learned = LearnedScale.fit(run.features, residuals, entries=run.entries, shape=observed.shape, seed=seed)
    depths = [one.depths for one in run.rounds]
    return Local(
        run.describe, run.first, learned, np.concatenate(depths), tested_depth(depths), neighbours=run.neighbours
    )


def choose_score(
    score: Score, residuals: np.ndarray, *, learned: LearnedScale, log_weights: np.ndarray, entries: np.ndarray,
    shape: tuple[int, ...],
) -> tuple[Score, tuple[Choice, ...]]:  # fmt: skip
    """The score and the record of the choice: for `Automatic` the signed score if it is clearly better, else absolute.

    Intervals of all coverages, from the estimate minus to plus a quantile of |r| times the scale, or between two
    quantiles of r, are compared at hidden entries, with quantiles from other folds of blocks. The mean of their
    interval scores, each times half of one minus the coverage, is the CRPS up to a factor.
    """
    if not isinstance(score, Automatic):
        return score, ()
    size, asked = effective_sample_size(log_weights), "shape of intervals"
    if size < MIN_ASYMMETRIC_SIZE:
        because = f"the effective sample size is {size:.0f}; each tail by itself needs {MIN_ASYMMETRIC_SIZE:.0f}"
        return Absolute(), (Choice(asked, "symmetric", because, code="intervals_symmetric"),)
    signed, fold = residuals / learned.hidden, learned.fold_of(entries)
    losses = np.zeros((2, len(signed)))
    for number in np.unique(fold):
        inside = fold == number
        outside = ~inside if not inside.all() else inside
        known, logs, here = signed[outside], log_weights[outside], signed[inside]
        half = WeightedScores(np.abs(known), logs).cutoffs(-np.inf, SHAPE_COVERAGES)
        low, high = (WeightedScores(known, logs, tail).cutoffs(-np.inf, (1 + SHAPE_COVERAGES) / 2) for tail in TAILS)
        for row, lower, upper in ((0, -half, half), (1, low, high)):
            for outer, a, b in zip((1 - SHAPE_COVERAGES) / 2, lower[:, 0], upper[:, 0]):
                losses[row, inside] += outer * (b - a) + np.maximum(a - here, 0) + np.maximum(here - b, 0)
    symmetric, asymmetric = losses * learned.hidden * np.exp(log_weights - log_weights.max())
    used = exceeds(symmetric - asymmetric, block_of(entries, shape, COARSE_BLOCKS_PER_AXIS))
    gain = 1 - float(asymmetric.sum() / max(symmetric.sum(), np.finfo(float).tiny))
    because = (
        f"asymmetric intervals change the CRPS of entries hidden in other blocks by {-gain:.1%}, "
        f"{'more' if used else 'not more'} than two standard errors"
    )
    taken = "asymmetric" if used else "symmetric"
    choice = Choice(asked, taken, because, code=f"intervals_{taken}", values={"gain": gain})
    return Signed() if used else Absolute(), (choice,)


def first_estimate(first: Prepared, fill: Fill) -> np.ndarray:
    """The estimate that features are computed from: the members of `fill` with the weights of the first mix."""
    return cast(PreparedMix, first).mix(fill.members) if fill.members else fill.estimate


def tested_depth(rounds: Sequence[np.ndarray]) -> float:
    """The largest depth that hidden entries of `MIN_TESTING_ROUNDS` rounds reach, from the depths of each round.

    Examples
    --------
    >>> tested_depth([np.array([1.0, depth]) for depth in (2.0, 3.0, 5.0, 4.0, 9.0)])
    3.0
    """
    deepest = sorted((float(one.max()) for one in rounds if one.size), reverse=True)
    return deepest[min(MIN_TESTING_ROUNDS, len(deepest)) - 1] if deepest else 0.0


def deeper_than_near(
    missing: np.ndarray, depths: np.ndarray, *, hidden: np.ndarray, hidden_depths: np.ndarray,
    round_sizes: Sequence[int], axes: Sequence[Axis],
) -> np.ndarray:  # fmt: skip
    """True at missing entries deeper than what hidden entries of some rounds near them reach.

    Near is within a third of every ordered axis, in ninths of its length. Errors at the same depth may be much larger
    in one part of the data (the south of a map by day) than in those where pseudo-gaps are so deep. `missing` and
    `hidden` are flat indices, the latter round by round; depths are in their order.

    Examples
    --------
    >>> hidden, reached = np.tile([1, 7], 4), np.tile([1.0, 3.0], 4)
    >>> found = {"hidden": hidden, "hidden_depths": reached, "round_sizes": [2] * 4, "axes": [Axis("x", 9)]}
    >>> deeper_than_near(np.array([0, 8]), np.array([2.0, 2.0]), **found)
    array([ True, False])
    """
    shape = tuple(axis.length for axis in axes)
    parts = [1 if axis.kind == "unordered" else min(axis.length, PARTS_PER_AXIS) for axis in axes]

    def part_of(entries: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(at * count // n for at, count, n in zip(np.unravel_index(entries, shape), parts, shape))

    number = np.repeat(np.arange(len(round_sizes)), round_sizes)
    deepest = np.zeros((len(round_sizes), *parts), np.float32)
    np.maximum.at(deepest, (number, *part_of(hidden)), hidden_depths)
    for k, axis in enumerate(axes):
        if parts[k] > 1:
            width, mode = 2 * max(1, round(NEAR_SHARE * parts[k])) + 1, "wrap" if axis.periodic else "constant"
            deepest = maximum_filter1d(deepest, width, axis=k + 1, mode=mode)
    deepest.sort(axis=0)
    return np.asarray(depths > deepest[-min(MIN_TESTING_ROUNDS, len(deepest))][part_of(missing)])


def reach(beyond: int, missing: int) -> Choice:
    """The setting that records whether pseudo-gaps are as deep as the gaps; `beyond` missing entries lie deeper.

    Examples
    --------
    >>> reach(21, 100).taken
    'too short'
    """
    share = beyond / missing if missing else 0.0
    if beyond == 0:
        because = "no missing entry lies deeper inside a gap than the hidden entries"
        return Choice(
            "reach of pseudo-gaps", "deep enough", because, code="pseudo_gaps_deep_enough", values={"beyond": share}
        )
    because = (
        f"The coverage of {beyond:,} of the missing entries ({percent(beyond, missing)}) is unknown and may be lower "
        "than nominal: "
        f"they lie deeper inside gaps than calibration tested (hidden entries of {MIN_TESTING_ROUNDS} rounds within a "
        "third of each axis from them). They have the flag filled_beyond_tested (result.beyond_tested). Use "
        "the other entries, or mark by where= what need not be filled."
    )
    return Choice("reach of pseudo-gaps", "too short", because, code="pseudo_gaps_too_short", values={"beyond": share})
