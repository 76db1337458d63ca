"""What an audit found: coverage with its error, per level and per group of entries, and what may be concluded."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corten.observed import ObservedTensor
from corten.printable import printable

__all__ = ["Audit", "Row", "Sample"]

OFF, KIND, STRICT = 0.06, 0.13, 0.10
"""How far gap-shaped audits were off on fields whose truth was known (docs/evidence.md): root mean square, and at most
above and below what was covered.
"""
OFF_RANDOM = 0.01
"""As OFF, for audits of random splits: an audit nearer to the level than this finds nothing."""
PRECISE = 0.05
"""A group is called the weakest only if its coverage is known to this standard error."""
LEAST = 50
"""Groups with fewer hidden entries than this are in the table but no verdict rests on them."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One round's hidden entries: weights, depth inside the gap, and, per level, whether each was covered and
    how widely.
    """

    kind: str
    entries: NDArray[np.intp]
    log_weights: NDArray[np.float64] = field(repr=False)
    depth: NDArray[np.floating] = field(repr=False)
    covered: NDArray[np.bool_] = field(repr=False)
    width: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class Row:
    """One line of the table: coverage of one group of entries at one level; `width` is the mean of finite ones."""

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
    """The answer of an audit: `coverage(level)`, `table()`, `verdict()`.

    Standard errors are clustered by round and by entry, as an entry hidden in two rounds is one entry, and hold
    the error of this fit's own cutoff besides. They take errors of different entries for independent; where
    neighbours err together the true error is larger.
    """

    observed: ObservedTensor = field(repr=False)
    levels: tuple[float, ...]
    samples: tuple[Sample, ...] = field(repr=False)
    log_weights: NDArray[np.float64] = field(repr=False)
    probability: NDArray[np.floating] = field(repr=False)
    gap_shaped: bool
    effective_sample_size: float
    notes: tuple[str, ...]
    seconds: float

    def coverage(self, level: float = 0.9) -> float:
        """The audited coverage of intervals that ask for `level`."""
        return self._overall(level).coverage

    def standard_error(self, level: float = 0.9) -> float:
        """The standard error of `coverage(level)`."""
        return self._overall(level).standard_error

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every line: all entries, ways of hiding, slices of each axis, propensity deciles, gap depths; for
        each level.
        """
        groups = [(by, label, inside) for by, label, inside in self._groups() if inside.any()]
        return tuple(
            self._row(place, level, by, label, inside)
            for place, level in enumerate(self.levels)
            for by, label, inside in groups
        )

    def table(self, by: str | None = None) -> Any:
        """All rows as a pandas DataFrame; `by` narrows it: "all", "hiding", "propensity", "depth" or the name
        of an axis.
        """
        import pandas as pd

        rows = [row for row in self.rows if by is None or row.by == by]
        if by is not None and not rows:
            known = ", ".join(dict.fromkeys(row.by for row in self.rows))
            raise ValueError(f"by is {by!r}; the table has {known}")
        return pd.DataFrame([asdict(row) for row in rows])

    def verdict(self) -> str:
        """What may be concluded, and what not."""
        lines = [self._judge(self._overall(level)) for level in self.levels]
        worst = self._worst()
        if worst is not None and worst.coverage < worst.level:
            lines.append(
                f"Weakest group at {worst.level:.0%}: {worst.by} {worst.group}, {worst.coverage:.1%} "
                f"(+- {worst.standard_error:.1%}, {worst.count:,} hidden entries)."
            )
        limits = (
            "Limits: the audit sees neither missingness that depends on the values themselves nor errors that only "
            "unseen gaps have."
        )
        if self.gap_shaped:
            limits += (
                f" With gap-shaped calibration it was off by {100 * OFF:.0f} points, root mean square, on small fields "
                f"whose truth was known, at most {100 * KIND:.0f} too kind and {100 * STRICT:.0f} too strict: no "
                "hidden gap is like a real one at the edge of what is observed."
            )
        return "\n".join([*lines, *self.notes, limits])

    @property
    def tolerance(self) -> float:
        """How far the audited coverage may be from the level before the verdict speaks of it, besides its error."""
        return OFF if self.gap_shaped else OFF_RANDOM

    def _judge(self, row: Row) -> str:
        gap = row.coverage - row.level
        room = max(2.0 * row.standard_error, self.tolerance)
        found = f"At {row.level:.0%} the audited coverage is {row.coverage:.1%} (+- {row.standard_error:.1%})"
        if not np.isfinite(row.standard_error):
            return found + ": too little was hidden to judge."
        if abs(gap) <= room:
            return found + ": nothing speaks against these intervals."
        if gap < 0:
            return found + ": the intervals are too narrow; do not rely on them as they are."
        return found + ": the intervals are wider than needed."

    def _worst(self) -> Row | None:
        level = min(self.levels, key=lambda one: abs(one - 0.9))
        groups = (row for row in self.rows if row.level == level and row.by not in ("all", "hiding"))
        able = [row for row in groups if row.count >= LEAST and row.standard_error < PRECISE]
        return min(able, key=lambda row: row.coverage + 2 * row.standard_error, default=None)

    def _overall(self, level: float) -> Row:
        for row in self.rows:
            if row.by == "all" and abs(row.level - level) < 1e-9:
                return row
        raise ValueError(f"level {level!r} was not audited; there are {', '.join(f'{one:g}' for one in self.levels)}")

    @cached_property
    def _entries(self) -> NDArray[np.intp]:
        return np.concatenate([one.entries for one in self.samples])

    @cached_property
    def _round(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(len(self.samples)), [one.entries.size for one in self.samples])

    @cached_property
    def _covered(self) -> NDArray[np.bool_]:
        return np.concatenate([one.covered for one in self.samples], axis=1)

    @cached_property
    def _width(self) -> NDArray[np.float64]:
        return np.concatenate([one.width for one in self.samples], axis=1)

    def _groups(self) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
        entries = self._entries
        yield "all", "all", np.ones(entries.size, bool)
        kinds = np.repeat([one.kind for one in self.samples], [one.entries.size for one in self.samples])
        for kind in dict.fromkeys(kinds.tolist()):
            yield "hiding", str(kind), kinds == kind
        chance = self.probability.reshape(-1)
        edges = np.unique(np.quantile(chance[self.observed.missing.reshape(-1)], np.linspace(0.1, 0.9, 9)))
        decile = np.searchsorted(edges, chance[entries])
        for number in range(edges.size + 1):
            low = edges[number - 1] if number else 0.0
            high = edges[number] if number < edges.size else 1.0
            yield "propensity", f"{low:.3g} to {high:.3g}", decile == number
        deep = np.concatenate([one.depth for one in self.samples])
        low, high = 0.0, 1.0
        while low < deep.max(initial=0.0):
            yield "depth", f"up to {high:g}" if low == 0.0 else f"{low:g} to {high:g}", (deep > low) & (deep <= high)
            low, high = high, 2.0 * high
        place = np.unravel_index(entries, self.observed.shape)
        for axis, index in zip(self.observed.axes, place):
            for number in range(axis.length):
                yield axis.name, axis.label(number), index == number

    def _row(self, place: int, level: float, by: str, label: str, inside: NDArray[np.bool_]) -> Row:
        at = np.flatnonzero(inside)
        logs = self.log_weights[at]
        weight = np.exp(logs - logs.max())
        hit, width = self._covered[place, at], self._width[place, at]
        share, error = clustered_share(hit, weight, self._round[at], self._entries[at])
        error = float(np.hypot(error, self._cutoff_error(level, share)))
        finite = np.isfinite(width)
        heavy = weight[finite].sum()
        mean = float(weight[finite] @ width[finite] / heavy) if heavy > 0 else float("nan")
        infinite = float(weight[~finite].sum() / weight.sum())
        return Row(level, by, label, share, error, mean, infinite, int(np.unique(self._entries[at]).size))

    def _cutoff_error(self, level: float, share: float) -> float:
        """How far this fit's own cutoff may be off, in coverage of the group at hand.

        At its own level it is off by sqrt(c (1 - c) / n); a group that misses k times as often as asked feels it k
        times.
        """
        own = np.sqrt(level * (1.0 - level) / max(self.effective_sample_size, 1.0))
        return float(own * (1.0 - share) / (1.0 - level))

    def __str__(self) -> str:
        entries = np.unique(self._entries).size
        lines = [f"Audit of {len(self.samples)} rounds, {entries:,} observed entries hidden in turn"]
        lines += [
            f"  asked {row.level:6.1%}   covered {row.coverage:6.1%} +- {row.standard_error:.1%}   "
            f"mean finite width {row.width:.4g}   infinite {row.infinite_share:.1%}"
            for row in map(self._overall, self.levels)
        ]
        return printable("\n".join([*lines, self.verdict()]))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        names = ("asked", "covered", "standard error", "mean finite width", "infinite")
        heads = "".join(f"<th>{one}</th>" for one in names)
        body = "".join(
            f"<tr><td>{row.level:.1%}</td><td>{row.coverage:.1%}</td><td>{row.standard_error:.1%}</td>"
            f"<td>{row.width:.4g}</td><td>{row.infinite_share:.1%}</td></tr>"
            for row in map(self._overall, self.levels)
        )
        words = "".join(f"<p>{html.escape(line)}</p>" for line in printable(self.verdict()).splitlines())
        return f"<b>corten: audit of {len(self.samples)} rounds</b><table><tr>{heads}</tr>{body}</table>{words}"


def clustered_share(
    hit: NDArray[np.bool_], weight: NDArray[np.float64], rounds: NDArray[np.intp], entries: NDArray[np.intp]
) -> tuple[float, float]:
    """A weighted share and its standard error, clustered two ways: by round and by entry.

    The share is sum w c / sum w; with z = w (c - share) its variance is (R + E - B) / (sum w)^2, R and E the
    summed squares of z within rounds and within entries and B those of single z (Cameron, Gelbach and Miller);
    never less than E alone.

    Example:
        >>> hit = np.array([True, False, True, True])
        >>> share, error = clustered_share(hit, np.ones(4), np.array([0, 0, 1, 1]), np.arange(4))
        >>> share, round(error, 3)
        (0.75, 0.25)
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
