"""Cycles along axes of dates: their covariance against dense matrices, and what they gain."""

from __future__ import annotations

import numpy as np
import pytest

from corten.completion import covariance_choice
from corten.completion.covariance import Component, Covariance, Season, circle_of, matern
from corten.completion.covariance_likelihood import Likelihood, Sample
from corten.completion.gaussian_process import GaussianProcessCompletion, SpectralPrior, describe, seasons_of
from corten.completion.positions import grids_of
from corten.data.axes import Axis
from priors import conditional_mean

NAN = float("nan")
HOURS = np.datetime64("2024-01-01T00") + np.arange(24 * 10)


def quasi_periodic(
    distance: np.ndarray, season: Season, lengths: tuple[float, ...], nu: tuple[float, ...]
) -> np.ndarray:
    """The dense covariance of a cycle that changes."""
    circle = season.period / np.pi * np.abs(np.sin(np.pi * distance / season.period))
    return matern(nu[0], np.abs(distance) / lengths[0])[0] * matern(nu[1], circle / lengths[1])[0]


def test_process_with_a_cycle_is_dense_kriging() -> None:
    rng = np.random.default_rng(0)
    season, n = Season(0, "daily", 7.3), 40
    one = Component(0.8, ((0,), (1,)), (0.5, 2.0), (25.0, 3.0), (NAN,))
    prior = SpectralPrior.of(Covariance((one,), 0.02, (season,)), ("ordered",), shape=(n,), correlations={})
    mask = rng.random(n) < 0.6
    y = np.where(mask, rng.standard_normal(n), 0.0)
    kernel = 0.8 * quasi_periodic(np.subtract.outer(np.arange(n), np.arange(n)), season, (25.0, 3.0), (0.5, 2.0))
    gain = np.linalg.solve(kernel[np.ix_(mask, mask)] + 0.02 * np.eye(mask.sum()), y[mask])
    mean = conditional_mean(prior, y, mask.astype(float), np.zeros(n), 500)
    np.testing.assert_allclose(mean, kernel[:, mask] @ gain, atol=0.01)


def test_likelihood_with_a_cycle_is_the_normal_density_and_has_its_gradient() -> None:
    rng = np.random.default_rng(1)
    y, season, grids = rng.standard_normal(60), Season(0, "daily", 6.0), grids_of(None, (60,))
    entries = np.arange(0, 60, 2)[:, None]
    sample = Sample.of(y, entries, kinds=("ordered",), units={}, grids=grids, seasons=(season,))
    model = Likelihood([sample], ("ordered",), shape=(60,), components=[((0,),), ((0,), (1,))], seasons=(season,))
    theta = model.start()[0] + 0.1 * rng.standard_normal(len(model.start()[0]))
    found = model.covariance(theta)
    distance = np.subtract.outer(entries[:, 0], entries[:, 0]).astype(float)
    plain, cycle = found.components
    dense = plain.variance * matern(plain.smoothness[0], np.abs(distance) / plain.lengths[0])[0]
    dense += cycle.variance * quasi_periodic(distance, season, cycle.lengths, cycle.smoothness)
    dense += found.noise * np.eye(len(entries))
    sign, log_det = np.linalg.slogdet(dense)
    value, gradient = model(theta)
    assert sign > 0
    assert value == pytest.approx(0.5 * (sample.values @ np.linalg.solve(dense, sample.values) + log_det), rel=0.01)
    for k in range(len(theta)):
        step = np.zeros_like(theta)
        step[k] = 5e-3
        slope = (model(theta + step)[0] - model(theta - step)[0]) / 1e-2
        assert slope == pytest.approx(gradient[k], rel=0.01, abs=0.05)


def test_circle_is_a_multiple_of_the_periods() -> None:
    assert circle_of([Season(0, "daily", 24.0)], 100) == 216
    both = circle_of([Season(0, "daily", 24.0), Season(0, "yearly", 8765.8)], 8000)
    assert (both, both % 24) == (17520, 0)


def hourly(seed: int, cycle: float) -> tuple[np.ndarray, np.ndarray]:
    """Ten days at four stations: slow weather, a daily cycle of this size, noise; a day and a half missing each."""
    rng = np.random.default_rng(seed)
    t = np.arange(len(HOURS))
    knots = np.cumsum(rng.standard_normal((4, 22)), axis=1)
    slow = np.stack([np.interp(t / 12, np.arange(22), one) for one in knots])
    shape = np.sin(2 * np.pi * t / 24) + 0.5 * np.sin(4 * np.pi * t / 24 + 2)
    x = slow / slow.std() + cycle * shape * rng.uniform(0.7, 1.3, (4, 1)) + 0.1 * rng.standard_normal(slow.shape)
    mask = np.ones(x.shape, bool)
    for one in mask:
        for start in rng.integers(len(t) - 36, size=2):
            one[start : start + 36] = False
    return x, mask


@pytest.mark.parametrize(("cycle", "most"), [(1.5, 0.75), (0.0, 1.0)])
def test_a_daily_cycle_lowers_the_error_where_there_is_one(
    cycle: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cycle the fit is the same, bit for bit."""
    for limit, value in (("SAMPLES", 4), ("COMPARED_SAMPLES", 2), ("SAMPLE_SIZE", 120)):
        monkeypatch.setattr(covariance_choice, limit, value)
    stations = Axis("station", 4, np.array(list("abcd")), "unordered")
    errors = []
    for seed in range(2):
        x, mask = hourly(seed, cycle)
        for time in (Axis("time", len(HOURS), HOURS), Axis("time", len(HOURS))):
            prepared = GaussianProcessCompletion().prepare(x, mask, (stations, time), 0)
            errors.append(np.abs(prepared.fill(x, mask).estimate - x)[~mask].mean())
    dated, bare = sum(errors[::2]), sum(errors[1::2])
    assert dated < most * bare if cycle else dated == bare


def test_cycles_that_the_data_span_are_tried_and_named() -> None:
    time = Axis("time", len(HOURS), HOURS)
    (season,) = seasons_of(("ordered",), grids_of((time,), (240,)))
    assert (season.axis, season.name, season.period) == (0, "daily", 24.0)
    one = Component(1.0, ((0,), (1,)), (1.5, 2.0), (48.0, 3.0), (NAN,))
    assert "time 2 d" in describe(Covariance((one,), 0.1, (season,)), (time,))
    assert "daily cycle of time 3 h" in describe(Covariance((one,), 0.1, (season,)), (time,))
    assert seasons_of(("ordered",), grids_of((Axis("x", 240, np.arange(240.0)),), (240,))) == ()
