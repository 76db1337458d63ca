"""Covariates in a whole call: they lower the error if they explain the data, and do no harm if they do not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import corten
from corten.cli.app import app
from corten.cli.options import DataOptions
from tests.completion.test_trend import SHAPE, smooth, station

QUICK = corten.ConformalCompleter("smooth", "constant", "random")


def error(fitted, y):
    missing = fitted.observed.missing
    return float(np.sqrt(np.mean((fitted.intervals(0.9).estimate_array - y)[missing] ** 2)))


@pytest.mark.parametrize("calibration", ["random", "cross", corten.GapCalibration(rounds=3, drawn=0)])
def test_a_covariate_lowers_the_error_and_a_useless_one_does_not_raise_it(calibration):
    y, mask, covariates = station(11)
    if not isinstance(calibration, corten.GapCalibration):
        mask = np.random.default_rng(0).random(SHAPE) < 0.7
    x = np.where(mask, y, np.nan)
    completer = corten.ConformalCompleter("smooth", "constant", calibration)
    kinds = dict.fromkeys(range(3), "ordered")
    plain, useless, both = (
        completer.fit(x, covariates=given, axis_kinds=kinds)
        for given in (None, {"useless": covariates["useless"]}, covariates)
    )
    assert error(useless, y) <= 1.001 * error(plain, y)
    assert error(both, y) < 0.5 * error(plain, y)
    inside = both.intervals(0.9)
    assert np.abs(inside.width_array[~mask]).mean() < 0.7 * plain.intervals(0.9).width_array[~mask].mean()
    assert abs(np.mean((inside.lower_array <= y)[~mask] & (inside.upper_array >= y)[~mask]) - 0.9) < 0.06
    (record,) = (one for one in both.choices if one.code == "covariates")
    assert list(record.values["coefficients"]) == ["elevation"]
    assert "elevation" in str(both.intervals(0.9).summary(full=True))


def test_the_learned_correction_uses_covariates_where_a_trend_cannot(monkeypatch):
    monkeypatch.setattr("corten.completion.correction.TREES", 25)
    monkeypatch.setattr("corten.completion.correction.MIN_CORRECTION_ENTRIES", 1000)
    rng = np.random.default_rng(3)
    shape = (24, 24, 12)
    u = rng.normal(size=shape)
    y = smooth(rng, 4.0, shape) + 3 * (np.abs(u) < 0.5)  # not linear in u
    x = np.where(smooth(rng, 1.5, shape) > -0.5, y, np.nan)
    members = {"a": corten.SmoothCompletion(), "b": corten.SmoothCompletion()}
    completer = corten.ConformalCompleter(
        corten.StackedCompletion(members), "constant", corten.GapCalibration(rounds=3, drawn=0)
    )
    helped = completer.fit(x, covariates={"u": u}, axis_kinds=dict.fromkeys(range(3), "ordered"))
    assert "correction_used" in [one.code for one in helped.choices]
    assert error(helped, y) < 0.7 * 3 * np.std(np.abs(u) < 0.5)


def test_a_saved_fit_keeps_its_covariates_and_refuses_new_data(tmp_path):
    y, mask, covariates = station(12)
    x = xr.DataArray(np.where(mask, y, np.nan), dims=("lat", "lon", "time"), name="t2m")
    dataset = xr.Dataset({"elevation": (("lon", "lat"), covariates["elevation"][:, :, 0].T)})
    fitted = QUICK.fit(x, covariates=dataset)
    again = corten.load(fitted.save(tmp_path / "fit.corten"))
    assert np.array_equal(again.intervals(0.9).lower_array, fitted.intervals(0.9).lower_array)
    assert np.array_equal(again.observed.covariates["elevation"], covariates["elevation"])
    for one in (fitted, again):
        with pytest.raises(ValueError, match="uses covariates"):
            one.fill(x)
    assert 0.5 < fitted.audit(rounds=2).coverage(0.9) <= 1


@pytest.mark.parametrize(
    ("covariates", "said"),
    [
        ({"z": np.zeros((3, 4))}, r"covariate 'z' has shape \(3, 4\), x has"),
        ({"z": np.full((24, 15), np.nan)}, "no finite value"),
        ({"z": np.array([["a"] * 15] * 24)}, "dtype"),
        ({"t2m": np.zeros((24, 15))}, "cannot explain itself"),
        ({3: np.zeros((24, 15))}, "no text"),
        (np.zeros(SHAPE), "give a dict"),
        ({"z": xr.DataArray(np.zeros(7), dims="height")}, "covariate 'z' has the axis height"),
        ({"z": pd.DataFrame(np.zeros((24, 15)))}, "DataFrame but x is not"),
    ],
)
def test_unusable_covariates_are_refused(covariates, said):
    x = xr.DataArray(np.zeros(SHAPE), dims=("lat", "lon", "time"), name="t2m")
    with pytest.raises((ValueError, TypeError), match=said):
        QUICK.fit(x, covariates=covariates)


@pytest.mark.usefixtures("read_here")
def test_the_command_line_reads_covariates(tmp_path):
    y, mask, covariates = station(13)
    x = np.where(mask, y, np.nan)
    elevation = covariates["elevation"][:, :, 0]
    dims = ("lat", "lon", "time")
    xr.Dataset({"t2m": (dims, x), "elevation": (dims[:2], elevation)}).to_netcdf(tmp_path / "x.nc")
    np.save(tmp_path / "z.npy", elevation)
    file = tmp_path / "x.nc"
    for given, name in (("elevation", "elevation"), (f"{file}:elevation", "elevation"), (str(tmp_path / "z.npy"), "z")):
        observed = DataOptions(variable="t2m", covariates=[given]).read(file)
        assert np.array_equal(observed.covariates[name], elevation[:, :, None])
    options = [
        "--completion",
        "smooth",
        "--calibration",
        "random",
        "--propensity",
        "constant",
        "--quiet",
        "--covariates",
        "elevation",
    ]
    command = ["complete", str(file), "-v", "t2m", "-o", str(tmp_path / "out.nc"), *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    expected = QUICK.fit(xr.DataArray(x, dims=dims), covariates={"elevation": elevation[:, :, None]})
    with xr.open_dataset(tmp_path / "out.nc") as written:
        assert np.allclose(written["t2m"].values, expected.intervals(0.9).estimate_array, atol=1e-5)
