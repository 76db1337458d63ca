"""Properties of files: what is written is what is read, whatever the format, labels and numbers."""

from __future__ import annotations

import gzip
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_io_ionex import compress, ionex
from test_io_madrigal import write_table
from test_result import Plain

import corten
from corten import io
from corten.io.names import check_labels, companion, variable_name
from corten.io.stores import _with_labels
from corten.results.intervals import Intervals
from strategies import Gappy, costly, gappy, seeds

xr = pytest.importorskip("xarray", reason="needs xarray: pip install 'corten[files]'")
LABELLED = (".nc", ".nc4", ".cdf", ".h5", ".hdf5", ".zarr")
ARRAYS = (".npz", ".mat")
TABLES = (".csv", ".csv.gz", ".parquet")
LABELS = ("none", "numbers", "falling", "dates", "text")


class Drawn(Plain):
    """A source with a drawn estimate; ends are infinite here and there."""

    def __init__(self, observed: Any, seed: int, unit: float) -> None:
        super().__init__(observed)
        rng = np.random.default_rng(seed)
        self.estimate = unit * rng.normal(size=observed.shape)
        self.half = unit * rng.exponential(size=observed.shape)
        self.half[rng.random(observed.shape) < 0.1] = np.inf

    def bounds(self, coverage: float, entries: Any = None) -> tuple[np.ndarray, np.ndarray]:
        return self.estimate - coverage * self.half, self.estimate + coverage * self.half


@st.composite
def labelled(draw: Any, orders: tuple[int, int] = (2, 4)) -> Any:
    """A tensor with gaps as a DataArray, every axis with labels of its own kind, in single or double precision."""
    case: Gappy = draw(gappy(orders, most=60))
    rng, dims, coords = np.random.default_rng(draw(seeds)), [], {}
    for k, length in enumerate(case.shape):
        kind = draw(st.sampled_from(LABELS))
        name = f"{kind} {k}" if draw(st.booleans()) else f"größe_{k}"
        dims.append(name)
        step = rng.choice([0.1, 1.0, 7.5])
        if kind in ("numbers", "falling"):
            coords[name] = (np.arange(length) * step - 3)[:: -1 if kind == "falling" else 1]
        elif kind == "dates":
            coords[name] = np.datetime64("2019-04-25", "ns") + np.arange(length) * np.timedelta64(300, "s")
        elif kind == "text":
            coords[name] = [f'station {n} ü, "{n}"' for n in rng.permutation(length)]
    x = case.x.astype(draw(st.sampled_from(["f4", "f8"])))
    return xr.DataArray(x, coords, dims, "tec", {"units": "TECU"})


def results(data: Any, seed: int, power: int) -> Intervals:
    return Intervals(Drawn(corten.ObservedTensor.of(data), seed, 10.0**power), 0.9)


def same_labels(found: Any, data: Any) -> None:
    assert found.dims == data.dims
    for name in data.coords:
        np.testing.assert_array_equal(found.coords[name].values, data.coords[name].values)


@costly(2)
@given(labelled(), seeds, st.integers(-30, 30), st.sampled_from(LABELLED), st.booleans())
def test_files_with_labels_are_read_as_they_were_written(data, seed, power, suffix, careful):
    result = results(data, seed, power)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"filled{suffix}")
        io.check_target(path)
        assert io.write(path, result) == path
        main = variable_name(result.observed.name)
        for what in ("estimate", "lower", "upper", "flag"):
            name = main if what == "estimate" else companion(main, what)
            loaded = io.read(path, name, careful=careful, axis_kinds=dict.fromkeys(map(str, data.dims), "unordered"))
            assert isinstance(loaded, io.Loaded) and loaded.variable == name and loaded.where is None
            np.testing.assert_array_equal(np.asarray(loaded.data), getattr(result, f"{what}_array"))
            same_labels(loaded.data, data)
        for refused in (path, Path(folder, "filled.xyz"), Path(folder, "nowhere", "filled.nc")):
            with pytest.raises((ValueError, OSError), match=refused.parent.name):
                io.check_target(refused)
        before = path.stat().st_mtime_ns
        with pytest.raises(FileExistsError, match="filled"):
            io.write(path, result)
        assert path.stat().st_mtime_ns == before and len(list(Path(folder).iterdir())) == 1
        io.check_target(path, overwrite=True)


@costly(2)
@given(labelled(), seeds, st.integers(-30, 30), st.sampled_from([*ARRAYS, ".npy"]))
def test_files_of_arrays_hold_the_same_bits(data, seed, power, suffix):
    if suffix == ".mat":  # whose names have no spaces and no umlauts
        with pytest.raises(ValueError, match="names in MATLAB"):
            check_labels(f"filled{suffix}", data)
        data = data.rename({dim: f"axis_{k}" for k, dim in enumerate(data.dims)})
    result = results(data, seed, power)
    arrays = {name: getattr(result, f"{name}_array") for name in ("estimate", "lower", "upper", "flag")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"filled{suffix}")
        io.write(path, result)
        if suffix == ".npy":
            stacked = np.asarray(io.read(path).data)
            np.testing.assert_array_equal(stacked, np.stack([arrays[n] for n in ("estimate", "lower", "upper")]))
            return
        for name, array in arrays.items():
            np.testing.assert_array_equal(np.asarray(io.read(path, name).data), array)


@costly(2)
@given(labelled(), seeds, st.integers(-30, 30), st.sampled_from(TABLES))
def test_tables_hold_the_same_bits(data, seed, power, suffix):
    result = results(data, seed, power)
    dims = [str(dim) for dim in data.dims]
    with tempfile.TemporaryDirectory() as folder:
        path = io.write(Path(folder, f"filled{suffix}"), result)
        loaded = io.read(path, "estimate", axes=dims, axis_kinds=dict.fromkeys(dims, "unordered"))
        assert isinstance(loaded.table, io.LongTable) and loaded.table.duplicates == 0
        found = loaded.data
        for dim in data.coords:  # tables are sorted by their labels, text in order of appearance
            found = found.sel({dim: data.coords[dim].values})
        np.testing.assert_array_equal(np.asarray(found, data.dtype), result.estimate_array)


@costly(2)
@given(labelled(), seeds)
def test_a_result_s_own_netcdf_is_its_dataset(data, seed):
    result = results(data, seed, 0)
    wanted = result.to_dataset()
    with tempfile.TemporaryDirectory() as folder:
        found = xr.load_dataset(result.to_netcdf(Path(folder, "filled.nc")))
    main = variable_name(result.observed.name)
    assert set(found.data_vars) == set(wanted.data_vars) >= {main, *(companion(main, one) for one in ("lower", "flag"))}
    for name in wanted.data_vars:
        np.testing.assert_array_equal(found[name].values, wanted[name].values)
    same_labels(_with_labels(found)[main], data)
    settings = json.loads(found.attrs["corten_settings"])
    assert settings["seed"] == 7 and settings["coverage"] == 0.9


@given(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 48, 288]), st.integers(0, 10**6), st.integers(1, 60), st.data())
def test_folded_times_unfold_to_what_they_were(slots, start, count, data):
    """Any step that divides a day, any first time, the time axis at any place, steps absent."""
    step = np.timedelta64(86_400 // slots, "s")
    times = np.datetime64("2020-02-27T00:00:00", "ns") + np.timedelta64(start, "s") + np.arange(count + 1) * step
    rng = np.random.default_rng(data.draw(seeds))
    place, dtype = data.draw(st.integers(0, 2)), data.draw(st.sampled_from(["f4", "f8"]))
    x = np.moveaxis(rng.normal(size=(3, 2, len(times))), -1, place).astype(dtype)
    dims = ["a", "b"]
    dims.insert(place, "time")
    tensor = xr.DataArray(x, {"time": times, "a": [3, 1, 2]}, dims, "tec", {"units": "TECU"})
    fold = {"time": ("day", "slot")}
    if slots < 2:
        with pytest.raises(ValueError, match="day"):
            io.fold_time(tensor, fold)
        return
    folded, where = io.fold_time(tensor, fold)
    assert folded.sizes["slot"] == slots and folded.dims[place : place + 2] == ("day", "slot")
    inside = np.ones((folded.sizes["day"], slots), bool) if where is None else where.values
    assert inside.sum() == len(times)
    assert (np.asarray(folded.notnull().sum(["a", "b"])) == 6 * inside).all()
    xr.testing.assert_identical(io.unfold_time(folded, fold), tensor)


@costly(2)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(-3, 2), st.sampled_from(["", ".gz", ".Z"]), seeds)
def test_ionex_maps_are_read_as_they_were_written(times, shells, exponent, packing, seed):
    maps = np.random.default_rng(seed).integers(-99, 9999, size=(times, shells, 3, 7))
    maps[np.random.default_rng(seed + 1).random(maps.shape) < 0.1] = 9999
    heights = (350.0, 450.0, 100.0) if shells == 2 else (450.0, 450.0, 0.0)
    text = ionex(maps, rms=maps[::-1], exponent=exponent, heights=heights, lon=(-10.0, 20.0, 5.0)).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"made1150.19i{packing}")
        path.write_bytes({"": bytes, ".gz": gzip.compress, ".Z": compress}[packing](text))
        data = io.read_ionex(path)
        loaded = io.read(path)
    for name, wanted, power in (("tec", maps, exponent), ("rms", maps[::-1], -2)):
        wanted = np.where(wanted == 9999, np.nan, wanted * 10.0**power).transpose(1, 2, 3, 0)
        found = data[name].transpose(..., "lat", "lon", "time").values
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    xr.testing.assert_identical(loaded.data, data.tec)
    assert data.time.size == times and data.lon.values.tolist() == [-10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0]


@costly(2)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 5), st.sampled_from([0.3, 0.8, 1.0]), seeds)
def test_madrigal_rows_come_to_their_cells_in_any_order(lats, lons, times, share, seed):
    rng = np.random.default_rng(seed)
    cells = [cell for cell in product(range(times), range(lats), range(lons)) if rng.random() < share]
    cells = cells or [(0, 0, 0)]
    rows = [(1_504_828_950 + 300 * t, 20.0 + i, -170.0 + 2 * j, float(rng.normal(10))) for t, i, j in cells]
    twice = [(*row[:3], row[3] + 1.0) for row in rows[:2]]
    order = rng.permutation(len(rows) + len(twice))
    with tempfile.TemporaryDirectory() as folder:
        path = write_table(Path(folder, "gps170908g.002.hdf5"), [(rows + twice)[k] for k in order])
        data = io.read_madrigal(path)
        assert io.read(path).data.identical(data.tec)
    assert data.attrs["duplicates"] == len(twice) and int(data.tec.notnull().sum()) == len(rows)
    for number, (stamp, lat, lon, value) in enumerate(rows):
        found = float(data.tec.sel(lat=lat, lon=lon, time=np.datetime64(stamp, "s")))
        assert found == pytest.approx(value + 0.5 * (number < 2), rel=1e-14)


def test_text_and_no_labels_come_back_from_hdf5(tmp_path):
    """Found by the first property: text came back as bytes, and an axis without labels with a row of zeros."""
    x = np.arange(6.0).reshape(2, 3)
    x[0, 1] = np.nan
    data = xr.DataArray(x, {"station": ["ä", "b"]}, ("station", "day"))
    found = io.read(io.write(tmp_path / "filled.h5", results(data, 0, 0)), "value").data
    assert found.station.values.tolist() == ["ä", "b"] and "day" not in found.coords
