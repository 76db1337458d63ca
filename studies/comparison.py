"""Means with their errors, paired differences, and when two numbers differ.

Repetitions share a B*. Where several B* were drawn, means are taken over B* and their error is that between them:
of our means, and of paired differences. The paper's single B* is as uncertain as one of ours: the joint standard
error of a difference to the paper is sqrt(our error^2 + sd^2 / 30 + variance between B*).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from studies.paper_numbers import REPETITIONS, Number

__all__ = ["Paired", "Summary", "differs", "grouped", "holm", "over_settings", "paired", "summarise"]

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
    # the paper prints two or three digits: half a percent is not a difference
    if abs(gap) <= max(2 * joint, 0.005 * abs(paper[0])):
        return ""
    return "higher" if gap > 0 else "lower"


@dataclass(frozen=True)
class Paired:
    """Paired differences, first minus second: mean, standard error, one-sided p-values of larger and of smaller.

    draws: how many B* they come from. With one, the error is that of its repetitions and says nothing of other B*.
    """

    mean: float
    error: float
    count: int
    larger: float
    smaller: float
    draws: int = 1

    def __str__(self) -> str:
        return f"{self.mean:+.3g} ± {self.error:.2g}"


def paired(first: Iterable[Row], second: Iterable[Row], value: str) -> Paired | None:
    """Differences of the same cell under two methods, averaged over each B* first; None with fewer than two.

    Example:
        >>> one = [{"x": x, "draw": draw, "repetition": k} for k, (x, draw) in enumerate([(1, 0), (3, 0), (8, 1)])]
        >>> print(paired(one, [{**row, "x": 0.0} for row in one], "x"))
        +5 ± 3
    """
    other = {_identity(row): row[value] for row in second if row.get(value) is not None}
    by_draw: dict[int, list[float]] = defaultdict(list)
    for row in first:
        gap = row[value] - other[_identity(row)] if _identity(row) in other else nan
        if isfinite(gap):
            by_draw[row.get("draw") or 0].append(float(gap))
    count = sum(len(gaps) for gaps in by_draw.values())
    if len(by_draw) == 1:
        return of_gaps(np.array(next(iter(by_draw.values()))))
    found = of_gaps(np.array([np.mean(gaps) for gaps in by_draw.values()]))
    return None if found is None else replace(found, count=count, draws=len(by_draw))


def of_gaps(gaps: np.ndarray) -> Paired | None:
    """The t-test of differences against zero."""
    if gaps.size < 2:
        return None
    mean, error = float(gaps.mean()), float(gaps.std(ddof=1) / sqrt(gaps.size))
    if error == 0.0:
        same = mean == 0.0
        return Paired(mean, 0.0, gaps.size, 0.5 if same else float(mean < 0), 0.5 if same else float(mean > 0))
    law = student(gaps.size - 1)
    return Paired(mean, error, gaps.size, float(law.sf(mean / error)), float(law.cdf(mean / error)))


def over_settings(first: Sequence[Row], second: Sequence[Row], value: str) -> Paired | None:
    """The mean difference over settings (a size, a rank, a model, a noise) of equal weight. Those of one size and rank
    share their B*, so its error is that between B* within sizes and ranks, for these are all there are.
    """
    other = {_identity(row): row.get(value) for row in second}
    tests = []
    for rows in grouped(first, "d", "rank").values():
        settings = set(grouped(rows, "model", "noise"))
        of_draw: list[float] = []
        for some in grouped(rows, "draw").values():
            gaps = [
                [row[value] - other[_identity(row)] for row in same if other.get(_identity(row)) is not None]
                for same in grouped(some, "model", "noise").values()
            ]
            means = [float(np.mean(one)) for one in gaps if one and np.isfinite(one).all()]
            if len(means) == len(settings):
                of_draw.append(float(np.mean(means)))
        test = of_gaps(np.array(of_draw)) if len(of_draw) > 1 else paired(rows, second, value)
        if test is not None:
            tests.append(replace(test, draws=max(1, len(of_draw))))
    if not tests:
        return None
    mean = float(np.mean([test.mean for test in tests]))
    error = sqrt(sum(test.error**2 for test in tests)) / len(tests)
    count, draws = sum(test.count for test in tests), min(test.draws for test in tests)
    if error == 0.0:
        return Paired(mean, 0.0, count, float(mean <= 0), float(mean >= 0), draws)
    return Paired(mean, error, count, float(normal.sf(mean / error)), float(normal.cdf(mean / error)), draws)


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
