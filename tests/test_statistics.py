"""The statistics the method stands on: the paper's estimator is met, and weights repair what missingness shifts.

Seeds are fixed. The bounds are those of the design and, for mis-coverage, several times the spread between draws.
"""

from pathlib import Path

import numpy as np
import pytest

import corten
from corten.evidence import metrics
from corten.simulate import paper_setting

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.mark.parametrize(("size", "allowed"), [(40, 0.282), (60, 0.219), (100, 0.188)])
def test_the_fit_is_no_worse_than_the_authors_code(size, allowed):
    path = DATA / f"ising_{size}.npz"
    if not path.exists():
        pytest.skip(f"the paper's draw {path.name} is not in shared/data beside the repository")
    with np.load(path) as draw:
        truth, training = draw["parameter"].astype(np.float64), draw["training"]
    model = corten.IsingPropensity(coupling=corten.Product(1 / 15), rank=3)
    law = model.fit(training, train_share=0.7)
    error = np.linalg.norm(law.parameter.to_dense() - truth) / np.linalg.norm(truth)
    assert error <= allowed and law.passes <= 60


ORDERED = dict.fromkeys(range(3), "ordered")  # said, so that the kinds of axes are not searched for


@pytest.mark.parametrize("model", ["ising", "bernoulli"])
def test_weights_repair_adversarial_noise(model):
    weighted, unweighted = [], []
    coupling = corten.Product(1 / 15) if model == "ising" else corten.Zero()
    for seed in range(2):
        draw = paper_setting(40, 3, model, "adversarial", seed)
        for propensity, found in (
            (corten.IsingPropensity(coupling=coupling, rank=3), weighted),
            (corten.UniformPropensity(), unweighted),
        ):
            completer = corten.ConformalCompleter(corten.TuckerCompletion(3), propensity, "random", seed=seed)
            result = completer.fit(draw.observed, axis_kinds=ORDERED).intervals(0.9)
            found.append(metrics.miscoverage(draw.data, result))
    assert np.mean(weighted) < 2.0, weighted
    assert np.mean(unweighted) > 9.0, unweighted


def test_unweighted_intervals_are_right_where_missingness_is_blind():
    draw = paper_setting(40, 3, "bernoulli", "constant", 7)
    mask = np.random.default_rng(3).random(draw.data.shape) < 0.6
    x = np.where(mask, draw.data, np.nan)
    completer = corten.ConformalCompleter(corten.TuckerCompletion(3), "uniform", "random", seed=3)
    # 7,700 calibration and 25,600 test entries: one standard deviation of the difference is 0.4 %.
    assert abs(metrics.coverage(draw.data, completer.fit(x).intervals(0.9)) - 0.9) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rank"), [("bernoulli", 9), ("ising", 5)])
def test_the_ridge_that_grows_with_the_parameters_beats_a_small_one(model, rank):
    """Where entries bear many parameters a ridge of 0.02 over-fits, and too small a rank is chosen."""
    coupling = corten.Product(1 / 15) if model == "ising" else corten.Zero()
    grown, small = [], []
    for seed in (41, 42):
        truth = corten.simulate.block_parameter((40, 40, 40), rank, seed)
        mask = (
            corten.simulate.ising(truth, 1 / 15, sweeps=201, burn_in=200, thin=1, samples=1, seed=seed)
            if model == "ising"
            else corten.simulate.bernoulli(truth, seed=seed)
        ).reshape(truth.shape)
        training = mask & (np.random.default_rng(seed).random(mask.shape) < 0.7)
        for ridge, errors in (("auto", grown), (0.02, small)):
            law = corten.IsingPropensity(coupling=coupling, ridge=ridge).fit(training, train_share=0.7)
            errors.append(np.linalg.norm(law.parameter.to_dense() - truth) / np.linalg.norm(truth))
    assert np.mean(grown) < np.mean(small) - 0.01, (grown, small)
