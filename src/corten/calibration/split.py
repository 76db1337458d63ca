"""The split of the paper (Algorithm CTC): each observed entry trains with the same probability, the rest calibrate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from corten.calibration.gap_rounds import peak_of_rounds
from corten.calibration.task import MaskedTensor, Outcome, Plan, Round, Task
from corten.completion.auto import MAX_STACK_SIZE
from corten.completion.protocol import Fill, Prepared
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import LeverageScale, Scale, UnitScale, training_scale
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import ExactIsingWeights, OddsWeights, Weights
from corten.data.blocks import Block, blocks
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.plain import percent
from corten.engine.threads import default_threads
from corten.lowrank import TensorTrain
from corten.propensity import AutoPropensity, FittedPropensity

SPLIT_SEED_STREAM = 0x5B117
MAX_COUNTED_ENTRIES = 300  # observed; of no more than these a fixed number trains
MIN_TESTED_SLICES = 4  # without training entries and with calibration entries: errors in one slice are correlated
# Peak memory of the fit, and of intervals and their file, at a million entries (tests/engine/test_peak_memory.py).
FIT_BYTES_PER_ENTRY = 170
INTERVAL_BYTES_PER_ENTRY, INTERVAL_BYTES_PER_MISSING, CHUNK_ENTRIES = 70, 275, 1 << 20


@dataclass(frozen=True)
class SplitCalibration:
    """Hide observed entries at random, once; the estimate uses the training entries only.

    Parameters
    ----------
    train_share : float, default 0.7
        The probability that an observed entry trains, between 0 and 1. The other entries calibrate. Of at most 300
        observed entries this share trains exactly (rounded): a random number could leave too few to calibrate.

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
        train, share = training_entries(mask, self.train_share, seed)
        hidden = mask & ~train
        if not train.any() or not hidden.any():
            count = int(mask.sum())
            raise ValueError(
                f"{count} observed {'entry' if count == 1 else 'entries'} cannot be split into training and "
                "calibration entries: give at least 2; 20 or more give finite intervals at a coverage of 90%"
            )
        return Plan((Round(train, hidden, share),))

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input."""
        intervals = INTERVAL_BYTES_PER_ENTRY * entries + INTERVAL_BYTES_PER_MISSING * min(missing, CHUNK_ENTRIES)
        return max(FIT_BYTES_PER_ENTRY * entries, intervals, stack_bytes(entries))

    def calibrate(self, task: Task) -> Outcome:
        """Complete from the training entries, fit the propensity model, score the calibration entries."""
        rounds = self.plan(task.observed, task.seed).rounds
        task.warn_of_infinite(rounds)
        task.tell("completion", 0.0)
        split, prepared, residuals = calibrate_round(task, rounds[0])
        beyond = untested_slices(rounds[0].train, rounds[0].hidden, task.observed.missing)
        model = split.propensity
        assert model is not None  # every round has one
        if np.isfinite(model.max_log_weight):
            rare = task.observed.missing & (model.log_weights(task.observed.mask) > model.max_log_weight)
            beyond = rare if beyond is None else beyond | rare
        split = replace(split, beyond=beyond)
        task.tell("calibration", 1.0)
        choices = (*prepared.choices, *model.choices)
        if beyond is not None:
            choices = (*choices, _reach(int(np.count_nonzero(beyond)), task.observed.n_missing))
        return Outcome(
            calibrated=split,
            completion=prepared,
            propensity=model,
            rounds=rounds,
            residuals=residuals,
            choices=choices,
        )


def stack_bytes(entries: int) -> int:
    """Peak memory of the stack of completions that a random split uses, in bytes; none for large tensors."""
    return peak_of_rounds(entries, default_threads()) if entries <= MAX_STACK_SIZE else 0


class TrainingDraw:
    """Draws which observed entries train, independently with probability `share`, in one block after the other.

    The random numbers run through the tensor in its order, so that the split does not depend on the blocks.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share = share
        # An own stream, so that a mask drawn by the user with the same seed does not determine the split.
        self._rng = np.random.default_rng((seed, SPLIT_SEED_STREAM))

    def numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        """The random numbers of the next block."""
        return self._rng.random(shape)

    def of(self, mask: np.ndarray) -> np.ndarray:
        """True at the training entries of the next block, whose observed entries are `mask`."""
        return mask & (self.numbers(mask.shape) < self.share)


def training_entries(mask: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, float]:
    """The observed entries that train, and their share of the observed ones.

    Many entries train independently of each other, as in the paper. Of few entries a random subset of fixed size
    trains. Given the observed entries and the size, all subsets have the same probability, so the factor that depends
    on the split cancels from the weights as for independent entries, and the theorem holds for both.
    """
    draw = TrainingDraw(share, seed)
    count = int(np.count_nonzero(mask))
    if count == 0 or count > MAX_COUNTED_ENTRIES:
        return draw.of(mask), share
    size, drawn = round(share * count), draw.numbers(mask.shape)
    entries = np.flatnonzero(mask)
    train = np.zeros(mask.shape, dtype=bool)
    train.flat[entries[np.argsort(drawn.flat[entries], kind="stable")[:size]]] = True
    return train, size / count


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
    scale = scale_of(task.score, fill, propensity=propensity, values=changed.values, train=train)
    (whole,) = blocks(changed)
    scores, residuals = score_block(task.score, whole, estimate=fill.estimate, entries=entries, scale=scale.at(entries))
    weights = weights_of(propensity, task.observed, entries, task.weights)
    # Entries are flat indices in C order; a completion may return another memory order.
    estimate = np.ascontiguousarray(fill.estimate)
    scored = CalibratedScores(task.score, scores, entries, weights)
    return CalibratedSplit(scored, estimate, scale, change, propensity), prepared, residuals


def score_block(
    score: Score, block: Block, *, estimate: np.ndarray, entries: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and residuals of the calibration entries of a block, given by flat indices into it."""
    truth = block.values.reshape(-1)[entries].astype(np.float64)
    middle = estimate.reshape(-1)[entries].astype(np.float64)
    return np.asarray(score.score(truth, middle, scale)), truth - middle


def untested_slices(train: np.ndarray, hidden: np.ndarray, missing: np.ndarray) -> np.ndarray | None:
    """True at missing entries in slices without training entries, if hidden entries do not test such slices; or None.

    The errors there have nothing in common with those elsewhere: a row that is never observed has no coefficients of
    its own. If slices are so short that many of them have no training entry by chance, hidden entries lie in them too.

    Examples
    --------
    >>> mask = np.ones((5, 9), bool)
    >>> mask[3] = mask[0, 1] = False
    >>> train = mask & (np.arange(9) % 2 == 0)
    >>> untested_slices(train, mask & ~train, ~mask).sum(axis=1)
    array([0, 0, 0, 9, 0])
    """
    found = np.zeros(missing.shape, bool)
    for k in range(missing.ndim if missing.ndim > 1 else 0):
        trained, tested = (one.any(axis=tuple(j for j in range(missing.ndim) if j != k)) for one in (train, hidden))
        if np.count_nonzero(tested & ~trained) < MIN_TESTED_SLICES:
            found |= missing & ~trained.reshape([-1 if j == k else 1 for j in range(missing.ndim)])
    return found if found.any() else None


def _reach(beyond: int, missing: int) -> Choice:
    """The setting that records missing entries in slices that calibration does not test."""
    share = beyond / missing
    because = (
        f"The coverage of {beyond:,} missing entries ({percent(beyond, missing)}) is unknown and may be lower than "
        "nominal: so little "
        f"is observed in their slices that calibration has no entries like them (no training entries, and fewer than "
        f"{MIN_TESTED_SLICES} such slices with calibration entries; or too large odds of being missing). They have "
        "the flag filled_beyond_tested (result.beyond_tested). Use the other entries, or mark by where= what need not "
        "be filled."
    )
    return Choice("reach of calibration", "too short", because, code="slices_not_tested", values={"beyond": share})


def scale_of(score: Score, fill: Fill, *, propensity: FittedPropensity, values: np.ndarray, train: np.ndarray) -> Scale:
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
    odds = propensity.limited(propensity.log_weights(observed.mask), observed.mask)
    if how == "approximate" or propensity.independent:
        return OddsWeights(odds)
    return ExactIsingWeights(
        odds, shape=observed.shape, calibration=entries, neighbours=propensity.neighbours, pair=propensity.pair
    )
