"""What the study must show, checked against stored rows: each claim with what was found, whether it holds or not."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import numpy as np

from studies.comparison import Paired, grouped, holm, over_settings, paired, summarise
from studies.paper_numbers import SCORES, SELECTION
from studies.part_tables import SHORT, Rows, take
from studies.readings import OURS
from studies.tables import Table

__all__ = ["ENOUGH", "MEASURES", "against_plain", "claims", "pooled_difference"]

Row = dict[str, Any]
ENOUGH = 5
CELL = ("model", "d", "rank", "noise", "score")
MEASURES = (("relative_error", "relative error"), ("miscoverage", "mis-coverage %"))


def claims(data: Rows) -> Table:
    """All claims that there are rows for. A claim is only granted where every cell has `ENOUGH` repetitions."""
    absolute = take(data.get("conformal", []), score="absolute")
    three = take(absolute, rank=3, noise="adversarial")
    found = [
        _unweighted(three, data.get("reading", [])),
        _within(three, "oracle", 1),
        _within(three, "plain", 2),
        _within(three, "default", 2),
    ]
    found += [_p_aic(data.get("ranks", [])), _held_out(data.get("ranks", []))]
    found += _pooled(data.get("conformal", []))
    rows = tuple((claim, holds, text) for claim, holds, text in found if text)
    notes = (
        f"too few: no evidence against the claim, but some cell has fewer than {ENOUGH} repetitions. Holm's correction"
        f" uses cells of at least {ENOUGH} B*, or pairs where there is one B*; all cells are in the table below.",
        "A cell is a model, a size, a rank, a noise and a score. Differences are averaged over each B* first and "
        "tested between B*; cells of one size and rank share their B*, so pooled errors are those between B* within "
        "sizes and ranks.",
        "Under constant noise no weights are needed, and weights only cost effective size: an estimate flatter than "
        "the truth does a little better there.",
        "Unweighted mis-coverage depends on the B* drawn: table of readings under `coverage`.",
    )
    return Table("claims", "What the study must show", "", ("claim", "holds", "found"), rows, notes)


def _verdict(good: bool, fewest: int) -> str:
    return "NO" if not good else "yes" if fewest >= ENOUGH else "too few"


Claim = tuple[str, str, str]


def _unweighted(rows: list[Row], readings: list[Row]) -> Claim:
    claim = "unweighted mis-coverage of 10 to 18 % (r=3, adversarial)"
    means, fewest = [], ENOUGH
    for (model, d), some in grouped(take(rows, method="unweighted"), "model", "d").items():
        over = summarise(some, "miscoverage")
        if over is not None:
            fewest = min(fewest, over.count)
            single = [summarise(group, "miscoverage") for group in grouped(some, "draw").values()]
            ends = [s.mean for s in single if s is not None]
            text = f"{SHORT[model]} d={d}: {over.mean:.1f} ({len(ends)} B* from {min(ends):.1f} to {max(ends):.1f}"
            more = [row["miscoverage"] for row in take(readings, model=model, d=d, reading=OURS)]
            text += f"; over {len(more)} B* with a perfect completion {np.mean(more):.1f})" if more else ")"
            means.append((over.mean, text))
    good = all(10 <= mean <= 18 for mean, _ in means)
    return claim, _verdict(good, fewest), "; ".join(text for _, text in means)


def _within(rows: list[Row], method: str, column: int) -> Claim:
    texts, good, fewest = [], True, ENOUGH
    for (model, d), some in grouped(take(rows, method=method), "model", "d").items():
        paper, ours = SCORES.get(("adversarial", model, d)), summarise(some, "miscoverage")
        if paper is not None and ours is not None:
            limit = paper[column][0] + 2 * paper[column][1]
            good, fewest = good and ours.mean <= limit, min(fewest, ours.count)
            texts.append(f"{SHORT[model]} d={d}: {ours.mean:.2f} <= {limit:.2f}")
    return f"{method} within the paper's mean + 2 sd (r=3, adversarial)", _verdict(good, fewest), "; ".join(texts)


def _p_aic(rows: list[Row]) -> Claim:
    texts, good, fewest = [], True, ENOUGH
    for (model, d, rank), some in grouped(take(rows, criterion="P-AIC"), "model", "d", "rank").items():
        if (model, "P-AIC", rank, d) in SELECTION and d >= 60 and rank <= 7:
            right = sum(row["chosen"] == rank for row in some)
            good, fewest = good and right == len(some), min(fewest, len(some))
            texts.append(f"{SHORT[model]} d={d} r={rank}: {right} of {len(some)}")
    return "P-AIC takes the true rank (d >= 60, r <= 7)", _verdict(good, fewest), "; ".join(texts)


def _held_out(rows: list[Row]) -> Claim:
    texts, good, fewest = [], True, ENOUGH
    for (rank,), some in grouped(take(rows, criterion="held-out", model="ising", d=40), "rank").items():
        if rank in (3, 5):
            right = sum(row["chosen"] == rank for row in some)
            good, fewest = good and right == len(some), min(fewest, len(some))
            texts.append(f"r={rank}: {right} of {len(some)}")
    return "held-out takes the true rank (Ising, d=40, r=3 and 5)", _verdict(good, fewest), "; ".join(texts)


def against_plain(rows: list[Row], value: str) -> list[tuple[tuple[Any, ...], Paired, float]]:
    """Each cell's paired difference default - plain, with Holm's p-value of being worse (NaN in cells of few pairs)."""
    tests = []
    for key, some in grouped(_measured(rows, value), *CELL).items():
        test = paired(take(some, method="default"), take(some, method="plain"), value)
        if test is not None:
            tests.append((key, test))
    corrected = iter(holm([test.larger for _, test in tests if _enough(test)]))
    return [(key, test, next(corrected) if _enough(test) else nan) for key, test in tests]


def _enough(test: Paired) -> bool:
    """Whether a test can show anything: with one B* repetitions count, else B*."""
    return (test.draws if test.draws > 1 else test.count) >= ENOUGH


def _measured(rows: list[Row], value: str) -> list[Row]:
    """The rows that hold a measure once: the error of B depends on neither noise nor score."""
    return take(rows, noise="constant", score="absolute") if value == "relative_error" else rows


def _pooled(rows: list[Row]) -> list[Claim]:
    found: list[Claim] = []
    for value, shown in MEASURES:
        every = against_plain(rows, value)
        tests = [(key, test, p) for key, test, p in every if not isnan(p)]
        over = pooled_difference(rows, value)
        if over is None or not tests:
            continue
        where = f"{over}{_spread(rows, value)}"
        if value == "relative_error":
            holds = "yes" if over.smaller < 0.05 else "NO"
            where += f", p {over.smaller:.2g}" if over.smaller > 1e-6 else ", p < 1e-6"
            found.append((f"pooled {shown} of our default better than plain", holds, where))
        else:
            not_worse = "yes" if over.larger > 0.05 else "NO"
            limit = f", with 95 % confidence at most {over.mean + 1.645 * over.error:+.2g}"
            found.append((f"pooled {shown} of our default not worse than plain", not_worse, where + limit))
        bad = [(key, test) for key, test, p in tests if p < 0.05]
        looks = [(key, test) for key, test, p in every if isnan(p) and test.mean > 2 * test.error]
        text = "; ".join(_cell(*one) + _around(rows, one[0], value) for one in bad) or f"none of {len(tests)} cells"
        nearest = min(tests, key=lambda one: (one[2], one[1].larger))
        if not bad:
            raw = f"p {nearest[1].larger:.2g}, {nearest[2]:.2g} after Holm"
            text += f"; nearest {_cell(*nearest[:2])}, {raw}{_around(rows, nearest[0], value)}"
        if looks:
            text += f". Looks worse, few pairs: {'; '.join(_cell(*one) for one in looks)}"
        holds = "NO" if bad else "too few" if looks else "yes"
        found.append((f"no cell worse in {shown} after Holm's correction", holds, text))
    return found


def pooled_difference(rows: list[Row], value: str) -> Paired | None:
    """default - plain over all sizes, ranks, models and noises, absolute score."""
    some = take(_measured(rows, value), score="absolute")
    return over_settings(take(some, method="default"), take(some, method="plain"), value)


def _spread(rows: list[Row], value: str) -> str:
    """How even the pooled difference is: cells with smaller values, the median cell, and the largest rank left out."""
    tests = [(key, test) for key, test, _ in against_plain(take(rows, score="absolute"), value)]
    means = [test.mean for _, test in tests]
    text = f" over {len(means)} cells, smaller in {sum(mean < 0 for mean in means)}, median {np.median(means):+.2g}"
    largest = max(key[2] for key, _ in tests)
    rest = pooled_difference([row for row in rows if row["rank"] != largest], value)
    return text + (f", without r={largest} {rest}" if rest is not None else "")


def _around(rows: list[Row], key: tuple[Any, ...], value: str) -> str:
    """What the true weights give there, and each law's rank, error of B and effective size of the weights."""
    some = take(rows, **dict(zip(CELL, key)))
    by = {name: take(some, method=name) for name in ("default", "plain", "oracle")}
    test = paired(by["oracle"], by["plain"], value)
    text = "" if test is None else f", oracle - plain {test}"
    columns = (("chosen_rank", "rank", 2), ("relative_error", "error of B", 2), ("effective_size", "effective size", 0))
    for column, shown, digits in columns:
        found = {name: summarise(rows, column) for name, rows in by.items()}
        listed = [f"{name} {one.mean:.{digits}f}" for name, one in found.items() if one is not None]
        text += f"; {shown}: {', '.join(listed)}" if listed else ""
    return text


def _cell(key: tuple[Any, ...], test: Paired) -> str:
    model, d, rank, noise, score = key
    which = f"{SHORT[model]} d={d} r={rank} {noise}" + ("" if score == "absolute" else f" {score}")
    return f"{which}: {test} ({test.count} pairs, {test.draws} B*)"
