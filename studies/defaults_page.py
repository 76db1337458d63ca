"""The page of the study of the defaults: a table with standard errors, and which bounds are met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from studies.defaults import COVERAGE, read
from studies.defaults_data import CLASSES
from studies.files import whole_file

__all__ = ["Bound", "bounds_of", "page", "write_page"]

Row = dict[str, Any]
LEAST_EFFECTIVE_SHARE = 0.8  # weights with a larger effective sample size, per calibration entry, count as uniform
# the draws that a bound asks for, by kind
DRAWS = {"random": 10, "rows": 10, "few": 10, "patch": 20, "field": 10, "paper": 4, "paper told": 4}
TOLD_PERCENT = {"paper-bernoulli-told": 0.57, "paper-ising-told": 0.81}
AUTO_PERCENT = 1.2

INTRODUCTION = """# The defaults

Question: how often do the intervals of `corten.complete(x)`, with nothing set and 90 % asked for, cover what was
measured at the missing entries, on simple data whose truth is known?

{conclusion}

Written by `python -m studies defaults-page --first {first}` from the results of
`python -m studies defaults --draws {draws} --first {first}` ({versions}). Every draw has new data and new gaps;
`studies/defaults_data.py` says how they are drawn.

## Coverage

Mean over draws ± its standard error, and the range of single draws, in percent. *Unflagged* entries are those that the
result does not flag as beyond what was tested. *Uniform weights* and *oracle* are fits of the same data with
`propensity="uniform"` and with the true chances of being observed.

{coverage}

## Widths, weights and settings

The ratio is the mean width over the one with uniform weights. The effective share is the effective sample size of the
weights over the number of calibration entries, and *uniform* the share of draws in which it is above 0.8. Errors are
mean absolute differences from the measurements. Memory is the highest that the process used, Python and libraries
included; wall-clock times include other load.

{details}

## Bounds

What the automatic choices must reach. A bound is *met* if the mean (or the lowest draw, or the share) lies within it;
the standard error says how sure that is. *Too few draws* marks bounds that ask for more draws than were run.

{bounds}

## Experiments on pseudo-gaps

Question: which pseudo-gaps are as hard to fill as the gap, and which blocks must be left out when the scale of errors
is learned? Setting: draws from number 60, which are not reported above; the rounds of each draw are filled once and
calibrated in several ways. *Periodic* copies are shifted around the ends of an axis, which cuts some gaps into parts
at two edges; *whole* copies are not cut; copies *at the edge* stay at the edges of the data that the gap touches.
Errors are mean absolute errors of hidden entries, weighted by depth, and of missing entries.

| class | draws | copies | blocks per axis | coverage | width | hidden error | missing error |
|---|---|---|---|---|---|---|---|
| 14 x 16 x 12 smooth, inside | 4 | periodic | 6 | 95.0 ± 2.3 | 0.575 | 0.138 | 0.114 |
| 14 x 16 x 12 smooth, inside | 7 | whole | 6 | 91.6 ± 1.6 | 0.503 | 0.123 | 0.120 |
| 40 x 60 smooth, inside | 5 | periodic | 6 | 94.9 ± 1.2 | 0.574 | 0.133 | 0.107 |
| 40 x 60 smooth, inside | 8 | whole | 6 | 93.4 ± 1.0 | 0.498 | 0.120 | 0.107 |
| 14 x 16 x 12 smooth, edge | 6 | half at the edge, periodic | 6 | 94.0 ± 2.1 | 0.668 | 0.161 | 0.132 |
| 14 x 16 x 12 smooth, edge | 7 | at the edge, whole | 3 | 91.1 ± 3.1 | 0.618 | 0.148 | 0.136 |
| 40 x 60 smooth, edge | 8 | half at the edge, periodic | 6 | 92.3 ± 2.9 | 0.705 | 0.168 | 0.150 |
| 40 x 60 smooth, edge | 8 | at the edge, whole | 3 | 93.0 ± 4.0 | 0.782 | 0.172 | 0.150 |
| quick start | 4 | half at the edge, periodic | 6 | 84.0 ± 2.5 | 2.82 | 0.424 | 0.807 |
| quick start | 4 | half at the edge, periodic | 3 | 85.6 ± 2.4 | 2.96 | 0.429 | 0.807 |
| quick start | 4 | at the edge | 3 | 86.3 ± 2.8 | 2.99 | 0.425 | 0.811 |
| quick start | 4 | a third at the edge, a third extend the gap | 3 | 84.6 ± 1.7 | 2.80 | 0.501 | 0.806 |

Conclusion: a copy must keep the relation of the gap to the edges of the data. Copies that are cut at the edges make the
intervals of gaps inside too wide, and copies that are shifted inside make those of gaps at an edge too narrow. Blocks
of two or three positions let the scale of a hidden entry be learned from correlated errors beside it; blocks have
eight positions, but there are at least three to an axis.

How far from the edges must copies of a gap inside the data be? Draws 100 to 119, unflagged entries; the score is the
mean interval score at 90 %. With a *margin* a copy keeps as many positions to the edges as the gap does, but no more
than half the length of the gap. Copies *apart* do not overlap the gap.

| class | copies | coverage | width | interval score | flagged, % |
|---|---|---|---|---|---|
| 24 x 30 smooth, inside | whole | 95.4 ± 0.7 | 0.617 | 0.667 | 0 |
| 24 x 30 smooth, inside | whole, apart | 93.7 ± 1.1 | 0.637 | 0.709 | 0.2 |
| 24 x 30 smooth, inside | whole, margin | 90.1 ± 1.9 | 0.547 | 0.678 | 0 |
| 40 x 60 smooth, inside | whole | 92.4 ± 1.5 | 0.495 | 0.576 | 0 |
| 40 x 60 smooth, inside | whole, margin | 90.8 ± 1.8 | 0.475 | 0.578 | 0 |
| 24 x 30 smooth, edge | at the edge, whole | 89.8 ± 2.7 | 0.771 | 0.964 | 5.6 |
| 24 x 30 smooth, edge | at the edge, whole, margin | 87.9 ± 3.0 | 0.643 | 0.890 | 16.8 |
| 14 x 16 x 12 smooth, edge | at the edge, whole | 92.1 ± 1.6 | 0.660 | 0.764 | 0.6 |
| 14 x 16 x 12 smooth, edge | at the edge, whole, margin | 89.5 ± 2.0 | 0.602 | 0.761 | 0 |

Conclusion: copies keep a margin. Those beside an edge are filled from one side, and intervals were too wide.

In the data of the quick start a difference remains: the deepest missing entries lie in the south-west, where the field
and its errors are two to three times as large as elsewhere, and copies of the gap lie in the north and east. In the
two draws with the lowest coverage the mean error of deep entries is 0.6 where hidden and 1.7 to 2.0 where missing.
Pseudo-gaps that extend the gap inwards, a scale by ridge regression alone, and flags where the predicted scale, the
estimate or a feature exceeds those of the hidden entries do not change this. Such entries are flagged by their depth
and place instead. Coverage in percent, data of the quick start, four draws, with places compared along each axis alone
(the next section compares them along all axes at once):

| least number of rounds that are as deep | where | flagged | coverage of flagged entries | of the others |
|---|---|---|---|---|
| 4 | anywhere | 1.9 | 61 | 86.3 |
| 4 | in the same half of each axis | 19.9 | 69 | 87.6 |
| 4 | in the same third of each axis | 24.1 | 71 | 89.4 |
| 2 | in the same third of each axis | 21.7 | 69 | 89.0 |
| 1 | in the same third of each axis | 13.7 | 68 | 88.2 |
| 1 | within a third of each axis | 10.9 | 68 | 87.3 |
| 1 | within a sixth of each axis | 12.7 | 68 | 87.6 |

Rules that ask for several rounds in a part of an axis also flag entries that are covered well: four rounds in the same
third flag 14 % of a measured day of TEC over North America and up to half of a box (two draws of each).

## Experiments on an ocean at the edge

Question: why are the missing entries of a simulated day of TEC with an ocean at the edge covered to 86 to 88 % only?
Setting: draws 60 to 73; the rounds of each draw are filled once and calibrated in several ways. Coverage is that of
entries that are not flagged, in percent, mean ± standard error.

The missing entries that are not covered lie deep in the south, by day: there the field rises steeply beyond the last
observation. At the same depth the mean error of hidden entries is 1.1 to 1.3 and that of missing entries 1.2 to 2.9
(noise 0.8). The difference remains if pseudo-gaps lie beside the ocean: with copies that extend it (draw 61) the share
of hidden entries in the southern third rises from 11 to 28 %, their mean error from 1.07 to 1.14, and that of the
missing entries is 1.5.

| weights | flagged if | flagged | coverage |
|---|---|---|---|
| depth | four rounds anywhere, or one near along each axis alone, are less deep | 7.6 | 86.7 ± 0.6 |
| depth and thirds of each axis | the same | 7.6 | 87.4 ± 0.5 |
| depth | no hidden entry within a third of every axis is as deep | 13.3 | 87.3 ± 0.6 |
| depth | no hidden entry within a quarter of every axis is as deep | 16.2 | 87.8 ± 0.5 |
| depth | no hidden entry within a sixth of every axis is as deep | 21.8 | 88.4 ± 0.5 |
| depth | fewer than two rounds within a quarter of every axis are as deep | 18.5 | 88.1 ± 0.5 |
| depth | fewer than four rounds within a third of every axis are as deep | 19.2 | 88.1 ± 0.6 |
| depth | fewer than four rounds within a quarter of every axis are as deep | 23.4 | 88.6 ± 0.5 |

Weights that also give hidden entries the places of the missing ones leave an effective sample size of 138 of 1,549 for
a 24 x 30 patch at an edge; its coverage rises by 6.9 ± 1.8 points and its interval score by 7 ± 7 % (four draws).

Share of missing entries that the last two rules flag, in percent (eight draws of each patch):

| data | within a third | within a quarter |
|---|---|---|
| measured TEC, North America, day 1 | 2.5 | 7.0 |
| measured TEC, globe, day 2 | 0.1 | 0.3 |
| NDVI, 50 % missing; metro, blocks | 0 | 0 |
| 24 x 30 smooth, one patch at an edge | 6.2 | 16.9 |
| 40 x 60 smooth, one patch at an edge | 5.4 | 20.1 |
| 14 x 16 x 12 smooth, one patch at an edge | 1.7 | 4.1 |
| patches inside | 0 | 0 to 1.1 |

Conclusion: nothing that is observed shows these errors, so they cannot be calibrated; the entries are flagged. An entry
is beyond what was tested if hidden entries of fewer than four rounds within a third of every axis are as deep. Flagged
entries of this class are covered to 74 %.

## A row that is hardly observed

Question: what should be done with a slice of which almost nothing is observed? Setting: 15^3 entries with chances and
noise that differ by row, draw 52; 3 of the 225 entries of one row are observed, and its noise is 26 times that of a
typical row. Coverage in percent of the other rows, of this row, and width.

| weights | other rows | this row | width | flagged |
|---|---|---|---|---|
| uniform, as the additive model leaves an effective sample size of 34 | 78.5 | 3 | 0.82 | 0 |
| additive, the largest reduced to a limit | 100 | 100 (infinite) | 15.1 | 17.3, this row |
| additive, without the entries of the largest weights | 91.1 | 7 | 1.17 | 17.3, this row |

Conclusion: the entries of the largest weights are left out of calibration, as few as leave an effective sample size of
50 and finite intervals up to a coverage of 95 %, and the missing ones among them are flagged.

## The paper's settings with the model given

Question: are intervals with the kind of missingness given worse than those of the code with which the bounds of 0.57 %
(Bernoulli) and 0.81 % (Ising) were measured? Both were run on the same draws, 0 to 3 (mis-coverage in percent).

| setting | version | 0 | 1 | 2 | 3 | mean |
|---|---|---|---|---|---|---|
| Bernoulli | former code | 0.923 | 0.763 | 1.131 | 0.945 | 0.940 |
| Bernoulli | this code | 0.910 | 0.750 | 1.147 | 0.922 | 0.932 |
| Ising | former code | 0.736 | 0.509 | 0.482 | 0.666 | 0.598 |
| Ising | this code | 0.715 | 0.538 | 0.469 | 0.656 | 0.595 |

Conclusion: no difference (Bernoulli -0.008 ± 0.008, Ising -0.004 ± 0.011); draws differ by more than that.
The bounds were measured on four other draws.
"""


@dataclass(frozen=True)
class Bound:
    """One bound for one class: what was found, what is allowed, whether it is met and on enough draws."""

    name: str
    what: str
    found: str
    allowed: str
    met: bool
    enough: bool

    @property
    def verdict(self) -> str:
        """Met or not met, and whether more draws are needed."""
        return ("met" if self.met else "**not met**") + ("" if self.enough else ", too few draws")


def numbers(rows: Sequence[Row], what: str) -> np.ndarray:
    """The values of one column, without those that a draw does not have."""
    return np.array([row[what] for row in rows if row.get(what) is not None], float)


def error(values: np.ndarray) -> float:
    """The standard error of the mean; NaN for one draw."""
    return float(values.std(ddof=1) / sqrt(values.size)) if values.size > 1 else float("nan")


def bounds_of(rows: Sequence[Row]) -> list[Bound]:
    """Every bound that applies to the classes that were run."""
    found: list[Bound] = []
    for name, mine in _by_class(rows).items():
        kind = CLASSES[name].kind
        enough = len(mine) >= DRAWS[kind]

        def inside(
            what: str,
            values: np.ndarray,
            low: float,
            high: float,
            *,
            name: str = name,
            enough: bool = enough,
            unit: str = "%",
            of: Callable[[np.ndarray], float] = np.mean,
        ) -> None:
            if not values.size:
                return
            value = float(of(values))
            allowed = f"{low:g} to {high:g} {unit}" if np.isfinite(low) else f"at most {high:g} {unit}"
            allowed = allowed if np.isfinite(high) else f"at least {low:g} {unit}"
            shown = f"{value:.2f}" + (f" ± {error(values):.2f}" if of is np.mean and values.size > 1 else "")
            found.append(Bound(name, what, shown, allowed.strip(), bool(low <= value <= high), enough))

        coverage, unflagged = (100 * numbers(mine, what) for what in ("coverage", "coverage_unflagged"))
        if kind == "random":
            inside("mean coverage", coverage, 88.5, 91.5)
            inside("lowest draw", coverage, 80, np.inf, of=np.min)
            uniform = 100.0 * (numbers(mine, "effective_share") > LEAST_EFFECTIVE_SHARE)
            inside("draws with uniform weights", uniform, 95, np.inf)
            inside("width over that of uniform weights", _ratio(mine), 0.97, 1.03, unit="")
        elif kind == "rows":
            oracle = 100 * numbers(mine, "oracle_coverage_unflagged")
            inside("coverage less that with the oracle's weights, unflagged", unflagged - oracle, -1, 1, unit="points")
        elif kind == "few":
            inside("mean coverage", coverage, 87, 94)
            inside("infinite intervals", 100 * numbers(mine, "infinite"), -np.inf, 1)
        elif kind == "patch":
            inside("mean coverage, unflagged", unflagged, 87, 93)
        elif kind == "field":
            inside("mean coverage, unflagged", unflagged, 88, 92)
        else:
            most = TOLD_PERCENT.get(name, AUTO_PERCENT)
            inside("mis-coverage, 80 to 99 % asked", 100 * numbers(mine, "miscoverage"), -np.inf, most)
    return found


def page(rows: Sequence[Row]) -> str:
    """The page as Markdown."""
    if not rows:
        raise ValueError("no stored rows: run python -m studies defaults first")
    bounds = bounds_of(rows)
    met, few = sum(bound.met for bound in bounds), sum(not bound.enough for bound in bounds)
    conclusion = f"**{met} of {len(bounds)} [bounds](#bounds) are met.**"
    conclusion += f" {few} of them ask for more draws than were run." if few else ""
    for heading, titles in (
        ("Not met in some respect", [CLASSES[b.name].title for b in bounds if not b.met]),
        ("Not run", [case.title for name, case in CLASSES.items() if name not in _by_class(rows)]),
    ):
        if titles:
            conclusion += f"\n\n{heading}:\n\n" + "\n".join(f"- {title}" for title in dict.fromkeys(titles))
    return INTRODUCTION.format(
        conclusion=conclusion,
        draws=max(len(mine) for mine in _by_class(rows).values()),
        first=min(int(row["draw"]) for row in rows),
        versions="corten " + ", ".join(sorted({row["version"] for row in rows})),
        coverage=_coverage_table(rows),
        details=_detail_table(rows),
        bounds=_table(
            ("class", "what", "found", "allowed", "verdict"),
            [(CLASSES[b.name].title, b.what, b.found, b.allowed, b.verdict) for b in bounds],
        ),
    )


def write_page(folder: Path, target: Path, first: int = 0) -> Path:
    """Write the page of what a folder holds, without draws that are numbered below `first`."""
    text = page([row for row in read(folder) if row["draw"] >= first])
    with whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def _coverage_table(rows: Sequence[Row]) -> str:
    heads = ("class", "draws", f"coverage, {COVERAGE:.0%} asked", "range", "unflagged", "flagged", "uniform", "oracle")
    lines = []
    for name, mine in _by_class(rows).items():
        coverage = 100 * numbers(mine, "coverage")
        lines.append(
            (
                CLASSES[name].title,
                str(len(mine)),
                _mean(coverage),
                f"{coverage.min():.1f} to {coverage.max():.1f}",
                _mean(100 * numbers(mine, "coverage_unflagged")),
                _mean(100 * numbers(mine, "flagged")),
                _mean(100 * numbers(mine, "uniform_coverage")),
                _mean(100 * numbers(mine, "oracle_coverage")),
            )
        )
    return _table(heads, lines)


def _detail_table(rows: Sequence[Row]) -> str:
    heads = (
        "class", "width", "ratio", "infinite, %", "effective share", "uniform, %", "mean error", "s", "MB",
        "calibration", "propensity",
    )  # fmt: skip
    lines = []
    for name, mine in _by_class(rows).items():
        share = numbers(mine, "effective_share")
        lines.append(
            (
                CLASSES[name].title,
                _mean(numbers(mine, "width"), 3),
                _mean(_ratio(mine), 3),
                _mean(100 * numbers(mine, "infinite")),
                _mean(share, 2),
                f"{100 * (share > LEAST_EFFECTIVE_SHARE).mean():.0f}" if share.size else "",
                _mean(numbers(mine, "mae"), 3),
                _mean(numbers(mine, "seconds")),
                f"{numbers(mine, 'peak_mb').max():.0f}",
                _counted(mine, "calibration"),
                _counted(mine, "propensity model") or _counted(mine, "coupling strength", "coupling "),
            )
        )
    return _table(heads, lines)


def _by_class(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {name: mine for name in CLASSES if (mine := [row for row in rows if row["class"] == name])}


def _ratio(rows: Sequence[Row]) -> np.ndarray:
    """Mean width over that with uniform weights; an exact fit has widths of zero, which are equal."""
    pairs = [(row["width"], row["uniform_width"]) for row in rows if row.get("width") and row.get("uniform_width")]
    return np.array([one / other for one, other in pairs])


def _mean(values: np.ndarray, digits: int = 1) -> str:
    if not values.size:
        return ""
    spread = f" ± {error(values):.{digits}f}" if values.size > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def _counted(rows: Sequence[Row], what: str, before: str = "") -> str:
    """What was chosen, and in how many draws."""
    counts = Counter(row["chosen"][what] for row in rows if what in row["chosen"])
    return ", ".join(f"{before}{taken} ({number})" for taken, number in counts.most_common(4))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    text = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(text + ["| " + " | ".join(cells) + " |" for cells in lines])
