"""Small whole files of every format that corten reads: what the fuzzer damages."""

from __future__ import annotations

import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr
from test_io_ionex import ionex
from test_io_madrigal import cells, write_table

import corten
from corten.io import write

__all__ = ["CORPUS", "KINDS", "RESULTS", "Content", "compressed", "rebuilt_archive", "zipped"]

Content = bytes | dict[str, bytes]
"""A file, or the files of a Zarr folder by their names in it."""


def field() -> np.ndarray:
    x = np.arange(24.0).reshape(2, 3, 4)
    x[0, 1, 2] = np.nan
    return x


def labelled() -> xr.DataArray:
    times = np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]").astype("datetime64[ns]")
    coords = {"lat": [10.0, 20.0], "station": ["a", "bb", "c"], "time": times}
    dims = ("lat", "station", "time")
    return xr.DataArray(field(), dims=dims, coords=coords, name="tec", attrs={"units": "TECU"})


def zipped(members: dict[str, bytes], compressed: bool = True) -> bytes:
    """A zip archive with whole checksums, whatever its members hold."""
    out = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(out, "w", kind, compresslevel=1 if compressed else None) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name), data, compress_type=kind)
    return out.getvalue()


def rebuilt_archive(about: Any, arrays: dict[str, bytes]) -> bytes:
    """A saved fit whose checksums fit its content, so that the damage is met by what comes after them."""
    text = about if isinstance(about, bytes) else json.dumps(about).encode()
    return zipped({f"{name}.npy": data for name, data in arrays.items()} | {"corten.json": text})


def _bytes(write: Callable[[Path], Any], folder: Path, name: str) -> bytes:
    path = folder / name
    write(path)
    return path.read_bytes()


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("maps/tec", data=field().astype("f4"), chunks=(1, 3, 4), compression="gzip")
        stored.attrs["_FillValue"] = np.float32(-1)
        stored.attrs["units"] = np.bytes_("TECU")
        for k, (name, values) in enumerate({"lat": [1.0, 2.0], "lon": [1, 2, 3], "time": [0, 1, 2, 3]}.items()):
            file[name] = values
            file[name].make_scale(name)
            stored.dims[k].attach_scale(file[name])
        file["names"] = np.array(["p", "q"], dtype=h5py.string_dtype())


def _modern_mat(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        file["mad"] = field().T
    raw = bytearray(path.read_bytes())
    raw[:10] = b"MATLAB 7.3"
    path.write_bytes(raw)


def _array_layout(path: Path) -> None:
    with h5py.File(path, "w") as file:
        group = file.create_group("Data/Array Layout")
        group["timestamps"], group["gdlat"], group["glon"] = np.arange(4) * 300.0, [1.0, 2.0], [5.0, 6.0, 7.0]
        group["2D Parameters/tec"] = field()


def _packed_zarr(path: Path) -> None:
    """Version 2 with filters, codecs of several libraries, and text of any length."""
    import numcodecs

    values = {"tec": labelled().fillna(0.0), "sea": (("lat", "station"), np.ones((2, 3), "i1"))}
    stored = {
        "tec": {"filters": [numcodecs.Delta("<f8")], "compressors": [numcodecs.LZ4()]},
        "sea": {"filters": [numcodecs.Shuffle(1)], "compressors": [numcodecs.Zlib(1)]},
        "lat": {"compressors": [numcodecs.Zstd(1)]},
    }
    names = np.array(["a", "bb", "c"], object)
    xr.Dataset(values).assign_coords(station=names).to_zarr(path, zarr_format=2, encoding=stored)


def _sharded_zarr(path: Path) -> None:
    import zarr

    group, values = zarr.open_group(path, mode="w", zarr_format=3), field()
    about = {"shape": values.shape, "dtype": values.dtype, "dimension_names": ("lat", "lon", "time")}
    gzip, crc = zarr.codecs.GzipCodec(level=1), [zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec()]
    group.create_array("tec", chunks=(1, 3, 2), shards=(2, 3, 4), compressors=gzip, **about)[...] = values
    group.create_array("mad", chunks=(2, 3, 4), compressors=crc, **about)[...] = values


def _fit() -> corten.Fitted:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 1)) * rng.normal(size=5) + 0.1 * rng.normal(size=(4, 5))
    x[rng.random(x.shape) < 0.3] = np.nan
    law = corten.IsingPropensity(coupling=corten.Product(0.1), rank=1)
    return corten.ConformalCompleter(corten.TuckerCompletion(1), law, "random", seed=1).fit(
        xr.DataArray(x, dims=("p", "q"), coords={"q": [0.0, 1.0, 2.0, 3.0, 4.0]})
    )


def _table() -> pd.DataFrame:
    frame = labelled().to_dataframe(name="value").reset_index()
    return frame.iloc[[0, 1, 2, 5, 6, 9, 11, 13, 16, 20, 23, 23]]


def _folder(write: Callable[[Path], Any], folder: Path, name: str) -> dict[str, bytes]:
    root = folder / name
    write(root)
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def build(folder: Path) -> dict[str, list[Content]]:
    """Every format by its suffix: one or more whole files."""
    from scipy.io import savemat

    data = labelled()
    named = data.assign_coords(station=[0, 1, 2])
    whole = data.to_dataset().assign(sea=(("lat", "station"), np.ones((2, 3), "i1")))
    packed = {"tec": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9, "zlib": True}}
    maps = np.arange(2 * 3 * 19).reshape(2, 1, 3, 19)
    text = ionex(maps, rms=maps[:1]).encode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, list[Content]] = {
            ".nc": [
                _bytes(lambda p: whole.to_netcdf(p), folder, "a.nc"),
                _bytes(lambda p: data.to_netcdf(p, encoding=packed), folder, "b.nc"),
                _bytes(lambda p: named.to_netcdf(p, format="NETCDF3_CLASSIC"), folder, "c.nc"),
                _bytes(lambda p: named.to_netcdf(p, format="NETCDF3_64BIT"), folder, "d.nc"),
            ],
            ".h5": [
                _bytes(_hdf5, folder, "a.h5"),
                _bytes(lambda p: write_table(p, cells()), folder, "m.h5"),
                _bytes(_array_layout, folder, "n.h5"),
            ],
            ".mat": [
                _bytes(lambda p: savemat(p, {"mad": field(), "s": "text"}), folder, "a.mat"),
                _bytes(lambda p: savemat(p, {"mad": field()}, do_compression=True), folder, "b.mat"),
                _bytes(lambda p: savemat(p, {"mad": field()[0]}, format="4"), folder, "c.mat"),
                _bytes(lambda p: savemat(p, {"mad": field(), "o": {"x": [1, "b"]}}), folder, "d.mat"),
                _bytes(_modern_mat, folder, "e.mat"),
            ],
            ".npy": [_npy(field()), _npy(field().astype(">f4")), _npy(np.asfortranarray(field()))],
            ".npz": [
                zipped({"tec.npy": _npy(field()), "lat.npy": _npy(np.array([1.0, 2.0]))}),
                zipped({"tec.npy": _npy(field())}, compressed=False),
            ],
            ".csv": [_table().to_csv(index=False).encode()],
            ".csv.gz": [gzip.compress(_table().to_csv(index=False).encode())],
            ".parquet": [_bytes(lambda p: _table().to_parquet(p, index=False), folder, "a.parquet")],
            ".19i": [text],
            ".19i.gz": [gzip.compress(text)],
            ".19i.Z": [compressed(text)],
            ".corten": [_bytes(lambda p: _fit().save(p), folder, "a.corten")],
            ".zarr": [
                _folder(lambda p: whole.to_zarr(p, zarr_format=2), folder, "a.zarr"),
                _folder(lambda p: whole.drop_vars("station").to_zarr(p, zarr_format=3), folder, "b.zarr"),
                _folder(_packed_zarr, folder, "c.zarr"),
                _folder(_sharded_zarr, folder, "d.zarr"),
            ],
        }
    return found


def results(folder: Path) -> dict[str, list[Content]]:
    """What `corten complete` writes, with two coverages, in every format."""
    fit = _fit()
    both = fit.intervals([0.9, 0.5])
    found: dict[str, list[Content]] = {".corten": [_bytes(lambda p: fit.save(p), folder, "r.corten")]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found[".zarr"] = [_folder(lambda p: write(p, both[0], further=both[1:]), folder, "r.zarr")]
        for kind in (".nc", ".h5", ".npz", ".npy", ".mat", ".csv", ".csv.gz", ".parquet"):
            found[kind] = [_bytes(lambda p: write(p, both[0], further=both[1:]), folder, f"r{kind}")]
    return found


def compressed(text: bytes) -> bytes:
    """A `.Z` file that clears its table before codes of more than nine bits would be needed."""
    packed = bytearray(b"\x1f\x9d\x90")
    for start in range(0, len(text), 199):
        codes = [*text[start : start + 199], 256]
        for at in range(0, len(codes), 8):
            group = sum(code << (9 * k) for k, code in enumerate(codes[at : at + 8]))
            packed += group.to_bytes(9, "little")
    return bytes(packed)


def _made(how: Callable[[Path], dict[str, list[Content]]]) -> dict[str, list[Content]]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        return how(Path(folder))


CORPUS, RESULTS = _made(build), _made(results)
KINDS = tuple(CORPUS)
