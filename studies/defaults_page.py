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

Written by `python -m studies defaults-page` from the results of
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
            oracle = 100 * numbers(mine, "oracle_coverage")
            inside("coverage less that with the oracle's weights", coverage - oracle, -1, 1, unit="points")
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


def write_page(folder: Path, target: Path) -> Path:
    """Write the page of what a folder holds."""
    text = page(read(folder))
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
