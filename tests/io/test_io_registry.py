"""The registry of formats: every reader and writer exists, and what is not installed is named."""

import numpy as np
import pytest

import corten
from corten import io
from corten.io import registry, writers
from corten.io.registry import FORMATS, READABLE, WRITABLE, format_of, resolve


def test_every_reader_and_writer_exists():
    for one in FORMATS:
        for name in (one.opener, one.writer):
            assert name is None or callable(resolve(name))
    assert len(set(READABLE)) == len(READABLE)
    assert set(WRITABLE) == set(writers.WRITABLE)


def test_a_new_format_is_written_by_its_own_writer(tmp_path, monkeypatch):
    def write_rows(path, output, overwrite):
        with output.file(path, overwrite) as temporary:
            np.savetxt(temporary, output.results[0].estimate_array)

    monkeypatch.setattr(registry, "FORMATS", (*FORMATS, registry.Format("text", (".txt",), None, "here:write_rows")))
    monkeypatch.setattr(writers, "WRITABLE", (*WRITABLE, ".txt"))
    monkeypatch.setattr(writers, "resolve", {"here:write_rows": write_rows}.__getitem__)
    x = np.add.outer(np.arange(8.0), np.arange(9.0))
    x[2, 3] = np.nan
    result = corten.complete(x, completion="smooth", propensity="constant", calibration="random")
    path = io.write(tmp_path / "filled.txt", result)
    np.testing.assert_allclose(np.loadtxt(path), result.estimate)


def test_names_of_files_say_their_format():
    assert format_of("A.NC").name == "NetCDF" and format_of("x.csv.gz").name == "CSV"
    assert format_of("igs.19i.Z").name == format_of("x.INX.gz").name == "IONEX"
    with pytest.raises(ValueError, match=r"x\.doc has an unknown suffix.*\.tif"):
        format_of("x.doc")


@pytest.mark.parametrize(("suffix", "package"), [(".tif", "rioxarray"), (".grib", "cfgrib")])
@pytest.mark.parametrize("careful", [False, True])
def test_an_absent_engine_is_named_with_its_extra(tmp_path, monkeypatch, suffix, package, careful):
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    (tmp_path / f"x{suffix}").write_bytes(b"")
    with pytest.raises(ImportError, match=rf"needs the package {package}: pip install 'corten\[geo\]'"):
        io.read(tmp_path / f"x{suffix}", careful=careful)


@pytest.mark.filterwarnings("ignore")  # of the optional libraries
@pytest.mark.parametrize("careful", [False, True])
def test_geotiff(tmp_path, careful):
    rasterio = pytest.importorskip("rasterio")
    pytest.importorskip("rioxarray")
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    x[0, 1, 2] = -9999
    path, shape = tmp_path / "x.tif", {"height": 3, "width": 4, "count": 2, "dtype": "float32"}
    place = {"crs": "EPSG:4326", "transform": rasterio.transform.from_origin(0, 3, 1, 1)}
    with rasterio.open(path, "w", driver="GTiff", nodata=-9999, **shape, **place) as file:
        file.write(x)
    data = io.read(path, careful=careful).data
    assert data.dims == ("band", "y", "x") and np.isnan(data.values).sum() == 1 and data.y.values[0] == 2.5
    path.write_bytes(b"<VRTDataset><SourceFilename>/etc/passwd</SourceFilename></VRTDataset>")
    with pytest.raises(ValueError, match=r"x\.tif could not be read as GeoTIFF"):
        io.read(path, careful=careful)


@pytest.mark.filterwarnings("ignore")
def test_grib(tmp_path):
    pytest.importorskip("cfgrib", exc_type=Exception)
    import eccodes

    path = tmp_path / "x.grib"
    with path.open("wb") as stream:
        for hour in (0, 6, 12):
            message = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
            eccodes.codes_set(message, "dataTime", 100 * hour)
            count = eccodes.codes_get_size(message, "values")
            eccodes.codes_set_values(message, np.arange(count, dtype=float) + hour)
            eccodes.codes_write(message, stream)
            eccodes.codes_release(message)
    data = io.read(path).data
    assert data.dims[0] == "time" and data.shape[0] == 3 and [one.name for one in tmp_path.iterdir()] == ["x.grib"]
    path.write_bytes(b"no GRIB")
    with pytest.raises(ValueError, match=r"x\.grib could not be read as GRIB"):
        io.read(path)
