"""Scores and their inverses, scales, weights, diagnostics, and the object that joins them."""

from __future__ import annotations

import numpy as np
import pytest

from corten.conformal import (
    Absolute,
    CalibratedScores,
    ExactIsingWeights,
    LeverageScale,
    NeighbourFactor,
    Normalized,
    OddsWeights,
    Scale,
    Score,
    Signed,
    UniformWeights,
    UnitScale,
    WeightedScores,
    Weights,
    as_score,
    effective_sample_size,
    largest_share,
    weight_gap,
)
from corten.conformal import calibrated as calibrated_module
from corten.conformal.scale import training_scale


@pytest.mark.parametrize("name", ["absolute", "adaptive", "signed", "normalized"])
def test_score_and_inverse_undo_each_other(name):
    """x lies in the interval exactly when its score lies between the cutoffs."""
    rng = np.random.default_rng(0)
    score = as_score(name)
    assert isinstance(score, Score) and score.name == name
    truth, estimate, scale = rng.normal(size=500), rng.normal(size=500), rng.uniform(0.5, 3, 500)
    low, high = -rng.exponential(size=500), rng.exponential(size=500)
    s = score.score(truth, estimate, scale)
    tails = score.tails(0.9)
    lower, upper = score.invert(estimate, scale, low if tails.lower else None, high)
    expected = (s <= high) & ((s >= low) if tails.lower else True)
    np.testing.assert_array_equal((lower <= truth) & (truth <= upper), expected)
    at_upper = score.score(upper, estimate, scale)
    np.testing.assert_allclose(at_upper, high, rtol=1e-12, atol=1e-12)


def test_infinite_cutoffs_stay_infinite():
    low, high = Signed().invert(np.ones(2), np.ones(2), np.array([-np.inf, 0.0]), np.array([1.0, np.inf]))
    assert low.tolist() == [-np.inf, 1.0] and high.tolist() == [2.0, np.inf]
    low, high = Absolute().invert(np.ones(1), np.ones(1), None, np.array([np.inf]))
    assert low.tolist() == [-np.inf] and high.tolist() == [np.inf]


def test_two_sided_levels_split_the_miss_between_the_tails():
    assert Signed().tails(0.9) == (pytest.approx(0.95), pytest.approx(0.95))
    n = 999
    residuals = np.random.default_rng(1).permutation(n) - 499.0
    one = CalibratedScores("signed", residuals, np.arange(n), UniformWeights())
    lower, upper = one.intervals(np.array([0]), [0.0], [1.0], 0.9)
    assert (lower.item(), upper.item()) == (-450.0, 450.0)


def test_names_and_objects():
    mine = Absolute()
    assert as_score(mine) is mine
    assert Normalized().needs_leverage and not Absolute().needs_leverage
    with pytest.raises(ValueError, match="allowed are"):
        as_score("relative")
    with pytest.raises(TypeError, match="invert"):
        as_score(3)
    with pytest.raises(TypeError, match="give one of"):
        as_score(Absolute)
    with pytest.raises(ValueError, match="lower cutoff"):
        Signed().invert(np.ones(1), np.ones(1), None, np.ones(1))


def test_scales():
    assert isinstance(UnitScale(), Scale) and isinstance(LeverageScale(np.ones(3)), Scale)
    with pytest.raises(ValueError, match="leverage"):
        LeverageScale(np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="zero"):
        LeverageScale(np.array([0.0, 0.0, 1.0]))


def test_weights_from_array_and_from_function_agree():
    logs = np.random.default_rng(2).normal(size=(3, 4))
    entries = np.array([0, 11, 5])
    by_array, by_function = OddsWeights(logs), OddsWeights(lambda flat: logs.ravel()[flat])
    np.testing.assert_array_equal(by_array.log_weight(entries), by_function.log_weight(entries))
    assert isinstance(by_array, Weights) and by_array.neighbour_factor(entries) is None


def ring(size):
    return lambda flat: np.stack([(flat - 1) % size, (flat + 1) % size], axis=1)


def exact_ring(rng, size=200, strength=0.5):
    """CalibratedScores object on a ring, and everything needed to rebuild its weights by hand."""
    parameter = 0.7 * rng.normal(size=size)
    spins = np.where(rng.random(size) < 0.6, 1.0, -1.0)

    def log_weights(w):
        around = parameter[ring(size)(np.arange(size))] * w[ring(size)(np.arange(size))]
        return -(2 * strength * parameter * around.sum(axis=1) + parameter)

    calibration = rng.permutation(np.flatnonzero(spins > 0))[:80]
    test = np.flatnonzero(spins < 0)
    weights = ExactIsingWeights(
        log_weights(spins),
        shape=(size,),
        calibration=calibration,
        neighbours=ring(size),
        pair=lambda a, b: strength * parameter[a] * parameter[b],
    )
    return weights, log_weights, spins, calibration, test


def test_exact_weights_equal_those_rebuilt_with_the_test_entry_observed(monkeypatch):
    rng = np.random.default_rng(3)
    weights, log_weights, spins, calibration, test = exact_ring(rng)
    scores = rng.exponential(size=calibration.size)
    levels = np.linspace(0.05, 0.95, 19)
    expected = np.empty((19, test.size))
    for t, s in enumerate(test):
        observed = spins.copy()
        observed[s] = 1.0
        logs = log_weights(observed)
        expected[:, t] = WeightedScores(scores, logs[calibration]).cutoffs(logs[[s]], levels)[:, 0]
    whole = CalibratedScores("absolute", scores, calibration, weights)
    np.testing.assert_array_equal(whole.intervals(test, 0.0, 1.0, levels)[1], expected)
    rough = CalibratedScores("absolute", scores, calibration, OddsWeights(weights.log_weight))
    assert (rough.intervals(test, 0.0, 1.0, levels)[1] != expected).mean() > 0.1, "the factors must matter here"
    monkeypatch.setattr(calibrated_module, "NEIGHBOUR_CHUNK_ENTRIES", 4)
    lower, upper = whole.intervals(test, np.zeros(test.size), np.ones(test.size), levels)
    np.testing.assert_array_equal(upper, expected)
    np.testing.assert_array_equal(lower, -expected)


def test_effective_sample_size_and_largest_share():
    logs = np.log([1.0, 2.0, 3.0])
    assert effective_sample_size(logs) == pytest.approx(36 / 14)
    assert effective_sample_size(logs + 5000) == pytest.approx(36 / 14)
    assert largest_share(logs - 5000) == pytest.approx(0.5)
    assert effective_sample_size([]) == 0.0 and effective_sample_size([-np.inf]) == 0.0


def distance(scores, logs_a, logs_b, log_test):
    """Largest distance between two weighted score distributions, each with the test mass at infinity."""
    order = np.argsort(scores)
    cumulative = []
    for logs in (logs_a, logs_b):
        w = np.exp(np.append(logs[order], log_test))
        cumulative.append(np.cumsum(w)[:-1] / w.sum())
    return np.abs(cumulative[0] - cumulative[1]).max()


def test_weight_gap_bounds_the_distance_of_the_distributions():
    rng = np.random.default_rng(6)
    tightest = 0.0
    for _ in range(300):
        n = int(rng.integers(2, 12))
        scores, logs = rng.normal(size=n), 2 * rng.normal(size=n)
        places = rng.permutation(n)[: int(rng.integers(1, 3))]
        factor = NeighbourFactor(places[None, :], 3 * rng.normal(size=(1, places.size)))
        test = np.array([2 * rng.normal()])
        moved = logs.copy()
        moved[places] += factor.log_factor[0]
        gap = weight_gap(WeightedScores(scores, logs), test, factor).item()
        apart = distance(scores, logs, moved, test[0])
        assert apart <= gap + 1e-12
        tightest = max(tightest, apart / gap)
    assert tightest > 0.8, "a bound that is never near says nothing"


def test_the_bound_as_printed_would_be_false():
    """Proposition approx-weight-error needs the maximum of g: two neighbours of opposite sign show it."""
    coupling = np.array([-1.5, 1.5])
    approximate = np.array([-10.0, 6.0])
    exact = approximate - 4 * coupling
    scores, log_test = np.array([1.0, 2.0]), 3.0
    weights = np.exp(np.append(exact, log_test))
    share = weights[:2].sum() / weights.sum()
    apart = distance(scores, approximate, exact, log_test)
    factor = NeighbourFactor(np.array([[0, 1]]), -4 * coupling[None, :])
    ours = weight_gap(WeightedScores(scores, approximate), [log_test], factor).item()
    assert apart > 3 * max(1.0, np.exp(4 * coupling.min()) - 1) * share
    assert apart <= 3 * max(1.0, np.exp(4 * coupling.max()) - 1) * share
    assert apart <= ours <= 1.0


def test_a_scale_from_training_residuals_finds_where_noise_is_large():
    """Noise by parameter and by slice: the learned scale goes with the true one, also where nothing trained."""
    rng = np.random.default_rng(8)
    shape = (20, 30, 30)
    parameter = rng.normal(size=shape[1:]) * np.ones(shape)
    spread = np.exp(0.5 * rng.normal(size=(20, 1, 1)) - 0.6 * parameter)
    entries = np.flatnonzero(rng.random(shape) < 0.5)
    errors = (spread * rng.normal(size=shape)).reshape(-1)
    scale = training_scale(errors[entries], entries, parameter, shape).at(np.arange(errors.size))
    ratio = np.log(scale / spread.reshape(-1))
    assert ratio.std() < 0.15 < np.log(spread).std()
    shifted = errors.copy()
    shifted[np.setdiff1d(np.arange(errors.size), entries)] = 99.0
    again = training_scale(shifted[entries], entries, parameter, shape).at(np.arange(errors.size))
    np.testing.assert_array_equal(again, scale)
    assert isinstance(training_scale(np.zeros(5), np.arange(5), np.zeros(shape), shape), UnitScale)
    flat = training_scale(np.full(100, 2.0), np.arange(100), np.zeros(shape), shape).at(np.arange(200))
    np.testing.assert_allclose(flat, 2.0)
