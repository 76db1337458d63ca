"""Beyond one split: every observed entry calibrates once (folds), or several random splits are merged.

Guarantee. Each fold or split is the paper's split of its own, so with true weights its conformal p-value is valid.
Their *mean* is merged: a value x belongs to the set if the mean of the K p-values of x exceeds 1 - c. Twice a mean
of p-values is a p-value whatever their dependence (Rueschendorf 1982; Vovk and Wang 2020), so the merged interval
asked for coverage c covers with probability at least 1 - 2 (1 - c), on average over missing entries: 80 % for 90 %
in the worst case. In practice the p-values of an entry are nearly equal and coverage is close to c; what is gained
is that it varies less from one draw of the split to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from corten.calibration.split import SplitCalibration, calibrate_round
from corten.calibration.task import Outcome, Plan, Round, Task
from corten.completion.protocol import Prepared
from corten.conformal.merged import MergedSplits
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice

__all__ = ["CrossCalibration", "RepeatedSplits"]


BYTES_PER_ENTRY_AND_SPLIT = 70  # at the peak, for every split and once more, measured


class _Merged:
    """What calibrations whose splits are merged have in common; `plan` draws the splits."""

    pooled: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """How many splits are merged."""
        raise NotImplementedError

    def plan(self, observed: Any, seed: int) -> Plan:
        raise NotImplementedError

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Memory that a fit, its intervals and a file of them take at most, beside the program and the input."""
        return BYTES_PER_ENTRY_AND_SPLIT * (1 + self.count) * entries

    def calibrate(self, task: Task) -> Outcome:
        """Complete, model the missingness and calibrate in every split, then merge.

        Every split learns everything from its own training entries and every fill starts anew: what another split
        learned was learned from entries hidden here, and would favour them over the missing ones. The estimate is the
        mean of the splits', in the data's own variable, as are the residuals.
        """
        rounds = self.plan(task.observed, task.seed).rounds
        task.warn_of_infinite(rounds, merged=True)
        quiet = replace(task, tell=lambda stage, share: None)
        splits: list[CalibratedSplit] = []
        prepared: list[Prepared] = []
        residuals: list[np.ndarray] = []
        values = task.observed.values.reshape(-1)
        for number, one in enumerate(rounds):
            task.tell("completion", number / len(rounds))
            split, ready, _ = calibrate_round(quiet, one)
            splits.append(split)
            prepared.append(ready)
            middle = split.estimate.reshape(-1)[split.entries].astype(np.float64)
            residuals.append(values[split.entries].astype(np.float64) - split.to_data(split.entries, middle))
        task.tell("completion", 1.0)
        because = "asked for: the mean of their p-values decides"
        taken, count = f"{len(splits)} splits merged", {"splits": len(splits)}
        merged = Choice("calibration", taken, because, code="merged_splits", values=count)
        chosen = [(*ready.choices, *one.propensity.choices) for ready, one in zip(prepared, splits)]
        return Outcome(
            calibrated=MergedSplits(splits),
            completion=prepared[0],
            propensity=splits[0].propensity,
            rounds=rounds,
            residuals=np.concatenate(residuals),
            choices=(merged, *_agreed(chosen)),
        )


@dataclass(frozen=True)
class CrossCalibration(_Merged):
    """Hide each of K random folds once; all observed entries calibrate, each against an estimate that did not see
    it.

    Promises 1 - 2 (1 - coverage) at least, and reaches about the coverage asked for.

    Example:
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

    def plan(self, observed: Any, seed: int) -> Plan:
        """One round per fold; every observed entry is hidden in exactly one of them."""
        mask = np.asarray(observed.mask, bool)
        if mask.sum() < 2 * self.folds:
            raise ValueError(f"{int(mask.sum())} observed entries are too few for {self.folds} folds")
        fold = np.random.default_rng([seed, 41]).integers(self.folds, size=mask.shape)
        share = 1.0 - 1.0 / self.folds
        made = (Round(mask & (fold != k), mask & (fold == k), share) for k in range(self.folds))
        return Plan(tuple(one for one in made if one.hidden.any()))


@dataclass(frozen=True)
class RepeatedSplits(_Merged):
    """Draw the random split several times and merge the intervals: less depends on one draw.

    Promises 1 - 2 (1 - coverage) at least, and reaches about the coverage asked for.

    Example:
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

    def plan(self, observed: Any, seed: int) -> Plan:
        """One round per split."""
        single = SplitCalibration(self.train_share)
        seeds = np.random.SeedSequence([seed, 43]).generate_state(self.splits)
        rounds = [single.plan(observed, int(one)).rounds[0] for one in seeds]
        return Plan(tuple(rounds))


def _agreed(chosen: Sequence[Sequence[Choice]]) -> list[Choice]:
    """The first split's choices; where others took something else, all that was taken, in the order of the splits."""
    agreed = []
    for one in chosen[0]:
        taken = [other.taken for choices in chosen for other in choices if other.what == one.what]
        if len(set(map(str, taken))) > 1:
            because = f"in the first split: {one.because}; each split chose from its own training entries"
            one = replace(one, taken=", ".join(map(str, taken)), because=because)
        agreed.append(one)
    return agreed
