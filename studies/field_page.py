"""The page of the study of real fields: what is asked of the defaults, what they reach, and every row behind it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.fields import VALIDATION, FieldRow, markdown, read_rows, verdict
from studies.files import whole_file

__all__ = ["ASKED", "Asked", "page", "write_page"]

OURS = "corten"
SHOWN = ("tec-america-1", "tec-global-1", "ndvi-50")


@dataclass(frozen=True)
class Asked:
    """What the defaults must reach on a set; coverage at 90 %, percentages and seconds."""

    mae: float
    miscoverage: float
    coverage: tuple[float, float]
    width: float
    seconds: float
    infinite: float = 0.5

    def missed(self, row: FieldRow) -> list[str]:
        """What a row misses, in words; slow runs are named too, though another machine is another time."""
        low, high = self.coverage
        checks = {
            f"MAE {row.mae:.3g}": row.mae <= self.mae,
            f"mis-coverage {row.miscoverage:.2f} %": row.miscoverage <= self.miscoverage,
            f"coverage {row.coverage90:.1f} %": low <= row.coverage90 <= high,
            f"{row.infinite90:.1f} % infinite": row.infinite90 <= self.infinite,
            f"width {row.width90:.3g}": row.width90 <= self.width,
            f"{row.seconds:.0f} s": row.seconds <= self.seconds,
        }
        return [said for said, holds in checks.items() if not holds]


_AMERICA = Asked(0.38, 3.0, (87, 93), 2.0, 240)
_GLOBE = Asked(0.50, 3.5, (86, 94), 2.5, 240)
ASKED = {
    "tec-america-1": _AMERICA,
    "tec-america-2": _AMERICA,
    "tec-global-1": _GLOBE,
    "tec-global-2": _GLOBE,
    **{
        f"ndvi-{share}": Asked(error, 2.5, (87, 93), 0.14, 480)
        for share, error in ((20, 0.028), (30, 0.030), (40, 0.032), (50, 0.034))
    },
}


def page(
    rows: Sequence[FieldRow], command: str, figures: Sequence[str] = (), validation: Sequence[FieldRow] = ()
) -> str:
    """The whole page as Markdown; `figures` are sets whose pictures lie in `images/` beside it.

    validation: rows of the grid search of the coupling, in a part of their own.
    """
    versions = ", ".join(sorted({row.version for row in rows}))
    parts = [
        "# Results on real fields",
        f"Made by `{command}`, corten {versions}, Python {platform.python_version()}, {os.cpu_count()} cores. "
        "Truth is known at the gaps and used for scoring only; every method gets the same arrays. *corten* is "
        "`corten.complete(x)` with nothing set. *unweighted*, *Bernoulli* and *Ising 5xy/4* are the paper's section 5: "
        "Tucker completion of rank 3, random split, ranks up to 7 by P-AIC, approximate weights. Mis-coverage is the "
        "mean of |coverage − asked| over 80 % to 99 %; widths are means of the finite intervals, so read them beside "
        "the share of infinite ones. ESS is the effective sample size of the weights. "
        "Seconds are wall-clock and processor time of all cores; wall-clock times include other load.",
        "## What is asked of the defaults, and what they reach",
        _reached(rows),
        "## Every run",
        markdown(rows),
    ]
    if validation:
        parts += [
            "## The paper's grid search of the coupling",
            f"Made by `python -m studies tec --validate --set {validation[0].set}`, corten "
            f"{', '.join(sorted({row.version for row in validation}))}. Every strength in every neighbourhood, on a "
            "tensor whose truth is known, else as the paper sets it; *learned* strengths come from the mask alone. "
            f"In short: {verdict(validation)}.",
            markdown(validation),
        ]
    if figures:
        parts.append("## Pictures\n\nMean 95 % interval by bins of the true value, with its coverage; then one slice.")
    for name in figures:
        parts += [f"![{name}: intervals by value](images/{name}-bins.png)", f"![{name}: maps](images/{name}-maps.png)"]
    return "\n\n".join(parts) + "\n"


def write_page(rows: Sequence[FieldRow], target: Path, folder: Path, command: str) -> Path:
    """Write the page, with the grid search and copies of the pictures that the study's folder holds."""
    shown = [name for name in SHOWN if all((folder / f"{name}-{kind}.png").exists() for kind in ("bins", "maps"))]
    images = target.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name in shown:
        for kind in ("bins", "maps"):
            shutil.copy(folder / f"{name}-{kind}.png", images)
    with whole_file(target) as temporary:
        temporary.write_text(page(rows, command, shown, read_rows(folder, VALIDATION)), encoding="utf-8")
    return target


def _reached(rows: Sequence[FieldRow]) -> str:
    heads = "set", "seeds", "MAE", "mis-coverage %", "90 % coverage", "infinite %", "width", "s", "CPU s", "missed"
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, asked in ASKED.items():
        mine = [row for row in rows if row.set == name and row.method == OURS]
        if not mine:
            lines.append(f"| {name} | none run |" + " |" * (len(heads) - 2))
            continue
        low, high = asked.coverage
        missed = [f"seed {row.seed}: {said}" for row in mine for said in asked.missed(row)]
        cells = [
            name,
            str(len(mine)),
            f"{_spread([r.mae for r in mine])} (≤ {asked.mae:g})",
            f"{_spread([r.miscoverage for r in mine])} (≤ {asked.miscoverage:g})",
            f"{_spread([r.coverage90 for r in mine])} ({low:g}–{high:g})",
            f"{_spread([r.infinite90 for r in mine])} (≤ {asked.infinite:g})",
            f"{_spread([r.width90 for r in mine])} (≤ {asked.width:g})",
            f"{_spread([r.seconds for r in mine])} (≤ {asked.seconds:g})",
            _spread([r.cpu_seconds for r in mine]),
            "; ".join(missed) or "nothing",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(numbers: Sequence[float]) -> str:
    """The mean, and the ends where they differ."""
    low, mean, high = min(numbers), float(np.mean(numbers)), max(numbers)
    return f"{mean:.3g}" if high == low else f"{mean:.3g}, {low:.3g} to {high:.3g}"
