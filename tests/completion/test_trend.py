"""The trend in covariates: found from training entries, useless covariates left out."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from corten.completion.trend import fill_covariates, fit_trend
from corten.data.observed import ObservedTensor

SHAPE = (18, 24, 15)


def smooth(rng, width, shape=SHAPE):
    field = gaussian_filter(rng.normal(size=shape), width, mode="wrap")
    return field / field.std()


def station(seed):
    """A smooth field plus twice a rough elevation, with gaps, and a useless smooth covariate."""
    rng = np.random.default_rng(seed)
    elevation = rng.normal(size=(18, 24, 1))
    useless = smooth(rng, 2.0)
    y = 3 * smooth(rng, 3.0) + 2 * elevation + 0.1 * rng.normal(size=SHAPE)
    mask = smooth(rng, 1.5) > -0.5
    return y, mask, {"useless": useless, "elevation": elevation}


def test_the_coefficient_is_found_and_useless_covariates_are_left_out():
    axes = ObservedTensor.of(np.zeros(SHAPE), axis_kinds={0: "ordered", 1: "ordered", 2: "ordered"}).axes
    for seed in range(3):
        y, mask, covariates = station(seed)
        found = fit_trend(y, mask, axes=axes, covariates=covariates, seed=0).choice.values["coefficients"]
        assert list(found) == ["elevation"]
        assert abs(found["elevation"] - 2) < 0.1


def test_the_covariate_of_a_small_skewed_table_is_found():
    """A few large values dominate the errors of one pseudo-gap; several hide enough entries."""
    axes = ObservedTensor.of(np.zeros((40, 12)), axis_kinds={0: "ordered", 1: "unordered"}).axes
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        dust = np.exp(0.3 * np.cumsum(rng.normal(size=(40, 1)), axis=0) + 0.5 * rng.normal(size=(40, 12)))
        y = 0.6 * dust + 0.1 * rng.normal(size=(40, 12))
        covariates = {"dust": dust, "useless": rng.normal(size=(40, 12))}
        mask = rng.random((40, 12)) > 0.25
        found.append(list(fit_trend(y, mask, axes=axes, covariates=covariates, seed=0).choice.values["coefficients"]))
    assert sum(one == ["dust"] for one in found) >= 5


def test_the_trend_depends_on_training_entries_only():
    y, mask, covariates = station(5)
    axes = ObservedTensor.of(np.zeros(SHAPE), axis_kinds={0: "ordered", 1: "ordered", 2: "ordered"}).axes
    first = fit_trend(y, mask, axes=axes, covariates=covariates, seed=0)
    other = fit_trend(np.where(mask, y, 1e6), mask, axes=axes, covariates=covariates, seed=0)
    assert np.array_equal(first.centre, other.centre)
    assert np.allclose(first.backward(first.forward(y)), y, atol=1e-10)
    assert first.centre.shape == (18, 24, 1)  # as compact as the covariates that are used


def test_gaps_of_a_covariate_are_filled_from_its_own_values():
    line = np.linspace(0.0, 1.0, 24)
    gappy = line.copy()
    gappy[5:7] = np.nan
    x = np.random.default_rng(0).normal(size=SHAPE)
    x[0, 0, 0] = np.nan
    kinds = dict.fromkeys(range(3), "ordered")
    observed = fill_covariates(ObservedTensor.of(x, covariates={"line": gappy[:, None]}, axis_kinds=kinds))
    filled = observed.covariates["line"]
    assert np.allclose(filled[0, :, 0], line, atol=0.05)
    assert np.array_equal(filled[0, ~np.isnan(gappy), 0], line[~np.isnan(gappy)])
    assert [one.code for one in observed.choices if one.what == "covariate line"] == ["covariate_filled"]
