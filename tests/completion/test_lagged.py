"""Predictions with a correlation for every pair of stations and lag: they are conditional means of a process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from corten.completion.lagged import MAX_LAG, NOISE, LaggedCorrelations
from corten.data.axes import Axis

STEPS, STATIONS = 1500, 5
AXES = (
    Axis("time", STEPS, None, "ordered", False, None),
    Axis("station", STATIONS, np.array([f"s{i}" for i in range(STATIONS)]), "unordered", False, None),
)


def delayed(seed: int) -> np.ndarray:
    """One moving average of noise that reaches every station two steps after the station before it."""
    rng = np.random.default_rng(seed)
    noise = np.convolve(rng.standard_normal(STEPS + 40), np.ones(6) / np.sqrt(6), "same")
    x = np.stack([noise[20 - 2 * s :][:STEPS] for s in range(STATIONS)], axis=1)
    return np.asarray(10 + 3 * x + 0.1 * rng.standard_normal(x.shape))


def test_correlations_have_the_delay_of_the_stations() -> None:
    x = delayed(0)
    found = LaggedCorrelations.of(x, np.random.default_rng(1).random(x.shape) < 0.7, AXES)
    assert found is not None
    assert not found.roots
    (matrix,) = found.matrix
    for s in range(STATIONS):
        for other in range(STATIONS):
            assert matrix[:, s, other].argmax() - 2 * MAX_LAG == 2 * (other - s)
    np.testing.assert_allclose(matrix[::-1], np.swapaxes(matrix, 1, 2), atol=1e-5)
    whole = np.block([[matrix[2 * MAX_LAG + b - a] for b in range(6)] for a in range(6)])
    assert np.linalg.eigvalsh((whole + whole.T) / 2).min() > 0  # of six steps, as of any


def test_predictions_are_conditional_means(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AT_LAG_ZERO", "ON_A_SIDE", "MAX_CANDIDATES"):
        monkeypatch.setattr(f"corten.completion.lagged.{name}", STATIONS * MAX_LAG)
    x = delayed(2)
    train = np.random.default_rng(3).random(x.shape) < 0.6
    found = LaggedCorrelations.of(x, train, AXES)
    assert found is not None
    entries = np.flatnonzero(~train)[::300]
    middle = np.full(len(entries), 9.0)
    columns = found.columns(entries, np.where(train, x, np.nan), train=train, middle=middle, spread=2.0)
    matrix, mean, spread = found.matrix[0].astype(float), found.mean, found.spread
    for entry, apart, variance, size in zip(entries, *columns):
        t, s = np.unravel_index(entry, x.shape)
        steps, near = np.nonzero(train & (abs(np.arange(STEPS) - t) <= MAX_LAG)[:, None])
        alike = matrix[2 * MAX_LAG + steps - steps[:, None], near[:, None], near] + NOISE * np.eye(len(near))
        wanted = matrix[2 * MAX_LAG + steps - t, s, near]
        weights = np.linalg.solve(alike, wanted)
        predicted = mean[s] + spread[s] * weights @ ((x[steps, near] - mean[near]) / spread[near])
        assert apart == pytest.approx((predicted - 9) / 2, abs=0.01)
        assert variance == pytest.approx(1 - weights @ wanted, abs=0.01)
        assert size == pytest.approx(np.abs(weights).sum(), rel=0.02)
        assert abs(predicted - x[t, s]) < 4  # the values have a standard deviation of three


def test_each_part_of_the_axis_has_correlations_of_its_own_and_either_axis_may_be_the_ordered_one() -> None:
    rng = np.random.default_rng(4)
    common, own = rng.standard_normal((3000, 1)), rng.standard_normal((3000, STATIONS))
    x = np.where(np.arange(3000)[:, None] < 1500, common, own) + 0.1 * own
    axes = (Axis("time", 3000, None, "ordered", False, None), AXES[1])
    mask = rng.random(x.shape) < 0.8
    found = LaggedCorrelations.of(x, mask, axes)
    assert found is not None
    first, last = (one[2 * MAX_LAG, 0, 1] for one in found.matrix)
    assert first > last + 0.1
    turned = LaggedCorrelations.of(x.T, mask.T, axes[::-1])
    assert turned is not None
    np.testing.assert_array_equal(turned.matrix, found.matrix)
    t, s = np.nonzero(~mask)
    options = {"middle": np.zeros(len(t)), "spread": 1.0}
    straight = found.columns(t * STATIONS + s, x, train=mask, **options)
    np.testing.assert_array_equal(turned.columns(s * 3000 + t, x.T, train=mask.T, **options), straight)


def test_square_roots_of_skewed_values_and_none_for_few_steps() -> None:
    x = np.exp(0.3 * (delayed(5) - 10))
    mask = np.ones(x.shape, bool)
    found = LaggedCorrelations.of(x, mask, AXES)
    assert found is not None
    assert found.roots
    mask[700:703] = False  # predictions are of the values again, not of their roots
    entries = np.flatnonzero(~mask)
    apart = found.columns(entries, np.where(mask, x, np.nan), train=mask, middle=np.zeros(len(entries)), spread=9.0)[0]
    assert np.abs(x[~mask] - 9 * apart).mean() < 0.3 * x.std()
    short = (Axis("time", 500, None, "ordered", False, None), AXES[1])
    assert LaggedCorrelations.of(x[:500], mask[:500], short) is None
    assert LaggedCorrelations.of(x, mask, (AXES[0], Axis("x", STATIONS, None, "ordered", False, None))) is None


def test_data_of_another_length_have_the_mean_of_the_parts_and_means_of_their_own() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((3000, STATIONS)).cumsum(axis=0)
    axes = (Axis("time", 3000, None, "ordered", False, None), AXES[1])
    found = LaggedCorrelations.of(x, rng.random(x.shape) < 0.8, axes)
    assert found is not None
    assert len(found.matrix) == 2
    later, train = x[:2000] + 5, rng.random((2000, STATIONS)) < 0.8
    entries = np.flatnonzero(~train)
    options = {"train": train, "middle": np.zeros(len(entries)), "spread": 1.0}
    one = replace(found, matrix=found.matrix.mean(axis=0, keepdims=True), length=2000)
    np.testing.assert_array_equal(found.columns(entries, later, **options), one.columns(entries, later, **options))
    without = replace(found, mean=found.mean + 100)  # of the fit: entries of the data at hand weigh more
    moved = np.abs(np.subtract(without.columns(entries, later, **options), found.columns(entries, later, **options)))
    assert moved[0].max() < 100 * 0.2


def test_correlations_of_few_pairs_are_small() -> None:
    x = delayed(7)
    mask = np.ones(x.shape, bool)
    mask[20:, 0] = False  # this station has twenty entries
    found = LaggedCorrelations.of(x, mask, AXES)
    assert found is not None
    assert np.abs(found.matrix[0][:, 0, 1:]).max() < 0.5 < np.abs(found.matrix[0][:, 1, 2:]).max()
