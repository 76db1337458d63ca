"""What a calibration plans: rounds that hide observed entries, and what the final estimate may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from corten.data.choices import Choice

if TYPE_CHECKING:
    from corten.propensity import FittedPropensity

__all__ = ["Calibration", "Plan", "Round"]


@dataclass(frozen=True)
class Round:
    """Which observed entries train and which are hidden; `train_share` is set for a random thinning."""

    train: np.ndarray
    hidden: np.ndarray
    train_share: float | None = None

    def __post_init__(self) -> None:
        if self.train.shape != self.hidden.shape:
            raise ValueError(f"train is {self.train.shape}, hidden {self.hidden.shape}: shapes must agree")
        if np.any(self.train & self.hidden):
            raise ValueError("an entry cannot both train and be hidden in the same round")


@dataclass(frozen=True)
class Plan:
    """The rounds to run; `refit` says whether the final estimate comes from everything observed, `merge` that
    every round is a split of its own and their intervals are merged; `propensity` is the model that was fitted to the
    whole mask to draw rounds from, if one was: the fit takes it where propensity is left on "auto".
    """

    rounds: tuple[Round, ...]
    refit: bool
    choices: tuple[Choice, ...] = ()
    merge: bool = False
    propensity: FittedPropensity | None = None


@runtime_checkable
class Calibration(Protocol):
    """Decides which observed entries are hidden, and how often."""

    def plan(self, observed: Any, seed: int) -> Plan: ...
