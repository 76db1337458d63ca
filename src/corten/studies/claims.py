"""What the study must show, checked against stored rows: each claim with what was found, whether it holds or not."""

from __future__ import annotations

from typing import Any

from corten.studies.comparison import Paired, grouped, holm, of_gaps, paired, summarise
from corten.studies.paper_numbers import SCORES, SELECTION
from corten.studies.part_tables import SHORT, Rows, take
from corten.studies.tables import Table

__all__ = ["against_plain", "claims"]

Row = dict[str, Any]
MEASURES = (("relative_error", "relative error"), ("miscoverage", "mis-coverage %"))


def claims(data: Rows) -> Table:
    """All claims that there are rows for."""
    absolute = take(data.get("conformal", []), score="absolute")
    three = take(absolute, rank=3, noise="adversarial")
    found = [_unweighted(three), _within(three, "oracle", 1), _within(three, "plain", 2), _within(three, "default", 2)]
    found += [_p_aic(data.get("ranks", [])), _held_out(data.get("ranks", [])), *_pooled(absolute)]
    rows = tuple(
        (claim, "" if holds is None else "yes" if holds else "NO", text) for claim, holds, text in found if text
    )
    return Table("claims", "What the study must show", "issue 4", ("claim", "holds", "found"), rows)


Claim = tuple[str, bool | None, str]


def _unweighted(rows: list[Row]) -> Claim:
    claim = "unweighted mis-coverage of 10 to 18 % (r=3, adversarial)"
    means = []
    for (model, d), some in grouped(take(rows, method="unweighted"), "model", "d").items():
        over = summarise(some, "miscoverage")
        if over is not None:
            single = [summarise(group, "miscoverage") for group in grouped(some, "draw").values()]
            ends = [s.mean for s in single if s is not None]
            means.append(
                (over.mean, f"{SHORT[model]} d={d}: {over.mean:.1f} (single B* {min(ends):.1f} to {max(ends):.1f})")
            )
    return claim, all(10 <= mean <= 18 for mean, _ in means), "; ".join(text for _, text in means)


def _within(rows: list[Row], method: str, column: int) -> Claim:
    texts, good = [], True
    for (model, d), some in grouped(take(rows, method=method), "model", "d").items():
        paper, ours = SCORES.get(("adversarial", model, d)), summarise(some, "miscoverage")
        if paper is not None and ours is not None:
            limit = paper[column][0] + 2 * paper[column][1]
            good = good and ours.mean <= limit
            texts.append(f"{SHORT[model]} d={d}: {ours.mean:.2f} <= {limit:.2f}")
    return f"{method} within the paper's mean + 2 sd (r=3, adversarial)", good, "; ".join(texts)


def _p_aic(rows: list[Row]) -> Claim:
    texts, good = [], True
    for (model, d, rank), some in grouped(take(rows, criterion="P-AIC"), "model", "d", "rank").items():
        if (model, "P-AIC", rank, d) in SELECTION and d >= 60 and rank <= 7:
            right = sum(row["chosen"] == rank for row in some)
            good = good and right == len(some)
            texts.append(f"{SHORT[model]} d={d} r={rank}: {right} of {len(some)}")
    return "P-AIC takes the true rank (d >= 60, r <= 7)", good, "; ".join(texts)


def _held_out(rows: list[Row]) -> Claim:
    texts, good = [], True
    for (rank,), some in grouped(take(rows, criterion="held-out", model="ising", d=40), "rank").items():
        if rank in (3, 5):
            right = sum(row["chosen"] == rank for row in some)
            good = good and right == len(some)
            texts.append(f"r={rank}: {right} of {len(some)}")
    return "held-out takes the true rank (Ising, d=40, r=3 and 5)", good, "; ".join(texts)


def against_plain(rows: list[Row], value: str) -> list[tuple[tuple[Any, ...], Paired, float]]:
    """Each cell's paired difference default - plain, with Holm's p-value of being worse."""
    some_rows = take(rows, noise="constant") if value == "relative_error" else rows
    tests = []
    for key, some in grouped(some_rows, "model", "d", "rank", "noise").items():
        test = paired(take(some, method="default"), take(some, method="plain"), value)
        if test is not None:
            tests.append((key, test))
    worse = holm([test.larger for _, test in tests])
    return [(key, test, p) for (key, test), p in zip(tests, worse)]


def _pooled(rows: list[Row]) -> list[Claim]:
    import numpy as np

    found: list[Claim] = []
    for value, shown in MEASURES:
        tests = against_plain(rows, value)
        over = of_gaps(np.array([test.mean for _, test, _ in tests]))
        if over is None:
            continue
        bad = [f"{SHORT[m]} d={d} r={r} {noise}: {test}" for (m, d, r, noise), test, p in tests if p < 0.05]
        if value == "relative_error":
            found.append(
                (
                    f"pooled {shown} of our default better than plain",
                    over.smaller < 0.05,
                    f"{over} over {over.count} cells",
                )
            )
        else:
            found.append(
                (
                    f"pooled {shown} of our default not worse than plain",
                    over.larger > 0.05,
                    f"{over} over {over.count} cells",
                )
            )
        found.append(
            (f"no cell worse in {shown} after Holm's correction", not bad, "; ".join(bad) or f"none of {len(tests)}")
        )
    return found
