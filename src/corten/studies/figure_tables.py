"""Numbers behind the paper's figures, and our default against the paper's estimator over all cells."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from corten.studies.claims import MEASURES, against_plain
from corten.studies.comparison import grouped, of_gaps, paired, summarise
from corten.studies.part_tables import PAIRED_NOTE, SHORT, TABLES, Rows, take
from corten.studies.tables import Table, Value, names

__all__ = ["pooled", "tables_of"]

Row = dict[str, Any]


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
        lines.append((d, SHORT[model], method, *(summarise(some, value) for value in values)))
    columns = ("d", "model", "method", "seconds per iteration", "iterations", "seconds to the same likelihood")
    notes = (
        "The target is the loss at which the paper's stopping rule ends RGrad with its fixed step, within 1e-5; "
        "every method begins at the same TT-SVD "
        "start and runs on one core. Empty: not reached in the iterations allowed (projected gradient, 20), or "
        "another likelihood (GCP).",
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
                    f"{SHORT[model]}, {method}: log error grows by {np.polyfit(x, y, 1)[0]:.2f} per log of the "
                    f"rate (the theorem: 1)."
                )
    columns = names(
        "model | d | r | rate | error plain | Delta % plain | shortfall % plain | error default | Delta % "
        "default | shortfall % default"
    )
    notes = (
        "rate: sqrt(r* d_bar / d*). Delta: eq. Delta-definition, the shortfall of a 90 % interval that the lemma "
        "allows at most; shortfall: what happened under "
        "adversarial noise (negative: over-coverage). The theorem speaks of Bernoulli only.",
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
        tests = against_plain(_absolute(data), value)
        for (model, d, rank, noise), test, p in tests:
            verdict = "WORSE" if p < 0.05 else "better" if test.mean < -2 * test.error else ""
            where = noise if value == "miscoverage" else ""
            lines.append((shown, SHORT[model], d, rank, where, test, test.count, p, verdict))
        over = of_gaps(np.array([test.mean for _, test, _ in tests]))
        if over is not None:
            bad = sum(p < 0.05 for _, _, p in tests)
            summary.append(
                f"{shown}: over {len(tests)} cells default - plain is {over} (p that it is larger: {over.larger:.3g}); "
                f"{bad} cell(s) significantly worse after Holm's correction."
            )
    columns = names("measure | model | d | r | noise | default - plain | n | p worse (Holm) | verdict")
    title = "Our default against the paper's plain estimator"
    return [Table("pooled", title, "issue 4, last requirement", columns, tuple(lines), tuple(summary))]


def tables_of(part: str, data: Rows) -> list[Table]:
    """The tables of a part; none for a part that only draws."""
    made = {
        **TABLES,
        "landscape": landscape,
        "estimation": estimation,
        "misspecified": misspecified,
        "timing": timing,
        "theory": theory,
    }
    return made[part](data) if part in made else []


def _absolute(data: Rows) -> list[Row]:
    return take(data["conformal"], score="absolute")
