"""The options that `complete` and `audit` share: declared once, and turned into a reading function and a completer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np

from corten import io
from corten.cli.terminal import numbers, option
from corten.data.never_observed import skip_never_observed
from corten.data.observed import ObservedTensor
from corten.io import Loaded
from corten.io.files import suffix_of
from corten.io.formats import ArrayData, contents, domain_like, inside_of, spread
from corten.io.names import UNNAMED
from corten.io.whole import refuse_inputs, refuse_no_page, refuse_taken

if TYPE_CHECKING:
    from corten.completer import ConformalCompleter

Text = str | None
Repeated = list[str] | None
_OUTPUT = (
    "Result file: .nc .zarr .npz .npy .csv .parquet .mat. A .npy has estimate, lower and upper along a new first axis."
)
_SEVERAL = f"{_OUTPUT} For several files: a folder."
OutputFile = Annotated[Path, option("PATH", _OUTPUT, "--output", "-o", show_default=False)]
OutputFileOrFolder = Annotated[Path, option("PATH", _SEVERAL, "--output", "-o", show_default=False)]
ReportFile = Annotated[Path | None, option("PATH", "Also write a report with figures (.html).")]


_data, _method = partial(option, rich_help_panel="Data"), partial(option, rich_help_panel="Method")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Which variable of a file is read, and which entries count as observed."""

    variable: Annotated[
        Text, _data("NAME", "Variable to complete (tables: column), if there are several.", "--variable", "-v")
    ] = None
    layout: Annotated[
        str, _data("NAME", "Of a table: auto, long (one row per entry), wide (one column per station).")
    ] = "auto"
    axes: Annotated[Text, _data("NAMES", "Names of the axes, if the file has none: lat,lon,time.")] = None
    where: Annotated[
        Text,
        _data(
            "MASK",
            "Where an entry could be observed: a variable that is nonzero there (sea), zero there (!land), the same of "
            "another file (mask.nc:lsm), or a file (mask.npy).",
        ),
    ] = None
    quality: Annotated[Text, _data("NAME=FLAGS", "Quality variable and the flags to accept: quality=0,1.")] = None
    missing_value: Annotated[
        Text, _data("NUMBERS", "Undeclared numbers that mark missing values: -9999 or -9999,1e20.")
    ] = None

    @property
    def axis_kinds(self) -> dict[str | int, str]:
        return {}

    @property
    def codes(self) -> list[float] | None:
        return None if self.missing_value is None else numbers(self.missing_value, "missing-value")

    @property
    def elsewhere(self) -> tuple[Path, str | None] | None:
        """The other file that `where` names and its variable, or None if it names a variable of the data's file."""
        return _elsewhere((self.where or "").removeprefix("!"))

    def read(self, path: Path, *, careful: bool = True) -> Loaded:
        """The tensor that these options ask for."""
        flags, accept = _quality(self.quality)
        loaded = io.read(
            path, self.variable, domain=self.where if self.elsewhere is None else None, quality=flags, accept=accept,
            axes=None if self.axes is None else [name.strip() for name in self.axes.split(",")],
            axis_kinds={str(name): kind for name, kind in self.axis_kinds.items()}, layout=self.layout,
            missing_value=self.codes,
            careful=careful,
        )  # fmt: skip
        if self.elsewhere is None:
            return loaded
        mask, inside = self.mask_elsewhere(careful)
        return replace(loaded, where=domain_like(spread(mask.path, mask.variable, inside, loaded.data), loaded.data))

    def mask_elsewhere(self, careful: bool) -> tuple[Loaded, ArrayData]:
        """The mask of another file, and True in the domain that it gives, with the labels of that file."""
        assert self.elsewhere is not None
        mask = io.read(*self.elsewhere, careful=careful)
        return mask, domain_like(inside_of(mask.data, str(self.where)), mask.data)


@dataclass(frozen=True, kw_only=True)
class DataOptions(FileOptions):
    """The same, and what the axes are."""

    periodic: Annotated[Repeated, _data("AXIS", "Periodic axis, such as lon. May be repeated.")] = None
    unordered_axis: Annotated[
        Repeated, _data("AXIS", "Axis whose positions have no order, such as station. May be repeated.")
    ] = None
    ordered_axis: Annotated[Repeated, _data("AXIS", "Axis whose neighbours are alike. May be repeated.")] = None
    fill_never_observed: Annotated[
        bool, _data("", "Also fill places that are never observed and look like land.", "--fill-never-observed")
    ] = False
    covariates: Annotated[
        Repeated,
        _data(
            "NAME",
            "Array that helps to explain the data, such as elevation: a variable of the same file, of another file "
            "(dem.nc:z), or a file (dem.npy). Its axes are among those of the data. May be repeated.",
        ),
    ] = None

    def read(self, path: Path, *, careful: bool = True) -> Loaded:
        """The tensor that these options ask for, with its covariates."""
        loaded = super().read(path, careful=careful)
        found: dict[str, np.ndarray] = {}
        for text in self.covariates or []:
            file, variable = _elsewhere(text) or (path, text)
            name, array = _covariate(file, variable, loaded.data, careful)
            if name in found:
                raise ValueError(f"covariates has two arrays of the name {name!r}: rename one of them")
            found[name] = array
        return replace(loaded, covariates=found)

    @property
    def axis_kinds(self) -> dict[str | int, str]:
        kinds: dict[str | int, str] = dict.fromkeys(self.ordered_axis or (), "ordered")
        return kinds | dict.fromkeys(self.unordered_axis or (), "unordered")

    def tensor(self, loaded: Loaded) -> ObservedTensor:
        """The tensor for `ConformalCompleter.fit`: with its domain and axes, and without never observed land."""
        observed = ObservedTensor.of(
            loaded.data, loaded.where, periodic=self.periodic or [], axis_kinds=self.axis_kinds,
            covariates=loaded.covariates or None,
        )  # fmt: skip
        return skip_never_observed(observed, fill=self.fill_never_observed, masks=loaded.masks)


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """How the gaps are filled and the intervals calibrated."""

    completion: Annotated[
        str, _method("NAME", "What fills: auto, tucker, tensor-train, smooth, gaussian-process, stack.")
    ] = "auto"
    propensity: Annotated[
        str,
        _method(
            "NAME",
            "Model of the probability of being observed: auto, constant (or uniform), additive, bernoulli, ising.",
        ),
    ] = "auto"
    calibration: Annotated[
        str, _method("NAME", "Calibration set: auto, random (one split), cross (several splits), gaps (pseudo-gaps).")
    ] = "auto"
    score: Annotated[
        str, _method("NAME", "Score of an error: auto, absolute, adaptive, normalized, signed (asymmetric intervals).")
    ] = "auto"
    weights: Annotated[str, _method("NAME", "Weights of an Ising model: exact, approximate (the paper's).")] = "exact"
    transform: Annotated[Text, _method("NAME", "Transform: log, box-cox, standardise, standardise:AXIS.")] = None
    climatology: Annotated[Text, _method("AXIS", "Axis whose mean is removed before the fit, then added.")] = None
    bounds: Annotated[
        Text, _method("LOW,HIGH", "Range of the data; intervals stay inside: 0,100 or 0, (no upper bound) or ,100.")
    ] = None
    seed: Annotated[int, _method("N", "Seed; the same seed gives the same bits.", min=0)] = 0
    engine: Annotated[str, _method("NAME", "Backend: auto, threads, a number of threads, jax, gpu, dask.")] = "auto"

    @property
    def backend(self) -> str | int:
        return int(self.engine) if self.engine.isdigit() else self.engine

    def completer(self) -> ConformalCompleter:
        """The completer with these settings; unknown ones are refused."""
        from corten.completer import ConformalCompleter

        same = {f.name: getattr(self, f.name) for f in fields(self)}
        return ConformalCompleter(**same | {"bounds": _bounds(self.bounds), "engine": self.backend})


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command for typer: a parameter that is an options dataclass becomes one option for each of its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, one in signature(command).parameters.items():
        if name not in groups:
            parameters.append(one.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        for f in fields(groups[name]):
            default = Parameter.empty if f.default is MISSING else f.default
            parameters.append(Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=types[f.name]))

    parameters.sort(key=lambda one: one.name in ("quiet", "json"))  # which all commands have: last in the help

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        command(**given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def refuse_outputs(
    targets: Sequence[Path | None], inputs: Sequence[Path | None], overwrite: bool, report: Path | None = None
) -> None:
    """Refuse files that cannot be written, or exist, or are inputs, before any work is done; the first may be Zarr."""
    for target in filter(None, (*targets, report)):
        refuse_taken(target, overwrite, store=suffix_of(target) == ".zarr" and target is targets[0])
    refuse_inputs([*targets, report], filter(None, inputs))
    refuse_no_page(report)


def _elsewhere(name: str) -> tuple[Path, str | None] | None:
    """The file and variable of `mask.nc:lsm` or `mask.npy`, or None if it is no file."""
    file, colon, variable = name.rpartition(":")
    if colon and variable and Path(file).exists():
        return Path(file), variable
    return (Path(name), None) if Path(name).suffix and Path(name).exists() else None


def _covariate(file: Path, variable: str | None, data: ArrayData, careful: bool) -> tuple[str, np.ndarray]:
    """The name of an array and the array in a shape that broadcasts to the data."""
    if variable is None and len(found := contents(file, careful=careful)) == 1:
        (variable,) = found  # also one with a single axis
    loaded = io.read(file, variable, careful=careful)
    return file.stem if variable in (None, UNNAMED) else variable, spread(file, loaded.variable, loaded.data, data)


def _bounds(bounds: str | None) -> tuple[float | None, float | None] | None:
    """`0,`, `0,100` or `,100` as a pair; a side left out is open."""
    if bounds is None:
        return None
    sides = [side.strip() for side in bounds.split(",")]
    try:
        low, high = (float(side) if side else None for side in (*sides, "")[: max(2, len(sides))])
    except ValueError:
        raise ValueError(f"bounds is {bounds!r}: give the lowest and highest value, such as 0, or 0,100") from None
    return low, high


def _quality(quality: str | None) -> tuple[str | None, list[str] | None]:
    """`FLAG=0,1` as the variable and the accepted flags."""
    if quality is None:
        return None, None
    name, equals, flags = quality.partition("=")
    if not (name and equals and flags):
        raise ValueError(f"quality is {quality!r}: give VARIABLE=FLAGS, such as quality_flag=0,1")
    return name, [flag.strip() for flag in flags.split(",")]
