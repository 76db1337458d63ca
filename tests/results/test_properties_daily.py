"""Properties of the daily job, for any small tensor: fill, update, verify, and the adaptive level."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corten
from corten.conformal.trees import Trees

SHAPE = (6, 5, 8)


@cache
def fitted():
    x = np.random.default_rng(0).normal(size=SHAPE).cumsum(2)
    x[np.random.default_rng(1).random(SHAPE) < 0.3] = np.nan
    calibration = corten.GapCalibration(rounds=4, drawn=0)
    kinds = dict.fromkeys(range(3), "ordered")
    return corten.ConformalCompleter("smooth", "constant", calibration).fit(x, axis_kinds=kinds)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), length=st.integers(2, 12), share=st.floats(0.1, 0.9))
def test_fill_keeps_observed_values_and_every_interval_holds_its_estimate(seed, length, share):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*SHAPE[:2], length))
    x[rng.random(x.shape) < share] = np.nan
    if np.isnan(x).all():
        return
    result = fitted().fill(x)
    seen = ~np.isnan(x)
    assert np.array_equal(result.estimate[seen], x[seen]) and np.isfinite(result.estimate).all()
    assert (result.lower <= result.estimate).all() and (result.estimate <= result.upper).all()
    wider = result.at(0.95)
    assert (wider.lower <= result.lower).all() and (wider.upper >= result.upper).all()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), parts=st.integers(1, 4), target=st.sampled_from([None, 0.9]))
def test_late_values_are_counted_once_in_any_parts_and_order(seed, parts, target, tmp_path_factory):
    rng = np.random.default_rng(seed)
    late = rng.normal(size=SHAPE)
    log = tmp_path_factory.mktemp("log") / "scores.jsonl"
    part = rng.integers(parts + 1, size=SHAPE)
    for k in [*rng.permutation(parts + 1), rng.integers(parts + 1)]:
        scores = fitted().verify(np.where(part <= k, late, np.nan), log, label="x", target=target)
    whole = fitted().intervals(0.9).verify(late)
    assert scores.entries == whole.entries == fitted().observed.n_missing
    assert scores.coverage == whole.coverage
    again = corten.ScoreLog.read(log)
    assert again.over_time() == scores.over_time() and again.by_block() == scores.by_block()
    steps = again.adaptive(0.9).steps
    assert steps == (len(again.by_step()) if target else 0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), window=st.integers(3, 16))
def test_an_update_keeps_the_last_slices(seed, count, window):
    rng = np.random.default_rng(seed)
    new = rng.normal(size=(*SHAPE[:2], count))
    new[rng.random(new.shape) < 0.3] = np.nan
    if count > window or np.count_nonzero(~np.isnan(new)) < 2:
        return
    moved = fitted().update(new, axis=2, window=window)
    both = np.concatenate([fitted().observed.values, new], axis=2)[..., -window:]
    assert np.array_equal(moved.observed.values, both, equal_nan=True)
    assert np.isfinite(moved.scores).all() and moved.entries.max() < both.size
    assert not np.isnan(both.reshape(-1)[moved.entries]).any()


@settings(max_examples=50, deadline=None)
@given(outside=st.lists(st.floats(0, 1), min_size=1, max_size=60), rate=st.floats(0.001, 1))
def test_the_level_moves_by_exactly_what_the_errors_say(outside, rate):
    adaptive = corten.AdaptiveCoverage(0.9, rate).after_all(outside)
    assert adaptive.present == pytest.approx(0.1 + rate * sum(0.1 - one for one in outside), abs=1e-9)
    assert 0 < adaptive.next_coverage < 1 and adaptive.steps == len(outside)


def test_one_leaf_is_a_constant():
    trees = Trees(0.5, *(np.array([one]) for one in (0, -1, 0.0, 0, 0, 0.25)))
    np.testing.assert_allclose(trees.predict(np.zeros((3, 2))), np.exp(0.75))
