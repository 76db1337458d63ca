"""Properties of the law's parts: couplings, links, neighbourhoods, recipes, and fits at a fixed rank on any engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

import corten
from corten.engine import Engine, Threads, as_engine
from corten.lowrank import TensorTrain, feasible_rank
from corten.propensity import (
    FittedPropensity,
    Linear,
    Logit,
    Neighborhood,
    NoLink,
    Polynomial,
    Probit,
    Product,
    Recipe,
    Sigmoid,
    UniformPropensity,
    Zero,
)
from corten.propensity.neighborhood import resolve
from fits import assert_same_fit
from strategies import costly, masks, seeds, shapes

numbers = st.floats(-2.0, 2.0)
couplings = st.one_of(
    st.builds(Product, numbers),
    st.builds(Linear, numbers),
    st.builds(lambda a, b: Polynomial({(1, 1): a, (2, 0): b, (0, 2): b}), numbers, numbers),
    st.just(Sigmoid()),
    st.just(Zero()),
)


@given(couplings, seeds)
def test_couplings_are_symmetric_and_kernels_see_them(coupling, seed):
    x, y = np.random.default_rng(seed).normal(size=(2, 20))
    value = coupling.value(x, y)
    np.testing.assert_allclose(value, coupling.value(y, x), rtol=1e-12, atol=1e-12)
    terms = coupling.code().terms
    if not isinstance(coupling, Sigmoid):  # what compiled kernels see is the same function
        seen = sum((c * x**a * y**b for c, a, b in terms), np.zeros(20))
        np.testing.assert_allclose(seen, value, rtol=1e-12, atol=1e-12)


@given(st.one_of(st.builds(Logit, numbers), st.just(Probit()), st.just(NoLink())), st.floats(1.0, 30.0), seeds)
def test_links_rise(link, size, seed):
    x = np.sort(size * np.random.default_rng(seed).normal(size=30))
    value = link.value(x)
    assert np.isfinite(value).all() and (np.diff(value) >= 0).all()
    assert link.value(x.astype(np.float32)).dtype == np.float32


@given(shapes((2, 4), longest=5, most=80), st.sampled_from(["adjacent", "cube"]), st.data())
def test_neighbours_are_mutual_and_never_share_a_colour(shape, kind, data):
    periodic = tuple(data.draw(st.booleans()) for _ in shape)
    around = resolve(kind, shape, periodic=periodic)
    assert isinstance(around, Neighborhood)
    every = around.neighbours(np.arange(np.prod(shape)), shape)
    pairs = {(a, int(b)) for a, row in enumerate(every) for b in row if b >= 0}
    assert pairs == {(b, a) for a, b in pairs} and not any(a == b for a, b in pairs)
    assert len(pairs) == (every >= 0).sum()  # nobody is met twice
    colouring = around.colours(shape)
    total = np.zeros((), np.int64)
    for phase in colouring.phases:
        total = np.add.outer(total, phase)
    colours = (total % colouring.number).reshape(-1)
    assert all(colours[a] != colours[b] for a, b in pairs)


@given(shapes((2, 5), longest=6, most=150), st.integers(1, 4), st.floats(0.0, 1.0), seeds)
def test_a_recipe_s_ridge_is_the_one_given_or_within_its_range(shape, rank, ridge, seed):
    point = TensorTrain.random(shape, feasible_rank(shape, rank), seed)
    assert Recipe(ridge=ridge).ridge_of(point) == ridge
    assert 0.01 <= Recipe().ridge_of(point) <= 0.15
    assert Recipe.paper().ridge_of(point) == 0.0


@given(shapes((2, 5), longest=6, most=150), st.sampled_from([0.5, 0.7, 1.0]), st.data())
def test_uniform_odds_are_those_of_the_share_that_was_seen(shape, share, data):
    mask = data.draw(masks(shape, 1, 1))
    law = UniformPropensity().fit(mask, share)
    assert isinstance(law, FittedPropensity) and law.independent
    odds = law.log_odds(mask)
    assert odds.shape == shape and np.ptp(odds) == 0
    np.testing.assert_allclose(law.probability(mask), expit(odds.astype(float)), rtol=1e-6)


@st.composite
def settled(draw: Any) -> tuple[np.ndarray, Any]:
    """A mask large enough that the likelihood has one valley, and a model of rank one or two for it."""
    shape = (24, 20, 16)
    seed = draw(seeds)
    parameter = corten.simulate.block_parameter(shape, 2, seed)
    strength = draw(st.sampled_from([0.0, 1 / 15, 0.1]))
    mask = corten.simulate.ising(parameter, Product(strength), sweeps=20, seed=seed % 1000)
    model = corten.IsingPropensity(strength, rank=draw(st.integers(1, 2)), seed=1, thinning=draw(st.booleans()))
    return mask, model


@costly(6)
@given(settled(), st.sampled_from([0.7, 1.0]), st.integers(2, 5))
def test_fits_are_the_same_bits_with_any_threads_and_as_low_within_1e_4_on_any_device(case, share, threads):
    mask, model = case
    one = model.fit(mask, share, engine=1)
    other = model.fit(mask, share, engine=threads)
    np.testing.assert_array_equal(one.parameter.to_dense(), other.parameter.to_dense())
    assert one.loss == other.loss and one.history == other.history and one.rank == other.rank
    pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")
    device = model.fit(mask, share, engine="jax")
    assert_same_fit(one, device, mask)


@given(st.integers(1, 64))
def test_engines_are_known_by_name_number_or_as_they_are(count):
    asked: Engine = as_engine(count)
    assert asked == Threads(count) and asked.label == f"threads ({count})" and as_engine(asked) is asked
    for refused in (0, -count, f"{count}", 1.5 * count, True):
        with pytest.raises(ValueError, match="engine is"):
            as_engine(refused)
