"""The summary of a result, as a table or as a plain dictionary."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.data.choices import Choice
from corten.data.plain import FOOTNOTE, NOTHING, plain
from corten.data.printable import printable

if TYPE_CHECKING:
    from rich.console import Group

    from corten.data.observed import ObservedTensor
    from corten.results.intervals import Intervals

__all__ = ["FOOTNOTE", "Summary", "plain"]

PRINT_WIDTH = 100  # columns


@dataclass(frozen=True)
class Summary:
    """Counts, widths, automatic settings and warnings of a result. Returned by `Intervals.summary`.

    ``print(summary)`` shows a table; `to_dict` gives plain numbers and text. Widths are those of finite intervals, and
    None if there are none; `finite_share` is the share of finite intervals.

    Attributes
    ----------
    name, units : str or None
        Name and unit of the data.
    axes : tuple of (str, int)
        Name and length of each axis.
    coverage : float
        Nominal coverage.
    observed, missing, outside, forecast, infinite, beyond_tested : int
        Numbers of entries: observed; missing; outside the domain; before the first or after the last observed time;
        with an infinite interval; deeper inside gaps than calibration tested.
    finite_share : float
        Share of the missing entries with a finite interval.
    mean_width, median_width : float or None
        Widths of the finite intervals, in the unit of the data.
    facts : dict
        Numbers of the fit, such as ``effective_sample_size``.
    choices : tuple of Choice
        Automatic settings.
    warnings : tuple of str
        Warnings, one sentence each.
    footnote : str
        What the intervals cover.
    """

    name: str | None
    units: str | None
    axes: tuple[tuple[str, int], ...]
    coverage: float
    observed: int
    missing: int
    outside: int
    forecast: int
    infinite: int
    finite_share: float
    mean_width: float | None
    median_width: float | None
    facts: dict[str, Any]
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]
    footnote: str = FOOTNOTE
    beyond_tested: int = 0

    @classmethod
    def of(cls, result: Intervals) -> Summary:
        """The summary of a result."""
        observed = result.observed
        width = result.width_array[observed.missing].astype(np.float64)
        finite = width[np.isfinite(width)]
        units = observed.attrs.get("units")
        return cls(
            name=observed.name,
            units=None if units is None else str(units),
            axes=tuple((axis.name, axis.length) for axis in observed.axes),
            coverage=result.coverage,
            observed=observed.n_observed,
            missing=observed.n_missing,
            outside=0 if observed.domain is None else int(np.count_nonzero(~observed.domain)),
            forecast=int(np.count_nonzero(observed.forecast)),
            infinite=int(width.size - finite.size),
            finite_share=float(finite.size / width.size) if width.size else 1.0,
            mean_width=float(finite.mean()) if finite.size else None,
            median_width=float(np.median(finite)) if finite.size else None,
            facts=dict(result.source.facts(result.coverage)),
            choices=result.choices,
            warnings=tuple(_notes(observed)) + tuple(_too_high(result)) + tuple(result.source.warnings()),
            beyond_tested=int(np.count_nonzero(result.beyond_array)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, text, lists and dictionaries, ready for JSON."""
        return {key: plain(value) for key, value in asdict(self).items()}

    def rows(self) -> list[tuple[str, str]]:
        """The rows of the table: a name and a value, as text."""
        unit = f" {self.units}" if self.units else ""
        total = self.observed + self.missing
        sizes = ", ".join(f"{name} {length}" for name, length in self.axes)
        rows = [
            ("tensor", f"{self.name or 'values'} ({sizes})"),
            ("observed", f"{self.observed:,} of {total:,} ({self.observed / total:.1%})"),
            ("filled", f"{self.missing:,}"),
        ]
        if self.beyond_tested:
            share = self.beyond_tested / self.missing
            rows.append(("of them deeper than tested", f"{self.beyond_tested:,} ({share:.1%}): coverage unknown"))
        if self.forecast:
            rows.append(("of them forecast", f"{self.forecast:,}"))
        if self.outside:
            rows.append(("outside the domain", f"{self.outside:,}"))
        rows.append(("nominal coverage", f"{self.coverage:.4g}"))
        if self.missing:
            rows.append(("finite intervals", f"{self.finite_share:.2%} ({self.infinite:,} infinite)"))
            rows.append(("mean finite width", _number(self.mean_width) + unit))
            rows.append(("median finite width", _number(self.median_width) + unit))
        rows += [(key.replace("_", " "), _number(value)) for key, value in self.facts.items()]
        return rows

    def _settings(self) -> list[tuple[str, ...]]:
        """Name, value and reason of each setting; a reason that is also a warning is not repeated."""
        return [
            (one.what, one.taken, "see the warning below" if one.because in self.warnings else one.because)
            for one in self.choices
        ]

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        title = f"corten: intervals at {self.coverage:.4g} coverage"
        head = Table(title=title, title_justify="left", show_header=False)
        head.add_column(style="bold")
        head.add_column()
        for left, right in self.rows():
            head.add_row(Text(printable(left)), Text(printable(right)))
        parts: list[Any] = [head]
        if self.choices:
            chosen = Table(title="settings", title_justify="left")
            for column in ("setting", "value", "reason"):
                chosen.add_column(column)
            for row in self._settings():
                chosen.add_row(*(Text(printable(one)) for one in row))
            parts.append(chosen)
        parts += [Text(printable(f"! {warning}"), style="yellow") for warning in self.warnings]
        parts.append(Text(self.footnote, style="dim"))
        return Group(*parts)

    def __str__(self) -> str:
        from rich.console import Console

        page = io.StringIO()
        Console(file=page, width=PRINT_WIDTH, color_system=None, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def shown(text: str) -> str:
            return html.escape(printable(text))

        def table(rows: Iterable[tuple[str, ...]]) -> str:
            left = "<td style='text-align:left'>"
            lines = ["".join(f"{left}{shown(text)}</td>" for text in row) for row in rows]
            return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"

        parts = [f"<b>corten: intervals at {self.coverage:.4g} coverage</b>", table(self.rows())]
        if self.choices:
            parts += ["<b>settings</b>", table(self._settings())]
        parts += [f"<p>&#9888; {shown(warning)}</p>" for warning in self.warnings]
        return "".join(parts) + f"<p><small>{shown(self.footnote)}</small></p>"


def _too_high(result: Intervals) -> list[str]:
    """A warning if the coverage is above the highest one with finite intervals and the source does not warn itself."""
    highest = result.source.facts(result.coverage).get("highest_finite_coverage", 1.0)
    if result.coverage <= highest or result.source.warnings():
        return []
    return [
        f"More than 1% of the intervals are infinite: coverage {result.coverage:.4g} is above the highest coverage "
        f"with finite intervals ({highest:.3g}). Ask for no more than that, or use calibration='gaps'."
    ]


def _notes(observed: ObservedTensor) -> list[str]:
    """Warnings that follow from the input alone."""
    notes = [choice.because for choice in observed.choices if choice.taken == "suspected"]
    if observed.complete:
        return [*notes, NOTHING]
    if observed.forecast.any():
        count = int(np.count_nonzero(observed.forecast))
        notes.append(
            f"{count:,} entries lie before the first or after the last observed time: they are forecasts, not gaps, "
            "and are flagged as such."
        )
    empty = observed.empty_slices()
    if empty:
        by_axis = {name: [index for axis, index in empty if axis == name] for name, _ in empty}
        named = "; ".join(
            f"{name} {', '.join(observed.axes[observed.axis(name)].label(i) for i in indices[:3])}"
            + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")
            for name, indices in by_axis.items()
        )
        notes.append(f"Slices without any observation ({named}): their estimates and intervals are extrapolated.")
    return notes


def _number(value: Any) -> str:
    if value is None:
        return "none finite"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    if isinstance(value, float | np.floating):
        number = float(value)
        return f"{number:,.4g}" if abs(number) < 1e4 or not np.isfinite(number) else f"{number:,.0f}"
    return str(value)
