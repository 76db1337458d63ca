"""Saves a fit to one file and loads it back, to the same bits: arrays, and JSON of a fixed list of types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.data.axes import zone_of
from corten.data.choices import Choice
from corten.io.archive import read_archive, write_archive
from corten.propensity import FittedPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

FIT, MAX_DEPTH = "corten fit", 40
MAX_REFERENCES = 4  # bytes of arrays that are referred to, per byte of the arrays: parts of a fit share masks
TYPES = {
    "data.choices": "Choice", "data.wide": "WideLabels", "data.axes": "Axis",
    "data.observed": "ObservedTensor", "lowrank": "TensorTrain",
    "results.saving": "SavedCompletion", "results.fitted": "Fitted",
    "completer": "ConformalCompleter", "calibration.task": "Round",
    "calibration.split": "SplitCalibration", "calibration.gaps": "GapCalibration", "calibration.gap_scale": "Local",
    "calibration.cross": "CrossCalibration RepeatedSplits", "completion.smooth": "SmoothCompletion PreparedSmooth",
    "completion.riemannian": "TuckerCompletion TensorTrainCompletion PreparedLowRank",
    "completion.stack": "StackedCompletion PreparedStack", "completion.weights": "WeightsByDifference",
    "completion.covariance": "Covariance Component Season",
    "completion.positions": "Grid",
    "completion.unfoldings": "UnfoldingCompletion PreparedUnfoldings", "completion.auto": "MixedCompletion",
    "completion.correction": "Correction NeighbourFeatures PreparedCorrected", "completion.trend": "FittedTrend",
    "completion.gaussian_process": "GaussianProcessCompletion PreparedProcess",
    "conformal.calibrated": "CalibratedScores", "conformal.merged": "MergedSplits", "conformal.trees": "Trees",
    "conformal.split": "CalibratedSplit",
    "conformal.scale": "LeverageScale TableScale UnitScale", "conformal.depth": "DepthWeights",
    "conformal.local_scale": "EntryFeatures LearnedScale BlockFolds ConstantScale ByDepthScale BoostedScale",
    "conformal.scores": "Absolute Adaptive Automatic Normalized Signed", "propensity.link": "Logit Probit NoLink",
    "conformal.weights": "ExactIsingWeights OddsWeights PooledWeights", "propensity.neighborhood": "Neighborhood",
    "propensity": "FittedPropensity IsingPropensity BernoulliPropensity UniformPropensity KnownPropensity Product "
    "Linear Polynomial Sigmoid Zero AdditivePropensity AutoPropensity",
    "data.transform": "Affine Power FittedChain Standardise BoxCox Climatology Chain",
}  # fmt: skip
OWN_ENGINE = ("FittedPropensity", "PreparedLowRank")  # the engine may not be available where the file is read
METHODS = ("neighbours", "pair")  # of a fitted propensity model, which exact weights call


@dataclass(frozen=True)
class SavedCompletion:
    """The description of a completion with code of the user, which a file does not keep."""

    description: str
    choices: tuple[Choice, ...] = ()


def save(fitted: Fitted, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a fit to one file, whole or not at all; see `Fitted.save`. Code of the user is not kept."""
    completer, made, packer = fitted.completer, fitted.completion, _Packer()
    if completer is not None and not isinstance(completer.engine, str | int):
        completer = replace(completer, engine="auto")  # a client cannot be saved
    completer = completer if _can_keep(completer) else None
    known = _can_keep(made) and not isinstance(made, SavedCompletion)
    if not known and made is not None:
        choices = tuple(one for one in getattr(made, "choices", ()) if isinstance(one, Choice))
        made = SavedCompletion(str(fitted.options.get("completion", type(made).__name__)), choices)
    calibrated = fitted.calibrated and fitted.calibrated.for_file(known)
    kept = replace(fitted, completer=completer, completion=made, calibrated=calibrated)
    content = {one.name: packer.pack(getattr(kept, one.name), one.name) for one in fields(fitted)}
    return write_archive(path, FIT, content, packer.arrays, overwrite=overwrite)


def load(path: str | os.PathLike[str]) -> Fitted:
    """Read a fit that `Fitted.save` wrote.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Fitted
        Gives the same bits as the saved fit for any coverage. No code of the file is executed and no engine is started.
        It is a ValueError if the file is damaged or is no saved fit.

    Examples
    --------
    >>> corten.load("tec.corten").intervals(0.9).estimate             # doctest: +SKIP
    """
    content, arrays = read_archive(path, FIT)
    try:
        unpacker = _Unpacker(arrays)
        fitted: Fitted = _types()["Fitted"](**{name: unpacker.unpack(node) for name, node in content.items()})
        for array in (fitted.observed.values, fitted.observed.mask, fitted.observed.domain):
            if array is not None:
                array.setflags(write=False)
        if not isinstance(fitted.propensity, FittedPropensity | None):
            raise TypeError("its propensity is not a propensity model")
        # Parts that do not fit together are reported here and not at the first use.
        fitted.observed.wrap(fitted.intervals(0.9).estimate_array)
        few = fitted.missing_entries[:8]
        if fitted.calibrated is not None:
            fitted.calibrated.intervals(few, 0.9)
        return fitted
    except Exception as problem:  # damaged content can raise anything in the constructors
        raise ValueError(
            f"{path} does not hold what a fit needs ({problem!r}): was it written by another corten?"
        ) from None


def _can_keep(value: Any) -> bool:
    """Whether a file can hold an object: code of the user it cannot."""
    try:
        _Packer().pack(value, "")
    except ValueError:
        return False
    return True


@cache
def _types() -> dict[str, Any]:
    return {n: getattr(import_module(f"corten.{module}"), n) for module, names in TYPES.items() for n in names.split()}


class _Packer:
    """Converts values to JSON and collects their arrays; a shared array is stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}

    def pack(self, value: Any, place: str) -> Any:
        name = type(value).__name__
        if value is None or type(value) in (bool, str, int) or (type(value) is float and np.isfinite(value)):
            return value
        if isinstance(value, list):
            return [self.pack(one, place) for one in value]
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, place)
        if type(value) in (float, tuple):
            return {"!": name, "of": str(value) if name == "float" else self.pack(list(value), place)}
        if isinstance(value, MethodType) and isinstance(value.__self__, FittedPropensity) and value.__name__ in METHODS:
            return {"!": value.__name__, "of": self.pack(replace(value.__self__, choices=(), history=()), place)}
        if name in OWN_ENGINE:
            value = replace(value, engine="auto")  # the engine may not be available where the file is read
        if _types().get(name) is type(value):
            arguments = {one: getattr(value, one) for one in signature(type(value)).parameters}
            return {"!": name, "of": {one: self.pack(own, f"{place}.{one}") for one, own in arguments.items()}}
        if hasattr(value, "nlevels") and hasattr(value, "get_level_values"):
            return {"!": "index", "of": [self._labels(value.get_level_values(k), place) for k in range(value.nlevels)]}
        if hasattr(value, "to_index") and hasattr(value, "xindexes"):
            return {"!": "coordinates", "of": self._coordinates(value, place)}
        if isinstance(value, Mapping):
            return {"!": "dict", "of": [[self.pack(key, place), self.pack(one, place)] for key, one in value.items()]}
        if hasattr(value, "calendar") and hasattr(value, "has_year_zero"):
            clock = [*value.timetuple()[:6], value.microsecond, value.calendar, bool(value.has_year_zero)]
            return {"!": "date", "of": " ".join(map(str, clock))}
        raise ValueError(f"{place} is a {name}, which a file cannot keep: save the intervals (result.to_netcdf)")

    def _array(self, value: Any, place: str) -> Any:
        array = np.asarray(value)
        if array.dtype.kind in "OT":
            items = [self.pack(one, place) for one in array.ravel().tolist()]
            return {"!": "objects", "shape": list(array.shape), "of": items}
        if array.dtype.kind not in "biufcmMUS":
            raise ValueError(f"{place} has dtype {array.dtype}, which cannot be saved")
        found = self._names.setdefault(id(array), f"a{len(self.arrays)}")
        self.arrays[found] = array  # held, so that no other array can get its id
        return {"!": "scalar" if isinstance(value, np.generic) else "array", "of": found}

    def _labels(self, index: Any, place: str) -> Any:
        """One level of the index of a table: labels, time zone and name; labels that a file cannot keep as text."""
        labels, zone = _without_zone(index)
        if labels.dtype.kind not in "biufmM":
            labels = np.array(list(map(str, labels)))
        return self.pack([labels, zone, index.name], place)

    def _coordinates(self, coords: Any, place: str) -> Any:
        plain = coords.to_dataset()
        stacked = {dim: list(one.names) for dim, one in plain.indexes.items() if one.nlevels > 1 and dim in plain.dims}
        kept = []
        for key, one in plain.reset_index(list(stacked)).coords.items():
            values, zone = (one.values, None) if zone_of(one) is None else _without_zone(one.to_index().infer_objects())
            kept.append((key, list(one.dims), values, one.attrs, zone))
        return self.pack([kept, stacked], place)


class _Unpacker:
    """The inverse of `_Packer`."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._left = (1 << 20) + MAX_REFERENCES * sum(one.nbytes for one in arrays.values())

    def unpack(self, node: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            return [self.unpack(one, depth + 1) for one in node]
        if not isinstance(node, dict):
            return node
        tag, of = node["!"], node["of"]
        if tag in ("array", "scalar"):
            self._left -= self.arrays[of].nbytes
            if self._left < 0:
                raise ValueError("it refers to the same arrays again and again")
            return self.arrays[of] if tag == "array" else self.arrays[of][()]
        if tag in _types():
            if tag in OWN_ENGINE:
                of = of | {"engine": "auto"}  # a file starts no cluster when its fit is used
            return _types()[tag](**{name: self.unpack(one, depth + 1) for name, one in of.items()})
        made = self.unpack(of, depth + 1)
        if tag in METHODS and isinstance(made, FittedPropensity):
            return getattr(made, tag)
        if tag == "objects":
            return np.fromiter(made, object, len(made)).reshape(node["shape"])
        plain: dict[str, Any] = {"float": float, "tuple": tuple, "dict": dict, "date": _date, "coordinates": _coords}
        plain |= {"index": _index}
        if tag not in plain:
            raise ValueError(f"it holds a {tag!r}, which this corten does not know")
        return plain[tag](made)


def _coords(kept: Any) -> Any:
    import xarray as xr

    # Files of earlier versions have no zone.
    variables = {key: (dims, _zoned(values, *zone), attrs) for key, dims, values, attrs, *zone in kept[0]}
    plain = xr.Dataset(coords=variables)
    return plain.set_index(kept[1]).coords


def _without_zone(index: Any) -> tuple[np.ndarray, str | None]:
    """Labels as an array, times with a zone in UTC, and the zone."""
    zone = getattr(index, "tz", None)
    return np.asarray(index if zone is None else index.tz_convert("UTC").tz_localize(None)), zone and str(zone)


def _zoned(labels: Any, zone: str | None = None) -> Any:
    """The inverse of `_without_zone`."""
    if zone is None:
        return labels
    import pandas as pd

    return pd.DatetimeIndex(labels).tz_localize("UTC").tz_convert(zone)


def _index(levels: Any) -> Any:
    import pandas as pd

    made = [pd.Index(_zoned(labels, zone), name=name) for labels, zone, name in levels]
    return made[0] if len(made) == 1 else pd.MultiIndex.from_arrays(made)


def _date(text: str) -> Any:
    import cftime

    *clock, calendar, year_zero = text.split()
    return cftime.datetime(*map(int, clock), calendar=calendar, has_year_zero=year_zero == "True")
