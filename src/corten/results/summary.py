"""The summary of a result: ten lines, or with every setting and its reason; as text, HTML or a plain dictionary."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from corten.data.choices import Choice
from corten.data.flags import BEYOND, FORECAST, INFINITE, NEVER, OUTSIDE
from corten.data.never_observed import CODE as NEVER_OBSERVED
from corten.data.observed import ObservedTensor
from corten.data.plain import FOOTNOTE, NOTHING, Json, percent, plain
from corten.data.printable import printable, unit_sign

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from corten.results.intervals import Intervals


class Facts(TypedDict, total=False):
    """Numbers of a fit, by name."""

    calibration_entries: int
    effective_sample_size: float
    seconds: float
    engine: str
    mean_absolute_error_on_hidden_entries: float
    baseline: str
    mean_absolute_error_of_the_baseline: float
    coverage_on_hidden_entries: float
    coverage_in_most_rounds: tuple[float, float]
    coverage_in_most_folds: tuple[float, float]
    highest_finite_coverage: float


PRINT_WIDTH = 80  # columns
MOST_WIDTHS = (0.1, 0.9)  # quantiles between which most widths lie
MORE = "summary(full=True) lists every setting."
IN_A_ROW = ("pseudo_gaps_too_short", "slices_not_tested")  # codes of settings whose warning is a row of the short form


@dataclass(frozen=True)
class Summary:
    """What was filled, how wide the intervals are, and what is known of their coverage. See `Intervals.summary`.

    ``print(summary)`` shows it; `to_dict` gives plain numbers and text. Widths are those of finite intervals, and
    None if there are none; `finite_share` is the share of finite intervals.
    """

    name: str | None
    units: str | None
    axes: tuple[tuple[str, int], ...]  #: Name and length of each axis.
    coverage: float  #: Nominal coverage.
    observed: int  #: Number of observed entries.
    missing: int
    outside: int  #: Number of entries outside the domain.
    forecast: int  #: Number of entries before the first or after the last observed time.
    infinite: int  #: Number of entries with an infinite interval.
    finite_share: float
    mean_width: float | None  #: Of the finite intervals, in the unit of the data.
    median_width: float | None
    facts: Facts  #: Numbers of the fit, such as ``effective_sample_size`` and ``coverage_on_hidden_entries``.
    choices: tuple[Choice, ...]  #: Automatic settings.
    warnings: tuple[str, ...]  #: One sentence each.
    footnote: str = FOOTNOTE  #: What the intervals cover.
    beyond_tested: int = 0  #: Number of entries beyond what calibration tested.
    most_widths: tuple[float, float] | None = None  #: The 10 % and the 90 % quantile of the widths.
    extrapolated: str = ""  #: The slices without any observation.
    full: bool = False  #: Whether every number and setting is shown, or the most important ones.
    below_zero: int = 0  #: Number of finite lower bounds below zero, if no observed value is.

    def to_dict(self) -> dict[str, Json]:
        """Plain numbers, text, lists and dictionaries, ready for JSON."""
        return {key: plain(value) for key, value in asdict(self).items() if key != "full"}

    def rows(self) -> list[tuple[str, str]]:
        """Every number: a name and a value, as text."""
        total = self.observed + self.missing
        rows = [
            ("tensor", self._tensor()),
            ("observed", f"{self.observed:,} of {total:,} ({self.observed / total:.1%})"),
            ("filled", f"{self.missing:,}"),
        ]
        if self.beyond_tested:
            share = percent(self.beyond_tested, self.missing)
            rows.append(("of them beyond what was tested", f"{self.beyond_tested:,} ({share}): coverage unknown"))
        if self.forecast:
            rows.append(("of them forecast", f"{self.forecast:,}"))
        if self.outside:
            rows.append(("outside the domain", f"{self.outside:,}"))
        rows.append(("nominal coverage", f"{self.coverage:.4g}"))
        if self.missing:
            rows.append(("finite intervals", f"{self.finite_share:.2%} ({self.infinite:,} infinite)"))
            rows.append(("mean finite width", _number(self.mean_width) + self._unit))
            rows.append(("median finite width", _number(self.median_width) + self._unit))
        return rows + [(key.replace("_", " "), self._fact(key, value)) for key, value in self.facts.items()]

    @property
    def _unit(self) -> str:
        """The unit of the data, to be put after a number."""
        return f" {unit_sign(self.units)}" if self.units else ""

    def _fact(self, key: str, value: object) -> str:
        """One of the facts, with its unit."""
        if key.startswith("coverage_"):
            return " to ".join(f"{share:.1%}" for share in np.atleast_1d(np.asarray(value)))
        return _number(value) + (self._unit if "absolute_error" in key else "")

    def short_rows(self) -> list[tuple[str, str]]:
        """The most important numbers: a name and a sentence, as text."""
        total = self.observed + self.missing
        rows = [("filled", f"{self.missing:,} of {total:,} entries ({percent(self.missing, total)})")]
        rows += self._left_out_rows()
        rows += self._measured_rows()
        if self.beyond_tested:
            codes = {one.code for one in self.choices}
            where = f"deeper in gaps (flag {BEYOND})"
            if "slices_not_tested" in codes:
                where = f"in slices with too few observed entries to test them (flag {BEYOND})"
            elif NEVER_OBSERVED in codes and "pseudo_gaps_too_short" not in codes:
                where = f"never observed (flag {NEVER})"
            count = f"{self.beyond_tested:,} of the entries ({percent(self.beyond_tested, self.missing)})"
            rows.append(("beyond tested", f"{count}, {where}: coverage unknown"))
        elif any(one.code == "pseudo_gaps_deep_enough" for one in self.choices):
            found = [one.what.removeprefix("kind of ") for one in self.choices if one.code == "unordered_axis"]
            provided = f", if {' and '.join(found)} {'has' if len(found) == 1 else 'have'} no order" if found else ""
            rows.append(("beyond tested", f"no entry lies deeper inside a gap than what was tested{provided}"))
        if self.below_zero:
            text = f"{self.below_zero:,} lower bounds, though no observed value is"
            rows.append(("negative", f"{text}: bounds=(0, None) keeps them at 0 or more"))
        if self.infinite:
            text = f"{self.infinite:,} entries ({percent(self.infinite, self.missing)}) have no finite interval"
            rows.append(("infinite", f"{text} (flag {INFINITE})"))
        if self.forecast:
            text = f"{self.forecast:,} entries before the first or after the last observed time"
            rows.append(("forecast", f"{text} (flag {FORECAST})"))
        if self.extrapolated:
            rows.append(("extrapolated", f"slices without any observation: {self.extrapolated}"))
        if "seconds" in self.facts:
            engine = self.facts.get("engine")
            needed = next((one.taken for one in self.choices if one.what == "peak memory"), "")
            memory = f"; {needed} of memory predicted" if "MB" in needed or "GB" in needed else ""
            count = (engine or "").removeprefix("threads (").removesuffix(")")
            own = f"{count} thread{'' if count == '1' else 's'}" if count.isdigit() else engine
            on = f" on {own}" if engine else ""
            rounds = next((f"; rounds on {one.taken}" for one in self.choices if one.what == "rounds run on"), "")
            rows.append(("computed", f"in {duration(self.facts['seconds'])}{on}{memory}{rounds}"))
        return rows

    def _measured_rows(self) -> Iterator[tuple[str, str]]:
        """Width, error and coverage, as far as they are known."""
        if self.missing and self.median_width is None:
            yield "intervals", f"nominal coverage {self.coverage:.4g}; none is finite"
        elif self.missing and self.median_width is not None:
            low, high = map(_short, self.most_widths or (self.median_width, self.median_width))
            spread = "" if low == high else f" (most {low} to {high})"
            width = f"{_short(self.median_width)}{self._unit}{spread}"
            yield "intervals", f"nominal coverage {self.coverage:.4g}; width {width}"
        error = self.facts.get("mean_absolute_error_on_hidden_entries")
        if error is not None:
            other = f"{self.facts['baseline']}: {_short(self.facts['mean_absolute_error_of_the_baseline'])}"
            yield "absolute error", f"mean {_short(error)}{self._unit} on hidden entries; {other}"
        found = self.facts.get("coverage_on_hidden_entries")
        if found is not None:
            carried = any(one.code == "filled_by_a_fit" for one in self.choices)
            how, most = "hidden entries", ""
            for kind, pair, hidden in (
                ("folds", self.facts.get("coverage_in_most_folds"), "entries hidden at random"),
                ("rounds", self.facts.get("coverage_in_most_rounds"), "entries hidden like the gaps"),
            ):
                if pair is not None:
                    how = "entries hidden in the earlier fit" if carried else hidden
                    most = f" (most {kind} {pair[0]:.0%} to {pair[1]:.0%})"
            yield "coverage", f"{found:.1%} of {how}{most}"

    def _left_out_rows(self) -> list[tuple[str, str]]:
        """What was not filled, and places that are filled without any observation."""
        rows, given = [], self.outside
        for one in self.choices:
            if one.code != NEVER_OBSERVED:
                continue
            places, entries, skipped = (int(str(one.values[key])) for key in ("places", "entries", "skipped"))
            given -= skipped
            if skipped:
                own = int(str(one.values["places_skipped"]))
                text = f"{skipped:,} entries of {own:,} places never observed: {one.values['why']}"
                rows.append(("skipped", f"{text} (fill_never_observed=True fills them)"))
                entries, places = entries - skipped, places - own
            if places and not (self.extrapolated and len(self.axes) == 2):  # there they are slices
                flagged = "" if one.values.get("by_chance") else f" (flag {NEVER})"
                rows.append(("never observed", f"{places:,} places ({entries:,} entries), filled{flagged}"))
        if given > 0:
            rows.insert(0, ("skipped", f"{given:,} entries outside the domain (flag {OUTSIDE})"))
        return rows

    def _tensor(self) -> str:
        sizes = ", ".join(f"{name} {length}" for name, length in self.axes)
        return f"{self.name or 'value'} ({sizes})"

    def _settings(self) -> list[tuple[str, ...]]:
        """Name, value and reason of each setting; a reason that is also a warning is not repeated."""
        return [
            (one.what, one.taken, "see the warning below" if one.because in self.warnings else one.because)
            for one in self.choices
        ]

    def _shown_warnings(self) -> tuple[str, ...]:
        """The warnings; the short form has those that are a row of it there."""
        if self.full:
            return self.warnings
        in_a_row = {one.because for one in self.choices if one.code in IN_A_ROW}
        kept = [text for text in self.warnings if text not in in_a_row]
        return tuple(text for text in kept if not text.startswith((EXTRAPOLATED, FORECASTS)))

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        def text(line: str, style: str = "") -> Text:
            return Text(printable(line), style=style)

        head = Table.grid(padding=(0, 2, 0, 0))
        head.add_column(style="bold", no_wrap=True)
        head.add_column()
        for left, right in self.rows() if self.full else self.short_rows():
            head.add_row(text(left), text(right))
        parts: list[RenderableType] = [text(f"corten: {self._tensor()}", "bold"), head]
        if self.full and self.choices:
            from rich import box

            chosen = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
            for column, ratio in (("Setting", 3), ("Value", 4), ("Why", 6)):
                chosen.add_column(column, ratio=ratio)
            for row in self._settings():
                chosen.add_row(*(text(one) for one in row))
            parts += [Text(), chosen, Text()]
        parts += [text(f"! {warning}", "yellow") for warning in self._shown_warnings()]
        parts.append(text(self.footnote if self.full else f"{self.footnote} {MORE}", "dim"))
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

        def table(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
            cell = "style='text-align:left;vertical-align:top;padding:2px 12px 2px 0'"
            lines = ["".join(f"<th {cell}>{name}</th>" for name in head)] if head else []
            first = cell.replace("style='", "style='font-weight:bold;white-space:nowrap;")
            lines += [
                "".join(f"<td {cell if k else first}>{shown(text)}</td>" for k, text in enumerate(row)) for row in rows
            ]
            return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"

        parts = [f"<b>corten: {shown(self._tensor())}</b>", table(self.short_rows())]
        parts += [f"<p>&#9888; {shown(warning)}</p>" for warning in replace(self, full=False)._shown_warnings()]
        parts.append(f"<p><small>{shown(self.footnote)}</small></p>")
        if self.choices:
            settings = table(self.rows()) + table(self._settings(), ("Setting", "Value", "Why"))
            opened = " open" if self.full else ""
            parts.append(f"<details{opened}><summary>every number and setting</summary>{settings}</details>")
        return "<div>" + "".join(parts) + "</div>"


def summary(result: Intervals, full: bool = False) -> Summary:
    """What was filled, typical width and error, coverage on hidden entries, and what to be careful about.

    Parameters
    ----------
    full : bool, default False
        Whether every number and every setting with its reason is shown, instead of about ten lines.

    Returns
    -------
    Summary
        ``print`` shows it, ``to_dict()`` gives plain numbers and text.

    Notes
    -----
    The error is that of entries that calibration hid, beside that of the best plain method on them: linear
    interpolation along one ordered axis, or the mean at one position of an axis. The coverage is that of the
    entries hidden in one round by a cutoff from the other rounds; `Fitted.audit` is a stronger test.
    """
    observed = result.observed
    width = result.width_array[observed.missing].astype(np.float64)
    finite = width[np.isfinite(width)]
    units = observed.attrs.get("units")
    facts = result.source.facts(result.coverage)
    most = tuple(np.quantile(finite, MOST_WIDTHS).tolist()) if finite.size else None
    return Summary(
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
        facts=facts,
        choices=result.choices,
        warnings=(*_notes(observed), *_too_high(result, facts), *result.source.warnings()),
        beyond_tested=int(np.count_nonzero(result.beyond_array)),
        most_widths=most,
        below_zero=_below_zero(result),
        extrapolated=_empty(observed),
        full=full,
    )


def duration(seconds: float) -> str:
    """A time in words, with two digits."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 60:
        return f"{minutes:.1f} min" if minutes < 9.95 else f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"


EXTRAPOLATED = "Slices without any observation"
FORECASTS = "Forecasts, not gaps"


def _too_high(result: Intervals, facts: Facts) -> list[str]:
    """A warning if the coverage is above the highest one with finite intervals and the source does not warn itself."""
    highest = facts.get("highest_finite_coverage", 1.0)
    if result.coverage <= highest or result.source.warnings():
        return []
    return [
        f"More than 1% of the intervals are infinite: coverage {result.coverage:.4g} is above the highest coverage "
        f"with finite intervals ({highest:.3g}). Ask for no more than that, or use calibration='gaps'."
    ]


def _below_zero(result: Intervals) -> int:
    """How many lower bounds of missing entries are negative although no observed value is."""
    observed = result.observed
    if not observed.n_observed or np.min(observed.values, where=observed.mask, initial=np.inf) < 0:
        return 0
    lower = result.lower_array[observed.missing]
    return int(np.count_nonzero(np.isfinite(lower) & (lower < 0)))


def _notes(observed: ObservedTensor) -> list[str]:
    """Warnings that follow from the input alone."""
    notes = [choice.because for choice in observed.choices if choice.taken == "suspected"]
    if observed.complete:
        return [*notes, NOTHING]
    if observed.forecast.any():
        count = int(np.count_nonzero(observed.forecast))
        notes.append(
            f"{FORECASTS}: {count:,} entries lie before the first or after the last observed time, and are flagged as "
            "such."
        )
    empty = _empty(observed)
    if empty:
        notes.append(f"{EXTRAPOLATED} ({empty}): their estimates and intervals are extrapolated.")
    return notes


def _empty(observed: ObservedTensor) -> str:
    """The slices without any observation, a few of each axis by name; empty text if there are none."""
    empty = [] if observed.complete else observed.empty_slices()
    by_axis = {name: [index for axis, index in empty if axis == name] for name, _ in empty}
    return "; ".join(
        f"{name} {', '.join(observed.axes[observed.axis(name)].label(i) for i in indices[:3])}"
        + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")
        for name, indices in by_axis.items()
    )


def _short(value: float) -> str:
    """A number with three digits."""
    return f"{value:,.3g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _number(value: object) -> str:
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
