"""Runs the measurements one after another and writes table, JSON and plot."""

from __future__ import annotations

import json
import os
import platform
import resource
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CASES, Row

__all__ = ["markdown", "run_cases", "write", "write_page"]


def run_cases(
    names: Sequence[str] | None = None, quick: bool = False, tell: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Measure the named cases (all by default); `tell` hears of each row as it is ready."""
    unknown = [name for name in names or () if name not in CASES]
    if unknown:
        raise ValueError(f"unknown case {unknown[0]!r}; known are {', '.join(CASES)}")
    rows = []
    for name in names or CASES:
        for row in CASES[name](quick):
            rows.append(row)
            tell(row)
    return rows


def met(row: Row) -> str:
    """Whether the ratio reaches what was asked of it."""
    if not row.asked:
        return ""
    top, _, bottom = row.asked.partition("/")
    return "yes" if row.ratio >= float(top) / float(bottom or 1) else "no"


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, losses included."""
    lines = [
        "| what | corten | other | against | ratio | asked | met | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.what} | {_seconds(row.ours)} | {_seconds(row.other)} | {row.against} | {row.ratio:.3g} | "
            f"{row.asked} | {met(row)} | {row.note} |"
        )
    return "\n".join(lines)


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """bench.json, bench.md and bench.png in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine()
    data = {"machine": facts, "rows": [{**asdict(row), "ratio": row.ratio, "met": met(row)} for row in rows]}
    paths = [folder / "bench.json", folder / "bench.md", folder / "bench.png"]
    paths[0].write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    head = ", ".join(f"{key} {value}" for key, value in facts.items())
    paths[1].write_text(f"{markdown(rows)}\n\nMeasured in one run: {head}.\n", encoding="utf-8")
    _plot(rows, paths[2])
    return paths


PAGE = """# Benchmarks

Written by `python -m benchmarks speed --output docs/benchmarks-run --page docs/benchmarks.md`. Every row is a ratio of
two times taken in the same run on the same data: above one corten is faster, below one slower; what was asked and
missed stays in the table. The target of 100 for the fit is met against Algorithm 2 as printed (TT-SVD of the dense
tensor), not against the same algorithm with small-core rounding, which was the first opponent tried.

{table}

![Ratios of the table, on a logarithmic scale]({picture})

Measured in one run: {machine}.

## What the pass does

The pass over the mask is the unit of cost: loss and gradient in one go, nothing of the tensor's size held in float. Per
entry of the product coupling with last bond r (padded to a multiple of four) it does 3 r multiply-adds (evaluate B,
contract the gradient twice), two neighbour sums of 2 K additions, one packed exponential (12 multiply-adds), one packed
division and 1/64 of a logarithm: about 60 floating point operations at r = 3, K = 3. At the time per entry in the table
that is some 25 to 30 billion operations a second on two cores, about a tenth of what their vector units could do at
best; the rest goes to loads and stores in the caches (about 30 per entry), and to halo planes that are evaluated twice.
The mask itself, one byte an entry, is read at well below the memory's speed, so a faster memory would change nothing.

## A billion entries

`python benchmarks/billion.py 1000` fits r = 3 to a 1000 x 1000 x 1000 mask from a memory map. On the machine above:
48 s for 24 passes, start included, with a peak of 2.3 times the mask's own gigabyte.

Also: `benchmarks/conformal_step.py`, `benchmarks/gibbs.py`, `benchmarks/real_gaps.py`, `benchmarks/accelerator.py`.
"""


def write_page(rows: Sequence[Row], folder: Path, path: Path) -> Path:
    """The documentation's page of benchmarks, from measured rows."""
    head = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine().items())
    picture = Path(os.path.relpath(folder / "bench.png", path.parent)).as_posix()
    path.write_text(PAGE.format(table=markdown(rows), picture=picture, machine=head), encoding="utf-8")
    return path


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    from corten import __version__

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "corten": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "peak_memory": f"{peak:.2f} GB",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _plot(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if np.isfinite(row.ratio)]
    figure = Figure(figsize=(9, 0.4 * len(shown) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = ["#0072B2" if row.ratio >= 1 else "#D55E00" for row in shown]
    axes.barh(range(len(shown)), [row.ratio for row in shown], color=colours)
    axes.set_yticks(range(len(shown)), [f"{row.what} (against {row.against})" for row in shown], fontsize=8)
    for place, row in enumerate(shown):
        axes.annotate(f" {row.ratio:.3g}", (row.ratio, place), va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times faster (left of one: slower)")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    figure.savefig(path, dpi=110)
