"""`corten check` describes a file without a fit; masks of land are found in files; the bar says how long it takes."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from test_cli import FAST, refused, run

from corten.cli import terminal
from corten.cli.terminal import Terminal, _Bar
from corten.engine import compiled
from corten.results.progress import compiling
from corten.simulate import sea_like

pytestmark = pytest.mark.usefixtures("read_here")


@pytest.fixture(scope="module")
def sea(tmp_path_factory):
    """A file with maps of the sea, a mask of land, one uneven step and a code for missing values."""
    path = tmp_path_factory.mktemp("sea") / "sea.nc"
    days = sea_like((10, 12, 14), seed=2)[["sst", "land"]].isel(time=[*range(6), *range(7, 14)])
    clear = np.flatnonzero(~np.isnan(days.sst.values))
    days.sst.values.flat[clear[:4]] = -9999.0
    days.to_netcdf(path)
    return path


def test_check_finds_gaps_land_codes_and_uneven_axes(sea, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("check", sea).stdout
    assert max(len(line) for line in shown.splitlines()[1:]) <= 80
    (facts,) = json.loads(run("check", sea, "--json").stdout)["variables"].values()
    assert "the mask 'land' marks them" in facts["never observed"]
    assert "-9999" in facts["suspicious"] and "4 entries" in facts["suspicious"]
    assert "time ordered, uneven: steps of 1 d to 2 d" in facts["axes"] and "lat ordered, every" in facts["axes"]
    assert "connected; longest along lat" in facts["gaps"] and "memory" in facts["predicted"]
    assert facts["run"].endswith("-o sea-filled.nc") and "-v" not in facts["run"]
    assert "suspicious" in shown and facts["missing"] in shown


def test_check_names_what_it_cannot_read(tmp_path):
    np.save(tmp_path / "x.npy", np.full((3, 4), np.nan))
    (name,) = json.loads(run("check", tmp_path / "x.npy", "--json").stdout)["variables"]
    assert name == "value"


def test_check_gives_the_options_on(sea, tmp_path):
    given = ["-v", "sst", "--missing-value", "-9999", "--periodic", "lon", "--fill-never-observed"]
    (facts,) = json.loads(run("check", sea, *given, "--json").stdout)["variables"].values()
    assert "suspicious" not in facts and "and are filled" in facts["never observed"]
    assert "-v sst --missing-value -9999 --periodic lon --fill-never-observed" in facts["run"]
    np.savez(tmp_path / "two.npz", a=np.eye(5), b=np.where(np.eye(6) > 0, np.nan, 1.0), name=np.array("x"))
    both = json.loads(run("check", tmp_path / "two.npz", "--json").stdout)["variables"]
    assert both["a"]["note"] == "nothing is missing" and "-v b" in both["b"]["run"]


def test_land_is_skipped_and_where_takes_masks_of_several_kinds(sea, tmp_path):
    with xr.open_dataset(sea) as given:
        land = given.land.values != 0
    xr.open_dataset(sea)[["land"]].rename(land="lsm").to_netcdf(tmp_path / "mask.nc")
    np.save(tmp_path / "sea.npy", ~land)
    asked = {
        "mask found": [], "negated": ["--where", "!land"], "another file": ["--where", f"!{tmp_path / 'mask.nc'}:lsm"],
        "a file": ["--where", tmp_path / "sea.npy"],
    }  # fmt: skip
    for number, words in enumerate(asked.values()):
        out = tmp_path / f"{number}.npz"
        run("complete", sea, "-o", out, *words, "--missing-value", "-9999", *FAST, "--quiet")
        with np.load(out) as found:
            np.testing.assert_array_equal((found["flag"] == 4).all(axis=2), land)
    everything = tmp_path / "all.npz"
    run("complete", sea, "-o", everything, "--fill-never-observed", "--missing-value", "-9999", *FAST, "--quiet")
    with np.load(everything) as found:
        assert not (found["flag"] == 4).any()
    assert "they must agree" in refused("complete", sea, "-o", tmp_path / "x.nc", "--where", _wrong(tmp_path))


def _wrong(folder):
    np.save(folder / "wrong.npy", np.ones((3, 3)))
    return folder / "wrong.npy"


def test_full_prints_every_setting_and_the_short_form_ten_lines(sea, tmp_path):
    options = ["--missing-value", "-9999", "--completion", "tucker", "--propensity", "constant"]
    options += ["--calibration", "random"]
    short = run("complete", sea, "-o", tmp_path / "a.npz", *options).stdout
    assert "predicted: less than 10 s on " in short and "Why" not in short
    lines = short[short.index("corten: sst") :].splitlines()
    (error,) = (line for line in lines if line.startswith("absolute error"))
    assert len(lines) <= 13 and "interpolation along" in error
    full = run("complete", sea, "-o", tmp_path / "b.npz", *options, "--full").stdout
    assert "Setting" in full and "Why" in full and "Tucker rank" in full


def test_the_bar_names_the_stage_and_labels_both_times(monkeypatch):
    now, seen = [100.0], {}
    monkeypatch.setattr(terminal, "monotonic", lambda: now[0])
    monkeypatch.setattr(terminal, "compiling", lambda: "")
    bar = _Bar(Terminal(quiet=True).say)
    bar.bars = SimpleNamespace(update=lambda task, **given: seen.update(given))
    bar.task = 0
    bar("planning", 0.0)
    assert seen["description"] == "planning the calibration" and bar.clock(104.0) == "elapsed 4.0 s"
    now[0] = 105.0
    bar.predicted(40.0, 1)
    bar("completion", 0.0)
    assert bar.clock(105.0) == "elapsed 5.0 s, about 40 s left" and bar.clock(115.0).endswith("about 30 s left")
    assert bar.clock(160.0) == "elapsed 60 s".replace("60 s", "1.0 min")  # longer than predicted: no number
    now[0] = 150.0
    bar("completion", 0.5)  # about half of the whole
    left = bar.clock(150.0).partition("about ")[2]
    assert left == "51 s left" and seen["completed"] == pytest.approx(0.495)
    now[0] = 190.0
    bar("calibration", 1.0)
    assert bar.clock(195.0).endswith("almost done")
    bar("completing 3 files", 0.0)
    assert seen["total"] is None


def test_a_machine_without_compiled_kernels_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "kept_kernels", lambda: (tmp_path, 0))
    assert "the first fit also compiles" in compiling()
    monkeypatch.setattr(compiled, "kept_kernels", lambda: (tmp_path, 3))
    assert compiling() == ""


def test_many_columns_are_counted_and_help_is_wrapped(tmp_path, monkeypatch):
    path = tmp_path / "wide.csv"
    values = np.add.outer(np.arange(8.0), np.arange(30.0))
    values[np.arange(8), np.arange(8)] = np.nan
    days = pd.date_range("2024-01-01", periods=8, name="day")
    pd.DataFrame(values, index=days, columns=[f"S{k}" for k in range(30)]).to_csv(path)
    assert "and 19 more" in run("check", path).stdout.splitlines()[0]
    monkeypatch.setenv("COLUMNS", "200")
    assert "Slices that the fit has already change nothing." in run("update", "--help").stdout
