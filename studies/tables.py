"""Tables as data, written as Markdown and CSV: the paper's number beside ours, and a mark where they differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

from studies.comparison import Paired, Summary, differs
from studies.files import whole_file
from studies.paper_numbers import Number

__all__ = ["LEGEND", "MARKS", "Beside", "Table", "names", "write_tables"]

ENDS = {
    1: ("",),
    2: ("", " sd"),
    3: ("", " se", " n"),
    4: ("", " sd", " se", " n"),
    5: ("", " sd", " se", " n", " differs"),
}
MARKS = {"higher": "↑", "lower": "↓", "": ""}
LEGEND = (
    "Numbers are means over repetitions with their standard deviation in brackets. ↑ ↓: ours is larger, smaller "
    "than the paper's by more than two "
    "joint standard errors."
)


@dataclass(frozen=True)
class Beside:
    """Our number where the paper has one too: shown with a mark if they differ.

    Example:
        >>> str(Beside(Summary(2.0, 0.1, 0.03, 10), (1.0, 0.2)))
        '2 (0.1) ↑'
    """

    ours: Summary | None
    paper: Number | None

    @property
    def differs(self) -> str:
        """ "higher", "lower" or nothing."""
        return differs(self.ours, self.paper)

    def __str__(self) -> str:
        return "" if self.ours is None else f"{self.ours} {MARKS[self.differs]}".rstrip()


Value = Summary | Beside | Paired | Number | float | int | str | None


@dataclass(frozen=True)
class Table:
    """One table: the paper's label (empty where it has none), named columns, rows of values, and notes on them."""

    name: str
    title: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def markdown(self) -> str:
        """The table as Markdown, with its title and notes.

        Example:
            >>> print(Table("t", "A title", "tab:x", ("d", "ours"), ((40, 0.5),)).markdown())
            ### A title
            <BLANKLINE>
            Paper: `tab:x`.
            <BLANKLINE>
            | d | ours |
            | --- | --- |
            | 40 | 0.5 |
            <BLANKLINE>
        """
        head = [f"### {self.title}", "", *([f"Paper: `{self.label}`.", ""] if self.label else [])]
        lines = ["| " + " | ".join(self.columns) + " |", "|" + " --- |" * len(self.columns)]
        lines += ["| " + " | ".join(_text(value) for value in row) + " |" for row in self.rows]
        return "\n".join([*head, *lines, "", *(f"- {note}" for note in self.notes)]) + ("\n" if self.notes else "")

    def csv(self) -> str:
        """The same with every number in a column of its own: mean, sd, error, count."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        spread = [max((len(_parts(row[k])) for row in self.rows), default=1) for k in range(len(self.columns))]
        writer.writerow([name + end for name, width in zip(self.columns, spread) for end in ENDS[width]])
        for row in self.rows:
            cells: list[object] = []
            for value, width in zip(row, spread):
                parts = list(_parts(value))
                cells += parts + [""] * (width - len(parts))
            writer.writerow(cells)
        return out.getvalue()


def names(text: str) -> tuple[str, ...]:
    """Column names from one line.

    Example:
        >>> names("d | P-AIC, converged")
        ('d', 'P-AIC, converged')
    """
    return tuple(name.strip() for name in text.split("|"))


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Every table as NAME.md and NAME.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for suffix, text in ((".md", table.markdown()), (".csv", table.csv())):
            file = folder / f"{table.name}{suffix}"
            with whole_file(file) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(file)
    return written


def _text(value: Value) -> str:
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, tuple):
        return f"{value[0]:g} ({value[1]:g})" if value[1] else f"{value[0]:g}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def _parts(value: Value) -> tuple[object, ...]:
    if isinstance(value, Beside):
        return (*_parts(value.ours), value.differs) if value.ours is not None else ("",)
    if isinstance(value, Summary):
        return (*(f"{x:.6g}" for x in (value.mean, value.sd, value.error)), value.count)
    if isinstance(value, Paired):
        return f"{value.mean:.6g}", f"{value.error:.6g}", value.count
    if isinstance(value, tuple):
        return value
    if isinstance(value, float):
        return (f"{value:.6g}",)
    return ("" if value is None else value,)
