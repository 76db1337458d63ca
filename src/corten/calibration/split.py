"""The split of the paper (Algorithm CTC): each observed entry trains with the same probability, the rest calibrate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from corten.calibration.task import MaskedTensor, Outcome, Plan, Round, Task
from corten.completion.protocol import Fill, Prepared
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import LeverageScale, Scale, UnitScale
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.conformal.training_scale import training_scale
from corten.conformal.weights import ExactIsingWeights, OddsWeights, Weights
from corten.data.observed import ObservedTensor
from corten.lowrank import TensorTrain
from corten.propensity import AutoPropensity, FittedPropensity

__all__ = ["SplitCalibration", "calibrate_round"]

SEED_STREAM = 0x5B117
# Peak memory of the fit, and of intervals and their file, at a million entries (tests/engine/test_peak_memory.py).
FIT_BYTES_PER_ENTRY = 165
INTERVAL_BYTES_PER_ENTRY, INTERVAL_BYTES_PER_MISSING, CHUNK_ENTRIES = 70, 275, 1 << 20


@dataclass(frozen=True)
class SplitCalibration:
    """Hide observed entries at random, once; the estimate uses the training entries only.

    Parameters
    ----------
    train_share : float, default 0.7
        The probability that an observed entry trains, between 0 and 1. The other entries calibrate.

    Raises
    ------
    ValueError
        If `train_share` is not between 0 and 1; in a fit, if no entry would train or calibrate.

    Notes
    -----
    With true weights the intervals have the nominal coverage, on average over the missing entries (equation
    weighted-conformal-coverage-guarantee of the paper).

    Examples
    --------
    >>> SplitCalibration(train_share=0.7).train_share
    0.7
    """

    train_share: float = 0.7
    pooled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.train_share < 1:
            raise ValueError(f"train_share is {self.train_share}: give a number between 0 and 1, such as 0.7")

    def plan(self, observed: MaskedTensor, seed: int) -> Plan:
        """Draw the round: every observed entry trains with probability `train_share`."""
        mask = np.asarray(observed.mask, dtype=bool)
        # An own stream, so that a mask drawn by the user with the same seed does not determine the split.
        kept = np.random.default_rng((seed, SEED_STREAM)).random(mask.shape) < self.train_share
        train = mask & kept
        hidden = mask & ~kept
        if not train.any() or not hidden.any():
            raise ValueError(
                f"{int(mask.sum())} observed entries cannot be split into training and calibration entries: "
                "give more observed entries"
            )
        return Plan((Round(train, hidden, self.train_share),))

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input."""
        intervals = INTERVAL_BYTES_PER_ENTRY * entries + INTERVAL_BYTES_PER_MISSING * min(missing, CHUNK_ENTRIES)
        return max(FIT_BYTES_PER_ENTRY * entries, intervals)

    def calibrate(self, task: Task) -> Outcome:
        """Complete from the training entries, fit the propensity model, score the calibration entries."""
        rounds = self.plan(task.observed, task.seed).rounds
        task.warn_of_infinite(rounds)
        task.tell("completion", 0.0)
        split, prepared, residuals = calibrate_round(task, rounds[0])
        task.tell("calibration", 1.0)
        choices = (*prepared.choices, *split.propensity.choices)
        return Outcome(
            calibrated=split,
            completion=prepared,
            propensity=split.propensity,
            rounds=rounds,
            residuals=residuals,
            choices=choices,
        )


def calibrate_round(task: Task, one: Round) -> tuple[CalibratedSplit, Prepared, np.ndarray]:
    """The calibrated split, its prepared completion, and the residuals in the modelled variable.

    Everything that is chosen or learned (ranks, transforms, the propensity model) comes from the training entries of
    this round, as the theorem requires.
    """
    train = one.train
    changed, change = task.modelled(train)
    prepared = task.completion.prepare(changed.values, train, changed.axes, task.seed)
    fill = prepared.fill(changed.values, train)
    task.tell("missingness", 0.0)
    propensity = task.fit_propensity(task.propensity or AutoPropensity(), train, one.train_share or 1.0)
    task.tell("calibration", 0.0)
    entries = np.flatnonzero(one.hidden)
    truth = changed.values.reshape(-1)[entries].astype(np.float64)
    middle = fill.estimate.reshape(-1)[entries].astype(np.float64)
    scale = scale_of(task.score, fill, propensity=propensity, values=changed.values, train=train)
    scores = np.asarray(task.score.score(truth, middle, scale.at(entries)))
    weights = weights_of(propensity, task.observed, entries, task.weights)
    # Entries are flat indices in C order; a completion may return another memory order.
    estimate = np.ascontiguousarray(fill.estimate)
    scored = CalibratedScores(task.score, scores, entries, weights)
    return CalibratedSplit(scored, estimate, scale, change, propensity), prepared, truth - middle


def scale_of(score: Score, fill: Fill, propensity: FittedPropensity, values: np.ndarray, train: np.ndarray) -> Scale:
    """The scale that a score needs, from training entries only."""
    if getattr(score, "learns_scale", False):
        entries = np.flatnonzero(train)
        errors = values.reshape(-1)[entries] - fill.estimate.reshape(-1)[entries]
        parameter = (
            propensity.parameter.to_dense() if isinstance(propensity.parameter, TensorTrain) else propensity.parameter
        )
        return training_scale(errors, entries, np.broadcast_to(parameter, train.shape), train.shape)
    if not score.needs_leverage:
        return UnitScale()
    if fill.leverage is None:
        raise ValueError(
            f"score {score.name!r} needs a completion with leverage (Tucker, tensor train, CP); use score='absolute'"
        )
    return LeverageScale(fill.leverage())


def weights_of(propensity: FittedPropensity, observed: ObservedTensor, entries: np.ndarray, how: str) -> Weights:
    """Weights by the odds of being missing given the full mask; exact for a coupled model, unless approximate."""
    odds = propensity.log_weights(observed.mask)
    if how == "approximate" or propensity.independent:
        return OddsWeights(odds)
    return ExactIsingWeights(
        odds, shape=observed.shape, calibration=entries, neighbours=propensity.neighbours, pair=propensity.pair
    )
