"""Calibration inside gaps: what the hidden cells of all rounds say about the size of errors at the missing ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corten.calibration.run import Run
from corten.completion.protocol import Fill
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.local_scale import CellFeatures, LearnedScale
from corten.conformal.scale import TableScale
from corten.conformal.weights import PooledWeights
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

__all__ = ["Local", "learn_locally", "reach"]

DEEP = 0.95
SHORT = 0.1
"""Missing entries beyond the depth of 95% of the hidden ones: 3 to 8% on real fields that are covered as asked, 16 to
31% on small simulated ones that are covered at 86% on average where 90% was asked (docs/which-method.md)."""


@dataclass(frozen=True)
class Local:
    """The learned scale at hidden cells (in the order of the run's entries) and everywhere, and weights by depth.

    choice: whether the pseudo-gaps reached as deep as the real ones; describe, learned, by_depth: what it takes to say
    the same of entries hidden later.
    """

    at_hidden: np.ndarray
    scale: TableScale
    weights: PooledWeights
    choice: Choice
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
    far = reach(hidden_depth, missing_depth)
    return Local(learned.hidden, TableScale(scale), weights, far, describe, learned, by_depth)


def reach(hidden: np.ndarray, missing: np.ndarray) -> Choice:
    """Whether pseudo-gaps reached as deep as the real gaps, from the depths of hidden and of missing entries.

    Example:
        >>> reach(np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0])).taken
        'too short'
    """
    share = float(np.mean(missing > np.quantile(hidden, DEEP))) if hidden.size and missing.size else 0.0
    if share <= SHORT:
        because = f"{share:.0%} of the missing entries lie deeper than {DEEP:.0%} of the hidden ones"
        return Choice(
            "reach of pseudo-gaps", "deep enough", because, code="pseudo_gaps_deep_enough", values={"beyond": share}
        )
    because = (
        f"{share:.0%} of the missing entries lie deeper inside gaps than {DEEP:.0%} of the entries hidden for "
        "calibration: how wrong the estimate is there was never seen, and such intervals cover less than asked (86% "
        "for 90% on small simulated fields). Mark what need not be filled by where=, or trust those near "
        "observations only."
    )
    return Choice("reach of pseudo-gaps", "too short", because, code="pseudo_gaps_too_short", values={"beyond": share})
