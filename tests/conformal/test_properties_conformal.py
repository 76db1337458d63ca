"""Properties of scores, weights and cutoffs: whatever the numbers, these hold."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_conformal_quantile import oracle

from corten import conformal
from corten.conformal import quantile as quantile_module
from corten.conformal.selection import claimed, evidence
from corten.conformal.shaped import Grouped, Robust, robust_level
from corten.conformal.split import CalibratedSplit
from strategies import levels, seeds


@st.composite
def lists(draw: Any, most: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, their log-weights and those of test entries: eighths, so that sums are exact; some absent."""
    rng = np.random.default_rng(draw(seeds))
    n, tests = draw(st.integers(1, most)), draw(st.integers(1, 12))
    spread = draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
    kind = draw(st.sampled_from(["normal", "ties", "constant", "with infinity"]))
    scores = rng.normal(size=n) if kind != "ties" else rng.integers(0, 4, n).astype(float)
    if kind == "constant":
        scores[:] = 0.25
    if kind == "with infinity":
        scores[rng.integers(n)] = np.inf
    logs, test_logs = (np.rint(8 * spread * rng.uniform(-1, 1, size)) / 8 for size in (n, tests))
    if draw(st.booleans()) and n > 1:
        logs[rng.permutation(n)[: n // 3]] = -np.inf
    if draw(st.booleans()):
        test_logs[0] = -np.inf
    return scores, logs, test_logs


@st.composite
def factors(draw: Any, tests: int, n: int) -> conformal.NeighbourFactor:
    rng = np.random.default_rng(draw(seeds))
    width = draw(st.integers(1, 5))
    rows = [rng.permutation(np.append(np.arange(n), [-1] * width))[:width] for _ in range(tests)]
    size = draw(st.sampled_from([0.5, 8.0, 100.0, 1e4]))
    return conformal.NeighbourFactor(np.stack(rows), np.rint(8 * size * rng.uniform(-1, 1, (tests, width))) / 8)


@given(lists(), levels, st.data())
def test_cutoffs_are_those_of_the_definition(case, level, data):
    scores, logs, tests = case
    factor = data.draw(st.none() | factors(tests.size, scores.size))
    found = conformal.WeightedScores(scores, logs).cutoffs(tests, level, factor)[0]
    for t, (log_test, cut) in enumerate(zip(tests, found)):
        changed = logs.copy()
        if factor is not None:
            near = factor.neighbours[t] >= 0
            changed[factor.neighbours[t][near]] += factor.log_factor[t][near]
        assert cut == oracle(list(scores), changed, log_test, level)


@given(lists(), levels, st.integers(-8 * 1000, 8 * 1000), st.data())
def test_a_constant_added_to_all_log_weights_changes_no_bit(case, level, eighths, data):
    scores, logs, tests = case
    factor = data.draw(st.none() | factors(tests.size, scores.size))
    before, after = (
        conformal.WeightedScores(scores, logs + shift).cutoffs(tests + shift, level, factor)
        for shift in (0.0, eighths / 8)
    )
    np.testing.assert_array_equal(before, after)
    some = logs[np.isfinite(logs)]
    assert conformal.effective_sample_size(some) == conformal.effective_sample_size(some + eighths / 8)
    if some.size:
        assert conformal.largest_share(some) == conformal.largest_share(some + eighths / 8)


@given(lists(), st.lists(levels, min_size=2, max_size=6), st.data())
def test_more_coverage_and_more_test_weight_never_narrow(case, asked, data):
    scores, logs, tests = case
    factor = data.draw(st.none() | factors(tests.size, scores.size))
    upper = conformal.WeightedScores(scores, logs).cutoffs(tests, sorted(asked), factor)
    lower = conformal.WeightedScores(-scores, logs, "lower").cutoffs(tests, sorted(asked), factor)
    np.testing.assert_array_equal(lower, -upper)
    assert (upper[1:] >= upper[:-1]).all()
    by_weight = conformal.WeightedScores(scores, logs).cutoffs(np.sort(tests), sorted(asked))
    assert (by_weight[:, 1:] >= by_weight[:, :-1]).all()


@given(lists(), levels, seeds, st.data())
def test_order_threads_and_chunks_change_no_bit(case, level, seed, data):
    scores, logs, tests = case
    factor = data.draw(st.none() | factors(tests.size, scores.size))
    whole = conformal.WeightedScores(scores, logs).cutoffs(tests, level, factor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantile_module, "TASK_ENTRIES", 3)
        patch.setattr(quantile_module, "CHANGED_TASK_ENTRIES", 2)
        patch.setenv("CORTEN_THREADS", "3")
        pieces = conformal.WeightedScores(scores, logs).cutoffs(tests, level, factor)
    np.testing.assert_array_equal(whole, pieces)
    # In another order sums round otherwise, so only coverages that no tie of weights decides are compared.
    turn = np.random.default_rng(seed).permutation(scores.size)
    place = np.append(np.argsort(turn), -1)
    moved = None if factor is None else conformal.NeighbourFactor(place[factor.neighbours], factor.log_factor)
    turned = conformal.WeightedScores(scores[turn], logs[turn])
    near = [level * (1 - 1e-9), min(level * (1 + 1e-9), 1 - 1e-12)]
    beside = conformal.WeightedScores(scores, logs).cutoffs(tests, near, factor)
    settled = beside[0] == beside[1]
    np.testing.assert_array_equal(turned.cutoffs(tests, level, moved)[0][settled], whole[0][settled])


@given(lists(), levels, st.integers(-60, 60), st.sampled_from(["upper", "lower"]))
def test_plain_weights_are_the_logarithms_and_a_common_factor_is_nothing(case, level, power, tail):
    """`weighted_cutoffs` against the definition, in exact fractions of the weights given."""
    scores, logs, tests = case
    weights, test_weights = np.exp2(np.clip(logs, -40, 40)), np.exp2(np.clip(tests, -40, 40))
    weights[np.isneginf(logs)] = 0.0
    found = conformal.weighted_cutoffs(scores, weights, test_weights=test_weights, coverage=level, tail=tail)[0]
    factor = 2.0**power
    np.testing.assert_array_equal(
        conformal.weighted_cutoffs(
            scores, factor * weights, test_weights=factor * test_weights, coverage=level, tail=tail
        )[0],
        found,
    )
    sign = 1.0 if tail == "upper" else -1.0
    for cut, own in zip(sign * found, test_weights):
        values = sign * scores
        enough = (1 - 1e-12) * Fraction(level) * (sum(map(Fraction, weights)) + Fraction(own))
        held = [v for v in sorted(values) if sum(map(Fraction, weights[values <= v])) >= enough]
        near = [v for v in sorted(values) if sum(map(Fraction, weights[values <= v])) >= enough * Fraction(1 - 1e-11)]
        if held[:1] == near[:1]:  # else rounding of the logarithms decides
            assert cut == (held[0] if held else np.inf)


@given(seeds, levels, st.sampled_from(["absolute", "signed"]), st.floats(1e-3, 1e3))
def test_uniform_weights_are_equal_odds_and_scales_are_positive(seed, level, name, odds):
    rng = np.random.default_rng(seed)
    turn, scores = rng.permutation(40), rng.normal(size=25)
    scores = scores if name == "signed" else np.abs(scores)
    one, other = (
        conformal.CalibratedScores(name, scores, turn[:25], weights)
        for weights in (conformal.UniformWeights(), conformal.OddsWeights(np.full(40, np.log(odds))))
    )
    bounds, same = (each.intervals(turn[25:], 0.0, 1.0, level) for each in (one, other))
    np.testing.assert_array_equal(bounds, same)
    leverage = rng.exponential(size=(8, 5)) * (rng.random((8, 5)) < 0.9)
    scale = conformal.LeverageScale(leverage).at(turn)
    assert (scale > 0).all() and (scale >= leverage.reshape(-1)[turn]).all()
    assert (conformal.UnitScale().at(turn) == 1).all()


@given(lists(), levels, st.integers(-100, 100))
def test_scaled_scores_have_scaled_cutoffs(case, level, power):
    scores, logs, tests = case
    unit = 2.0**power
    plain = conformal.WeightedScores(scores, logs).cutoffs(tests, level)
    np.testing.assert_array_equal(conformal.WeightedScores(scores * unit, logs).cutoffs(tests, level), plain * unit)


@given(
    st.sampled_from(["absolute", "adaptive", "signed", "normalized"]),
    st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=5),
    st.floats(1e-30, 1e30),
    st.floats(1e-3, 1e3),
)
def test_scores_and_intervals_undo_each_other(name, truths, unit, scale):
    score = conformal.as_score(name)
    kinds = {"absolute": conformal.Absolute, "adaptive": conformal.Adaptive, "normalized": conformal.Normalized}
    assert type(score) is kinds.get(name, conformal.Signed)
    truth, middle, scales = np.array(truths), np.zeros(len(truths)) + 0.5 * unit, np.full(len(truths), scale)
    s = score.score(truth, middle, scales)
    cuts = (s if name == "signed" else None, s)
    low, high = score.invert(middle, scales, *cuts)
    slack = 1e-12 * (np.abs(truth) + unit)
    assert (low <= truth + slack).all() and (truth <= high + slack).all()
    end = np.where(truth >= middle, high, low) if name != "signed" else high
    np.testing.assert_allclose(end, truth, rtol=1e-12, atol=1e-12 * unit)
    tails = score.tails(0.9)
    assert isinstance(tails, conformal.Tails)
    assert tails.upper == pytest.approx(0.95 if name == "signed" else 0.9) and (tails.lower is None) == (
        name != "signed"
    )


@given(lists(), st.data())
def test_diagnostics_stay_in_their_range(case, data):
    scores, logs, tests = case
    assume(np.isfinite(scores).all())
    factor = data.draw(st.none() | factors(tests.size, scores.size))
    kept = conformal.WeightedScores(scores, logs)
    some = np.isfinite(logs).sum()
    size, share = conformal.effective_sample_size(logs), conformal.largest_share(logs)
    if some:
        assert 1 - 1e-12 <= size <= some * (1 + 1e-12) and 1 / some - 1e-12 <= share <= 1
    else:
        assert size == 0 and np.isnan(share)
    if factor is not None:
        gap = conformal.weight_gap(kept, tests, factor)
        assert ((gap >= 0) & (gap <= 2 + 1e-12)).all()


def test_a_share_of_weights_too_small_for_any_number_is_still_a_share():
    """Found by a property test: e^-4604 is no double."""
    kept = conformal.WeightedScores([0.125], [0.0])
    factor = conformal.NeighbourFactor(np.full((4, 1), 0), np.full((4, 1), -4604.25))
    tests = np.array([-np.inf, -5000.0, -4604.25, 0.0])
    infinite = np.isinf(kept.cutoffs(tests, 0.4, factor)[0])
    assert infinite.tolist() == [False, False, False, True]


@st.composite
def calibrated(draw: Any) -> tuple[conformal.CalibratedScores, np.ndarray, np.ndarray]:
    """A calibrated list over 40 cells, its test entries, and their estimates; scores of any scale."""
    rng = np.random.default_rng(draw(seeds))
    turn = rng.permutation(40)
    entries, tests = turn[: draw(st.integers(1, 30))], turn[30:]
    scores = rng.exponential(size=entries.size) * 10.0 ** draw(st.integers(-30, 30))
    name = draw(st.sampled_from(["absolute", "signed"]))
    if name == "signed":
        scores *= rng.choice([-1, 1], entries.size)
    weights = conformal.OddsWeights(draw(st.sampled_from([0.0, 1.0, 300.0])) * rng.normal(size=40))
    estimate = scores.max() * rng.normal(size=tests.size)
    return conformal.CalibratedScores(name, scores, entries, weights), tests, estimate


@given(calibrated(), st.lists(levels, min_size=2, max_size=5))
def test_intervals_nest(case, asked):
    made, tests, estimate = case
    lower, upper = made.intervals(tests, estimate, 1.0, sorted(asked))
    assert (lower[1:] <= lower[:-1]).all() and (upper[1:] >= upper[:-1]).all()
    assert not np.isnan(lower).any() and not np.isnan(upper).any()
    one_by_one = [made.intervals(tests, estimate, 1.0, level) for level in sorted(asked)]
    np.testing.assert_array_equal(lower, np.concatenate([ends[0] for ends in one_by_one]))


@given(calibrated(), levels, st.floats(1.0, 20.0))
def test_robust_intervals_contain_the_plain_ones(case, level, odds_error):
    made, tests, estimate = case
    whole = np.zeros(40)
    whole[tests] = estimate
    split = CalibratedSplit(made, whole, conformal.UnitScale())
    lower, upper = split.intervals(tests, level)
    low, high = Robust(split, odds_error).intervals(tests, level)
    assert (low <= lower).all() and (high >= upper).all()
    robust = robust_level(level, odds_error)
    assert robust / (robust + odds_error**2 * (1 - robust)) == pytest.approx(level, rel=1e-9)


@given(seeds, levels, st.integers(1, 4))
def test_groups_are_numbered_as_one_likes_and_one_group_is_all(seed, level, groups):
    rng = np.random.default_rng(seed)
    turn, group = rng.permutation(60), rng.integers(groups, size=60)
    scores, weights = rng.exponential(size=40), conformal.OddsWeights(rng.normal(size=60))
    scored = conformal.CalibratedScores("absolute", scores, turn[:40], weights)
    plain = CalibratedSplit(scored, np.zeros(60), conformal.UnitScale())
    name = np.random.default_rng(1).permutation(groups) + 5
    one, other = (Grouped(plain, numbers) for numbers in (group, name[group]))
    for a, b in zip(*(g.intervals(turn[40:], level) for g in (one, other))):
        np.testing.assert_array_equal(a, b)
    if groups == 1:
        for a, b in zip(one.intervals(turn[40:], level), plain.intervals(turn[40:], level)):
            np.testing.assert_array_equal(a, b)


def select(scores, logs, limits, tests, fdr):
    return claimed(evidence(scores, logs, thresholds=limits, log_test_weights=tests, fdr=fdr), fdr)


@given(lists(), seeds, st.sampled_from([0.05, 0.2, 0.5]), st.integers(-80, 80))
def test_selection_does_not_mind_units_order_or_a_common_weight(case, seed, fdr, eighths):
    scores, logs, tests = case
    assume(np.isfinite(logs).all() and np.isfinite(tests).all() and np.isfinite(scores).all())
    rng = np.random.default_rng(seed)
    limits = np.rint(8 * rng.normal(size=tests.size)) / 8 - 1
    claims = select(scores, logs, limits, tests, fdr)
    shift = eighths / 8
    np.testing.assert_array_equal(select(4 * scores, logs + shift, 4 * limits, tests + shift, fdr), claims)
    turn = rng.permutation(tests.size)
    np.testing.assert_array_equal(select(scores, logs, limits[turn], tests[turn], fdr), claims[turn])
