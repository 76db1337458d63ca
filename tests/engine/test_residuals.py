"""Passes over data against dense formulas, in dense and in coordinate form."""

import numpy as np
import pytest

from benchmarks.dense import dense_contractions
from corten.engine.residuals import ResidualPass, residual_box
from corten.lowrank import TensorTrain
from corten.lowrank.descent import spectral_start

SHAPES = [(6, 7), (5, 4, 6), (3, 4, 2, 5), (1, 5, 4), (4, 1, 5), (4, 5, 1)]


def build(shape, seed=0, share=0.4):
    rng = np.random.default_rng(seed)
    tt = TensorTrain.random(shape, min(2, *shape), seed)
    values = rng.normal(size=shape).astype(np.float32)
    return tt, values, rng.random(shape) < share


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sparse", [False, True])
def test_squared_error_and_gradient(shape, sparse):
    tt, values, mask = build(shape)
    passes = ResidualPass(values, mask, sparse=sparse)
    loss, contractions = passes.loss_and_contractions(tt.frame())
    residual = np.where(mask, tt.to_dense() - values, 0.0)
    assert loss == pytest.approx(0.5 * np.sum(residual**2), rel=1e-5)
    for have, want in zip(contractions, dense_contractions(tt.frame(), residual)):
        np.testing.assert_allclose(have, want, atol=2e-5 * np.abs(residual).max() * 10)


@pytest.mark.parametrize("sparse", [False, True])
def test_values_outside_the_mask_are_never_read(sparse):
    tt, values, mask = build((5, 4, 6))
    poisoned = np.where(mask, values, np.nan).astype(np.float32)
    clean = ResidualPass(values, mask, sparse=sparse).loss_and_contractions(tt.frame())
    dirty = ResidualPass(poisoned, mask, sparse=sparse).loss_and_contractions(tt.frame())
    assert clean[0] == dirty[0]
    for a, b in zip(clean[1], dirty[1]):
        assert np.array_equal(a, b)


def test_threads_change_no_bit():
    tt, values, mask = build((40, 9, 11))
    results = [ResidualPass(values, mask, threads=t).loss_and_contractions(tt.frame()) for t in (1, 2, 4)]
    for loss, contractions in results[1:]:
        assert loss == results[0][0]
        for a, b in zip(contractions, results[0][1]):
            assert np.array_equal(a, b)


def test_tensors_that_may_only_be_read_use_the_kernel_of_those_in_memory():
    tt, values, mask = build((5, 4, 6))
    loss, _ = ResidualPass(values, mask, sparse=False).loss_and_contractions(tt.frame())
    compiled = list(residual_box.signatures)
    values.flags.writeable = mask.flags.writeable = False
    assert ResidualPass(values, mask, sparse=False).loss_and_contractions(tt.frame())[0] == loss
    assert list(residual_box.signatures) == compiled and compiled


def test_spectral_start_comes_close_to_tt_svd():
    rng = np.random.default_rng(3)
    signal = TensorTrain.random((20, 18, 16), 3, 1)
    noisy = (signal * (40.0 / signal.norm())).to_dense() + 0.1 * rng.normal(size=(20, 18, 16))
    best = TensorTrain.from_dense(noisy, 3)
    passes = ResidualPass(noisy.astype(np.float32), np.ones(noisy.shape, bool))
    guess = TensorTrain.random(noisy.shape, 3, 7)
    found = spectral_start(lambda f: passes.contractions_of_data(f)[1], guess, iterations=8)
    assert (found - best).norm() < 0.02 * best.norm()
    assert passes.passes == 8
