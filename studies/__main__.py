"""`python -m studies`: the experiments behind the pages of results."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

__all__ = ["main"]

PAPER_SETS = ("tec-america-1", "tec-america-2")
PRESETS = ("smoke", "standard", "full", "tiny")
USER_ERRORS = (ValueError, TypeError, OSError, ImportError)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    root = argparse.ArgumentParser(
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=24),
        prog="python -m studies",
        description="Run the experiments behind the pages of results. Finished parts are stored: run the same command "
        "again to resume.",
    )
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    one = command("list", _list, "List the parts of the simulation study.")
    one.add_argument("--json", action="store_true", help="print one JSON object")

    one = command("simulation", _simulation, "Repeat the paper's simulations.")
    one.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="results, tables and figures")
    one.add_argument("--part", action="append", metavar="NAME", help="a part (see list); may be repeated; default: all")
    _preset(one, "smoke")
    one.add_argument("--jobs", type=int, default=0, metavar="K", help="processes; default: one per core")
    one.add_argument("--json", action="store_true", help="print one JSON object")

    one = command("report", _report, "Write docs/results.md and its tables from stored results.")
    one.add_argument("--input", type=Path, required=True, metavar="FOLDER", help="what `simulation` wrote")
    one.add_argument("--output", type=Path, default=Path("docs"), metavar="FOLDER", help="default: docs")
    _preset(one, "standard")

    one = command("tec", _tec, "Compare methods on real fields whose truth is known (needs the data).")
    one.add_argument("--set", action="append", metavar="NAME", help="a data set, or all; may be repeated")
    one.add_argument("--method", action="append", metavar="NAME", help="unweighted, Bernoulli, 'Ising 5xy/4', corten")
    one.add_argument("--seeds", type=int, default=1, metavar="N", help="repetitions; default: 1")
    one.add_argument("--data", type=Path, metavar="FOLDER", help="default: ../shared/data")
    one.add_argument("--output", type=Path, default=Path("study-output/fields"), metavar="FOLDER")
    one.add_argument("--page", type=Path, metavar="FILE", help="also write all rows as a Markdown page")
    one.add_argument("--validate", action="store_true", help="the paper's grid search of the coupling, on one set")

    one = command("defaults", _defaults, "Measure the coverage of corten.complete(x) with nothing set.")
    one.add_argument("--draws", type=int, default=10, metavar="N", help="draws of each class of data; default: 10")
    one.add_argument("--first", type=int, default=0, metavar="K", help="number of the first draw; default: 0")
    one.add_argument(
        "--output", type=Path, default=Path("study-output"), metavar="FOLDER", help="one JSON file per class and draw"
    )
    one.add_argument("--workers", type=int, default=0, metavar="K", help="processes; default: one per core")
    one.add_argument("--only", action="append", metavar="CLASS", help="a class of data; may be repeated; default: all")

    one = command("defaults-page", _defaults_page, "Write docs/defaults.md from stored results.")
    one.add_argument("--input", type=Path, default=Path("study-output"), metavar="FOLDER", help="what `defaults` wrote")
    one.add_argument("--output", type=Path, default=Path("docs/defaults.md"), metavar="FILE", help="the page")
    one.add_argument("--first", type=int, default=0, metavar="K", help="leave out draws before this one; default: 0")

    one = command("tables", _tables, "Compare the defaults with published numbers (needs the data).")
    one.add_argument("--case", action="append", metavar="NAME", help="AQI-36, RM30, ...; may be repeated; default: all")
    one.add_argument("--data", type=Path, metavar="FOLDER", help="default: ../shared/data")
    one.add_argument("--output", type=Path, default=Path("study-output/tables"), metavar="FOLDER", help="rows as JSON")
    one.add_argument("--page", type=Path, default=Path("docs/public-tables.md"), metavar="FILE", help="the page")
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asked = parser().parse_args(words)
    asked.typed = shlex.join(["python", "-m", "studies", *words])
    try:
        return int(asked.run(asked))
    except USER_ERRORS as problem:
        print(f"studies: {problem}", file=sys.stderr)
        return 2


def _preset(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument(
        "--preset", choices=PRESETS, default=default, metavar="NAME",
        help=f"smoke (minutes), standard (10 repetitions) or full (the paper's size); default: {default}",
    )  # fmt: skip


def _list(asked: argparse.Namespace) -> int:
    from studies import presets
    from studies.simulation import PARTS

    if asked.json:
        print(json.dumps({part.name: {"label": part.label, "shows": part.shows} for part in PARTS.values()}, indent=2))
        return 0
    for part in PARTS.values():
        numbers = ", ".join(f"{name} {len(part.cells(presets.PRESETS[name]))}" for name in PRESETS[:3])
        print(f"{part.name}: {part.shows}\n    {part.label} of the paper; cells: {numbers}")
    return 0


def _simulation(asked: argparse.Namespace) -> int:
    from studies.presets import preset_named
    from studies.report import write_part
    from studies.runner import run_cells
    from studies.simulation import PARTS, part_named
    from studies.store import Store

    preset = preset_named(asked.preset)
    parts = [part_named(name) for name in asked.part] if asked.part else list(PARTS.values())
    folder = asked.output / preset.name
    store, began = Store(folder), perf_counter()
    cells = [cell for part in parts for cell in part.cells(preset)]
    try:
        outcome = run_cells(cells, store, asked.jobs or cores(), _every_half_minute())
    except KeyboardInterrupt:
        print(f"stopped; finished cells are in {folder}: run the same command again to resume", file=sys.stderr)
        return 130
    for file in outcome.damaged:
        print(f"studies: {file} was damaged and is computed again", file=sys.stderr)
    for cell, problem in outcome.failed.items():
        print(f"studies: {cell.experiment} {cell.key} failed: {problem}", file=sys.stderr)
    planned = [cell for part in PARTS.values() for cell in part.cells(preset)]
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        store.gather(experiment, planned)
    written = [str(file) for part in parts for file in write_part(part, preset, store, folder)]
    seconds = perf_counter() - began
    facts = {"done": outcome.done, "kept": outcome.kept, "failed": len(outcome.failed), "seconds": seconds}
    if asked.json:
        print(json.dumps({**facts, "files": written}, indent=2))
    else:
        print(
            f"{outcome.done} cells run, {outcome.kept} kept from before, {len(outcome.failed)} failed, in "
            f"{seconds / 60:.1f} minutes\n{len(written)} tables and figures in {folder / 'tables'} and "
            f"{folder / 'figures'}"
        )
    return 1 if outcome.failed else 0


def _report(asked: argparse.Namespace) -> int:
    from studies.presets import preset_named
    from studies.report import page
    from studies.store import Store

    preset = preset_named(asked.preset)
    folder = asked.input / preset.name
    if not (folder / "cells").is_dir():
        raise FileNotFoundError(
            f"{folder} has no results of preset {asked.preset}: run python -m studies simulation --preset "
            f"{asked.preset} --output {asked.input} first"
        )
    print(f"wrote {page(preset, Store(folder), asked.output)}")
    return 0


def _tec(asked: argparse.Namespace) -> int:
    from studies import fields
    from studies.field_figures import draw_bins, draw_maps
    from studies.field_sets import SETS

    sets = list(SETS) if asked.set == ["all"] else asked.set or list(PAPER_SETS)

    def tell(row: Any) -> None:
        print(fields.markdown([row]).splitlines()[-1], flush=True)

    if asked.validate:
        found = fields.validate(sets[0], asked.data, tell=tell)
        print(fields.verdict(found))
        print("wrote " + ", ".join(map(str, fields.write_rows(found, asked.output, fields.VALIDATION))))
        return 0
    methods = asked.method or list(fields.METHODS)
    earlier = fields.read_rows(asked.output)
    kept: dict[str, dict[str, Any]] = {}
    written: list[Path] = []

    def store(row: Any) -> None:
        """A row is on disk as soon as it is known, so that a run that was stopped can resume."""
        tell(row)
        same = (row.set, row.method, row.seed)
        earlier[:] = [*(old for old in earlier if (old.set, old.method, old.seed) != same), row]
        written[:2] = fields.write_rows(earlier, asked.output)

    def keep(one: Any, name: str, seed: int, result: Any) -> None:
        if seed == 0:
            results = kept.setdefault(one.name, {})
            results[name] = result
            if len(results) == len(methods):  # a run that resumed has some methods as rows only
                draw_bins(one, results, asked.output / f"{one.name}-bins.png")
                draw_maps(one, result, asked.output / f"{one.name}-maps.png")

    fields.run_fields(sets, methods, asked.seeds, asked.data, store, keep, list(earlier))
    if asked.page is not None:
        from studies.field_page import write_page

        written.append(write_page(earlier, asked.page, asked.output, asked.typed))
    print("wrote " + ", ".join(map(str, written)))
    return 0


def _defaults(asked: argparse.Namespace) -> int:
    from studies import defaults

    names = defaults.chosen(asked.only)
    tell = lambda row: print(defaults.line(row), flush=True)  # noqa: E731
    try:
        failed = defaults.run(names, asked.draws, asked.output, asked.workers or cores(), tell, asked.first)
    except KeyboardInterrupt:
        print(f"stopped; finished draws are in {asked.output}: run the same command again to resume", file=sys.stderr)
        return 130
    for what, problem in failed.items():
        print(f"studies: {what} failed: {problem}", file=sys.stderr)
    return 1 if failed else 0


def _defaults_page(asked: argparse.Namespace) -> int:
    from studies.defaults_page import write_page

    print(f"wrote {write_page(asked.input, asked.output, asked.first)}")
    return 0


def _tables(asked: argparse.Namespace) -> int:
    from studies.files import whole_file
    from studies.public_tables import CASES, page, run_tables

    def tell(row: Any) -> None:
        print(
            row.case,
            {name: round(number, 3) for name, number in row.measures.items()},
            f"{row.seconds:.0f} s",
            flush=True,
        )

    rows = run_tables(asked.case or list(CASES), asked.data, asked.output, tell)
    with whole_file(asked.page) as temporary:
        temporary.write_text(page(rows, "python -m studies tables"), encoding="utf-8")
    print(f"wrote {asked.page}")
    return 0


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _every_half_minute() -> Callable[[Any, float, float], None]:
    last = perf_counter()

    def line(cell: Any, share: float, left: float) -> None:
        nonlocal last
        if perf_counter() - last > 30 or share >= 1:
            last = perf_counter()
            print(f"{share:4.0%} done, {left / 60:.0f} minutes left ({cell.experiment})", file=sys.stderr, flush=True)

    return line


if __name__ == "__main__":
    sys.exit(main())
