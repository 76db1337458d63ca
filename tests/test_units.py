"""The same data in another unit: bounds times the factor, whatever the factor is."""

import numpy as np
import pytest

import corten


def gappy():
    rng = np.random.default_rng(0)
    t, s = np.linspace(0, 6, 24), np.linspace(0, 3, 9)
    x = np.sin(t)[:, None, None] * np.cos(s)[None, :, None] + np.linspace(0, 1, 6) + 0.1 * rng.normal(size=(24, 9, 6))
    x[5:11, 2:8, 1:4] = np.nan
    x[15:19, 4:9, 0:3] = np.nan
    return x


def bounds(x, factor, completion):
    result = corten.complete(factor * x, completion=completion, propensity="uniform", calibration="gaps")
    gap = np.isnan(x)
    return np.stack([result.estimate[gap], result.lower[gap], result.upper[gap]]) / factor


def test_bounds_of_a_gap_fit_do_not_depend_on_the_unit():
    """Without the rounding in `standardise` bounds move by 3 to 5 % of a width for the last three factors."""
    x = gappy()
    completion = corten.GaussianProcessCompletion()
    first = bounds(x, 1.0, completion)
    width = (first[2] - first[1]).mean()
    for factor, tolerance in ((2.0**20, 1e-9), (1e6, 1e-3), (1e-6, 1e-3), (3.0, 1e-3)):
        moved = np.abs(bounds(x, factor, completion) - first).max() / width
        assert moved < tolerance, (factor, moved)


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_units_axes_do_not_depend_on_the_unit_either(factor):
    from corten.completion.axes_kinds import standardise

    x = gappy()
    mask = ~np.isnan(x)
    one, other = (standardise(f * x, mask, ("ordered", "unit", "unit")).values for f in (1.0, factor))
    assert np.array_equal(one, other)
