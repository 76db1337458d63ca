"""Labels that would go wrong: infinite places, time zones, members of archives that lead outside."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import corten
from corten import io
from corten.data.observed import ObservedTensor
from reliability.corpus import zipped
from reliability.hostile import npy

QUICK = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}


def field():
    x = np.add.outer(np.sin(np.arange(12.0)), np.arange(9.0))
    x[2:4, 3:6] = np.nan
    return x


def noons():
    return pd.date_range("2020-03-25 12:00", periods=12, tz="Europe/Zurich")  # the clock changes on the 29th


@pytest.mark.parametrize("kind", ["ordered", "unordered"])
@pytest.mark.parametrize("place", [np.inf, -np.inf])
def test_an_infinite_coordinate_is_refused_before_the_fit(kind, place):
    labels = np.arange(9.0)
    labels[-1 if place > 0 else 0] = place
    x = xr.DataArray(field(), dims=("t", "lat"), coords={"lat": labels})
    with pytest.raises(ValueError, match="'lat' is infinite at position"):
        ObservedTensor.of(x, axis_kinds={"lat": kind})


def test_times_with_a_zone_keep_it(tmp_path):
    x = xr.DataArray(field(), dims=("time", "s"), coords={"time": noons()}, name="x")
    result = corten.complete(x, **QUICK)
    frame = result.to_dataframe()
    assert str(frame["time"].dtype.tz) == "Europe/Zurich" and frame["time"].iloc[0] == noons()[0]
    assert (frame["time"].dt.hour == 12).all()
    assert result.estimate.indexes["time"].equals(noons())
    assert any(choice.what == "times of time" and "Europe/Zurich" in choice.because for choice in result.choices)
    stored = xr.load_dataset(result.to_netcdf(tmp_path / "x.nc"))
    assert stored.time.values[0] == np.datetime64("2020-03-25T11:00")
    assert stored.time.attrs["time_zone"] == "UTC, converted from Europe/Zurich"


def test_times_as_python_objects_are_written_as_utc_too(tmp_path):
    x = xr.DataArray(field(), dims=("time", "s"), coords={"time": np.array(noons().to_pydatetime(), object)}, name="x")
    stored = xr.load_dataset(corten.complete(x, **QUICK).to_netcdf(tmp_path / "x.nc"))
    assert stored.time.values[0] == np.datetime64("2020-03-25T11:00")


def table():
    rows = [(time, s, field()[k, s]) for k, time in enumerate(noons()) for s in range(9)]
    frame = pd.DataFrame(rows, columns=["time", "s", "value"])
    return frame[frame["value"].notna()].reset_index(drop=True)


def test_tables_give_times_back_in_their_zone():
    quick = corten.ConformalCompleter(**QUICK)
    found = corten.complete_table(table(), completer=quick, axis_kinds={"time": "unordered"})
    assert str(found["time"].dtype.tz) == "Europe/Zurich" and len(found) == 12 * 9
    assert set(found["time"]) == set(noons())


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_files_of_tables_say_that_times_have_a_zone(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    if suffix == ".csv":
        table().assign(time=table()["time"].map(lambda one: one.isoformat())).to_csv(path, index=False)
    else:
        table().to_parquet(path)
    loaded = io.read(path, careful=suffix == ".parquet", axis_kinds={"time": "unordered"})
    assert any("the times of time are in the zone" in note and "UTC" in note for note in loaded.notes)
    assert loaded.data.time.values[0] == np.datetime64("2020-03-25T11:00")
    found = loaded.table.to_frame(corten.complete(loaded.data, axis_kinds={"time": "unordered"}, **QUICK))
    assert {pd.Timestamp(one).tz_convert("UTC") for one in found["time"]} == set(noons().tz_convert("UTC"))


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..\\x", "a/../../x"])
def test_members_that_lead_outside_an_archive_are_refused(tmp_path, name):
    path = tmp_path / "x.npz"
    member = npy("(1, 2)", "'<f8'", bytes(16))
    path.write_bytes(zipped({"tec.npy": member, f"{name}.npy": member}))
    with pytest.raises(ValueError, match=r"x\.npz has a member called"):
        io.read(path, "tec")
