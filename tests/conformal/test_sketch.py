"""The sketch against the exact quantile: never below, at most 1 % wider, and the same however it was put together."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corten.conformal.diagnostics import effective_sample_size
from corten.conformal.quantile import NeighbourFactor, WeightedScores
from corten.conformal.sketch import NO_CELL, Changes, ScoreSketch, _edges, cells_of

LEVELS = [0.05, 0.3, 0.5, 0.9, 0.99]
finite = st.floats(allow_nan=False, allow_infinity=False)


def rounded_up_to_grid(scores):
    return _edges((cells_of(scores).astype(np.int64) + 1) >> 1)


def sketch_of(scores, logs, tail="upper"):
    sketch = ScoreSketch(tail)
    sketch.add(cells_of(scores), logs)
    return sketch


def draw(seed, n=400, spread=2.0, signed=False):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(n) * np.exp(spread * rng.standard_normal(n))
    return scores if signed else np.abs(scores), spread * rng.standard_normal(n), spread * rng.standard_normal(50)


@given(st.lists(finite, min_size=2, max_size=30))
def test_the_grid_rounds_up_by_at_most_one_percent_and_keeps_order(scores):
    values = np.array(scores)
    rounded = rounded_up_to_grid(values)
    assert (rounded >= values).all()
    normal = (np.abs(values) >= 2.0**-1022) & (np.abs(values) < 1e308)
    assert (rounded[normal] - values[normal] <= 0.01 * np.abs(values[normal])).all()
    assert (rounded_up_to_grid(rounded) == rounded).all()
    assert (cells_of(-values) == -cells_of(values)).all()
    order = np.argsort(values)
    assert (np.diff(cells_of(values[order])) >= 0).all()


@pytest.mark.parametrize("tail", ["upper", "lower"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_cutoffs_are_never_below_the_exact_ones_and_at_most_one_percent_wider(seed, signed, tail):
    scores, logs, tests = draw(seed, signed=signed)
    exact = WeightedScores(scores, logs, tail).cutoffs(tests, LEVELS)
    found = sketch_of(scores, logs, tail).cutoffs(tests, LEVELS)
    there = np.isfinite(exact)
    assert (np.isfinite(found) == there).all() and there.any()
    outward = (found[there] - exact[there]) * (1 if tail == "upper" else -1)
    assert (outward >= 0).all()
    assert (outward <= 0.01 * np.abs(exact[there])).all()
    assert outward.max() > 0  # a sketch that kept the scores themselves would prove nothing


@pytest.mark.parametrize("tail", ["upper", "lower"])
@pytest.mark.parametrize("seed", range(5))
def test_changed_neighbour_weights_give_the_exact_cutoffs_of_the_rounded_scores(seed, tail):
    scores, logs, tests = draw(seed, n=60, spread=1.0, signed=True)
    rng = np.random.default_rng([seed, 1])
    scores[:20] = scores[20:40] * 1.0001  # two neighbours in one bin
    near = np.stack([rng.choice(60, 6, replace=False) for _ in tests])
    near[rng.random(near.shape) < 0.2] = -1
    factor = rng.normal(size=near.shape)
    sign = 1 if tail == "upper" else -1
    rounded = sign * rounded_up_to_grid(sign * scores)
    exact = WeightedScores(rounded, logs, tail).cutoffs(tests, LEVELS, NeighbourFactor(near, factor))
    sketch = sketch_of(scores, logs, tail)
    changes = Changes(
        np.where(near >= 0, cells_of(scores)[near], NO_CELL),
        np.where(near >= 0, np.exp(logs[near] - sketch.shift) * np.expm1(factor), 0.0),
    )
    found = sketch.cutoffs(tests, LEVELS, changes)
    assert (found == exact).all()
    assert (found != sketch.cutoffs(tests, LEVELS)).any()


@given(st.permutations(range(6)), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_parts_merge_to_the_whole_in_any_order_and_grouping(order, seed):
    scores, logs, tests = draw(seed, n=120, spread=3.0)
    logs = logs + np.repeat(np.arange(6) * 40.0, 20)  # parts on very different scales
    parts = [sketch_of(scores[20 * i : 20 * i + 20], logs[20 * i : 20 * i + 20]) for i in order]
    forwards = functools.reduce(ScoreSketch.merge, parts)
    backwards = functools.reduce(lambda done, part: part.merge(done), reversed(parts))
    whole = sketch_of(scores, logs)
    expected = whole.cutoffs(tests + 200, LEVELS)
    for merged in (forwards, backwards):
        assert merged.size == whole.size == 120
        assert merged.effective_sample_size() == pytest.approx(effective_sample_size(logs), rel=1e-12)
        assert (merged.cutoffs(tests + 200, LEVELS) == expected).all()
        a, b = merged._bins.sum(axis=0), whole._bins.sum(axis=0)
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_many_small_weights_are_not_lost():
    # 10^6 weights of 1e-17 beside one of 1: a plain running sum would never move.
    logs = np.r_[0.0, np.full(10**6, np.log(1e-17))]
    sketch = sketch_of(np.ones(logs.size), logs)
    assert sketch._bins.sum() - 1 == pytest.approx(1e-11, rel=1e-4)


def test_ties_empty_sketches_and_dominated_weights():
    nine = sketch_of(np.arange(1.0, 10.0), np.zeros(9))
    assert nine.cutoffs([0.0], 0.9).tolist() == [[9.0]]
    assert nine.cutoffs([0.1], 0.9).tolist() == [[np.inf]]
    assert ScoreSketch().cutoffs([0.0, 1.0], 0.5).tolist() == [[np.inf, np.inf]]
    assert ScoreSketch("lower").merge(ScoreSketch("lower")).cutoffs([0.0], 0.5).tolist() == [[-np.inf]]
    weightless = sketch_of([1.0, 2.0], [-np.inf, -np.inf])
    assert weightless.size == 2 and weightless.cutoffs([0.0], 0.5).tolist() == [[np.inf]]
    # Nearly all weight is taken away: answered with infinity instead of digits that are not there.
    one = sketch_of([1.0, 2.0], [0.0, -40.0])
    gone = Changes(cells_of([[1.0]]), np.array([[-1.0 + 1e-12]]))
    assert one.cutoffs([-60.0], 0.5, gone).tolist() == [[np.inf]]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: cells_of([np.nan]), "NaN"),
        (lambda: ScoreSketch().add(cells_of([1.0]), [np.inf]), "finite"),
        (lambda: ScoreSketch().cutoffs([np.nan], 0.5), "NaN"),
        (lambda: ScoreSketch().cutoffs([0.0], 1.5), "coverage"),
    ],
)
def test_bad_input_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()
