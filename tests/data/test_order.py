"""Axes of bare arrays: ordered or unordered by held-out error, and what the caller says counts more."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest

import corten
from corten.data.axes import Axis
from corten.data.observed import ObservedTensor
from corten.data.order import AxisEvidence, axis_evidence, order_p_value, unordered_axes

DATA = Path(__file__).parents[3] / "shared" / "data"


def stations(count: int = 12, hours: int = 200, seed: int = 0) -> np.ndarray:
    """Stations that share a daily cycle and weather, each with a level of its own; a third is missing."""
    rng = np.random.default_rng(seed)
    weather = np.cumsum(rng.normal(size=hours)) * 0.3
    cycle = 3 * np.sin(2 * np.pi * np.arange(hours) / 24)
    x = rng.normal(10, 3, (count, 1)) + rng.uniform(0.5, 1.5, (count, 1)) * (weather + cycle)
    x += 0.3 * rng.normal(size=x.shape)
    x[rng.random(x.shape) < 0.33] = np.nan
    return x


def sensors(count: int, similar: float, spread: float, seed: int) -> np.ndarray:
    """Daily profiles (sensor x day x slot) with scales and levels of their own; whole days are missing.

    `similar` is the share of the differences between sensors that near neighbours have in common.
    """
    rng = np.random.default_rng(seed)
    days, slots = 30, 18
    distance = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    root = np.linalg.cholesky(np.exp(-distance / (0.15 * count + 1)))

    def draw(columns: int) -> np.ndarray:
        shared, own = root @ rng.normal(size=(count, columns)), rng.normal(size=(count, columns))
        return np.sqrt(similar) * shared + np.sqrt(1 - similar) * own

    time = np.arange(slots) / slots
    profiles = np.stack([np.sin(np.pi * time) ** 2, *(np.exp(-(((time - peak) / 0.09) ** 2)) for peak in (0.3, 0.7))])
    week = 1 + 0.3 * np.cos(2 * np.pi * np.arange(days)[:, None] / 7) * np.array([1, 0.5, -0.5])
    x = np.einsum("sp,dp,pt->sdt", np.abs(1 + 0.5 * draw(3)), week, profiles)
    x += 0.1 * rng.normal(size=x.shape)
    x = np.exp(spread * draw(1))[..., None] * (x + spread * draw(1)[..., None])
    x[rng.random((count, days)) < 0.3] = np.nan
    return x


def kinds(x: object, **said: object) -> list[str]:
    return [axis.kind for axis in ObservedTensor.of(x, **said).axes]


def found(x: np.ndarray) -> list[int]:
    """Positions of the axes that are taken as unordered."""
    return [int(choice.what) for choice in unordered_axes(x, np.isfinite(x))]


def test_stations_with_levels_of_their_own_are_unordered():
    # The held-out error without order is lower by a fifth or more for all of these, so chance plays no part.
    assert all(kinds(stations(seed=seed))[0] == "unordered" for seed in range(6))


@pytest.mark.parametrize(("count", "similar"), [(8, 0.0), (30, 0.5), (30, 0.7)])
def test_sensors_of_different_scale_are_unordered_even_where_neighbours_are_alike(count, similar):
    for seed in range(2):
        x = sensors(count, similar, spread=1.0, seed=seed)
        answer = found(x)
        assert 0 in answer
        assert 2 not in answer


def test_permuting_the_slices_of_an_unordered_axis_does_not_change_its_kind():
    x = sensors(20, similar=0.9, spread=1.0, seed=0)
    rng = np.random.default_rng(0)
    assert all(0 in found(x[rng.permutation(20)]) for _ in range(4))


@pytest.mark.parametrize(("count", "similar"), [(8, 0.0), (8, 0.9), (20, 0.0), (20, 0.9)])
def test_permuted_sensors_in_a_bare_array_are_filled_as_well_as_labelled_ones(count, similar):
    quick = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}
    told = {0: "unordered", 1: "ordered", 2: "ordered"}
    ratios = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        truth = sensors(count, similar, spread=1.0, seed=seed)[rng.permutation(count)]
        hidden = np.isfinite(truth) & (rng.random((count, truth.shape[1], 1)) < 0.25)
        x = np.where(hidden, np.nan, truth)
        both = (corten.complete(x, **quick), corten.complete(x, axis_kinds=told, **quick))
        bare, labelled = (np.abs(one.estimate_array - truth)[hidden].mean() for one in both)
        ratios.append(bare / labelled)
    # As ordered axes they would have ratios of 1.4 to 5.8.
    assert np.mean(ratios) <= 1.05


def test_axes_keep_their_kinds_when_the_array_is_transposed():
    x = sensors(20, similar=0.0, spread=1.0, seed=0)
    assert 1 in found(x.transpose(2, 0, 1))
    assert 0 not in found(x.transpose(2, 0, 1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_permuted_axis_of_a_field_is_unordered(axis):
    field = corten.simulate.tec_like((20, 24, 24), seed=0).observed
    assert found(field) == []
    answers = []
    for seed in range(4):
        shuffled = np.take(field, np.random.default_rng(seed).permutation(field.shape[axis]), axis)
        answers.append(found(shuffled))
    # A permuted order passes the test by chance in one of twenty; two or more of four do with probability 0.014.
    assert sum(axis in answer for answer in answers) >= 3


@pytest.mark.parametrize("shape", [(3, 30, 30), (5, 30, 30), (12, 20, 20), (40, 60), (30, 6)])
def test_smooth_fields_are_ordered_with_few_slices_too(shape):
    from scipy.ndimage import gaussian_filter

    for seed in range(2):
        rng = np.random.default_rng(seed)
        field = gaussian_filter(rng.normal(size=[n + 20 for n in shape]), 2.0)[tuple(slice(10, 10 + n) for n in shape)]
        cloud = gaussian_filter(rng.normal(size=shape), 2.0)
        field = field / field.std() + 0.1 * rng.normal(size=shape)
        assert found(np.where(cloud < np.quantile(cloud, 0.65), field, np.nan)) == []


def test_a_long_slow_series_is_ordered_and_its_permutation_is_not():
    # In 500 of 500,000 steps the sine changes by a tenth of the noise: only larger steps show the order.
    rng = np.random.default_rng(0)
    time = np.arange(500_000)
    x = np.sin(6 * time / time.size) + np.array([[0.0], [1.0]]) + 0.1 * rng.normal(size=(2, time.size))
    for start in rng.integers(time.size, size=200):
        x[rng.integers(2), start : start + 1000] = np.nan
    assert 1 not in found(x)
    assert 0 not in found(x.T)
    assert 1 in found(x[:, rng.permutation(time.size)])


def test_people_and_products_are_unordered():
    rng = np.random.default_rng(0)
    ratings = rng.normal(size=(80, 1)) + rng.normal(size=(1, 50)) + 0.3 * rng.normal(size=(80, 50))
    ratings[rng.random(ratings.shape) < 0.6] = np.nan
    assert found(ratings) == [0, 1]


@pytest.mark.parametrize(
    "x",
    [
        np.ones((4, 4)),
        np.full((30, 40), 7.0),
        np.where(np.arange(10_000).reshape(100, 100) == 4321, 1.0, np.nan),
        np.where(np.arange(10_000).reshape(100, 100) % 997 == 0, 1.0, np.nan),
    ],
    ids=["few", "constant", "one", "sparse"],
)
def test_axes_are_ordered_where_there_is_nothing_to_compare(x):
    assert found(x) == []


def test_the_evidence_does_not_depend_on_units_or_on_values_that_are_not_observed():
    x = sensors(8, similar=0.0, spread=1.0, seed=0)
    mask = np.isfinite(x)
    one = axis_evidence(x, mask)
    for other in (axis_evidence(1e6 - 1e3 * x, mask), axis_evidence(np.where(mask, x, 1e9), mask)):
        for a, b in zip(one, other):
            np.testing.assert_allclose(
                [a.ordered_error, a.unordered_error, a.p_value], [b.ordered_error, b.unordered_error, b.p_value], 1e-3
            )


def test_a_clear_difference_of_errors_decides_and_the_test_of_the_order_decides_ties():
    assert AxisEvidence(20, 1.0, 0.8, 0.01).unordered
    assert not AxisEvidence(20, 1.0, 1.3, 0.9).unordered
    assert AxisEvidence(20, 1.0, 1.1, 0.9).unordered
    assert not AxisEvidence(20, 1.0, 0.95, 0.005).unordered
    assert AxisEvidence(20, 1.0, 0.95, 0.01).unordered, "a random order may have this p-value by chance"
    assert not AxisEvidence(20, 1.0, 1.05, 0.01).unordered
    assert not AxisEvidence(4, 1.0, 0.95, 0.9).unordered, "four slices have too few orders for a test"
    assert not AxisEvidence(20, 0.0, 0.0, 1.0).unordered, "nothing to gain"


@pytest.mark.parametrize("axis", [0, 1])
def test_the_p_value_is_the_share_of_orders_with_neighbours_as_alike(axis):
    x = np.random.default_rng(3).normal(size=(6, 6))
    x[1, 2] = x[4, 5] = np.nan
    slices = np.moveaxis(x, axis, 0)

    def unlike(order: tuple[int, ...]) -> float:
        return float(np.nanmean([(slices[i] - slices[j]) ** 2 for i, j in pairwise(order)]))

    every = np.array([unlike(order) for order in permutations(range(6))])
    exact = float(np.mean(every <= unlike(tuple(range(6))) + 1e-12))
    p = order_p_value(x, np.isfinite(x), axis)
    # Four standard errors of a share among 199 random orders, and the order itself, which is always counted.
    assert abs(p - exact) < 4 * np.sqrt(exact * (1 - exact) / 199) + 1 / 200


def test_the_p_value_is_uniform_where_there_is_no_order():
    rng = np.random.default_rng(0)
    small = 0
    for seed in range(100):
        x = rng.normal(size=(8, 1)) + rng.normal(size=(8, 12))
        small += order_p_value(x, np.ones(x.shape, bool), 0, seed) <= 0.1
    # Binomial(100, 0.1): outside of 2 to 21 with probability 0.0008.
    assert 2 <= small <= 21


def test_what_the_caller_says_counts_and_the_choice_is_on_record():
    x = stations()
    assert kinds(x, axis_kinds={0: "ordered"}) == ["ordered", "ordered"]
    assert kinds(x, axes=(Axis("station", 12), Axis("hour", 200))) == ["ordered", "ordered"]
    assert kinds(x, axes=("station", "hour"), periodic=("station",)) == ["ordered", "ordered"]
    tensor = ObservedTensor.of(x, axes=("station", "hour"))
    assert [choice.what for choice in tensor.choices] == ["kind of station"]
    assert "held-out error" in tensor.choices[0].because
    assert [one["kind"] for one in tensor.choices[0].candidates] == ["ordered", "unordered"]
    summary = corten.complete(x, completion="smooth", propensity="uniform", calibration="random").summary()
    assert any(choice.what == "kind of axis_0" and choice.taken == "unordered" for choice in summary.choices)


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is absent")
@pytest.mark.parametrize("name", ["tec-america-1", "tec-america-2", "tec-global-1", "ndvi-20", "ndvi-40", "ndvi-50"])
def test_real_fields_keep_their_order(name):
    from studies.field_sets import load_set

    one = load_set(name, DATA)
    assert found(np.where(one.mask, one.truth, np.nan)) == []


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is absent")
def test_a_satellite_map_keeps_its_order():
    with np.load(DATA / "lst_simulated.npz") as data:
        assert found(np.where(data["mask"] == 1, data["temperature"], np.nan)) == []


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is absent")
@pytest.mark.parametrize("gaps", ["NM30", "RM30"])
def test_metro_stations_in_random_order_are_unordered_and_slots_are_ordered(gaps):
    with np.load(DATA / "metro_hangzhou.npz") as data, np.load(DATA / "metro_hangzhou_masks.npz") as masks:
        flow = data["flow"].astype(float)
        x = np.where((flow != 0) & (masks[gaps] == 1), flow, np.nan)
    answer = found(x[np.random.default_rng(0).permutation(80)])
    assert 0 in answer
    assert 2 not in answer


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is absent")
def test_air_quality_stations_in_random_order_are_unordered_and_hours_are_ordered():
    with np.load(DATA / "aqi36_dev.npz") as data:
        x = np.where(data["dev_mask"], np.nan, data["pm25"])[:, np.random.default_rng(0).permutation(36)]
    assert found(x) == [1]
    assert found(x.T) == [0]
