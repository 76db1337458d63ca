"""`corten audit`: the empirical coverage of the intervals on hidden observed entries; needs no truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from corten.cli.options import DataOptions, MethodOptions, ReportFile, refuse_outputs, with_options
from corten.cli.terminal import READABLE_FORMATS, Overwrite, Terminal, argument, numbers, option, typed
from corten.io.whole import whole_file
from corten.io.writers import write_table


@with_options
def audit(
    file: Annotated[Path, argument("FILE", f"Data with gaps: {READABLE_FORMATS}.")],
    data: DataOptions,
    terminal: Terminal,
    method: MethodOptions,
    rounds: Annotated[int, option("N", "Rounds of hiding observed entries.", min=2)] = 20,
    inner_rounds: Annotated[
        int, option("N", "Pseudo-gaps of a new calibration in each round; 0 audits the calibration of the fit.", min=0)
    ] = 0,
    levels: Annotated[str, option("NUMBERS", "Nominal coverages to audit.")] = "0.5,0.8,0.9,0.95",
    table: Annotated[Path | None, option("PATH", "Write the table of all groups to this .csv file.")] = None,
    report: ReportFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Hide observed entries, complete without them, and report the empirical coverage of their intervals.

    Give the same options as to [bold]corten complete[/bold]. The verdict states what the audit cannot show.

    Example: [bold]corten audit data.nc --variable tec --rounds 20[/bold]
    """
    wanted = numbers(levels, "levels")
    refuse_outputs([table], [file], overwrite, report)
    with terminal.progress() as move:
        completer = method.completer()
        move("reading", 0.0)
        loaded = data.read(file)
        fitted = completer.fit(data.tensor(loaded), progress=move)
        found = fitted.audit(rounds, inner_rounds=inner_rounds, seed=method.seed, levels=wanted, progress=move)
    from rich.text import Text

    terminal.say(Text(str(found)))  # wrapped at words
    if table is not None:
        with whole_file(table, overwrite) as temporary:
            write_table(found.table(), temporary, ".csv")
        terminal.wrote(table)
    if report is not None:
        from corten.report.page import write_report

        nearest = min(wanted, key=lambda level: abs(level - 0.9))
        terminal.wrote(
            write_report(fitted.intervals(nearest), report, overwrite=overwrite, audit=found, command=typed())
        )
    every = found.table("all").to_dict("records")
    terminal.answer({"file": str(file), "rounds": len(found.samples), "levels": every, "verdict": found.verdict()})
