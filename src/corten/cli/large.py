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
    from corten.large.flow import complete_to_zarr

    in_memory_only = ("transform", "climatology")
    method = {f.name: getattr(completer, f.name) for f in fields(completer) if f.name not in in_memory_only}
    with terminal.progress() as move:
        filled = complete_to_zarr(
            file, output, list(coverages), **method, variable=data.variable, where=_domain(file, data),
            fill_never_observed=data.fill_never_observed,
            periodic=data.periodic or [], axis_kinds=data.axis_kinds, missing_value=data.codes, memory=memory,
            overwrite=overwrite, progress=move, say=terminal.say,
        )  # fmt: skip
    terminal.say(filled.summary())
    terminal.wrote(filled.path)
    terminal.answer({
        "input": str(file), "output": [str(filled.path)], "summary": filled.summary().to_dict(),
        "coverages": list(filled.coverages), "settings": filled.settings,
    })  # fmt: skip


def _domain(file: Path, data: DataOptions) -> Any:
    """The domain for `complete_to_zarr`: a name in the same file, or the mask of another file, which is read whole."""
    if data.elsewhere is None:
        return data.where
    from corten.data.axes import is_dataarray
    from corten.io.formats import spread
    from corten.io.lazy import open_lazily

    mask, inside = data.mask_elsewhere(careful=False)
    with open_lazily(file, variable=data.variable) as lazy:
        labelled = is_dataarray(mask.data) and lazy.coords is not None
        return mask.data.copy(data=inside) if labelled else spread(mask.path, mask.variable, inside, lazy)
