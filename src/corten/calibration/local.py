"""Calibration inside gaps: what the hidden cells of all rounds say about the size of errors at the missing ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corten.calibration.run import Run
from corten.conformal.depth import depth, depth_log_weights
from corten.conformal.local_scale import CellFeatures, LearnedScale
from corten.conformal.scale import TableScale
from corten.conformal.weights import PooledWeights
from corten.observed import ObservedTensor

__all__ = ["Local", "learn_locally"]


@dataclass(frozen=True)
class Local:
    """The learned scale at hidden cells (in the order of the run's entries) and everywhere, and weights by depth."""

    at_hidden: np.ndarray
    scale: TableScale
    weights: PooledWeights


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
        features.append(describe.at(one.entries, values, one.round.train, one.mixed, one.fill.members, deep))
    entries, missing = run.entries, np.flatnonzero(observed.missing)
    learned = LearnedScale.fit(np.concatenate(features), run.truth - run.estimate, entries, observed.shape, seed)
    deep = depth(observed.mask, axes, describe.change)
    final = run.final
    at_missing = describe.at(missing, values, observed.mask, final.estimate, final.members, deep)
    scale = np.ones(values.size)
    scale[missing] = learned.predict(at_missing)
    hidden_weight, missing_weight = depth_log_weights(np.concatenate(depths), deep.reshape(-1)[missing])
    table = np.zeros(values.size)
    table[missing] = missing_weight
    return Local(learned.hidden, TableScale(scale), PooledWeights(entries, hidden_weight, table))
