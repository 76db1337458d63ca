"""The options that `complete` and `audit` share: declared once, and turned into a reading function and a completer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from corten.cli.terminal import numbers

if TYPE_CHECKING:
    from corten.completer import ConformalCompleter
    from corten.io import Loaded

__all__ = ["DataOptions", "MethodOptions", "with_options"]

DATA, METHOD = "Data", "Method"


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which variable of a file is read, which entries count as observed, and what its axes are."""

    variable: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=DATA,
            help="Variable to complete (for tables: the column of values). Needed if the file has several.",
        ),
    ] = None  # fmt: skip
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", rich_help_panel=DATA,
            help="Names of the axes, for files that store none: lat,lon,time. For tables: the coordinate columns.",
        ),
    ] = None  # fmt: skip
    where: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=DATA,
            help="Variable that is nonzero inside the domain: entries that could be observed.",
        ),
    ] = None  # fmt: skip
    quality: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=FLAGS", rich_help_panel=DATA, help="Quality variable and the flags to accept: quality=0,1."
        ),
    ] = None  # fmt: skip
    missing_value: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", rich_help_panel=DATA,
            help="Numbers that mark missing values and that the file does not declare: -9999 or -9999,1e20.",
        ),
    ] = None  # fmt: skip
    periodic: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS", rich_help_panel=DATA, help="Periodic axis, such as lon. May be repeated."),
    ] = None
    unordered_axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS", rich_help_panel=DATA,
            help="Axis whose positions have no order, such as station. May be repeated.",
        ),
    ] = None  # fmt: skip

    @property
    def axis_kinds(self) -> dict[Any, str]:
        return dict.fromkeys(self.unordered_axis or [], "unordered")

    def read(self, path: Path, *, careful: bool = True) -> Loaded:
        """The tensor that these options ask for."""
        from corten import io

        flags, accept = _quality(self.quality)
        return io.read(
            path, self.variable, domain=self.where, quality=flags, accept=accept,
            axes=None if self.axes is None else [name.strip() for name in self.axes.split(",")],
            axis_kinds=self.axis_kinds,
            missing_value=None if self.missing_value is None else numbers(self.missing_value, "missing-value"),
            careful=careful,
        )  # fmt: skip

    def for_fit(self, loaded: Loaded) -> dict[str, Any]:
        """The arguments of `ConformalCompleter.fit` that describe the tensor."""
        return {"where": loaded.where, "periodic": self.periodic or [], "axis_kinds": self.axis_kinds}


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """How the gaps are filled and the intervals calibrated."""

    completion: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD,
            help="Completion that fills the gaps: auto, tucker, tensor-train, smooth, gaussian-process, stack.",
        ),
    ] = "auto"  # fmt: skip
    propensity: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD,
            help="Model of the probability of being observed: auto, constant, additive, bernoulli, ising.",
        ),
    ] = "auto"  # fmt: skip
    calibration: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD,
            help="Calibration set: auto, random (a random share), cross (several splits), gaps (pseudo-gaps).",
        ),
    ] = "auto"  # fmt: skip
    score: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD,
            help="Score of an error: absolute, adaptive, normalized, signed (asymmetric intervals).",
        ),
    ] = "absolute"  # fmt: skip
    weights: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD, help="Weights of an Ising model: exact, approximate (the paper's)."
        ),
    ] = "exact"  # fmt: skip
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD,
            help="Transform of the values: log, box-cox, standardise, standardise:AXIS.",
        ),
    ] = None  # fmt: skip
    climatology: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS", rich_help_panel=METHOD,
            help="Axis (days, years) over which the mean is removed before the fit and added afterwards.",
        ),
    ] = None  # fmt: skip
    bounds: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH", rich_help_panel=METHOD,
            help="Range of possible values; intervals stay inside: 0,100 or 0, (no upper bound) or ,100.",
        ),
    ] = None  # fmt: skip
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, rich_help_panel=METHOD, help="Seed; the same seed gives the same bits.")
    ] = 0
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel=METHOD,
            help="Backend: auto, threads, a number of threads, jax, gpu, dask.",
        ),
    ] = "auto"  # fmt: skip

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
        parameters += [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name])
            for f in fields(groups[name])
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        command(**given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


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
