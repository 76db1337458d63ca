"""The interface between the completer and the calibrations: `Task`, `Outcome` and the protocol `Calibration`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np

from corten.completion.protocol import Completion, Prepared
from corten.completion.trend import FittedTrend, fit_trend
from corten.conformal.merged import MergedSplits
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.plain import calibration_entries
from corten.data.transform import FittedChain, FittedTransform, Transform
from corten.propensity import FittedPropensity, PropensityModel

if TYPE_CHECKING:
    from distributed import Client

    from corten.engine import Engine

Progress = Callable[[str, float], None]
EngineLike: TypeAlias = "str | int | Engine | Client"


@dataclass(frozen=True, init=False, eq=False)
class Round:
    """Which observed entries train and which are hidden; `train_share` is given for a random split.

    The two masks are kept as bits, as many rounds are kept for the length of a fit.
    """

    shape: tuple[int, ...]
    train_share: float | None
    _train: np.ndarray = field(repr=False)
    _hidden: np.ndarray = field(repr=False)

    def __init__(self, train: np.ndarray, hidden: np.ndarray, train_share: float | None = None) -> None:
        if train.shape != hidden.shape:
            raise ValueError(f"train is {train.shape}, hidden {hidden.shape}: shapes must agree")
        if np.any(train & hidden):
            raise ValueError("an entry cannot both train and be hidden in the same round")
        kept = {"shape": train.shape, "train_share": train_share}
        for name, value in (kept | {"_train": np.packbits(train), "_hidden": np.packbits(hidden)}).items():
            object.__setattr__(self, name, value)

    @property
    def train(self) -> np.ndarray:
        """True at training entries."""
        return self._mask(self._train)

    @property
    def hidden(self) -> np.ndarray:
        """True at hidden entries."""
        return self._mask(self._hidden)

    def _mask(self, bits: np.ndarray) -> np.ndarray:
        return np.unpackbits(bits, count=math.prod(self.shape)).view(bool).reshape(self.shape)


class MaskedTensor(Protocol):
    """What a random split needs of the data: which entries are observed and missing, and the axes."""

    @property
    def mask(self) -> np.ndarray: ...

    @property
    def missing(self) -> np.ndarray: ...

    @property
    def axes(self) -> tuple[Axis, ...]: ...


@dataclass(frozen=True)
class Plan:
    """The rounds of a calibration; `propensity` is the model of the mask that pseudo-gaps were drawn from, if any."""

    rounds: tuple[Round, ...]
    choices: tuple[Choice, ...] = ()
    propensity: FittedPropensity | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """The input of a calibration.

    Parameters
    ----------
    observed : ObservedTensor
        The data.
    completion : Completion
        Fills the tensor.
    propensity : PropensityModel, optional
        The propensity model; None if the calibration chooses it.
    score : Score
        Turns errors into scores.
    weights : str
        "exact" or "approximate".
    transform : Transform, optional
        The transform to fit; None for none.
    seed : int
        The seed of everything random.
    engine : str, int or Engine
        What runs passes over the mask.
    coverage : float, optional
        The nominal coverage, if it is known before the fit.
    tell : callable
        Called with a stage and the share of it that is done.
    """

    observed: ObservedTensor
    completion: Completion
    propensity: PropensityModel | None
    score: Score
    weights: str = "exact"
    transform: Transform | None = None
    seed: int = 0
    engine: EngineLike = "auto"
    coverage: float | None = None
    tell: Progress = field(default=lambda stage, share: None)

    def modelled(
        self, train: np.ndarray, trend: FittedTrend | None = None
    ) -> tuple[ObservedTensor, FittedTransform | None]:
        """The data in the modelled variable, and the transform, fitted to the entries of `train` only.

        After the transform the trend in the covariates is removed: `trend` if it is given, else one fitted here.
        """
        observed = self.observed
        change = changed_by(self.transform, observed, train=train, seed=self.seed, trend=trend)
        if change is None:
            return observed, None
        values = change.forward(observed.values).astype(observed.values.dtype)
        if not np.isfinite(values[observed.mask]).all():
            raise ValueError(f"transform {self.transform!r} produced non-finite values for observed entries")
        return replace(observed, values=np.where(observed.mask, values, np.nan)), change

    def fit_propensity(self, model: PropensityModel, mask: np.ndarray, train_share: float) -> FittedPropensity:
        """The propensity model fitted to a mask that kept `train_share` of the observed entries."""
        observed = self.observed
        return fit_propensity(
            model, mask, train_share=train_share, axes=observed.axes, domain=observed.domain, engine=self.engine
        )

    def warn_of_infinite(self, rounds: Sequence[Round], merged: bool = False) -> None:
        """Warn before a fit whose intervals cannot be finite at the nominal coverage."""
        if self.coverage is None:
            return
        highest = highest_coverage(rounds, 1 if self.score.tails(0.5).lower is None else 2, merged)
        if self.coverage <= highest + 1e-12:
            return
        counts = sorted({int(np.count_nonzero(one.hidden)) for one in rounds})
        are = "is" if counts == [1] else "are"
        warnings.warn(
            f"All intervals will be infinite: {' and '.join(map(str, counts))} {calibration_entries(counts[-1])} {are} "
            "too few for a coverage of "
            f"{self.coverage:g}. The highest coverage with finite intervals is {highest:.3g}: ask for no more, or give "
            "more observed entries.",
            UserWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a calibration: the calibrated scores, and the objects they were computed with.

    completion: the prepared completion; propensity: the fitted propensity model; residuals: truth minus estimate of the
    calibration entries, in the modelled variable, or in the variable of the data for merged splits.
    """

    calibrated: CalibratedSplit | MergedSplits
    completion: Prepared
    propensity: FittedPropensity
    rounds: tuple[Round, ...]
    residuals: np.ndarray
    choices: tuple[Choice, ...] = ()

    @property
    def trend(self) -> tuple[Choice, ...]:
        """The record of the trend in the covariates, if there are any."""
        trend = trend_of(self.calibrated.change)
        return () if trend is None else (trend.choice,)


@runtime_checkable
class Calibration(Protocol):
    """Hides observed entries, completes without them, and calibrates on their errors.

    pooled: whether the final estimate uses all observed entries, and the completion is chosen for gaps.
    """

    @property
    def pooled(self) -> bool: ...

    def calibrate(self, task: Task) -> Outcome: ...

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input."""
        ...


def fit_propensity(
    model: PropensityModel, mask: np.ndarray, *, train_share: float, axes: Sequence[Axis],
    domain: np.ndarray | None = None, engine: object = "auto",
) -> FittedPropensity:  # fmt: skip
    """The propensity model fitted to a training mask, or to its spins, on these axes."""
    names, periodic = [axis.name for axis in axes], [axis.periodic for axis in axes]
    return model.fit(mask, train_share, domain=domain, axis_names=names, periodic=periodic, engine=engine)


def changed_by(
    transform: Transform | None, observed: ObservedTensor, *, train: np.ndarray, seed: int,
    trend: FittedTrend | None = None,
) -> FittedTransform | None:  # fmt: skip
    """The transform and the trend in the covariates, both fitted to the entries of `train`; None for neither."""
    change = None if transform is None else transform.fit(observed.values, train, observed.axes)
    if not observed.covariates:
        return change
    if trend is None:
        values = observed.values if change is None else change.forward(observed.values)
        trend = fit_trend(values, train, axes=observed.axes, covariates=observed.covariates, seed=seed)
    return trend if change is None else FittedChain((change, trend))


def trend_of(change: FittedTransform | None) -> FittedTrend | None:
    """The trend in the covariates that a fitted transform removes, if any."""
    steps = change.steps if isinstance(change, FittedChain) else (change,)
    return next((one for one in steps if isinstance(one, FittedTrend)), None)


def highest_coverage(rounds: Sequence[Round], tails: int = 1, merged: bool = False) -> float:
    """The highest coverage with finite intervals if all weights are equal; it is lower for unequal weights.

    With n calibration entries it is n / (n + 1), or 1 - 2 / (n + 1) for a score with two tails. For merged splits
    1 / (n + 1) is replaced by its mean over the splits.

    Examples
    --------
    >>> mask = np.eye(3, dtype=bool)
    >>> highest_coverage([Round(~mask, mask)])
    0.75
    """
    counts = np.array([np.count_nonzero(one.hidden) for one in rounds], dtype=np.float64)
    if not merged:
        counts = counts.sum(keepdims=True)
    return max(0.0, 1.0 - tails * float(np.mean(1.0 / (counts + 1.0))))
