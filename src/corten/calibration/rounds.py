"""What a calibration plans: rounds that hide observed entries, and what the final estimate may use."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from corten.data.choices import Choice

if TYPE_CHECKING:
    from corten.propensity import FittedPropensity

__all__ = ["Calibration", "Plan", "Round", "highest_coverage", "warn_of_infinite"]


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


def highest_coverage(plan: Plan, tails: int = 1) -> float:
    """The highest coverage with finite intervals if all weights are equal; unequal ones allow less.

    n calibration entries allow n / (n + 1), or 1 - 2 / (n + 1) for a score with two tails. Where splits are merged the
    mean of 1 / (n + 1) over the splits decides.

    Example:
        >>> mask = np.eye(3, dtype=bool)
        >>> highest_coverage(Plan((Round(~mask, mask),), refit=False))
        0.75
    """
    counts = np.array([np.count_nonzero(one.hidden) for one in plan.rounds], dtype=np.float64)
    if not plan.merge:
        counts = counts.sum(keepdims=True)
    return max(0.0, 1.0 - tails * float(np.mean(1.0 / (counts + 1.0))))


def warn_of_infinite(coverage: float, plan: Plan, score: Any) -> None:
    """Warn before a fit whose intervals cannot be finite at this coverage."""
    tails = 1 if score.tails(0.5).lower is None else 2
    highest = highest_coverage(plan, tails)
    if coverage <= highest + 1e-12:
        return
    counts = " and ".join(str(n) for n in sorted({int(np.count_nonzero(one.hidden)) for one in plan.rounds}))
    warnings.warn(
        f"All intervals will be infinite: {counts} calibration entries are too few for a coverage of {coverage:g}. The "
        f"highest coverage with finite intervals is {highest:.3g}: ask for no more, or give more observed entries.",
        UserWarning,
        stacklevel=5,
    )
