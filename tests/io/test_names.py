"""Names that a file cannot hold, and a checkpoint that cannot be, are refused before anything is fitted."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import corten
from corten.cli.app import app
from corten.io.dataset import write_netcdf, write_zarr
from corten.io.names import refuse_names

NAMES = ["a/b", "a b", " a", "a ", "1a", "-a", "é", "日本", "a\x01b", "a" * 255, "a" * 257, "é" * 129, ".a", "a.b",
         "[x]", "a\n", "\x7f", "a\\b", "_", "x-1", ".zattrs", ".zmetadata", "zarr.json"]  # fmt: skip


@pytest.fixture
def no_fit(monkeypatch):
    """A fit that must not begin."""
    monkeypatch.setattr(corten.ConformalCompleter, "fit", lambda *_, **__: pytest.fail("the fit began"))


def refused(*words):
    done = CliRunner().invoke(app, ["complete", *map(str, words)])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.output
    return done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_is_that_of_the_libraries(tmp_path, name):
    """Whatever passes the rule is written and comes back; NetCDF's library says no to whatever does not."""
    data = xr.Dataset({"v": ((name, "t"), np.ones((2, 3)))}, coords={name: [1, 2]})
    for write, read, path in (
        (write_netcdf, xr.open_dataset, tmp_path / "x.nc"),
        (write_zarr, xr.open_zarr, tmp_path / "x.zarr"),
    ):
        if write is write_zarr:
            pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
        try:
            refuse_names(path, "Zarr" if write is write_zarr else "NetCDF", [name])
        except ValueError:
            with pytest.raises(ValueError, match="cannot hold an axis or variable called"):
                write(data, path)
            if write is write_netcdf:
                with pytest.raises((RuntimeError, ValueError)):
                    data.to_netcdf(path)
            continue
        write(data, path)
        with read(path) as back:
            assert name in back.dims and back[name].values.tolist() == [1, 2]


def test_names_are_refused_before_the_fit(tmp_path, no_fit):
    frame = pd.DataFrame({"a/b": [1, 1, 2], "t": [1, 2, 1], "value": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    for target in ("o.nc", "o.zarr"):
        said = refused(tmp_path / "x.csv", "-o", tmp_path / target)
        assert f"{target} cannot hold an axis or variable called 'a/b'" in said
    frame.rename(columns={"a/b": "value_flag"}).to_csv(tmp_path / "y.csv", index=False)
    assert "called value_flag: rename it" in refused(tmp_path / "y.csv", "-o", tmp_path / "o.nc")
    said = refused(tmp_path / "x.csv", tmp_path / "y.csv", "-o", tmp_path / "folder")
    assert "x.nc cannot hold an axis or variable called 'a/b'" in said and "called value_flag" in said


def test_attributes_are_refused_before_the_fit(tmp_path, no_fit):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    x = xr.DataArray([[1.0, np.nan], [2.0, 3.0]], dims=("a", "b"), name="x", attrs={"a/b": "1"})
    x.to_dataset().to_zarr(tmp_path / "x.zarr", zarr_format=2)
    said = refused(tmp_path / "x.zarr", "-o", tmp_path / "o.nc")
    assert "o.nc cannot hold an attribute called 'a/b'" in said


def test_names_are_refused_before_the_work_from_disk(tmp_path):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    x, began = xr.DataArray(np.ones((2, 3, 4)), dims=("a/b", "b", "c")), []
    for dim, message in (
        ("a/b", "cannot hold an axis or variable called 'a/b'"),
        ("value_upper", "called value_upper: rename it"),
    ):
        with pytest.raises(ValueError, match=message):
            corten.complete_to_zarr(x.rename({"a/b": dim}), tmp_path / "o.zarr", progress=lambda *_: began.append(1))
    assert not began


def test_a_checkpoint_that_is_a_file_is_refused_before_the_fit(tmp_path, no_fit):
    np.save(tmp_path / "x.npy", np.array([[1.0, np.nan], [2.0, 3.0]]))
    (tmp_path / "kept").touch()
    for folder in ("kept", "kept/inner"):
        said = refused(tmp_path / "x.npy", "-o", tmp_path / "o.nc", "--checkpoint", tmp_path / folder)
        assert "kept is a file, and a checkpoint is a folder" in said


def test_large_integers_are_warned_of():
    x = np.ma.masked_array(np.arange(60).reshape(6, 10) + 2**53, mask=np.arange(60).reshape(6, 10) % 4 == 0)
    options = {"completion": corten.TuckerCompletion(1), "propensity": "uniform", "calibration": "random"}
    assert any("2**53" in one for one in corten.complete(x, **options).summary().warnings)
    small = np.ma.masked_array(x.data - 2**53, mask=x.mask)
    assert not any("2**53" in one for one in corten.complete(small, **options).summary().warnings)
