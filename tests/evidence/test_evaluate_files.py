"""`corten evaluate` and files of others: one line that names the file, whatever it lacks or holds."""

import os

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from corten.cli.app import app
from corten.cli.evaluate import read_result
from corten.io import formats, registry, table
from reliability.corpus import RESULTS, rebuilt_archive
from reliability.fuzz import place

WHOLE = dict.fromkeys(("estimate", "lower"), np.zeros((3, 4))) | dict.fromkeys(("upper", "flag"), np.ones((3, 4)))


@pytest.fixture
def refusal(tmp_path):
    """The line that `corten evaluate` says of a file of results with these arrays more, or (None) less."""
    np.save(tmp_path / "truth.npy", np.zeros((3, 4)))

    def refuse(suffix=".h5", **arrays):
        path = tmp_path / f"x{suffix}"
        held = {name: array for name, array in (WHOLE | arrays).items() if array is not None}
        if suffix == ".npz":
            np.savez(path, **held)
        else:
            with h5py.File(path, "w") as file:
                for name, array in held.items():
                    file[name] = array
        done = CliRunner().invoke(app, ["evaluate", str(path), str(tmp_path / "truth.npy")], catch_exceptions=False)
        assert done.exit_code == 2 and not done.stdout and f"x{suffix}" in done.stderr, done.output
        return done.stderr

    return refuse


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_what_a_result_lacks_or_holds_is_said(refusal, suffix):
    for message, arrays in (
        ("does not store its coverage: give it, as --coverage 0.9", {}),
        ("'coverage' has shape (0,): one number is expected", {"coverage": np.zeros(0)}),
        ("'coverage' has shape (3, 4): one number is expected", {"coverage": np.zeros((3, 4))}),
        ("coverage is nan", {"coverage": np.array(np.nan)}),
        ("coverage is 90", {"coverage": np.array([90])}),
        ("it has 'lower_95' and not 'upper_95'", {"coverage": 0.9, "lower_95": np.zeros((3, 4))}),
        ("'upper' has dtype float64 and shape (4, 3)", {"coverage": 0.9, "upper": np.zeros((4, 3))}),
        ("'flag' has dtype |S", {"coverage": 0.9, "flag": np.full((3, 4), b"a")}),
        ("not a result of corten complete", {"flag": None}),
        ("no filled entry has a known truth", {"coverage": 0.9, "flag": np.zeros((3, 4))}),
    ):
        assert message in refusal(suffix, **arrays), (message, refusal(suffix, **arrays))


def test_an_array_called_coverage_is_not_loaded(tmp_path):
    """A terabyte that a kilobyte declares."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, array in WHOLE.items():
            file[name] = array
        file.create_dataset("coverage", (10**6, 10**5), "f8", chunks=(1000, 1000))
    with pytest.raises(ValueError, match=r"x\.h5: 'coverage' has shape \(1000000, 100000\)"):
        read_result(tmp_path / "x.h5", None, None)


@pytest.mark.parametrize("kind", [".nc", ".h5", ".zarr", ".mat", ".parquet"])
def test_nothing_is_opened_by_libraries_in_c_in_this_process(tmp_path, monkeypatch, kind):
    place(RESULTS[kind][0], tmp_path / f"x{kind}")
    asked, real, opened = [], formats.read_apart, []
    monkeypatch.setattr(registry.Format, "open", lambda *_: opened.append("here") or 1 / 0)
    monkeypatch.setattr(table, "read_frame", lambda *_, **__: opened.append("here") or 1 / 0)
    monkeypatch.setattr(formats, "read_apart", lambda *a, **k: asked.append(a[1]) or real(*a, **k))
    estimate, levels = read_result(tmp_path / f"x{kind}", 0.9, None)
    assert np.shape(estimate) == (4, 5) and levels[0].coverage == 0.9
    assert set(asked) == {"contents", "frame" if kind == ".parquet" else "load"} and not opened


def test_a_result_that_is_written_to_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    place(RESULTS[".npz"][0], path)
    real = formats.read

    def read(*args, **options):
        found = real(*args, **options)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr("corten.io.read", read)
    with pytest.raises(ValueError, match=r"x\.npz was changed while it was read"):
        read_result(path, None, None)


def test_a_forged_fit_is_refused_by_name(tmp_path):
    """Seals fit, but a part is none: it shows only when bounds are computed."""
    import io
    import json
    import zipfile

    with zipfile.ZipFile(io.BytesIO(RESULTS[".corten"][0])) as archive:
        about = json.loads(archive.read("corten.json"))
        arrays = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist() if name.endswith(".npy")}
    for part, message in (("limits", "does not hold what a fit"), ("propensity", "does not hold what a fit")):
        path = tmp_path / f"{part}.corten"
        place(rebuilt_archive(about | {"content": about["content"] | {part: "text"}}, arrays), path)
        with pytest.raises(ValueError, match=rf"{part}\.corten {message}"):
            read_result(path, None, None)
