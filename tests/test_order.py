"""Axes of bare arrays: ordered where shuffling would show, units where it would not, the caller's word above both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corten
from corten.data.axes import Axis
from corten.data.observed import ObservedTensor
from corten.data.order import neighbours_alike, unordered_axes

DATA = Path(__file__).parents[2] / "shared" / "data"


def stations(count: int = 12, hours: int = 200, seed: int = 0) -> np.ndarray:
    """Stations that share a daily cycle and weather, each with a level of its own; a third is missing."""
    rng = np.random.default_rng(seed)
    weather = np.cumsum(rng.normal(size=hours)) * 0.3
    cycle = 3 * np.sin(2 * np.pi * np.arange(hours) / 24)
    x = rng.normal(10, 3, (count, 1)) + rng.uniform(0.5, 1.5, (count, 1)) * (weather + cycle)
    x += 0.3 * rng.normal(size=x.shape)
    x[rng.random(x.shape) < 0.33] = np.nan
    return x


def kinds(x: object, **said: object) -> list[str]:
    return [axis.kind for axis in ObservedTensor.of(x, **said).axes]


def slow_alike(x: np.ndarray, axis: int) -> float:
    """By the definition: every pair of slices, every cell."""
    slices = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    near, every = [], []
    for i in range(len(slices)):
        for j in range(i + 1, len(slices)):
            difference = (slices[i] - slices[j]) ** 2
            difference = difference[~np.isnan(difference)].tolist()
            every += difference
            near += difference if j == i + 1 else []
    return 1 - np.mean(near) / np.mean(every)


@pytest.mark.parametrize("axis", [0, 1])
def test_likeness_is_that_of_the_definition(axis):
    x = stations(7, 40)
    np.testing.assert_allclose(neighbours_alike(x, ~np.isnan(x), axis)[0], slow_alike(x, axis), rtol=1e-9)


def test_stations_are_units_and_hours_are_ordered():
    found = [kinds(stations(seed=seed)) for seed in range(10)]
    assert all(kind[1] == "ordered" for kind in found)
    # One shuffle in ten looks ordered by chance; four or more of ten do with probability 0.013.
    assert sum(kind[0] == "unordered" for kind in found) >= 7


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_shuffled_axis_of_a_field_is_a_unordered_axis(axis):
    field = corten.simulate.tec_like((20, 24, 24), seed=0).observed
    assert kinds(field) == ["ordered"] * 3
    found = []
    for seed in range(8):
        shuffled = np.take(field, np.random.default_rng(seed).permutation(field.shape[axis]), axis)
        found.append([k for k, kind in enumerate(kinds(shuffled)) if kind == "unordered"])
    assert all(axes in ([], [axis]) for axes in found)
    # One shuffle in ten looks ordered by chance; four or more of eight do with probability 0.005.
    assert sum(axes == [axis] for axes in found) >= 5


def test_without_a_clear_order_anywhere_nothing_is_a_unit():
    rng = np.random.default_rng(0)
    assert kinds(rng.normal(size=(20, 30))) == ["ordered"] * 2
    assert kinds(corten.simulate.paper_setting(20, 3, seed=0).observed) == ["ordered"] * 3
    assert unordered_axes(np.ones((4, 4)), np.ones((4, 4), bool)) == ()


def test_the_callers_word_counts_and_the_choice_is_on_record():
    x = stations()
    assert kinds(x, axis_kinds={0: "ordered"}) == ["ordered", "ordered"]
    assert kinds(x, axes=(Axis("station", 12), Axis("hour", 200))) == ["ordered", "ordered"]
    assert kinds(x, axes=("station", "hour"), periodic=("station",)) == ["ordered", "ordered"]
    tensor = ObservedTensor.of(x, axes=("station", "hour"))
    assert [choice.what for choice in tensor.choices] == ["kind of station"]
    assert "strangers" in tensor.choices[0].because
    summary = corten.complete(x, completion="smooth", propensity="uniform", calibration="random").summary()
    assert any(choice.what == "kind of axis_0" and choice.taken == "unordered" for choice in summary.choices)


@pytest.mark.skipif(not DATA.exists(), reason="shared data are not here")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("tec-america-1", []), ("tec-global-1", []), ("ndvi-20", []), ("ndvi-50", []), ("air-random", ["0"])],
)
def test_real_fields_keep_their_order(name, expected):
    from studies.field_sets import load_set

    one = load_set(name, DATA)
    assert [choice.what for choice in unordered_axes(np.where(one.mask, one.truth, np.nan), one.mask)] == expected
