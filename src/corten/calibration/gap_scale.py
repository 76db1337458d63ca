"""The scale and the weights of gap calibration, learned from the hidden entries of all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from corten.calibration.gap_rounds import Run
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.local_scale import EntryFeatures, LearnedScale
from corten.conformal.scale import TableScale
from corten.conformal.weights import PooledWeights
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

__all__ = ["Local", "learn_locally", "reach", "tested_depth"]

MIN_TESTING_ROUNDS = 4
"""A depth counts as tested if hidden entries of this many rounds reach it: errors inside one gap are correlated, so the
entries of one round are little more than one test."""


@dataclass(frozen=True)
class Local:
    """The learned scale of the hidden entries (in the order of the run's entries) and of all entries, and the weights.

    choice: whether the pseudo-gaps are as deep as the gaps; beyond: True at missing entries that lie deeper;
    describe, first, learned, by_depth: features, the completion whose estimates they are computed from, scale model and
    depth weights, for entries that are hidden later.
    """

    at_hidden: np.ndarray
    scale: TableScale
    weights: PooledWeights
    choice: Choice
    beyond: np.ndarray
    describe: EntryFeatures
    first: Prepared
    learned: LearnedScale
    by_depth: DepthWeights

    def hidden_again(
        self, entries: np.ndarray, values: np.ndarray, train: np.ndarray, fill: Fill
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scale and log-weight of observed entries that are hidden again, with `fill` computed from `train`.

        Their scale comes from models fitted without their blocks, as for a missing entry.
        """
        deep = depth(train, self.describe.axes, self.describe.change)
        estimate = first_estimate(self.first, fill)
        features = self.describe.at(
            entries, values=values, train=train, estimate=estimate, members=fill.members, deep=deep
        )
        return self.learned.predict_unseen(features, entries), self.by_depth.at(deep.reshape(-1)[entries])


def learn_locally(run: Run, observed: ObservedTensor, seed: int) -> Local:
    """Learn the scale of errors from features of the hidden entries, and weights from their depths.

    The scale is cross-fitted by blocks: the model for a hidden entry was fitted without its block, in all rounds.
    """
    values, describe, final = observed.values, run.describe, run.final
    entries, missing = run.entries, np.flatnonzero(observed.missing)
    residuals = run.truth - run.estimate
    learned = LearnedScale.fit(run.features, residuals, entries=entries, shape=observed.shape, seed=seed)
    deep = depth(observed.mask, observed.axes, describe.change)
    estimate = first_estimate(run.first, final)
    at_missing = describe.at(
        missing, values=values, train=observed.mask, estimate=estimate, members=final.members, deep=deep
    )
    scale = np.ones(values.size)
    scale[missing] = learned.predict(at_missing)
    depths = [one.depths for one in run.rounds]
    hidden_depth, missing_depth = np.concatenate(depths), deep.reshape(-1)[missing]
    by_depth = DepthWeights.of(hidden_depth, missing_depth)
    table = np.zeros(values.size)
    table[missing] = by_depth.at(missing_depth)
    weights = PooledWeights(entries, by_depth.at(hidden_depth), table)
    beyond = observed.missing & (deep > tested_depth(depths))
    choice = reach(int(np.count_nonzero(beyond)), missing.size)
    return Local(
        at_hidden=learned.hidden,
        scale=TableScale(scale),
        weights=weights,
        choice=choice,
        beyond=beyond,
        describe=describe,
        first=run.first,
        learned=learned,
        by_depth=by_depth,
    )


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
