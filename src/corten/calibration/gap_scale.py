"""The scale and the weights of gap calibration, learned from the hidden entries of all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from corten.calibration.gap_rounds import Run
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.local_scale import EntryFeatures, LearnedScale
from corten.conformal.scale import TableScale
from corten.conformal.weights import PooledWeights
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

__all__ = ["AtMissing", "Local", "first_estimate", "learn_locally", "reach", "tested_depth"]

MIN_TESTING_ROUNDS = 4
"""A depth counts as tested if hidden entries of this many rounds reach it: errors inside one gap are correlated, so the
entries of one round are little more than one test."""


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
    None if all are of the same age.
    """

    describe: EntryFeatures
    first: Prepared
    learned: LearnedScale
    depths: np.ndarray
    tested: float
    by_depth: DepthWeights | None = None
    log_ages: np.ndarray | None = None

    def hidden_again(
        self, entries: np.ndarray, values: np.ndarray, train: np.ndarray, fill: Fill
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scale and log-weight of observed entries that are hidden again, with `fill` computed from `train`.

        Their scale comes from models fitted without their blocks, as for a missing entry.
        """
        assert self.by_depth is not None
        deep = depth(train, self.describe.axes, self.describe.change)
        estimate = first_estimate(self.first, fill)
        features = self.describe.at(
            entries, values=values, train=train, estimate=estimate, members=fill.members, deep=deep
        )
        return self.learned.predict_unseen(features, entries), self.by_depth.at(deep.reshape(-1)[entries])

    def at_missing(self, observed: ObservedTensor, fill: Fill, hidden: np.ndarray) -> AtMissing:
        """Scale and weights of the missing entries of `observed`; `hidden` are the entries of the scores.

        The weights give the hidden entries the depths of these missing entries.
        """
        describe = replace(self.describe, axes=observed.axes)
        missing = np.flatnonzero(observed.missing)
        deep = depth(observed.mask, observed.axes, describe.change)
        features = describe.at(
            missing, values=observed.values, train=observed.mask, estimate=first_estimate(self.first, fill),
            members=fill.members, deep=deep,
        )  # fmt: skip
        scale, table = np.ones(observed.values.size), np.zeros(observed.values.size)
        scale[missing] = self.learned.predict(features)
        missing_depth = deep.reshape(-1)[missing]
        by_depth = DepthWeights.of(self.depths, missing_depth, self.log_ages)
        table[missing] = by_depth.at(missing_depth)
        at_hidden = by_depth.at(self.depths)
        if self.log_ages is not None:
            at_hidden = at_hidden + self.log_ages
        beyond = observed.missing & (deep > self.tested)
        return AtMissing(TableScale(scale), PooledWeights(hidden, at_hidden, table), beyond, by_depth)


def learn_locally(run: Run, observed: ObservedTensor, seed: int) -> Local:
    """Learn the scale of errors from features of the hidden entries, and keep their depths for the weights.

    The scale is cross-fitted by blocks: the model for a hidden entry was fitted without its block, in all rounds.
    """
    residuals = run.truth - run.estimate
    learned = LearnedScale.fit(run.features, residuals, entries=run.entries, shape=observed.shape, seed=seed)
    depths = [one.depths for one in run.rounds]
    return Local(run.describe, run.first, learned, np.concatenate(depths), tested_depth(depths))


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
        f"The coverage of {beyond:,} missing entries ({share:.1%}) is unknown and may be lower than nominal: "
        f"they lie deeper inside gaps than calibration tested (in at least {MIN_TESTING_ROUNDS} rounds). They have "
        "flag filled_beyond_tested and are True in result.beyond_tested. Use the other entries, or mark by where= "
        "what need not be filled."
    )
    return Choice("reach of pseudo-gaps", "too short", because, code="pseudo_gaps_too_short", values={"beyond": share})
