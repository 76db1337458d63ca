"""Saves a fitted completer to one file and loads it back: the same bits for every interval, no pickle."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from corten.archive import read_archive, write_archive
from corten.calibration.cross import CrossConformal, RepeatedSplits
from corten.calibration.gap_shaped import GapShaped
from corten.calibration.random_split import RandomSplit
from corten.calibration.rounds import Round
from corten.choices import Choice
from corten.completer import ConformalCompleter
from corten.completion.riemannian import TensorTrainCompletion, TuckerCompletion
from corten.completion.smooth import SmoothCompletion
from corten.conformal.calibrated import Calibrated
from corten.conformal.folds import MergedSplits, SplitList
from corten.conformal.scale import TableScale, UnitScale
from corten.conformal.scores import Absolute, Adaptive, Normalized, Signed
from corten.conformal.weights import ExactIsingWeights, OddsWeights, PooledWeights, Weights
from corten.labels import Axis
from corten.lowrank import TensorTrain
from corten.observed import ObservedTensor
from corten.packing import Packer, Unpacker
from corten.propensity import (
    BernoulliPropensity,
    FittedPropensity,
    IsingPropensity,
    KnownPropensity,
    Linear,
    Polynomial,
    Product,
    Sigmoid,
    UniformPropensity,
    Zero,
)
from corten.propensity.link import Logit, NoLink, Probit
from corten.propensity.neighborhood import Neighborhood
from corten.results.fitted import Fitted
from corten.transform import Affine, FittedChain, Power

__all__ = ["SavedCompletion", "load", "save"]

FORMAT, VERSION = "corten fit", 1


@dataclass(frozen=True)
class SavedCompletion:
    """What a saved fit keeps of a completion: a description; the estimate it made is `Fitted.estimate`."""

    description: str
    choices: tuple[Choice, ...] = ()


_KNOWN: tuple[type, ...] = (
    Axis, Choice, Round, ObservedTensor, SavedCompletion, FittedPropensity, TensorTrain, Neighborhood,
    Product, Linear, Polynomial, Sigmoid, Zero, Logit, Probit, NoLink, Absolute, Adaptive, Normalized,
    Signed, ConformalCompleter, RandomSplit, GapShaped, CrossConformal, RepeatedSplits, IsingPropensity,
    BernoulliPropensity, UniformPropensity, KnownPropensity, TuckerCompletion, TensorTrainCompletion,
    SmoothCompletion, Affine, Power, FittedChain,
)  # fmt: skip


def save(fitted: Fitted, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a fit to one file, whole or not at all; an existing file is refused.

    What intervals need is kept exactly. A fitted completion is kept as a description, as its estimate is there;
    a score of one's own cannot be kept, as it is code.

    Example:
        >>> save(fitted, "tec.corten")                                    # doctest: +SKIP
        >>> corten.load("tec.corten").intervals(0.95)                     # doctest: +SKIP
    """
    packer = Packer(_KNOWN)
    content = {
        one.name: packer.pack(_plain(one.name, getattr(fitted, one.name), fitted), one.name) for one in fields(Fitted)
    }
    return write_archive(path, FORMAT, VERSION, content, packer.arrays, overwrite=overwrite)


def load(path: str | os.PathLike[str]) -> Fitted:
    """Read a fit that `Fitted.save` wrote; it answers any coverage with the same bits as the saved one.

    Example:
        >>> corten.load("tec.corten").intervals(0.9).estimate             # doctest: +SKIP
    """
    content, arrays = read_archive(path, FORMAT, VERSION)
    try:
        unpack = Unpacker(_KNOWN, arrays).unpack
        parts = {name: unpack(value) for name, value in content.items()}
        for array in (parts["observed"].values, parts["observed"].mask, parts["observed"].domain):
            if array is not None:
                array.setflags(write=False)
        parts["scale"] = _scale(parts["scale"])
        if parts["calibrated"] is not None:
            parts["calibrated"] = _calibrated(parts)
        fitted = Fitted(**parts)
        # Parts that do not fit together show here, and not when somebody asks for intervals.
        fitted.observed.wrap(fitted.intervals(0.9).estimate_array)
        few = fitted.missing_entries[:8]
        if fitted.calibrated is not None:
            fitted.calibrated.intervals(few, np.zeros(len(few)), fitted.scale.at(few), 0.9)
        return fitted
    except Exception as problem:  # whatever hostile content makes the parts' own constructors say
        raise ValueError(
            f"{path} does not hold what a fit needs ({problem!r}): was it written by another corten?"
        ) from None


def _plain(name: str, value: Any, fitted: Fitted) -> Any:
    """A part of a fit as data: objects that hold functions become what they answer."""
    every = np.arange(fitted.observed.values.size)
    if name == "completion" and value is not None:
        return SavedCompletion(str(fitted.options.get("completion", type(value).__name__)), _choices(value))
    if name == "scale":
        return None if isinstance(value, UnitScale) else np.asarray(value.at(every))
    if name == "completer":
        return _asked_for(value)
    if name == "local":
        return None
    if name == "propensity" and value is not None and not isinstance(value.engine, str | int):
        return replace(value, engine="auto")
    if name == "calibrated" and isinstance(value, MergedSplits):
        return {"splits": [_split(one, fitted) for one in value.splits]}
    if name == "calibrated" and value is not None:
        if not isinstance(value, Calibrated):
            raise ValueError("this fit was given another promise: save it without, or save result.to_netcdf(path)")
        return _list(value, fitted)
    return value


def _split(one: SplitList, fitted: Fitted) -> dict[str, Any]:
    kept = {name: _plain(name, value, fitted) for name, value in (("scale", one.scale), ("propensity", one.law))}
    return _list(one.calibrated, fitted) | kept | {"estimate": one.estimate, "change": one.change}


def _list(calibrated: Calibrated, fitted: Fitted) -> dict[str, Any]:
    """One list of scores as data, without the scores, which the fit holds."""
    score, weights, every = calibrated.score, calibrated.weights, np.arange(fitted.observed.values.size)
    if type(score) not in (Absolute, Adaptive, Normalized, Signed):
        raise ValueError(
            f"score is an object of your own ({type(score).__name__}): it is code, which is never saved; save "
            "intervals instead (result.to_netcdf), or use score='absolute', 'adaptive', 'signed' or 'normalized'"
        )
    exact = isinstance(weights, ExactIsingWeights)
    if not exact and weights.neighbour_factor(fitted.missing_entries[:1]) is not None:
        raise ValueError(
            f"weights of the kind {type(weights).__name__} cannot be saved: neighbours change them in a way of "
            "their own"
        )
    return {
        "score": score,
        "entries": calibrated.entries,
        "exact": exact,
        "log_weights": np.asarray(weights.log_weight(every)),
        "at_calibration": np.asarray(weights.log_weight(calibrated.entries)),
    }


def _calibrated(parts: dict[str, Any]) -> Calibrated | MergedSplits:
    kept, shape = parts["calibrated"], parts["observed"].shape
    if "splits" not in kept:
        return _list_of(kept, parts["scores"], parts["propensity"], shape)
    found, start = [], 0
    for one in kept["splits"]:
        stop = start + len(one["entries"])
        calibrated = _list_of(one, parts["scores"][start:stop], one["propensity"], shape)
        found.append(SplitList(calibrated, one["estimate"], _scale(one["scale"]), one["change"], one["propensity"]))
        start = stop
    return MergedSplits(found)


def _list_of(kept: dict[str, Any], scores: np.ndarray, law: Any, shape: tuple[int, ...]) -> Calibrated:
    table, entries, at_calibration = kept["log_weights"], kept["entries"], kept["at_calibration"]
    weights: Weights = OddsWeights(table)
    if kept["exact"]:
        weights = ExactIsingWeights(
            table, shape=shape, calibration=entries, neighbours=law.neighbours, pair=law.pair
        )
    elif not np.array_equal(table[entries], at_calibration):
        weights = PooledWeights(entries, at_calibration, table)
    return Calibrated(kept["score"], scores, entries, weights)


def _scale(kept: np.ndarray | None) -> UnitScale | TableScale:
    return UnitScale() if kept is None else TableScale(kept)


def _asked_for(completer: Any) -> Any:
    """The completer, for audits of a loaded fit; None where it holds code or objects of the user's own.

    An engine object, such as the client of a cluster, will be gone by then: audits run on the default engine.
    """
    if completer is not None and not isinstance(completer.engine, str | int):
        completer = replace(completer, engine="auto")
    try:
        Packer(_KNOWN).pack(completer)
    except ValueError:
        return None
    return completer


def _choices(completion: Any) -> tuple[Choice, ...]:
    found = getattr(completion, "choices", ())
    return tuple(found) if all(isinstance(one, Choice) for one in found) else ()
