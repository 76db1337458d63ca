"""A NetCDF file or Zarr store of a result keeps what a data centre needs of the file it comes from."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from test_result import Plain

import corten
from corten import io
from corten.cli.evaluate import read_result
from corten.data.observed import ObservedTensor
from corten.io.dataset import write_netcdf
from corten.results.intervals import Intervals

QUICK = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}


def satellite():
    """A file as centres of satellite data make them: packed, with bounds, a grid mapping, flags and a history."""
    rng, time = np.random.default_rng(0), pd.date_range("2020-03-01", periods=5)
    lat, lon = np.linspace(40, 43, 4), np.linspace(-3, 3, 7)
    sst = (15 + np.sin(lat)[:, None] + rng.normal(size=(5, 4, 7))).round(2)
    sst[rng.random(sst.shape) < 0.3] = np.nan
    return xr.Dataset(
        {
            "sst": (("time", "lat", "lon"), sst.astype("f4"), {
                "units": "degree_Celsius", "standard_name": "sea_surface_temperature", "grid_mapping": "crs",
                "ancillary_variables": "quality", "cell_measures": "area: absent", "valid_min": np.float32(-5),
            }),
            "quality": (("time", "lat", "lon"), np.ones(sst.shape)),
            "crs": ((), np.int32(0), {"grid_mapping_name": "latitude_longitude", "semi_major_axis": 6378137.0}),
            "lat_bnds": (("lat", "nv"), np.stack([lat - 0.5, lat + 0.5], 1)),
            "time_bnds": (("time", "nv"), np.stack([time, time + pd.Timedelta("1D")], 1)),
        },
        coords={
            "time": ("time", time, {"standard_name": "time", "bounds": "time_bnds"}),
            "lat": ("lat", lat, {"units": "degrees_north", "bounds": "lat_bnds"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
        },
        attrs={
            "Conventions": "CF-1.6, ACDD-1.3", "title": "Sea", "institution": "Here", "history": "2020 gridded",
            "id": "one file", "source": "radiometer", "platforms": np.arange(3),
        },
    )  # fmt: skip


def packed(path):
    data, days = satellite(), {"units": "days since 2000-01-01", "calendar": "standard"}
    if path.suffix == ".zarr":
        data.to_zarr(path, zarr_format=2, encoding={"time": days})
    else:
        data.to_netcdf(path, encoding={"sst": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -999}, "time": days})
    return path


def check(written):
    with xr.open_dataset(written, engine="zarr" if written.suffix == ".zarr" else None, decode_cf=False) as raw:
        units = [raw[name].attrs.get("units") for name in ("time", "time_bnds")]
        assert units[0] and units[1] in (units[0], None)  # bounds without units have those of the coordinate
        assert "_FillValue" not in raw["lat"].attrs and "_FillValue" not in raw["lat_bnds"].attrs
    with xr.open_dataset(written, engine="zarr" if written.suffix == ".zarr" else None) as found:
        found.load()
    source = satellite()
    assert found.sst.attrs["ancillary_variables"].split()[:3] == ["sst_lower", "sst_upper", "sst_flag"]
    for name in ("sst", "sst_lower", "sst_flag"):
        assert found[name].attrs["grid_mapping"] == "crs" and "cell_measures" not in found[name].attrs
    assert found.sst.attrs["standard_name"] == "sea_surface_temperature" and "valid_min" not in found.sst.attrs
    assert found["crs"].attrs == source["crs"].attrs
    for name in ("lat_bnds", "time_bnds"):
        np.testing.assert_array_equal(found[name], source[name])
    assert found.lat.attrs["bounds"] == "lat_bnds" and "quality" not in found
    about = found.attrs
    assert about["Conventions"] == "CF-1.11, ACDD-1.3" and about["institution"] == "Here" and "id" not in about
    assert about["source"] == "radiometer" and list(about["platforms"]) == [0, 1, 2]
    first, last = about["history"].split("\n")
    assert first == "2020 gridded" and "corten" in last and about["title"] == "Sea, gaps filled"
    settings = [key for key in about if key.startswith("corten")]
    assert settings == ["corten_settings"] and len(about["corten_settings"]) < 1500
    assert json.loads(about["corten_settings"])["seed"] == 0


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_result_keeps_what_the_file_had(tmp_path, suffix, careful):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    loaded = io.read(packed(tmp_path / f"x{suffix}"), careful=careful)  # flags are no second variable to choose from
    assert loaded.variable == "sst"
    assert loaded.data["time"].encoding["calendar"] == "standard"
    result = corten.complete(loaded.data, **QUICK)
    check(io.write(tmp_path / f"filled{suffix}", result, like=loaded.like))
    estimate, (level,) = read_result(tmp_path / f"filled{suffix}", None, None)
    np.testing.assert_array_equal(estimate, result.estimate_array)
    np.testing.assert_array_equal(level.upper, result.upper_array)
    again = io.read(tmp_path / f"filled{suffix}", careful=careful)
    assert again.variable == "sst"  # a result can be completed again: its bounds and flags are not data


def test_a_store_written_from_disk_keeps_it_too(tmp_path):
    pytest.importorskip("zarr", reason="needs zarr: pip install 'corten[files]'")
    filled = corten.complete_to_zarr(
        packed(tmp_path / "x.zarr"), tmp_path / "filled.zarr", completion=corten.TuckerCompletion(rank=1),
        propensity="uniform", variable="sst",
    )  # fmt: skip
    check(filled.path)
    assert filled.variable == "sst"


def test_a_result_of_one_variable_refers_to_nothing_that_is_not_there(tmp_path):
    data = satellite()
    source = Plain(ObservedTensor.of(data["sst"]), infinite=False)
    alone = Intervals(source, 0.9).to_dataset()
    assert "grid_mapping" not in alone["sst"].attrs and "bounds" not in alone["lat"].attrs
    assert data["sst"].attrs["grid_mapping"] == "crs" and data["lat"].attrs["bounds"] == "lat_bnds"  # not changed
    moved = data.assign_coords(lat=data.lat + 1)  # another grid: its bounds are not those of the result
    assert "lat_bnds" not in Intervals(source, 0.9).to_dataset(like=moved)
    check(Intervals(Seeded(source), 0.9).to_netcdf(tmp_path / "x.nc", like=data))
    as_coordinate = data["sst"].assign_coords(spatial_ref=data["crs"])  # as rioxarray keeps it
    del as_coordinate.attrs["grid_mapping"]
    found = Intervals(Plain(ObservedTensor.of(as_coordinate), infinite=False), 0.9).to_dataset()
    assert found["sst_upper"].attrs["grid_mapping"] == "spatial_ref" and "spatial_ref" in found.data_vars


class Seeded(Plain):
    """A source that says its seed."""

    def __init__(self, other):
        super().__init__(other.observed, infinite=False)

    def settings(self):
        return {"seed": 0}


@pytest.mark.parametrize(
    ("time", "units", "stored"),
    [
        (pd.date_range("2022-01-01", periods=6), "days since 2000-01-01", ("days since 2000-01-01", "int32")),
        (pd.date_range("2022-01-01", periods=6, freq="h"), "days since 2000-01-01", (None, "int32")),
        (pd.date_range("2022-01-01", periods=6, freq="h"), None, ("hours since 2022-01-01", "int32")),
        (pd.date_range("1700-01-01", periods=6, freq="1000000000s"), None, (None, "int64")),
    ],
)
def test_integers_have_32_bits_where_they_fit_and_times_keep_their_unit(tmp_path, time, units, stored):
    """Checkers of CF before version 1.9 refuse 64 bits."""
    source = xr.Dataset({"t": (("time", "n"), np.zeros((6, 2))), "crs": ((), 0)}, {"time": time, "n": [1, 2**40]})
    source["time"].encoding |= {} if units is None else {"units": units}
    write_netcdf(source, tmp_path / "x.nc")
    with xr.open_dataset(tmp_path / "x.nc") as found:
        np.testing.assert_array_equal(found["time"], time)
        assert found["time"].encoding["dtype"] == stored[1] and found["crs"].dtype == "int32" and found["n"][1] == 2**40
        if stored[0] is not None:
            assert found["time"].encoding["units"] == stored[0]
