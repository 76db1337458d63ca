"""`corten complete`: a file with gaps in, a file with estimates and intervals out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from corten import io
from corten.cli.options import DataOptions, MethodOptions, OutputFileOrFolder, ReportFile, refuse_outputs, with_options
from corten.cli.terminal import READABLE_FORMATS, Overwrite, Terminal, argument, numbers, option, typed
from corten.data.axes import is_dataarray
from corten.data.coverage import check_coverage
from corten.io import Loaded
from corten.io.formats import ArrayData, spread
from corten.io.names import check_labels
from corten.io.whole import refuse_inputs

if TYPE_CHECKING:
    from corten.completer import ConformalCompleter
    from corten.engine import Engine
    from corten.engine.cluster import Cluster

_resources = partial(option, rich_help_panel="Resources")
CLUSTER_PAYS = 5_000_000  # entries from which a second worker saves time (docs/howto/cluster.md)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What is written and where; refused before any work is done where it cannot be."""

    output: OutputFileOrFolder
    report: ReportFile = None
    save: Annotated[Path | None, option("PATH", "Also save the fit; corten.load reads it.")] = None
    checkpoint: Annotated[
        Path | None, option("FOLDER", "Keep finished rounds here. If stopped, run the same command again to resume.")
    ] = None
    overwrite: Overwrite = False

    def for_files(self, files: Sequence[Path]) -> list[Path]:
        """The output of each file; files that exist and the inputs themselves are refused."""
        from corten.cli.many import targets

        if len(files) > 1:
            if self.report is not None or self.save is not None or self.checkpoint is not None:
                raise ValueError("--report, --save and --checkpoint are for one file: leave them out, or give one file")
            return targets(files, self.output, self.overwrite)
        io.check_target(self.output, self.overwrite)
        refuse_outputs([self.output, self.save], files, self.overwrite, self.report)
        if self.checkpoint is not None:
            # Rounds are written into the folder of a checkpoint, which may hold other files, the input too.
            refuse_inputs([self.output, self.report, self.save, self.checkpoint / "rounds"], files)
        return [self.output]


@with_options
def complete(
    context: typer.Context,
    files: Annotated[
        list[Path], argument("FILE", f"Data with gaps: {READABLE_FORMATS}. Several files are completed one by one.")
    ],
    targets: Targets,
    data: DataOptions,
    method: MethodOptions,
    terminal: Terminal,
    coverage: Annotated[
        str, option("NUMBERS", "Nominal coverage; several as 0.9,0.8,0.95 (the first is the main one).")
    ] = "0.9",
    full: Annotated[bool, typer.Option("--full", help="Print every number and setting, with the reason.")] = False,
    memory: Annotated[
        str | None,
        _resources("SIZE", "Memory limit, such as 2GB. Above it corten works from disk: .zarr .nc .npy to .zarr."),
    ] = None,
    cluster: Annotated[
        str | None,
        _resources(
            "ADDRESS",
            "Dask scheduler, such as tcp://host:8786. Its workers share one file, take tiles of one that does not fit "
            "in memory, or take one of several files each; --engine is then the backend of each worker.",
        ),
    ] = None,
) -> None:
    """Fill the gaps of a file and give every filled entry a prediction interval.

    Example: [bold]corten complete data.nc --variable tec --coverage 0.9 --output filled.nc[/bold]
    """
    levels = _levels(coverage)
    named = targets.for_files(files)
    with terminal.progress() as move:
        # Unknown options are refused before the file is read, and files before anything is fitted.
        completer = (method if cluster is None else replace(method, engine="auto")).completer()
        if cluster is not None and memory is not None:
            raise ValueError("--memory is for one machine, --cluster for several: give one of them")
        workers = _on_cluster(cluster, method.backend, context)

        def read(path: Path) -> Loaded:
            loaded = data.read(path, careful=workers is None)
            # Several files are written as NetCDF, whatever they are called.
            check_labels(targets.output if len(files) == 1 else path.with_suffix(".nc"), loaded.data)
            return loaded

        if len(files) > 1:
            from corten.cli.many import Job, complete_files

            job = Job(completer, method.backend, tuple(levels), data)
            complete_files(
                files, named, read=read, job=job, cluster=workers, terminal=terminal, overwrite=targets.overwrite
            )
            return
        if workers is not None:
            completer = replace(completer, engine=cast("Engine", workers))
        (file,) = files
        if too_large(file, data.variable, memory):
            complete_from_disk(
                file, targets, completer=completer, data=data, coverages=levels, memory=memory, terminal=terminal,
                full=full,
            )  # fmt: skip
            return
        move("reading", 0.0)
        loaded = read(file)
        if workers is not None and loaded.data.size < CLUSTER_PAYS:
            terminal.say(f"{file}: {loaded.data.size:,} entries; below 5 million one machine alone is faster")
        _in_memory(
            file, loaded, completer=completer, data=data, levels=levels, targets=targets, terminal=terminal, full=full
        )


def _in_memory(
    file: Path, loaded: Loaded, *, completer: ConformalCompleter, data: DataOptions, levels: list[float],
    targets: Targets, terminal: Terminal, full: bool,
) -> None:  # fmt: skip
    """Fit, write the result and what else was asked for, and report."""
    from corten.checkpoint import Checkpoint

    kept = None if targets.checkpoint is None else Checkpoint(targets.checkpoint)
    for note in loaded.notes:
        terminal.say(f"{file}: {note}")
    with terminal.progress() as move:
        fitted = completer.fit(data.tensor(loaded), progress=move, checkpoint=kept)
        move("writing", 0.0)
    if kept is not None and kept.kept:
        terminal.say(f"resumed: {kept.kept} finished fills were read from {targets.checkpoint}")
    results = fitted.intervals(levels)
    first, *further = results
    written = [
        io.write(
            targets.output, first, further=further, overwrite=targets.overwrite, table=loaded.table, like=loaded.like
        )
    ]
    if targets.report is not None:
        from corten.report.page import write_report

        written.append(write_report(first, targets.report, overwrite=targets.overwrite, command=typed()))
    if targets.save is not None:
        written.append(fitted.save(targets.save, overwrite=targets.overwrite))
    if kept is not None:
        kept.clear()
    summary = first.summary(full)
    terminal.say(summary)
    terminal.wrote(*written)
    terminal.answer(
        {
            "input": str(file),
            "variable": loaded.variable,
            "output": [str(path) for path in written],
            "notes": list(loaded.notes),
            "summary": summary.to_dict(),
            "coverages": [one.coverage for one in results],
            "settings": fitted.settings(),
        }
    )


def _on_cluster(address: str | None, engine: str | int, context: typer.Context) -> Cluster | None:
    """The workers behind an address as an engine, each with the engine asked for inside; None without an address."""
    if address is None:
        return None
    from corten.engine.cluster import Cluster, connect

    client = connect(address)
    context.call_on_close(client.close)
    found = Cluster(client, None if engine == "dask" else engine)
    found.check()  # a cluster that cannot run the work is refused before the file is read
    return found


def _levels(coverage: str) -> list[float]:
    levels = [check_coverage(level) for level in numbers(coverage, "coverage")]
    if len(set(levels)) < len(levels):
        raise ValueError(f"coverage is {coverage!r}: give each coverage once")
    return levels


def too_large(file: Path, variable: str | None, memory: str | None) -> bool:
    """Whether completing the file in memory would take more than there is, or than `memory` allows."""
    from corten.calibration.split import SplitCalibration
    from corten.engine.memory import available, read_size
    from corten.io.lazy import stored_size

    limit = available() if memory is None else read_size(memory)
    return SplitCalibration().peak_bytes(stored_size(file, variable), 0) > limit


def complete_from_disk(
    file: Path,
    targets: Targets,
    *,
    completer: ConformalCompleter,
    data: DataOptions,
    coverages: Sequence[float],
    memory: str | None,
    terminal: Terminal,
    full: bool,
) -> None:
    """Read, fit and write to Zarr part by part; options that need memory for all are refused."""
    needing_memory = (
        (targets, ("report", "save", "checkpoint")),
        (completer, ("transform", "climatology")),
        (data, ("axes", "quality", "covariates")),
    )
    given = [f"--{name}" for one, names in needing_memory for name in names if getattr(one, name) is not None]
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
            file, targets.output, list(coverages), **method, variable=data.variable, where=_domain(file, data),
            fill_never_observed=data.fill_never_observed,
            periodic=data.periodic or [], axis_kinds=data.axis_kinds, missing_value=data.codes, memory=memory,
            overwrite=targets.overwrite, progress=move, say=terminal.say,
        )  # fmt: skip
    terminal.say(filled.summary(full))
    terminal.wrote(filled.path)
    terminal.answer({
        "input": str(file), "output": [str(filled.path)], "summary": filled.summary().to_dict(),
        "coverages": list(filled.coverages), "settings": filled.settings,
    })  # fmt: skip


def _domain(file: Path, data: DataOptions) -> str | ArrayData | None:
    """The domain for `complete_to_zarr`: a name in the same file, or the mask of another file, which is read whole."""
    if data.elsewhere is None:
        return data.where
    from corten.io.lazy import open_lazily

    mask, inside = data.mask_elsewhere(careful=False)
    with open_lazily(file, variable=data.variable) as lazy:
        labelled = is_dataarray(inside) and lazy.coords is not None
        return inside if labelled else spread(mask.path, mask.variable, inside, lazy)
