"""The paper's split: each observed entry trains with the same probability, the rest calibrate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corten.calibration.rounds import Plan, Round

__all__ = ["RandomSplit"]

STREAM = 0x5B117


@dataclass(frozen=True)
class RandomSplit:
    """Hide observed entries independently, once; the estimate comes from the training entries alone.

    This is the split of the paper's theorem: with true weights its intervals cover as asked.

    Example:
        >>> RandomSplit(train_share=0.7).train_share
        0.7
    """

    train_share: float = 0.7

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
        return Plan(rounds=(Round(train, hidden, self.train_share),), refit=False)
