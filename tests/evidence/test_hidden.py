"""Error and coverage on hidden entries: against slow versions, and out of sample."""

from types import SimpleNamespace

import numpy as np
import pytest

from corten.calibration.task import Round
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import UnitScale
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.data.axes import Axis
from corten.data.observed import ObservedTensor
from corten.evidence.hidden import hidden_coverage, hidden_error, linear_along


def fit_of(values, rounds, residuals, log_weights=None, score="absolute", axis_kinds=None):
    """A fit that hid `rounds` (lists of flat entries) of a full tensor, with the given residuals."""
    values = np.asarray(values, float)
    entries = np.concatenate(rounds)
    logs = np.zeros(len(entries)) if log_weights is None else np.asarray(log_weights, float)
    weights = PooledWeights(entries, logs, np.zeros(values.size))
    scores = np.asarray(residuals, float) if score == "signed" else np.abs(residuals)
    scored, sizes = CalibratedScores(score, scores, entries, weights), tuple(map(len, rounds))
    split = CalibratedSplit(scored, values, UnitScale(), round_sizes=sizes)
    masks = [np.isin(np.arange(values.size), one).reshape(values.shape) for one in rounds]
    kinds = axis_kinds or {0: "ordered", 1: "ordered"}
    return SimpleNamespace(
        calibrated=split, entries=entries, residuals=np.asarray(residuals, float), carried=False,
        rounds=tuple(Round(~hidden, hidden) for hidden in masks), observed=ObservedTensor.of(values, axis_kinds=kinds),
    )  # fmt: skip


@pytest.mark.parametrize("uneven", [False, True])
def test_linear_interpolation_is_that_of_numpy(uneven):
    rng = np.random.default_rng(0)
    values, train = rng.normal(size=(5, 9, 4)), rng.random((5, 9, 4)) < 0.6
    at = np.sort(rng.random(9)) if uneven else np.arange(9.0)
    entries = np.flatnonzero(~train)
    found = linear_along(values, train, entries=entries, k=1, axis=Axis("t", 9, at if uneven else None))
    for entry, one in zip(entries, found):
        i, j, k = np.unravel_index(entry, values.shape)
        known = train[i, :, k]
        wanted = np.interp(at[j], at[known], values[i, known, k]) if known.any() else values[train].mean()
        assert one == pytest.approx(wanted)


def test_a_periodic_axis_is_interpolated_across_its_end():
    x, train = np.array([[9.0, 2.0, 3.0, 4.0]]), np.array([[False, True, True, True]])
    ring = Axis("lon", 4, np.array([0.0, 90.0, 180.0, 270.0]), periodic=True)
    assert linear_along(x, train, entries=np.array([0]), k=1, axis=ring) == pytest.approx([3.0])  # halfway from 4 to 2


def test_error_is_weighted_and_beside_the_best_plain_method():
    lat, time = np.meshgrid(np.arange(12.0) ** 2, np.arange(10.0), indexing="ij")
    values = lat + 5 * time  # linear along axis_1 only
    hidden = np.flatnonzero((lat > 0) & (lat < 121) & (time % 9 > 0))[::3]
    residuals = np.where(np.arange(len(hidden)) < 4, 1.0, 3.0)
    logs = np.where(np.arange(len(hidden)) < 4, np.log(5.0), 0.0)
    found = hidden_error(fit_of(values, [hidden], residuals, logs))
    assert found.baseline == "interpolation along axis_1" and found.baseline_error == pytest.approx(0.0, abs=1e-9)
    assert found.error == pytest.approx((20.0 + 3.0 * (len(hidden) - 4)) / (20.0 + len(hidden) - 4))
    unordered = hidden_error(fit_of(values, [hidden], residuals, axis_kinds=dict.fromkeys((0, 1), "unordered")))
    assert unordered.baseline == "means of axis_0"
    assert hidden_error(fit_of(values, [hidden[:5]], residuals[:5])) is None  # too few to say anything


def test_means_are_plain_methods_beside_interpolation():
    """Noise around means of the rows: the mean of a row is nearer than the neighbours in it."""
    rng = np.random.default_rng(0)
    values = 10.0 * np.arange(8)[:, None] + rng.normal(size=(8, 30))
    hidden = rng.permutation(values.size)[:100]
    assert hidden_error(fit_of(values, [hidden], np.ones(100))).baseline == "means of axis_0"


def test_coverage_is_out_of_sample():
    """Rounds of different difficulty: cutoffs from all scores would cover 90 %."""
    rounds = [np.arange(10), np.arange(20, 30)]
    easy_and_hard = np.concatenate([np.arange(1.0, 11.0), np.arange(101.0, 111.0)])
    found = hidden_coverage(fit_of(np.zeros((5, 6)), rounds, easy_and_hard), 0.9)
    assert (found.found, found.parts, found.kind) == (0.5, 2, "rounds")
    assert found.low < 0.2 and found.high > 0.8


@pytest.mark.parametrize("score", ["absolute", "signed"])
def test_coverage_of_rounds_against_a_slow_version(score):
    rng = np.random.default_rng(1)
    rounds = [np.sort(rng.choice(200, 30, replace=False)) for _ in range(4)]
    residuals, logs = rng.normal(size=120), rng.normal(size=120)
    found = hidden_coverage(fit_of(np.zeros((20, 10)), rounds, residuals, logs, score), 0.8)
    part, inside = np.repeat(np.arange(4), 30), np.zeros(120, bool)
    for k in range(120):
        others = part != part[k]
        scores, weight = (np.abs(residuals) if score == "absolute" else residuals), np.exp(logs)

        def cutoff(sign, level, k=k, others=others, scores=scores, weight=weight):
            total = weight[others].sum() + weight[k]
            for one in np.sort(sign * scores[others]):
                if weight[others][sign * scores[others] <= one].sum() >= level * total:
                    return sign * one
            return sign * np.inf

        if score == "absolute":
            inside[k] = scores[k] <= cutoff(1, 0.8)
        else:
            inside[k] = cutoff(-1, 0.9) <= scores[k] <= cutoff(1, 0.9)
    assert found.found == pytest.approx(np.average(inside, weights=np.exp(logs)))


def test_one_split_is_tested_by_folds():
    found = hidden_coverage(fit_of(np.zeros((20, 10)), [np.arange(200)], np.arange(200.0)), 0.9)
    assert found.kind == "folds" and found.parts == 5 and found.found == pytest.approx(0.9, abs=0.03)
