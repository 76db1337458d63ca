"""The additive model, and the choice of the propensity model by evidence, from the training mask alone."""

from __future__ import annotations

import numpy as np
import pytest

import corten
from corten.engine import as_engine
from corten.options import as_propensity
from corten.propensity import AdditivePropensity, AutoPropensity, BernoulliPropensity, FittedPropensity
from corten.propensity.additive import additive_train, frame_of, independent, tally
from corten.propensity.evidence import _by_evidence, _Scored, expected_effective_size
from corten.propensity.fitted import spins_of


def row_dependent(shape: tuple[int, ...], seed: int, width: float = 1.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-odds that differ by row, a mask drawn from them and its training part."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.linspace(-width, width, shape[0])).reshape(-1, *(1,) * (len(shape) - 1))
    eta = np.broadcast_to(1.0 + rows, shape)
    mask = rng.random(shape) < 1 / (1 + np.exp(-eta))
    return eta, mask, mask & (rng.random(shape) < 0.7)


def effective_share(law: FittedPropensity, mask: np.ndarray, train: np.ndarray) -> float:
    """Effective sample size of the calibration entries, as a share of their number."""
    logs = law.log_weights(mask)[mask & ~train].astype(np.float64)
    weight = np.exp(logs - logs.max())
    return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))


@pytest.mark.parametrize("shape", [(5, 6), (4, 5, 6), (3, 4, 5, 2), (1, 7)])
def test_an_additive_train_is_the_sum_and_its_pass_gives_sums_over_slices(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    effects = [rng.normal(size=n) for n in shape]
    train = additive_train(0.3, effects)
    eta = 0.3 + sum(np.ix_(*effects)[k] for k in range(len(shape)))
    np.testing.assert_allclose(train.to_dense(), eta, atol=1e-12)
    spins, q = spins_of(rng.random(shape) < 0.5), 0.7
    loss, found = as_engine("auto").mask_pass(spins, independent(shape), q).loss_and_contractions(frame_of(train))
    p = 1 / (1 + np.exp(-eta))
    assert loss == pytest.approx(-np.log(np.where(spins == 1, q * p, 1 - q * p)).sum(), rel=1e-5)
    slope = np.where(spins == 1, -(1 - p), q * p * (1 - p) / (1 - q * p))
    for k, part in enumerate(found):
        others = tuple(j for j in range(len(shape)) if j != k)
        np.testing.assert_allclose(part[0 if k == 0 else 1, :, 0], slope.sum(axis=others), atol=1e-4)


def test_counts_leave_out_what_is_held_out_or_outside() -> None:
    spins = np.array([[1, -1, 0], [2, -2, 1]], np.int8)
    counted = tally(spins)
    assert (counted.training, counted.entries) == (2, 3)
    np.testing.assert_array_equal(counted.slices[0], [2, 1])
    np.testing.assert_array_equal(counted.slices[1], [1, 1, 1])


def test_the_additive_model_finds_row_effects_in_a_thinned_mask() -> None:
    eta, mask, train = row_dependent((30, 20, 20), seed=0)
    law = AdditivePropensity().fit(train, 0.7)
    assert law.rank == (2, 2)
    assert law.independent
    found = law.log_odds(mask)
    # Without the thinning in the likelihood the level is too low by more than one.
    assert abs(found.mean() - eta.mean()) < 0.3
    assert np.sqrt(np.mean((found - eta) ** 2)) < 0.45
    assert np.corrcoef(found.ravel(), eta.ravel())[0, 1] > 0.95


def test_an_axis_without_effects_is_shrunken_to_nothing() -> None:
    rng = np.random.default_rng(3)
    mask = rng.random((30, 30, 20)) < 0.6
    assert AdditivePropensity().fit(mask, 1.0).log_odds(mask).std() < 0.1


@pytest.mark.parametrize("shape, missing", [((14, 12, 16), 0.35), ((40, 60), 0.1), ((8, 9, 10, 7), 0.5)])
def test_missing_completely_at_random_is_a_constant(shape: tuple[int, ...], missing: float) -> None:
    """Took the constant on all of 30 masks that were tried: a false alarm is rarer than 1 in 10."""
    rng = np.random.default_rng(1)
    mask = rng.random(shape) >= missing
    train = mask & (rng.random(shape) < 0.7)
    law = corten.propensity.AutoPropensity(max_rank=4).fit(train, 0.7)
    assert law.choices[0].taken == "constant"
    assert {row["model"] for row in law.choices[0].candidates} >= {"constant", "additive", "low rank"}
    assert effective_share(law, mask, train) == pytest.approx(1.0)


def test_row_dependent_missingness_is_additive_with_useful_weights() -> None:
    eta, mask, train = row_dependent((40, 60), seed=2)
    law = AutoPropensity(max_rank=3).fit(train, 0.7)
    assert law.choices[0].taken == "additive"
    assert effective_share(law, mask, train) > 0.3
    assert np.corrcoef(law.log_odds(mask).ravel(), eta.ravel())[0, 1] > 0.85


def test_a_low_rank_pattern_that_slices_do_not_show_is_low_rank() -> None:
    rng = np.random.default_rng(4)
    signs = [np.where(np.arange(n) % 2 == 0, 1.0, -1.0) for n in (40, 50)]
    eta = 1.5 * signs[0][:, None] * signs[1][None, :]
    train = rng.random(eta.shape) < 0.7 / (1 + np.exp(-eta))
    assert AutoPropensity(max_rank=3).fit(train, 0.7).choices[0].taken == "low rank"


def test_coupled_masks_keep_their_coupling() -> None:
    mask = corten.simulate.ising(corten.simulate.block_parameter((24, 24, 24), 2, seed=3), corten.Product(0.15), seed=1)
    law = AutoPropensity(max_rank=3).fit(mask, 1.0)
    assert law.choices[0].taken == "Ising"
    assert not law.independent


def test_a_richer_model_needs_two_standard_errors() -> None:
    rng = np.random.default_rng(0)
    base, noise = np.full(50, 10.0), rng.normal(size=50)
    noise = (noise - noise.mean()) / noise.std(ddof=1)  # one standard error of the sum is the root of 50
    names = []
    for errors in (1.5, 2.5):
        richer = base - errors / np.sqrt(50) + noise
        taken, rows = _by_evidence([_Scored("constant", None, base), _Scored("additive", None, richer)])
        names.append(taken[-1].name)
        assert rows[1]["gain"] / rows[1]["standard error"] == pytest.approx(errors)
    assert names == ["constant", "additive"]


def test_the_expected_size_sees_weights_that_training_entries_do_not_show() -> None:
    """A model that follows the training mask too closely has good weights there and useless ones elsewhere."""
    rng = np.random.default_rng(5)
    mask = rng.random((40, 60)) < 0.9
    train = mask & (rng.random(mask.shape) < 0.7)
    close = BernoulliPropensity(rank=12, ridge=1e-3).fit(train, 0.7)
    runner, spins = as_engine("auto"), spins_of(train)
    seen = runner.mask_pass(spins, close.model, 0.7).effective_size(close.parameter.cores)
    count = np.count_nonzero(mask & ~train)
    assert seen > 5 * expected_effective_size(close, runner, spins, 0.7)
    plain = corten.UniformPropensity().fit(train, 0.7)
    assert expected_effective_size(plain, runner, spins, 0.7) == pytest.approx(count, rel=0.15)


def test_weights_with_a_small_effective_size_fall_back_to_a_simpler_model(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, train = row_dependent((40, 60), seed=2)
    sizes = iter([3.0, 1000.0])
    monkeypatch.setattr("corten.propensity.evidence.expected_effective_size", lambda *given: next(sizes))
    monkeypatch.setattr("corten.propensity.evidence.MAX_LIMITED_SHARE", -1.0)
    law = AutoPropensity(max_rank=2).fit(train, 0.7)
    assert law.choices[0].taken == "constant"
    assert "additive model has a lower loss" in law.choices[0].because


def test_the_choice_reads_the_training_mask_alone() -> None:
    """Values and calibration entries cannot change it: validity depends on this."""
    _, mask, _ = row_dependent((40, 60), seed=6)
    rng = np.random.default_rng(0)
    taken = []
    for _ in range(2):
        x = np.where(mask, rng.normal(size=mask.shape), np.nan)
        fitted = corten.ConformalCompleter("smooth", calibration="random").fit(x)
        taken.append(fitted.propensity.parameter.to_dense())
        train = fitted.rounds[0].train
        again = AutoPropensity().fit(train, 0.7)
        np.testing.assert_array_equal(taken[-1], again.parameter.to_dense())
    np.testing.assert_array_equal(*taken)


def test_names_of_models() -> None:
    assert as_propensity("auto") == AutoPropensity()
    assert as_propensity("constant") == as_propensity("uniform") == corten.UniformPropensity()
    assert as_propensity("additive") == AdditivePropensity()
    assert as_propensity("ising") == corten.IsingPropensity()
    with pytest.raises(ValueError, match="additive"):
        as_propensity("addtive")


def test_a_domain_and_a_short_axis() -> None:
    rng = np.random.default_rng(0)
    domain = np.ones((20, 30), bool)
    domain[:5] = False
    mask = (rng.random(domain.shape) < 0.6) & domain
    law = AutoPropensity(max_rank=2).fit(mask, 1.0, domain=domain)
    assert law.domain is domain
    assert law.probability(mask)[domain].mean() == pytest.approx(mask.sum() / domain.sum(), abs=0.02)
    assert AutoPropensity().fit(rng.random((1, 40)) < 0.6, 1.0).choices[0].taken == "constant"


def test_fits_are_saved_with_the_choice(tmp_path) -> None:
    _, mask, _ = row_dependent((20, 30), seed=1)
    x = np.where(mask, np.random.default_rng(0).normal(size=mask.shape), np.nan)
    for propensity in ("auto", AdditivePropensity()):
        fitted = corten.ConformalCompleter("smooth", propensity, "random").fit(x)
        fitted.save(tmp_path / "fit.corten", overwrite=True)
        again = corten.load(tmp_path / "fit.corten")
        assert again.completer.propensity == propensity
        np.testing.assert_array_equal(again.intervals(0.8).lower, fitted.intervals(0.8).lower)
