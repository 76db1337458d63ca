"""The paper's split: each observed entry trains with the same probability, the rest calibrate (Algorithm CTC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from corten.calibration.task import Outcome, Plan, Round, Task
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

STREAM = 0x5B117
# Bytes at the peak, fitting, asking and writing included, measured at a million entries (tests/test_peak_memory.py).
BYTES_PER_ENTRY = 165
ASKING_BYTES_PER_ENTRY, ASKING_BYTES_PER_MISSING, ASKED_AT_ONCE = 70, 275, 1 << 20


@dataclass(frozen=True)
class SplitCalibration:
    """Hide observed entries independently, once; the estimate comes from the training entries alone.

    This is the split of the paper's theorem: with true weights its intervals cover as asked.

    Example:
        >>> SplitCalibration(train_share=0.7).train_share
        0.7
    """

    train_share: float = 0.7
    pooled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.train_share < 1:
            raise ValueError(f"train_share is {self.train_share}: give a number between 0 and 1, such as 0.7")

    def plan(self, observed: Any, seed: int) -> Plan:
        """One round; every observed entry is kept for training with probability `train_share`."""
        mask = np.asarray(observed.mask, dtype=bool)
        # A stream of its own: a mask that the user drew with the same seed must not decide the split.
        kept = np.random.default_rng((seed, STREAM)).random(mask.shape) < self.train_share
        train = mask & kept
        hidden = mask & ~kept
        if not train.any() or not hidden.any():
            raise ValueError(
                f"{int(mask.sum())} observed entries cannot be split into training and calibration entries: "
                "give more observed entries"
            )
        return Plan((Round(train, hidden, self.train_share),))

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Memory that a fit, its intervals and a file of them take at most, beside the program and the input."""
        asking = ASKING_BYTES_PER_ENTRY * entries + ASKING_BYTES_PER_MISSING * min(missing, ASKED_AT_ONCE)
        return max(BYTES_PER_ENTRY * entries, asking)

    def calibrate(self, task: Task) -> Outcome:
        """Complete from the training entries, model the missingness, score the calibration entries."""
        rounds = self.plan(task.observed, task.seed).rounds
        task.warn_of_infinite(rounds)
        task.tell("completion", 0.0)
        split, prepared, residuals = calibrate_round(task, rounds[0])
        task.tell("calibration", 1.0)
        choices = (*prepared.choices, *split.propensity.choices)
        return Outcome(split, prepared, split.propensity, rounds, residuals, choices)


def calibrate_round(task: Task, one: Round) -> tuple[CalibratedSplit, Prepared, np.ndarray]:
    """One split calibrated, its prepared completion, and the errors of the calibration entries as modelled.

    Everything that is chosen or learned (ranks, transforms, the model of the missingness) comes from the training
    entries of this round: the theorem needs it.
    """
    changed, change = task.modelled(one.train)
    prepared = task.completion.prepare(changed.values, one.train, changed.axes, task.seed)
    fill = prepared.fill(changed.values, one.train)
    task.tell("missingness", 0.0)
    propensity = task.fit_propensity(task.propensity or AutoPropensity(), one.train, one.train_share or 1.0)
    task.tell("calibration", 0.0)
    entries = np.flatnonzero(one.hidden)
    truth = changed.values.reshape(-1)[entries].astype(np.float64)
    middle = fill.estimate.reshape(-1)[entries].astype(np.float64)
    scale = scale_of(task.score, fill, propensity, changed.values, one.train)
    scores = np.asarray(task.score.score(truth, middle, scale.at(entries)))
    weights = weights_of(propensity, task.observed, entries, task.weights)
    # Entries are flat indices in C order, whatever order a completion chose.
    estimate = np.ascontiguousarray(fill.estimate)
    scored = CalibratedScores(task.score, scores, entries, weights)
    return CalibratedSplit(scored, estimate, scale, change, propensity), prepared, truth - middle


def scale_of(score: Score, fill: Fill, law: FittedPropensity, values: np.ndarray, train: np.ndarray) -> Scale:
    """The scale a score asks for; whatever it is learned from, it is training entries only."""
    if getattr(score, "learns_scale", False):
        entries = np.flatnonzero(train)
        errors = values.reshape(-1)[entries] - fill.estimate.reshape(-1)[entries]
        parameter = law.parameter.to_dense() if isinstance(law.parameter, TensorTrain) else law.parameter
        return training_scale(errors, entries, np.broadcast_to(parameter, train.shape), train.shape)
    if not score.needs_leverage:
        return UnitScale()
    if fill.leverage is None:
        raise ValueError(
            f"score {score.name!r} needs a completion that knows its leverage (Tucker, tensor train, CP); "
            "use score='absolute'"
        )
    return LeverageScale(fill.leverage())


def weights_of(law: FittedPropensity, observed: ObservedTensor, entries: np.ndarray, how: str) -> Weights:
    """Odds of being missing, neighbours read from the full mask; exact where they matter and it is asked for."""
    odds = law.log_weights(observed.mask)
    if how == "approximate" or law.independent:
        return OddsWeights(odds)
    return ExactIsingWeights(odds, shape=observed.shape, calibration=entries, neighbours=law.neighbours, pair=law.pair)
