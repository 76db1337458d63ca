"""New data filled by a fit of a Gaussian process: the conditional mean, solved with dense matrices."""

from functools import reduce

import numpy as np
import pytest
import xarray as xr

import corten
from corten.completion import spectral_solver

SHAPE = (9, 8)


def days(first, count, seed):
    """A smooth field with noise and rectangles missing, at hourly times."""
    rng = np.random.default_rng(seed)
    lat, lon, t = np.ogrid[: SHAPE[0], : SHAPE[1], first : first + count]
    x = 5 + np.sin(lat / 3 + t / 5) + np.cos(lon / 3 - t / 6) + 0.2 * rng.normal(size=(*SHAPE, count))
    for _ in range(count):
        i, j, k = (int(rng.integers(0, n - 2)) for n in x.shape)
        x[i : i + 3, j : j + 3, k : k + 2] = np.nan
    time = np.datetime64("2020-01-01", "ns") + np.arange(first, first + count) * np.timedelta64(1, "h")
    return xr.DataArray(x, {"time": time}, ("lat", "lon", "time"))


def dense_mean(x, covariance):
    """The mean of the field given the observed entries, by one solve with their covariance matrix."""
    frequencies = [np.pi * np.arange(n) / n for n in x.shape]
    cosines = []
    for n, f in zip(x.shape, frequencies):
        rows = np.cos(np.outer(f, np.arange(n) + 0.5))
        cosines.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    basis = reduce(np.kron, cosines)
    field = basis.T @ (covariance.spectrum(frequencies).reshape(-1, 1) * basis)
    known = np.isfinite(x).ravel()
    y = x.ravel()[known]
    own = field[np.ix_(known, known)] + covariance.noise * np.eye(known.sum())
    mean = field[:, known] @ np.linalg.solve(own, (y - y.mean()) / y.std())
    return (y.mean() + y.std() * mean).reshape(x.shape)


@pytest.fixture(scope="module")
def fitted():
    completer = corten.ConformalCompleter(
        corten.GaussianProcessCompletion(iterations=2000), "constant", corten.GapCalibration(4, drawn=0)
    )
    return completer.fit(days(0, 10, 0))


@pytest.mark.parametrize("count", [10, 13])
def test_new_data_are_filled_by_the_conditional_mean_of_the_covariance_of_the_fit(fitted, monkeypatch, count):
    monkeypatch.setattr(spectral_solver, "SETTLED", (0.0, 0.0))  # iterate until nothing changes
    new = days(10, count, 1)
    missing = np.isnan(new.values)
    found = fitted.fill(new).estimate.values
    expected = dense_mean(new.values, fitted.completion.covariance)
    np.testing.assert_allclose(found[missing], expected[missing], atol=1e-3)
    assert np.std(expected[missing]) > 0.5  # far more than the tolerance
    # With entries of the new data only: the fit gives the covariance, not its values.
    assert np.array_equal(found[~missing], new.values[~missing])


def test_a_fill_that_stops_by_its_noise_is_near_the_conditional_mean(fitted):
    new = days(10, 12, 2)
    missing = np.isnan(new.values)
    off = (fitted.fill(new).estimate.values - dense_mean(new.values, fitted.completion.covariance))[missing]
    noise = np.sqrt(fitted.completion.covariance.noise) * np.nanstd(new.values)
    assert np.sqrt(np.mean(off**2)) < 0.1 * noise
