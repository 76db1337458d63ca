"""Options as users write them (a name or an object), and the objects they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from corten.calibration.auto import choose_calibration
from corten.calibration.cross import CrossCalibration
from corten.calibration.gaps import GapCalibration
from corten.calibration.split import SplitCalibration
from corten.calibration.task import Calibration
from corten.completion.auto import MixedCompletion
from corten.completion.callables import CallableCompletion
from corten.completion.protocol import Completion
from corten.completion.riemannian import TensorTrainCompletion, TuckerCompletion
from corten.completion.smooth import SmoothCompletion
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.engine import as_engine
from corten.engine.lazy import takes_lazy
from corten.propensity import (
    AdditivePropensity,
    AutoPropensity,
    BernoulliPropensity,
    FittedPropensity,
    IsingPropensity,
    UniformPropensity,
)

__all__ = [
    "CalibrationName",
    "CompletionName",
    "EngineName",
    "FillFunction",
    "PropensityModel",
    "PropensityName",
    "ScoreName",
    "WeightsName",
    "as_calibration",
    "as_completion",
    "as_propensity",
    "check_bounds",
    "predicted_seconds",
    "unused_workers",
]

CompletionName = Literal["auto", "tucker", "tensor-train", "smooth", "gaussian-process", "stack"]
PropensityName = Literal["auto", "constant", "uniform", "additive", "bernoulli", "ising"]
CalibrationName = Literal["auto", "random", "cross", "gaps"]
ScoreName = Literal["absolute", "adaptive", "signed", "normalized"]
WeightsName = Literal["exact", "approximate"]
EngineName = Literal["auto", "threads", "jax", "gpu", "dask"]
FillFunction = Callable[[np.ndarray], np.ndarray]
"""From an array with NaN to a full array."""


class PropensityModel(Protocol):
    """Fits the probability of being observed to a mask."""

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = ...,
        *,
        domain: np.ndarray | None = ...,
        axis_names: Sequence[str] | None = ...,
        periodic: Sequence[bool] = ...,
        engine: Any = ...,
    ) -> FittedPropensity: ...


@dataclass(frozen=True)
class _Fixed:
    """A calibration that the user named."""

    calibration: Calibration

    def choose(self, observed: ObservedTensor, seed: int) -> tuple[Calibration, tuple[Choice, ...]]:
        return self.calibration, ()


@dataclass(frozen=True)
class _Auto:
    """A calibration that is chosen by the shape of the gaps."""

    def choose(self, observed: ObservedTensor, seed: int) -> tuple[Calibration, tuple[Choice, ...]]:
        return choose_calibration(observed, seed)


SECONDS_AT_LEAST, SECONDS_PER_ENTRY_AND_ROUND = 8.0, 8e-6  # of pseudo-gaps with the stack, on one core
SPLIT_SECONDS_AT_LEAST, SPLIT_SECONDS_PER_ENTRY = 2.0, 5e-6
USES_ENGINE = (TuckerCompletion, TensorTrainCompletion, MixedCompletion)


def predicted_seconds(calibration: Calibration, entries: int, missing: int) -> float:
    """The seconds that a fit with the default completion takes, roughly, on one core."""
    own = getattr(calibration, "seconds", None)
    if callable(own):
        return float(own(entries, missing))
    rounds = getattr(calibration, "rounds", None)
    if calibration.pooled and isinstance(rounds, int):
        return SECONDS_AT_LEAST + SECONDS_PER_ENTRY_AND_ROUND * rounds * entries
    return (SPLIT_SECONDS_AT_LEAST + SPLIT_SECONDS_PER_ENTRY * entries) * int(getattr(calibration, "count", 1))


def as_calibration(calibration: str | Calibration) -> _Fixed | _Auto:
    """The calibration behind a name or an object with calibrate()."""
    named: dict[str, Any] = {"random": SplitCalibration, "gaps": GapCalibration, "cross": CrossCalibration}
    if isinstance(calibration, str):
        if calibration == "auto":
            return _Auto()
        if calibration in named:
            return _Fixed(named[calibration]())
        raise ValueError(f"calibration is {calibration!r}; allowed are {_listed('auto', *named)} or an object")
    if not isinstance(calibration, type) and isinstance(calibration, Calibration):
        return _Fixed(calibration)
    raise TypeError(f"calibration is {calibration!r}; give a name or an object with calibrate(task)")


def as_completion(
    completion: str | Completion | FillFunction, gaps: bool, engine: Any = "auto", mixed: bool = True
) -> Completion:
    """The completion behind a name, an object with prepare() or a function.

    gaps: whether pseudo-gaps are hidden; "auto" then is the stack, else the stack with Tucker completion as a member.
    mixed: False where only a single low-rank model serves (a score needs its leverage, a cluster or a disk holds the
    data); "auto" without pseudo-gaps is then Tucker with an automatic ridge. A completion that uses an engine and has
    none of its own gets `engine`.
    """
    made = _as_completion(completion, gaps, mixed)
    if isinstance(made, USES_ENGINE) and isinstance(made.engine, str) and made.engine == "auto":
        return replace(made, engine=engine)
    return made


def unused_workers(completion: Completion, engine: Any) -> tuple[Choice, ...]:
    """A record where the completion does not use the workers of a cluster."""
    if isinstance(completion, USES_ENGINE) or not takes_lazy(as_engine(engine)):
        return ()
    because = "only the completions tucker and tensor-train use the workers of a cluster"
    return (Choice("completion runs on", "this machine", because),)


def _as_completion(completion: str | Completion | FillFunction, gaps: bool, mixed: bool) -> Completion:
    if isinstance(completion, str):
        if completion == "auto" and not gaps:
            return MixedCompletion() if mixed else TuckerCompletion(ridge="auto")
        makers = {
            "auto": _stack,
            "tucker": TuckerCompletion,
            "tensor-train": TensorTrainCompletion,
            "smooth": SmoothCompletion,
            "gaussian-process": _gaussian_process,
            "stack": _stack,
        }
        if completion not in makers:
            raise ValueError(
                f"completion is {completion!r}; allowed are {_listed(*makers)}, an object or a function"
            )
        made: Completion = makers[completion]()  # type: ignore[operator]
        return made
    if isinstance(completion, type):
        raise TypeError(f"completion is the class {completion.__name__}; give an object, {completion.__name__}(...)")
    if isinstance(completion, Completion):
        return completion
    if callable(completion):
        return CallableCompletion(completion)
    raise TypeError(f"completion is {completion!r}; give a name, an object with prepare(), or a function")


def as_propensity(propensity: str | PropensityModel) -> PropensityModel:
    """The propensity model behind a name or an object with fit(); "uniform" is another name of "constant"."""
    makers: dict[str, Callable[[], PropensityModel]] = {
        "auto": AutoPropensity,
        "constant": UniformPropensity,
        "uniform": UniformPropensity,
        "additive": AdditivePropensity,
        "bernoulli": BernoulliPropensity,
        "ising": IsingPropensity,
    }
    if isinstance(propensity, str):
        if propensity not in makers:
            raise ValueError(f"propensity is {propensity!r}; allowed are {_listed(*makers)} or an object")
        return makers[propensity]()
    if isinstance(propensity, type) or not hasattr(propensity, "fit"):
        raise TypeError(f"propensity is {propensity!r}; give a name or an object with fit(training_mask, train_share)")
    return propensity


def check_bounds(bounds: Any) -> tuple[float, float] | None:
    """Bounds of the data as (low, high), infinite where open, or None."""
    if bounds is None:
        return None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(f"bounds is {bounds!r}; give a pair such as (0, None)")
    low = -np.inf if bounds[0] is None else float(bounds[0])
    high = np.inf if bounds[1] is None else float(bounds[1])
    if not low < high:
        raise ValueError(f"bounds is {bounds!r}; the first must be below the second")
    return low, high


def _gaussian_process() -> Completion:
    from corten.completion.gaussian_process import GaussianProcessCompletion

    return GaussianProcessCompletion()


def _stack() -> Completion:
    from corten.completion.stack import StackedCompletion

    return StackedCompletion()


def _listed(*names: str) -> str:
    return ", ".join(f'"{name}"' for name in names)
