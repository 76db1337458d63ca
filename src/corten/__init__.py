"""corten: estimates and prediction intervals for the missing entries of a tensor.

    >>> import corten
    >>> result = corten.complete(x, coverage=0.9)            # doctest: +SKIP
    >>> result.estimate, result.lower, result.upper          # doctest: +SKIP

Names are loaded when they are first used, so importing corten is quick.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; the module that has it takes longer to load than all of this

__version__ = "0.1.0"

_NAMES = {
    "calibration.cross": "CrossCalibration RepeatedSplits",
    "calibration.gaps": "GapCalibration",
    "calibration.split": "SplitCalibration",
    "checkpoint": "Checkpoint",
    "completer": "ConformalCompleter",
    "completion.alternating": "CPCompletion",
    "completion.gaussian_process": "GaussianProcessCompletion",
    "completion.riemannian": "TensorTrainCompletion TuckerCompletion",
    "completion.smooth": "SmoothCompletion",
    "completion.stack": "StackedCompletion",
    "conformal.adaptive": "AdaptiveCoverage",
    "data.observed": "ObservedTensor",
    "evidence.score_log": "ScoreLog",
    "functions": "complete complete_table",
    "large.dask_arrays": "complete_lazily",
    "large.flow": "complete_to_zarr",
    "propensity": "AdditivePropensity AutoPropensity BernoulliPropensity IsingPropensity KnownPropensity Linear "
    "Polynomial Product Sigmoid UniformPropensity Zero",
    "results.fitted": "Fitted",
    "results.intervals": "Intervals",
    "results.saving": "load",
}
_HOME = {name: f"corten.{module}" for module, names in _NAMES.items() for name in names.split()}
_ROOMS = ("conformal", "io", "lowrank", "propensity", "simulate", "sklearn", "xarray")
_MODULES = {name: f"corten.{name}" for name in _ROOMS} | {"metrics": "corten.evidence.metrics"}

__all__ = ["__version__", *_HOME, *_MODULES]

if TYPE_CHECKING:
    from typing import Any

    from corten import conformal, io, lowrank, propensity, simulate, sklearn, xarray
    from corten.calibration.cross import CrossCalibration, RepeatedSplits
    from corten.calibration.gaps import GapCalibration
    from corten.calibration.split import SplitCalibration
    from corten.checkpoint import Checkpoint
    from corten.completer import ConformalCompleter
    from corten.completion.alternating import CPCompletion
    from corten.completion.gaussian_process import GaussianProcessCompletion
    from corten.completion.riemannian import TensorTrainCompletion, TuckerCompletion
    from corten.completion.smooth import SmoothCompletion
    from corten.completion.stack import StackedCompletion
    from corten.conformal.adaptive import AdaptiveCoverage
    from corten.data.observed import ObservedTensor
    from corten.evidence import metrics
    from corten.evidence.score_log import ScoreLog
    from corten.functions import complete, complete_table
    from corten.large.dask_arrays import complete_lazily
    from corten.large.flow import complete_to_zarr
    from corten.propensity import (
        AdditivePropensity,
        AutoPropensity,
        BernoulliPropensity,
        IsingPropensity,
        KnownPropensity,
        Linear,
        Polynomial,
        Product,
        Sigmoid,
        UniformPropensity,
        Zero,
    )
    from corten.results.fitted import Fitted
    from corten.results.intervals import Intervals
    from corten.results.saving import load


def _register_accessor() -> None:
    """Give xarray its accessor, if xarray is loaded: corten does not load it for that."""
    if "corten.xarray" not in sys.modules and hasattr(sys.modules.get("xarray"), "register_dataset_accessor"):
        import_module("corten.xarray")


def __getattr__(name: str) -> Any:
    _register_accessor()
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'corten' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_register_accessor()
