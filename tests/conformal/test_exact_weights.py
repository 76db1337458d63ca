"""Exact against approximate Ising weights, entry by entry: the corrected bound holds, and approximation can be
far off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corten
from corten.conformal import ExactIsingWeights, WeightedScores, weight_gap

TEC = Path(__file__).parents[3] / "shared" / "data" / "tec_namerica_20190425-26.npz"


def law_distance(shape, coupling, seed, scale=1.0):
    """For every missing entry: the largest |F* - F| over thresholds, and the bound on it."""
    rng = np.random.default_rng(seed)
    parameter = scale * rng.normal(size=shape)
    mask = rng.random(shape) < 0.6
    calibration = np.flatnonzero(mask & (rng.random(shape) < 0.5))
    missing = np.flatnonzero(~mask)
    if not calibration.size or not missing.size:
        return np.zeros(1), np.zeros(1)
    law = corten.KnownPropensity(parameter, coupling=coupling).fit(mask)
    weights = ExactIsingWeights(
        law.log_weights(mask), shape=shape, calibration=calibration, neighbours=law.neighbours, pair=law.pair
    )
    scores = rng.normal(size=calibration.size)
    logs, factor = weights.log_weight(calibration).astype(float), weights.neighbour_factor(missing)
    bound = weight_gap(WeightedScores(scores, logs), weights.log_weight(missing), factor)
    order = np.argsort(scores)
    distance = np.empty(missing.size)
    for t in range(missing.size):
        changed = logs.copy()
        for k, f in zip(factor.neighbours[t], factor.log_factor[t], strict=True):
            if k >= 0:
                changed[k] += f
        own = np.exp(weights.log_weight(missing[t : t + 1]).astype(float)[0])
        laws = [np.cumsum(np.exp(one[order])) / (np.exp(one).sum() + own) for one in (logs, changed)]
        distance[t] = np.abs(laws[0] - laws[1]).max()
    return distance, bound


@pytest.mark.parametrize("coupling", [0.05, 0.3, 1.0, -0.5])
def test_the_bound_holds_at_every_entry(coupling):
    for seed in range(15):
        distance, bound = law_distance((3, 3, 3), coupling, seed)
        assert (distance <= bound + 1e-9).all()
    for seed in range(3):
        distance, bound = law_distance((8, 9, 7), coupling, seed)
        assert (distance <= bound + 1e-9).all()


def test_approximate_weights_are_close_under_weak_and_far_under_strong_coupling():
    weak = np.concatenate([law_distance((8, 8, 8), 0.02, seed)[0] for seed in range(3)])
    strong = np.concatenate([law_distance((8, 8, 8), 1.0, seed, 1.5)[0] for seed in range(3)])
    assert np.median(weak) < 0.01
    assert np.quantile(strong, 0.99) > 0.2


def test_both_weights_agree_without_coupling():
    distance, bound = law_distance((6, 6, 6), 0.0, 1)
    assert not distance.any() and not bound.any()


@pytest.mark.skipif(not TEC.exists(), reason="the shared TEC mask is not here")
def test_on_a_real_mask_the_difference_is_small_at_the_papers_coupling():
    mask = np.load(TEC)["mask"].astype(bool)[::2, ::3, ::4]
    rng = np.random.default_rng(0)
    train = mask & (rng.random(mask.shape) < 0.7)
    law = corten.IsingPropensity(coupling=1 / 15, rank=2).fit(train, 0.7)
    entries, missing = np.flatnonzero(mask & ~train), np.flatnonzero(~mask)
    weights = ExactIsingWeights(
        law.log_weights(mask), shape=mask.shape, calibration=entries, neighbours=law.neighbours, pair=law.pair
    )
    scores = WeightedScores(rng.normal(size=entries.size), weights.log_weight(entries))
    gap = weight_gap(scores, weights.log_weight(missing), weights.neighbour_factor(missing))
    assert np.median(gap) < 0.01
    assert gap.max() > np.median(gap)
