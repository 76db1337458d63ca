"""Everything a study leaves behind: tables, figures, and the page of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from studies.cells import Cell
from studies.claims import claims
from studies.figure_tables import pooled, tables_of
from studies.figures import draw
from studies.files import whole_file
from studies.part_tables import Rows
from studies.presets import Preset
from studies.readings import readings_of
from studies.simulation import PARTS, Part
from studies.store import Store
from studies.tables import LEGEND, Beside, Table, Value, names, write_tables

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
        f"Written by `python -m studies report --preset {preset.name}` from stored results; do not edit. The tables are"
        f" also under `docs/results/` as CSV, and the figures.{_full_preset(preset, store)}",
        "",
        LEGEND,
        "",
        "**plain**: the paper's estimator (fixed step, no ridge, no thinning correction, P-AIC, approximate weights). "
        "**default**: ours (ridge with rescaling, thinning correction, held-out rank, exact weights). Both are told "
        "the right coupling.",
        "",
        *readings_of(preset),
        "",
    ]
    body: list[str] = []
    every = [part for part in parts or PARTS.values() if part.cells(preset)]
    for part in parts or PARTS.values():
        data = rows_of(part, preset, store)
        if not _has_rows(part, data):
            continue
        versions = sorted({row["version"] for rows in data.values() for row in rows})
        tables = tables_of(part.name, data)
        write_tables(tables, folder)
        body += [f"## {part.name}", "", f"{part.shows[0].upper()}{part.shows[1:]} (`{part.label}`).", ""]
        body += [*_mixed(versions), *_findings(part, data, tables)]
        body += [table.markdown() for table in tables]
        for file in draw(part.name, data, folder / "figures", (".png",)):
            body += [f"![{part.shows}: {file.stem}](results/figures/{file.name})", ""]
    cells = [cell for part in every for cell in part.cells(preset)]
    data = {name: store.rows(name, cells) for name in ("conformal", "ranks", "reading")}
    tables = [claims(data), progress(every, preset, store), *pooled(data)]
    write_tables(tables, folder)
    lines += [table.markdown() for table in tables]
    file = docs / "results.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as temporary:
        temporary.write_text("\n".join([*lines, *body]), encoding="utf-8")
    return file


def progress(parts: Sequence[Part], preset: Preset, store: Store) -> Table:
    """How far each part has been run: cells, and settings (all but the repetition) by how complete they are."""
    lines: list[tuple[Value, ...]] = []
    for part in parts:
        settings: dict[Cell, list[Cell]] = {}
        for cell in dict.fromkeys(part.cells(preset)):
            settings.setdefault(replace(cell, repetition=0), []).append(cell)
        done = [sum(cell in store for cell in some) for some in settings.values()]
        full = sum(have == len(some) for have, some in zip(done, settings.values()))
        cells = [cell for some in settings.values() for cell in some]
        rows = [row for name in dict.fromkeys(c.experiment for c in cells) for row in store.rows(name, cells)]
        versions = sorted({str(row["version"]) for row in rows})
        total = f"{sum(done)} of {len(cells)}"
        lines.append((part.name, total, f"{full} of {len(done)}", min(done), part.label, ", ".join(versions)))
    columns = names("part | cells done | settings complete | fewest repetitions of a setting | paper | code")
    notes = ("A setting is a size, a rank, a model and a B*. Parts share cells.",)
    return Table("progress", f"What has been run at preset {preset.name}", "", columns, tuple(lines), notes)


def _mixed(versions: Sequence[str]) -> list[str]:
    """A warning where rows of several versions of the code stand in one table."""
    text = f"Rows of several versions of the code stand here ({', '.join(versions)})."
    return [text, ""] if len(versions) > 1 else []


def _full_preset(preset: Preset, store: Store) -> str:
    """Whether the paper's own size has been run, beside a smaller one."""
    full = store.folder.with_name("full") / "cells"
    if preset.name == "full" or not full.exists():
        return "" if preset.name == "full" else " The full preset has not been run."
    count = sum(1 for _ in full.rglob("*.parquet"))
    return f" Of the full preset {count} cells have been run; they are not on this page."


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
                and "unweighted" not in (name, *row)
                and (_further(value, row[1]) if part.name == "selection" else value.differs == "higher")
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


def _further(rank: Beside, truth: Value) -> bool:
    """Whether a mean rank differs from the paper's and is further from the true one."""
    if rank.ours is None or rank.paper is None or not rank.differs or not isinstance(truth, int):
        return False
    return abs(rank.ours.mean - truth) > abs(rank.paper[0] - truth)


OTHER_B = (
    "The paper's B* is one draw we do not have, and numbers depend on the draw, on more than its size (table of B* "
    "under `coverage`). Compare columns within a row, which share B*, mask, data and split."
)
WHY = {
    "coverage": OTHER_B,
    "scores": OTHER_B,
    "methods": f"{OTHER_B} GCP minimises its likelihood to convergence by L-BFGS, the paper's by a descent that may "
    "stop earlier, which regularises; that was not tried.",
    "selection": "These are the paper's criteria on the paper's estimator, on one B* of ours, which need not be as "
    "easy as the paper's.",
}
