"""The weight report and intervals that are robust to wrong odds: their claims, on settings where the truth is
known.
"""

from __future__ import annotations

import numpy as np
import pytest

import corten
from corten import simulate
from corten.conformal import WeightedScores
from corten.conformal.raking import rake
from corten.conformal.shaped import robust_level, tolerated_odds_error
from corten.evidence.weight_report import reliability

TUCKER = corten.TuckerCompletion(rank=2)
SHAPE = (24, 24, 24)


def worst_coverage(coverage, odds_error):
    """The lowest coverage of an interval of this level if odds are wrong by a factor of up to `odds_error`."""
    return coverage / (coverage + odds_error**2 * (1.0 - coverage))


@pytest.fixture(scope="module")
def fitted():
    x = simulate.paper_setting(24, 2, model="bernoulli", seed=4).observed
    return corten.ConformalCompleter(
        completion=TUCKER, propensity=corten.BernoulliPropensity(rank=2), calibration="random"
    ).fit(x)


@pytest.fixture(scope="module")
def report(fitted):
    return fitted.weights.report()


def test_the_report_counts_what_the_weights_say(fitted, report):
    weight = np.exp(fitted.log_weights.astype(float))
    assert report.effective_sample_size == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert report.largest_share == pytest.approx(weight.max() / weight.sum())
    first = weight[np.unravel_index(fitted.entries, SHAPE)[1] == 5]
    assert report.slices["axis_1"][5] == pytest.approx(first.sum() ** 2 / (first**2).sum())
    assert set(report.slices) == {"axis_0", "axis_1", "axis_2"}


def test_infinite_shares_rise_with_coverage_and_agree_with_the_intervals(fitted, report):
    shares = list(report.infinite.values())
    assert shares == sorted(shares)
    width = fitted.intervals(0.9).width_array[fitted.observed.missing]
    assert report.infinite[0.9] == pytest.approx(np.isinf(width).mean(), abs=1e-12)
    every, most = report.highest_finite
    assert every <= most
    lower, upper = fitted.bounds(every)
    assert np.isfinite((upper - lower)[fitted.observed.missing]).all()
    lower, upper = fitted.bounds(min(every + 1e-3, 0.99999))
    assert not np.isfinite((upper - lower)[fitted.observed.missing]).all()


def test_the_report_reads_well(report):
    text = str(report)
    assert "effective sample size" in text and "factor 1.26" in text
    assert "<table>" in report._repr_html_()
    assert report.to_dict()["coverage"] == 0.9


def test_overlap_is_missing_where_no_calibration_entry_is_alike(fitted):
    overlap = fitted.weights.overlap
    assert np.isnan(overlap[fitted.observed.mask]).all()
    where = fitted.missing_entries[7]
    own = fitted.calibrated.weights.log_weight(np.array([where]))[0]
    alike = np.abs(fitted.log_weights - own) < np.log(2)
    assert abs(overlap.reshape(-1)[where] - alike.sum()) <= 1


def test_the_reliability_curve_of_the_true_model_is_straight_and_of_a_wrong_one_bent():
    parameter = simulate.block_parameter((30, 30, 30), 2, 1, noise=0.0)
    mask = simulate.ising(parameter, coupling=0.1, seed=2)
    train = mask & (np.random.default_rng(3).random(mask.shape) < 0.7)
    model = corten.KnownPropensity(parameter, coupling=0.1).fit(mask)
    bins = reliability(model, mask, train, 0.7)
    assert sum(b.entries for b in bins) == np.count_nonzero(~train)
    assert all(abs(b.observed - b.predicted) < 4 * b.standard_error for b in bins)
    flat = corten.UniformPropensity().fit(train, 0.7)
    steep = corten.KnownPropensity(2 * parameter).fit(mask)
    assert abs(reliability(flat, mask, train, 0.7)[0].observed - mask.mean()) < 0.01
    assert any(abs(b.observed - b.predicted) > 6 * b.standard_error for b in reliability(steep, mask, train, 0.7))


def test_robust_cutoffs_are_the_worst_case_over_all_odds_within_the_factor():
    """Brute force: for every cutoff the worst weights are extreme, so all are tried; the closed form picks the
    same score.
    """
    rng = np.random.default_rng(0)
    for trial in range(30):
        n, factor, level = 25, 1.0 + 1.5 * rng.random(), 0.6 + 0.3 * rng.random()
        scores, weights, test = np.sort(rng.normal(size=n)), rng.gamma(1.0, size=n) + 0.05, rng.gamma(1.0)
        robust = WeightedScores(scores, np.log(weights)).cutoffs(np.log([test]), robust_level(level, factor)).item()
        expected = np.inf
        for cut in scores:
            below = weights[scores <= cut].sum() / factor
            above = weights[scores > cut].sum() * factor + test * factor
            if below >= level * (below + above) * (1 - 1e-12):
                expected = cut
                break
        assert robust == expected, trial
        assert worst_coverage(robust_level(level, factor), factor) == pytest.approx(level)


def test_robust_intervals_cover_where_the_odds_are_wrong_by_that_factor():
    """Odds wrong in the worst direction, by a factor of two: plain intervals fail, robust ones hold."""
    rng = np.random.default_rng(5)
    n, tests, factor, plain, robust = 400, 400, 2.0, [], []
    for _ in range(60):
        score = rng.exponential(size=n + tests)
        hard = score > np.quantile(score, 0.8)
        true_odds = np.where(hard, factor, 1 / factor)
        chance = 1 / (1 + true_odds)
        seen = rng.random(score.size) < chance
        lists = WeightedScores(score[seen], np.zeros(seen.sum()))
        for level, out in ((0.8, plain), (robust_level(0.8, factor), robust)):
            cut = lists.cutoffs(np.zeros(1), level).item()
            out.append(np.mean(score[~seen] <= cut))
    assert np.mean(plain) < 0.72
    assert np.mean(robust) >= 0.79


def test_a_fit_gives_robust_intervals(fitted):
    plain, robust = fitted.intervals(0.9), fitted.intervals(0.9, odds_error=1.5)
    assert robust.coverage == 0.9
    missing = fitted.observed.missing
    assert (robust.width_array[missing] >= plain.width_array[missing]).all()
    np.testing.assert_array_equal(robust.width_array, fitted.intervals(robust_level(0.9, 1.5)).width_array)
    np.testing.assert_array_equal(fitted.intervals(0.9, odds_error=1.0).width_array, plain.width_array)
    assert "1.5" in str(robust.summary())
    with pytest.raises(ValueError, match="odds_error is"):
        fitted.intervals(0.9, odds_error=0.5)


def test_tolerated_errors():
    assert worst_coverage(0.9, tolerated_odds_error(0.9)) == pytest.approx(0.85)
    assert tolerated_odds_error(0.9, infinite_share=0.5) > tolerated_odds_error(0.9)


def test_tilts_say_that_constant_noise_does_not_mind_wrong_odds():
    shape = (24, 24, 24)
    parameter = simulate.block_parameter(shape, 2, 7, noise=0.0)
    signal = simulate.tucker_signal(shape, 2, 8)
    mask = simulate.bernoulli(parameter, seed=10)
    loss = {}
    for kind in ("constant", "adversarial"):
        data = signal + simulate.noise(parameter, kind, signal, seed=9)
        fit = corten.ConformalCompleter(
            completion=TUCKER, propensity=corten.KnownPropensity(parameter), calibration="random"
        ).fit(np.where(mask, data, np.nan))
        tilts = fit.weights.tilts(0.9)
        assert tilts[1.0] == pytest.approx(0.9, abs=0.01)
        loss[kind] = tilts[0.0] - tilts[2.0]
    assert abs(loss["constant"]) < 0.06 < 0.1 < loss["adversarial"]


def test_raking_makes_observed_entries_stand_for_the_missing_ones():
    parameter = simulate.block_parameter((20, 20, 20), 2, 3, noise=0.0)
    mask = simulate.bernoulli(parameter, seed=4)
    raked = np.exp(rake(-0.7 * parameter, mask, ~mask))
    for axis in range(3):
        others = tuple(k for k in range(3) if k != axis)
        np.testing.assert_allclose((raked * mask).sum(axis=others), (~mask).sum(axis=others), rtol=0.02)
    before = np.abs(-0.7 * parameter + parameter).mean()
    assert np.abs(np.log(raked) + parameter).mean() < 0.6 * before


def test_nothing_missing_has_no_weights():
    complete = corten.ConformalCompleter(completion=TUCKER, calibration="random").fit(np.ones((4, 4)))
    with pytest.raises(ValueError, match="no weights"):
        _ = complete.weights
