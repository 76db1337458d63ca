"""Places without any observation are found, reported, and skipped where they are land."""

import numpy as np
import pytest
import xarray as xr

from corten.data.never_observed import CODE, find_never_observed, skip_never_observed
from corten.data.observed import ObservedTensor

NAN = np.nan


def maps(times=20, clouds=0.4, name="sst", land=True, standard_name=None):
    """Maps (time, lat, lon) with clouds; the first two rows are land."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(times, 8, 9))
    x[rng.random(x.shape) < clouds] = NAN
    if land:
        x[:, :2] = NAN
    attrs = {} if standard_name is None else {"standard_name": standard_name}
    return xr.DataArray(x, dims=("time", "lat", "lon"), name=name, attrs=attrs)


def outcome(x, **options):
    tensor = skip_never_observed(ObservedTensor.of(x), **options)
    (record,) = [one for one in tensor.choices if one.code == CODE] or [None]
    return tensor, record


@pytest.mark.parametrize("named", [{"name": "sst"}, {"name": "t", "standard_name": "sea_water_temperature"}])
def test_land_in_a_variable_of_the_sea_is_skipped(named):
    tensor, record = outcome(maps(**named))
    assert record.taken == "skipped" and record.values["skipped"] == 20 * 18 == int((~tensor.domain).sum())
    assert not tensor.domain[:, :2].any() and tensor.domain[:, 2:].all()
    assert tensor.n_missing == int(np.isnan(maps().values[:, 2:]).sum())
    assert skip_never_observed(tensor) is tensor  # once
    kept, said = outcome(maps(**named), fill=True)
    assert kept.domain is None and said.taken == "filled" and said.values["places"] == 18


def test_other_variables_are_filled_and_the_places_are_reported():
    for x in (maps(name="tec"), maps(name="air_pressure_at_mean_sea_level"), maps().values):
        tensor, record = outcome(x)
        assert tensor.domain is None and record.taken == "filled" and record.values["entries"] == 20 * 18
    assert outcome(maps(land=False))[1] is None and find_never_observed(ObservedTensor.of(maps(land=False))) is None


def test_clouds_that_never_open_are_not_land():
    """Persistent clouds: as many places are observed once as never. Few times: nothing is known."""
    x = maps(land=False)
    x.values[:, 0], x.values[1:, 1] = NAN, NAN
    x.values[0, 1] = 1.0
    assert outcome(x)[1].taken == "filled"
    assert outcome(maps(times=5))[1].taken == "filled"


@pytest.mark.parametrize("kind", ["land", "sea", "fraction", "flags", "in time"])
def test_a_mask_decides_whatever_its_sign(kind):
    """Places that are land by the mask are skipped; never observed sea is filled."""
    x = maps(times=6, clouds=0.1, name="anything")
    x.values[:, 5, 5] = NAN
    land = np.zeros((8, 9))
    land[:2] = 1
    mask = {
        "land": land, "sea": 1 - land, "fraction": np.where(land, 0.9, 0.1) + np.linspace(0, 0.09, 72).reshape(8, 9),
        "flags": np.where(land, 2, 1), "in time": np.broadcast_to(land, x.shape),
    }[kind]  # fmt: skip
    dims = ("time", "lat", "lon") if mask.ndim == 3 else ("lat", "lon")
    tensor, record = outcome(x.assign_coords(lsm=(dims, mask)))
    assert record.values["places"] == 19 and record.values["places_skipped"] == 18 and "'lsm'" in record.because
    assert not tensor.domain[:, :2].any() and tensor.domain[:, 5, 5].all()
    named = x.transpose("lat", "lon", "time")
    beside = np.moveaxis(np.broadcast_to(mask, x.shape), 0, 2)  # of a file, beside the variable
    np.testing.assert_array_equal(outcome(named, masks={"lsm": beside})[0].domain, np.moveaxis(tensor.domain, 0, 2))


def test_a_mask_of_observations_and_a_given_domain_change_nothing():
    x = maps(name="tec")
    tensor, record = outcome(x.assign_coords(mask=(x.dims, ~np.isnan(x.values))))
    assert tensor.domain is None and record.taken == "filled"
    where = np.ones(x.shape, bool)
    where[:, 7] = False
    given = skip_never_observed(ObservedTensor.of(maps(), where))
    np.testing.assert_array_equal(given.domain, where)


def sharp_or_gradual(gradual, name="band4", times=40):
    """Maps with clouds and an island of 6 x 6 places; with a gradual edge, places near it are observed ever less."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(times, 20, 24))
    chance = np.full((20, 24), 0.6)
    if gradual:
        away = np.maximum(np.abs(np.arange(20) - 10)[:, None], np.abs(np.arange(24) - 12))
        chance = np.clip((away - 3) / 12, 0.0, 0.6)
    x[rng.random(x.shape) > chance] = NAN
    x[:, 8:14, 9:15] = NAN
    coords = {"lat": np.linspace(40.0, 45.0, 20), "lon": np.linspace(0.0, 6.0, 24)}
    return xr.DataArray(x, dims=("time", "lat", "lon"), coords=coords, name=name)


def test_a_region_with_a_sharp_edge_on_a_map_is_land_whatever_the_name():
    tensor, record = outcome(sharp_or_gradual(False))
    assert record.taken == "skipped" and "fill_never_observed=True" in record.because
    assert not tensor.domain[:, 8:14, 9:15].any() and record.values["places_skipped"] == 36
    gradual = sharp_or_gradual(True)
    few = sharp_or_gradual(False, times=12).isel(time=slice(0, 11))
    nowhere = sharp_or_gradual(False).drop_vars(["lat", "lon"]).rename(lat="row", lon="line")
    of_the_air = sharp_or_gradual(False, name="tec")
    in_units = sharp_or_gradual(False).assign_attrs(units="TECU")
    for other in (gradual, few, nowhere, of_the_air, in_units):
        tensor, record = outcome(other)
        assert tensor.domain is None and record.taken == "filled"


def test_places_are_never_observed_by_chance_or_not():
    """A tenth of 15^3 at random leaves lines empty; a row without any observation among full ones is another thing."""
    rng = np.random.default_rng(2)
    sparse = np.where(rng.random((15, 15, 15)) < 0.1, 1.0, NAN)
    found = find_never_observed(ObservedTensor.of(sparse + rng.normal(size=sparse.shape)))
    assert found.count > 20 and found.by_chance
    dead = np.where(rng.random((20, 30)) < 0.7, rng.normal(size=(20, 30)), NAN)
    dead[[3, 8]] = NAN
    assert not find_never_observed(ObservedTensor.of(dead)).by_chance


def test_outages_of_sensors_in_days_and_hours_are_no_places():
    """Without labels a day without values of one sensor is an outage; a sensor without any value is a place."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 24, 5))
    x[[2, 3, 7], :, [0, 0, 4]] = NAN
    kinds = {0: "ordered", 1: "ordered", 2: "unordered"}
    assert find_never_observed(ObservedTensor.of(x, axis_kinds=kinds)) is None
    x[:, :, 3] = NAN
    found = find_never_observed(ObservedTensor.of(x, axis_kinds=kinds))
    assert found.count == 1 and found.along == (0, 1)
