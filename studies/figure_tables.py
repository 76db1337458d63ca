"""Numbers behind the paper's figures, and our default against the paper's estimator over all cells."""

from __future__ import annotations

from math import isnan, sqrt
from typing import Any

import numpy as np

from studies.cells import Cell
from studies.claims import MEASURES, against_plain, pooled_difference
from studies.comparison import grouped, paired, summarise
from studies.draws import parameter_of
from studies.part_tables import PAIRED_NOTE, SHORT, TABLES, Rows, table_rank, take
from studies.readings import readings_table
from studies.tables import Table, Value, names

__all__ = ["pooled", "tables_of"]

Row = dict[str, Any]
SCORES_SHOWN = {"absolute": "absolute", "normalized": "normalized", "signed": "two-sided"}


def draws(data: Rows) -> list[Table]:
    """What depends on the B* that is drawn: each one's size beside the numbers of its own repetitions."""
    rows = [row for row in take(data["conformal"], score="absolute") if row["rank"] == table_rank(data["conformal"])]
    lines: list[tuple[Value, ...]] = []
    notes: list[str] = []
    for (model, d), of_cell in grouped(rows, "model", "d").items():
        points: list[tuple[float, float, float]] = []
        for (draw,), some in grouped(of_cell, "draw").items():
            parameter = parameter_of(Cell.of("conformal", 0, d=d, rank=some[0]["rank"], draw=draw))
            size = float(np.sqrt(np.mean(parameter**2)))
            bare = summarise(take(some, noise="adversarial", method="unweighted"), "miscoverage")
            by = {name: take(some, noise="constant", method=name) for name in ("plain", "default")}
            error, ours = (summarise(by[name], "relative_error") for name in by)
            lines.append(
                (SHORT[model], d, draw, size, bare, error, ours, paired(by["default"], by["plain"], "relative_error"),
                 summarise(take(some, noise="constant", method="automatic"), "relative_error"))
            )  # fmt: skip
            if bare is not None and error is not None:
                points.append((size, bare.mean, error.mean))
        if len(points) > 2:
            size_of, bare_of, error_of = np.array(points).T
            with_bare, with_error = np.corrcoef(size_of, bare_of)[0, 1], np.corrcoef(1 / size_of, error_of)[0, 1]
            notes.append(
                f"{SHORT[model]}, d={d}: over {len(points)} B* (few) the size correlates with unweighted mis-coverage "
                f"at {with_bare:.2f}, its inverse with the relative error of plain at {with_error:.2f}."
            )
    columns = names(
        "model | d | B* | rms of B* | unweighted, adv. | RSE plain | RSE default | RSE default - plain | RSE automatic"
    )
    return [
        Table(
            "draws",
            "How much depends on the B* drawn (r=3)",
            "",
            columns,
            tuple(lines),
            tuple(notes),
        )
    ]


def landscape(data: Rows) -> list[Table]:
    """fig:sim-conformal-coverage-rnd."""
    lines: list[tuple[Value, ...]] = []
    for (model, noise, d, rank), some in grouped(_absolute(data), "model", "noise", "d", "rank").items():
        plain, default = take(some, method="plain"), take(some, method="default")
        line: list[Value] = [SHORT[model], noise, d, rank, rank / d]
        for value in ("coverage90", "coverage95"):
            line += [summarise(plain, value), summarise(default, value), paired(default, plain, value)]
        lines.append((*line, summarise(default, "chosen_rank")))
    columns = names(
        "model | noise | d | r | r/d | 90 % plain | 90 % default | 90 % default - plain | 95 % plain | 95 % "
        "default | 95 % default - plain | rank default"
    )
    return [
        Table(
            "landscape",
            "Coverage in percent against r/d",
            "fig:sim-conformal-coverage-rnd",
            columns,
            tuple(lines),
            (PAIRED_NOTE,),
        )
    ]


def estimation(data: Rows) -> list[Table]:
    """fig:estimation-error and fig:conv_robust."""
    lines: list[tuple[Value, ...]] = []
    for (model, d, rank), some in grouped(take(_absolute(data), noise="constant"), "model", "d", "rank").items():
        plain, default = take(some, method="plain"), take(some, method="default")
        lines.append(
            (
                SHORT[model],
                d,
                rank,
                rank / d,
                summarise(plain, "relative_error"),
                summarise(default, "relative_error"),
                paired(default, plain, "relative_error"),
                summarise(plain, "chosen_rank"),
                summarise(default, "chosen_rank"),
                summarise(plain, "seconds"),
                summarise(default, "seconds"),
            )
        )
    starts: list[tuple[Value, ...]] = []
    for (model, d, size), some in grouped(data.get("start", []), "model", "d", "noise_sd").items():
        plain, default = take(some, method="plain"), take(some, method="default")
        starts.append(
            (
                SHORT[model],
                d,
                size,
                summarise(plain, "start_error"),
                summarise(plain, "relative_error"),
                summarise(default, "relative_error"),
                paired(default, plain, "relative_error"),
            )
        )
    first = names(
        "model | d | r | r/d | error plain | error default | default - plain | rank plain | rank default | "
        "seconds plain | seconds default"
    )
    second = names(
        "model | d | sd of the start's noise | error of the start | error plain | error default | default - plain"
    )
    return [
        Table(
            "estimation",
            "Relative error of the missingness parameter",
            "fig:estimation-error",
            first,
            tuple(lines),
            (PAIRED_NOTE,),
        ),
        Table("estimation-start", "Robustness to the start", "fig:conv_robust", second, tuple(starts), (PAIRED_NOTE,)),
    ]


def misspecified(data: Rows) -> list[Table]:
    """fig:tc_misspecified_sim."""
    lines: list[tuple[Value, ...]] = []
    for (model, noise, d, working), some in grouped(
        data["misspecified"], "model", "noise", "d", "working_rank"
    ).items():
        plain, default = take(some, method="plain"), take(some, method="default")
        line: list[Value] = [SHORT[model], noise, d, working]
        for value in ("coverage90", "half_width90"):
            line += [summarise(plain, value), summarise(default, value), paired(default, plain, value)]
        lines.append(tuple(line))
    columns = names(
        "model | noise | d | completion rank | 90 % plain | 90 % default | 90 % default - plain | half-width "
        "plain | half-width default | half-width default - plain"
    )
    return [
        Table(
            "misspecified",
            "Completion of the wrong rank (truth: 5)",
            "fig:tc_misspecified_sim",
            columns,
            tuple(lines),
            (PAIRED_NOTE,),
        )
    ]


def timing(data: Rows) -> list[Table]:
    """fig:timing_experiment."""
    lines: list[tuple[Value, ...]] = []
    for (d, model, method), some in grouped(data["timing"], "d", "model", "method").items():
        values = ("seconds_per_iteration", "iterations", "seconds_to_target")
        found = [np.array([row[value] for row in some], dtype=float) for value in values]
        reached = int(np.isfinite(found[2]).sum())
        middle = [float(np.nanmedian(v)) if np.isfinite(v).any() else None for v in found]
        lines.append((d, SHORT[model], method, *middle, f"{reached} of {len(some)}"))
    columns = names(
        "d | model | method | seconds per iteration | iterations | seconds to the same likelihood | reached it"
    )
    notes = (
        "Medians over repetitions, in seconds of one machine: compare methods within a model and a size. The target is "
        "the loss at which the paper's stopping rule ends RGrad with its fixed step, within 1e-5; every method but GCP "
        "begins at the same TT-SVD start, and all run on one core. GCP has a CP rank of as many parameters and, "
        "without neighbours, under the Ising model another likelihood: no common target there.",
    )
    return [
        Table(
            "timing",
            "Seconds per iteration and to the same likelihood",
            "fig:timing_experiment",
            columns,
            tuple(lines),
            notes,
        )
    ]


def theory(data: Rows) -> list[Table]:
    """thm:error-bound-Bernoulli and lemma:coverage-lower-bound against what happened."""
    lines: list[tuple[Value, ...]] = []
    slopes: list[str] = []
    rows = take(_absolute(data), noise="adversarial")
    for (model,), of_model in grouped(rows, "model").items():
        points: dict[str, list[tuple[float, float]]] = {"plain": [], "default": []}
        for (d, rank), some in grouped(of_model, "d", "rank").items():
            rate = sqrt(rank**2 * 3 * d / d**3)
            line: list[Value] = [SHORT[model], d, rank, rate]
            for method in points:
                found = take(some, method=method)
                error = summarise(found, "relative_error")
                if error is not None:
                    points[method].append((rate, error.mean))
                short = [{**row, "shortfall": 90 - row["coverage90"]} for row in found]
                delta = [{**row, "delta": 100 * row["weight_error"]} for row in found]
                line += [error, summarise(delta, "delta"), summarise(short, "shortfall")]
            lines.append(tuple(line))
        for method, found_points in points.items():
            if len({x for x, _ in found_points}) > 2:
                x, y = np.log(np.array(found_points)).T
                slopes.append(
                    f"{SHORT[model]}, {method}: log error grows by {np.polyfit(x, y, 1)[0]:.2f} per log of the rate."
                )
    columns = names(
        "model | d | r | rate | error plain | Delta % plain | shortfall % plain | error default | Delta % "
        "default | shortfall % default"
    )
    notes = (
        "rate: sqrt(r* d_bar / d*). Delta: eq. Delta-definition, the shortfall of a 90 % interval that the lemma "
        "allows at most; shortfall: what happened under adversarial noise (negative: over-coverage). Theorem and lemma "
        "speak of Bernoulli only.",
        "The theorem bounds the absolute error of a B* of low rank by a multiple of the rate, which is a slope of at "
        "most 1 in logs. Here B* has noise of full rank on its blocks, which no low rank reaches, and a relative error "
        "near 1 is no better than B = 0: both flatten the slope.",
        *slopes,
    )
    return [
        Table(
            "theory",
            "Error, weight error and shortfall",
            "thm:error-bound-Bernoulli, lemma:coverage-lower-bound",
            columns,
            tuple(lines),
            notes,
        )
    ]


def pooled(data: Rows) -> list[Table]:
    """Our default against the paper's plain estimator over all cells.

    Pooled, and cell by cell after a Holm correction.
    """
    lines: list[tuple[Value, ...]] = []
    summary: list[str] = []
    for value, shown in MEASURES:
        tests = against_plain(data["conformal"], value)
        for (model, d, rank, noise, score), test, p in tests:
            verdict = "WORSE" if p < 0.05 else "better" if test.smaller < 0.05 else ""
            verdict = verdict if not isnan(p) else "few pairs"
            where = (noise, SCORES_SHOWN[score]) if value == "miscoverage" else ("", "")
            lines.append((shown, SHORT[model], d, rank, *where, test, test.count, test.draws, p, verdict))
        over = pooled_difference(data["conformal"], value)
        if over is not None:
            bad = sum(p < 0.05 for _, _, p in tests)
            summary.append(
                f"{shown}: pooled, default - plain is {over} (p that it is larger: {over.larger:.3g}); "
                f"{bad} cell(s) significantly worse after Holm's correction."
            )
    columns = names("measure | model | d | r | noise | score | default - plain | n | B* | p worse (Holm) | verdict")
    title = "Our default against the paper's plain estimator"
    return [Table("pooled", title, "", columns, tuple(lines), tuple(summary))]


def tables_of(part: str, data: Rows) -> list[Table]:
    """The tables of a part that have rows; none for a part that only draws."""
    made = {
        **TABLES,
        "landscape": landscape,
        "estimation": estimation,
        "misspecified": misspecified,
        "timing": timing,
        "theory": theory,
    }
    tables = made[part](data) if part in made else []
    if part == "coverage":
        tables = [*readings_table(data.get("reading", [])), *draws(data), *tables]
    return [table for table in tables if table.rows]


def _absolute(data: Rows) -> list[Row]:
    return take(data["conformal"], score="absolute")
