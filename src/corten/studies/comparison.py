"""Means with their errors, paired differences, and when two numbers differ.

Repetitions share a B*. Where several B* were drawn, the error of our mean is that between them, and the paper's
single B* is as uncertain as one of ours:
the joint standard error of a difference to the paper is sqrt(our error^2 + sd^2 / 30 + variance between B*).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from corten.studies.paper_numbers import REPETITIONS, Number

__all__ = ["Paired", "Summary", "differs", "grouped", "holm", "over_cells", "paired", "summarise"]

Row = dict[str, Any]
PAIR = ("d", "rank", "model", "draw", "repetition", "noise", "score", "working_rank", "noise_sd")


@dataclass(frozen=True)
class Summary:
    """A mean over repetitions.

    `sd` within a B* (as the paper gives it), `error` of the mean, `between` the spread of means of different B*.
    """

    mean: float
    sd: float
    error: float
    count: int
    draws: int = 1
    between: float = 0.0

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.sd:.2g})" if isfinite(self.sd) else f"{self.mean:.3g}"


def summarise(rows: Iterable[Row], value: str) -> Summary | None:
    """The mean of a column, over B* first if there are several; None if nothing is there.

    Example:
        >>> summarise([{"x": 1.0, "draw": 0}, {"x": 3.0, "draw": 0}], "x").mean
        2.0
    """
    by_draw: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        found = row.get(value)
        if found is not None and isfinite(found):
            by_draw[row.get("draw") or 0].append(float(found))
    if not by_draw:
        return None
    groups = [np.array(group) for group in by_draw.values()]
    count = sum(group.size for group in groups)
    freedom = count - len(groups)
    spread = sqrt(sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / freedom) if freedom > 0 else nan
    means = np.array([group.mean() for group in groups])
    if means.size == 1:
        return Summary(float(means[0]), spread, spread / sqrt(count), count)
    over = float(means.var(ddof=1))
    noise = float(np.mean([spread**2 / group.size for group in groups])) if isfinite(spread) else 0.0
    return Summary(
        float(means.mean()), spread, sqrt(over / means.size), count, means.size, sqrt(max(0.0, over - noise))
    )


def differs(ours: Summary | None, paper: Number | None) -> str:
    """ "higher" or "lower" where our mean and the paper's are further apart than two joint standard errors, else
    nothing.

    Example:
        >>> differs(Summary(2.0, 0.1, 0.03, 10), (1.0, 0.2)), differs(Summary(1.05, 0.1, 0.03, 10), (1.0, 0.2))
        ('higher', '')
    """
    if ours is None or paper is None or not isfinite(ours.error):
        return ""  # one repetition has no error to compare with
    joint = sqrt(ours.error**2 + paper[1] ** 2 / REPETITIONS + ours.between**2)
    gap = ours.mean - paper[0]
    # numbers printed to two or three digits are equal within half a unit of the last
    if abs(gap) <= max(2 * joint, 0.005 * abs(paper[0])):
        return ""
    return "higher" if gap > 0 else "lower"


@dataclass(frozen=True)
class Paired:
    """Paired differences, first minus second: mean, standard error, one-sided p-values of larger and of smaller."""

    mean: float
    error: float
    count: int
    larger: float
    smaller: float

    def __str__(self) -> str:
        return f"{self.mean:+.3g} ± {self.error:.2g}"


def paired(first: Iterable[Row], second: Iterable[Row], value: str) -> Paired | None:
    """Differences of the same cell under two methods; None with fewer than two pairs."""
    other = {_identity(row): row[value] for row in second if row.get(value) is not None}
    gaps = np.array([row[value] - other[_identity(row)] for row in first if _identity(row) in other], dtype=float)
    gaps = gaps[np.isfinite(gaps)]
    return of_gaps(gaps)


def of_gaps(gaps: np.ndarray) -> Paired | None:
    """The t-test of differences against zero."""
    if gaps.size < 2:
        return None
    mean, error = float(gaps.mean()), float(gaps.std(ddof=1) / sqrt(gaps.size))
    if error == 0.0:
        same = mean == 0.0
        return Paired(mean, 0.0, gaps.size, 0.5 if same else float(mean < 0), 0.5 if same else float(mean > 0))
    larger = float(student.sf(mean / error, gaps.size - 1))
    return Paired(mean, error, gaps.size, larger, 1.0 - larger)


def over_cells(tests: Sequence[Paired]) -> Paired | None:
    """The mean of cells' differences; its error is that of their repetitions, for the cells are all there are.

    Example:
        >>> print(over_cells([Paired(-0.2, 0.03, 10, 1.0, 0.0), Paired(-0.4, 0.04, 10, 1.0, 0.0)]))
        -0.3 ± 0.025
    """
    if not tests:
        return None
    mean = float(np.mean([test.mean for test in tests]))
    error = sqrt(sum(test.error**2 for test in tests)) / len(tests)
    larger = float(normal.sf(mean / error)) if error else float(mean <= 0)
    return Paired(mean, error, len(tests), larger, 1.0 - larger)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm's steps): below 0.05 there, the family-wise error is below 0.05.

    Example:
        >>> holm([0.01, 0.04, 0.5])
        [0.03, 0.08, 0.5]
    """
    order = np.argsort(p_values)
    corrected = np.empty(len(p_values))
    worst = 0.0
    for position, index in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - position) * p_values[index]))
        corrected[index] = worst
    return [float(p) for p in corrected]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some columns, in sorted order."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row.get(name) for name in names)].append(row)
    by: Callable[[tuple[Any, ...]], Any] = lambda key: tuple((v is None, v) for v in key)  # noqa: E731
    return {key: found[key] for key in sorted(found, key=by)}


def _identity(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in PAIR)
