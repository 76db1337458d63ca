"""`corten complete` for a file that does not fit in memory: read, fitted and written to Zarr part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corten.cli.options import DataOptions
from corten.cli.terminal import Terminal

if TYPE_CHECKING:
    from corten.completer import ConformalCompleter

__all__ = ["complete_from_disk", "too_large"]


def too_large(file: Path, variable: str | None, memory: str | None) -> bool:
    """Whether completing the file in memory would take more than there is, or than `memory` allows."""
    from corten.calibration.split import SplitCalibration
    from corten.engine.memory import available, read_size
    from corten.io.lazy import stored_size

    limit = available() if memory is None else read_size(memory)
    return SplitCalibration().peak_bytes(stored_size(file, variable), 0) > limit


def complete_from_disk(
    file: Path,
    output: Path,
    completer: ConformalCompleter,
    data: DataOptions,
    coverages: Sequence[float],
    memory: str | None,
    terminal: Terminal,
    refused: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Complete, and print the memory and disk needed beforehand; `refused` are options that need memory for all."""
    given = [name for name, value in refused.items() if value is not None]
    if given:
        raise ValueError(
            f"{file} does not fit in memory, and out-of-core mode does not support {', '.join(given)}: leave out, or "
            "give more memory (--memory, a larger machine)"
        )
    if data.elsewhere is not None or (data.where or "").startswith("!"):
        raise ValueError(
            f"where is {data.where!r}: {file} does not fit in memory, and out-of-core mode takes a variable of the "
            "same file that is nonzero where an entry could be observed"
        )
    from corten.large.flow import complete_to_zarr

    in_memory_only = ("transform", "climatology")
    method = {f.name: getattr(completer, f.name) for f in fields(completer) if f.name not in in_memory_only}
    with terminal.progress() as move:
        filled = complete_to_zarr(
            file, output, list(coverages), **method, variable=data.variable, where=data.where,
            periodic=data.periodic or [], axis_kinds=data.axis_kinds, missing_value=data.codes, memory=memory,
            overwrite=overwrite, progress=move, say=terminal.say,
        )  # fmt: skip
    terminal.say(filled.summary())
    terminal.say(f"wrote {filled.path}")
    terminal.answer(
        {
            "input": str(file),
            "output": [str(filled.path)],
            "summary": filled.summary().to_dict(),
            "coverages": list(filled.coverages),
            "settings": filled.settings,
        }
    )
