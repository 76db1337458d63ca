"""The accessor of xarray: one variable or a Dataset in, the same out, registered without an import of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import corten
import corten.xarray
from corten.cli.evaluate import read_result

QUICK = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}


def maps():
    """Two variables with gaps, one without, and a flag that belongs to the first."""
    rng, place = np.random.default_rng(0), np.arange(6.0)
    field = np.sin(place)[:, None, None] + np.cos(place)[:, None] + 0.1 * rng.normal(size=(6, 6, 6)) + 3
    dims, gaps = ("time", "lat", "lon"), rng.random((2, 6, 6, 6)) < 0.3
    sst = (dims, np.where(gaps[0], np.nan, field), {"units": "K", "ancillary_variables": "quality"})
    variables = {"sst": sst, "rain": (dims, np.where(gaps[1], np.nan, np.exp(field))), "depth": (dims[1:], field[0])}
    quality = (dims, np.where(gaps[0], np.nan, 1.0))
    coords = dict.fromkeys(dims, place)
    return xr.Dataset({**variables, "quality": quality}, coords, attrs={"title": "Maps", "id": "1", "history": "made"})


def test_an_array_is_completed_as_by_the_function():
    x = maps()["sst"]
    xr.testing.assert_identical(x.corten.complete(0.8, **QUICK).upper, corten.complete(x, 0.8, **QUICK).upper)


def test_a_dataset_is_completed_variable_by_variable(tmp_path):
    data = maps()
    found = data.corten.complete(0.8, settings={"rain": {"transform": "log", "coverage": 0.5}}, **QUICK)
    assert list(found) == ["sst", "rain"]
    assert [found[name].coverage for name in found] == [0.8, 0.5]
    log = corten.complete(data["rain"], 0.5, transform="log", **QUICK)
    xr.testing.assert_identical(found["rain"].lower, log.lower)
    xr.testing.assert_identical(found.lower["rain"].drop_attrs(), log.lower.rename("rain").drop_attrs())
    assert found.estimate["sst"].notnull().all() and found.estimate["depth"].identical(data["depth"])
    assert found.at(0.9)["sst"].coverage == 0.9 and "sst: <Intervals" in repr(found)
    assert found.summary().startswith("corten: sst") and "\ncorten: rain" in found.summary()
    with pytest.raises(AttributeError, match=r"use result\['sst'\].report"):
        found.report("page.html")
    with xr.open_dataset(found.to_netcdf(tmp_path / "x.nc")) as stored:
        stored.load()
    assert {*data.data_vars, "sst_lower", "rain_flag"} <= {*stored.data_vars}
    np.testing.assert_array_equal(stored["rain_upper"], log.upper)
    assert stored["sst"].attrs["ancillary_variables"].split()[-1] == "quality" and "id" not in stored.attrs
    settings = json.loads(stored.attrs["corten_settings"])
    assert settings["rain"]["transform"] == "log" and settings["sst"]["coverage"] == 0.8
    assert stored.attrs["history"].startswith("made\n") and stored.attrs["history"].count("corten") == 1
    estimate, (level,) = read_result(tmp_path / "x.nc", None, None, "rain")
    np.testing.assert_array_equal(level.upper, log.upper)
    assert estimate.name == "rain" and level.coverage == 0.5
    with pytest.raises(ValueError, match="several filled variables, sst, rain"):
        read_result(tmp_path / "x.nc", None, None)
    only = data.corten.complete(variables=["rain"], **QUICK)
    assert list(only) == ["rain"]
    xr.testing.assert_identical(corten.complete(data, 0.8, **QUICK)["sst"].lower, found["sst"].lower)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"variables": ["salt"]}, "names from sst, rain, depth"),
        ({"variables": "sst"}, "a list"),
        ({"settings": {"depth": {}}}, "settings names 'depth'"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        maps().corten.complete(**options, **QUICK)
    with pytest.raises(ValueError, match="no variable of real numbers with two or more axes has missing"):
        maps()[["depth"]].corten.complete(**QUICK)
    with pytest.raises(TypeError, match=r"corten\.complete\(x\) fills every variable"):
        corten.ConformalCompleter().fit(maps())


@pytest.mark.parametrize(
    "code", ["import xarray, corten", "import corten, xarray; corten.complete", "import corten.xarray"]
)
def test_it_is_registered_where_both_are_loaded(code):
    check = f"{code}; import xarray; assert hasattr(xarray.DataArray([1.0]), 'corten')"
    subprocess.run([sys.executable, "-c", check], check=True)
