"""Public tables: measures of a case, rows that resume, and the page with published numbers beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import corten
from studies import public_tables as tables


def problem() -> tables.Problem:
    rng = np.random.default_rng(0)
    truth = np.exp(np.sin(np.arange(60) / 4)[:, None] + 0.1 * rng.normal(size=(60, 5))) + 1
    hidden = rng.random(truth.shape) < 0.3
    return tables.Problem(xr.DataArray(np.where(hidden, np.nan, truth), dims=("time", "station")), truth, hidden)


def complete(x):
    return corten.complete(x, completion="smooth", propensity="constant", calibration="random")


def test_measures_are_those_of_the_public_comparisons():
    one = problem()
    row = tables.evaluate("AQI-36", one, complete)
    result, y, at = complete(one.x), one.truth[one.score], one.score
    error = np.asarray(result.estimate)[at] - y
    assert row.measures["MAE"] == pytest.approx(np.abs(error).mean())
    assert row.measures["MAPE"] == pytest.approx(100 * np.mean(np.abs(error) / y))
    losses = []
    for q in np.arange(1, 20) / 20:
        under = y - np.asarray(result.quantile(float(q)))[at]
        losses.append(2 * np.sum(np.where(under > 0, q * under, (q - 1) * under)) / np.abs(y).sum())
    assert row.measures["CRPS"] == pytest.approx(np.mean(losses))
    assert 80 < row.measures["coverage"] <= 100


def test_linear_interpolation_is_that_of_numpy():
    x = np.array([[0.0, 1.0], [np.nan, 2.0], [4.0, np.nan], [np.nan, 5.0]])
    truth = np.array([[0.0, 1.0], [3.0, 2.0], [4.0, 4.0], [9.0, 5.0]])
    assert tables.linear_in_time(tables.Problem(x, truth, np.isnan(x))) == pytest.approx((1 + 0.5 + 5) / 3)


def test_rows_are_kept_and_the_page_shows_worse_ones(tmp_path, monkeypatch):
    case = replace(tables.CASES["RM30"], file="x.npz", make=lambda folder: problem())
    monkeypatch.setitem(tables.CASES, "RM30", case)
    with pytest.raises(FileNotFoundError, match="--data"):
        tables.run_tables(["RM30"], tmp_path, tmp_path / "out", print, complete)
    (tmp_path / "x.npz").touch()
    told = []
    first = tables.run_tables(["RM30"], tmp_path, tmp_path / "out", told.append, complete)
    again = tables.run_tables(["RM30"], tmp_path, tmp_path / "out", told.append, complete)
    assert told == first == again == tables.read_rows(tmp_path / "out")
    worse = replace(first[0], measures={**first[0].measures, "MAPE": 2 * 18.63, "RMSE": 24.95 / 2})
    text = tables.page([worse], "the command")
    assert "| 37.26 (+100%) | 12.47 (-50%) |" in text
    assert "1 of 2 of its numbers" in text and "not run" in text and "the command" in text
    with pytest.raises(ValueError, match="AQI-36"):
        tables.run_tables(["mars"], tmp_path, tmp_path / "out", print)
