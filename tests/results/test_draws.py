"""Coherent draws: calibrated distributions of single entries, and errors as dependent as those of hidden entries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import corten
from corten.data.axes import Axis
from corten.results import dependence
from corten.results.dependence import Dependence, learn_dependence, steps_between


def all_pairs(axes):
    count = int(np.prod([axis.length for axis in axes]))
    first, second = (one.ravel() for one in np.indices((count, count)))
    return count, steps_between(first, second, axes)


def correlation(true, steps):
    """The correlation of pairs of different entries that lie so many steps apart along each axis, (pairs, axes)."""
    total = np.zeros(len(steps))
    for share, lengths in zip(true.shares, true.lengths):
        total += share * np.prod([dependence.correlation_along(s, one) for s, one in zip(steps.T, lengths)], axis=0)
    return total


def test_fields_have_the_correlation_they_are_asked_for():
    axes = [Axis("y", 6), Axis("lon", 5, periodic=True), Axis("station", 3, kind="unordered")]
    true = Dependence(np.array([0.4, 0.3, 0.2]), np.array([[2.0, 1.5, 0.0], [1.0, np.inf, np.inf], [0.0, 0.0, np.inf]]))
    count, steps = all_pairs(axes)
    wanted = correlation(true, steps).reshape(count, count)
    np.fill_diagonal(wanted, 1.0)
    rng = np.random.default_rng(0)
    fields = np.stack([true.draw(axes, rng).ravel() for _ in range(4000)])
    assert np.abs(fields.T @ fields / len(fields) - wanted).max() < 0.09


def test_a_long_axis_has_the_same_correlation(monkeypatch):
    axes, true = [Axis("time", 300)], Dependence(np.array([0.8]), np.array([[6.0]]))
    monkeypatch.setattr(dependence, "MAX_EXACT_POSITIONS", 100)
    rng = np.random.default_rng(1)
    fields = np.stack([true.draw(axes, rng) for _ in range(2000)])
    for lag in (1, 5, 12, 299):
        found = np.mean(fields[:, lag:] * fields[:, :-lag])
        assert found == pytest.approx(correlation(true, np.array([[float(lag)]]))[0], abs=0.06)
    assert fields.var() == pytest.approx(1.0, abs=0.03)


def test_the_correlation_of_hidden_errors_is_learned():
    axes = [Axis("y", 30), Axis("x", 30), Axis("time", 20)]
    true = Dependence(np.array([0.5, 0.3]), np.array([[3.0, 5.0, 2.0], [0.0, 0.0, np.inf]]))
    rng = np.random.default_rng(2)
    entries = [np.sort(rng.choice(18_000, 1500, replace=False)) for _ in range(24)]
    errors = [true.draw(axes, rng).reshape(-1)[at] for at in entries]
    rounds = np.repeat(np.arange(24), 1500)
    flat = np.concatenate(entries)
    scores = np.exp(np.concatenate(errors))
    found = learn_dependence(
        flat, scores, log_weights=np.zeros(flat.size), scale=np.ones(flat.size), rounds=rounds, axes=axes
    )
    steps = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 1], [3, 3, 0], [0, 0, 10], [15, 15, 10]], float)
    np.testing.assert_allclose(correlation(found, steps), correlation(true, steps), atol=0.07)
    few = learn_dependence(
        flat[:5], errors[0][:5], log_weights=np.zeros(5), scale=np.ones(5), rounds=rounds[:5], axes=axes
    )
    assert few.shares.size == 0, "too few pairs: independent errors"


def smooth_errors(seed, shape=(24, 16, 16)):
    """Skewed errors that are smooth in every map, scattered entries of which are missing."""
    rng = np.random.default_rng(seed)
    maps = np.stack([gaussian_filter(one, 3.0, mode="wrap") for one in rng.normal(size=shape)])
    truth = np.exp(0.5 * maps / maps.std() + 0.1 * rng.normal(size=shape))
    return truth, np.where(rng.random(shape) < 0.5, truth, np.nan)


def fitted_to(x, seed=0):
    return corten.ConformalCompleter(np.ones_like, "uniform", "random", seed=seed).fit(x)


def test_each_entry_has_its_calibrated_distribution():
    truth, x = smooth_errors(3, (6, 8, 8))
    result = fitted_to(x).intervals(0.9)
    cuts = np.stack([np.asarray(result.quantile(level)) for level in np.linspace(0.02, 0.98, 25)])
    assert (np.diff(cuts, axis=0) >= 0).all(), "quantiles do not cross"
    drawn, missing = result.draws(1500, seed=4), result.observed.missing
    assert (drawn[:, ~missing] == truth[~missing]).all()
    for level in (0.1, 0.5, 0.9):
        below = (drawn <= np.asarray(result.quantile(level))).mean(axis=0)[missing]
        assert np.abs(below - level).max() < 0.06, "of every entry, not only on average"
    np.testing.assert_array_equal(result.draws(3, seed=4), drawn[:3])
    assert not np.array_equal(result.draws(3, seed=5), drawn[:3])
    means = result.draws(3, seed=4, statistic=lambda one: one.mean(axis=(1, 2)))
    np.testing.assert_array_equal(means, drawn[:3].mean(axis=(2, 3)))


def test_intervals_of_means_from_draws_cover():
    """Errors of a map are alike, so that its mean is far less certain than with independent errors."""
    covered, alone, spread = [], [], []
    for seed in range(6):
        truth, x = smooth_errors(10 + seed)
        fitted = fitted_to(x, seed)
        true = truth[:, :8, :8].mean(axis=(1, 2))
        for out in (covered, alone):
            drawn = fitted.intervals(0.9).draws(150, statistic=lambda one: one[:, :8, :8].mean(axis=(1, 2)))
            low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
            out.append(np.mean((low <= true) & (true <= high)))
            spread.append(drawn.std(axis=0).mean())
            fitted.__dict__["dependence"] = Dependence.none(3)
    assert 0.84 < np.mean(covered) < 0.96
    assert np.mean(alone) < 0.6
    assert np.mean(spread[::2]) > 2 * np.mean(spread[1::2])
