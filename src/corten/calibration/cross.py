"""Beyond one split: every observed entry calibrates once (folds), or several random splits are merged.

Guarantee. Each fold or split is the paper's split of its own, so with true weights its conformal p-value is valid.
Their *mean* is merged: a value x belongs to the set if the mean of the K p-values of x exceeds 1 - c. Twice a mean
of p-values is a p-value whatever their dependence (Rueschendorf 1982; Vovk and Wang 2020), so the merged interval
asked for coverage c covers with probability at least 1 - 2 (1 - c), on average over missing entries: 80 % for 90 %
in the worst case. In practice the p-values of an entry are nearly equal and coverage is close to c; what is gained
is that it varies less from one draw of the split to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corten.calibration.random_split import RandomSplit
from corten.calibration.rounds import Plan, Round

__all__ = ["CrossConformal", "RepeatedSplits"]


@dataclass(frozen=True)
class CrossConformal:
    """Hide each of K random folds once; all observed entries calibrate, each against an estimate that did not see
    it.

    Promises 1 - 2 (1 - coverage) at least, and reaches about the coverage asked for.

    Example:
        >>> CrossConformal(folds=5).folds
        5
    """

    folds: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.folds, bool) or not isinstance(self.folds, int) or self.folds < 2:
            raise ValueError(f"folds is {self.folds!r}: give a whole number of at least 2, such as 5")

    def plan(self, observed: Any, seed: int) -> Plan:
        """One round per fold; every observed entry is hidden in exactly one of them."""
        mask = np.asarray(observed.mask, bool)
        if mask.sum() < 2 * self.folds:
            raise ValueError(f"{int(mask.sum())} observed entries are too few for {self.folds} folds")
        fold = np.random.default_rng([seed, 41]).integers(self.folds, size=mask.shape)
        share = 1.0 - 1.0 / self.folds
        made = (Round(mask & (fold != k), mask & (fold == k), share) for k in range(self.folds))
        return Plan(tuple(one for one in made if one.hidden.any()), refit=False, merge=True)


@dataclass(frozen=True)
class RepeatedSplits:
    """Draw the random split several times and merge the intervals: less depends on one draw.

    Promises 1 - 2 (1 - coverage) at least, and reaches about the coverage asked for.

    Example:
        >>> RepeatedSplits(splits=5).splits
        5
    """

    splits: int = 5
    train_share: float = 0.7

    def __post_init__(self) -> None:
        RandomSplit(self.train_share)
        if isinstance(self.splits, bool) or not isinstance(self.splits, int) or self.splits < 2:
            raise ValueError(f"splits is {self.splits!r}: give a whole number of at least 2, such as 5")

    def plan(self, observed: Any, seed: int) -> Plan:
        """One round per split."""
        single = RandomSplit(self.train_share)
        seeds = np.random.SeedSequence([seed, 43]).generate_state(self.splits)
        rounds = [single.plan(observed, int(one)).rounds[0] for one in seeds]
        return Plan(tuple(rounds), refit=False, merge=True)
