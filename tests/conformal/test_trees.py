"""Trees kept as arrays predict what the library that fitted them predicts, and damaged ones are refused."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from corten.conformal.trees import Trees, fit_trees


@pytest.fixture(scope="module")
def boosted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 5)).astype(np.float32)
    y = np.exp(x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * rng.normal(size=3000))
    with threadpool_limits(1, user_api="openmp"):
        return HistGradientBoostingRegressor(loss="gamma", max_iter=20, early_stopping=False).fit(x, y)


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_the_same_bits_as_the_library(boosted, number):
    trees = Trees.of(boosted)
    x = np.random.default_rng(1).normal(size=(2000, 5)).astype(number)
    # Features next to thresholds, where rounding them would send a row to the other side.
    inner = np.flatnonzero(trees.feature != -1)
    near = trees.threshold[inner].astype(number)
    x[np.arange(len(inner)), trees.feature[inner]] = np.nextafter(near, number(np.inf)) * (inner % 2) + near * (
        1 - inner % 2
    )
    with threadpool_limits(1, user_api="openmp"):
        expected = boosted.predict(x)
    assert np.array_equal(trees.predict(x), expected)


def test_more_leaves_than_bits_are_refused():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1))
    with threadpool_limits(1, user_api="openmp"):
        large = HistGradientBoostingRegressor(max_iter=1, max_leaf_nodes=33, min_samples_leaf=1, early_stopping=False)
        large.fit(x, rng.normal(size=400))
    with pytest.raises(ValueError, match="more than 32 leaves"):
        Trees.of(large)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"left": np.zeros_like(t.left)},  # a circle
        lambda t: {"right": t.right + 10**6},
        lambda t: {"starts": t.starts + 10**6},
        lambda t: {"value": t.value[:-1]},
        lambda t: {"feature": np.where(t.feature < 0, np.nan, t.feature)},
    ],
)
def test_trees_that_would_leave_their_arrays_are_refused(boosted, change):
    trees = Trees.of(boosted)
    with pytest.raises(ValueError, match="trees"):
        replace(trees, **change(trees))


def test_too_few_features_are_refused(boosted):
    with pytest.raises(ValueError, match="features were given"):
        Trees.of(boosted).predict(np.zeros((3, 2)))


def test_fits_in_several_threads_leave_the_filters_of_warnings_alone():
    """The library changes them for the whole process while it fits."""
    x = np.random.default_rng(0).normal(size=(300, 20))

    def fitted(seed):
        return fit_trees(x, np.exp(x[:, 0]), loss="gamma", trees=2, learning_rate=0.1, leaves=4, least=20, seed=seed)

    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(fitted, [0] * 12)
    assert warnings.filters == before
    assert all(np.array_equal(one.value, first.value) for one in others)
