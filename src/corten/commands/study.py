"""`corten study`: repeat the paper's simulations and set our numbers beside its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from corten.commands.terminal import Json, Quiet, Terminal

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Repeat the paper's simulations and set our numbers beside its own.")

Preset = Annotated[
    str, typer.Option(help="How much to run: smoke (minutes), standard (10 repetitions), full (the paper's size).")
]


@app.command("list")
def listed(json: Json = False) -> None:
    """Show the parts, and which table or figure of the paper each stands for."""
    from rich.table import Table

    from corten.studies.presets import PRESETS
    from corten.studies.simulation import PARTS

    terminal = Terminal(as_json=json)
    shown = [name for name in PRESETS if name != "tiny"]
    table = Table(
        "part",
        "label in the paper",
        "what it shows",
        *(f"cells, {name}" for name in shown),
        title="corten study simulation",
    )
    for part in PARTS.values():
        table.add_row(part.name, part.label, part.shows, *(str(len(part.cells(PRESETS[name]))) for name in shown))
    terminal.say(table)
    terminal.answer({part.name: {"label": part.label, "shows": part.shows} for part in PARTS.values()})


@app.command()
def simulation(
    output: Annotated[
        Path, typer.Option(help="Folder for results, tables and figures; give it again to go on.", show_default=False)
    ],
    part: Annotated[
        list[str] | None,
        typer.Option(help="A part (see `corten study list`), as often as you like.", show_default="all"),
    ] = None,
    preset: Preset = "smoke",
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run parts of the simulation study; what is stored already is not run again.

    Example: [bold]corten study simulation --part coverage --preset smoke --output study-output[/bold]
    """
    from corten.engine.threads import default_threads
    from corten.studies.presets import preset_named
    from corten.studies.report import write_part
    from corten.studies.runner import run_cells
    from corten.studies.simulation import PARTS, part_named
    from corten.studies.store import Store

    terminal, chosen = Terminal(quiet, json), preset_named(preset)
    parts = [part_named(name) for name in part] if part else list(PARTS.values())
    folder = output / chosen.name
    store, began = Store(folder), perf_counter()
    cells = [cell for one in parts for cell in one.cells(chosen)]
    with _progress(terminal) as tell:
        try:
            outcome = run_cells(cells, store, jobs or default_threads(), tell)
        except KeyboardInterrupt:
            terminal.say(f"stopped; what was finished is kept in {folder}: start the same command again to go on")
            raise typer.Exit(130) from None
    for file in outcome.damaged:
        print(f"corten: {file} was damaged: its cell was begun again", file=sys.stderr)
    for cell, problem in outcome.failed.items():
        print(f"corten: {cell.experiment} {cell.key} failed: {problem}", file=sys.stderr)
    planned = [cell for one in PARTS.values() for cell in one.cells(chosen)]
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        store.gather(experiment, planned)
    written = [file for one in parts for file in write_part(one, chosen, store, folder)]
    spent = perf_counter() - began
    kept = f"{outcome.kept} kept from before, {len(outcome.failed)} failed"
    terminal.say(f"{outcome.done} cells run, {kept}, in {spent / 60:.1f} minutes")
    terminal.say(f"tables and figures: {folder / 'tables'}, {folder / 'figures'} ({len(written)} files)")
    terminal.answer(
        {
            "done": outcome.done,
            "kept": outcome.kept,
            "failed": len(outcome.failed),
            "seconds": spent,
            "files": [str(f) for f in written],
        }
    )
    if outcome.failed:
        raise typer.Exit(1)


@app.command()
def report(
    results: Annotated[
        Path, typer.Option("--input", help="The folder that `corten study simulation` wrote.", show_default=False)
    ],
    output: Annotated[Path, typer.Option(help="Where results.md and results/ go.")] = Path("docs"),
    preset: Preset = "standard",
    quiet: Quiet = False,
) -> None:
    """Write the page of results, and its tables, from what is stored.

    Example: [bold]corten study report --input study-output --preset standard --output docs[/bold]
    """
    from corten.studies.presets import preset_named
    from corten.studies.report import page
    from corten.studies.store import Store

    chosen = preset_named(preset)
    folder = results / chosen.name
    if not (folder / "cells").is_dir():
        raise ValueError(
            f"{folder} has no results of preset {preset}: run corten study simulation --preset {preset} --output "
            f"{results} first"
        )
    Terminal(quiet).say(f"wrote {page(chosen, Store(folder), output)}")


@contextmanager
def _progress(terminal: Terminal) -> Iterator[Callable[[Any, float, float], None]]:
    """A bar with the time left on a terminal; elsewhere a line every half minute."""
    if terminal.quiet:
        yield lambda cell, share, left: None
        return
    if not sys.stderr.isatty():
        last = perf_counter()

        def line(cell: Any, share: float, left: float) -> None:
            nonlocal last
            if perf_counter() - last > 30 or share >= 1:
                last = perf_counter()
                print(f"{share:4.0%} done, {_minutes(left)} left ({cell.experiment})", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("drawing masks", total=1.0, left="")
        yield lambda cell, share, left: bars.update(
            task,
            completed=share,
            description=f"{cell.experiment} d={cell.get('d')} r={cell.get('rank')}",
            left=f"{_minutes(left)} left",
        )


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
