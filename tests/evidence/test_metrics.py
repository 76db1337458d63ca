"""Measures of intervals against the truth, with infinities, masks and labels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import integrate, stats

from corten.evidence import metrics


@dataclass
class Result:
    """The least a result offers: normal intervals about zero."""

    missing: Any
    coverage: float = 0.9
    wrap: Any = field(default=lambda array: array)

    def _end(self):
        return np.full(np.shape(self.missing), stats.norm.ppf((1 + self.coverage) / 2))

    @property
    def lower(self):
        return self.wrap(-self._end())

    @property
    def upper(self):
        return self.wrap(self._end())

    def at(self, coverage):
        return replace(self, coverage=coverage)


@dataclass
class Fixed:
    lower: Any
    upper: Any
    missing: Any
    coverage: float = 0.8


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(30, 40, 50))
    return truth, Result(rng.random(truth.shape) < 0.7)


def test_right_intervals_have_the_right_coverage(drawn):
    truth, result = drawn
    count = result.missing.sum()
    assert abs(metrics.coverage(truth, result) - 0.9) < 4 * np.sqrt(0.09 / count)
    assert metrics.miscoverage(truth, result) < 0.5
    assert metrics.miscoverage(2 * truth, result) > 10


def test_miscoverage_is_the_papers_mean_over_twenty_levels():
    truth = np.array([0.0, 0.0, 9.0, 9.0])
    result = Result(np.ones(4, bool))
    expected = 100 * np.mean([q / 100 - 0.5 for q in range(80, 100)])
    assert metrics.miscoverage(truth, result) == pytest.approx(expected)


def test_only_filled_entries_with_known_truth_count():
    truth = np.array([0.0, 9.0, 9.0, np.nan, 0.0])
    result = Fixed(-np.ones(5), np.ones(5), np.array([True, True, False, True, True]))
    assert metrics.coverage(truth, result) == pytest.approx(2 / 3)
    masked = np.ma.masked_array(np.array([0, 9, 9, 7, 0]), mask=[0, 0, 0, 1, 0])
    assert metrics.coverage(masked, result) == pytest.approx(2 / 3)
    assert metrics.coverage(truth, result, where=np.array([1, 0, 1, 1, 0], bool)) == 1.0
    assert np.isnan(metrics.coverage(truth, result, where=np.zeros(5, bool)))
    with pytest.raises(TypeError, match="where"):
        metrics.coverage(truth, result, where=np.arange(5))
    with pytest.raises(ValueError, match="shapes"):
        metrics.coverage(truth[:4], result)


def test_a_missing_interval_is_no_cover():
    result = Fixed(np.array([np.nan, -1.0]), np.array([np.nan, 1.0]), np.ones(2, bool))
    assert metrics.coverage(np.zeros(2), result) == 0.5


def test_infinities_are_values():
    result = Fixed(np.array([-np.inf, 0.0, 0.0]), np.array([np.inf, np.inf, 2.0]), np.ones(3, bool))
    truth = np.array([5.0, -1.0, 1.0])
    assert metrics.coverage(truth, result) == pytest.approx(2 / 3)
    assert metrics.infinite_share(result) == pytest.approx(2 / 3)
    assert metrics.width(result) == 2.0
    assert metrics.interval_score(truth, result) == np.inf
    assert metrics.interval_score(truth, result, where=np.array([False, False, True])) == 2.0
    assert np.isnan(metrics.width(result, where=np.array([True, True, False])))


def test_interval_score_is_least_at_the_true_quantiles():
    truth = np.random.default_rng(1).normal(size=200_000)
    end = stats.norm.ppf(0.95)
    means = [
        metrics.interval_scores(truth, np.full(truth.size, -c * end), np.full(truth.size, c * end), 0.9).mean()
        for c in (0.8, 1.0, 1.25)
    ]
    assert means[1] < min(means[0], means[2])
    exact = 2 * stats.norm.pdf(end) / 0.05
    assert means[1] == pytest.approx(exact, rel=0.01)


def test_slices_and_deciles_find_where_coverage_is_lost(drawn):
    truth, result = drawn
    hard = truth.copy()
    hard[:, 7, :] *= 10
    by_slice = metrics.coverage_by_slice(hard, result, axis=1)
    assert [g.label for g in by_slice] == list(range(40))
    assert by_slice[7].coverage < 0.3 and min(g.coverage for g in by_slice if g.label != 7) > 0.8
    assert sum(g.entries for g in by_slice) == result.missing.sum()
    propensity = np.random.default_rng(2).random(truth.shape)
    uneven = np.where(propensity < 0.1, 10 * truth, truth)
    by_decile = metrics.coverage_by_decile(uneven, result, propensity)
    assert len(by_decile) == 10 and max(g.entries for g in by_decile) - min(g.entries for g in by_decile) <= 1
    assert by_decile[0].coverage < 0.3 and min(g.coverage for g in by_decile[1:]) > 0.85
    assert all(0 < g.standard_error < 0.02 for g in by_decile)
    total = sum(g.coverage * g.entries for g in by_decile) / result.missing.sum()
    assert total == pytest.approx(metrics.coverage(uneven, result))


def test_an_empty_slice_says_so():
    result = Fixed(np.zeros((2, 2)), np.zeros((2, 2)), np.array([[True, True], [False, False]]))
    groups = metrics.coverage_by_slice(np.zeros((2, 2)), result, axis=0)
    assert groups[0].coverage == 1.0 and groups[1].entries == 0 and np.isnan(groups[1].coverage)


def test_labelled_truth_is_matched_by_axis_name(drawn):
    truth, result = drawn
    names = ("time", "lat", "lon")
    labelled = replace(result, wrap=lambda array: xr.DataArray(array, dims=names))
    turned = xr.DataArray(truth, dims=names).transpose("lon", "time", "lat")
    assert metrics.coverage(turned, labelled) == metrics.coverage(truth, result)
    by_name = metrics.coverage_by_slice(turned, labelled, axis="lat")
    assert by_name == metrics.coverage_by_slice(truth, result, axis=1)
    with pytest.raises(ValueError, match="axis is 'depth'"):
        metrics.coverage_by_slice(turned, labelled, axis="depth")


def test_standard_error_is_that_of_the_mean():
    rng = np.random.default_rng(3)
    rounds = rng.random((4000, 100)) < 0.8
    spread = rounds.mean(axis=1).std()
    typical = np.mean([metrics.standard_error(r) for r in rounds[:200]])
    assert typical == pytest.approx(spread, rel=0.1)
    assert np.isnan(metrics.standard_error([1.0])) and np.isnan(metrics.standard_error([1.0, np.inf]))


class Normal:
    """A result whose entries have normal distributions."""

    def __init__(self, centre, spread):
        self.centre, self.spread = np.asarray(centre, float), np.asarray(spread, float)
        self.missing = np.ones(self.centre.shape, bool)
        self.lower = self.quantile(0.05)

    def quantile(self, level):
        return self.centre + self.spread * stats.norm.ppf(level)


def test_crps_is_the_integral_of_its_definition():
    rng = np.random.default_rng(0)
    centre, spread = rng.normal(size=40), rng.gamma(2.0, size=40) + 0.1
    truth = centre + 2.0 * spread * rng.normal(size=40)
    x = np.linspace(-60, 60, 200_001)
    integrals = [
        integrate.trapezoid((stats.norm.cdf(x, c, s) - (x >= t)) ** 2, x) for c, s, t in zip(centre, spread, truth)
    ]
    normal = Normal(centre, spread)
    assert metrics.crps(truth, normal, levels=400) == pytest.approx(np.mean(integrals), rel=2e-3)
    assert metrics.crps(truth, normal) == pytest.approx(np.mean(integrals), rel=2e-2)
    certain = Normal(centre, np.zeros(40))
    assert metrics.crps(truth, certain) == pytest.approx(np.abs(truth - centre).mean())
    assert np.isnan(metrics.crps(np.where(truth > 0, np.nan, truth), normal, where=truth > 0)), "no entry is left"
    with pytest.raises(ValueError, match="levels is 0"):
        metrics.crps(truth, normal, levels=0)
