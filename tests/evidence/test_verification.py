"""Late values against the intervals that were given: counted once, kept whole, and told where intervals fail."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import corten
from corten.data.axes import axes_of_dataarray
from corten.evidence.verification import Given, verify

TIME = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


def given(coverage=0.9, width=1.0, seed=0):
    """Intervals of a known width around a truth; a third of the entries was missing."""
    rng = np.random.default_rng(seed)
    coords = {"lat": np.arange(9.0), "lon": np.arange(12.0), "time": TIME}
    truth = xr.DataArray(rng.normal(size=(9, 12, 6)), coords, ("lat", "lon", "time"), attrs={"units": "K"})
    estimate = truth + rng.uniform(-1, 1, truth.shape)
    missing = rng.random(truth.shape) < 0.3
    half = np.full(truth.shape, width)
    return (
        truth,
        missing,
        Given(
            estimate,
            estimate.values - half,
            upper=estimate.values + half,
            missing=missing,
            axes=axes_of_dataarray(truth),
            coverage=coverage,
            units="K",
        ),
    )


def test_scores_are_those_of_a_plain_count():
    truth, missing, intervals = given(width=0.8)
    scores = verify(intervals, truth)
    hit = np.abs(truth.values - intervals.estimate.values) <= 0.8
    assert scores.entries == scores.added == missing.sum()
    assert scores.coverage == pytest.approx(hit[missing].mean())
    expected = corten.metrics.interval_scores(truth.values, intervals.lower, intervals.upper, 0.9)[missing].mean()
    assert scores.interval_score == pytest.approx(expected)
    for k, row in enumerate(scores.over_time()):
        assert row["entries"] == missing[..., k].sum()
        assert row["coverage"] == pytest.approx(hit[..., k][missing[..., k]].mean())
    block = (slice(0, 3), slice(4, 8))
    found = {row["block"]: row for row in scores.by_block()}["lat 0 to 2, lon 4 to 7"]
    assert found["entries"] == missing[block].sum()
    assert found["coverage"] == pytest.approx(hit[block][missing[block]].mean())
    assert [row["coverage"] for row in scores.by_block()] == sorted(row["coverage"] for row in scores.by_block())


@pytest.mark.parametrize("alike", ["within a block", "within a slice"])
def test_the_standard_error_allows_for_errors_that_are_alike(alike):
    """The spread of the coverage over draws whose errors are the same at many entries."""
    _, _, intervals = given()
    found, errors = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        blocks = np.kron(rng.normal(size=(3, 3)), np.ones((3, 4)))[..., None] * np.ones(6)
        off = blocks if alike == "within a block" else rng.normal(size=6) * np.ones((9, 12, 6))
        scores = verify(intervals, intervals.estimate + off)
        found.append(scores.coverage)
        errors.append(scores.standard_error)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(found), rel=0.25)


def test_late_data_are_counted_once_in_whatever_parts_they_arrive(tmp_path):
    truth, _, intervals = given(width=0.8)
    whole, log = verify(intervals, truth), tmp_path / "scores.jsonl"
    some = truth.where(np.random.default_rng(3).random(truth.shape) < 0.4)
    first = verify(intervals, some.isel(time=slice(0, 4)), log)
    assert verify(intervals, some.isel(time=slice(0, 4)), log).added == 0
    second = verify(intervals, truth, log)
    assert first.added + second.added == whole.entries and second.entries == whole.entries
    again = corten.ScoreLog.read(log)
    assert again.coverage == whole.coverage and again.interval_score == pytest.approx(whole.interval_score)
    assert again.over_time()[2]["coverage"] == whole.over_time()[2]["coverage"]
    assert len(again.by_step()) == 2
    # Nothing arrived: nothing is written.
    before = log.read_bytes()
    assert verify(intervals, truth.where(False), log).added == 0 and log.read_bytes() == before


def test_infinite_intervals_cover_and_do_not_spoil_the_score():
    truth, missing, intervals = given()
    intervals.upper[0] = np.inf
    scores = verify(intervals, truth)
    assert np.isfinite(scores.interval_score) and sum(row["infinite"] for row in scores.over_time()) == missing[0].sum()


def test_what_does_not_belong_together_is_refused(tmp_path):
    truth, _, intervals = given()
    log = tmp_path / "scores.jsonl"
    verify(intervals, truth, log)
    other = truth.assign_coords(lat=truth.lat + 0.5)
    for late, words in (
        (truth.assign_attrs(units="C"), "in C, the intervals in K"),
        (truth.rename(lat="y"), "the axes"),
        (other, "no position in common"),
        (truth.values[:3], "shape"),
    ):
        with pytest.raises(ValueError, match=words):
            verify(intervals, late)
    moved = Given(
        other,
        intervals.lower,
        upper=intervals.upper,
        missing=intervals.missing,
        axes=axes_of_dataarray(other),
        coverage=0.9,
    )
    with pytest.raises(ValueError, match="log of other data"):
        verify(moved, other, log)
    log.write_text(log.read_text()[:-40])
    with pytest.raises(ValueError, match=r"scores.jsonl, line 7: not a log"):
        corten.ScoreLog.read(log)


def test_coordinates_that_differ_by_rounding_are_the_same(tmp_path):
    """Late data with coordinates in single precision; a few of them are equal by chance."""
    truth, missing, intervals = given()
    tenths = truth.assign_coords(lat=truth.lat * 0.1)
    fine = replace(intervals, estimate=intervals.estimate.assign_coords(lat=tenths.lat))
    late = tenths.assign_coords(lat=tenths.lat.astype(np.float32))
    assert 0 < np.isin(late.lat, tenths.lat).sum() < 9
    assert verify(fine, late).entries == missing.sum()
    # Intervals of the next day may have the rounded coordinates: their log is the same.
    log = tmp_path / "scores.jsonl"
    for day, own in enumerate((tenths, late.assign_coords(lat=late.lat.astype(float)))):
        named = own.assign_coords(time=own.time + np.timedelta64(6 * day, "D"))
        estimate = intervals.estimate.assign_coords(named.coords)
        done = verify(replace(intervals, estimate=estimate, axes=axes_of_dataarray(named)), named, log)
    assert done.entries == 2 * missing.sum()


def test_tables_without_common_labels_are_refused():
    rng = np.random.default_rng(0)
    names = pd.date_range("2020-01-01", periods=30, freq="h"), list("abcde")
    truth = pd.DataFrame(rng.normal(size=(30, 5)).cumsum(0), *names)
    gappy = truth.where(rng.random(truth.shape) > 0.3)
    fitted = corten.ConformalCompleter("smooth", calibration="random", propensity="constant").fit(gappy)
    assert fitted.verify(truth[::-1].iloc[5:]).entries == gappy[:-5].isna().sum().sum()
    for late, words in (
        (truth.set_axis(list("vwxyz"), axis=1), "no position in common"),
        (truth.set_axis(truth.index + pd.Timedelta("9D")), "no position in common"),
        (pd.concat([truth, truth]), "repeat positions"),
    ):
        with pytest.raises(ValueError, match=words):
            fitted.verify(late)


def test_slices_without_coordinates_need_a_label(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 9, 10)).cumsum(2)
    gappy = np.where(np.random.default_rng(1).random(x.shape) < 0.3, np.nan, x)
    fitted = corten.ConformalCompleter("smooth", calibration="random", propensity="constant").fit(gappy)
    log = tmp_path / "scores.jsonl"
    with pytest.raises(ValueError, match="label="):
        fitted.verify(x, log)
    assert fitted.verify(x, log, label="day 1").added == np.isnan(gappy).sum()
    assert fitted.verify(np.ma.masked_invalid(x), log, label="day 2").entries == 2 * np.isnan(gappy).sum()
    assert fitted.verify(np.where(x > 0, x, -99.0), missing_value=-99).entries == (np.isnan(gappy) & (x > 0)).sum()


def test_the_adaptive_level_follows_the_log(tmp_path):
    truth, _, intervals = given(width=0.5)  # half of the values are covered
    log = tmp_path / "scores.jsonl"
    verify(intervals, truth.isel(time=[0, 1]), log)  # a fixed level: does not count
    assert corten.ScoreLog.read(log).adaptive(0.9).steps == 0
    done = verify(intervals, truth.isel(time=[0, 1]), log, target=0.95)
    done = verify(intervals, truth, log, target=0.95)
    adaptive = done.adaptive(0.95, rate=0.1)
    outside = [1 - row["coverage"] for row in done.by_step()[1:]]
    assert adaptive.steps == 2 and adaptive.present == pytest.approx(0.05 + 0.1 * (0.1 - sum(outside)))


def test_a_log_survives_a_kill_at_any_moment(tmp_path):
    """A program that writes the log again and again is killed: the log is always whole, and of a step that was done."""
    log = tmp_path / "scores.jsonl"
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_verification import given, verify\n"
        "truth, _, intervals = given()\n"
        "for k in range(10**6):\n"
        "    verify(intervals, truth, sys.argv[1], target=(k + 1) / 10**7)\n"
        "    print(k, flush=True)\n"
    )
    here = os.path.dirname(__file__)
    running = subprocess.Popen([sys.executable, "-c", code, str(log), here], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        last = int(running.stdout.readline())
    time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    told = running.stdout.read().split()
    running.wait()
    running.stdout.close()
    steps = len(corten.ScoreLog.read(log).by_step())
    assert steps in (int(told[-1] if told else last) + 1, int(told[-1] if told else last) + 2)
    truth, _, intervals = given()
    assert verify(intervals, truth, log, target=0.5).added > 0
    assert [one.name for one in tmp_path.iterdir()] == ["scores.jsonl"]  # what the killed one left is gone
