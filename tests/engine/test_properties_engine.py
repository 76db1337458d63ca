"""Properties of the passes and of the fitted law: axes, order, threads, cuts and devices change nothing but names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from test_engine import COUPLINGS

import corten
from corten.conformal import CalibratedScores, ExactIsingWeights
from corten.engine.passes import MaskPass, Model
from corten.engine.residuals import ResidualPass
from corten.lowrank import TensorTrain, feasible_rank
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve
from strategies import costly, masks, seeds, shapes

DEVICE_SHAPES = [(4, 5), (3, 1, 4), (5, 3, 4), (2, 3, 2, 3)]  # every shape is a program to compile
FLOAT32 = 2e-5  # kernels compute in float32


@st.composite
def models(draw: Any, shape: tuple[int, ...]) -> tuple[Any, str, str, tuple[bool, ...]]:
    """A coupling, link, neighbourhood and periodic axes for a shape."""
    coupling = COUPLINGS[draw(st.sampled_from(sorted(COUPLINGS)))]
    link = draw(st.sampled_from(["logit", "probit", "zero"]))
    kind = draw(st.sampled_from(["adjacent", "cube"])) if len(shape) < 5 else "adjacent"
    return coupling, link, kind, tuple(draw(st.booleans()) for _ in shape)


def model_of(shape: tuple[int, ...], given_model: tuple[Any, str, str, tuple[bool, ...]]) -> Model:
    coupling, link, kind, periodic = given_model
    around, code = resolve(kind, shape, periodic=periodic), coupling.code()
    return Model(code.kind, code.terms, as_link(link).kind, around.offsets, around.periodic)


def spins_like(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array([-2, -1, -1, -1, 0, 1, 1, 2], np.int8), shape)


def full(b: np.ndarray) -> TensorTrain:
    """The tensor as a train of full rank: its tangent space is everything, so gradients come whole."""
    return TensorTrain.from_dense(b, feasible_rank(b.shape, 10_000))


def gradient(passes: Any, train: TensorTrain) -> tuple[float, np.ndarray]:
    frame = train.frame()
    loss, contractions = passes.loss_and_contractions(frame)
    return loss, frame.project(contractions).to_tt().to_dense()


@given(shapes((2, 5), longest=4, most=60), seeds, st.sampled_from([0.3, 0.7, 1.0]), st.data())
def test_permuting_axes_permutes_loss_gradient_and_odds(shape, seed, share, data):
    asked = data.draw(models(shape))
    turn = tuple(data.draw(st.permutations(range(len(shape)))))
    b, spins = np.random.default_rng(seed).normal(size=shape), spins_like(shape, seed)
    moved_shape = tuple(shape[k] for k in turn)
    moved = (*asked[:3], tuple(asked[3][k] for k in turn))
    one = MaskPass(spins, model_of(shape, asked), share)
    other = MaskPass(np.ascontiguousarray(spins.transpose(turn)), model_of(moved_shape, moved), share)
    loss, slope = gradient(one, full(b))
    moved_loss, moved_slope = gradient(other, full(b.transpose(turn)))
    assert moved_loss == pytest.approx(loss, rel=FLOAT32, abs=1e-4)
    np.testing.assert_allclose(moved_slope, slope.transpose(turn), atol=FLOAT32 * max(1, np.abs(slope).max()))
    odds, moved_odds = one.log_odds(full(b).cores), other.log_odds(full(b.transpose(turn)).cores)
    np.testing.assert_allclose(moved_odds, odds.transpose(turn), atol=FLOAT32 * max(1, np.abs(odds).max()))


@given(shapes((2, 5), longest=4, most=60), seeds, st.sampled_from([0.5, 0.8, 0.95]), st.data())
def test_permuting_axes_permutes_weights_and_cutoffs(shape, seed, level, data):
    asked = data.draw(models(shape))
    coupling, link, kind, periodic = asked
    turn = tuple(data.draw(st.permutations(range(len(shape)))))
    mask = data.draw(masks(shape))
    rng = np.random.default_rng(seed)
    b, scores, hidden = rng.normal(size=shape), rng.exponential(size=shape), mask & (rng.random(shape) < 0.6)

    def answer(b: np.ndarray, mask: np.ndarray, hidden: np.ndarray, scores: np.ndarray, periodic: Any) -> Any:
        law = corten.KnownPropensity(b, coupling, link, kind).fit(mask, 0.7, periodic=periodic)
        entries, missing = np.flatnonzero(hidden), np.flatnonzero(~mask)
        weights = ExactIsingWeights(
            law.log_weights(mask), shape=b.shape, calibration=entries, neighbours=law.neighbours, pair=law.pair
        )
        cuts = np.full(b.size, np.nan)
        if entries.size and missing.size:
            calibrated = CalibratedScores("absolute", scores.reshape(-1)[entries], entries, weights)
            cuts[missing] = calibrated.intervals(missing, 0.0, 1.0, level)[1][0]
        return weights.log_weight(np.arange(b.size)).reshape(b.shape), cuts.reshape(b.shape)

    logs, cuts = answer(b, mask, hidden, scores, periodic)
    moved_logs, moved_cuts = answer(
        *(np.ascontiguousarray(array.transpose(turn)) for array in (b, mask, hidden, scores)),
        tuple(periodic[k] for k in turn),
    )
    np.testing.assert_allclose(moved_logs, logs.transpose(turn), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(moved_cuts, cuts.transpose(turn))


@costly(4)
@given(shapes((2, 4), longest=5, most=100), seeds, st.data())
def test_a_fit_of_the_reversed_mask_with_reversed_ranks_is_the_reversed_fit(shape, seed, data):
    mask = data.draw(masks(shape, 2, 2))
    rank = feasible_rank(shape, [data.draw(st.integers(1, 3)) for _ in shape[1:]])
    start = TensorTrain.random(shape, rank, seed)
    start = start * (np.sqrt(start.size) / max(start.norm(), 1e-3))

    def fit(m: np.ndarray, r: tuple[int, ...], s: TensorTrain) -> Any:
        return corten.IsingPropensity(0.1, rank=r, start=s, thinning=False, seed=1).fit(m, 0.7)

    # Rounding a train to its rank goes from one end to the other, so two descents from afar may come to rest in two
    # valleys: they begin where one has come to rest.
    rest = fit(mask, rank, start).parameter
    plain, turned = fit(mask, rank, rest), fit(mask.transpose().copy(), rank[::-1], rest.reversed())
    assert turned.rank == plain.rank[::-1]
    assert turned.history[0] == pytest.approx(plain.history[0], rel=1e-4, abs=1e-4)
    assert turned.loss == pytest.approx(plain.loss, rel=1e-3, abs=1e-3 * mask.size)


@given(shapes((2, 5), longest=7, most=400), seeds, st.data())
def test_threads_change_no_bit_and_cuts_nothing_beyond_1e_6(shape, seed, data):
    asked = data.draw(models(shape))
    spins = spins_like(shape, seed)
    train = TensorTrain.random(shape, feasible_rank(shape, 2), seed)
    train = train * (np.sqrt(train.size) / max(train.norm(), 1e-3))
    frame, model = train.frame(), model_of(shape, asked)
    cut = {"slab": data.draw(st.integers(1, 5)), "tile": data.draw(st.integers(1, 5))}
    first, many, pieces = (
        MaskPass(spins, model, 0.7, **options) for options in ({"threads": 1}, {"threads": 3}, {"threads": 2} | cut)
    )
    loss, contractions = first.loss_and_contractions(frame)
    same_loss, same = many.loss_and_contractions(frame)
    assert same_loss == loss and all(np.array_equal(a, b) for a, b in zip(same, contractions))
    cut_loss, near = pieces.loss_and_contractions(frame)
    assert cut_loss == pytest.approx(loss, rel=1e-6, abs=1e-6)
    size = max(1.0, *(np.abs(part).max() for part in contractions))
    for a, b in zip(near, contractions):
        np.testing.assert_allclose(a, b, atol=1e-6 * size)
    np.testing.assert_array_equal(many.log_odds(train.cores), first.log_odds(train.cores))
    np.testing.assert_allclose(pieces.log_odds(train.cores), first.log_odds(train.cores), rtol=1e-6, atol=1e-6)
    assert many.effective_size(train.cores) == first.effective_size(train.cores)


@given(shapes((2, 5), longest=7, most=400), seeds, st.data())
def test_completion_passes_do_not_mind_threads_or_what_lies_outside_the_mask(shape, seed, data):
    mask = data.draw(masks(shape))
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    frame = TensorTrain.random(shape, feasible_rank(shape, 2), seed).frame()
    loss, parts = ResidualPass(values, mask, 1).loss_and_contractions(frame)
    other_loss, other = ResidualPass(np.where(mask, values, np.nan), mask, 3).loss_and_contractions(frame)
    assert loss == other_loss and all(np.array_equal(a, b) for a, b in zip(parts, other))


@costly(4)
@given(st.sampled_from(DEVICE_SHAPES), seeds, st.sampled_from([0.7, 1.0]), st.data())
def test_the_engine_changes_nothing_beyond_1e_4(shape, seed, share, data):
    pytest.importorskip("jax", reason="needs JAX: pip install 'corten[gpu]'")
    from corten.engine.accelerator import Accelerator

    asked = data.draw(models(shape))
    spins = spins_like(shape, seed)
    train = TensorTrain.random(shape, feasible_rank(shape, 2), seed)
    train = train * (np.sqrt(train.size) / max(train.norm(), 1e-3))
    model = model_of(shape, asked)
    threads, device = MaskPass(spins, model, share), Accelerator().mask_pass(spins, model, share)
    loss, contractions = threads.loss_and_contractions(train.frame())
    device_loss, found = device.loss_and_contractions(train.frame())
    assert device_loss == pytest.approx(loss, rel=1e-5, abs=1e-4)
    size = max(1.0, *(np.abs(part).max() for part in contractions))
    for a, b in zip(found, contractions):
        np.testing.assert_allclose(a, b, atol=1e-4 * size)
    odds = threads.log_odds(train.cores)
    np.testing.assert_allclose(device.log_odds(train.cores), odds, atol=1e-4 * max(1.0, np.abs(odds).max()))


@given(shapes((2, 4), longest=6, most=150), seeds, st.data())
def test_gibbs_draws_do_not_mind_threads_or_interruptions(shape, seed, data):
    asked = data.draw(models(shape))
    coupling, link, kind, periodic = asked
    parameter = np.random.default_rng(seed).normal(size=shape)
    options = {"link": link, "neighborhood": kind, "periodic": periodic, "seed": seed % 1000, "burn_in": 0}
    one = corten.simulate.ising(parameter, coupling, sweeps=6, samples=2, thin=3, threads=1, **options)
    other = corten.simulate.ising(parameter, coupling, sweeps=6, samples=3, thin=2, threads=3, **options)
    np.testing.assert_array_equal(one[1], other[2])


@given(shapes((2, 4), longest=5, most=100), seeds, st.data())
def test_probability_and_weights_say_the_same_and_the_outside_pulls_on_nobody(shape, seed, data):
    coupling, link, kind, periodic = data.draw(models(shape))
    mask = data.draw(masks(shape))
    rng = np.random.default_rng(seed)
    domain = rng.random(shape) < 0.8
    parameter = rng.normal(size=shape)
    law = corten.KnownPropensity(parameter, coupling, link, kind).fit(mask, 1.0, domain=domain, periodic=periodic)
    odds, chance = law.log_odds(mask), law.probability(mask)
    np.testing.assert_allclose(chance, expit(odds.astype(float)), rtol=1e-6)
    np.testing.assert_array_equal(law.log_weights(mask), -odds)
    flipped = np.where(domain, mask, ~mask)
    np.testing.assert_array_equal(law.log_odds(flipped), odds)
