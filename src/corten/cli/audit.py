"""`corten audit`: may I believe these intervals? An answer that needs no truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from corten.cli import complete as options
from corten.cli.terminal import Json, Overwrite, Quiet, Seed, Terminal, numbers, typed

__all__ = ["audit"]


def audit(
    file: options.File,
    variable: options.Variable = None,
    rounds: Annotated[int, typer.Option(help="How often observed entries are hidden again.", min=2)] = 20,
    inner_rounds: Annotated[
        int, typer.Option(help="Pseudo-gaps to calibrate anew inside each; 0 tries the fit's own calibration.", min=0)
    ] = 0,
    levels: Annotated[str, typer.Option(help="Coverages to audit.")] = "0.5,0.8,0.9,0.95",
    table: Annotated[Path | None, typer.Option(help="Write the whole table (every group) to this .csv file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page with these intervals and this evidence, for any browser.")
    ] = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    completion: options.Completion = "auto",
    propensity: options.Propensity = "auto",
    calibration: options.Calibration = "auto",
    score: options.Score = "absolute",
    weights: options.Weights = "exact",
    transform: options.Transform = None,
    climatology: options.Climatology = None,
    bounds: options.Bounds = None,
    engine: options.Engine = "auto",
    periodic: options.Periodic = None,
    unordered_axis: options.UnorderedAxis = None,
    axes: options.Axes = None,
    where: options.Where = None,
    quality: options.Quality = None,
    missing_value: options.MissingValues = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Hide observed entries again, run the pipeline without them, and report how often its intervals hold.

    Give the options that you give to [bold]corten complete[/bold]. The verdict states its limits.

    Example: [bold]corten audit data.nc --variable tec --rounds 20[/bold]
    """
    terminal = Terminal(quiet, json)
    from corten.io.whole import refuse_inputs, refuse_taken, whole_file

    wanted = [float(one) for one in numbers(levels, "levels")]
    for target in (table, report):
        if target is not None:
            refuse_taken(target, overwrite)
    refuse_inputs([table, report], [file])
    from corten.completer import ConformalCompleter

    completer = ConformalCompleter(
        completion=completion, propensity=propensity, calibration=calibration, score=score, weights=weights,
        transform=transform, climatology=climatology, bounds=options.bounds_of(bounds), seed=seed,
        engine=int(engine) if engine.isdigit() else engine,
    )  # fmt: skip
    from corten import io

    kinds: dict[Any, str] = dict.fromkeys(unordered_axis or [], "unordered")
    names = None if axes is None else [name.strip() for name in axes.split(",")]
    flags, accept = options.quality_of(quality)
    loaded = io.read(
        file, variable, domain=where, quality=flags, accept=accept, axes=names, axis_kinds=kinds,
        missing_value=options.missing_of(missing_value), careful=True,
    )  # fmt: skip
    with terminal.progress() as move:
        fitted = completer.fit(
            loaded.data, where=loaded.where, periodic=periodic or [], axis_kinds=kinds, progress=move
        )
        found = fitted.audit(rounds, inner_rounds=inner_rounds, seed=seed, levels=wanted, progress=move)
    terminal.say(str(found))
    if table is not None:
        from corten.io.writers import write_table

        with whole_file(table, overwrite) as temporary:
            write_table(found.table(), temporary, ".csv")
        terminal.say(f"wrote {table}")
    if report is not None:
        from corten.report.page import write_report

        nearest = min(wanted, key=lambda level: abs(level - 0.9))
        terminal.say(f"wrote {write_report(fitted.intervals(nearest), report, overwrite, found, typed())}")
    every = found.table("all").to_dict("records")
    terminal.answer({"file": str(file), "rounds": len(found.samples), "levels": every, "verdict": found.verdict()})
