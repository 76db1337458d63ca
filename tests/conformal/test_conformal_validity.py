"""The theorems: coverage under the right weights, and its loss under wrong ones.

Random tests use fixed seeds and a false-alarm rate of 1e-4 per assertion.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import corten
from corten.conformal import (
    CalibratedScores,
    ExactIsingWeights,
    OddsWeights,
    UniformWeights,
    WeightedScores,
    weighted_cutoffs,
)
from corten.evidence import metrics

FALSE_ALARM = 1e-4
Z = stats.norm.isf(FALSE_ALARM)


def law_of_counts(test_weight):
    """p-value of the Beta-binomial law for the number of covered test entries, 20 scores at 90 %."""
    rng = np.random.default_rng(11)
    n, tests, rounds, level = 20, 40, 3000, 0.9
    counts = np.empty(rounds, dtype=int)
    for r in range(rounds):
        cut = weighted_cutoffs(rng.normal(size=n), np.ones(n), test_weights=[test_weight], coverage=level).item()
        counts[r] = np.sum(rng.normal(size=tests) <= cut)
    k = math.ceil(level * (n + 1) - 1e-9)
    law = stats.betabinom(tests, k, n + 1 - k)
    edges = [*range(30, 40), 40]
    probability = np.diff([0.0, *law.cdf(edges)])
    seen = np.bincount(np.searchsorted(edges, counts), minlength=len(edges))
    return stats.chisquare(seen, rounds * probability).pvalue


def test_coverage_given_the_calibration_follows_the_beta_binomial_law():
    assert law_of_counts(test_weight=1.0) > FALSE_ALARM
    assert law_of_counts(test_weight=0.0) < FALSE_ALARM, "the law must notice a forgotten test entry"


def shifted_coverages(variant, rounds=1000, entries=80, level=0.8):
    """Coverage of the missing entries in each round: hard entries are missing more often, by known odds."""
    rng = np.random.default_rng(12)
    eta = np.clip(1.5 * rng.normal(size=entries) + 0.5, -3, 3)
    spread = (1 + np.exp(-eta)) ** 1.5
    shares, finite = [], []
    for _ in range(rounds):
        observed = rng.random(entries) < 1 / (1 + np.exp(-eta))
        if observed.all() or not observed.any():
            continue
        scores = np.abs(spread * rng.normal(size=entries))
        calibration, test = np.flatnonzero(observed), np.flatnonzero(~observed)
        logs, log_tests = -eta[calibration], -eta[test]
        if variant == "unweighted":
            logs, log_tests = np.zeros(logs.size), np.zeros(log_tests.size)
        elif variant == "no test mass":
            log_tests = np.full(log_tests.size, -np.inf)
        elif variant == "unpaired":
            logs = rng.permutation(logs)
        elif variant == "inverted":
            logs, log_tests = -logs, -log_tests
        elif variant == "tests shifted":
            log_tests = log_tests - 3.0
        cut = WeightedScores(scores[calibration], logs).cutoffs(log_tests, level)[0]
        if variant == "one rank too low":
            ranked = np.append(np.sort(scores[calibration]), np.inf)
            cut = ranked[np.maximum(np.searchsorted(ranked, cut) - 1, 0)]
        shares.append(np.mean(scores[test] <= cut))
        finite.append(np.mean(np.isfinite(cut)))
    return np.array(shares), float(np.mean(finite))


def optimistic_mean(shares):
    return shares.mean() + Z * shares.std(ddof=1) / np.sqrt(shares.size)


def test_known_weights_cover_under_a_strong_shift():
    shares, finite = shifted_coverages("oracle")
    assert optimistic_mean(shares) >= 0.8
    assert finite > 0.75, "coverage must not be bought with infinite intervals"


WRONG = ["unweighted", "no test mass", "unpaired", "inverted", "tests shifted", "one rank too low"]


@pytest.mark.parametrize("variant", WRONG)
def test_wrong_weights_fail_the_same_test(variant):
    shares, _ = shifted_coverages(variant)
    assert optimistic_mean(shares) < 0.8


ORDERED = dict.fromkeys(range(3), "ordered")  # said, so that the kinds of axes are not searched for


def completed_coverages(variant, rounds=40, level=0.9):
    """The same through `complete`: coverage of the missing entries of a tensor whose odds are known, or got wrong."""
    rng = np.random.default_rng(13)
    shape = (12, 11, 10)
    b = np.clip(1.5 * rng.normal(size=shape) + 0.7, -3, 3)
    spread = 0.1 * (1 + np.exp(-b)) ** 1.5
    used = {"unpaired": rng.permutation(b.ravel()).reshape(shape), "inverted": -b, "halved": 0.5 * b}.get(variant, b)
    propensity = corten.UniformPropensity() if variant == "unweighted" else corten.KnownPropensity(used)
    shares = []
    for seed in range(rounds):
        signal = np.add.outer(np.add.outer(rng.normal(size=12), rng.normal(size=11)), rng.normal(size=10))
        data = signal + spread * rng.normal(size=shape)
        observed = np.where(corten.simulate.bernoulli(b, seed=seed), data, np.nan)
        result = corten.complete(
            observed, level, completion=lambda x, s=signal: s, propensity=propensity, calibration="random", seed=seed,
            axis_kinds=ORDERED,
        )  # fmt: skip
        shares.append(corten.metrics.coverage(data, result))
    return np.array(shares)


def test_complete_covers_with_known_odds():
    shares = completed_coverages("known")
    assert optimistic_mean(shares) >= 0.9
    # nor by being wide: the test entry's own mass adds a little, and not more than this (0.96 would be noticed)
    assert shares.mean() - Z * shares.std(ddof=1) / np.sqrt(shares.size) <= 0.93


LONG = pytest.param("halved", marks=pytest.mark.slow)


@pytest.mark.parametrize("variant", ["unweighted", "unpaired", "inverted", LONG])
def test_complete_does_not_cover_with_wrong_odds(variant):
    assert optimistic_mean(completed_coverages(variant)) < 0.9


# The full enumeration of an Ising model on a 2 x 2 x 2 tensor (Proposition conformal-interval-weight).

SHAPE = (2, 2, 2)
CELLS = 8
NEIGHBOURS = np.array([[cell ^ 1, cell ^ 2, cell ^ 4] for cell in range(CELLS)])
COUPLING = 0.25
LEVEL = 0.8
PARAMETER = np.random.default_rng(21).normal(scale=0.8, size=CELLS)
SCORES = np.random.default_rng(22).permutation(CELLS) + 1.0


def log_probability(spins):
    """log p(W) up to a constant, from the Hamiltonian: every neighbouring pair once, and the field B/2."""
    pairs = [(a, b) for a in range(CELLS) for b in NEIGHBOURS[a].tolist() if a < b]
    energy = sum(COUPLING * PARAMETER[a] * PARAMETER[b] * spins[a] * spins[b] for a, b in pairs)
    return energy + float(np.sum(0.5 * PARAMETER * spins))


def log_odds(spins):
    return 2 * COUPLING * PARAMETER * (PARAMETER[NEIGHBOURS] * spins[NEIGHBOURS]).sum(axis=1) + PARAMETER


def pair(a, b):
    return COUPLING * PARAMETER[a] * PARAMETER[b]


def weights_for(kind, role):
    """Weights when `role` is 0 for training, 1 for calibration, 2 for missing cells."""
    calibration = np.flatnonzero(role == 1)
    spins = np.where(role == 2, -1.0, 1.0)
    if kind == "training mask":
        return OddsWeights(-log_odds(np.where(role == 0, 1.0, -1.0)))
    if kind == "approximate":
        return OddsWeights(-log_odds(spins))
    return ExactIsingWeights(
        -log_odds(spins),
        shape=SHAPE,
        calibration=calibration,
        neighbours=lambda flat: NEIGHBOURS[flat],
        pair=pair,
    )


def conditional_coverages(kind):
    """P(cover | E_0) for every training set and every set {s_1, ..., s_n+1}, summed exactly."""
    covers = {}
    for roles in itertools.product((0, 1, 2), repeat=CELLS):
        role = np.array(roles)
        calibration, test = np.flatnonzero(role == 1), np.flatnonzero(role == 2)
        if calibration.size and test.size:
            calibrated = CalibratedScores("absolute", SCORES[calibration], calibration, weights_for(kind, role))
            _, cut = calibrated.intervals(test, 0.0, 1.0, LEVEL)
            covers[roles] = dict(zip(test.tolist(), (SCORES[test] <= cut[0]).tolist(), strict=True))
    log_p = {w: log_probability(np.array(w)) for w in itertools.product((-1, 1), repeat=CELLS)}
    out = []
    for roles in itertools.product((0, 1, 2), repeat=CELLS):
        members = [cell for cell in range(CELLS) if roles[cell] == 1]
        if len(members) < 2:
            continue
        log_weight, hit = [], []
        for k in members:
            drawn = tuple(2 if cell == k else r for cell, r in enumerate(roles))
            log_weight.append(log_p[tuple(-1 if r == 2 else 1 for r in drawn)])
            hit.append(covers[drawn][k])
        chance = np.exp(np.array(log_weight) - max(log_weight))
        out.append(float(chance @ np.array(hit) / chance.sum()))
    return np.array(out)


def test_enumerated_ising_model_is_covered_by_exact_weights_only():
    exact = conditional_coverages("exact")
    approximate = conditional_coverages("approximate")
    training = conditional_coverages("training mask")
    assert exact.min() >= LEVEL - 1e-9
    assert approximate.min() < LEVEL - 0.2
    assert training.min() < approximate.min() - 0.1


def test_exact_weights_are_the_probabilities_of_the_proposition():
    """Normalised weights of calibration and test entries equal p_k(s*) / sum p_i(s*), entry by entry."""
    role = np.array([0, 1, 1, 2, 1, 2, 1, 2])
    weights = weights_for("exact", role)
    calibration = np.flatnonzero(role == 1)
    for test in np.flatnonzero(role == 2):
        logs = weights.log_weight(calibration).copy()
        factor = weights.neighbour_factor(np.array([test]))
        for k, f in zip(factor.neighbours[0], factor.log_factor[0], strict=True):
            if k >= 0:
                logs[k] += f
        got = np.append(logs, weights.log_weight(np.array([test])))
        expected = []
        for k in [*calibration.tolist(), test]:
            spins = np.where((role == 2) & (np.arange(CELLS) != test), -1.0, 1.0)
            spins[k] = -1.0
            expected.append(log_probability(spins))
        np.testing.assert_allclose(got - got[-1], np.array(expected) - expected[-1], atol=1e-12)


def test_uniform_weights_are_exact_when_missingness_is_completely_random():
    """Exhaustive: each of n + 1 entries is the missing one with equal chance."""
    n = 12
    scores = np.random.default_rng(0).permutation(n + 1) + 0.0
    for level in (0.5, 0.8, 0.9):
        hits = 0
        for missing in range(n + 1):
            others = np.delete(np.arange(n + 1), missing)
            calibrated = CalibratedScores("absolute", scores[others], others, UniformWeights())
            hits += bool(scores[missing] <= calibrated.intervals(np.array([missing]), 0.0, 1.0, level)[1].item())
        assert hits == math.ceil(level * (n + 1) - 1e-9)


def test_the_adaptive_score_is_narrower_where_stations_differ_and_covers_as_well():
    spread = np.exp(0.8 * np.random.default_rng(1).normal(size=(20, 1, 1)))
    covered, ratio, flat = [], [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        for own, out in ((spread, ratio), (1.0, flat)):
            truth = own * rng.normal(size=(20, 20, 20))
            x = np.where(rng.random(truth.shape) < 0.5, truth, np.nan)
            widths = []
            for score in ("absolute", "adaptive"):
                completer = corten.ConformalCompleter(np.zeros_like, "uniform", "random", score=score, seed=seed)
                result = completer.fit(x, axis_kinds=ORDERED).intervals(0.9)
                widths.append(metrics.width(result))
            covered.append(metrics.coverage(truth, result))
            out.append(widths[1] / widths[0])
    assert abs(np.mean(covered) - 0.9) < 0.015
    assert np.mean(ratio) < 0.96 and np.mean(flat) < 1.04  # learning a scale that is not there costs a little
