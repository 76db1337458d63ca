"""Open a file of any format as named variables without loading them: `{name: Stored}`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.data.never_observed import is_mask_name
from corten.io import npy
from corten.io.files import reading, suffix_of
from corten.io.guards import check_netcdf, check_zarr, refuse_outside
from corten.io.ionex import read_ionex
from corten.io.names import UNNAMED
from corten.io.provenance import referred, surroundings

if TYPE_CHECKING:
    import h5py
    import xarray as xr


@dataclass(frozen=True)
class Stored:
    """A variable in a file: shape, type and a function that loads it.

    role: "data", "main" (the default variable of the file), "coordinate", or "beside": bounds, flags and other
    variables that an attribute of another variable names.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], np.ndarray | xr.DataArray]
    dims: tuple[str, ...] | None = None
    role: str = "data"

    @property
    def is_tensor(self) -> bool:
        """Whether it could be completed: numbers in two or more axes."""
        return self.role in ("data", "main") and self.dtype.kind in "biuf" and len(self.shape) >= 2

    def describe(self, name: str) -> str:
        return f"{name} ({', '.join(self.dims) if self.dims else ' x '.join(map(str, self.shape))})"


NAMES_OF = "_name"  # what the name of a variable with the labels of an axis ends in, after the name of the axis


class Variables(dict[str, Stored]):
    """The variables of a file by name, its global attributes, and for each variable those that it refers to."""

    attrs: Mapping[str, object] = {}
    beside: Callable[[str], list[str]] = staticmethod(lambda name: [])


def choose(path: Path, store: Mapping[str, Stored], variable: str | None, extra: Sequence[str] = ()) -> str:
    """The variable to read; `extra` are flag variables, which cannot be it."""
    for name in (*extra, *(() if variable is None else (variable,))):
        if name not in store:
            tensors_first = sorted(store.items(), key=lambda item: not item[1].is_tensor)
            known = ", ".join(one.describe(key) for key, one in tensors_first) or "none"
            raise ValueError(f"{path} has no variable {name!r}; it has {known}")
    if variable is not None:
        return variable
    fitting = [name for name, one in store.items() if one.is_tensor and name not in extra]
    fitting = [name for name in fitting if store[name].role == "main"] or fitting
    fitting = [name for name in fitting if not is_mask_name(name)] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = ", ".join(store[name].describe(name) for name in fitting)
        raise ValueError(f"{path} has several variables: {listed}; say which variable (variable=, --variable)")
    listed = ", ".join(one.describe(key) for key, one in store.items()) or "nothing"
    raise ValueError(f"{path} has no variable of numbers with two or more axes; it has {listed}")


def of_dataset(dataset: xr.Dataset, main: str | None = None) -> Variables:
    """The variables of an xarray Dataset; those that describe another (bounds, flags) are not chosen as data."""
    named = [str(v.attrs.get("ancillary_variables", "")) for v in dataset.variables.values()]
    described = {name for text in named for name in text.split()}
    described |= {name for v in dataset.variables.values() for name in referred(v.encoding | v.attrs)}
    found = Variables()
    for key in dataset.variables:
        array, name = dataset[key], str(key)
        role = "beside" if name in described else "coordinate" if key in dataset.coords else "data"
        dims = tuple(str(dim) for dim in array.dims)
        found[name] = Stored(array.shape, array.dtype, array.load, dims, "main" if name == main else role)
    found.attrs = {str(key): value for key, value in dataset.attrs.items() if _is_plain(value)}
    found.beside = lambda name: [str(one) for one in surroundings(dataset, name).variables]
    return found


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(type(one) in (int, float) for one in value)
    numbers = isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.ndim <= 1
    return numbers or isinstance(value, str | int | float | np.number)


def opened(path: Path, kind: str, check: Callable[[], None], **options: Any) -> xr.Dataset:
    """A lazy Dataset of a file, decoded by the CF conventions (fill values, packing, times); durations stay numbers."""
    import xarray as xr

    with reading(path, kind):
        check()
        dataset = _with_labels(xr.open_dataset(path, decode_timedelta=False, **options))
        if odd := [dim for dim in dataset.dims if not isinstance(dim, str)]:
            raise ValueError(f"an axis is called {odd[0]!r}: expected text")
        return dataset


def is_text(labels: xr.DataArray | xr.Variable) -> bool:
    """Whether a variable holds text only."""
    if labels.dtype.kind not in "OUT":
        return False
    return labels.dtype.kind != "O" or all(isinstance(one, str) for one in labels.values.flat)


def _with_labels(dataset: xr.Dataset) -> xr.Dataset:
    """Give axes without coordinates the text labels that CF files keep beside them: station_name for station."""
    for dim in dataset.dims:
        name = f"{dim}{NAMES_OF}"
        beside = dataset.variables.get(name)
        if dim not in dataset.variables and beside is not None and beside.dims == (dim,) and is_text(beside):
            dataset = dataset.drop_vars(name).assign_coords({dim: (dim, beside.values, beside.attrs)})
    return dataset


def open_dataset(path: Path, max_bytes: int) -> xr.Dataset:
    """NetCDF or Zarr, checked before the C libraries see it."""
    if suffix_of(path) != ".zarr":
        return opened(path, "NetCDF", partial(check_netcdf, path, max_bytes), engine="netcdf4")
    known = None if (path / ".zmetadata").exists() else False
    return opened(path, "Zarr", partial(check_zarr, path, max_bytes), engine="zarr", consolidated=known)


def open_variables(path: Path, max_bytes: int) -> AbstractContextManager[Variables]:
    return _closing(open_dataset(path, max_bytes))


@contextmanager
def open_geotiff(path: Path, max_bytes: int) -> Iterator[Variables]:
    """GeoTIFF by rioxarray: bands, y, x. Files beside it are not read."""
    import rasterio

    check = partial(_begins, path, (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"))
    alone = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_PAM_ENABLED": "NO"}
    with rasterio.Env(**alone), _closing(opened(path, "GeoTIFF", check, engine="rasterio")) as store:
        yield store


def open_grib(path: Path, max_bytes: int) -> AbstractContextManager[Variables]:
    """GRIB by cfgrib; no index is written beside the file."""
    check = partial(_begins, path, (b"GRIB",))
    return _closing(opened(path, "GRIB", check, engine="cfgrib", backend_kwargs={"indexpath": ""}))


@contextmanager
def open_ionex(path: Path, max_bytes: int) -> Iterator[Variables]:
    yield of_dataset(read_ionex(path, max_bytes=max_bytes), "tec")


@contextmanager
def _closing(dataset: xr.Dataset) -> Iterator[Variables]:
    with dataset:
        yield of_dataset(dataset)


def _begins(path: Path, magic: tuple[bytes, ...]) -> None:
    """Refuse other content: libraries choose a driver by content, and some drivers read other files."""
    with path.open("rb") as stream:
        if stream.read(4) not in magic:
            raise ValueError("it does not begin like one")


@contextmanager
def open_npz(path: Path, max_bytes: int) -> Iterator[Variables]:
    """NumPy archive; headers are read, arrays are not, and pickled objects never are."""
    with reading(path, "npz"):
        archive = zipfile.ZipFile(path)
    with archive:
        found = Variables()
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                with reading(path, f"npz, {info.filename!r}"), archive.open(info) as stream:
                    shape, dtype, _ = npy.declared(stream, npy.member_size(info))
                name = info.filename.removesuffix(".npy")
                if ".." in PurePosixPath(name.replace("\\", "/")).parts or name.startswith(("/", "\\")):
                    raise ValueError(f"{path} has a member called {info.filename!r}, outside the archive: refused")
                found[name] = Stored(shape, dtype, partial(_load_npy, archive, info.filename))
        yield found


def _load_npy(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


@contextmanager
def open_npy(path: Path, max_bytes: int) -> Iterator[Variables]:
    """One NumPy array; no pickled objects."""
    with reading(path, "a NumPy array", OSError), path.open("rb") as stream:
        shape, dtype, _ = npy.declared(stream, path.stat().st_size)
    yield Variables({UNNAMED: Stored(shape, dtype, lambda: np.load(path, allow_pickle=False))})


@contextmanager
def open_mat(path: Path, max_bytes: int) -> Iterator[Variables]:
    """MATLAB file, version 4, 5 or 7.3, as the paper's `mad`, `vista` and `dtec` come."""
    with path.open("rb") as stream:
        modern = stream.read(10) == b"MATLAB 7.3"
    if modern:
        with open_hdf5(path, max_bytes, transposed=True) as found:
            yield found
        return
    from scipy.io import whosmat

    with reading(path, "MAT"):
        listed = whosmat(path, appendmat=False)
    found = Variables()
    for name, shape, kind in listed:
        dtype = np.dtype(_MATLAB.get(kind, object))
        found[name] = Stored(tuple(shape), dtype, partial(_load_mat, path, name, tuple(shape)))
    yield found


_MATLAB = {"double": "f8", "single": "f4", "logical": "?"} | {
    f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)
}


def _load_mat(path: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    from scipy.io import loadmat

    try:
        found = np.asarray(loadmat(path, appendmat=False, variable_names=[name])[name])
    except MemoryError:
        raise ValueError(f"{name!r} needs more memory than is available") from None
    if found.shape != shape or found.dtype.kind not in "biuf":
        raise ValueError(f"{name!r} is no array of real numbers of shape {shape}")
    return found


_PACKING = ("_FillValue", "missing_value", "scale_factor", "add_offset")


@contextmanager
def open_hdf5(path: Path, max_bytes: int, transposed: bool = False) -> Iterator[Variables]:
    """HDF5: every dataset by its path, with fill values and packing applied; NetCDF-4 and Madrigal with labels."""
    import h5py

    from corten.io.madrigal import is_madrigal, read_madrigal

    with reading(path, "HDF5"):
        file = h5py.File(path, "r")
        netcdf, madrigal = "_NCProperties" in file.attrs, not transposed and is_madrigal(file)
    if netcdf or madrigal:
        file.close()
        if madrigal:
            yield of_dataset(read_madrigal(path, max_bytes=max_bytes), "tec")
            return
        with _closing(opened(path, "HDF5", partial(check_netcdf, path, max_bytes), engine="netcdf4")) as store:
            yield store
        return
    with file:
        found = Variables()

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and not name.startswith("#") and item.shape is not None:
                refuse_outside(repr(name), item, max_bytes)
                shape = tuple(reversed(item.shape)) if transposed else tuple(item.shape)
                found[name] = Stored(shape, item.dtype, partial(_load_hdf5, item, transposed))

        with reading(path, "HDF5"):
            file.visititems(visit)
        yield found


def _load_hdf5(item: h5py.Dataset, transposed: bool) -> np.ndarray:
    import xarray as xr

    values = item[()]
    if transposed:
        return np.asarray(values).T
    attrs = {key: np.ravel(item.attrs[key])[0] for key in _PACKING if key in item.attrs}
    return np.asarray(xr.decode_cf(xr.DataArray(values, attrs=attrs, name="x").to_dataset())["x"].values)
