"""Merged calibrations: every observed entry calibrates once (folds), or several random splits are merged.

Guarantee. Each fold or split is a split of Algorithm CTC, so with true weights its conformal p-value is valid. A value
x belongs to the merged set if the mean of the K p-values of x exceeds 1 - c. Twice a mean of p-values is a p-value,
whatever their dependence (Rueschendorf 1982; Vovk and Wang 2020). So the merged interval of nominal coverage c covers
with probability at least 1 - 2 (1 - c), on average over the missing entries: at least 80 % for 90 %. In practice the
p-values of an entry are nearly equal and coverage is close to c; it varies less between draws of the split.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from corten.calibration.split import SplitCalibration, calibrate_round, stack_bytes
from corten.calibration.task import Outcome, Plan, Round, Task
from corten.completion.protocol import Prepared
from corten.conformal.merged import MergedSplits
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor

BYTES_PER_ENTRY_AND_SPLIT = 70  # peak memory for every split and once more, measured


class _Merged(ABC):
    """The base of calibrations with merged splits; `plan` draws the splits."""

    pooled: ClassVar[bool] = False

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of splits."""

    @abstractmethod
    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        """Draw the splits."""

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input."""
        return max(BYTES_PER_ENTRY_AND_SPLIT * (1 + self.count) * entries, stack_bytes(entries))

    def calibrate(self, task: Task) -> Outcome:
        """Complete, fit the propensity model and calibrate in every split, then merge.

        Every split uses its own training entries only, and every fill has a start of its own: a start from another
        split would contain information on entries hidden here. The estimate is the mean over the splits. It and the
        residuals are in the variable of the data.
        """
        rounds = self.plan(task.observed, task.seed).rounds
        task.warn_of_infinite(rounds, merged=True)
        without_progress = replace(task, tell=lambda stage, share: None)
        splits: list[CalibratedSplit] = []
        prepared: list[Prepared] = []
        residuals: list[np.ndarray] = []
        values = task.observed.values.reshape(-1)
        for number, one in enumerate(rounds):
            task.tell("completion", number / len(rounds))
            split, ready, _ = calibrate_round(without_progress, one)
            splits.append(split)
            prepared.append(ready)
            middle = split.estimate.reshape(-1)[split.entries].astype(np.float64)
            residuals.append(values[split.entries].astype(np.float64) - split.to_data(split.entries, middle))
        task.tell("completion", 1.0)
        because = "given; a value belongs to the interval if the mean of the p-values exceeds 1 - coverage"
        taken, count = f"{len(splits)} splits merged", {"splits": len(splits)}
        merged = Choice("calibration", taken, because, code="merged_splits", values=count)
        models = [one.propensity for one in splits if one.propensity is not None]  # every split has one
        chosen = [(*ready.choices, *model.choices) for ready, model in zip(prepared, models)]
        return Outcome(
            calibrated=MergedSplits(splits),
            completion=prepared[0],
            propensity=models[0],
            rounds=rounds,
            residuals=np.concatenate(residuals),
            choices=(merged, *_agreed(chosen)),
        )


@dataclass(frozen=True)
class CrossCalibration(_Merged):
    """Hide each of K random folds once, so that all observed entries calibrate.

    The guaranteed coverage is 1 - 2 (1 - coverage); the empirical coverage is close to the nominal one.

    Parameters
    ----------
    folds : int, default 5
        The number of folds, at least 2. More folds leave more training entries and take more time.

    Raises
    ------
    ValueError
        If `folds` is not a whole number of at least 2; in a fit, if there are fewer than two observed entries per fold.

    Examples
    --------
    >>> CrossCalibration(folds=5).folds
    5
    """

    folds: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.folds, bool) or not isinstance(self.folds, int) or self.folds < 2:
            raise ValueError(f"folds is {self.folds!r}: give a whole number of at least 2, such as 5")

    @property
    def count(self) -> int:
        return self.folds

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        """One round per fold; every observed entry is hidden in exactly one of them."""
        mask = np.asarray(observed.mask, bool)
        if mask.sum() < 2 * self.folds:
            raise ValueError(
                f"{int(mask.sum())} observed entries are too few for {self.folds} folds: give at least "
                f"{2 * self.folds}, or fewer folds"
            )
        fold = np.random.default_rng([seed, 41]).integers(self.folds, size=mask.shape)
        share = 1.0 - 1.0 / self.folds
        made = (Round(mask & (fold != k), mask & (fold == k), share) for k in range(self.folds))
        return Plan(tuple(one for one in made if one.hidden.any()))


@dataclass(frozen=True)
class RepeatedSplits(_Merged):
    """Draw the random split several times and merge the intervals, so that they depend less on one draw.

    The guaranteed coverage is 1 - 2 (1 - coverage); the empirical coverage is close to the nominal one.

    Parameters
    ----------
    splits : int, default 5
        The number of splits, at least 2.
    train_share : float, default 0.7
        The probability that an observed entry trains, between 0 and 1.

    Raises
    ------
    ValueError
        If a parameter is outside its range.

    Examples
    --------
    >>> RepeatedSplits(splits=5).splits
    5
    """

    splits: int = 5
    train_share: float = 0.7

    def __post_init__(self) -> None:
        SplitCalibration(self.train_share)
        if isinstance(self.splits, bool) or not isinstance(self.splits, int) or self.splits < 2:
            raise ValueError(f"splits is {self.splits!r}: give a whole number of at least 2, such as 5")

    @property
    def count(self) -> int:
        return self.splits

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        """One round per split."""
        single = SplitCalibration(self.train_share)
        seeds = np.random.SeedSequence([seed, 43]).generate_state(self.splits)
        rounds = [single.plan(observed, int(one)).rounds[0] for one in seeds]
        return Plan(tuple(rounds))


def _agreed(chosen: Sequence[Sequence[Choice]]) -> list[Choice]:
    """The settings of the first split; where others differ, the values of all splits in their order."""
    agreed = []
    for one in chosen[0]:
        taken = [other.taken for choices in chosen for other in choices if other.what == one.what]
        if len(set(map(str, taken))) > 1:
            because = f"in the first split: {one.because}; each split uses its own training entries"
            values = {**one.values, "taken_by_split": tuple(map(str, taken))}
            one = replace(one, taken=", ".join(map(str, taken)), because=because, values=values)
        agreed.append(one)
    return agreed
