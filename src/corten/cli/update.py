"""`corten update`: new slices are added to a saved fit, which is calibrated again with its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from corten.cli.fill import FitFile, read_new
from corten.cli.options import FileOptions, refuse_outputs, with_options
from corten.cli.terminal import READABLE_FORMATS, Overwrite, Terminal, argument, option
from corten.io.files import existing
from corten.io.whole import locked


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
