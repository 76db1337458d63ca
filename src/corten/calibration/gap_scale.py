"""Calibration inside gaps: what the hidden cells of all rounds say about the size of errors at the missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corten.calibration.gap_rounds import Run
from corten.completion.protocol import Fill
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.local_scale import CellFeatures, LearnedScale
from corten.conformal.scale import TableScale
from corten.conformal.weights import PooledWeights
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

__all__ = ["Local", "learn_locally", "reach", "tested_depth"]

TESTING_ROUNDS = 4
"""A depth is tested if pseudo-gaps of so many rounds reach it: errors inside one gap are alike, so that the entries of
one round are little more than one test."""


@dataclass(frozen=True)
class Local:
    """The learned scale at hidden cells (in the order of the run's entries) and everywhere, and weights by depth.

    choice: whether the pseudo-gaps reached as deep as the real ones; beyond: the missing entries that lie deeper;
    describe, learned, by_depth: what it takes to say the same of entries hidden later.
    """

    at_hidden: np.ndarray
    scale: TableScale
    weights: PooledWeights
    choice: Choice
    beyond: np.ndarray
    describe: CellFeatures
    learned: LearnedScale
    by_depth: DepthWeights

    def hidden_again(
        self, entries: np.ndarray, values: np.ndarray, train: np.ndarray, fill: Fill
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scale and log-weight of observed entries that are hidden once more, after `fill` was made from `train`.

        Their scale comes from models that never saw their blocks, as that of a missing entry does.
        """
        deep = depth(train, self.describe.axes, self.describe.change)
        features = self.describe.at(entries, values, train, fill.estimate, fill.members, deep)
        return self.learned.predict_unseen(features, entries), self.by_depth.at(deep.reshape(-1)[entries])


def learn_locally(run: Run, observed: ObservedTensor, seed: int) -> Local:
    """Learn the usual size of an error from features of the hidden cells, and weigh hidden cells by their depth.

    Cross-fitted by blocks of cells, so that a hidden cell's scale never saw the cell itself in any round.
    """
    values, axes = observed.values, observed.axes
    describe = CellFeatures.of(values, observed.mask, axes)
    features, depths = [], []
    for one in run.rounds:
        deep = depth(one.round.train, axes, describe.change)
        depths.append(deep.reshape(-1)[one.entries])
        features.append(describe.at(one.entries, one.values, one.round.train, one.mixed, one.fill.members, deep))
    entries, missing = run.entries, np.flatnonzero(observed.missing)
    learned = LearnedScale.fit(np.concatenate(features), run.truth - run.estimate, entries, observed.shape, seed)
    deep = depth(observed.mask, axes, describe.change)
    final = run.final
    at_missing = describe.at(missing, values, observed.mask, final.estimate, final.members, deep)
    scale = np.ones(values.size)
    scale[missing] = learned.predict(at_missing)
    hidden_depth, missing_depth = np.concatenate(depths), deep.reshape(-1)[missing]
    by_depth = DepthWeights.of(hidden_depth, missing_depth)
    table = np.zeros(values.size)
    table[missing] = by_depth.at(missing_depth)
    weights = PooledWeights(entries, by_depth.at(hidden_depth), table)
    beyond = observed.missing & (deep > tested_depth(depths))
    choice = reach(int(np.count_nonzero(beyond)), missing.size)
    return Local(learned.hidden, TableScale(scale), weights, choice, beyond, describe, learned, by_depth)


def tested_depth(rounds: Sequence[np.ndarray]) -> float:
    """The largest depth that hidden entries of several rounds reach, from the depths of each round.

    Example:
        >>> tested_depth([np.array([1.0, depth]) for depth in (2.0, 3.0, 5.0, 4.0, 9.0)])
        3.0
    """
    deepest = sorted((float(one.max()) for one in rounds if one.size), reverse=True)
    return deepest[min(TESTING_ROUNDS, len(deepest)) - 1] if deepest else 0.0


def reach(beyond: int, missing: int) -> Choice:
    """Whether pseudo-gaps reach as deep as the real gaps, from the number of missing entries that lie deeper.

    Example:
        >>> reach(21, 100).taken
        'too short'
    """
    share = beyond / missing if missing else 0.0
    if beyond == 0:
        because = "no missing entry lies deeper than the hidden ones"
        return Choice(
            "reach of pseudo-gaps", "deep enough", because, code="pseudo_gaps_deep_enough", values={"beyond": share}
        )
    because = (
        f"The coverage of {beyond:,} missing entries ({share:.1%}) is unknown and may be lower than asked: "
        f"they lie deeper inside gaps than calibration tested (in at least {TESTING_ROUNDS} rounds). They have flag "
        "filled_beyond_tested and are True in result.beyond_tested. Use the other entries, or mark by where= what "
        "need not be filled."
    )
    return Choice("reach of pseudo-gaps", "too short", because, code="pseudo_gaps_too_short", values={"beyond": share})
