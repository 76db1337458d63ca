"""Means, groups, joint intervals and selections keep their coverage on data whose truth is known.

The completion is zero everywhere, so that errors are exactly the simulated ones and many data sets can be drawn.
"""

from __future__ import annotations

import numpy as np
import pytest

import corten
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import UnitScale
from corten.conformal.selection import claimed, evidence
from corten.conformal.shaped import Joint, borrowing_factor
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.evidence import metrics
from corten.results.groups import group_numbers, joint_budget

ORDERED = dict.fromkeys(range(3), "ordered")  # said, so that the kinds of axes are not searched for


def nothing(x):
    return np.zeros_like(x)


def drawn(seed, shape=(40, 16, 16), slice_sd=1.0, hard=False, share=0.5):
    """Errors with a part common to each slice of the first axis; with `hard`, large where entries go missing."""
    rng = np.random.default_rng(seed)
    errors = slice_sd * rng.normal(size=(shape[0], 1, 1)) + rng.normal(size=shape)
    parameter = np.full(shape, np.log((1 - share) / share))
    if hard:
        parameter = parameter + np.broadcast_to(np.linspace(-1.5, 1.5, shape[2]), shape)
        errors = errors * np.exp(-0.5 * np.broadcast_to(np.linspace(-1.5, 1.5, shape[2]), shape))
    mask = rng.random(shape) < 1 / (1 + np.exp(-parameter))
    return errors, np.where(mask, errors, np.nan), parameter


def fit(x, parameter, seed=0, **options):
    completer = corten.ConformalCompleter(
        completion=nothing, propensity=corten.KnownPropensity(parameter), calibration="random", seed=seed, **options
    )
    return completer.fit(x, axis_kinds=ORDERED)


def slices_held(truth, result):
    """Share of slices of the first axis whose missing entries are all inside."""
    inside = (result.lower_array <= truth) & (truth <= result.upper_array)
    return float(np.mean(inside.all(axis=(1, 2))))


def mean_width(result):
    width = result.width_array[result.observed.missing]
    return float(width[np.isfinite(width)].mean())


def bonferroni(fitted, level):
    """Each slice at level 1 - (1 - c)/m."""
    widths = []
    numbers = np.unravel_index(fitted.missing_entries, fitted.observed.shape)[0]
    for number in np.unique(numbers):
        here = fitted.missing_entries[numbers == number]
        wanted = 1 - (1 - level) / here.size
        low, high = fitted.calibrated.intervals(here, wanted)
        widths.append((high - low)[0])
    widths = np.concatenate(widths)
    return float(np.where(np.isinf(widths), np.nan, widths).mean())


@pytest.mark.parametrize("slice_sd", [pytest.param(0.7, marks=pytest.mark.slow), 3.0])
def test_joint_bands_hold_whole_slices_and_are_narrower_than_bonferroni(slice_sd):
    held, entrywise, narrow, wide = [], [], [], []
    for seed in range(20):
        truth, x, parameter = drawn(seed, (80, 10, 10), slice_sd)
        fitted = fit(x, parameter, seed)
        joint = fitted.intervals(0.9, joint="axis_0")
        held.append(slices_held(truth, joint))
        entrywise.append(slices_held(truth, fitted.intervals(0.9)))
        narrow.append(mean_width(joint))
        wide.append(bonferroni(fitted, 0.9))
    assert abs(np.mean(held) - 0.9) < 0.03
    assert np.mean(entrywise) < 0.7, "the entrywise band is no joint band"
    assert np.mean(narrow) < 0.98 * np.mean(wide)


def test_joint_bands_hold_under_uneven_odds_where_bonferroni_is_infinite():
    held, infinite = [], []
    for seed in range(20):
        truth, x, parameter = drawn(seed, (80, 10, 10), 3.0, hard=True)
        fitted = fit(x, parameter, seed)
        joint = fitted.intervals(0.9, joint="axis_0")
        held.append(slices_held(truth, joint))
        infinite.append(metrics.infinite_share(joint))
        assert np.isnan(bonferroni(fitted, 0.9))
    assert abs(np.mean(held) - 0.9) < 0.045, "three points and a standard error of seven tenths, twice"
    assert max(infinite) == 0.0


def test_joint_bands_of_few_large_slices_hold_beyond_the_largest_error_seen():
    """Twenty maps of 200 missing entries, 1200 calibration entries: the levels needed have none beyond them."""
    held = []
    for seed in range(30):
        truth, x, parameter = drawn(seed, (20, 20, 20), 1.0)
        joint = fit(x, parameter, seed).intervals(0.9, joint="axis_0")
        assert np.isfinite(joint.width_array).all()
        held.append(slices_held(truth, joint))
    assert abs(np.mean(held) - 0.9) < 0.05, "three points and two standard errors"


@pytest.mark.parametrize("heavy", [1.0, 9.0])
def test_far_levels_of_joint_bands_are_missed_as_often_as_asked(heavy):
    """A fifth of the missing entries, or half if heavy, is of a hard kind that alone lies beyond 1: miss (2 - c) / 2.

    Leaving k of n entries beyond, as without any mass of the test entry, is missed with chance (k + 1) / (n + 1): seven
    standard errors more than asked, or eleven.
    """
    hard, share = (np.arange(200) % 5 == 0, 0.05) if heavy == 1.0 else (np.arange(200) % 10 == 0, 0.1)
    logs = np.append(np.where(hard, np.log(heavy), 0.0), 0.0)
    part = heavy * hard.sum() / np.exp(logs[:-1]).sum()
    rng, missed = np.random.default_rng(0), []
    for _ in range(600):
        scores = rng.random(200) * np.where(hard, 2.0, 1.0)
        weights = PooledWeights(np.arange(200), logs[:-1], logs)
        scored = CalibratedScores("absolute", scores, np.arange(200), weights)
        calibrated = CalibratedSplit(scored, np.zeros(201), UnitScale())
        band = Joint(calibrated, np.zeros(201, int), np.array([200]), lambda c, m: share)
        cutoff = float(band.intervals(np.array([200]), 0.9)[1][0, 0])
        missed.append(part * (2.0 - cutoff) / 2.0)
    assert np.mean(missed) <= share + 2.0 * np.std(missed) / np.sqrt(600)
    assert np.mean(missed) > 0.8 * share


def test_the_budget_is_bonferronis_for_independent_errors_and_grows_where_they_go_together():
    found = {}
    for sd in (0.0, 3.0):
        budgets = []
        for seed in range(6):
            _, x, parameter = drawn(seed, (80, 10, 10), sd)
            fitted = fit(x, parameter, seed)
            budgets.append(joint_budget(fitted, group_numbers(fitted.observed, "axis_0")[0])(0.9, 50))
        found[sd] = np.mean(budgets)
    assert 0.08 < found[0.0] < 0.16 and found[3.0] > 2.0 * found[0.0]
    budget = joint_budget(fitted, group_numbers(fitted.observed, "axis_0")[0])
    assert budget(0.995, 50) == pytest.approx(0.005), "80 slices cannot say what one in 200 needs: Bonferroni"


def test_groups_cover_each_by_itself():
    """Groups of very different difficulty: the plain band fails the hard ones, the grouped band holds all."""
    rng = np.random.default_rng(1)
    spread = np.repeat([0.2, 1.0, 5.0, 1.0], 5)[:, None, None]
    plain, grouped = [], []
    for seed in range(30):
        truth = spread * rng.normal(size=(20, 20, 20))
        x = np.where(rng.random(truth.shape) < 0.5, truth, np.nan)
        fitted = fit(x, np.zeros(truth.shape), seed)
        for out, result in ((plain, fitted.intervals(0.9)), (grouped, fitted.intervals(0.9, groups="axis_0"))):
            out.append([one.coverage for one in metrics.coverage_by_slice(truth, result, 0)])
    plain, grouped = np.mean(plain, axis=0), np.mean(grouped, axis=0)
    assert plain[10:15].max() < 0.8 and plain[:5].min() > 0.99
    assert np.abs(grouped - 0.9).max() < 0.03


def test_small_groups_borrow_and_large_ones_do_not():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(20, 20, 20))
    x = np.where(rng.random(truth.shape) < 0.5, truth, np.nan)
    x[3] = np.where(rng.random((20, 20)) < 0.02, truth[3], np.nan)
    fitted = fit(x, np.zeros(truth.shape))
    result = fitted.intervals(0.9, groups="axis_0")
    assert np.isfinite(result.width_array).all()
    for number, borrows in ((3, True), (5, False)):
        of_others = fitted.entries // 400 != number
        weights = np.exp(result.source.calibrated._list(number).log_weights)
        assert (weights[of_others] > 0).all() == borrows and (weights[~of_others] > 0).all()
    labels = np.array(["a", "b"])[(np.arange(20) > 9).astype(int)][:, None, None]
    own = fitted.intervals(0.9, groups=labels)
    assert len(np.unique(own.width_array[fitted.observed.missing])) == 2
    with pytest.raises(ValueError, match="groups has shape"):
        fitted.intervals(0.9, groups=np.arange(20))


def test_borrowing_is_as_little_as_it_takes():
    logs = np.zeros(500)
    own = np.arange(500) < 50
    share = borrowing_factor(logs, own, 100.0)
    weight = np.where(own, 1.0, share)
    assert weight.sum() == pytest.approx(100.0)
    heavy = np.where(np.arange(500) == 0, 5.0, 0.0)
    weight = np.exp(heavy) * np.where(own, 1.0, borrowing_factor(heavy, own, 100.0))
    assert weight.sum() ** 2 / (weight**2).sum() < 100.0, "one entry outweighs all others: everything is borrowed"
    np.testing.assert_array_equal(weight[1:], 1.0)


@pytest.mark.parametrize("hard", [pytest.param(False, marks=pytest.mark.slow), True])
def test_means_over_a_region_are_covered(hard):
    """The mean of a whole slice, errors with a common part: covered as asked; treating entries alone would be
    far too sure.
    """
    covered, naive = [], []
    for seed in range(30):
        truth, x, parameter = drawn(seed, slice_sd=0.5, hard=hard)
        fitted = fit(x, parameter, seed)
        mean = fitted.intervals(0.8).mean("axis_1", "axis_2")
        true = truth.mean(axis=(1, 2))
        covered.append(np.mean((mean.lower <= true) & (true <= mean.upper)))
        filled = np.where(np.isnan(x), 0.0, x).mean(axis=(1, 2))
        sure = 1.28 * np.nanstd(x) * np.sqrt(np.isnan(x).sum(axis=(1, 2))) / x[0].size
        naive.append(np.mean(np.abs(filled - true) <= sure))
    assert 0.77 < np.mean(covered) < 0.97
    assert np.mean(naive) < 0.5


def test_a_mean_over_everything_is_one_number_with_an_interval():
    covered, width = [], []
    for seed in range(30):
        truth, x, parameter = drawn(seed, shape=(16, 12, 12), slice_sd=0.0)
        fitted = fit(x, parameter, seed)
        mean = fitted.intervals(0.9).mean()
        covered.append(mean.lower <= truth.mean() <= mean.upper)
        width.append(mean.upper - mean.lower)
    assert np.mean(covered) >= 0.8
    assert np.mean(width) < 1.0, "far narrower than a single entry's interval"


def test_a_mean_keeps_labels_and_what_is_observed_is_known():
    xr = pytest.importorskip("xarray")
    truth, x, parameter = drawn(3)
    x[0] = truth[0]
    labelled = xr.DataArray(x, dims=("time", "lat", "lon"), coords={"time": np.arange(40)}, name="tec")
    mean = fit(labelled, parameter).intervals(0.9).mean("lat", "lon")
    assert mean.estimate.dims == ("time",) and mean.over == ("lat", "lon")
    assert mean.lower[0] == mean.upper[0] == pytest.approx(truth[0].mean())
    assert (mean.upper[1:] > mean.lower[1:]).all()


def test_predictive_quantiles_are_right():
    shares = {level: [] for level in (0.1, 0.3, 0.5, 0.7, 0.9)}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        truth = rng.exponential(size=(20, 20, 20))
        x = np.where(rng.random(truth.shape) < 0.5, truth, np.nan)
        result = fit(x, np.zeros(truth.shape), seed).intervals(0.9)
        for level, out in shares.items():
            cut = result.quantile(level)
            out.append(np.mean(truth[result.observed.missing] <= cut[result.observed.missing]))
            assert (cut[result.observed.mask] == truth[result.observed.mask]).all()
    for level, out in shares.items():
        assert np.mean(out) == pytest.approx(level, abs=0.01)
    with pytest.raises(ValueError, match="level is 1"):
        result.quantile(1.0)


def test_draws_follow_the_predictive_law():
    truth, x, parameter = drawn(4, hard=True)
    result = fit(x, parameter).intervals(0.8)
    drawn_ = result.draws(200, seed=1)
    missing = result.observed.missing
    assert (drawn_[:, ~missing] == truth[~missing]).all()
    inside = (result.lower_array <= drawn_) & (drawn_ <= result.upper_array)
    assert inside[:, missing].mean() == pytest.approx(0.8, abs=0.01)
    np.testing.assert_array_equal(drawn_, result.draws(200, seed=1))


def naive_selection(scores, weights, limits, tests, fdr):
    """Weighted conformalized selection by its definition, one candidate after another."""
    m, total = limits.size, weights.sum()
    p = np.array([(weights[scores < limits[j]].sum() + tests[j]) / (total + tests[j]) for j in range(m)])
    sizes = np.empty(m, int)
    for j in range(m):
        other = np.array(
            [
                (weights[scores < limits[one]].sum() + tests[j] * (limits[j] < limits[one])) / (total + tests[j])
                for one in range(m)
            ]
        )
        other[j] = 0.0
        ordered = np.sort(other)
        sizes[j] = max(r for r in range(1, m + 1) if ordered[r - 1] <= fdr * r / m)
    candidate = p <= fdr * sizes / m
    best = 0
    for r in range(1, m + 1):
        if np.sum(candidate & (sizes <= r)) >= r:
            best = r
    return candidate & (sizes <= best)


def test_selection_is_its_definition():
    rng = np.random.default_rng(6)
    for _ in range(20):
        scores, weights = rng.normal(size=60), rng.gamma(1.0, size=60) + 0.01
        limits, tests = rng.normal(-2.0, 1.5, size=25), rng.gamma(1.0, size=25) + 0.01
        got = claimed(
            evidence(scores, np.log(weights), thresholds=limits, log_test_weights=np.log(tests), fdr=0.3), 0.3
        )
        np.testing.assert_array_equal(got, naive_selection(scores, weights, limits, tests, 0.3))


def test_claims_of_exceedance_are_mostly_true():
    """Half of the field lies above the threshold; claims hold the false discovery rate and find a good part."""
    false, power = [], []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        shape = (12, 14, 14)
        signal = 2.0 * np.sign(np.linspace(-1, 1, shape[0]))[:, None, None] * np.ones(shape)
        odds = np.broadcast_to(np.linspace(-1, 1, shape[2]), shape)
        truth = signal + np.exp(0.4 * odds) * rng.normal(size=shape)
        mask = rng.random(shape) < 1 / (1 + np.exp(odds))
        fitted = corten.ConformalCompleter(
            completion=lambda x, signal=signal: signal, propensity=corten.KnownPropensity(-odds), calibration="random",
            seed=seed,
        ).fit(np.where(mask, truth, np.nan))  # fmt: skip
        claims = fitted.intervals(0.9).exceedance(0.0, fdr=0.1)
        assert not claims[mask].any()
        false.append(np.sum(claims & (truth <= 0)) / max(claims.sum(), 1))
        power.append(np.sum(claims & (truth > 0)) / np.sum(~mask & (truth > 0)))
    assert np.mean(false) <= 0.1 + 0.02
    assert np.mean(power) > 0.5


def lognormal(seed, shape=(40, 12, 12)):
    """Positive values whose logarithm has a part common to each day, and half of them missing."""
    rng = np.random.default_rng(seed)
    truth = np.exp(1.0 + 0.2 * rng.normal(size=(shape[0], 1, 1)) + 0.7 * rng.normal(size=shape))
    return truth, np.where(rng.random(shape) < 0.5, truth, np.nan)


@pytest.mark.parametrize("transform, climatology", [("log", None), ("box-cox", None), (None, "axis_0")])
def test_means_are_covered_through_a_transform_and_not_biased(transform, climatology):
    """Mapped back, the centre of a log-normal entry is its median, a fifth below its mean: the mean knows."""
    covered, bias, naive = [], [], []
    for seed in range(12):
        truth, x = lognormal(seed)
        fitted = corten.ConformalCompleter(
            completion=lambda x: np.full(x.shape, np.nanmean(x)), propensity="uniform", calibration="random",
            transform=transform, climatology=climatology, seed=seed,
        ).fit(x, axis_kinds=ORDERED)  # fmt: skip
        result = fitted.intervals(0.8)
        mean, true = result.mean("axis_1", "axis_2"), truth.mean(axis=(1, 2))
        covered.append(np.mean((mean.lower <= true) & (true <= mean.upper)))
        bias.append(np.mean(mean.estimate - true))
        naive.append(np.mean(result.estimate_array.mean(axis=(1, 2)) - true))
    assert 0.76 < np.mean(covered) < 0.97
    assert abs(np.mean(bias)) < 0.06
    assert transform is None or np.mean(naive) < -0.25, "the mean of what was mapped back is too low"


def test_a_threshold_is_asked_in_the_datas_own_units():
    """A log in between changes no claim: the threshold is mapped as the values are."""
    rng = np.random.default_rng(3)
    signal = 1.5 * np.sign(np.linspace(-1, 1, 12))[:, None, None] * np.ones((12, 14, 14))
    truth = signal + rng.normal(scale=0.7, size=signal.shape)
    x = np.where(rng.random(truth.shape) < 0.5, truth, np.nan)
    options = {"completion": lambda x: signal, "propensity": "uniform", "calibration": "random"}
    plain = corten.ConformalCompleter(**options).fit(x).intervals(0.9)
    through = corten.ConformalCompleter(transform="log", **options).fit(np.exp(x)).intervals(0.9)
    limit = rng.normal(size=truth.shape)
    for above in (True, False):
        claims = through.exceedance(np.exp(limit), above=above)
        np.testing.assert_array_equal(claims, plain.exceedance(limit, above=above))
        assert claims.any()
    missing = through.observed.missing
    assert (through.exceedance(-1.0) == missing).all(), "every value of a log-modelled field lies above -1"
    assert not through.exceedance(-1.0, above=False).any()
    assert not through.exceedance(np.where(limit < 9, np.nan, 1.0)).any(), "nothing is asked at NaN"


def test_other_kinds_of_intervals_refuse_what_they_do_not_define():
    _, x, parameter = drawn(5)
    fitted = fit(x, parameter)
    for kind in ({"groups": "axis_0"}, {"joint": "axis_0"}, {"odds_error": 1.5}):
        result = fitted.intervals(0.9, **kind)
        for ask in (lambda r: r.quantile(0.3), lambda r: r.draws(1), lambda r: r.exceedance(0.0)):
            with pytest.raises(ValueError, match="not defined for intervals with groups"):
                ask(result)
