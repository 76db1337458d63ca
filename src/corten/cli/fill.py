"""`corten fill`: new data are filled with a saved fit; nothing is fitted again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from corten.cli.options import FileOptions, OutputFile, ReportFile, refuse_outputs, with_options
from corten.cli.terminal import READABLE_FORMATS, Overwrite, Terminal, argument, option, typed
from corten.io import Loaded
from corten.io.formats import contents
from corten.io.names import check_labels

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

FitFile = Annotated[Path, argument("FIT", "A saved fit: corten complete --save, or fitted.save.")]


@with_options
def fill(
    fit: FitFile,
    file: Annotated[Path, argument("FILE", f"New data on the same axes: {READABLE_FORMATS}.")],
    output: OutputFile,
    data: FileOptions,
    terminal: Terminal,
    coverage: Annotated[float, option("NUMBER", "Nominal coverage.")] = 0.9,
    scores: Annotated[
        Path | None, option("PATH", "Log of corten verify: the report draws the coverage over time.")
    ] = None,
    adaptive: Annotated[
        bool,
        option("", "Ask for the coverage that the log of --scores suggests: NUMBER holds over time.", "--adaptive"),
    ] = False,
    rate: Annotated[float, option("NUMBER", "Rate of --adaptive.")] = 0.05,
    rounds: Annotated[int, option("N", "Rounds of pseudo-gaps in new slices, to measure their errors.", min=0)] = 0,
    report: ReportFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Fill new data with the settings and the calibration of a saved fit.

    It takes a small share of the time of a fit. A log that does not exist yet counts as empty.

    Example: [bold]corten fill tec.corten today.nc --output filled.nc[/bold]
    """
    from corten import io, load
    from corten.conformal.adaptive import AdaptiveCoverage
    from corten.evidence.score_log import ScoreLog

    refuse_outputs([output], [fit, file, scores], overwrite, report)
    if adaptive and scores is None:
        raise ValueError("--adaptive needs the log of past scores: give it as --scores scores.jsonl")
    past = ScoreLog.read(scores) if scores is not None and scores.exists() else None
    level = AdaptiveCoverage(coverage, rate)
    if adaptive and past is not None:
        level = past.adaptive(coverage, rate)
    fitted = load(fit)
    loaded = read_new(file, fitted, data)
    check_labels(output, loaded.data)
    result = fitted.fill(loaded.data, level.next_coverage, where=loaded.where, rounds=rounds)
    written = [io.write(output, result, overwrite=overwrite, table=loaded.table, like=loaded.like)]
    if report is not None:
        from corten.report.page import write_report

        written.append(write_report(result, report, overwrite=overwrite, command=typed(), scores=past))
    terminal.say(result.summary())
    if adaptive:
        terminal.say(f"adaptive coverage after {level.steps} step(s): {level.next_coverage:.4g}")
    terminal.wrote(*written)
    terminal.answer(
        {
            "input": str(file),
            "fit": str(fit),
            "output": [str(path) for path in written],
            "summary": result.summary().to_dict(),
            "coverage": result.coverage,
            "target": coverage if adaptive else None,
        }
    )


def read_new(file: Path, fitted: Fitted, data: FileOptions) -> Loaded:
    """New data of a fit; the variable is that of the fit if the file has it and no other is named."""
    name = fitted.observed.name
    if data.variable is None and name is not None and name in contents(file, careful=True):
        data = replace(data, variable=name)
    return data.read(file)
