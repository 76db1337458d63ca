"""A fit in one file of arrays and JSON, without pickle: plain values, arrays, and objects of `CLASSES`, all checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import MethodType, NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.data.choices import Choice
from corten.io import wire
from corten.io.archive import read_archive, write_archive
from corten.propensity import FittedPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

FIT = "corten fit"
MAX_REFERRED_PER_BYTE = 4  # bytes of arrays that are referred to, per byte of the arrays: parts of a fit share masks
CLASSES = {  # that a file may hold, by module
    "conformal.local_scale": "EntryFeatures LearnedScale BlockFolds ConstantScale ByDepthScale BoostedScale",
    "completion.riemannian": "TuckerCompletion TensorTrainCompletion PreparedLowRank", "calibration.gap_scale": "Local",
    "data.transform": "Affine Power FittedChain Standardise BoxCox Climatology Chain", "completion.positions": "Grid",
    "completion.gaussian_process": "GaussianProcessCompletion PreparedProcess", "calibration.split": "SplitCalibration",
    "completion.correction": "Correction PreparedCorrected", "completion.neighbours": "NeighbourFeatures",
    "completion.lagged": "LaggedCorrelations",
    "conformal.scores": "Absolute Adaptive Automatic Normalized Signed", "completion.weights": "WeightsByDifference",
    "conformal.weights": "ExactIsingWeights OddsWeights PooledWeights", "conformal.calibrated": "CalibratedScores",
    "completion.unfoldings": "UnfoldingCompletion PreparedUnfoldings", "completion.auto": "MixedCompletion",
    "completion.effects": "EffectsCompletion PreparedEffects",
    "conformal.scale": "LeverageScale TableScale UnitScale", "calibration.cross": "CrossCalibration RepeatedSplits",
    "completion.covariance": "Covariance Component Season", "completion.smooth": "SmoothCompletion PreparedSmooth",
    "completion.stack": "StackedCompletion PreparedStack", "conformal.split": "CalibratedSplit", "data.axes": "Axis",
    "results.saving": "SavedCompletion", "conformal.merged": "MergedSplits", "completer": "ConformalCompleter",
    "completion.trend": "FittedTrend", "conformal.depth": "DepthWeights", "data.observed": "ObservedTensor",
    "calibration.task": "Round", "conformal.trees": "Trees", "results.fitted": "Fitted", "data.wide": "WideLabels",
    "data.choices": "Choice", "lowrank": "TensorTrain", "calibration.gaps": "GapCalibration",
    "propensity": "FittedPropensity IsingPropensity BernoulliPropensity UniformPropensity KnownPropensity Product "
    "Linear Polynomial Sigmoid Zero AdditivePropensity AutoPropensity Logit Probit NoLink Neighborhood",
}  # fmt: skip
PLAIN = {"None": NoneType, "str": str, "bool": (bool, np.bool_), "int": (int, np.integer), "tuple": tuple, "dict": dict,
         "float": (int, float, np.number), "np.ndarray": np.ndarray}  # fmt: skip
OWN_ENGINE = {name: {"engine": "auto"} for name in ("FittedPropensity", "PreparedLowRank")}  # none is started
METHODS = ("neighbours", "pair")  # of a fitted propensity model, which exact weights call


@dataclass(frozen=True)
class SavedCompletion:
    """The description of a completion with code of the user, which a file does not keep."""

    description: str
    choices: tuple[Choice, ...] = ()


def save(fitted: Fitted, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write this fit to one file, whole or not at all and without pickle; `corten.load` reads it.

    Parameters
    ----------
    path : str or path
        The file, usually with the suffix ``.corten``.
    overwrite : bool, default False
        Whether an existing file is replaced; if not, it is a FileExistsError.
    """
    completer, completion, encoder = fitted.completer, fitted.completion, Encoder()
    if completer is not None and not isinstance(completer.engine, str | int):
        completer = replace(completer, engine="auto")
    kept = Encoder().keeps(completion) and not isinstance(completion, SavedCompletion)
    if not kept and completion is not None:
        choices = tuple(one for one in getattr(completion, "choices", ()) if isinstance(one, Choice))
        completion = SavedCompletion(str(fitted.options.get("completion", type(completion).__name__)), choices)
    calibrated = fitted.calibrated and fitted.calibrated.for_file(kept)
    completer = completer if Encoder().keeps(completer) else None
    changed = replace(fitted, completer=completer, completion=completion, calibrated=calibrated)
    content = {one.name: encoder.encode(getattr(changed, one.name), one.name) for one in fields(fitted)}
    return write_archive(path, FIT, content, encoder.arrays, overwrite=overwrite)


def load(path: str | os.PathLike[str]) -> Fitted:
    """Read a fit that `Fitted.save` wrote.

    Parameters
    ----------
    path : str or path
        The file. No code in it is executed and no engine is started.

    Returns
    -------
    Fitted
        Gives the same bits as the saved fit. It is a ValueError if the file is damaged, or of another version.

    Examples
    --------
    >>> corten.load("tec.corten").intervals(0.9).estimate             # doctest: +SKIP
    """
    content, arrays = read_archive(path, FIT)
    for array in arrays.values():
        array.setflags(write=False)
    try:
        fitted: Fitted = Decoder(arrays).decode({"!": "Fitted", "of": content})
        fitted.observed.wrap(fitted.intervals(0.9).estimate_array)  # parts that do not match are reported here
        if fitted.calibrated is not None:
            fitted.calibrated.intervals(fitted.missing_entries[:8], 0.9)
        return fitted
    except Exception as problem:  # damaged content can raise anything in the constructors
        raise ValueError(f"{path} does not hold what a fit needs: {problem!r}") from None


def _method(name: str, of: object) -> object:
    if not isinstance(of, FittedPropensity):
        raise ValueError(f"it holds a {name!r}, which this corten does not know")
    return getattr(of, name)


@cache
def classes() -> dict[str, type]:
    """The classes that a file may hold, by name."""
    return {n: getattr(import_module(f"corten.{home}"), n) for home, names in CLASSES.items() for n in names.split()}


class Encoder(wire.Encoder):
    """Also objects of `CLASSES`, and the methods of a propensity model that weights call."""

    shares = True
    refusal = "{} is a {}, which a file cannot keep: save the intervals (result.to_netcdf)"

    def keeps(self, value: object) -> bool:
        """Whether a file can hold an object: code of the user it cannot."""
        with suppress(ValueError):
            self.encode(value, "")
            return True
        return False

    def encode(self, value: Any, place: str) -> object:
        name = type(value).__name__
        if isinstance(value, MethodType) and isinstance(value.__self__, FittedPropensity) and value.__name__ in METHODS:
            return {"!": value.__name__, "of": self.encode(replace(value.__self__, choices=(), history=()), place)}
        if classes().get(name) is type(value):
            own = {one: getattr(value, one) for one in signature(type(value)).parameters} | OWN_ENGINE.get(name, {})
            return {"!": name, "of": {one: self.encode(part, f"{place}.{one}") for one, part in own.items()}}
        return super().encode(value, place)


class Decoder(wire.Decoder):
    """The inverse of `Encoder`. Parts of a fit may share arrays, up to a limit."""

    makers: Mapping[str, Callable[..., object]] = {**wire.Decoder.makers, **{n: partial(_method, n) for n in METHODS}}

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self._bytes_left = (1 << 20) + MAX_REFERRED_PER_BYTE * sum(one.nbytes for one in arrays.values())

    def taken(self, name: str) -> np.ndarray:
        self._bytes_left -= self.arrays[name].nbytes
        if self._bytes_left < 0:
            raise ValueError("it refers to the same arrays again and again")
        return self.arrays[name]

    def decode(self, node: Any, depth: int = 0) -> Any:
        tag = node["!"] if isinstance(node, dict) else None
        if tag not in classes():
            return super().decode(node, depth)
        values = {name: self.decode(one, depth + 1) for name, one in node["of"].items()} | OWN_ENGINE.get(tag, {})
        return classes()[tag](**_checked(classes()[tag], values))


def _checked(kind: type, values: dict[str, object]) -> dict[str, object]:
    """The values of an object's fields; a TypeError for one that is not of the type that the class says."""
    for one in fields(kind) if is_dataclass(kind) else ():
        names = re.sub(r"\[[^][]*\]", "", re.sub(r"\[[^][]*\]", "", str(one.type))).split(" | ")
        allowed = tuple(PLAIN.get(name) or classes().get(name, object) for name in names)
        if one.name in values and not isinstance(values[one.name], allowed):  # type: ignore[arg-type]
            raise TypeError(f"{kind.__name__}.{one.name} is a {type(values[one.name]).__name__}, not {one.type}")
    return values
