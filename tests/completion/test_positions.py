"""Positions along axes: regular axes change nothing, unequal steps and holes lower the error, lengths have units."""

from __future__ import annotations

import numpy as np
import pytest

from corten.completion import axes_kinds, covariance_choice
from corten.completion.axes_kinds import basis_of
from corten.completion.covariance import Component, Covariance, matern
from corten.completion.gaussian_process import GaussianProcessCompletion, SpectralPrior, describe
from corten.completion.positions import Grid, grids_in_words, grids_of
from corten.completion.protocol import Completion
from corten.completion.smooth import SmoothCompletion
from corten.data.axes import Axis, refine
from priors import conditional_mean

BOTH = [SmoothCompletion(), GaussianProcessCompletion()]
NAN = float("nan")


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small samples are enough for small fields and take a tenth of the time."""
    monkeypatch.setattr(covariance_choice, "SAMPLE_SIZE", 100)
    monkeypatch.setattr(covariance_choice, "COMPARED_SAMPLES", 1)
    monkeypatch.setattr(covariance_choice, "SAMPLES", 2)


def waves(places: np.ndarray, times: np.ndarray, seed: int) -> np.ndarray:
    """A smooth field of space and time, sampled at any places and times."""
    rng = np.random.default_rng(seed)
    found = 0.01 * rng.standard_normal((len(places), len(times)))
    for _ in range(5):
        along, rate, phase, size = rng.normal(0, 1.5), rng.normal(0, 0.35), 6.3 * rng.random(), rng.normal()
        found += size * np.sin(along * places[:, None] + rate * times + phase)
    return found


def fill(completion: Completion, x: np.ndarray, mask: np.ndarray, axes: tuple[Axis, ...]) -> np.ndarray:
    return completion.prepare(x, mask, axes, 0).fill(x, mask).estimate


@pytest.mark.parametrize("completion", BOTH, ids=["pyramid", "process"])
def test_regular_axes_change_nothing(completion: Completion) -> None:
    """Descending latitudes and months fill as bare axes do, bit for bit."""
    x = waves(np.linspace(0, 1, 7), np.arange(20.0), 0)
    mask = np.random.default_rng(1).random(x.shape) < 0.7
    months = np.arange("2020-01", "2021-09", dtype="datetime64[M]")
    labelled = (Axis("lat", 7, np.linspace(60, 30, 7)), Axis("time", 20, months))
    np.testing.assert_array_equal(fill(completion, x, mask, labelled), fill(completion, x, mask, ()))


@pytest.mark.parametrize("completion", BOTH, ids=["pyramid", "process"])
def test_random_times_have_a_fifth_less_error_than_equal_steps(completion: Completion) -> None:
    errors = []
    for seed in range(6):
        rng = np.random.default_rng((seed, 7))
        times = np.sort(rng.random(40)) * 40
        x = waves(np.linspace(0, 1, 5), times, seed)
        mask = (rng.random(40) < 0.7) & (rng.random(x.shape) < 0.9)
        axes = (Axis("place", 5), Axis("day", 40, times, units="days"))
        errors.append([np.abs(fill(completion, x, mask, one) - x)[~mask].mean() for one in (axes, ())])
    positions, equal = np.mean(errors, axis=0)
    assert positions < 0.8 * equal


@pytest.mark.parametrize("completion", BOTH, ids=["pyramid", "process"])
def test_unequal_latitudes_and_a_hole_of_a_year_change_the_estimate(completion: Completion) -> None:
    x = waves(np.linspace(0, 1, 14), np.arange(20.0), 3)
    mask = np.random.default_rng(4).random(x.shape) < 0.7
    days = np.datetime64("2020-01-01") + np.arange(20)
    later = np.where(np.arange(20) < 10, days, days + 366)
    regular = (Axis("lat", 14, np.arange(14.0)), Axis("time", 20, days))
    base = fill(completion, x, mask, regular)
    for other in ((Axis("lat", 14, np.arange(14) ** 2.5), regular[1]), (regular[0], Axis("time", 20, later))):
        assert np.abs(fill(completion, x, mask, other) - base)[~mask].max() > 1e-3 * x.std()


def test_coordinates_that_do_not_describe_the_data_are_not_used_and_that_is_said() -> None:
    """Pressure levels: the field is smooth in their order, not in their differences."""
    x = waves(np.linspace(0, 1, 5), np.arange(30.0), 5)
    mask = np.random.default_rng(6).random(x.shape) < 0.7
    level = np.geomspace(1000, 0.1, 30)
    axes = (Axis("place", 5), Axis("level", 30, level, units="hPa"))
    prepared = GaussianProcessCompletion().prepare(x, mask, axes, 0)
    said = {choice.code: choice.because for choice in prepared.choices}
    assert "'level'" in said["unequal_steps_not_used"]
    # Only the start of the iterations differs.
    bare = fill(GaussianProcessCompletion(), x, mask, ())
    np.testing.assert_allclose(prepared.fill(x, mask).estimate, bare, atol=1e-2 * x.std())


@pytest.mark.parametrize("kind", ["ordered", "periodic"])
def test_basis_at_positions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On grid points it is the basis of the grid; both directions are transposes; long axes use the same one."""
    whole = basis_of(kind, 0, length=9)
    some = np.array([0, 1, 4, 4, 8])
    basis = basis_of(kind, 0, length=9, positions=some.astype(float))
    np.testing.assert_allclose(basis.rows, whole.rows[:, some], atol=1e-12)
    monkeypatch.setattr(axes_kinds, "MAX_DENSE_GRID", 4)
    fast = basis_of(kind, 0, length=9, positions=some + 0.2)
    x, c = np.random.default_rng(0).random((5, 3)), np.random.default_rng(1).random((9, 3))
    np.testing.assert_allclose(fast.forward(x), basis.forward(x), atol=1e-12)
    np.testing.assert_allclose(fast.inverse(c), basis.inverse(c), atol=1e-12)


def test_process_at_positions_is_kriging_with_the_distances() -> None:
    rng = np.random.default_rng(2)
    positions = np.sort(rng.random(14)) * 80 + 20  # far from the ends, which reflect
    grid = Grid(120, positions)
    one = Component(1.0, ((0,),), (1.5,), (9.0,), (NAN,))
    prior = SpectralPrior.of(Covariance((one,), 0.01), ("ordered",), shape=(14,), correlations={}, grids=(grid,))
    mask = rng.random(14) < 0.6
    y = np.where(mask, rng.standard_normal(14), 0.0)
    kernel = matern(1.5, np.abs(np.subtract.outer(positions, positions)) / 9.0)[0]
    gain = np.linalg.solve(kernel[np.ix_(mask, mask)] + 0.01 * np.eye(mask.sum()), y[mask])
    mean = conditional_mean(prior, y, mask.astype(float), np.zeros(14), 500)
    np.testing.assert_allclose(mean, kernel[:, mask] @ gain, atol=0.02)


def test_grids_follow_the_coordinates() -> None:
    days = np.datetime64("2020-01-01") + np.array([0, 1, 2, 4, 5, 400, 401, 402])
    lat = Axis("lat", 8, -(np.arange(8) ** 2.0))
    time, circle = Axis("time", 8, days), Axis("lon", 5, np.array([0.0, 60, 180, 240, 300]), periodic=True)
    grids = grids_of((lat, time, circle, Axis("station", 3, np.array([1, 5, 6]), "unordered")), (8, 8, 5, 3))
    np.testing.assert_allclose(grids[0].positions * grids[0].step, np.arange(8) ** 2.0)
    alone = grids_of((time,), (8,))
    np.testing.assert_array_equal(alone[0].positions, [0, 1, 2, 4, 5, 21, 22, 23])
    assert "a jump of 395 d counts as 16 d" in grids_in_words((time,), alone)
    assert (grids[2].size, grids[2].step, grids[2].unit) == (6, 60.0, "degrees")
    assert grids[3] == Grid(3)
    big = grids_of((Axis("lat", 300, np.sort(np.random.default_rng(0).random(300))), Axis("b", 500)), (300, 500))
    assert 300 < big[0].size <= 4 * 300


def test_lengths_along_unequal_steps_are_in_the_unit_of_the_coordinates() -> None:
    hours = np.datetime64("2020-01-01T00") + np.array([0, 2, 4, 12, 14, 16])
    axes = (Axis("lat", 5, np.array([0.0, 5, 10, 30, 35]), units="degrees_north"), Axis("time", 6, hours))
    one = Component(1.0, ((0, 1),), (1.5,), (2.0, 3.0), (NAN, NAN))
    assert "lat 10 degrees, time 6 h" in describe(Covariance((one,), 0.01), axes)


def test_longitudes_may_pass_the_date_line() -> None:
    pacific = Axis("lon", 5, np.array([170.0, 175, -180, -175, -170]))
    (checked,) = refine((pacific,), (), {})
    assert grids_of((checked,), (5,))[0] == Grid(5, None, 5.0, "degrees")
    whole = Axis("lon", 12, (np.arange(12) * 30.0 + 90) % 360)
    assert refine((whole,), (), {})[0].periodic
    with pytest.raises(ValueError, match="not sorted"):
        refine((Axis("lon", 4, np.array([10.0, 30, 20, 40])),), (), {})
