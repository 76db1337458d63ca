"""Everything a study leaves behind: tables, figures, and the page of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from corten.studies.claims import claims
from corten.studies.figure_tables import pooled, tables_of
from corten.studies.figures import draw
from corten.studies.part_tables import Rows
from corten.studies.presets import Preset
from corten.studies.simulation import PARTS, Part
from corten.studies.store import Store
from corten.studies.tables import LEGEND, Beside, Table, write_tables

__all__ = ["page", "rows_of", "write_part"]


def rows_of(part: Part, preset: Preset, store: Store) -> Rows:
    """The stored rows of a part's cells, by experiment, as far as they are done."""
    cells = part.cells(preset)
    return {name: store.rows(name, cells) for name in dict.fromkeys(cell.experiment for cell in cells)}


def _has_rows(part: Part, data: Rows) -> bool:
    """Whether the experiment a part is about has rows; a part without cells only draws."""
    return not data or (any(data.values()) and bool(next(iter(data.values()))))


def write_part(part: Part, preset: Preset, store: Store, folder: Path) -> list[Path]:
    """Tables and figures of a part from what is stored; nothing if nothing is."""
    data = rows_of(part, preset, store)
    if not _has_rows(part, data):
        return []
    return write_tables(tables_of(part.name, data), folder / "tables") + draw(part.name, data, folder / "figures")


def page(preset: Preset, store: Store, docs: Path, parts: Sequence[Part] | None = None) -> Path:
    """Write docs/results.md and the small tables beside it from what is stored at a preset."""
    folder = docs / "results"
    lines = [
        "# Results beside the paper's",
        "",
        f"Written by `corten study report --preset {preset.name}` from stored results; do not edit. The tables are"
        f" also under `docs/results/` "
        "as CSV. The full preset has not been run.",
        "",
        LEGEND,
        "",
        "**plain**: the paper's estimator (fixed step, no ridge, no thinning correction, P-AIC, approximate "
        "weights). **default**: ours (ridge with rescaling, thinning "
        "correction, held-out rank, exact weights). Both are told the right coupling. Signal, noise and split are"
        " new in every repetition; masks are successive samples of one "
        "chain per B*; one B* serves both models.",
        "",
    ]
    missing: list[str] = []
    body: list[str] = []
    for part in parts or PARTS.values():
        data = rows_of(part, preset, store)
        cells = part.cells(preset)
        if not cells:
            continue
        done = sum(cell in store for cell in cells)
        if not _has_rows(part, data):
            missing.append(f"{part.name} ({part.label})")
            continue
        versions = sorted({row["version"] for rows in data.values() for row in rows})
        tables = tables_of(part.name, data)
        write_tables(tables, folder)
        body += [f"## {part.name}", "", f"{part.shows[0].upper()}{part.shows[1:]}.", ""]
        body += [
            f"Preset {preset.name}: {done} of {len(cells)} cells done, code {', '.join(versions)}.",
            "",
            *_findings(part, data, tables),
        ]
        body += [table.markdown() for table in tables]
    cells = [cell for part in parts or PARTS.values() for cell in part.cells(preset)]
    data = {name: store.rows(name, cells) for name in ("conformal", "ranks")}
    tables = [claims(data), *pooled(data)]
    write_tables(tables, folder)
    lines += [table.markdown() for table in tables]
    if missing:
        body += ["## Not run yet", "", f"At preset {preset.name}: {', '.join(missing)}.", ""]
    file = docs / "results.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, *body]), encoding="utf-8")
    return file


def _findings(part: Part, data: Rows, tables: Sequence[Table]) -> list[str]:
    """What must be said in words: which of our numbers are worse than the paper's, and why."""
    worse = []
    for table in tables:
        for row in table.rows:
            keys = ", ".join(str(v) for v in row[:4] if isinstance(v, int | str) and v != "")
            names = [
                name
                for name, value in zip(table.columns, row)
                if isinstance(value, Beside)
                and value.differs == "higher"
                and "P-" not in name
                and "unweighted" not in (name, *row)
            ]
            if names:
                worse.append(f"{keys}: {', '.join(names)}")
    lines = []
    if worse:
        lines += [
            f"Worse than the paper's number in {len(worse)} row(s): " + "; ".join(worse) + ".",
            "",
            WHY.get(part.name, ""),
            "",
        ]
    return lines


WHY = {
    "coverage": "Why: mis-coverage of unweighted and weighted intervals alike follows the B* that is drawn (how "
    "much of it is negative, how large its smallest values are); "
    "the paper's is one draw we do not have. Compare columns within a row, which share B*, mask, data and split.",
    "scores": "Why: as for `coverage`, the paper's B* is one draw we do not have; compare columns within a row.",
    "methods": "Why: relative errors scale with 1 / ||B*||, which depends on the draw; GCP and Tucker take the "
    "rank that BIC takes on our draws, 2 instead of 3 in some, and pay for it.",
}
