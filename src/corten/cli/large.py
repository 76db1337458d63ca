"""`corten complete` for a file that does not fit in memory: read, fitted and written to Zarr part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corten.cli.terminal import Terminal

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
    completer: Any,
    coverages: Sequence[float],
    memory: str | None,
    terminal: Terminal,
    refused: Mapping[str, Any],
    **options: Any,
) -> None:
    """Complete, and say beforehand what it will take; `refused` are options that need the whole tensor in memory."""
    given = [name for name, value in refused.items() if value not in (None, [], ())]
    if given:
        raise ValueError(
            f"{file} does not fit in memory, and {', '.join(given)} cannot be had from disk: leave out, or give more "
            "memory (--memory, a larger machine)"
        )
    from corten.large.flow import complete_to_zarr

    with terminal.progress() as move:
        filled = complete_to_zarr(
            file, output, list(coverages), completion=completer.completion, propensity=completer.propensity,
            calibration=completer.calibration, score=completer.score, weights=completer.weights, seed=completer.seed,
            engine=completer.engine, bounds=completer.bounds, memory=memory, progress=move, say=terminal.say, **options,
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
