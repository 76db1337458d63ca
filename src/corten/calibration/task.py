"""What a calibration is asked to do, and what it returns: the seam between the completer and the strategies."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from corten.completion.protocol import Completion, Prepared
from corten.conformal.merged import MergedSplits
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.transform import FittedTransform, Transform
from corten.propensity import FittedPropensity

__all__ = ["Calibration", "Outcome", "Plan", "Progress", "Round", "Task", "highest_coverage"]

Progress = Callable[[str, float], None]


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
    """The rounds of a calibration; `propensity` is the model of the whole mask that rounds were drawn from, if any."""

    rounds: tuple[Round, ...]
    choices: tuple[Choice, ...] = ()
    propensity: FittedPropensity | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """What a calibration is asked to do.

    observed: the data; completion: what fills; propensity: the model of the missingness, an object with `fit`, or None
    to leave it to the calibration; score, weights: how errors are scored and weighted; transform: the change of
    variable to learn, or None; engine: what runs passes over the mask; coverage: what will be asked for, where it is
    known beforehand; tell: called with a stage and the share of it that is done.
    """

    observed: ObservedTensor
    completion: Completion
    propensity: Any
    score: Score
    weights: str = "exact"
    transform: Transform | None = None
    seed: int = 0
    engine: Any = "auto"
    coverage: float | None = None
    tell: Progress = field(default=lambda stage, share: None)

    def modelled(self, train: np.ndarray) -> tuple[ObservedTensor, FittedTransform | None]:
        """What was observed in the variable that is modelled; the map is learned from the entries of `train` only."""
        observed = self.observed
        if self.transform is None:
            return observed, None
        change = self.transform.fit(observed.values, train, observed.axes)
        values = change.forward(observed.values).astype(observed.values.dtype)
        if not np.isfinite(values[observed.mask]).all():
            raise ValueError(f"transform {self.transform!r} produced non-finite values for observed entries")
        return replace(observed, values=np.where(observed.mask, values, np.nan)), change

    def fit_propensity(self, model: Any, mask: np.ndarray, train_share: float) -> FittedPropensity:
        """The model of the missingness, fitted to a mask of which `train_share` of the observed entries was kept."""
        observed = self.observed
        fitted: FittedPropensity = model.fit(
            mask,
            train_share,
            domain=observed.domain,
            axis_names=[axis.name for axis in observed.axes],
            periodic=[axis.periodic for axis in observed.axes],
            engine=self.engine,
        )
        return fitted

    def warn_of_infinite(self, rounds: Sequence[Round], merged: bool = False) -> None:
        """Warn before a fit whose intervals cannot be finite at the coverage that will be asked for."""
        if self.coverage is None:
            return
        highest = highest_coverage(rounds, 1 if self.score.tails(0.5).lower is None else 2, merged)
        if self.coverage <= highest + 1e-12:
            return
        counts = " and ".join(str(n) for n in sorted({int(np.count_nonzero(one.hidden)) for one in rounds}))
        warnings.warn(
            f"All intervals will be infinite: {counts} calibration entries are too few for a coverage of "
            f"{self.coverage:g}. The highest coverage with finite intervals is {highest:.3g}: ask for no more, or give "
            "more observed entries.",
            UserWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a calibration returns: the calibrated scores, and what they came from.

    completion: the prepared completion; propensity: the fitted model of the missingness; residuals: truth minus
    estimate of the calibration entries, in the variable that was modelled, or the data's own for merged splits.
    """

    calibrated: CalibratedSplit | MergedSplits
    completion: Prepared
    propensity: FittedPropensity
    rounds: tuple[Round, ...]
    residuals: np.ndarray
    choices: tuple[Choice, ...] = ()


@runtime_checkable
class Calibration(Protocol):
    """Hides observed entries, completes without them, and calibrates on how wrong the estimate is there.

    pooled: whether the final estimate uses everything observed, and the completion is chosen for gaps.
    """

    @property
    def pooled(self) -> bool: ...

    def calibrate(self, task: Task) -> Outcome: ...

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Memory that a fit, its intervals and a file of them take at most, beside the program and the input."""
        ...


def highest_coverage(rounds: Sequence[Round], tails: int = 1, merged: bool = False) -> float:
    """The highest coverage with finite intervals if all weights are equal; unequal ones allow less.

    n calibration entries allow n / (n + 1), or 1 - 2 / (n + 1) for a score with two tails. Where splits are merged the
    mean of 1 / (n + 1) over the splits decides.

    Example:
        >>> mask = np.eye(3, dtype=bool)
        >>> highest_coverage([Round(~mask, mask)])
        0.75
    """
    counts = np.array([np.count_nonzero(one.hidden) for one in rounds], dtype=np.float64)
    if not merged:
        counts = counts.sum(keepdims=True)
    return max(0.0, 1.0 - tails * float(np.mean(1.0 / (counts + 1.0))))
