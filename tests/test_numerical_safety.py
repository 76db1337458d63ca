"""Extreme odds, degenerate ranks, separable masks, data without variance: finite, right and unclipped.

Warnings are errors in this suite, so an overflow that NumPy notices fails too.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_engine import COUPLINGS, build, dense_log_odds, dense_loss

import corten
from corten.conformal import OddsWeights, WeightedScores
from corten.engine.passes import MaskPass
from corten.lowrank import TensorTrain, feasible_rank

SHAPE = (6, 5, 4)


def ramp(largest, shape=SHAPE):
    """A rank-one parameter from -largest to largest along the first axis, as a train and as an array."""
    factors = [np.linspace(-largest, largest, shape[0])[None, :, None]]
    train = TensorTrain((*factors, *(np.ones((1, n, 1)) for n in shape[1:])))
    return train, train.to_dense()


@pytest.mark.parametrize("largest", [1e2, 1e3, 1e4])
@pytest.mark.parametrize("dense", [True, False])
def test_odds_up_to_ten_thousand_are_not_clipped(largest, dense):
    train, b = ramp(largest)
    mask = np.random.default_rng(0).random(SHAPE) < 0.5
    law = corten.KnownPropensity(b if dense else train).fit(mask)
    np.testing.assert_allclose(law.log_odds(mask), b, rtol=1e-6)
    np.testing.assert_allclose(law.log_weights(mask), -b, rtol=1e-6)
    chance = law.probability(mask)
    assert np.isfinite(chance).all() and ((chance >= 0) & (chance <= 1)).all()
    np.testing.assert_allclose(chance[:3] + chance[:2:-1], 1.0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(COUPLINGS))
@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize("q", [0.5, 0.9999, 1.0])
def test_loss_and_gradient_are_finite_and_right_at_huge_odds(name, link, q):
    """Scaled until the largest |eta| is 1e4, whatever the coupling; against float64 formulas in logarithms."""
    coupling = COUPLINGS[name]
    scale = 1.0
    while True:
        tt, spins, around, engine = build((4, 3, 5), coupling, link, q=q, scale=scale)
        eta = dense_log_odds(tt.to_dense(), spins, around, coupling, link)
        if np.abs(eta).max() >= 1e4 or scale > 1e5:
            break
        scale *= 1.5
    loss, contractions = engine.loss_and_contractions(tt.frame())
    assert np.isfinite(loss) and all(np.isfinite(part).all() for part in contractions)
    log_p, log_not = -np.logaddexp(0, -eta), -np.logaddexp(0, eta)
    rest = np.logaddexp(log_not, np.log1p(-q) + log_p) if q < 1 else log_not
    codes = spins.ravel()
    exact = -np.sum(np.log(q) + log_p[codes == 1]) - np.sum(rest[codes == -1])
    assert loss == pytest.approx(exact, rel=1e-4)
    if scale < 2:
        assert exact == pytest.approx(dense_loss(tt.to_dense(), spins, around, coupling, link, q))


def test_cutoffs_of_huge_weights_are_those_of_the_heaviest_entries():
    logs = np.array([-1e4, 0.0, 1e4, 1e4])
    cut = WeightedScores([4.0, 3.0, 2.0, 1.0], logs).cutoffs([1e4, -1e4, 2e4], [0.3, 0.9])
    np.testing.assert_array_equal(cut, [[1.0, 1.0, np.inf], [np.inf, 2.0, np.inf]])
    assert OddsWeights(logs).log_weight(np.array([0, 3])).tolist() == [-1e4, 1e4]


@pytest.mark.parametrize("calibration", ["random", "cross"])
@pytest.mark.parametrize("score", ["absolute", "signed"])
@pytest.mark.parametrize("coupling", [corten.Zero(), corten.Product(1e-4), corten.Product(-1e-4), corten.Linear(0.3)])
def test_a_whole_completion_at_huge_odds(coupling, score, calibration):
    rng = np.random.default_rng(3)
    parameter = rng.choice([-1e4, -30.0, 0.0, 30.0, 1e4], size=(8, 7, 6))
    x = rng.normal(size=(8, 7, 6))
    x[rng.random(x.shape) < 0.4] = np.nan
    completer = corten.ConformalCompleter("smooth", corten.KnownPropensity(parameter, coupling), calibration, score)
    fitted = completer.fit(x)
    for result in fitted.intervals([0.5, 0.9]):
        assert not np.isnan(result.lower).any() and not np.isnan(result.upper).any()
        assert (result.lower <= result.upper).all()
    assert 1 <= fitted.calibrated.effective_sample_size() <= len(fitted.scores)
    assert "nan" not in str(fitted.weights.report()).lower()
    assert np.isfinite(fitted.intervals(0.5).draws(2)).all()


def test_gibbs_at_huge_fields_is_decided():
    _, b = ramp(1e4)
    for coupling in ("zero", corten.Product(1e-4), corten.Sigmoid()):
        mask = corten.simulate.ising(b, coupling, sweeps=4, seed=1)
        np.testing.assert_array_equal(mask, b > 0)


@pytest.mark.parametrize("shape", [(9, 1), (1, 9), (1, 1, 30), (2, 1, 15), (2, 2, 2, 4), (1, 3, 1, 4, 2)])
@pytest.mark.parametrize("structure", ["tensor-train", "tucker"])
def test_the_largest_and_the_smallest_rank_of_any_shape_fit(shape, structure):
    from corten.lowrank import feasible_tucker_rank

    mask = np.random.default_rng(1).random(shape) < 0.6
    mask.reshape(-1)[:2] = True, False
    clip = feasible_rank if structure == "tensor-train" else feasible_tucker_rank
    for rank in (1, clip(shape, 100)):
        law = corten.IsingPropensity(0.1, rank=rank, structure=structure).fit(mask, 0.7)
        assert np.isfinite(law.log_odds(mask)).all() and np.isfinite(law.loss)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("model", [corten.BernoulliPropensity(rank=1), corten.IsingPropensity(0.1, rank=2)])
def test_a_ridge_keeps_separable_masks_finite(axis, model):
    """A slice that is never observed, one always, and a mask that a rank-one parameter separates without error."""
    rng = np.random.default_rng(2)
    gone = rng.random((9, 8, 7)) < 0.6
    index = [slice(None)] * 3
    index[axis] = 2
    gone[tuple(index)] = False
    index[axis] = 4
    gone[tuple(index)] = True
    halves = np.broadcast_to(np.moveaxis((np.arange(gone.shape[axis]) > 3)[:, None, None], 0, axis), gone.shape).copy()
    for mask in (gone, halves):
        law = model.fit(mask, 1.0)
        b = law.parameter.to_dense()
        assert np.isfinite(b).all() and np.abs(b).max() < 40
        odds = law.log_odds(mask)
        assert odds[mask].min() > odds[~mask].max() or mask is gone


def test_without_a_ridge_the_separable_parameter_grows():
    """What the ridge is for: the same fit without it ends larger, limited by its passes alone."""
    mask = np.zeros((9, 8, 7), bool)
    mask[4:] = True
    sizes = []
    for ridge in (0.02, 0.0):
        law = corten.IsingPropensity("zero", rank=1, ridge=ridge, thinning=False).fit(mask, 1.0)
        sizes.append(float(np.abs(law.parameter.to_dense()).max()))
        assert np.isfinite(sizes[-1])
    assert sizes[1] > 1.5 * sizes[0]


@pytest.mark.parametrize("seen", [0.02, 0.98])
def test_masks_with_next_to_nothing_in_them(seen):
    mask = np.random.default_rng(4).random((10, 9, 8)) < seen
    for model in (corten.BernoulliPropensity(), corten.IsingPropensity(), corten.UniformPropensity()):
        law = model.fit(mask, 0.7)
        assert np.isfinite(law.log_odds(mask)).all()


@pytest.mark.parametrize("completion", ["tucker", "tensor-train", "smooth", "gaussian-process", "stack"])
@pytest.mark.parametrize("calibration", ["random", corten.GapCalibration(rounds=2), corten.CrossCalibration(folds=2)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_data_without_variance_are_filled_with_themselves(completion, calibration, dtype):
    levels = (0.0, -7e8) if dtype == "f8" else (3.0, 1e-30)
    for level in levels if calibration == "random" else levels[dtype == "f8" :][:1]:
        x = np.full((7, 6, 5), level, dtype)
        x[np.random.default_rng(5).random(x.shape) < 0.3] = np.nan
        options = {"propensity": "uniform", "calibration": calibration}
        result = corten.complete(x, 0.8, completion=completion, **options)
        near = 1e-6 * abs(level) or 1e-30  # zeros have no scale of their own
        np.testing.assert_allclose(result.estimate, level, atol=near)
        assert (result.lower <= level + near).all() and (level - near <= result.upper).all()
        finite = np.isfinite(result.width)
        assert finite.all() and (result.width[finite] <= 10 * near).all()


@pytest.mark.parametrize("completion", ["tucker", "smooth", "gaussian-process"])
def test_a_small_spread_on_a_large_level_is_not_lost(completion):
    rng = np.random.default_rng(6)
    shape = (10, 9, 8)
    field = np.sin(np.add.outer(np.add.outer(np.arange(10) / 3, np.arange(9) / 4), np.arange(8) / 5))
    x = np.where(rng.random(shape) < 0.7, field, np.nan)
    options = {"completion": completion, "propensity": "uniform", "calibration": "random"}
    plain = corten.complete(x, 0.8, **options)
    moved = corten.complete(1e9 + 1e-3 * x, 0.8, **options)
    np.testing.assert_allclose((np.asarray(moved.estimate) - 1e9) / 1e-3, plain.estimate, atol=0.1)


def test_rank_deficient_starts_are_left():
    """A start whose cores span less than their rank still fits as well as a good one."""
    mask = corten.simulate.bernoulli(corten.simulate.block_parameter((8, 9, 7), 2, seed=1), seed=2)
    good = corten.IsingPropensity("zero", rank=2).fit(mask, 1.0)
    poor = TensorTrain.random(mask.shape, 1, 3) + TensorTrain.zeros(mask.shape, 1)
    fitted = corten.IsingPropensity("zero", rank=2, start=poor).fit(mask, 1.0)
    assert fitted.loss <= good.loss * 1.02
    nothing = corten.IsingPropensity("zero", rank=2, start=TensorTrain.zeros(mask.shape, 2)).fit(mask, 1.0)
    assert np.isfinite(nothing.parameter.to_dense()).all()


def test_a_train_share_next_to_one_is_no_trouble():
    tt, spins, _, engine = build((5, 4, 6), COUPLINGS["product"], q=1.0)
    near = MaskPass(spins, engine.model, 0.9999)
    one, other = (p.loss_and_contractions(tt.frame())[0] for p in (engine, near))
    assert one == pytest.approx(other, rel=1e-2)


def test_residuals_too_small_to_be_squared_end_a_process_fit():
    """Constant but for one entry that the transform takes away: a long run of properties divided by zero here."""
    x = np.full((1, 1, 1, 5, 3), 2.5)
    x[0, 0, 0, [0, 4, 4], [2, 0, 2]] = np.nan
    x[0, 0, 0, 1, 0] = 7.0
    completer = corten.ConformalCompleter(
        "stack", corten.BernoulliPropensity(rank=1), corten.GapCalibration(rounds=2), score="signed", seed=2,
        transform="standardise:axis_1", climatology="axis_0",
    )  # fmt: skip
    assert np.isfinite(completer.fit(x, periodic=(0, 1, 3)).intervals(0.8).estimate).all()
