"""The paper's application on real fields: unweighted, Bernoulli, Ising as the paper sets them, and our defaults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from corten import ConformalCompleter, TuckerCompletion
from corten.evidence import metrics
from corten.propensity import BernoulliPropensity, IsingPropensity, Product, UniformPropensity
from studies.field_sets import FieldSet, data_folder, load_set
from studies.files import whole_file
from studies.store import code_version

__all__ = [
    "METHODS", "VALIDATION", "FieldRow", "markdown", "read_rows", "run_fields", "validate", "verdict", "write_rows",
]  # fmt: skip

PAPER_RANK = 7  # the paper searches ranks 2..7 on TEC
PAPER_STRENGTH = 1.25
STRENGTHS: tuple[float | str, ...] = (0.05, 0.2, 0.5, PAPER_STRENGTH, 2.0, "learned")
VALIDATION = "validation"  # the name under which rows of the grid search are kept
FINITE = 0.01  # of the intervals may be infinite before a setting counts as unusable


@dataclass(frozen=True)
class FieldRow:
    """One method on one set: error, coverage and, always beside it, widths and how many intervals are finite."""

    set: str
    method: str
    seed: int
    mae: float
    miscoverage: float
    coverage90: float
    coverage95: float
    width90: float
    infinite90: float
    interval_score90: float
    effective_size: float
    seconds: float
    cpu_seconds: float = float("nan")
    version: str = ""


def _paper(propensity: Any) -> Callable[[int], ConformalCompleter]:
    def make(seed: int) -> ConformalCompleter:
        return ConformalCompleter(TuckerCompletion(3), propensity, "random", weights="approximate", seed=seed)

    return make


METHODS: dict[str, Callable[[int], ConformalCompleter]] = {
    "unweighted": _paper(UniformPropensity()),
    "Bernoulli": _paper(BernoulliPropensity(criterion="p-aic", max_rank=PAPER_RANK)),
    "Ising 5xy/4": _paper(IsingPropensity(Product(PAPER_STRENGTH), criterion="p-aic", max_rank=PAPER_RANK)),
    "corten": lambda seed: ConformalCompleter(seed=seed),
}


def evaluate(name: str, one: FieldSet, completer: ConformalCompleter, method: str) -> tuple[FieldRow, Any]:
    """Fit a method to a set and score it where the truth is known."""
    began, worked = time.perf_counter(), time.process_time()
    fitted = completer.fit(one.observed, periodic=one.periodic, axis_kinds=one.axis_kinds)
    result = fitted.intervals(0.9)
    lower, upper = result.lower_array, result.upper_array
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    where, truth = one.score, one.truth
    mis = np.mean([abs(_share(truth, r, where) - r.coverage) for r in result.at(list(np.arange(0.80, 0.995, 0.01)))])
    row = FieldRow(
        name, method, completer.seed,
        float(np.abs(result.estimate_array - truth)[where].mean()), 100 * float(mis),
        100 * _share(truth, result, where), 100 * _share(truth, result.at(0.95), where),
        float(_finite(upper - lower, where)), 100 * float(np.mean(np.isinf((upper - lower)[where]))),
        float(np.mean(metrics.interval_scores(truth[where], lower[where], upper[where], 0.9))),
        float(fitted.facts(0.9)["effective_sample_size"]), seconds, worked, code_version(),
    )  # fmt: skip
    return row, result


def run_fields(
    sets: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    data: Path | None,
    tell: Callable[[FieldRow], None] = lambda row: None,
    keep: Callable[[FieldSet, str, int, Any], None] = lambda one, method, seed, result: None,
    done: Sequence[FieldRow] = (),
) -> list[FieldRow]:
    """Every method on every set; `tell` hears of each row, `keep` gets each result for figures.

    done: rows of an earlier run; those of this version of the code are taken over instead of computed.
    """
    folder, rows, version = data_folder(data), [], code_version()
    known = {(row.set, row.method, row.seed): row for row in done if row.version == version}
    for name in sets:
        one = load_set(name, folder)
        for method in methods:
            if method not in METHODS:
                raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
            for seed in range(seeds):
                if (name, method, seed) in known:
                    rows.append(known[name, method, seed])
                    continue
                row, result = evaluate(name, one, METHODS[method](seed), method)
                rows.append(row)
                tell(row)
                keep(one, method, seed, result)
    return rows


def validate(
    name: str,
    data: Path | None,
    strengths: Sequence[float | str] = STRENGTHS,
    neighborhoods: Sequence[str] = ("adjacent", "adjacent:0,1", "cube"),
    seed: int = 0,
    tell: Callable[[FieldRow], None] = lambda row: None,
) -> list[FieldRow]:
    """The paper's grid search on a validation tensor, with its truth: every strength in every neighbourhood.

    "learned" among the strengths estimates it from the mask alone, without the truth.
    """
    one, rows = load_set(name, data_folder(data)), []
    for around in neighborhoods:
        for strength in strengths:
            coupling = Product(strength)  # type: ignore[arg-type]
            model = IsingPropensity(coupling, neighborhood=around, criterion="p-aic", max_rank=PAPER_RANK)
            row, result = evaluate(name, one, _paper(model)(seed), f"Ising {_in_words(strength)}, {around}")
            if coupling.is_learned:
                found = result.source.propensity.coupling.strength
                row = replace(row, method=f"Ising learned {_in_words(found)}, {around}")
            rows.append(row)
            tell(row)
    return rows


def _in_words(strength: float | str) -> str:
    return f"{strength}*xy" if isinstance(strength, str) else f"{strength:.4g}*xy"


def verdict(rows: Sequence[FieldRow]) -> str:
    """Which of the grid covers best, and which of those whose intervals are finite."""
    best = min(rows, key=lambda row: row.miscoverage)
    usable = [row for row in rows if row.infinite90 <= 100 * FINITE]
    said = f"smallest mis-coverage: {best.method}, {best.miscoverage:.2f} % with {best.infinite90:.1f} % infinite"
    if not usable:
        return f"{said}; none has fewer than {FINITE:.0%} infinite intervals: use the defaults, calibration='gaps'"
    finite = min(usable, key=lambda row: row.miscoverage)
    return f"{said}; among those with at most {FINITE:.0%} infinite: {finite.method}, {finite.miscoverage:.2f} %"


def markdown(rows: Sequence[FieldRow]) -> str:
    """The table of the paper's application, with finite share and widths beside coverage."""
    heads = [
        "set",
        "method",
        "seed",
        "MAE",
        "mis-coverage %",
        "90 %",
        "95 %",
        "width at 90 %",
        "infinite %",
        "interval score",
        "ESS",
        "s",
        "CPU s",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for r in rows:
        cells = [r.set, r.method, str(r.seed), f"{r.mae:.3g}", f"{r.miscoverage:.2f}", f"{r.coverage90:.1f}"]
        cells += [f"{r.coverage95:.1f}", f"{r.width90:.3g}", f"{r.infinite90:.1f}", f"{r.interval_score90:.3g}"]
        cells += [f"{r.effective_size:,.0f}", f"{r.seconds:.0f}", f"{r.cpu_seconds:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_rows(rows: Sequence[FieldRow], folder: Path, name: str = "fields") -> list[Path]:
    """fields.json and fields.md, or of another name; each row has the version of the code that made it."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    for path, text in zip(paths, (json.dumps([asdict(row) for row in rows], indent=1), markdown(rows))):
        with whole_file(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    return paths


def read_rows(folder: Path, name: str = "fields") -> list[FieldRow]:
    """The rows a run left in its folder; none where it left none."""
    path = folder / f"{name}.json"
    return [FieldRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def _share(truth: np.ndarray, result: Any, where: np.ndarray) -> float:
    inside = (result.lower_array <= truth) & (truth <= result.upper_array)
    return float(inside[where].mean())


def _finite(width: np.ndarray, where: np.ndarray) -> float:
    finite = width[where]
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("inf")
