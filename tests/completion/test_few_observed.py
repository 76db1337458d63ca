"""Means from few observed entries against dense matrices and against iterations."""

import numpy as np
import pytest

from corten.completion.covariance import Component, Covariance
from corten.completion.few_observed import MAX_LOOKUPS_PER_ENTRY, covariance_of, has_few_observed, mean_of_few
from corten.completion.gaussian_process import SpectralPrior
from priors import conditional_mean, to_field


def prior_of(shape, *, kind="ordered"):
    ordered = [k for k, n in enumerate(shape) if n > 1]
    none = (np.nan,) * len(shape)
    component = Component(1.3, (tuple(ordered),), smoothness=(1.2,), lengths=(2.5,) * len(shape), own=none)
    covariance = Covariance((component,), 0.02)
    return SpectralPrior.of(covariance, (kind,) * len(shape), shape=shape, correlations={}, on_host=True)


def functions(prior, shape):
    """All functions of the basis at all entries, (modes, entries): fields of unit coefficients."""
    units = np.eye(prior.spectrum.size).reshape(-1, *prior.spectrum.shape)
    return np.stack([to_field(prior.in_double(), one).ravel() for one in units])


@pytest.mark.parametrize("shape", [(9,), (6, 7), (5, 1, 4), (3, 4, 2, 5)])
def test_covariance_is_that_of_the_basis(shape):
    prior, rng = prior_of(shape), np.random.default_rng(0)
    at = np.unravel_index(rng.permutation(np.prod(shape))[:8], shape)
    rows = functions(prior, shape)[:, np.ravel_multi_index(at, shape)]
    expected = rows.T @ (prior.spectrum.reshape(-1, 1) * rows)
    assert covariance_of(prior, at) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_mean_is_the_conditional_mean():
    shape = (6, 7, 4)
    prior, rng = prior_of(shape).in_double(), np.random.default_rng(1)
    kept = rng.random(shape) < 0.1
    values = np.where(kept, rng.standard_normal(shape), 0.0)
    rows = functions(prior, shape)
    whole = rows.T @ (prior.spectrum.reshape(-1, 1) * rows)
    seen = np.flatnonzero(kept)
    system = whole[np.ix_(seen, seen)] + float(prior.noise) * np.eye(len(seen))
    expected = whole[:, seen] @ np.linalg.solve(system, values.ravel()[seen])
    assert mean_of_few(prior, values, kept.astype(float)).ravel() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_iterations_come_to_the_same_mean():
    shape = (150, 200)  # fast transforms, followed by empty positions
    prior, rng = prior_of(shape), np.random.default_rng(2)
    kept = (rng.random(shape) < 0.003).astype(np.float32)
    values = kept * rng.standard_normal(shape).astype(np.float32)
    assert has_few_observed(prior, kept)
    iterated = conditional_mean(prior, values, kept, np.zeros(shape, np.float32), 2000)
    assert np.abs(mean_of_few(prior, values, kept) - iterated).max() < 0.02


def test_a_long_axis_takes_no_matrix_of_its_length():
    shape = (2, 300_000)
    prior, kept = prior_of(shape), np.zeros(shape, np.float32)
    kept[:, [100, 102, 200_000]] = 1
    assert has_few_observed(prior, kept)
    mean = mean_of_few(prior, kept, kept)  # a square matrix would take 720 GB
    assert mean[:, [100, 102, 200_000]] == pytest.approx(1, abs=0.1)
    assert abs(mean[:, 150_000]).max() < 1e-3


def test_nothing_observed_is_the_mean():
    prior = prior_of((20, 30))
    assert not mean_of_few(prior, np.zeros((20, 30), np.float32), np.zeros((20, 30), np.float32)).any()


def test_used_only_where_it_is_faster():
    shape = (100, 100)
    kept = np.zeros(shape)
    most = int(np.sqrt(MAX_LOOKUPS_PER_ENTRY * kept.size / 4))
    kept.flat[:most] = 1
    assert has_few_observed(prior_of(shape), kept)
    assert not has_few_observed(prior_of(shape, kind="periodic"), kept)
    kept.flat[: most + 1] = 1
    assert not has_few_observed(prior_of(shape), kept)
