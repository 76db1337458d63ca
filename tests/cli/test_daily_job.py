"""The daily job on the command line: fill, verify and update, the same as in Python, and safe to run twice."""

import json

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import corten
from corten.cli.app import app

pytestmark = pytest.mark.usefixtures("read_here")


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def day(number, seed):
    rng = np.random.default_rng(seed)
    lat, lon, t = np.ogrid[:12, :14, 24 * number : 24 * number + 24]
    truth = np.sin(lat / 4 + t / 6) + np.cos(lon / 3 - t / 8) + 0.1 * rng.normal(size=(12, 14, 24))
    gap = np.kron(rng.random((6, 7, 8)) < 0.3, np.ones((2, 2, 3), bool))
    time = np.datetime64("2020-01-01", "ns") + t.ravel() * np.timedelta64(1, "h")
    coords = {"lat": np.arange(12.0), "lon": np.arange(14.0), "time": time}
    whole = xr.DataArray(truth, coords, ("lat", "lon", "time"), "tec", {"units": "TECU"})
    return whole.where(~gap), whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved fit of the first day, and files of two more."""
    where = tmp_path_factory.mktemp("daily")
    calibration = corten.GapCalibration(rounds=4, drawn=0)
    fitted = corten.ConformalCompleter("smooth", "constant", calibration).fit(day(0, 0)[0])
    fitted.save(where / "fit.corten")
    for number in (1, 2):
        gappy, truth = day(number, number)
        gappy.to_dataset().assign(other=gappy).to_netcdf(where / f"day{number}.nc")
        truth.to_netcdf(where / f"late{number}.nc")
    return where


def test_fill_and_verify_are_those_of_python(folder):
    fit, out, log = folder / "fit.corten", folder / "filled.nc", folder / "scores.jsonl"
    page = folder / "page.html"
    run("fill", fit, folder / "day1.nc", "--output", out)
    expected = corten.load(fit).fill(day(1, 1)[0])
    with xr.open_dataset(out) as found:
        assert np.array_equal(found.tec_lower, expected.lower) and np.array_equal(found.tec, expected.estimate)
    run("fill", fit, folder / "day1.nc", "--output", folder / "measured.nc", "--rounds", "2")
    with xr.open_dataset(folder / "measured.nc") as found:
        assert np.array_equal(found.tec_lower, corten.load(fit).fill(day(1, 1)[0], rounds=2).lower)
        assert not np.array_equal(found.tec_lower, expected.lower)
    answer = json.loads(run("verify", out, folder / "late1.nc", "--log", log, "--json").stdout)
    scores = expected.verify(day(1, 1)[1])
    assert answer["coverage"] == scores.coverage and answer["added"] == expected.observed.n_missing
    assert answer["over_time"][3] == scores.over_time()[3] and answer["by_block"] == scores.by_block()
    # Again: nothing is counted twice, and an output is replaced only if that is allowed.
    again = json.loads(run("verify", out, folder / "late1.nc", "--log", log, "--json").stdout)
    assert again["added"] == 0 and again["entries"] == answer["entries"]
    assert "exists" in run("fill", fit, folder / "day1.nc", "--output", out, code=2).stderr
    run("fill", fit, folder / "day1.nc", "--output", out, "--overwrite", "--scores", log, "--report", page)
    assert '"past": {' in page.read_text() or '"past":{' in page.read_text()
    assert "2020-01-02T05:00:00" in page.read_text()


def test_the_adaptive_level_is_taken_from_the_log(folder):
    fit, out, log = folder / "fit.corten", folder / "adaptive.nc", folder / "adaptive.jsonl"
    wanted = ["--scores", log, "--adaptive", "--coverage", 0.8, "--json"]
    first = json.loads(run("fill", fit, folder / "day1.nc", "--output", out, *wanted).stdout)
    assert first["coverage"] == pytest.approx(0.8) and first["target"] == 0.8
    found = json.loads(run("verify", out, folder / "late1.nc", "--log", log, "--target", 0.8, "--json").stdout)
    second = json.loads(run("fill", fit, folder / "day2.nc", "-o", out, "--overwrite", *wanted).stdout)
    assert second["coverage"] == pytest.approx(0.8 - 0.05 * (0.2 - (1 - found["coverage"])))
    with xr.open_dataset(out) as written:
        assert written.tec_lower.attrs["coverage"] == pytest.approx(second["coverage"])


def test_long_tables_are_filled_and_verified(folder, tmp_path):
    """A result keeps the column of values beside the coordinates of the rows."""
    for name, one in zip(("old", "new", "late"), (day(0, 0)[0], *day(1, 1))):
        one[:5, :4].to_dataframe().reset_index().to_csv(tmp_path / f"{name}.csv", index=False)
    options = ["--completion", "smooth", "--propensity", "uniform", "--calibration", "random", "--variable", "tec"]
    run("complete", tmp_path / "old.csv", "-o", tmp_path / "filled.csv", "--save", tmp_path / "fit", *options)
    run("fill", tmp_path / "fit", tmp_path / "new.csv", "-o", tmp_path / "filled.csv", "--overwrite")
    compared = ["verify", tmp_path / "filled.csv", tmp_path / "late.csv", "--coverage", 0.9, "--json"]
    found = json.loads(run(*compared, "--variable", "tec").stdout)
    assert found["entries"] == int(day(1, 1)[0][:5, :4].isnull().sum())
    assert "--variable" in run(*compared, code=2).stderr


def test_update_replaces_the_fit_as_a_whole(folder):
    fit = folder / "moving.corten"
    corten.load(folder / "fit.corten").save(fit)
    answer = json.loads(run("update", fit, folder / "day1.nc", "--window", 30, "--json").stdout)
    moved = corten.load(fit)
    assert answer["shape"] == [12, 14, 30] == list(moved.observed.shape)
    assert np.array_equal(moved.scores, corten.load(folder / "fit.corten").update(day(1, 1)[0], window=30).scores)
    # The same day again replaces its slices, and the job goes on.
    run("update", fit, folder / "day1.nc", "--window", 30)
    assert corten.load(fit).observed.shape == (12, 14, 30)
    run("fill", fit, folder / "day2.nc", "--output", folder / "after.nc")


def test_mistakes_are_told_in_one_line(folder):
    fit, day1 = folder / "fit.corten", folder / "day1.nc"
    other = folder / "other.nc"
    day(1, 1)[0].isel(lat=slice(0, 5)).to_netcdf(other)
    for words, arguments in (
        ("another grid: axis 'lat' has 5 positions", ("fill", fit, other, "-o", folder / "x.nc")),
        ("needs the log", ("fill", fit, day1, "-o", folder / "x.nc", "--adaptive")),
        ("would be lost", ("fill", fit, day1, "-o", day1, "--overwrite")),
        ("would be lost", ("verify", folder / "fit.corten", folder / "late1.nc", "--log", folder / "late1.nc")),
        ("not a corten file", ("update", day1, day1)),
    ):
        lines = run(*arguments, code=2).stderr.strip().splitlines()
        assert len(lines) == 1 and words in lines[0], lines
