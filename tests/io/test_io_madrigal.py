"""Madrigal grids in both layouts give the same tensor; damaged files are named."""

import h5py
import numpy as np
import pytest

from corten import io
from corten.data.observed import ObservedTensor
from corten.io.madrigal import read_madrigal

TIMES = np.array([1504828950, 1504829250, 1504829850])  # a step of 300 s is absent
LATS, LONS = np.array([20.0, 21.0, 23.0]), np.array([-170.0, -169.0])


def cells():
    random = np.random.default_rng(0)
    return [(t, la, lo, v) for t in TIMES for la in LATS for lo in LONS for v in [random.normal(10)] if v > 9.5]


def write_table(path, rows, drop=()):
    names = [n for n in ("year", "month", "day", "hour", "min", "sec", "gdlat", "glon", "tec", "dtec") if n not in drop]
    kinds = [(n, "f8" if n in ("gdlat", "glon", "tec", "dtec") else "i8") for n in names]
    table = np.zeros(len(rows), dtype=kinds)
    for k, (stamp, lat, lon, value) in enumerate(rows):
        when = np.datetime64(int(stamp), "s").item()
        parts = {
            "year": when.year,
            "month": when.month,
            "day": when.day,
            "hour": when.hour,
            "min": when.minute,
            "sec": when.second,
        }
        parts |= {"gdlat": lat, "glon": lon, "tec": value, "dtec": 0.5}
        for name in names:
            table[name][k] = parts[name]
    with h5py.File(path, "w") as file:
        file["Data/Table Layout"] = table
    return path


def test_table_layout(tmp_path):
    rows = cells()
    path = write_table(tmp_path / "gps170908g.002.hdf5", [*rows, (*rows[0][:3], rows[0][3] + 2.0)])
    data = read_madrigal(path)
    assert data.tec.dims == ("lat", "lon", "time") and data.tec.shape == (4, 2, 4) and data.attrs["duplicates"] == 1
    first = data.tec.sel(lat=rows[0][1], lon=rows[0][2], time=np.datetime64(int(rows[0][0]), "s"))
    assert first == pytest.approx(rows[0][3] + 1.0)
    assert int(data.tec.notnull().sum()) == len(rows) and np.nanmax(data.dtec) == 0.5
    loaded = io.read(path)
    assert loaded.variable == "tec" and ObservedTensor.of(loaded.data).axes[2].is_time
    assert io.read(path, "dtec").data.attrs["units"] == "TECU"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_array_layout(tmp_path, order):
    path = tmp_path / "gps170908g.001.hdf5"
    times, lats, lons = TIMES[0] + 300 * np.arange(5), np.arange(20.0, 24.0), np.arange(-170.0, -168.0)
    values = np.random.default_rng(0).normal(10, size=(4, 2, 5))
    values[0, 0] = np.nan
    with h5py.File(path, "w") as file:
        layout = file.create_group("Data/Array Layout")
        layout["timestamps"], layout["gdlat"], layout["glon"] = times, lats, lons
        layout["2D Parameters/tec"] = values.transpose(order)
    data = io.read(path).data
    assert np.array_equal(data, values, equal_nan=True) and data.lat.attrs["units"] == "degrees_north"
    assert data.time.values[1] == np.datetime64(int(times[1]), "s")


def test_whole_globe_closes_on_itself(tmp_path):
    rows = [(TIMES[0] + 300 * t, lat, lon, 1.0) for t in range(2) for lat in (0.0, 1.0) for lon in range(-180, 180)]
    loaded = io.read(write_table(tmp_path / "x.h5", rows))
    assert ObservedTensor.of(loaded.data).axes[1].periodic


def test_wrong_layouts_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.h5: 'Data/Table Layout' lacks glon, tec"):
        read_madrigal(write_table(tmp_path / "a.h5", cells(), drop=("glon", "tec")))
    with pytest.raises(ValueError, match="no rows"):
        read_madrigal(write_table(tmp_path / "b.h5", []))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["other"] = [1]
    with pytest.raises(ValueError, match=r"c\.h5 has neither .* it holds other"):
        read_madrigal(tmp_path / "c.h5")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        layout = file.create_group("Data/Array Layout")
        layout["timestamps"], layout["gdlat"], layout["glon"] = TIMES, LATS, LONS
        layout["2D Parameters/tec"] = np.ones((5, 5, 5))
    with pytest.raises(ValueError, match=r"expected lat x lon x time, \(3, 2, 3\)"):
        read_madrigal(tmp_path / "d.h5")
    rows = [(*cells()[0][:1], np.nan, 1.0, 1.0)]
    with pytest.raises(ValueError, match="without lat"):
        read_madrigal(write_table(tmp_path / "e.h5", rows))


def test_truncated_and_damaged_files_are_named(tmp_path):
    raw = write_table(tmp_path / "good.hdf5", cells()).read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / "bad.hdf5"
    for trial in range(30):
        damaged = bytearray(raw[: int(random.integers(0, len(raw)))] if trial % 2 else raw)
        for at in random.integers(0, max(len(damaged), 1), size=30 * (1 - trial % 2)):
            damaged[at] = random.integers(256)
        path.write_bytes(damaged)
        for reader in (read_madrigal, io.read):
            try:
                reader(path)
            except (ValueError, OSError) as problem:
                assert "bad.hdf5" in str(problem)
