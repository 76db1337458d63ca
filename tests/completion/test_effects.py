"""The mean with shrunken effects against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest

from corten.completion.effects import EffectsCompletion, PreparedEffects, _alike, _restricted_likelihood


def design_of(mask: np.ndarray) -> np.ndarray:
    """One column per position of each axis, one row per observed entry."""
    places = np.nonzero(mask)
    return np.hstack([np.eye(length)[place] for length, place in zip(mask.shape, places)])


SETTINGS = [((7, 5), (3.0, 0.3)), ((4, 5, 3), (10.0, 0.0, 1.0)), ((9, 2), (100.0, 30.0))]


@pytest.mark.parametrize("shape, ratios", SETTINGS)
def test_the_fill_solves_the_mixed_model_equations(shape: tuple[int, ...], ratios: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    x, mask = 5 + rng.normal(size=shape), rng.random(shape) < 0.6
    z, each = design_of(mask), np.repeat(ratios, shape)
    covariance = np.eye(len(z)) + (z * each) @ z.T
    ones, y = np.ones(len(z)), x[mask]
    centre = ones @ np.linalg.solve(covariance, y) / (ones @ np.linalg.solve(covariance, ones))
    effects = each * (z.T @ np.linalg.solve(covariance, y - centre))
    wanted = np.full(shape, centre)
    for k, own in enumerate(np.split(effects, np.cumsum(shape)[:-1])):
        wanted += own.reshape([-1 if j == k else 1 for j in range(len(shape))])
    found = PreparedEffects(ratios).fill(np.where(mask, x, np.nan), mask).estimate
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_the_likelihood_is_that_of_contrasts() -> None:
    """Restricted likelihood: the density of contrasts that do not contain the mean, with the scale profiled out."""
    rng = np.random.default_rng(1)
    mask = rng.random((5, 4)) < 0.7
    y, z = rng.normal(size=mask.sum()), design_of(mask)
    contrasts = np.linalg.svd(np.ones((1, y.size)))[2][1:]

    def direct(ratios: tuple[float, float]) -> float:
        covariance = contrasts @ (np.eye(y.size) + (z * np.repeat(ratios, mask.shape)) @ z.T) @ contrasts.T
        c = contrasts @ y
        return float(
            -0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * c.size * np.log(c @ np.linalg.solve(covariance, c))
        )

    alike = _alike(np.flatnonzero(mask), mask.shape)
    pairs = [(0.0, 0.0), (3.0, 0.1), (0.3, 30.0)]
    found = [_restricted_likelihood(y, alike, np.array(ratios)) for ratios in pairs]
    np.testing.assert_allclose(np.diff(found), np.diff([direct(ratios) for ratios in pairs]))


def test_an_axis_without_influence_has_no_effects() -> None:
    rng = np.random.default_rng(2)
    x = 3 * rng.normal(size=(20, 1)) + 0.2 * rng.normal(size=(20, 30))
    mask = rng.random(x.shape) < 0.5
    first, second = EffectsCompletion().prepare(x, mask, (), seed=0).ratios
    assert first >= 30 and second == 0


def test_constant_and_single_values_are_kept() -> None:
    for count in (1, 2, 9):
        mask = np.arange(12).reshape(3, 4) < count
        prepared = EffectsCompletion().prepare(np.full((3, 4), 7.5), mask, (), seed=0)
        np.testing.assert_allclose(prepared.fill(np.full((3, 4), 7.5), mask).estimate, 7.5)
