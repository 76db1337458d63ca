"""The result of an audit: coverage with its standard error, by level and group of entries, and a conclusion."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from corten.data.arrays import Entries, Flags, Floats, Numbers
from corten.data.observed import ObservedTensor
from corten.data.printable import printable

if TYPE_CHECKING:
    import pandas as pd

GAP_RMS_ERROR, GAP_MAX_OVER, GAP_MAX_UNDER = 0.06, 0.13, 0.10
"""Errors in coverage of audits with pseudo-gaps on fields with a known truth (docs/checks.md): root mean square, and
the largest over- and underestimate.
"""
RANDOM_TOLERANCE = 0.01  # coverage; smaller deviations in audits of random splits are not reported
MAX_HALF_WIDTH = 0.15  # of the confidence interval of a coverage, above which an audit cannot tell
FAR_BELOW = 0.1  # coverage
MAX_GROUP_ERROR = 0.05  # standard error in coverage above which a group is not named the weakest
MIN_GROUP_ENTRIES = 50  # hidden entries below which a group is not named the weakest


@dataclass(frozen=True, eq=False)
class Sample:
    """The hidden entries of one round: weight, depth inside the gap and, for each level, covered or not and width."""

    kind: str
    entries: Entries
    log_weights: Floats = field(repr=False)
    depth: Numbers = field(repr=False)
    covered: Flags = field(repr=False)
    width: Floats = field(repr=False)


@dataclass(frozen=True)
class Row:
    """One row of the table: coverage of a group of entries at one level; `width` is the mean of finite widths."""

    level: float
    by: str
    group: str
    coverage: float
    standard_error: float
    width: float
    infinite_share: float
    count: int


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit. Returned by `Fitted.audit`.

    Notes
    -----
    Standard errors are clustered by round and by entry, as an entry hidden in two rounds is one entry, and include the
    sampling error of the fit's own cutoff. Errors of different entries are taken as independent; where errors of
    neighbours are correlated the true standard error is larger.

    Examples
    --------
    >>> checked = fitted.audit()                                     # doctest: +SKIP
    >>> checked.coverage(0.9), checked.standard_error(0.9)           # doctest: +SKIP
    >>> checked.table("depth")                                       # doctest: +SKIP
    """

    observed: ObservedTensor = field(repr=False)  #: The input of the fit.
    levels: tuple[float, ...]  #: Nominal coverages that were audited.
    samples: tuple[Sample, ...] = field(repr=False)  #: The hidden entries of each round.
    log_weights: Floats = field(repr=False)  #: Logarithms of the weights of all hidden entries, round by round.
    probability: Numbers = field(repr=False)  #: Probability of each entry being observed, by the reference model.
    gap_shaped: bool  #: Whether the fit was calibrated by pseudo-gaps.
    effective_sample_size: float  #: That of the calibration entries of the fit.
    notes: tuple[str, ...]  #: How hidden entries were weighted.
    seconds: float  #: Wall-clock time of the audit.
    untested: float = 0.0  #: Share of the missing entries deeper inside gaps than the audit reaches, or flagged so.

    def coverage(self, level: float = 0.9) -> float:
        """The coverage found for intervals of nominal coverage `level`, one of `levels`."""
        return self._overall(level).coverage

    def standard_error(self, level: float = 0.9) -> float:
        """The standard error of `coverage(level)`."""
        return self._overall(level).standard_error

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Rows for each level: all entries, ways of hiding, propensity deciles, depths, slices of each axis."""
        groups = [(by, label, inside) for by, label, inside in self._groups() if inside.any()]
        return tuple(
            self._row(place, level, by, label, inside)
            for place, level in enumerate(self.levels)
            for by, label, inside in groups
        )

    def table(self, by: str | None = None) -> pd.DataFrame:
        """The coverage found, by groups of entries: "all", "hiding", "propensity", "depth", an axis; default all.

        The columns are level, by, group, coverage, standard_error, width, infinite_share, count.
        """
        import pandas as pd

        rows = [row for row in self.rows if by in (None, row.by)]
        if not rows:
            known = ", ".join(dict.fromkeys(row.by for row in self.rows))
            raise ValueError(f"by is {by!r}; the table has {known}")
        return pd.DataFrame([asdict(row) for row in rows])

    def verdict(self) -> str:
        """The conclusion: levels that agree share a line; the weakest group, the weighting, and the limits."""
        return "\n".join([*self.untested_line(), *self._conclusions()])

    def _conclusions(self) -> list[str]:
        lines = self._judged()
        worst = self._worst()
        if worst is not None and worst.coverage < worst.level:
            lines.append(
                f"Weakest group at {worst.level:.0%}: {worst.by} {worst.group}, {worst.coverage:.1%} "
                f"(standard error {worst.standard_error:.1%}, {worst.count:,} hidden entries)."
            )
        limits = (
            "Limits: the audit does not detect missingness that depends on the values themselves, nor errors that "
            "occur only in gaps unlike the hidden ones."
        )
        if self.gap_shaped:
            limits += (
                f" Audits of pseudo-gaps on small fields with a known truth had a root mean square error of "
                f"{100 * GAP_RMS_ERROR:.0f} percentage points (at most {100 * GAP_MAX_OVER:.0f} too high, "
                f"{100 * GAP_MAX_UNDER:.0f} too low), because pseudo-gaps cannot lie where nothing is observed."
            )
        return [*lines, *self.notes, limits]

    @property
    def tolerance(self) -> float:
        """Deviation in coverage that is never reported, whatever the standard error."""
        return GAP_RMS_ERROR if self.gap_shaped else RANDOM_TOLERANCE

    def untested_line(self) -> list[str]:
        """The first line of the verdict if the rounds do not reach all missing entries."""
        if self.untested == 0.0:
            return []
        share = f"{self.untested:.0%}" if self.untested >= 0.01 else "less than 1%"
        return [
            f"Cannot tell for {share} of the missing entries: no observed entry that can be hidden is like them (too "
            "deep inside gaps, or in slices that are hardly observed). The following is about the others."
        ]

    def _judged(self) -> list[str]:
        """What the coverage of each level means; levels of the same meaning share a sentence."""
        alike: dict[str, list[Row]] = {}
        for row in map(self._overall, self.levels):
            _, text = conclusion(
                row.level, row.coverage, error=row.standard_error, rounds=len(self.samples), tolerance=self.tolerance
            )
            alike.setdefault(text, []).append(row)
        return [f"{_found(rows)}: {text}" for text, rows in alike.items()]

    def _worst(self) -> Row | None:
        level = min(self.levels, key=lambda one: abs(one - 0.9))
        groups = (row for row in self.rows if row.level == level and row.by not in ("all", "hiding"))
        able = [row for row in groups if row.count >= MIN_GROUP_ENTRIES and row.standard_error < MAX_GROUP_ERROR]
        return min(able, key=lambda row: row.coverage + 2 * row.standard_error, default=None)

    def _overall(self, level: float) -> Row:
        for row in self.rows:
            if row.by == "all" and abs(row.level - level) < 1e-9:
                return row
        raise ValueError(f"level {level!r} was not audited; there are {', '.join(f'{one:g}' for one in self.levels)}")

    def _joined(self, name: str) -> np.ndarray:
        """One array of all rounds: entries, depth, covered or width; the last two have a row for each level."""
        return np.concatenate([getattr(one, name) for one in self.samples], axis=-1)

    @cached_property
    def _hidden(self) -> tuple[Entries, Entries, Flags, Floats]:
        """Of all hidden entries: the flat index, the round, whether they are covered, and the width."""
        rounds = np.repeat(np.arange(len(self.samples)), [one.entries.size for one in self.samples])
        return self._joined("entries"), rounds, self._joined("covered"), self._joined("width")

    def _groups(self) -> Iterator[tuple[str, str, Flags]]:
        entries, rounds, _, _ = self._hidden
        yield "all", "all", np.ones(entries.size, bool)
        kinds = np.array([one.kind for one in self.samples])[rounds]
        for kind in dict.fromkeys(kinds.tolist()):
            yield "hiding", str(kind), kinds == kind
        chance = self.probability.reshape(-1)
        edges = np.unique(np.quantile(chance[self.observed.missing.reshape(-1)], np.linspace(0.1, 0.9, 9)))
        decile = np.searchsorted(edges, chance[entries])
        for number in range(edges.size + 1):
            low = edges[number - 1] if number else 0.0
            high = edges[number] if number < edges.size else 1.0
            yield "propensity", f"{low:.3g} to {high:.3g}", decile == number
        deep = self._joined("depth")
        low, high = 0.0, 1.0
        while low < deep.max(initial=0.0):
            yield "depth", f"up to {high:g}" if low == 0.0 else f"{low:g} to {high:g}", (deep > low) & (deep <= high)
            low, high = high, 2.0 * high
        place = np.unravel_index(entries, self.observed.shape)
        for axis, index in zip(self.observed.axes, place):
            for number in range(axis.length):
                yield axis.name, axis.label(number), index == number

    def _row(self, place: int, level: float, by: str, label: str, inside: Flags) -> Row:
        at = np.flatnonzero(inside)
        logs = self.log_weights[at]
        weight = np.exp(logs - logs.max())
        entries, rounds, covered, widths = self._hidden
        width = widths[place, at]
        share, error = clustered_share(covered[place, at], weight, rounds[at], entries[at])
        # The sampling error of the fit's own cutoff is sqrt(c (1 - c) / n) at the nominal coverage c, and k times that
        # in a group that misses k times as often.
        of_cutoff = np.sqrt(level * (1.0 - level) / max(self.effective_sample_size, 1.0))
        error = float(np.hypot(error, of_cutoff * (1.0 - share) / (1.0 - level)))
        finite = np.isfinite(width)
        heavy = weight[finite].sum()
        mean = float(weight[finite] @ width[finite] / heavy) if heavy > 0 else float("nan")
        infinite = float(weight[~finite].sum() / weight.sum())
        return Row(
            level, by, group=label, coverage=share, standard_error=error, width=mean, infinite_share=infinite,
            count=int(np.unique(entries[at]).size),
        )  # fmt: skip

    def __str__(self) -> str:
        entries = np.unique(self._joined("entries")).size
        lines = [f"Audit of {len(self.samples)} rounds, {entries:,} different observed entries hidden"]
        lines += [f"  {line}" for line in self.untested_line()]
        lines += [
            f"  nominal {row.level:6.1%}   found {row.coverage:6.1%} +- {row.standard_error:.1%}   "
            f"mean width {row.width:.4g}   infinite {row.infinite_share:.1%}"
            for row in map(self._overall, self.levels)
        ]
        return printable("\n".join([*lines, *self._conclusions()]))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        names = ("nominal coverage", "coverage found", "standard error", "mean finite width", "infinite")
        heads = "".join(f"<th>{one}</th>" for one in names)
        body = "".join(
            f"<tr><td>{row.level:.1%}</td><td>{row.coverage:.1%}</td><td>{row.standard_error:.1%}</td>"
            f"<td>{row.width:.4g}</td><td>{row.infinite_share:.1%}</td></tr>"
            for row in map(self._overall, self.levels)
        )
        words = "".join(f"<p>{html.escape(line)}</p>" for line in printable(self.verdict()).splitlines())
        return f"<b>corten: audit of {len(self.samples)} rounds</b><table><tr>{heads}</tr>{body}</table>{words}"


def _found(rows: list[Row]) -> str:
    """The coverage found at one level, or at several."""
    if len(rows) == 1:
        row, error = rows[0], f"(standard error {rows[0].standard_error:.1%})"
        return f"At {100 * row.level:.4g}% the audited coverage is {row.coverage:.1%} {error}"
    listed = [f"{row.coverage:.1%} at {100 * row.level:.4g}%" for row in rows]
    return f"The audited coverage is {', '.join(listed[:-1])} and {listed[-1]}"


def conclusion(level: float, coverage: float, *, error: float, rounds: int, tolerance: float) -> tuple[str, str]:
    """What a coverage found with a standard error means, "good", "warn" or "info", and the sentence."""
    if not np.isfinite(error):
        return "info", "too few entries were hidden for a conclusion."
    half = float(stdtrit(max(rounds - 1, 1), 0.975)) * error  # few rounds: Student's t
    if coverage < level - max(2.0 * error, tolerance):
        return "warn", "under-coverage; the intervals are too narrow."
    if coverage > level + max(2.0 * error, tolerance):
        return "info", "over-coverage; the intervals are wider than needed."
    if half <= MAX_HALF_WIDTH:
        return "good", "no evidence of under-coverage in the tested entries."
    between = f"between {max(0.0, coverage - half):.0%} and {min(1.0, coverage + half):.0%}"
    text = f"{rounds} rounds cannot tell, as the coverage lies {between} (95% confidence)."
    if coverage < level - FAR_BELOW:
        return "warn", f"{text} The share found is far below the nominal coverage: audit more rounds before use."
    return "info", f"{text} Audit more rounds."


def clustered_share(hit: Flags, weight: Floats, rounds: Entries, entries: Entries) -> tuple[float, float]:
    """A weighted share and its standard error, clustered by round and by entry.

    The share is sum w c / sum w; with z = w (c - share) its variance is (R + E - B) / (sum w)^2, R and E the
    summed squares of z within rounds and within entries and B those of single z (Cameron, Gelbach and Miller);
    never less than E alone.
    """
    total = float(weight.sum())
    share = min(1.0, float(weight @ hit / total))
    z = weight * (hit - share)
    _, by_round = np.unique(rounds, return_inverse=True)
    _, by_entry = np.unique(entries, return_inverse=True)
    many = int(by_round.max()) + 1
    in_rounds = float((np.bincount(by_round, z) ** 2).sum()) * (many / (many - 1) if many > 1 else np.nan)
    in_entries = float((np.bincount(by_entry, z) ** 2).sum())
    if not np.isfinite(in_rounds):
        in_rounds = in_entries
    variance = max(in_rounds + in_entries - float((z**2).sum()), in_entries) / total**2
    return share, float(np.sqrt(variance))
