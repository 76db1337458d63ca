"""Files behind a completion from disk: damaged, cut short or written to meanwhile; each is an error that names it."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import corten
from corten.cli.app import app
from corten.io import npy
from corten.io.lazy import open_lazily, stored_size
from reliability.corpus import zipped
from reliability.fuzz import place
from reliability.hostile import npy as header

pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
pytestmark = pytest.mark.filterwarnings("ignore")

DAMAGED = {
    "empty": b"",
    "an archive": zipped({"tec.npy": b""}),
    "no header": b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16,
    "half a header": b"\x93NUMPY\x01\x00",
    "too large": header("(9999999999, 99)", "'<f8'"),
    "negative": header("(-2, 99)", "'<f8'"),
}


def data(shape=(12, 9, 10)):
    x = corten.simulate.tucker_signal(shape, rank=2, seed=0)
    x[~corten.simulate.masks.random_mask(shape, missing=0.3, seed=0)] = np.nan
    return x


def stored(path, x):
    """The tensor in a file of the kind that its name says."""
    named = xr.Dataset({"x": (("a", "b", "c"), x)})
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".nc":
        named.to_netcdf(path, encoding={"x": {"chunksizes": (2, 9, 10), "zlib": True}})
    else:
        named.to_zarr(path, zarr_format=2, mode="w", encoding={"x": {"chunks": (2, 9, 10)}})
    return path


@pytest.mark.parametrize("memory", [[], ["--memory", "400MB"]], ids=["", "memory"])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_the_program_refuses_a_damaged_array_in_one_line(tmp_path, content, memory):
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    assert stored_size(path) == 0
    done = CliRunner().invoke(app, ["complete", str(path), "-o", str(tmp_path / "o.zarr"), *memory])
    assert done.exit_code == 2 and "bad.npy could not be read as a NumPy array" in done.output, done.output
    with pytest.raises(ValueError, match=r"bad\.npy could not be read as a NumPy array"), open_lazily(path):
        pass


@pytest.mark.parametrize("order", ["C", "F"])
def test_planes_are_those_of_the_array(tmp_path, monkeypatch, order):
    monkeypatch.setattr(npy, "_PART_BYTES", 100)
    x = np.asarray(data(), ">f4", order=order)
    np.save(tmp_path / "x.npy", x)
    with open_lazily(tmp_path / "x.npy") as lazy:
        for start, stop in ((0, 12), (3, 4), (10, 99)):
            np.testing.assert_array_equal(lazy.read(start, stop)[0], x[start:stop])


@pytest.mark.parametrize("suffix", [".npy", ".nc", ".zarr"])
def test_a_file_written_to_is_noticed_before_the_next_planes(tmp_path, suffix):
    path = stored(tmp_path / f"x{suffix}", data())
    with open_lazily(path) as lazy:
        lazy.read(0, 2)
        inner = path / ".zmetadata" if suffix == ".zarr" else path
        os.utime(inner, ns=(1, 1))
        with pytest.raises(ValueError, match=rf"x\{suffix} was changed while it was read"):
            lazy.read(2, 4)


@pytest.mark.parametrize("name", [".DS_Store", "._x", "Thumbs.db", "desktop.ini", ".nfs0001"])
def test_what_a_desktop_puts_into_a_folder_is_no_change(tmp_path, name):
    path = stored(tmp_path / "x.zarr", data())
    with open_lazily(path) as lazy:
        for folder in (path, path / "x"):
            (folder / name).write_bytes(b"mine")
            os.utime(folder, ns=(1, 1))
            lazy.read(0, 2)
        lazy.refuse_changed()
        os.utime(path / "x" / "4.0.0", ns=(1, 1))
        os.utime(path / "x", ns=(2, 2))
        with pytest.raises(ValueError, match=r"x\.zarr was changed"):
            lazy.read(2, 4)
    with open_lazily(path) as lazy:
        assert lazy.read(0, 2)[0].shape == (2, 9, 10)


def test_planes_of_long_lines_are_read_without_the_rest(tmp_path, monkeypatch):
    x = np.asfortranarray(np.arange(60_000.0).reshape(20_000, 3))
    np.save(tmp_path / "x.npy", x)
    planes, read, real = npy.Planes.of(tmp_path / "x.npy"), [], np.fromfile
    monkeypatch.setattr(np, "fromfile", lambda *a: read.append(a[-1]) or real(*a))
    np.testing.assert_array_equal(planes[7:9], x[7:9])
    assert sum(read) == 6
    np.testing.assert_array_equal(planes[0:20_000], x)


@pytest.mark.parametrize("suffix", [".npy", ".nc"])
def test_a_file_cut_short_is_an_error_and_not_the_end_of_the_process(tmp_path, suffix):
    path = stored(tmp_path / f"x{suffix}", data((40, 30, 30)))
    with open_lazily(path) as lazy:
        lazy.read(0, 2)
        os.truncate(path, 9000)
        with pytest.raises(ValueError, match=rf"x\{suffix} was changed"):
            lazy.read(30, 40)
    path = stored(tmp_path / "y.npy", data())
    planes = npy.Planes.of(path)
    os.truncate(path, 2000)
    with pytest.raises(ValueError, match="cut short"):
        planes[8:12]


@pytest.mark.parametrize("stage", ["reading", "completion", "calibration", "writing"])
@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
def test_old_and_new_content_are_never_mixed(tmp_path, suffix, stage):
    """Whenever the writer comes, the store gets no name; of a Zarr folder a single chunk is enough."""
    x = data()
    path = stored(tmp_path / f"x{suffix}", x)
    done = []

    def write(at, share):
        if at == stage and not done:
            done.append(at)
            other = stored(tmp_path / f"other{suffix}", 1000 * x)
            target = path if suffix == ".npy" else path / "x" / "4.0.0"
            new = (other if suffix == ".npy" else other / "x" / "4.0.0").read_bytes()
            target.write_bytes(new)

    with pytest.raises(ValueError, match=rf"x\{suffix} was changed while it was read"):
        corten.complete_to_zarr(
            path, tmp_path / "o.zarr", completion=corten.TuckerCompletion(1), propensity="uniform", progress=write
        )
    assert done and not (tmp_path / "o.zarr").exists()


def test_damage_inside_a_store_names_the_file(tmp_path):
    path = tmp_path / "x.zarr"
    about = {"zarr_format": 2, "shape": [4, 3], "chunks": [2, 3], "dtype": "<f8", "compressor": None, "fill_value": 0.0,
             "filters": None, "order": "C"}  # fmt: skip
    place(
        {".zgroup": b'{"zarr_format": 2}', "x/.zarray": json.dumps(about).encode(), "x/1.0": bytes(40),
         "x/.zattrs": b'{"_ARRAY_DIMENSIONS": ["a", "b"]}'}, path,
    )  # fmt: skip
    with open_lazily(path) as lazy, pytest.raises(ValueError, match=r"x\.zarr.*could not be read as planes 2 to 4"):
        lazy.read(2, 4)
    path = stored(tmp_path / "x.nc", data())
    raw = bytearray(path.read_bytes())
    raw[-3000:-2000] = os.urandom(1000)
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"x\.nc"), open_lazily(path) as lazy:
        lazy.read(0, 12)


def test_values_that_are_no_numbers_after_all_name_the_file(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 4)))
    ragged = np.empty((3, 4), object)
    ragged.fill([1.0, 2.0])
    with open_lazily(path) as lazy, pytest.raises(ValueError, match=r"x\.npy"):
        replace(lazy, _read=lambda start, stop: ragged[start:stop]).read(0, 3)
