"""The whole method through the command line: simulate, complete, evaluate; errors are one line and exit code 2."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

import corten
from corten.cli.app import app
from corten.cli.options import DataOptions, MethodOptions

pytestmark = pytest.mark.usefixtures("read_here")
QUICK = ["--completion", "tucker", "--propensity", "bernoulli", "--calibration", "random"]
FAST = ["--completion", "smooth", "--propensity", "uniform", "--calibration", "random"]  # where any fit will do


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def refused(*arguments):
    """The one line an error is."""
    done = run(*arguments, code=2)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("corten: ") and not done.stdout, done.output
    return lines[0]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    path = tmp_path_factory.mktemp("simulated") / "sim.nc"
    run("simulate", path, "--shape", "16x15x14", "--rank", 2, "--model", "bernoulli", "--seed", 3)
    return path


@pytest.fixture(scope="module")
def filled(simulated):
    path = simulated.with_name("filled.nc")
    run("complete", simulated, "--variable", "value", "--output", path, *QUICK)
    return path


def test_simulate_complete_evaluate(simulated, filled):
    with xr.open_dataset(simulated) as given, xr.open_dataset(filled) as found:
        seen = ~np.isnan(given["value"].values)
        assert np.array_equal(found["value"].values[seen], given.truth.values[seen])
        same = corten.complete(given["value"], completion="tucker", propensity="bernoulli", calibration="random")
        assert np.array_equal(found.value_lower.values, same.lower.values)
        covered = corten.metrics.coverage(given.truth, same)
    facts = json.loads(run("evaluate", filled, simulated, "--json").stdout)
    assert facts["levels"][0]["covered"] == pytest.approx(covered) and facts["levels"][0]["nominal"] == 0.9
    assert facts["entries"] == int((~seen).sum())
    assert facts["miscoverage_percent"] == pytest.approx(100 * abs(covered - 0.9))
    shown = run("evaluate", filled, simulated, "--variable", "truth").stdout
    assert f"{covered:.2%}" in shown and "interval score" in shown


@pytest.mark.parametrize("suffix", ["nc", "h5", "npz", "zarr", "csv", "parquet", "npy", "mat"])
def test_several_coverages_in_every_format(simulated, tmp_path, suffix):
    out = tmp_path / f"filled.{suffix}"
    arguments = ["complete", simulated, "--variable", "value", "--output", out, "--coverage", "0.9,0.8,0.95"]
    answer = json.loads(run(*arguments, *FAST, "--json").stdout)
    assert answer["coverages"] == [0.9, 0.8, 0.95] and answer["output"] == [str(out)]
    asked = ["--coverage", 0.9] if suffix in ("csv", "parquet", "npy") else []
    facts = json.loads(run("evaluate", out, simulated, "--json", *asked).stdout)
    levels = {row["nominal"]: row for row in facts["levels"]}
    if suffix == "npy":
        assert np.load(out).shape == (7, 16, 15, 14) and list(levels) == [0.9]
        return
    assert set(levels) == {0.9, 0.8, 0.95} and facts["miscoverage_levels"] == 3
    assert levels[0.8]["mean_finite_width"] < levels[0.9]["mean_finite_width"] < levels[0.95]["mean_finite_width"]
    assert levels[0.8]["covered"] <= levels[0.9]["covered"] <= levels[0.95]["covered"]


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_simulated_files_of_every_kind_are_read_back(tmp_path, suffix):
    sim, out = tmp_path / f"sim.{suffix}", tmp_path / f"filled.{suffix}"
    said = run("simulate", sim, "--shape", "10x9x8", "--model", "bernoulli", "--rank", 1).stdout
    axes = ["--axes", "axis_0,axis_1,axis_2"] if suffix == "csv" else []
    assert ("--axes" in said) == bool(axes)
    run("complete", sim, "--variable", "value", "--output", out, *axes, *FAST)
    asked = ["--coverage", 0.9, *axes] if suffix == "csv" else []
    assert json.loads(run("evaluate", out, sim, "--variable", "truth", "--json", *asked).stdout)["entries"] > 0


def test_the_simulated_cube_is_the_papers(tmp_path):
    run("simulate", tmp_path / "sim.npz", "--shape", "12x12x12", "--seed", 5)
    draw = corten.simulate.paper_setting(12, 3, "ising", "adversarial", 5)
    with np.load(tmp_path / "sim.npz") as found:
        assert np.array_equal(found["value"], draw.observed, equal_nan=True)
        assert np.array_equal(found["truth"], draw.data) and np.array_equal(found["parameter"], draw.parameter)


def test_tec_has_labels(tmp_path):
    run("simulate", tmp_path / "tec.nc", "--kind", "tec", "--shape", "10x12x8", "--missing", 0.3)
    with xr.open_dataset(tmp_path / "tec.nc") as found:
        assert found.tec.dims == ("lat", "lon", "time") and found.tec.attrs["units"] == "TECU"
        assert float(found.tec.isnull().mean()) == pytest.approx(0.3, abs=0.03)


def test_domain_flags_axes_and_saved_fit(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 1, 1)) * rng.normal(size=(1, 10, 1)) + 0.1 * rng.normal(size=(12, 10, 8))
    quality = rng.integers(0, 3, x.shape)
    sea = np.ones((12, 10))
    sea[:2] = 0
    np.savez(tmp_path / "in.npz", x=x, quality=quality, sea=sea)
    out, kept = tmp_path / "out.nc", tmp_path / "fit.corten"
    options = ["--where", "sea", "--quality", "quality=0,1", "--axes", "lat,lon,time", "--periodic", "lon"]
    options += ["--unordered-axis", "time", "--save", kept, "--score", "signed", "--engine", 1, "--bounds", "-9,"]
    run("complete", tmp_path / "in.npz", "--variable", "x", "--output", out, *options, *FAST, "--quiet")
    with xr.open_dataset(out) as found:
        assert (found.x_flag[:2] == 4).all() and found.x[:2].isnull().all()
        assert np.array_equal(found.x_flag.values[2:] == 0, quality[2:] < 2)
    fitted = corten.load(kept)
    assert fitted.completer.bounds == (-9.0, None)
    lat, lon, time = fitted.observed.axes
    assert (lat.periodic, lon.periodic, time.kind) == (False, True, "unordered")
    np.save(tmp_path / "truth.npy", x)
    facts = json.loads(run("evaluate", kept, tmp_path / "truth.npy", "--json").stdout)
    assert facts["miscoverage_levels"] == 20 and facts["miscoverage_percent"] < 10


def test_json_is_all_there_is_on_stdout(simulated, tmp_path):
    done = run("complete", simulated, "--variable", "value", "--output", tmp_path / "f.npz", *QUICK, "--json")
    answer = json.loads(done.stdout)
    assert answer["summary"]["coverage"] == 0.9 and answer["settings"]["seed"] == 0 and not done.stderr
    assert {"Tucker rank"} <= {choice["what"] for choice in answer["summary"]["choices"]}


def test_quiet_says_nothing(simulated, tmp_path):
    done = run("complete", simulated, "--variable", "value", "--output", tmp_path / "f.npz", *FAST, "--quiet")
    assert not done.output


def test_existing_output_is_refused_before_any_work(simulated, tmp_path):
    taken = tmp_path / "taken.nc"
    taken.write_text("precious")
    # The input does not exist, so only a check made first can speak of the output.
    for more in (["--output", taken], ["--output", tmp_path / "o.nc", "--save", taken]):
        assert "taken.nc exists" in refused("complete", tmp_path / "absent.nc", *more)
    assert "taken.nc exists" in refused("simulate", taken)
    assert taken.read_text() == "precious"
    run("complete", simulated, "--variable", "value", "--output", taken, "--overwrite", *FAST)
    assert xr.open_dataset(taken)["value"].shape == (16, 15, 14)


def test_mistakes_are_told_in_one_line(simulated, filled, tmp_path):
    out = ["--output", tmp_path / "out.nc"]
    data = ["complete", simulated, *out]
    assert "value (axis_0, axis_1, axis_2)" in refused(*data, "--variable", "tec")
    assert "several variables" in refused(*data)
    data += ["--variable", "value"]
    assert "axis_0, axis_1, axis_2" in refused(*data, "--periodic", "lon")
    assert "strictly between 0 and 1" in refused(*data, "--coverage", "90")
    assert "separated by commas" in refused(*data, "--coverage", "high")
    assert "once" in refused(*data, "--coverage", "0.9,0.9")
    assert "is the output" in refused(*data, "--save", tmp_path / "out.nc")
    assert '"tucker"' in refused(*data, "--completion", "magic")
    assert "lowest and highest" in refused(*data, "--bounds", "low")
    assert "VARIABLE=FLAGS" in refused(*data, "--quality", "flag")
    assert "absent.nc does not exist" in refused("complete", tmp_path / "absent.nc", *out)
    assert "suffix" in refused("complete", simulated, "--output", tmp_path / "out.xyz")
    assert "folder" in refused("complete", simulated, "--output", tmp_path / "no" / "out.nc")
    assert "40x40x40" in refused("simulate", tmp_path / "s.nc", "--shape", "40")
    assert "ising" in refused("simulate", tmp_path / "s.nc", "--model", "magic")
    assert "constant" in refused("simulate", tmp_path / "s.nc", "--noise", "magic")
    assert "paper, tec and sea" in refused("simulate", tmp_path / "s.nc", "--kind", "magic")
    assert ".npz" in refused("simulate", tmp_path / "s.npy")
    assert "not a result" in refused("evaluate", simulated, simulated)
    assert "truth (axis_0" in refused("evaluate", filled, simulated, "--variable", "tec")
    assert list(tmp_path.iterdir()) == []


def test_mistakes_in_tables_are_told_in_one_line(tmp_path):
    """A missing column, text among values, a row twice, no table at all; and a table without gaps is copied."""
    times = [f"2024-03-0{day}" for day in range(1, 7)]
    rows = [(time, station, k + 1.0) for k, time in enumerate(times) for station in "abc"]
    long = pd.DataFrame(rows, columns=["time", "station", "no2"])
    wide = long.pivot(index="time", columns="station", values="no2").reset_index()
    path, out = tmp_path / "data.csv", tmp_path / "out.csv"

    def told(frame, *options):
        frame.to_csv(path, index=False)
        return refused("complete", path, "--output", out, *options)

    assert "name the column of values (--variable); the columns are time, station, no2" in told(long)
    assert "no column 'pm10'; the columns are time, station, no2" in told(long, "-v", "pm10")
    assert "no column 'day'" in told(long, "-v", "no2", "--axes", "station,day")
    text = long.astype({"no2": object})
    text.loc[4, "no2"] = "n/d"
    assert "row 5, column 'no2': expected a number, found 'n/d'" in told(text, "-v", "no2")
    assert "row 3 has no 'station'" in told(long.assign(station=[*"ab", None, *"abc" * 5]), "-v", "no2")
    assert "'time' has the label 2024-03-01 twice" in told(pd.concat([wide, wide[:1]]))
    assert not out.exists()
    path.write_text("")
    assert "could not be read as a table" in refused("complete", path, "--output", out)
    pd.concat([long, long[:2]]).to_csv(path, index=False)
    said = run("complete", path, "--output", out, "-v", "no2").stdout
    assert "2 row(s) share an entry" in said and "Nothing was missing" in said
    wide.to_csv(path, index=False)
    assert "Nothing was missing" in run("complete", path, "--output", out, "--overwrite").stdout
    assert pd.read_csv(out)["a"].tolist() == wide["a"].tolist()


def test_debug_shows_where(simulated, tmp_path):
    for arguments in (["--debug", "simulate"], ["simulate", "--debug"]):
        with pytest.raises(ValueError, match="40x40x40"):
            run(*arguments, tmp_path / "s.nc", "--shape", "40")


def test_info():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["corten"] == corten.__version__ and facts["threads"] >= 1 and facts["libraries"]["numpy"]
    assert "numba" in run("info").stdout


def test_help_is_there_and_names_every_option():
    words = run("--help").stdout
    for command in ("complete", "evaluate", "simulate", "demo", "info"):
        assert command in words and run(command, "--help").stdout
    assert run("--version").stdout.strip() == f"corten {corten.__version__}"
    from inspect import signature

    given = run("complete", "--help").stdout
    python = {*signature(corten.complete).parameters} - {"x", "progress", "axis_kinds"}
    assert not [name for name in python if f"--{name.replace('_', '-')}" not in given]


@pytest.mark.parametrize("command", ["complete", "audit"])
def test_help_lists_every_allowed_value_and_no_type_beside_flags(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    given = " ".join(run(command, "--help").stdout.replace("│", " ").split())
    assert "bool" not in given and "<" not in given and "╭─ Data" in given and "╭─ Method" in given
    for name, allowed in (
        ("completion", ["auto", "tucker", "tensor-train", "smooth", "gaussian-process", "stack"]),
        ("propensity", ["auto", "constant", "additive", "bernoulli", "ising"]),
        ("calibration", ["auto", "random", "cross", "gaps"]),
        ("score", ["auto", "absolute", "adaptive", "normalized", "signed"]),
        ("weights", ["exact", "approximate"]),
    ):
        text = given.partition(f"--{name} ")[2].partition("--")[0]
        assert [value for value in allowed if value not in text] == [], text
        for value in allowed:
            corten.ConformalCompleter(**{name: value})


def test_complete_and_audit_share_their_options():
    commands = typer.main.get_command(app).commands
    shared = {f.name for kind in (DataOptions, MethodOptions) for f in fields(kind)}
    for name in ("complete", "audit"):
        assert shared <= {one.name for one in commands[name].params}


def test_demo_refuses_before_it_works(tmp_path):
    (tmp_path / "filled.nc").write_text("precious")
    assert "filled.nc exists" in refused("demo", "--output", tmp_path)
    assert "is a file" in refused("demo", "--output", tmp_path / "filled.nc", "--overwrite")


def test_the_program_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "corten.cli.app", "complete", "absent.nc", "--output", "o.nc"],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "absent.nc" in done.stderr


def test_audit_writes_its_table_and_a_page_with_the_command(simulated, tmp_path):
    table, page = tmp_path / "audit.csv", tmp_path / "audit.html"
    arguments = ["audit", simulated, "--variable", "value", "--rounds", 2, *FAST, "--table", table, "--report", page]
    answer = json.loads(run(*arguments, "--json").stdout)
    assert [row["level"] for row in answer["levels"]] == [0.5, 0.8, 0.9, 0.95] and "Limits" in answer["verdict"]
    text = page.read_text()
    assert "corten audit" in text and "Coverage by depth inside gaps" in text
    assert "by" in table.read_text().splitlines()[0]
    assert "audit.csv" in refused(*arguments)
