"""The weighted quantile against oracles that share no code with it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from corten.conformal import NeighbourFactor, WeightedScores, weighted_cutoffs
from corten.conformal import quantile as quantile_module
from corten.conformal.quantile import rounded_out

LEVELS = [0.05, 0.5, 0.8, 0.9, 0.95, 0.99]


def oracle(scores, log_weights, log_test, level):
    """The definition, one test entry at a time: every candidate score, all weights summed anew."""
    logs = [float(x) for x in log_weights]
    top = max([*logs, float(log_test)])
    if max(logs, default=-math.inf) == -math.inf:
        return math.inf
    weight = [math.exp(x - top) for x in logs]
    need = level * math.fsum([*weight, math.exp(log_test - top)]) * (1 - 1e-12)
    for v in sorted(set(scores)):
        if math.fsum(w for s, w in zip(scores, weight, strict=True) if s <= v) >= need:
            return v
    return math.inf


def oracle_table(scores, log_weights, log_tests, levels, factor=None):
    table = np.empty((len(levels), len(log_tests)))
    for t, log_test in enumerate(log_tests):
        logs = np.array(log_weights, dtype=float)
        if factor is not None:
            for k, f in zip(factor.neighbours[t], factor.log_factor[t], strict=True):
                if k >= 0:
                    logs[k] += f
        for j, level in enumerate(levels):
            table[j, t] = oracle(list(scores), logs, log_test, level)
    return table


def test_unit_weights_against_exact_fractions():
    for n in range(1, 45):
        scores = np.random.default_rng(n).permutation(n) + 1.0
        for percent in range(1, 100):
            k = math.ceil(Fraction(percent, 100) * (n + 1))
            expected = float(k) if k <= n else math.inf
            assert (
                weighted_cutoffs(scores, np.ones(n), test_weights=[1.0], coverage=percent / 100).item() == expected
            ), (n, percent)


def test_nine_scores_at_ninety_percent_are_enough():
    assert weighted_cutoffs(np.arange(1, 10), np.ones(9), test_weights=[1], coverage=0.9).item() == 9.0
    assert weighted_cutoffs(np.arange(1, 10), np.full(9, 0.1), test_weights=[0.1], coverage=0.9).item() == 9.0
    assert weighted_cutoffs(np.arange(1, 9), np.ones(8), test_weights=[1], coverage=0.9).item() == math.inf


def test_integer_weights_against_exact_fractions():
    rng = np.random.default_rng(5)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        weights, test = rng.integers(1, 8, n), int(rng.integers(1, 8))
        scores = rng.permutation(n)
        percent = int(rng.integers(1, 100))
        need = Fraction(percent, 100) * (int(weights.sum()) + test)
        reached = [int(v) for v in np.sort(scores) if int(weights[scores <= v].sum()) >= need]
        expected = float(reached[0]) if reached else math.inf
        assert weighted_cutoffs(scores, weights, test_weights=[test], coverage=percent / 100).item() == expected


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 690.0, 3000.0])
@pytest.mark.parametrize("ties", [False, True])
def test_random_weights_against_brute_force(spread, ties):
    rng = np.random.default_rng(int(spread) + ties)
    for n in (1, 2, 7, 40):
        scores = rng.integers(0, 6, n).astype(float) if ties else rng.normal(size=n)
        logs = spread * rng.uniform(-1, 1, n)
        tests = np.append(spread * rng.uniform(-1, 1, 15), [-np.inf, logs.max() + 900])
        got = WeightedScores(scores, logs).cutoffs(tests, LEVELS)
        np.testing.assert_array_equal(got, oracle_table(scores, logs, tests, LEVELS))


def random_factor(rng, tests, n, width, spread):
    neighbours = np.stack([rng.permutation(np.append(np.arange(n), [-1] * width))[:width] for _ in range(tests)])
    return NeighbourFactor(neighbours, spread * rng.uniform(-1, 1, (tests, width)))


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 690.0])
@pytest.mark.parametrize("factor_spread", [0.5, 8.0, 60.0, 900.0])
def test_exact_weights_against_brute_force_that_rebuilds_all_weights(spread, factor_spread):
    rng = np.random.default_rng(int(spread + 10 * factor_spread))
    for n, width in ((1, 1), (3, 2), (30, 6), (60, 26)):
        scores, logs = rng.normal(size=n), spread * rng.uniform(-1, 1, n)
        tests = spread * rng.uniform(-1, 1, 12)
        factor = random_factor(rng, 12, n, width, factor_spread)
        got = WeightedScores(scores, logs).cutoffs(tests, LEVELS, factor)
        np.testing.assert_array_equal(got, oracle_table(scores, logs, tests, LEVELS, factor))


@pytest.mark.parametrize("drop", [-5.0, -20.0, -36.0, -40.0, -200.0, -np.inf])
def test_a_dominating_neighbour_that_loses_its_weight_does_not_take_the_others_with_it(drop):
    rng = np.random.default_rng(2)
    n = 50
    scores, logs = rng.normal(size=n), rng.normal(size=n)
    logs[17] = 60.0
    factor = NeighbourFactor(np.array([[17, -1, 3]]), np.array([[drop - 60.0, 9.0, 0.3]]))
    tests = np.array([0.5])
    got = WeightedScores(scores, logs).cutoffs(tests, LEVELS, factor)
    np.testing.assert_array_equal(got, oracle_table(scores, logs, tests, LEVELS, factor))
    assert np.isfinite(got).any()


def test_merge_and_search_agree_bit_for_bit(monkeypatch):
    rng = np.random.default_rng(3)
    n, tests = 5000, 4000
    lists = WeightedScores(rng.normal(size=n), 3 * rng.normal(size=n))
    logs = 3 * rng.normal(size=tests) + 3
    merged = lists.cutoffs(logs, LEVELS)
    nobody = NeighbourFactor(np.full((tests, 3), -1), np.zeros((tests, 3)))
    unchanged = NeighbourFactor(rng.integers(0, n, (tests, 3)), np.zeros((tests, 3)))
    np.testing.assert_array_equal(merged, lists.cutoffs(logs, LEVELS, nobody))
    np.testing.assert_array_equal(merged, lists.cutoffs(logs, LEVELS, unchanged))
    sums, weights = lists._sums, np.exp(logs - lists._shift)
    for j, level in enumerate(LEVELS):
        at = np.searchsorted(sums, level * (1 - 1e-12) * (sums[-1] + weights))
        np.testing.assert_array_equal(merged[j], np.append(lists._scores, np.inf)[at])
    factor = random_factor(rng, tests, 50, 4, 2.0)
    exact = lists.cutoffs(logs, LEVELS, factor)
    monkeypatch.setattr(quantile_module, "TASK_ENTRIES", 333)
    monkeypatch.setattr(quantile_module, "CHANGED_TASK_ENTRIES", 77)
    monkeypatch.setenv("CORTEN_THREADS", "3")
    np.testing.assert_array_equal(merged, lists.cutoffs(logs, LEVELS))
    np.testing.assert_array_equal(exact, lists.cutoffs(logs, LEVELS, factor))


def test_running_sums_are_as_good_as_exact_ones():
    from corten.conformal.kernels import running_sum

    weights = np.exp(20 * np.random.default_rng(0).normal(size=3000))
    sums = running_sum(weights)
    exact = Fraction(0)
    for w, s in zip(weights.tolist(), sums.tolist(), strict=True):
        exact += Fraction(w)
        assert abs(Fraction(s) - exact) <= exact * Fraction(4, 2**53)
    assert (np.diff(sums) >= 0).all()


def test_a_common_factor_of_the_weights_changes_nothing():
    rng = np.random.default_rng(4)
    scores, logs, tests = rng.normal(size=300), rng.normal(size=300), rng.normal(size=50)
    factor = random_factor(rng, 50, 300, 6, 2.0)
    base = WeightedScores(scores, logs)
    for shift in (-5000.0, -1.0, 700.0, 5000.0):
        moved = WeightedScores(scores, logs + shift)
        np.testing.assert_array_equal(base.cutoffs(tests, LEVELS), moved.cutoffs(tests + shift, LEVELS))
        np.testing.assert_array_equal(base.cutoffs(tests, LEVELS, factor), moved.cutoffs(tests + shift, LEVELS, factor))


def test_order_of_entries_does_not_matter():
    rng = np.random.default_rng(6)
    scores, logs, tests = rng.normal(size=200), rng.normal(size=200), rng.normal(size=60)
    factor = random_factor(rng, 60, 200, 6, 3.0)
    expected = WeightedScores(scores, logs).cutoffs(tests, LEVELS, factor)
    p, q = rng.permutation(200), rng.permutation(60)
    place = np.append(np.argsort(p), -1)
    shuffled = NeighbourFactor(place[factor.neighbours][q], factor.log_factor[q])
    got = WeightedScores(scores[p], logs[p]).cutoffs(tests[q], LEVELS, shuffled)
    np.testing.assert_array_equal(got, expected[:, q])


def test_tied_scores_may_be_merged_into_one():
    weights = np.array([1.0, 2.0, 4.0, 1.0, 3.0])
    scores = np.array([2.0, 1.0, 2.0, 5.0, 2.0])
    tests = np.linspace(0, 6, 30)
    apart = weighted_cutoffs(scores, weights, test_weights=tests, coverage=LEVELS)
    together = weighted_cutoffs([1.0, 2.0, 5.0], [2.0, 8.0, 1.0], test_weights=tests, coverage=LEVELS)
    np.testing.assert_array_equal(apart, together)


def test_more_coverage_never_narrows_and_more_test_weight_never_either():
    rng = np.random.default_rng(7)
    lists = WeightedScores(rng.normal(size=500), 4 * rng.normal(size=500))
    tests = np.sort(4 * rng.normal(size=300)) + 4
    factor = NeighbourFactor(np.tile(np.arange(6), (300, 1)), np.tile(np.linspace(-5, 5, 6), (300, 1)))
    levels = np.linspace(0.01, 0.99, 99)
    for factors in (None, factor):
        table = lists.cutoffs(tests, levels, factors)
        assert (table[1:] >= table[:-1]).all()
        assert (table[:, 1:] >= table[:, :-1]).all()
    np.testing.assert_array_equal(lists.cutoffs(tests, levels[::-1], factor), table[::-1])


def test_lower_tail_mirrors_the_upper_one():
    rng = np.random.default_rng(8)
    scores, weights, tests = rng.normal(size=50), rng.exponential(size=50), rng.exponential(size=9) * 10
    lower = weighted_cutoffs(scores, weights, test_weights=tests, coverage=LEVELS, tail="lower")
    np.testing.assert_array_equal(lower, -weighted_cutoffs(-scores, weights, test_weights=tests, coverage=LEVELS))
    assert (lower == -np.inf).any() and not (lower == np.inf).any()
    mass = [weights[scores >= cut].sum() for cut in lower[2]]
    assert (np.array(mass) >= 0.8 * (weights.sum() + tests) * (1 - 1e-9))[np.isfinite(lower[2])].all()


@pytest.mark.parametrize("tail", ["upper", "lower"])
def test_single_precision_rounds_outwards_and_keeps_infinity(tail):
    rng = np.random.default_rng(9)
    scores = np.append(rng.normal(size=400) * 10.0 ** rng.integers(-60, 60, 400), [1e300, -1e300])
    lists = WeightedScores(scores, np.zeros(402), tail)
    levels = np.linspace(0.01, 0.999, 200)
    wide = lists.cutoffs(np.zeros(1), levels)
    narrow = rounded_out((wide, wide), np.float32)[tail == "upper"].astype(float)
    sign = 1 if tail == "upper" else -1
    assert (sign * narrow >= sign * wide).all()
    assert (wide == sign * np.inf).any()


def test_nothing_to_calibrate_on_gives_infinity():
    for scores, logs in (([], []), ([1.0, 2.0], [-np.inf, -np.inf])):
        lists = WeightedScores(scores, logs)
        assert (lists.cutoffs([0.0, -np.inf], LEVELS) == np.inf).all()
    zero = NeighbourFactor(np.array([[0]]), np.array([[-np.inf]]))
    assert WeightedScores([1.0], [0.0]).cutoffs([-np.inf], 0.5, zero).item() == np.inf
    assert weighted_cutoffs([1.0, 2.0], [1, 1], test_weights=[], coverage=0.9).shape == (1, 0)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="coverage"):
        weighted_cutoffs([1.0], [1.0], test_weights=[1.0], coverage=90)
    with pytest.raises(ValueError, match="test_weights"):
        weighted_cutoffs([1.0], [1.0], test_weights=[-1.0], coverage=0.9)
    with pytest.raises(ValueError, match="weights"):
        weighted_cutoffs([1.0], [np.nan], test_weights=[1.0], coverage=0.9)
    with pytest.raises(ValueError, match="scores"):
        WeightedScores([np.nan], [0.0])
    with pytest.raises(ValueError, match="tail"):
        WeightedScores([1.0], [0.0], "both")
    with pytest.raises(ValueError, match="neighbour_factor"):
        WeightedScores([1.0], [0.0]).cutoffs([0.0], 0.9, NeighbourFactor(np.array([[1]]), np.array([[0.5]])))
