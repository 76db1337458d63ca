"""Options as users write them (a name or an object), and the objects they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

import numpy as np

from corten.calibration.cross import CrossCalibration
from corten.calibration.gaps import GapCalibration
from corten.calibration.split import SplitCalibration
from corten.calibration.task import Calibration, Progress
from corten.completion.auto import MAX_STACK_SIZE, MixedCompletion
from corten.completion.callables import CallableCompletion
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.completion.protocol import Completion
from corten.completion.riemannian import TensorTrainCompletion, TuckerCompletion
from corten.completion.smooth import SmoothCompletion
from corten.completion.stack import StackedCompletion
from corten.conformal.scores import Score
from corten.data.axes import Axis, longest_unordered
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.engine import as_engine
from corten.engine.lazy import takes_lazy
from corten.engine.memory import in_words, refuse_beyond
from corten.engine.threads import default_threads
from corten.propensity import (
    AdditivePropensity,
    AutoPropensity,
    BernoulliPropensity,
    IsingPropensity,
    PropensityModel,
    UniformPropensity,
)

if TYPE_CHECKING:
    from distributed import Client

    from corten.engine import Engine

CompletionName = Literal["auto", "tucker", "tensor-train", "smooth", "gaussian-process", "stack"]
PropensityName = Literal["auto", "constant", "uniform", "additive", "bernoulli", "ising"]
CalibrationName = Literal["auto", "random", "cross", "gaps"]
ScoreName = Literal["auto", "absolute", "adaptive", "signed", "normalized"]
WeightsName = Literal["exact", "approximate"]
EngineName = Literal["auto", "threads", "jax", "gpu", "dask"]
FillFunction = Callable[[np.ndarray], np.ndarray]
"""From an array with NaN to a full array."""
CompletionOption: TypeAlias = CompletionName | Completion | FillFunction
PropensityOption: TypeAlias = PropensityName | PropensityModel
CalibrationOption: TypeAlias = CalibrationName | Calibration
ScoreOption: TypeAlias = ScoreName | Score
EngineOption: TypeAlias = "EngineName | int | Engine | Client"
Bounds: TypeAlias = tuple[float | None, float | None] | None
Option = TypeVar("Option")

SPLIT_ROUNDS = 3  # a random split takes as long as so many rounds of pseudo-gaps, measured
SECONDS_PER_ENTRY_OF_SPLIT = 3.2e-6  # of a random split of a large tensor, on any number of cores
USES_ENGINE = (TuckerCompletion, TensorTrainCompletion, MixedCompletion)


def predicted_seconds(calibration: Calibration, axes: Sequence[Axis], missing: int, cores: int | None = None) -> float:
    """Seconds that a fit with the default completion takes, about, on so many idle cores or all of this machine.

    The seconds of one core are CPU seconds.
    """
    cores = cores or default_threads()
    shape = tuple(axis.length for axis in axes)
    own, entries = getattr(calibration, "seconds", None), math.prod(shape)
    unordered = longest_unordered(axes)
    if callable(own):
        return float(own(entries, missing, cores, shape, unordered))
    rounds = getattr(calibration, "rounds", None)
    if not calibration.pooled or not isinstance(rounds, int):
        rounds = SPLIT_ROUNDS * int(getattr(calibration, "count", 1))
        if entries > MAX_STACK_SIZE:  # Tucker completion alone
            return SECONDS_PER_ENTRY_OF_SPLIT * entries * rounds / SPLIT_ROUNDS
    return GapCalibration(rounds).seconds(entries, missing, cores, shape)


def predicted_bytes(calibration: Calibration, axes: Sequence[Axis], missing: int) -> int:
    """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input."""
    entries = math.prod(axis.length for axis in axes)
    if isinstance(calibration, GapCalibration):
        return calibration.peak_bytes(entries, missing, longest_unordered(axes))
    return calibration.peak_bytes(entries, missing)


def check_needs(calibration: Calibration, observed: ObservedTensor, *, engine: EngineOption, tell: Progress) -> Choice:
    """The record of the memory that a fit takes, predicted, told to `tell`, and refused where there is less."""
    needed = predicted_bytes(calibration, observed.axes, observed.n_missing)
    if hasattr(tell, "predicted"):
        of_device = getattr(calibration, "device_bytes", None)
        on_device = None if of_device is None else of_device(engine, observed.shape, observed.n_missing)
        tell.predicted(predicted_seconds(calibration, observed.axes, observed.n_missing), needed, on_device)
    refuse_beyond(
        needed,
        f"completing {observed.values.size:,} entries",
        "work from disk (corten.complete_to_zarr, or corten complete to .zarr), complete a part of the tensor, or "
        "use calibration='random'",
    )
    why = "besides Python and its libraries; predicted before starting, from the number of entries and rounds"
    return Choice("peak memory", f"about {in_words(needed)}", why)


def as_calibration(calibration: CalibrationOption) -> Calibration | None:
    """The calibration behind a name or an object with calibrate(); None for "auto": the shape of the gaps decides."""
    if isinstance(calibration, str):
        makers: dict[str, Callable[[], Calibration | None]] = {
            "auto": lambda: None, "random": SplitCalibration, "gaps": GapCalibration, "cross": CrossCalibration
        }  # fmt: skip
        return _named("calibration", calibration, makers)
    if not isinstance(calibration, type) and isinstance(calibration, Calibration):
        return calibration
    raise TypeError(f"calibration is {calibration!r}; give a name or an object with calibrate(task)")


def as_completion(
    completion: CompletionOption, *, gaps: bool, engine: EngineOption = "auto", mixed: bool = True
) -> Completion:
    """The completion behind a name, an object with prepare() or a function.

    gaps: whether pseudo-gaps are hidden; "auto" then is the stack, else the stack with Tucker completion as a member.
    mixed: False where only a single low-rank model serves (a score needs its leverage, a cluster or a disk holds the
    data); "auto" without pseudo-gaps is then Tucker with an automatic ridge. A completion that uses an engine and has
    none of its own gets `engine`.
    """
    if isinstance(completion, str):
        automatic = MixedCompletion if mixed else lambda: TuckerCompletion(ridge="auto")
        makers: dict[str, Callable[[], Completion]] = {
            "auto": StackedCompletion if gaps else automatic,
            "tucker": TuckerCompletion,
            "tensor-train": TensorTrainCompletion,
            "smooth": SmoothCompletion,
            "gaussian-process": GaussianProcessCompletion,
            "stack": StackedCompletion,
        }
        found = _named("completion", completion, makers, ", an object or a function")
    elif isinstance(completion, type):
        raise TypeError(f"completion is the class {completion.__name__}; give an object, {completion.__name__}(...)")
    elif isinstance(completion, Completion):
        found = completion
    elif callable(completion):
        found = CallableCompletion(completion)
    else:
        raise TypeError(f"completion is {completion!r}; give a name, an object with prepare(), or a function")
    own = getattr(found, "engine", None)
    if is_dataclass(found) and isinstance(own, str) and own == "auto":
        return cast(Completion, replace(found, engine=engine))  # type: ignore[type-var]
    return found


def on_cluster(engine: EngineOption) -> bool:
    """Whether the workers of a cluster run the passes and hold the data."""
    return takes_lazy(as_engine(engine))


def unused_workers(completion: Completion, engine: EngineOption) -> tuple[Choice, ...]:
    """A record where the completion does not use the workers of a cluster."""
    if isinstance(completion, USES_ENGINE) or not on_cluster(engine):
        return ()
    because = "only the completions tucker and tensor-train use the workers of a cluster"
    return (Choice("completion runs on", "this machine", because),)


def as_propensity(propensity: PropensityOption) -> PropensityModel:
    """The propensity model behind a name or an object with fit(); "uniform" is another name of "constant"."""
    if isinstance(propensity, str):
        makers: dict[str, Callable[[], PropensityModel]] = {
            "auto": AutoPropensity,
            "constant": UniformPropensity,
            "uniform": UniformPropensity,
            "additive": AdditivePropensity,
            "bernoulli": BernoulliPropensity,
            "ising": IsingPropensity,
        }
        return _named("propensity", propensity, makers)
    if isinstance(propensity, type) or not hasattr(propensity, "fit"):
        raise TypeError(f"propensity is {propensity!r}; give a name or an object with fit(training_mask, train_share)")
    return propensity


def _named(option: str, name: str, makers: Mapping[str, Callable[[], Option]], others: str = " or an object") -> Option:
    """The object that a name stands for."""
    if name not in makers:
        allowed = ", ".join(f'"{one}"' for one in makers)
        raise ValueError(f"{option} is {name!r}; allowed are {allowed}{others}")
    return makers[name]()


def check_bounds(bounds: Bounds) -> tuple[float, float] | None:
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
