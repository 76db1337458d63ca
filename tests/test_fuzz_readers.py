"""Hostile files: every reader reads or refuses by name; none crashes, hangs, grows, unpickles or leaves its file."""

import gzip
import os
import pickle
import warnings

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corten
from corten import io
from corten.commands.terminal import Terminal, printable
from corten.io.trial import refuse_crashing
from reliability import fuzz as fuzzing
from reliability.corpus import CORPUS, KINDS, zipped
from reliability.hostile import MARK, SECRET, SECRET_FILE, Payload, npy

pytestmark = pytest.mark.filterwarnings("ignore")


def test_whole_files_are_read(tmp_path):
    for kind, contents in CORPUS.items():
        for content in contents:
            path = tmp_path / f"good{kind}"
            fuzzing.place(content, path)
            assert fuzzing.judge(path, kind)[0] == "read", (kind, fuzzing.judge(path, kind))


def test_damaged_and_hostile_files_are_read_or_refused():
    tally = fuzzing.fuzz(800, seed=99, seconds=40.0)
    assert tally.total > 50 and tally.read and tally.refused
    assert not (tally.crashed or tally.hung or tally.wrong), tally


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != ".zarr"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_by_name(kind, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"noise{kind}"
    path.write_bytes(data)
    verdict, why = fuzzing.judge(path, kind)
    assert verdict in ("read", "refused"), why


def test_the_judge_sees_what_readers_may_not_do(tmp_path, monkeypatch):
    """The fuzzer's own check: a reader that unpickles, or raises something else, does not pass."""
    fuzzing.prepare()
    path = tmp_path / "bad.npy"
    np.save(path, np.array([[Payload(), 1]], object), allow_pickle=True)
    assert fuzzing.judge(path, ".npy")[0] == "refused"
    with monkeypatch.context() as change:
        change.setattr(io, "read", lambda *a, **k: np.load(path, allow_pickle=True))
        assert fuzzing.judge(path, ".npy") == ("wrong", "code in the file was run")
        change.setattr(io, "read", lambda *a, **k: 1 / 0)
        assert fuzzing.judge(path, ".npy")[0] == "wrong"
    assert not MARK.exists()


def test_pickles_are_never_opened(tmp_path):
    fuzzing.prepare()
    body = pickle.dumps(np.array([[Payload(), 1]], object))
    (tmp_path / "o.npz").write_bytes(zipped({"tec.npy": npy("(1, 2)", "'|O'", body)}))
    with pytest.raises(ValueError, match=r"o\.npz.*never unpickled"):
        io.read(tmp_path / "o.npz", "tec")
    zarr = tmp_path / "o.zarr"
    about = b'{"zarr_format": 2, "shape": [1, 2], "chunks": [1, 2], "dtype": "|O", "compressor": null, "order": "C",'
    about += b'"fill_value": null, "filters": [{"id": "pickle"}]}'
    attrs = b'{"_ARRAY_DIMENSIONS": ["x", "y"]}'
    files = {".zgroup": b'{"zarr_format": 2}', "tec/.zarray": about, "tec/.zattrs": attrs, "tec/0.0": body}
    fuzzing.place(files, zarr)
    with pytest.raises(ValueError, match=r"o\.zarr.*'pickle'.*not trust"):
        io.read(zarr, "tec")
    assert not MARK.exists()


@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_files_cannot_show_other_files(tmp_path, suffix):
    fuzzing.prepare()
    path = tmp_path / f"x{suffix}"
    with h5py.File(path, "w") as file:
        file.create_dataset("tec", (2, 8), "u1", external=[(str(SECRET_FILE), 0, 16)])
    with h5py.File(path) as file:  # the library itself does follow it
        assert file["tec"][()].tobytes() == SECRET
    with pytest.raises(ValueError, match="other files"):
        io.read(path, "tec")


def test_links_out_of_a_zarr_folder_are_refused(tmp_path):
    fuzzing.place(CORPUS[".zarr"][0], tmp_path / "x.zarr")
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "x.zarr" / "tec" / "9.9.9").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=r"leads outside"):
        io.read(tmp_path / "x.zarr", "tec")


def test_bombs_are_not_unpacked(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"x,t,value\n" + b"1,2,3\n" * 2_000_000))
    with pytest.raises(ValueError, match=r"x\.csv\.gz.*limit of 1000000 bytes"):
        io.read(path, max_bytes=1_000_000)
    small = zipped({"tec.npy": npy("(100000, 100000)", "'<f8'")})
    (tmp_path / "x.npz").write_bytes(small)
    with pytest.raises(ValueError, match=r"x\.npz.*cut short or damaged"):
        io.read(tmp_path / "x.npz")
    with h5py.File(tmp_path / "x.h5", "w") as file:  # a kilobyte that declares 80 GB
        file.create_dataset("tec", (100_000, 100_000), "f8", chunks=True)
    with pytest.raises(ValueError, match=r"x\.h5, tec declares 100000 x 100000"):
        io.read(tmp_path / "x.h5")


def test_a_crash_or_a_hang_of_a_library_is_a_refusal(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"x\.h5 makes the library.*signal 11"):
        refuse_crashing(path, lambda: os.kill(os.getpid(), 11))
    monkeypatch.setattr("corten.io.trial.SECONDS", 1)

    def endless():
        while True:
            pass

    with pytest.raises(ValueError, match="crash or hang"):
        refuse_crashing(path, endless)
    refuse_crashing(path, lambda: 1 / 0)  # an error is left to be raised by the reading itself


def test_labels_cannot_steer_the_terminal_or_the_page(tmp_path, capsys):
    import xarray as xr

    from corten.result import Intervals
    from test_result import Plain

    name = "[red]\x1b[31m\u202e</script><script>alert(1)</script>"
    x = np.arange(12.0).reshape(3, 4)
    x[1, 2] = np.nan
    labelled = xr.DataArray(x, dims=(name, "t"), name=name, attrs={"units": name, "long_name": name})
    result = Intervals(Plain(corten.ObservedTensor.of(labelled), infinite=False), 0.9)
    Terminal().say(result.summary())
    Terminal().say(f"wrote {name}")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\u202e" not in shown and "[red]" in shown
    page = result.report(tmp_path / "page.html").read_text()
    assert "<script>alert(1)" not in page
    assert printable("plain words, ü, 日本\n") == "plain words, ü, 日本\n"


def test_the_programs_errors_cannot_steer_the_terminal(tmp_path):
    from typer.testing import CliRunner

    from corten.cli import app

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(app, ["complete", str(tmp_path / "\x1b[2Jx.nc"), "-o", str(tmp_path / "y.nc")])
    assert done.exit_code == 2 and "\x1b" not in done.output and "\\x1b[2Jx.nc does not exist" in done.output
