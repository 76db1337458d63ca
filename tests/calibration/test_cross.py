"""Merged splits: the ends against a brute-force oracle, the promise, and what they gain over one split."""

from __future__ import annotations

import numpy as np
import pytest

import corten
from corten import simulate
from corten.conformal import CalibratedScores, ExactIsingWeights, OddsWeights, UnitScale
from corten.conformal.merged import MergedSplits
from corten.conformal.split import CalibratedSplit
from corten.data.observed import ObservedTensor
from corten.evidence import metrics
from corten.results.groups import lists_of

TUCKER = corten.TuckerCompletion(rank=3)


ORDERED = dict.fromkeys(range(3), "ordered")  # said, so that the kinds of axes are not searched for


def random_splits(rng, shape, count, exact, score="absolute"):
    """Splits over a small tensor with random scores, estimates and weights; some cells are missing."""
    size = int(np.prod(shape))
    parameter = rng.normal(size=size)
    law = corten.KnownPropensity(parameter.reshape(shape), coupling=0.2).fit(np.ones(shape, bool))
    observed = rng.random(size) < 0.7
    fold = rng.integers(count, size=size)
    splits = []
    for k in range(count):
        entries = np.flatnonzero(observed & (fold == k))
        scores = rng.normal(size=entries.size) if score == "signed" else rng.exponential(size=entries.size)
        logs = rng.normal(size=size)
        weights = (
            ExactIsingWeights(logs, shape=shape, calibration=entries, neighbours=law.neighbours, pair=law.pair)
            if exact
            else OddsWeights(logs)
        )
        estimate = rng.normal(scale=0.3, size=shape)
        splits.append(CalibratedSplit(CalibratedScores(score, scores, entries, weights), estimate, UnitScale()))
    return splits, np.flatnonzero(~observed)


def mean_p(splits, test, x, sign, two_sided):
    """The mean p-value of x by the definition, one split after another."""
    total = 0.0
    for one in splits:
        calibrated = one.scored
        logs = calibrated.weights.log_weight(calibrated.entries).astype(float).copy()
        factor = calibrated.weights.neighbour_factor(np.array([test]))
        if factor is not None:
            for k, f in zip(factor.neighbours[0], factor.log_factor[0], strict=True):
                if k >= 0:
                    logs[k] += f
        weight = np.exp(logs)
        own = np.exp(calibrated.weights.log_weight(np.array([test]))[0])
        d = sign * (x - one.estimate.reshape(-1)[test])
        scores = sign * one.scores if two_sided else one.scores
        if not two_sided:
            d = max(d, 0.0)
        total += (weight[scores >= d].sum() + own) / (weight.sum() + own)
    return total / len(splits)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("score", ["absolute", "signed"])
def test_ends_are_where_the_mean_p_value_falls_to_the_level(exact, score):
    rng = np.random.default_rng(3)
    splits, tests = random_splits(rng, (5, 6, 7), 3, exact, score)
    merged = MergedSplits(splits)
    for level in (0.6, 0.8):
        alpha = (1 - level) / (2 if score == "signed" else 1)
        lower, upper = merged.intervals(tests, level)
        finite = 0
        for t, low, high in zip(tests, lower[0], upper[0], strict=True):
            for sign, end in ((1.0, high), (-1.0, low)):
                if np.isinf(end):
                    assert mean_p(splits, t, sign * 1e9, sign, score == "signed") > alpha
                    continue
                finite += 1
                assert mean_p(splits, t, end + sign * 1e-9, sign, score == "signed") <= alpha * (1 + 1e-6)
                assert mean_p(splits, t, end - sign * 1e-3, sign, score == "signed") > alpha * (1 - 1e-6)
        assert finite > tests.size


def test_the_same_split_many_times_is_that_split():
    rng = np.random.default_rng(4)
    splits, tests = random_splits(rng, (6, 6, 6), 2, True)
    one = splits[0]
    merged = MergedSplits([one, one, one])
    expected = one.intervals(tests, 0.7)
    for got, wanted in zip(merged.intervals(tests, 0.7), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


def test_every_observed_entry_is_hidden_once():
    x = simulate.paper_setting(10, 2, model="bernoulli", seed=1).observed
    observed = ObservedTensor.of(x)
    plan = corten.CrossCalibration(folds=4).plan(observed, 7)
    assert len(plan.rounds) == 4
    np.testing.assert_array_equal(sum(one.hidden.astype(int) for one in plan.rounds), observed.mask.astype(int))
    for one in plan.rounds:
        np.testing.assert_array_equal(one.train, observed.mask & ~one.hidden)
        assert one.train_share == 0.75
    splits = corten.RepeatedSplits(splits=3).plan(observed, 7).rounds
    assert len({one.hidden.tobytes() for one in splits}) == 3


def test_merged_splits_cover_and_gain_steadiness():
    """Ten draws of the split over one data set: coverage near 90 %, and it moves less than with a single
    split.
    """
    setting = simulate.paper_setting(24, 2, model="bernoulli", seed=2)
    propensity = corten.BernoulliPropensity(rank=2)
    shares = {"one": [], "cross": []}
    for seed in range(10):
        for name, calibration in (("one", "random"), ("cross", corten.CrossCalibration(4))):
            fitted = corten.ConformalCompleter(
                completion=corten.TuckerCompletion(rank=3), propensity=propensity, calibration=calibration, seed=seed
            ).fit(setting.observed, axis_kinds=ORDERED)
            shares[name].append(metrics.coverage(setting.data, fitted.intervals(0.9)))
    assert min(shares["cross"]) > 0.8, "the promise: 1 - 2 (1 - c)"
    assert abs(np.mean(shares["cross"]) - 0.9) < 0.03
    assert np.std(shares["cross"]) < 0.8 * np.std(shares["one"])


@pytest.mark.slow
def test_cross_conformal_on_the_papers_setting():
    """Mean width no wider (to half a percent at equal draws), standard deviation over seeds at least a fifth
    smaller.
    """
    propensity = corten.IsingPropensity(coupling=1 / 15, rank=3)
    found = {"one": [], "cross": []}
    for seed in range(12):
        setting = simulate.paper_setting(40, 3, seed=seed)
        for name, calibration in (("one", "random"), ("cross", "cross")):
            fitted = corten.ConformalCompleter(
                completion=TUCKER, propensity=propensity, calibration=calibration, seed=seed
            ).fit(setting.observed)
            result = fitted.intervals(0.9)
            found[name].append((metrics.coverage(setting.data, result), metrics.width(result)))
    one, cross = np.array(found["one"]), np.array(found["cross"])
    assert cross[:, 0].std() < 0.8 * one[:, 0].std()
    assert cross[:, 1].mean() < 1.005 * one[:, 1].mean()


def test_a_merged_fit_behaves_like_any_other(tmp_path):
    setting = simulate.paper_setting(16, 2, model="bernoulli", seed=3)
    completer = corten.ConformalCompleter(
        completion=TUCKER, propensity=corten.BernoulliPropensity(rank=2), calibration=corten.RepeatedSplits(3)
    )
    fitted = completer.fit(setting.observed)
    result = fitted.intervals(0.9)
    assert (result.at(0.95).width_array >= result.width_array).all()
    assert "merged" in str(result.summary(full=True))
    assert fitted.weights.report().calibration_entries == fitted.entries.size
    assert fitted.intervals(0.9, odds_error=1.2).width_array.mean() >= result.width_array.mean()
    audit = fitted.audit(rounds=2, levels=(0.9,), reference=corten.BernoulliPropensity(rank=2))
    assert audit.coverage(0.9) > 0.7
    signed = corten.ConformalCompleter(
        completion=TUCKER, propensity="uniform", calibration="cross", score="signed"
    ).fit(setting.observed)
    assert abs(metrics.coverage(setting.data, signed.intervals(0.8)) - 0.8) < 0.15


def test_wrong_numbers_are_refused():
    for wrong in (1, 0, 2.5, True):
        with pytest.raises(ValueError, match="folds"):
            corten.CrossCalibration(folds=wrong)
        with pytest.raises(ValueError, match="splits"):
            corten.RepeatedSplits(splits=wrong)
    with pytest.raises(ValueError, match="too few"):
        corten.CrossCalibration(folds=5).plan(ObservedTensor.of([[1.0, 2.0], [3.0, float("nan")]]), 0)


def test_a_setting_chosen_in_one_split_is_never_used_in_another():
    """Values that are hidden in a split change nothing of what it learned: its estimate, transform and odds."""
    rng = np.random.default_rng(5)
    signal = 0.5 * rng.normal(size=(12, 1, 1)) + 0.5 * rng.normal(size=(1, 11, 10))
    truth = np.exp(signal + 0.1 * rng.normal(size=(12, 11, 10)))
    x = np.where(rng.random(truth.shape) < 0.6, truth, np.nan)
    completer = corten.ConformalCompleter(
        corten.TuckerCompletion(rank=2), corten.BernoulliPropensity(), corten.CrossCalibration(3), transform="box-cox"
    )
    before = completer.fit(x)
    for number, one in enumerate(before.rounds):
        moved = np.where(one.hidden, 3.0 * x, x)
        after = completer.fit(moved)
        old, new = before.calibrated.splits[number], after.calibrated.splits[number]
        np.testing.assert_array_equal(new.estimate, old.estimate)
        assert new.change == old.change
        every = np.arange(x.size)
        np.testing.assert_array_equal(new.weights.log_weight(every), old.weights.log_weight(every))
        pairs = zip(before.calibrated.splits, after.calibrated.splits, strict=True)
        moved = [not np.array_equal(one.estimate, two.estimate) for one, two in pairs]
        assert sum(moved) == 2 and not moved[number], "the others trained on them"


def skewed(seed, shape=(24, 12, 12)):
    """A field of positive values whose days differ, with a third of it missing."""
    rng = np.random.default_rng(seed)
    usual = 0.4 * rng.normal(size=(1, *shape[1:]))
    truth = np.exp(usual + 0.3 * rng.normal(size=(shape[0], 1, 1)) + 0.3 * rng.normal(size=shape))
    return truth, np.where(rng.random(shape) < 0.65, truth, np.nan)


def flat(x):
    """A completion that knows the mean only: errors are the field's own."""
    return np.full(x.shape, np.nanmean(x))


@pytest.mark.parametrize("transform, climatology", [("log", None), (None, "axis_0"), ("box-cox", None)])
def test_merged_splits_cover_through_a_transform(transform, climatology):
    shares = []
    for seed in range(5):
        truth, x = skewed(seed)
        fitted = corten.ConformalCompleter(
            completion=flat, propensity="uniform", calibration=corten.CrossCalibration(4), transform=transform,
            climatology=climatology, seed=seed,
        ).fit(x, axis_kinds=ORDERED)  # fmt: skip
        result = fitted.intervals(0.9)
        shares.append(metrics.coverage(truth, result))
        assert (result.lower_array <= result.estimate_array).all()
        if transform:
            assert (result.lower_array > 0).all()
    assert abs(np.mean(shares) - 0.9) < 0.02


def test_a_change_of_variable_of_one_split_is_that_splits_own():
    """One split thrice, through a log: the ends are those of the plain split, mapped back."""
    _, x = skewed(1)
    plain = corten.ConformalCompleter(completion=flat, propensity="uniform", calibration="random", transform="log").fit(
        x
    )
    (single,) = lists_of(plain)
    merged = MergedSplits([single, single, single])
    lower, upper = plain.bounds(0.9)
    where = plain.missing_entries
    low, high = merged.intervals(where, 0.9)
    np.testing.assert_allclose(low[0], lower.reshape(-1)[where], rtol=1e-7)
    np.testing.assert_allclose(high[0], upper.reshape(-1)[where], rtol=1e-7)
    low, high = merged.intervals(where, 0.99999)
    assert (low == 0).all() and np.isinf(high).all(), "too much asked: the whole range"


@pytest.fixture(scope="module")
def merged_fits():
    """Five data sets, each with a hard part, fitted by folds."""
    fits = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        truth = np.repeat([0.3, 2.0], 4)[:, None, None] * rng.normal(size=(8, 24, 24))
        x = np.where(rng.random(truth.shape) < 0.5, truth, np.nan)
        completer = corten.ConformalCompleter(
            completion=np.zeros_like, propensity="uniform", calibration=corten.CrossCalibration(4), seed=seed
        )
        fits.append((truth, completer.fit(x, axis_kinds=ORDERED)))
    return fits


def test_merged_splits_cover_each_group(merged_fits):
    groups = [metrics.coverage_by_slice(t, f.intervals(0.9, groups="axis_0"), 0) for t, f in merged_fits]
    shares = np.array([[one.coverage for one in found] for found in groups]).mean(axis=0)
    plain = np.array([
        [one.coverage for one in metrics.coverage_by_slice(t, f.intervals(0.9), 0)] for t, f in merged_fits
    ]).mean(axis=0)  # fmt: skip
    assert plain[4:].max() < 0.87 and np.abs(shares - 0.9).max() < 0.05 and abs(shares.mean() - 0.9) < 0.02


def test_merged_quantiles_and_draws_follow_one_law(merged_fits):
    for level in (0.1, 0.5, 0.8):
        below = [np.mean((t <= f.intervals(0.9).quantile(level))[f.observed.missing]) for t, f in merged_fits]
        assert np.mean(below) == pytest.approx(level, abs=0.02)
    truth, fitted = merged_fits[0]
    result = fitted.intervals(0.8)
    drawn = result.draws(60, seed=1)
    missing = fitted.observed.missing
    assert (drawn[:, ~missing] == truth[~missing]).all()
    for level in (0.2, 0.8):
        assert np.mean((drawn <= result.quantile(level))[:, missing]) == pytest.approx(level, abs=0.01)


def test_merged_splits_hold_slices_and_means(merged_fits):
    held, covered = [], []
    for truth, fitted in merged_fits:
        joint = fitted.intervals(0.9, joint="axis_1")
        inside = (joint.lower_array <= truth) & (truth <= joint.upper_array)
        held.append(inside.all(axis=(0, 2)).mean())
        mean = fitted.intervals(0.8).mean("axis_1", "axis_2")
        true = truth.mean(axis=(1, 2))
        covered.append(np.mean((mean.lower <= true) & (true <= mean.upper)))
    assert np.mean(held) > 0.85 and np.mean(covered) > 0.75


def test_merged_claims_hold_the_false_discovery_rate():
    """Through a log as well: the threshold is asked in the data's own units."""
    for transform in (None, "log"):
        false, power = [], []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            signal = 1.5 * np.sign(np.linspace(-1, 1, 12))[:, None, None] * np.ones((12, 14, 14))
            truth = signal + rng.normal(scale=0.7, size=signal.shape)
            mask = rng.random(truth.shape) < 0.5
            own = truth if transform is None else np.exp(truth)
            fitted = corten.ConformalCompleter(
                completion=lambda x, signal=signal: signal, propensity="uniform",
                calibration=corten.CrossCalibration(4), transform=transform, seed=seed,
            ).fit(np.where(mask, own, np.nan), axis_kinds=ORDERED)  # fmt: skip
            limit = 0.0 if transform is None else 1.0
            claims = fitted.intervals(0.9).exceedance(limit, fdr=0.1)
            false.append(np.sum(claims & (own <= limit)) / max(claims.sum(), 1))
            power.append(np.sum(claims & (own > limit)) / np.sum(~mask & (own > limit)))
        assert np.mean(false) <= 0.1 and np.mean(power) > 0.8


@pytest.mark.parametrize("size", [50.0, 1e4])
def test_neighbours_that_gain_or_lose_nearly_all_weight_leave_p_values_right(size):
    """Against logarithms summed anew for every value; differences of sums would overflow or lose all digits."""
    rng = np.random.default_rng(8)
    shape, logs = (4, 5, 6), np.zeros(120)
    entries, tests = np.arange(0, 80), np.arange(80, 120)
    logs[entries[::7]] = size
    law = corten.KnownPropensity(rng.normal(size=shape)).fit(np.ones(shape, bool))
    splits = []
    for _ in range(2):
        weights = ExactIsingWeights(
            logs, shape=shape, calibration=entries, neighbours=law.neighbours,
            pair=lambda a, b: np.where((a + b) % 2, size, -size) / 4,
        )  # fmt: skip
        scores = rng.exponential(size=entries.size)
        estimate = rng.normal(scale=0.3, size=shape)
        splits.append(CalibratedSplit(CalibratedScores("absolute", scores, entries, weights), estimate, UnitScale()))
    lower, upper = MergedSplits(splits).intervals(tests, 0.6)
    assert np.isfinite(upper).any() and not np.isnan(upper).any() and (lower <= upper).all()
    for t, end in zip(tests, upper[0]):
        for x, above in ((end + 1e-3, False), (end - 1e-3, True)):
            if np.isfinite(x) and end > np.mean([one.estimate.reshape(-1)[t] for one in splits]):
                assert (log_mean_p(splits, t, x) > 0.4) == above


def log_mean_p(splits, test, x):
    """The mean p-value above the estimate, from log-weights."""
    total = 0.0
    for one in splits:
        calibrated = one.scored
        logs = np.array(calibrated.weights.log_weight(calibrated.entries), float)
        factor = calibrated.weights.neighbour_factor(np.array([test]))
        near = factor.neighbours[0] >= 0
        np.add.at(logs, factor.neighbours[0][near], factor.log_factor[0][near])
        own = float(calibrated.weights.log_weight(np.array([test]))[0])
        beyond = calibrated.scores >= max(x - one.estimate.reshape(-1)[test], 0.0)
        whole = np.logaddexp.reduce(np.append(logs, own))
        total += np.exp(np.logaddexp.reduce(np.append(logs[beyond], own)) - whole)
    return total / len(splits)
