"""`corten verify`: intervals of a file against values that arrived later, with a log of all scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from corten.cli.options import FileOptions, with_options
from corten.cli.stored import read_result
from corten.cli.terminal import READABLE_FORMATS, Terminal, argument, option
from corten.io.whole import refuse_inputs


@with_options
def verify(
    result: Annotated[Path, argument("RESULT", "What corten fill or complete wrote.")],
    late: Annotated[Path, argument("LATE", f"Values that arrived later: {READABLE_FORMATS}.")],
    data: FileOptions,
    terminal: Terminal,
    log: Annotated[
        Path | None, option("PATH", "Log of all scores (.jsonl); its entries are not counted again.")
    ] = None,
    axis: Annotated[str | None, option("AXIS", "Axis along which slices are counted.")] = None,
    coverage: Annotated[float | None, option("NUMBER", "Nominal coverage, for a .npy result or a saved fit.")] = None,
    target: Annotated[float | None, option("NUMBER", "The --coverage of corten fill --adaptive.")] = None,
    label: Annotated[str, option("TEXT", "Name of these data, if slices have no coordinates.")] = "",
) -> None:
    """Compare intervals with values that arrived later: coverage over time, interval score, and where they fail.

    Run it again with the same or with more late data: what was counted is not counted twice.

    Example: [bold]corten verify filled.nc late.nc --variable tec --log scores.jsonl[/bold]
    """
    from corten.evidence.verification import Given
    from corten.evidence.verification import verify as compared

    refuse_inputs([log], [result, late])
    axes = None if data.axes is None else data.axes.split(",")
    loaded = data.read(late)
    _, (level, *_) = read_result(result, coverage, axes, data.variable)
    options: Any = {"axis": axis, "target": target, "label": label}
    if isinstance(level, Given):
        scores = compared(level, loaded.data, log, **options)
    else:
        scores = (level if coverage is None else level.at(coverage)).verify(loaded.data, log, **options)
    terminal.say(str(scores))
    if log is not None and scores.added:
        terminal.wrote(log)
    rows = {"over_time": scores.over_time(), "by_block": scores.by_block(), "by_step": scores.by_step()}
    terminal.answer({"result": str(result), "late": str(late), **scores.summary(), **rows})
