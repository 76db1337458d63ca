"""The same data in another unit: bounds times the factor, whatever the factor is."""

import numpy as np
import pytest

import corten


def gappy():
    rng = np.random.default_rng(0)
    t, s = np.linspace(0, 6, 14), np.linspace(0, 3, 7)
    x = np.sin(t)[:, None, None] * np.cos(s)[None, :, None] + np.linspace(0, 1, 4) + 0.1 * rng.normal(size=(14, 7, 4))
    x[3:6, 2:6, 1:4] = np.nan
    x[9:12, 4:7, 0:3] = np.nan
    return x


def bounds(x, factor):
    completion = corten.GaussianProcessCompletion(iterations=20)
    calibration = corten.GapCalibration(4)
    result = corten.complete(factor * x, completion=completion, propensity="uniform", calibration=calibration)
    gap = np.isnan(x)
    return np.stack([result.estimate[gap], result.lower[gap], result.upper[gap]]) / factor


def test_bounds_of_a_gap_fit_do_not_depend_on_the_unit():
    """A constant that is compared with data in their unit would show here."""
    x = gappy()
    first = bounds(x, 1.0)
    width = (first[2] - first[1]).mean()
    for factor in (1e6, 1e-6):
        assert np.abs(bounds(x, factor) - first).max() < 1e-3 * width, factor


def test_the_covariance_that_is_learned_does_not_depend_on_the_unit():
    """The descent enlarges the last bits of doubles to 1e-5 of the parameters, and the learned scale those to 5 %."""
    x = gappy()
    mask, axes = ~np.isnan(x), corten.ObservedTensor.of(x).axes
    one, other = (corten.GaussianProcessCompletion().prepare(f * x, mask, axes, 0).covariance for f in (1.0, 3e5))
    assert repr(one) == repr(other)


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_units_axes_do_not_depend_on_the_unit_either(factor):
    from corten.completion.axes_kinds import standardise

    x = gappy()
    mask = ~np.isnan(x)
    one, other = (standardise(f * x, mask, ("ordered", "unordered", "unordered")).values for f in (1.0, factor))
    assert np.array_equal(one, other)
