"""Covariates: other arrays that broadcast to the tensor, such as elevation or a model field, checked and named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from corten.data.axes import broadcast_by_name, is_dataarray
from corten.data.wide import WideLabels, is_frame

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Covariates: TypeAlias = "Mapping[str, ArrayLike | pd.DataFrame | xr.DataArray] | xr.Dataset"
"""Names and arrays, DataArrays or tables; an xarray.Dataset is one."""


def covariates_of(
    given: Covariates | None, x: object, shape: tuple[int, ...], table: WideLabels | None = None
) -> dict[str, np.ndarray]:
    """The covariates as arrays of as many axes as the tensor, with length 1 where they do not vary; NaN is missing.

    x: the tensor as an array or a DataArray; DataArrays are matched to it by axis names, other arrays by trailing axes.
    """
    if given is None:
        return {}
    if type(given).__name__ == "Dataset" and hasattr(given, "data_vars"):
        given = {str(name): one for name, one in given.data_vars.items()}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"covariates is a {type(given).__name__}: give a dict of names and arrays, {{'elevation': z}}, or a Dataset"
        )
    own = str(x.name) if is_dataarray(x) and x.name is not None else None
    return {str(name): _one(name, array, x=x, shape=shape, table=table, own=own) for name, array in given.items()}


def _one(
    name: object, given: object, *, x: object, shape: tuple[int, ...], table: WideLabels | None, own: str | None
) -> np.ndarray:
    """One covariate, checked."""
    said = f"covariate {name!r}"
    if not isinstance(name, str) or not name:
        raise TypeError(f"{said} has a name that is no text: give a dict of names and arrays")
    if name == own:
        raise ValueError(f"{said} has the name of the variable that is filled: it cannot explain itself; leave it out")
    if is_frame(given):
        if table is None:
            raise TypeError(f"{said} is a DataFrame but x is not: give {name}.to_numpy()")
        if not (given.index.equals(table.index) and given.columns.equals(table.columns)):
            raise ValueError(f"{said} and x have different labels: align them first ({name}.reindex_like(x))")
        given = given.to_numpy()
    elif is_dataarray(given):
        if not is_dataarray(x):
            raise TypeError(f"{said} is a DataArray but x is not: give its numbers, or x as a DataArray")
        try:
            given = broadcast_by_name(given, x)
        except ValueError as problem:
            raise ValueError(str(problem).replace("where", said, 1)) from None
    raw = np.ma.filled(given.astype(float), np.nan) if isinstance(given, np.ma.MaskedArray) else np.asarray(given)
    if raw.dtype.kind not in "biuf":
        raise TypeError(f"{said} has dtype {raw.dtype}: give numbers (categories as one covariate of 0 and 1 for each)")
    array = np.array(raw, dtype=np.float32 if raw.dtype == np.float32 else np.float64, order="C")
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if array.ndim != len(shape) or any(m not in (1, n) for m, n in zip(array.shape, shape)):
        raise ValueError(
            f"{said} has shape {raw.shape}, x has {shape}: give one value per entry, or a shape that broadcasts to it "
            "(z[:, :, None] for one that does not vary along the last axis)"
        )
    array[~np.isfinite(array)] = np.nan
    if np.isnan(array).all():
        raise ValueError(f"{said} has no finite value: leave it out")
    array.setflags(write=False)
    return array
