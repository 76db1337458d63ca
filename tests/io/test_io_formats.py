"""Every format: what is written is read, labels kept, and damaged files are named."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from test_result import Plain

from corten import io
from corten.data.observed import ObservedTensor
from corten.results.intervals import Intervals

NAN = np.nan


def field():
    x = np.arange(24.0).reshape(2, 3, 4)
    x[0, 1, 2] = NAN
    return x


def labelled():
    times = np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]").astype("datetime64[ns]")
    coords = {"lat": [10.0, 20.0], "lon": [1.0, 2.0, 3.0], "time": times}
    return xr.DataArray(field(), dims=("lat", "lon", "time"), coords=coords, name="tec", attrs={"units": "TECU"})


def result_of(x):
    return Intervals(Plain(ObservedTensor.of(x)), 0.9)


def test_netcdf_packing_fill_and_time(tmp_path):
    path = tmp_path / "packed.nc"
    encoding = {"tec": {"dtype": "int16", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -999}}
    labelled().to_netcdf(path, encoding=encoding)
    loaded = io.read(path)
    assert loaded.variable == "tec" and loaded.where is None
    assert np.allclose(loaded.data, field(), equal_nan=True)
    assert loaded.data.time.dtype.kind == "M" and loaded.data.attrs["units"] == "TECU"


def test_durations_stay_numbers(tmp_path):
    path = tmp_path / "x.nc"
    labelled().assign_attrs(units="days").to_netcdf(path)
    assert io.read(path).data.dtype.kind == "f"


def test_domain_and_quality(tmp_path):
    path = tmp_path / "x.nc"
    data = labelled().to_dataset()
    data["sea"] = (("lon", "lat"), [[1, 1], [1, 1], [0, 1]])
    data["qc"] = (("lat", "lon", "time"), np.where(np.arange(24).reshape(2, 3, 4) % 5, 0, 4))
    data.to_netcdf(path)
    loaded = io.read(path, "tec", domain="sea", quality="qc", accept=[0])
    tensor = ObservedTensor.of(loaded.data, where=loaded.where)
    assert not tensor.domain[0, 2].any() and tensor.domain.sum() == 20
    assert not tensor.mask[data.qc.values == 4].any() and np.isnan(loaded.data.values).sum() == 1 + 5
    assert np.array_equal(io.read(path, "tec", quality="qc", accept=["0", "4"]).data, field(), equal_nan=True)
    with pytest.raises(ValueError, match="go together"):
        io.read(path, "tec", quality="qc")
    with pytest.raises(ValueError, match="accept"):
        io.read(path, "tec", quality="qc", accept=["good"])
    with pytest.raises(ValueError, match=r"no variable 'land'; it has .*sea \(lon, lat\)"):
        io.read(path, "tec", domain="land")


def test_unknown_and_several_variables(tmp_path):
    path = tmp_path / "x.nc"
    data = labelled().to_dataset()
    data["rms"] = data.tec * 2
    data.to_netcdf(path)
    with pytest.raises(ValueError, match=r"several variables: tec \(lat, lon, time\), rms .*--variable"):
        io.read(path)
    with pytest.raises(ValueError, match="no variable 'TEC'; it has tec"):
        io.read(path, "TEC")
    assert io.read(path, "rms").data.name == "rms"


def test_disorder_is_sorted_and_said(tmp_path):
    path = tmp_path / "x.nc"
    data = labelled().isel(time=[2, 0, 3, 1]).to_dataset()
    data["sea"] = (("lat", "time"), [[1, 0, 1, 1], [1, 1, 1, 1]])
    data.to_netcdf(path)
    loaded = io.read(path, "tec", domain="sea")
    assert loaded.data.identical(labelled()) and "time were not sorted" in loaded.notes[0]
    assert not loaded.where.values[0, :, 0].any() and loaded.where.values[0, :, 1:].all()
    kept = io.read(path, "tec", axis_kinds={"time": "unordered"})
    assert kept.notes == () and not kept.data.time.equals(labelled().time)
    twice = tmp_path / "twice.nc"
    labelled().isel(time=[0, 1, 1, 2]).to_netcdf(twice)
    with pytest.raises(ValueError, match="'time' repeats values"):
        ObservedTensor.of(io.read(twice).data)


def test_folded_results_and_other_calendars_are_written(tmp_path):
    times = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(6, "h")
    folded, where = io.fold_time(
        labelled().assign_coords(time=times + np.timedelta64(6, "h")), {"time": ("day", "slot")}
    )
    source = Plain(ObservedTensor.of(folded.isel(lat=0), where=where), infinite=False)
    source.estimate = np.zeros(source.observed.shape)
    path = io.write(tmp_path / "folded.nc", Intervals(source, 0.9))
    assert io.read(path).data.dims == ("lon", "day", "slot")
    odd = xr.date_range("2000-01-01", periods=4, calendar="noleap", use_cftime=True)
    path = io.write(tmp_path / "odd.nc", result_of(labelled().assign_coords(time=odd)))
    assert io.read(path).data.time.values[0].calendar == "noleap"


def test_bounds_are_no_data(tmp_path):
    path = tmp_path / "x.nc"
    data = labelled().to_dataset()
    data["lat_bnds"] = (("lat", "two"), [[5.0, 15.0], [15.0, 25.0]])
    data.lat.attrs["bounds"] = "lat_bnds"
    data.to_netcdf(path)
    assert io.read(path).variable == "tec"


def test_npz_names_axes_and_refuses_pickles(tmp_path):
    path = tmp_path / "x.npz"
    good = np.ones((2, 3, 4), bool)
    good[0, 0] = False
    np.savez_compressed(path, tec=field(), lat=np.array([1.0, 2.0]), time=np.arange(4), good=good)
    plain = io.read(path, "tec")
    assert isinstance(plain.data, np.ndarray) and np.array_equal(plain.data, field(), equal_nan=True)
    named = io.read(path, "tec", axes=("lat", "lon", "time"), quality="good", accept=[1]).data
    assert named.dims == ("lat", "lon", "time") and list(named.coords) == ["lat", "time"]
    assert np.isnan(named.values[0, 0]).all()
    assert io.read(path, domain="good").where.dtype == bool
    with pytest.raises(ValueError, match="one name each"):
        io.read(path, "tec", axes=("lat", "lon"))
    objects = tmp_path / "o.npz"
    np.savez(objects, tec=np.array([[1, None]], dtype=object))
    with pytest.raises(ValueError, match="never unpickled"):
        io.read(objects, "tec")
    np.save(tmp_path / "o.npy", np.array([[1, None]], dtype=object))
    with pytest.raises(ValueError, match="numbers"):
        io.read(tmp_path / "o.npy")


def test_flag_shapes_must_agree(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, tec=field(), land=np.ones((2, 3)), wrong=np.ones((2, 5)))
    assert io.read(path, "tec", domain="land").where.shape == (2, 3, 4)
    with pytest.raises(ValueError, match="'wrong' has shape"):
        io.read(path, "tec", domain="wrong")


def test_declared_size_is_checked_before_reading(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, tec=np.zeros((100, 100)))
    with pytest.raises(ValueError, match=r"tec declares 100 x 100 values.*max_bytes"):
        io.read(path, max_bytes=1000)
    labelled().to_netcdf(tmp_path / "x.nc")
    with pytest.raises(ValueError, match="max_bytes"):
        io.read(tmp_path / "x.nc", max_bytes=10)


def test_npy_lies_about_its_length(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((10, 10)))
    text = path.read_bytes().replace(b"(10, 10)", b"(10**9,)"[:8])
    path.write_bytes(text.replace(b"(10**9,)", b"(9,9999)"))
    with pytest.raises(ValueError, match="cut short"):
        io.read(path)


@pytest.mark.parametrize("modern", [False, True])
def test_matlab_files_of_the_paper(tmp_path, modern):
    path = tmp_path / "tec.mat"
    if modern:
        import h5py

        with h5py.File(path, "w", userblock_size=512) as file:
            for name in ("mad", "vista"):
                file[name] = field().T
        raw = bytearray(path.read_bytes())
        raw[:10] = b"MATLAB 7.3"
        path.write_bytes(raw)
    else:
        from scipy.io import savemat

        savemat(path, {"mad": field(), "vista": field(), "note": "text"})
    assert np.array_equal(io.read(path, "mad").data, field(), equal_nan=True)
    with pytest.raises(ValueError, match=r"several variables: mad .*vista"):
        io.read(path)
    with pytest.raises(ValueError, match="no variable 'dtec'; it has mad"):
        io.read(path, "dtec")


def test_hdf5_with_packing(tmp_path):
    import h5py

    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("maps/tec", data=np.array([[1, 2, -1], [3, 4, 5]], dtype="int16"))
        stored.attrs["_FillValue"] = np.array([-1], dtype="int16")
        stored.attrs["scale_factor"] = 0.1
        file["lat"] = [1.0, 2.0]
    data = io.read(path, axes=("lat", "time")).data
    assert data.dims == ("lat", "time") and data.lat.values.tolist() == [1.0, 2.0]
    assert np.allclose(data, [[0.1, 0.2, NAN], [0.3, 0.4, 0.5]], equal_nan=True)


def test_zarr_round_trip(tmp_path):
    result = result_of(labelled())
    path = io.write(tmp_path / "x.zarr", result)
    read = io.read(path, "tec_upper")
    assert np.array_equal(read.data, result.upper_array) and read.data.time.equals(labelled().time)
    with pytest.raises(FileExistsError):
        io.write(path, result)
    io.write(path, result, overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.parametrize("suffix", [".nc", ".nc4", ".h5", ".npz", ".mat"])
def test_written_results_are_read(tmp_path, suffix):
    result = result_of(labelled())
    path = io.write(tmp_path / f"x{suffix}", result)
    name = "lower" if suffix in (".npz", ".mat") else "tec_lower"
    assert np.array_equal(np.asarray(io.read(path, name).data), result.lower_array)
    with pytest.raises(FileExistsError, match="exists"):
        io.write(path, result)


def test_npy_is_a_stack(tmp_path):
    result = result_of(field())
    stack = io.read(io.write(tmp_path / "x.npy", result)).data
    assert stack.shape == (3, 2, 3, 4) and np.array_equal(stack[2], result.upper)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_tables_are_written_and_read(tmp_path, suffix):
    result = result_of(labelled())
    path = io.write(tmp_path / f"x{suffix}", result)
    loaded = io.read(path, "estimate", axes=("lat", "lon", "time"))
    assert loaded.data.dims == ("lat", "lon", "time") and loaded.data.time.dtype.kind == "M"
    assert np.allclose(loaded.data, result.estimate_array)


def test_table_file_there_and_back(tmp_path):
    frame = pd.DataFrame(
        {
            "time": ["2020-01-01T00:00", "2020-01-01T12:00", "2020-01-02T12:00", "2020-01-02T12:00"],
            "site": ["p", "q", "p", "p"],
            "value": [1.0, 2.0, 3.0, 500.0],
            "qc": ["ok", "ok", "ok", "bad"],
        }
    )
    path = tmp_path / "x.csv"
    frame.to_csv(path, index=False)
    loaded = io.read(path, quality="qc", accept=["ok"], fold={"time": ("day", "slot")})
    assert loaded.data.dims == ("day", "slot", "site") and loaded.where is None
    assert np.nansum(loaded.data.values) == 6.0
    assert any("share an entry" in note for note in loaded.notes) and any(
        "inserted along time" in n for n in loaded.notes
    )
    result = Intervals(Plain(ObservedTensor.of(loaded.data), infinite=False), 0.9)
    back = loaded.table.to_frame(result)
    assert back.value.tolist()[:4] == frame.value.tolist() and back.qc.tolist()[:4] == frame.qc.tolist()
    assert back.estimate.tolist()[:4] == [1.0, 2.0, 3.0, 3.0] and len(back) == 3 + 1 + 5
    assert io.write(tmp_path / "y.csv", result, table=loaded.table).exists()


def test_unknown_suffix_and_absent_file(tmp_path):
    (tmp_path / "x.xyz").write_text("")
    with pytest.raises(ValueError, match=r"unknown suffix.*\.nc"):
        io.read(tmp_path / "x.xyz")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        io.read(tmp_path / "absent.nc")
    with pytest.raises(ValueError, match=r"no known suffix.*\.npz"):
        io.check_target(tmp_path / "x.doc")
    with pytest.raises(FileNotFoundError, match="folder"):
        io.check_target(tmp_path / "no" / "x.nc")


@pytest.mark.parametrize("suffix", [".nc", ".npz", ".npy", ".csv.gz", ".parquet", ".h5", ".mat"])
def test_damaged_files_are_named(tmp_path, suffix):
    good = io.write(tmp_path / f"good{suffix}", result_of(labelled()))
    raw = good.read_bytes()
    random, refused = np.random.default_rng(0), 0
    path = tmp_path / f"bad{suffix}"
    for trial in range(25):
        if trial < 12:
            cut = raw[: int(random.integers(0, len(raw) - 1))]
        else:
            cut = bytearray(raw)
            for at in random.integers(0, len(raw), size=40):
                cut[at] = random.integers(256)
        path.write_bytes(cut)
        try:
            io.read(path, "estimate" if suffix != ".npy" else None)
        except (ValueError, OSError) as problem:
            assert "bad" in str(problem), problem
            refused += 1
    assert refused >= 12, "cut files, if not all whose bytes were changed"


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF3_64BIT_DATA"])
@pytest.mark.parametrize("unlimited", [[], ["lat"]])
def test_netcdf_3_that_is_cut_short_is_refused(tmp_path, kind, unlimited):
    """The C library gives zeros for what is not there."""
    path = tmp_path / "x.nc"
    data = labelled().to_dataset().assign(n=("lat", [1, 2]))
    data.to_netcdf(path, format=kind, unlimited_dims=unlimited, engine="netcdf4")
    assert np.array_equal(io.read(path, "tec").data, field(), equal_nan=True)
    raw = path.read_bytes()
    for cut in (9, 40, 150):
        path.write_bytes(raw[:-cut])
        with pytest.raises(ValueError, match=r"x\.nc .*cut short"):
            io.read(path, "tec")


def test_text_where_a_number_should_be(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b,value\n1,1,2.0\n1,2,oops\n")
    with pytest.raises(ValueError, match=r"x\.csv: row 2, column 'value': expected a number, found 'oops'"):
        io.read(path)
    path.write_text("a,b,value\n1,1,2.0,7\n1,2,3,4,5\n")
    with pytest.raises(ValueError, match=r"x\.csv"):
        io.read(path)
    path.write_text("a,b,value\n1,1,2.0\n1\n")
    with pytest.raises(ValueError, match=r"x\.csv: row 2 has no 'b'"):
        io.read(path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"x\.csv could not be read as a table"):
        io.read(path)
    path.write_bytes(b"a,b,value\n\xff\xfe,1,2\n")
    with pytest.raises(ValueError, match=r"x\.csv"):
        io.read(path)
