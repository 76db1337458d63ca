"""Nothing of the user's is replaced, removed or started that was not asked for."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import corten
from corten.cli.app import app
from corten.io import write
from corten.io.dataset import write_netcdf, write_zarr
from corten.io.names import check_labels
from corten.io.whole import refuse_inputs, refuse_taken, whole_file

QUICK = ["--completion", "tucker", "--propensity", "uniform", "--calibration", "random", "--quiet"]


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stderr


def gappy(shape=(8, 9, 10), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(shape[0], 1, 1)) * rng.normal(size=(1, shape[1], 1)) + 0.1 * rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.3, np.nan, x)


@pytest.fixture
def given(tmp_path):
    np.save(tmp_path / "in.npy", gappy())
    return tmp_path / "in.npy"


@pytest.fixture
def no_fit(monkeypatch):
    monkeypatch.setattr(corten.ConformalCompleter, "fit", lambda *_, **__: pytest.fail("the fit began"))


def everything(folder):
    return {str(path.relative_to(folder)): path.is_dir() or path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["results", "results.zarr", "results.nc"])
@pytest.mark.parametrize("option", ["--save", "--report", "-o"])
def test_a_folder_of_the_users_is_never_replaced(given, no_fit, option, name):
    if option == "-o" and name == "results":
        pytest.skip("has no suffix")
    folder = given.with_name(name)
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    before = everything(given.parent)
    targets = {"-o": given.with_name("o.nc")} | {option: folder}
    said = run("complete", given, "--overwrite", *[one for pair in targets.items() for one in pair], *QUICK, code=2)
    assert f"{name} is a folder" in said and "--overwrite or not" in said
    assert everything(given.parent) == before


def test_only_a_store_that_corten_wrote_is_replaced(tmp_path):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    data = xr.Dataset({"v": (("a", "b"), np.ones((2, 3)))}, coords={"a": list("xy")}, attrs={"corten_seed": 0})
    target = tmp_path / "x.zarr"

    def refused(match):
        before = everything(tmp_path)
        with pytest.raises(FileExistsError, match=match):
            write_zarr(data, target, overwrite=True)
        assert everything(tmp_path) == before

    write_zarr(data, target)
    with pytest.raises(FileExistsError, match="allow it with overwrite"):
        write_zarr(data, target)
    write_zarr((data * 2).assign_attrs(data.attrs), target, overwrite=True)
    assert not list(tmp_path.glob(".corten*"))
    with xr.open_zarr(target) as found:
        assert (found.v == 2).all()
    with pytest.raises(FileExistsError, match="is a folder, and a file is to be written"):
        refuse_taken(target, True)
    (target / "notes.txt").write_text("mine")
    refused("holds notes.txt, which is no part of a Zarr store")
    (target / "notes.txt").unlink()
    (target / "photos").symlink_to(tmp_path)  # a link to a folder, which looks like a folder
    refused("holds photos, which is no part of a Zarr store")
    (target / "photos").unlink()
    (target / "2024").write_text("named like a chunk, of no array")
    refused("holds 2024, which is no part of a Zarr store")
    (target / "2024").unlink()
    target.rename(tmp_path / "elsewhere.zarr")
    target.symlink_to(tmp_path / "elsewhere.zarr")
    refused("is a link to a folder")
    target.unlink()
    data.drop_attrs().to_zarr(target, zarr_format=2)
    refused("not a Zarr store that corten wrote")
    data.drop_vars("a").to_zarr(tmp_path / "three.zarr", zarr_format=3, consolidated=False)
    refuse_taken(tmp_path / "three.zarr", True, store=True)
    (tmp_path / "file.zarr").touch()
    with pytest.raises(FileExistsError, match="is a file, and a Zarr store is a folder"):
        refuse_taken(tmp_path / "file.zarr", True, store=True)


def test_of_a_link_the_link_is_replaced_and_not_what_it_points_to(tmp_path):
    (tmp_path / "data.txt").write_text("precious")
    for name, to in (("link.txt", "data.txt"), ("broken.txt", "absent"), ("loop.txt", "loop.txt")):
        link = tmp_path / name
        link.symlink_to(tmp_path / to)
        refuse_inputs([link], [tmp_path / "other.txt"])
        with pytest.raises(FileExistsError), whole_file(link):
            pass
        with whole_file(link, overwrite=True) as temporary:
            temporary.write_text("new")
        assert link.read_text() == "new" and not link.is_symlink()
    assert (tmp_path / "data.txt").read_text() == "precious"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_what_is_neither_file_nor_folder_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="neither a file nor a folder"):
        refuse_taken(tmp_path / "pipe", True)


def test_the_input_is_never_an_output(given, no_fit, monkeypatch):
    folder, raw = given.parent, given.read_bytes()
    os.link(given, folder / "hard.npy")
    (folder / "soft.npy").symlink_to(given)
    monkeypatch.chdir(folder)
    for one in (given, "in.npy", f"../{folder.name}/in.npy", "hard.npy", "soft.npy"):
        for targets in (["-o", one], ["-o", "o.nc", "--save", one], ["-o", "o.nc", "--report", one]):
            assert "is the input" in run("complete", given, *targets, "--overwrite", *QUICK, code=2)
    assert "is the input" in run("audit", given, "--table", given, "--overwrite", code=2)
    assert "is the input" in run("audit", given, "--report", "soft.npy", "--overwrite", code=2)
    assert given.read_bytes() == raw


def test_several_inputs_are_never_outputs(tmp_path, no_fit):
    for name in ("a.nc", "b.nc"):
        xr.DataArray(gappy(), dims=("x", "y", "t"), name="v").to_netcdf(tmp_path / name)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.nc").symlink_to(tmp_path / "a.nc")
    before = everything(tmp_path)
    for folder in (tmp_path, tmp_path / "out"):
        said = run("complete", tmp_path / "a.nc", tmp_path / "b.nc", "-o", folder, "--overwrite", *QUICK, code=2)
        assert "is the input" in said
    assert everything(tmp_path) == before


def test_nothing_is_written_into_an_input_that_is_a_folder(tmp_path, no_fit):
    store = tmp_path / "in.zarr"
    store.mkdir()
    for targets in (["-o", store], ["-o", store / "o.nc"], ["-o", tmp_path / "o.nc", "--checkpoint", store]):
        assert "in.zarr" in run("complete", store, *targets, "--overwrite", *QUICK, code=2)
    with pytest.raises(ValueError, match="is the input"):
        corten.complete_to_zarr(store, store / ".." / "in.zarr" / "part.zarr", overwrite=True)
    refuse_inputs([tmp_path / "rounds"], [tmp_path / "in.npy"])
    assert not list(store.iterdir())


def test_a_checkpoint_and_an_output_of_the_same_name_are_refused(given, no_fit):
    both = given.with_name("o.zarr")
    for checkpoint in (both, both / "rounds"):
        said = run("complete", given, "-o", both, "--checkpoint", checkpoint, *QUICK, code=2)
        assert "is the output" in said and "write elsewhere" in said


def test_two_outputs_are_never_one_file(given, no_fit):
    one, link, hard = (given.with_name(name) for name in ("one", "link", "hard"))
    one.touch()
    link.symlink_to(one)
    hard.hardlink_to(one)
    for other in (one, link, hard, given.parent / ".." / given.parent.name / "one"):
        said = run("audit", given, "--table", one, "--report", other, "--overwrite", *QUICK[:-1], code=2)
        assert "is the output" in said
        said = run("complete", given, "-o", "o.nc", "--save", one, "--report", other, "--overwrite", *QUICK, code=2)
        assert "is the output" in said


LISTENING = """
import os
from pathlib import Path

def listening():
    own = {os.readlink(one) for one in Path("/proc/self/fd").iterdir() if os.path.lexists(one)}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
"""


def program(code, **more):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sockets as Linux lists them")
def test_an_engine_is_started_when_it_is_used_and_on_the_loopback_address(tmp_path):
    pytest.importorskip("distributed", reason="needs Dask: pip install 'corten[cluster]'")
    fitted = corten.ConformalCompleter("tucker", "uniform", "random").fit(gappy())
    path = fitted.save(tmp_path / "fit.corten")
    found = program(
        LISTENING
        + f"""
import json, sys, corten
from dataclasses import replace
completer = corten.ConformalCompleter(
    corten.TuckerCompletion(1), corten.BernoulliPropensity(rank=1), "random", engine="dask"
)
made = len(listening())
fitted = corten.load({str(path)!r})
replace(fitted, completer=completer).save({str(tmp_path / "dask.corten")!r})
loaded = corten.load({str(tmp_path / "dask.corten")!r})
assert loaded.completer.engine == "dask" and loaded.propensity.engine == "auto"
loaded.intervals(0.9).to_dataset()
after = len(listening())
quiet = "distributed" not in sys.modules
import numpy as np
result = completer.fit(fitted.observed)
print(json.dumps([made, after, quiet, sorted(set(listening())), result.settings()["engine"]]))
"""
    )
    assert found[:3] == [0, 0, True]
    assert found[3] == ["0100007F"] and found[4].startswith("dask (1 worker")


def test_a_fit_made_on_a_gpu_loads_and_answers_without_one(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    fitted = corten.ConformalCompleter("tucker", corten.BernoulliPropensity(rank=1), "random").fit(gappy())
    made = replace(fitted, completer=replace(fitted.completer, engine="gpu"),
                   propensity=replace(fitted.propensity, engine="gpu"))  # fmt: skip
    loaded = corten.load(made.save(tmp_path / "gpu.corten"))
    assert loaded.completer.engine == "gpu"
    assert np.array_equal(loaded.probabilities, fitted.probabilities)
    assert np.array_equal(loaded.intervals(0.9).upper, fitted.intervals(0.9).upper, equal_nan=True)
    began = []
    with pytest.raises(ImportError, match="needs JAX"):  # found out before any work
        loaded.completer.fit(gappy(), progress=lambda stage, _: began.append(stage))
    assert not {"completion", "missingness"} & set(began)


def result_of(x):
    return corten.complete(x, completion="smooth", propensity="uniform", calibration="random")


@pytest.mark.parametrize("name", ["estimate", "coverage", "about", "upper_95", "../../evil", "a b"])
def test_axes_that_a_file_would_lose_or_put_elsewhere_are_refused(tmp_path, name):
    x = xr.DataArray(gappy(), dims=(name, "y", "t"), coords={name: np.arange(8.0)}, name="v")
    result = result_of(x)
    suffixes = {"estimate": (".npz", ".mat", ".csv", ".parquet"), "../../evil": (".npz", ".mat"), "a b": (".mat",)}
    for suffix in suffixes.get(name, (".npz", ".mat")):
        path = tmp_path / f"o{suffix}"
        with pytest.raises(ValueError, match="rename it"):
            corten.io.write(path, result)
        with pytest.raises(ValueError, match="rename it"):
            check_labels(path, x)  # what the program asks before the fit
    assert not list(tmp_path.iterdir())


def test_formulas_in_labels_are_text_in_csv_and_numbers_stay(tmp_path):
    labels = ["=1+1", "+a", "-3.5", "@x", "\tb", "plain\r=1", "\r=2", "'q", "a;=3", "a; -b"]
    places = {"=name": labels, "y": np.arange(9.0) - 4}
    x = xr.DataArray(gappy((10, 9, 10)), dims=("=name", "y", "t"), coords=places, name="v")
    result = result_of(x)
    safe = ["'=1+1", "'+a", "-3.5", "'@x", "'\tb", "plain\n'=1", "'\n'=2", "'q", "a;'=3", "a; -b"]
    corten.io.write(tmp_path / "o.csv", result)
    write(tmp_path / "several.csv.gz", result, further=[result.at(0.5)])
    for file in ("o.csv", "several.csv.gz"):
        frame = pd.read_csv(tmp_path / file, dtype={"'=name": str})
        assert list(frame["'=name"].unique()) == safe and frame["y"].min() == -4.0
    back = pd.read_csv(tmp_path / "o.csv")
    assert np.array_equal(back["lower"], result.to_dataframe()["lower"])
    corten.io.write(tmp_path / "o.parquet", result)
    assert list(pd.read_parquet(tmp_path / "o.parquet")["=name"].unique()) == labels


def test_times_with_a_zone_are_written_as_utc(tmp_path):
    times = pd.date_range("2020-01-01 12:00", periods=10, freq="h", tz="Europe/Berlin")
    data = xr.Dataset({"v": (("x", "time"), np.ones((2, 10)))}, coords={"time": times})
    write_netcdf(data, tmp_path / "o.nc")
    with xr.open_dataset(tmp_path / "o.nc") as found:
        assert found.time.values[0] == np.datetime64("2020-01-01T11:00")
        assert found.time.attrs["time_zone"] == "UTC, converted from Europe/Berlin"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes as Unix has them")
def test_a_reader_that_leaves_early_does_not_end_the_work(given):
    main = "from corten.cli.app import main; main()"
    complete = ["complete", str(given), "-o", str(given.with_name("o.npz"))]
    for arguments, written in ((["--help"], None), (complete, "o.npz")):
        read, write = os.pipe()
        os.close(read)
        options = QUICK[:-1] if written else []
        done = subprocess.run(
            [sys.executable, "-c", main, *arguments, *options], stdout=write, stderr=subprocess.PIPE, text=True
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (0, "")
        assert written is None or given.with_name(written).exists()
    coded = np.load(given)
    coded[0] = -9999  # warned of, into a pipe that nobody reads
    np.save(given, coded)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", main, *complete[:-1], str(given.with_name("coded.npz")), *QUICK[:-1]]
    assert subprocess.run(command, stdout=write, stderr=write).returncode == 0
    os.close(write)
    assert given.with_name("coded.npz").exists()


@pytest.mark.parametrize("transform", ["log", "box-cox"])
@pytest.mark.parametrize("calibration", ["random", corten.GapCalibration(rounds=3)])
def test_a_logarithm_and_a_climatology_go_together(transform, calibration):
    rng = np.random.default_rng(0)
    season = np.exp(np.sin(np.arange(12) / 2))
    truth = season[:, None] * np.exp(0.3 * np.sin(np.arange(40)[None] / 6) + 0.02 * rng.normal(size=(12, 40)))
    x = xr.DataArray(np.where(rng.random(truth.shape) < 0.2, np.nan, truth), dims=("month", "year"))
    result = corten.complete(
        x, completion="smooth", propensity="uniform", calibration=calibration, transform=transform, climatology="year"
    )
    gap = np.isnan(x.values)
    assert (result.lower_array[gap] > 0).all()
    assert np.abs(np.log(result.estimate_array / truth)[gap]).max() < 0.25
    assert np.allclose(result.estimate_array[~gap], truth[~gap])


@pytest.mark.parametrize("calibration", ["random", "cross", corten.GapCalibration(rounds=4)])
def test_a_loaded_fit_is_audited_as_the_one_that_was_saved(tmp_path, calibration):
    x = gappy((10, 12, 9))
    completion = "stack" if isinstance(calibration, corten.GapCalibration) else "smooth"
    fitted = corten.ConformalCompleter(completion, "uniform", calibration, seed=2).fit(x)
    loaded = corten.load(fitted.save(tmp_path / "fit.corten"))
    one, two = (each.audit(rounds=2, reference=corten.UniformPropensity()) for each in (fitted, loaded))
    pd.testing.assert_frame_equal(one.table(), two.table())
