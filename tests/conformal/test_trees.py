"""Trees kept as arrays predict what the library that fitted them predicts, and damaged ones are refused."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from corten.conformal.trees import Trees


@pytest.fixture(scope="module")
def boosted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 5)).astype(np.float32)
    y = np.exp(x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * rng.normal(size=3000))
    with threadpool_limits(1, user_api="openmp"):
        return HistGradientBoostingRegressor(loss="gamma", max_iter=20, early_stopping=False).fit(x, y)


def test_the_same_bits_as_the_library(boosted):
    x = np.random.default_rng(1).normal(size=(2000, 5)).astype(np.float32)
    with threadpool_limits(1, user_api="openmp"):
        expected = boosted.predict(x)
    assert np.array_equal(Trees.of(boosted).predict(x), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"left": np.zeros_like(t.left)},  # a circle
        lambda t: {"right": t.right + 10**6},
        lambda t: {"starts": t.starts + 10**6},
        lambda t: {"value": t.value[:-1]},
    ],
)
def test_trees_that_would_leave_their_arrays_are_refused(boosted, change):
    trees = Trees.of(boosted)
    with pytest.raises(ValueError, match="trees"):
        replace(trees, **change(trees))


def test_too_few_features_are_refused(boosted):
    with pytest.raises(ValueError, match="features were given"):
        Trees.of(boosted).predict(np.zeros((3, 2)))
