"""`corten fill`, `update` and `verify`: the daily job with a saved fit; nothing is chosen or fitted again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from corten import io
from corten.cli.evaluate import read_result
from corten.cli.options import FileOptions, OutputFile, ReportFile, refuse_outputs, with_options
from corten.cli.terminal import READABLE_FORMATS, Overwrite, Terminal, argument, option, typed
from corten.io import Loaded
from corten.io.files import existing
from corten.io.formats import contents
from corten.io.names import check_labels
from corten.io.whole import locked, refuse_inputs

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
    from corten import load
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


@with_options
def update(
    fit: FitFile,
    file: Annotated[Path, argument("FILE", f"New slices on the same axes: {READABLE_FORMATS}.")],
    data: FileOptions,
    terminal: Terminal,
    save: Annotated[Path | None, option("PATH", "Where to save the new fit. Default: FIT is replaced.")] = None,
    axis: Annotated[str | None, option("AXIS", "Axis along which slices are added.")] = None,
    window: Annotated[int | None, option("N", "Slices to keep. Default: as many as the fit has.", min=2)] = None,
    half_life: Annotated[
        float | None, option("N", "Age in slices at which a score has half its weight. Default: half the window.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Add new slices to a saved fit, or replace revised ones, and calibrate it again with the same settings.

    The file is replaced as a whole: stopped at any moment, there is the old fit or the new one. Slices that the fit has
    already change nothing. Of two programs that update the same fit, one waits for the other.

    Example: [bold]corten update tec.corten today.nc --window 96[/bold]
    """
    from corten import load

    existing(fit)
    target, replaced = (fit, True) if save is None else (save, overwrite)
    refuse_outputs([target], [] if save is None else [fit, file], replaced)
    with locked(target):  # from reading to writing: none of two updates of one fit is lost
        fitted = load(fit)
        loaded = read_new(file, fitted, data)
        with terminal.progress() as move:
            updated = fitted.update(
                loaded.data, axis=axis, window=window, half_life=half_life, where=loaded.where, progress=move
            )
        written = updated.save(target, overwrite=replaced)
    note = next(one for one in updated.choices if one.code == "renewed")
    terminal.say(note.because)
    terminal.wrote(written)
    terminal.answer({"input": str(file), "fit": str(written), "shape": list(updated.observed.shape), **note.values})


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
