"""`corten complete`: a file with gaps in, a file with estimates and intervals out."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from corten.cli.large import complete_from_disk, too_large
from corten.cli.terminal import Json, Overwrite, Quiet, Seed, Terminal, numbers, typed

__all__ = ["complete"]

File = Annotated[
    Path,
    typer.Argument(
        help="Data with gaps: .nc .zarr .npz .npy .csv .parquet .mat .h5 .tif .grib or IONEX.", show_default=False
    ),
]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Data with gaps: .nc .zarr .npz .npy .csv .parquet .mat .h5 .tif .grib or IONEX; several: one by one.",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", show_default=False,
        help="Where to write: .nc .zarr .npz .npy .csv .parquet .mat; a folder for several files.",
    ),
]  # fmt: skip
Variable = Annotated[
    str | None, typer.Option(help="Which variable (for tables: the column); may be left out if only one fits.")
]
Coverage = Annotated[
    str, typer.Option(help="How often intervals shall cover; several as 0.9,0.8,0.95: the first is the main one.")
]
Report = Annotated[Path | None, typer.Option(help="Also write a page with figures, for any browser.")]
Save = Annotated[Path | None, typer.Option(help="Also save the fit, to ask it for other coverages (corten.load).")]
Kept = Annotated[
    Path | None, typer.Option("--checkpoint", help="A folder for finished rounds: killed, the same command goes on.")
]
SHARED_PAYS = 5_000_000  # entries from which a second worker saves more than messages cost (docs/howto/cluster.md)
MODEL, DATA, TALK = "What to use", "What the data mean", "How to talk"
Completion = Annotated[
    str,
    typer.Option(
        help="What fills: auto, tucker, tensor-train, smooth, gaussian-process, stack.", rich_help_panel=MODEL
    ),
]
Propensity = Annotated[
    str, typer.Option(help="The propensity model: auto, constant, additive, bernoulli, ising.", rich_help_panel=MODEL)
]
Calibration = Annotated[
    str, typer.Option(help="Which observed entries are hidden: auto, random, gaps.", rich_help_panel=MODEL)
]
Score = Annotated[str, typer.Option(help="absolute, signed (may lean to one side), normalized.", rich_help_panel=MODEL)]
Weights = Annotated[str, typer.Option(help="exact Ising weights, or approximate (the paper's).", rich_help_panel=MODEL)]
Transform = Annotated[
    str | None,
    typer.Option(help="Model another variable: log, box-cox, standardise, standardise:AXIS.", rich_help_panel=MODEL),
]
Climatology = Annotated[
    str | None,
    typer.Option(help="An axis (days, years) whose mean is removed first and put back.", rich_help_panel=MODEL),
]
Bounds = Annotated[
    str | None,
    typer.Option(help="What values can be, as 0, or 0,100 or ,100: intervals keep to it.", rich_help_panel=DATA),
]
Engine = Annotated[
    str,
    typer.Option(
        help="auto, threads, a number of threads, jax, gpu, dask; with --cluster: of each worker.",
        rich_help_panel=MODEL,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", rich_help_panel=MODEL,
        help="Most memory to use, as 2GB. What would take more is done from disk: .zarr .nc .npy in, .zarr out.",
    ),
]  # fmt: skip
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", rich_help_panel=MODEL,
        help="A Dask scheduler, as tcp://host:8786: its workers share one file, or take one of several files each.",
    ),
]  # fmt: skip
Periodic = Annotated[
    list[str] | None,
    typer.Option(help="An axis that closes on itself, such as lon; may be repeated.", rich_help_panel=DATA),
]
UnorderedAxis = Annotated[
    list[str] | None,
    typer.Option(help="An axis without order, such as station; may be repeated.", rich_help_panel=DATA),
]
Axes = Annotated[
    str | None,
    typer.Option(help="Names of the modes where the file has none: lat,lon,time.", rich_help_panel=DATA),
]
Where = Annotated[
    str | None,
    typer.Option(
        help="A variable that is nonzero where a cell could be observed (land is no gap).", rich_help_panel=DATA
    ),
]
Quality = Annotated[
    str | None, typer.Option(help="Flags that count as observed, as VARIABLE=0,1.", rich_help_panel=DATA)
]
MissingValues = Annotated[
    str | None,
    typer.Option(
        "--missing-value", metavar="NUMBERS", rich_help_panel=DATA,
        help="Numbers that stand for a missing value and that the file does not declare, as -9999 or -9999,1e20.",
    ),
]  # fmt: skip


def complete(
    context: typer.Context,
    files: Files,
    output: Output,
    variable: Variable = None,
    coverage: Coverage = "0.9",
    report: Report = None,
    save: Save = None,
    checkpoint: Kept = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    completion: Completion = "auto",
    propensity: Propensity = "auto",
    calibration: Calibration = "auto",
    score: Score = "absolute",
    weights: Weights = "exact",
    transform: Transform = None,
    climatology: Climatology = None,
    bounds: Bounds = None,
    engine: Engine = "auto",
    memory: Memory = None,
    cluster: Cluster = None,
    periodic: Periodic = None,
    unordered_axis: UnorderedAxis = None,
    axes: Axes = None,
    where: Where = None,
    quality: Quality = None,
    missing_value: MissingValues = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fill the gaps of a file and give every filled entry an interval.

    Example: [bold]corten complete data.nc --variable tec --coverage 0.9 --output filled.nc[/bold]
    """
    terminal = Terminal(quiet, json)
    levels = _levels(coverage)
    if len(files) == 1:
        _refuse_targets(files[0], output, [report, save], checkpoint, overwrite)
    else:
        from corten.cli.many import Job, complete_files, targets

        if report is not None or save is not None or checkpoint is not None:
            raise ValueError("--report, --save and --checkpoint are for one file: leave them out, or give one file")
        named = targets(files, output, overwrite)
    # Unknown options are refused before the file is read, and files before anything is fitted.
    from corten.checkpoint import Checkpoint
    from corten.completer import ConformalCompleter

    wanted = int(engine) if engine.isdigit() else engine
    completer = ConformalCompleter(
        completion=completion, propensity=propensity, calibration=calibration, score=score, weights=weights,
        transform=transform, climatology=climatology, bounds=bounds_of(bounds), seed=seed,
        engine=wanted if cluster is None else "auto",
    )  # fmt: skip
    if cluster is not None and memory is not None:
        raise ValueError("--memory is for one machine, --cluster for several: give one of them")
    shared = _on_cluster(cluster, wanted, context)
    from corten import io
    from corten.io.names import check_labels

    kept = None if checkpoint is None else Checkpoint(checkpoint)
    flags, accept = quality_of(quality)
    codes = missing_of(missing_value)
    kinds: dict[Any, str] = dict.fromkeys(unordered_axis or [], "unordered")

    def read(path: Path) -> Any:
        loaded = io.read(
            path, variable, domain=where, quality=flags, accept=accept,
            axes=None if axes is None else [name.strip() for name in axes.split(",")], axis_kinds=kinds,
            missing_value=codes, careful=shared is None,
        )  # fmt: skip
        # What several files are written to is NetCDF, whatever they are called.
        check_labels(output if len(files) == 1 else path.with_suffix(".nc"), loaded.data)
        return loaded

    if len(files) > 1:
        job = Job(completer, wanted, tuple(levels), tuple(periodic or ()), kinds)
        complete_files(files, named, read, job, shared, terminal, overwrite)
        return
    (file,) = files
    if shared is None and too_large(file, variable, memory):
        refused = {
            "--report": report, "--save": save, "--transform": transform, "--climatology": climatology, "--axes": axes,
            "--quality": quality, "--checkpoint": checkpoint, "--missing-value": missing_value,
        }  # fmt: skip
        complete_from_disk(
            file, output, completer, levels, memory, terminal, refused, variable=variable, where=where,
            periodic=periodic or [], axis_kinds=kinds, overwrite=overwrite,
        )  # fmt: skip
        return
    loaded = read(file)
    if shared is not None:
        completer = replace(completer, engine=shared)
        if loaded.data.size < SHARED_PAYS:
            terminal.say(f"{file}: {loaded.data.size:,} entries; below 5 million this machine alone is faster")
    for note in loaded.notes:
        terminal.say(f"{file}: {note}")
    with terminal.progress() as move:
        fitted = completer.fit(
            loaded.data, where=loaded.where, periodic=periodic or [], axis_kinds=kinds, progress=move, checkpoint=kept
        )
    if kept is not None and kept.kept:
        terminal.say(f"{kept.kept} finished fills were kept in {checkpoint}, and not done again")
    from corten.cli.levels import write_levels

    results = fitted.intervals(levels)
    written = [write_levels(output, results, overwrite=overwrite, table=loaded.table)]
    if report is not None:
        from corten.report.page import write_report

        written.append(write_report(results[0], report, overwrite, command=typed()))
    if save is not None:
        written.append(fitted.save(save, overwrite=overwrite))
    if kept is not None:
        kept.clear()
    summary = results[0].summary()
    terminal.say(summary)
    for path in written:
        terminal.say(f"wrote {path}")
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


def _on_cluster(address: str | None, engine: str | int, context: typer.Context) -> Any:
    """The workers behind an address as an engine, each with the engine asked for inside; None without an address."""
    if address is None:
        return None
    from corten.engine.cluster import Cluster, connect

    client = connect(address)
    context.call_on_close(client.close)
    found = Cluster(client, None if engine == "dask" else engine)
    found.check()  # a cluster that cannot do it is refused before the file is read
    return found


def _levels(coverage: str) -> list[float]:
    from corten.data.coverage import check_coverage

    levels = [check_coverage(level) for level in numbers(coverage, "coverage")]
    if len(set(levels)) < len(levels):
        raise ValueError(f"coverage is {coverage!r}: each level may be asked for once")
    return levels


def _refuse_targets(
    file: Path, output: Path, others: list[Path | None], checkpoint: Path | None, overwrite: bool
) -> None:
    """Say no to files that exist, and to the input itself, before any work is done."""
    from corten import io
    from corten.io.whole import refuse_inputs, refuse_taken

    io.check_target(output, overwrite)
    report = others[0]
    if report is not None and find_spec("corten.report.page") is None:
        raise ValueError("--report: this version of corten cannot write report pages yet; leave it out")
    for path in others:
        if path is not None:
            refuse_taken(path, overwrite)
    # Rounds are written into the folder of a checkpoint, which may hold other files, the input too.
    refuse_inputs([output, *others, None if checkpoint is None else checkpoint / "rounds"], [file])


def bounds_of(bounds: str | None) -> tuple[float | None, float | None] | None:
    """`0,`, `0,100` or `,100` as a pair; an end left out is open."""
    if bounds is None:
        return None
    ends = [end.strip() for end in bounds.split(",")]
    try:
        low, high = (float(end) if end else None for end in (*ends, "")[: max(2, len(ends))])
    except ValueError:
        raise ValueError(f"bounds is {bounds!r}: give the lowest and highest value, such as 0, or 0,100") from None
    return low, high


def missing_of(missing_value: str | None) -> list[float] | None:
    """`-9999,1e20` as numbers."""
    return None if missing_value is None else [float(one) for one in numbers(missing_value, "missing-value")]


def quality_of(quality: str | None) -> tuple[str | None, list[Any] | None]:
    """`FLAG=0,1` as the variable and the flags that count."""
    if quality is None:
        return None, None
    name, equals, flags = quality.partition("=")
    if not (name and equals and flags):
        raise ValueError(f"quality is {quality!r}: give VARIABLE=FLAGS, such as quality_flag=0,1")
    return name, [flag.strip() for flag in flags.split(",")]
