"""The fitted missingness model: recovery, choices, oracles of its odds, and bad input."""

import numpy as np
import pytest

from corten import ConformalCompleter, simulate
from corten.engine import Threads
from corten.lowrank import TensorTrain
from corten.propensity import (
    BernoulliPropensity,
    IsingPropensity,
    KnownPropensity,
    Linear,
    Product,
    Sigmoid,
    UniformPropensity,
    Zero,
)
from corten.propensity.estimation import effective_training_size
from corten.propensity.fitted import spins_of
from corten.propensity.fitting import open_neighborhoods
from corten.propensity.selection import choose_model, held_out, needed_effective_size, swapped
from slope_checks import check_gradient


@pytest.fixture(scope="module")
def setting():
    parameter = simulate.block_parameter((24, 24, 24), 3, seed=5)
    mask = simulate.ising(parameter, Product(1 / 15), seed=5)
    training = mask & (np.random.default_rng(5).random(mask.shape) < 0.7)
    return parameter, mask, training


def error(fitted, parameter):
    return np.linalg.norm(fitted.parameter.to_dense() - parameter) / np.linalg.norm(parameter)


def test_the_default_recovers_the_parameter_in_few_passes(setting):
    parameter, _, training = setting
    fitted = IsingPropensity(Product(1 / 15), rank=3).fit(training, train_share=0.7)
    assert error(fitted, parameter) < 0.45
    assert fitted.passes <= 60
    assert fitted.rank == (3, 3)
    assert "changed by less than" in fitted.stopped_because


def test_the_thinning_correction_helps_where_neighbours_matter():
    """Averaged over draws, reading hidden entries as their expected spin brings the parameter closer."""
    gains = []
    for seed in range(4):
        parameter = simulate.block_parameter((30, 30, 30), 3, seed=seed)
        mask = simulate.ising(parameter, Product(1 / 15), seed=seed)
        training = mask & (np.random.default_rng(seed).random(mask.shape) < 0.7)
        plain = IsingPropensity(Product(1 / 15), rank=3, thinning=False).fit(training, 0.7)
        thinned = IsingPropensity(Product(1 / 15), rank=3).fit(training, 0.7)
        gains.append(error(plain, parameter) - error(thinned, parameter))
    assert np.mean(gains) > 0


@pytest.mark.parametrize("step", ["barzilai-borwein", "armijo"])
def test_step_rules_agree(setting, step):
    _, _, training = setting
    reference = IsingPropensity(Product(1 / 15), rank=3, thinning=False).fit(training, 0.7)
    other = IsingPropensity(Product(1 / 15), rank=3, thinning=False, step=step).fit(training, 0.7)
    assert other.loss == pytest.approx(reference.loss, rel=2e-4)


def test_the_papers_own_recipe_runs(setting):
    parameter, _, training = setting
    fitted = IsingPropensity.paper(rank=3).fit(training, 0.7)
    assert "relative change" in fitted.stopped_because
    assert error(fitted, parameter) < 0.6


def test_the_objective_passes_the_gradient_check(setting):
    _, _, training = setting
    config = IsingPropensity(Product(1 / 15), rank=2).fit(training, 0.7)
    engine = Threads().mask_pass(spins_of(training), config.model, 0.7)

    def objective(point):
        frame = point.frame()
        loss, contractions = engine.loss_and_contractions(frame)
        return loss, frame.project(contractions)

    point = TensorTrain.random(training.shape, 2, 1)
    point = point * (60.0 / point.norm())
    assert check_gradient(objective, point, seed=0, size=0.5, noise=1e-9).ok

    def wrong(point):
        value, gradient = objective(point)
        return value, gradient * 1.02

    assert not check_gradient(wrong, point, seed=0, size=0.5, noise=1e-9).ok


@pytest.mark.parametrize("coupling", [Linear(0.05), Sigmoid(), Zero(), 0.1])
@pytest.mark.parametrize("link", ["logit", "probit"])
def test_every_coupling_and_link_fits(setting, coupling, link):
    _, mask, training = setting
    fitted = IsingPropensity(coupling, link=link, rank=2).fit(training, 0.7)
    probability = fitted.probability(mask)
    assert np.isfinite(fitted.loss)
    assert ((probability > 0) & (probability < 1)).all()
    assert probability[mask].mean() > probability[~mask].mean()


def test_tucker_structure_bound_and_given_start(setting):
    parameter, _, training = setting
    tucker = IsingPropensity(Product(1 / 15), rank=3, structure="tucker").fit(training, 0.7)
    assert error(tucker, parameter) < 0.45
    bounded = IsingPropensity(Product(1 / 15), rank=3, bound=1.0).fit(training, 0.7)
    assert np.abs(bounded.parameter.to_dense()).max() <= 1.0 + 1e-6
    started = IsingPropensity(Product(1 / 15), rank=3, start=tucker.parameter).fit(training, 0.7)
    assert started.loss == pytest.approx(IsingPropensity(Product(1 / 15), rank=3).fit(training, 0.7).loss, rel=1e-3)


def test_ranks_strengths_and_ridges_are_chosen_on_the_record(setting):
    _, _, training = setting
    fitted = IsingPropensity(ridge="auto").fit(training, 0.7)
    made = {choice.what: choice for choice in fitted.choices}
    assert {"coupling strength", "propensity rank", "ridge"} <= set(made)
    assert made["propensity rank"].taken == "3"
    assert len(made["coupling strength"].candidates) >= 4
    for criterion in ("p-aic", "p-bic"):
        chosen = BernoulliPropensity(criterion=criterion).fit(training, 0.7)
        assert any(c.code == f"rank_by_{criterion.replace('-', '_')}" for c in chosen.choices)


def test_weights_too_few_to_bear_an_interval_lose_against_a_worse_likelihood():
    """Design 3.8: likelihood alone prefers couplings whose weights are useless."""

    class Candidate:
        def __init__(self, score, size):
            self.rank, self.score, self.effective_size = 3, score, size

    taken, choice = choose_model(
        {"1.25": Candidate(0.42, 1), "0.2": Candidate(0.44, 3821)}, 100_000, "coupling strength"
    )
    assert taken == "0.2"
    taken, choice = choose_model({"1.25": Candidate(0.42, 1), "0.2": Candidate(0.44, 12)}, 100_000, "coupling strength")
    assert taken == "0.2"
    assert choice.code == "no_candidate_with_enough_weight"


@pytest.mark.parametrize(("around", "strength"), [("adjacent:0,1", 0.25), ("adjacent", 0.0)])
def test_an_open_neighborhood_finds_who_pulls_on_whom(around, strength):
    """Cells that pull in a plane only, and cells that do not pull; every candidate is on record with its size."""
    parameter = simulate.block_parameter((24, 24, 24), 2, seed=3)
    mask = simulate.ising(parameter, Product(strength), seed=3, neighborhood=around)
    fitted = IsingPropensity(neighborhood="auto", max_rank=4).fit(mask, 1.0)
    choice = fitted.choices[0]
    assert choice.what == "neighborhood and coupling strength"
    if strength:
        assert fitted.neighborhood.name == around
        assert choice.taken.startswith(f"{around}, ")
    else:
        assert fitted.independent
        assert choice.taken == "independent"
    names = [row["neighborhood and coupling strength"] for row in choice.candidates]
    assert names[0] == "independent"
    assert {name.rsplit(", ")[0] for name in names[1:]} == set(open_neighborhoods(mask.shape))
    assert all(row["effective size"] > 0 for row in choice.candidates)
    # the oracle: the rule, written out; turned round, it would take another one
    able = [row for row in choice.candidates if row["effective size"] >= needed_effective_size(int(mask.sum()))]
    best, worst = (extreme(able, key=lambda row: row["penalised loss"]) for extreme in (min, max))
    assert choice.taken == best["neighborhood and coupling strength"] != worst["neighborhood and coupling strength"]


def test_strengths_are_shared_out_among_the_neighbours():
    fitted = IsingPropensity(neighborhood="auto", rank=1).fit(np.random.default_rng(0).random((9, 8, 7)) < 0.5, 1.0)
    names = [row["neighborhood and coupling strength"] for row in fitted.choices[0].candidates]
    assert {"adjacent, 0.15", "adjacent:0,1, 0.225", f"cube, {0.15 * 6 / 26:.3g}"} <= set(names)


def test_an_open_neighborhood_warns_if_no_candidate_has_the_needed_effective_size():
    rng = np.random.default_rng(0)
    field = np.add.outer(np.sin(np.arange(40) / 5), np.cos(np.arange(40) / 7)) + 0.1 * rng.normal(size=(40, 40))
    mask = rng.random(field.shape) < 1 / (1 + np.exp(-np.linspace(9, -9, 40)[:, None]))
    completer = ConformalCompleter("smooth", IsingPropensity(neighborhood="auto", rank=1, ridge=0.01), "random")
    fitted = completer.fit(np.where(mask, field, np.nan))
    choice = next(c for c in fitted.choices if c.what.startswith("neighborhood"))
    sizes = [row["effective size"] for row in choice.candidates]
    assert max(sizes) < needed_effective_size(int(fitted.rounds[0].train.sum()))
    assert choice.code == "no_candidate_with_enough_weight"
    assert choice.candidates[int(np.argmax(sizes))]["neighborhood and coupling strength"] == choice.taken
    assert any("No propensity model that was tried" in said for said in fitted.warnings())


def test_held_out_entries_swap_their_role():
    spins = np.random.default_rng(0).choice(np.array([-1, 0, 1], np.int8), (9, 8, 7))
    held = held_out(spins, seed=1)
    assert np.array_equal(np.sign(held), np.sign(spins))
    other = swapped(held)
    assert np.array_equal(np.abs(held) == 1, np.abs(other) == 2)
    assert np.array_equal(np.abs(held) == 2, np.abs(other) == 1)


def test_known_parameters_give_the_same_odds_dense_or_as_a_train():
    tt = TensorTrain.random((5, 6, 7), 2, 3) * 5.0
    mask = np.random.default_rng(0).random((5, 6, 7)) < 0.5
    for periodic in ((), (True, False, True)):
        for coupling in (Product(0.2), Sigmoid(), Zero()):
            dense = KnownPropensity(tt.to_dense(), coupling).fit(mask, periodic=periodic)
            train = KnownPropensity(tt, coupling).fit(mask, periodic=periodic)
            np.testing.assert_allclose(dense.log_odds(mask), train.log_odds(mask), rtol=1e-4, atol=1e-4)


def test_uniform_weights_are_all_alike():
    mask = np.random.default_rng(0).random((5, 6)) < 0.3
    log_weights = UniformPropensity().fit(mask, train_share=1.0).log_weights(mask)
    assert np.ptp(log_weights) < 1e-6
    probability = UniformPropensity().fit(mask, train_share=1.0).probability(mask)
    assert probability.mean() == pytest.approx(mask.mean(), abs=1e-6)


def test_the_domain_is_neither_a_gap_nor_a_neighbour(setting):
    _, _, training = setting
    domain = np.ones(training.shape, bool)
    domain[:, :8] = False
    fitted = IsingPropensity(Product(1 / 15), rank=2).fit(training, 0.7, domain=domain)
    flipped = training ^ ~domain
    assert fitted.loss == IsingPropensity(Product(1 / 15), rank=2).fit(flipped, 0.7, domain=domain).loss


def test_a_slice_that_is_never_observed_keeps_the_parameter_finite():
    training = np.random.default_rng(1).random((12, 12, 12)) < 0.5
    training[3] = False
    training[:, 5] = True
    fitted = IsingPropensity(rank=3).fit(training, 1.0)
    assert np.abs(fitted.parameter.to_dense()).max() < 50


def test_same_seed_same_bits_for_any_number_of_threads(setting):
    _, mask, training = setting
    one = IsingPropensity(Product(1 / 15), rank=3).fit(training, 0.7, engine=1)
    four = IsingPropensity(Product(1 / 15), rank=3).fit(training, 0.7, engine=4)
    assert np.array_equal(one.log_weights(mask), four.log_weights(mask))


def test_effective_size_of_flat_weights_is_the_count(setting):
    _, _, training = setting
    fitted = UniformPropensity().fit(training)
    engine = Threads().mask_pass(spins_of(training), fitted.model, 0.7)
    assert effective_training_size(engine, fitted.parameter) == pytest.approx(training.sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": "many"}, "rank"),
        ({"ridge": -1.0}, "ridge"),
        ({"criterion": "aic"}, "criterion"),
        ({"step": "newton"}, "step"),
        ({"structure": "cp"}, "structure"),
        ({"start": "zero"}, "start"),
        ({"bound": 0}, "bound"),
        ({"neighborhood": "auto", "coupling": 0.1}, "neighborhood"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        IsingPropensity(**options)


def test_bad_masks_are_named():
    with pytest.raises(TypeError, match="boolean"):
        BernoulliPropensity(rank=1).fit(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="two are needed"):
        BernoulliPropensity(rank=1).fit(np.zeros(3, bool))
    with pytest.raises(ValueError, match="rank"):
        BernoulliPropensity(rank=9).fit(np.random.default_rng(0).random((3, 4)) < 0.5)
    with pytest.raises(ValueError, match="shape"):
        KnownPropensity(np.zeros((3, 4))).fit(np.zeros((3, 5), bool))
