"""Properties of the other doors: tables, the accessor and the imputer give the numbers of `complete`."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import xarray as xr
from hypothesis import given

import corten
from strategies import Gappy, costly, gappy, levels

QUICK = {"completion": "smooth", "propensity": "uniform", "calibration": "random"}


@costly(6)
@given(gappy(orders=(2, 2)), levels)
def test_every_door_leads_to_the_same_numbers(case: Gappy, level: float) -> None:
    kinds = {0: "unordered", 1: "unordered"}
    names = [[f"{letter}{k}" for k in range(length)] for letter, length in zip("ab", case.shape)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many of these are too small for finite intervals
        plain = corten.complete(case.x, level, axis_kinds=kinds, **QUICK)
        table = corten.complete(pd.DataFrame(case.x, *names), level, **QUICK)
        array = xr.DataArray(case.x, dims=("a", "b"), coords=dict(zip("ab", names)))
        same = array.corten.complete(level, **QUICK)
        imputer = corten.sklearn.ConformalImputer(level, standardise=False, **QUICK)
        filled = imputer.fit_transform(case.x)
        bounds = imputer.intervals(case.x)
    for name, own in (("estimate", filled), ("lower", bounds[0]), ("upper", bounds[1])):
        wanted = getattr(plain, name)
        for found in (getattr(table, name).to_numpy(), getattr(same, name).to_numpy(), own):
            np.testing.assert_array_equal(found, wanted)
    assert table.estimate.index.tolist() == names[0] and table.estimate.columns.tolist() == names[1]
