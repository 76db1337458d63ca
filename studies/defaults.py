"""A study of the defaults: how often `corten.complete(x)`, with nothing set, covers what it should.

    python -m studies defaults --draws 20 --first 40 --workers 16 --output study-output
    python -m studies defaults-page --first 40 --input study-output --output docs/defaults.md

One JSON file per class and draw; run the same command again to resume. Needs NumPy, SciPy, Numba, scikit-learn and
xarray only, so that it runs on a bare machine.
"""

from __future__ import annotations

import json
import resource
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from studies.defaults_data import CLASSES, Case, Draw
from studies.files import whole_file
from studies.runner import one_thread_each, workers
from studies.store import code_version

__all__ = ["COVERAGE", "measure", "read", "run"]

COVERAGE = 0.9
LEVELS = tuple(round(0.80 + 0.01 * k, 2) for k in range(20))  # the set Q of eq. coverage-l1-loss
WITH_UNIFORM = ("random", "few", "rows")  # kinds whose weights are compared with uniform ones
Row = dict[str, Any]


def measure(case: Case, number: int, compare: bool = True) -> Row:
    """Complete one draw with the defaults and compare the intervals with what was measured at the missing entries.

    compare: fit again with uniform weights, and with the oracle's where they are known.
    """
    import corten

    draw = case.draw(number)
    _forget_peak()
    began = perf_counter()
    result = corten.complete(draw.x, COVERAGE, **draw.given)
    row = {"class": case.name, "draw": number, "version": code_version(), "seconds": perf_counter() - began}
    row |= {"peak_mb": _peak_mb(), "missing": int((~draw.mask).sum()), **_score(draw, result)}
    if case.kind.startswith("paper"):
        covered = [_covered(draw, result.at(level)).mean() for level in LEVELS]
        row["miscoverage"] = float(np.abs(np.array(covered) - LEVELS).mean())
    others: dict[str, Any] = {}
    if compare and case.kind in WITH_UNIFORM:
        others["uniform"] = "uniform"
    if compare and draw.log_odds is not None:
        others["oracle"] = corten.KnownPropensity(draw.log_odds)
    for name, model in others.items():
        other = _score(draw, corten.complete(draw.x, COVERAGE, propensity=model, **draw.given))
        row |= {f"{name}_{what}": other[what] for what in ("coverage", "coverage_unflagged", "width", "infinite")}
    return row


def _score(draw: Draw, result: Any) -> Row:
    missing = ~draw.mask
    inside = _covered(draw, result)
    flagged = np.asarray(getattr(result, "beyond_tested", np.zeros(missing.shape, bool)), bool)[missing]
    width = np.asarray(result.width, float)[missing]
    finite = width[np.isfinite(width)]
    facts = result.summary().facts
    number = facts.get("calibration_entries") or 0
    size = float(facts.get("effective_sample_size") or "nan")
    return {
        "coverage": float(inside.mean()),
        "coverage_unflagged": float(inside[~flagged].mean()) if not flagged.all() else None,
        "flagged": float(flagged.mean()),
        "width": float(finite.mean()) if finite.size else None,
        "infinite": float(1 - finite.size / width.size),
        "effective_share": size / number if number else None,
        "mae": float(np.abs(np.asarray(result.estimate, float) - draw.measured)[missing].mean()),
        "chosen": {choice.what: choice.taken[:80] for choice in result.choices},
    }


def _covered(draw: Draw, result: Any) -> np.ndarray:
    """Whether each missing entry lies in its interval; an interval of exact data may miss by rounding alone."""
    missing = ~draw.mask
    slack = 1e-12 * np.abs(draw.measured).max()
    low, high = (np.asarray(end, float)[missing] for end in (result.lower, result.upper))
    return (low - slack <= draw.measured[missing]) & (draw.measured[missing] <= high + slack)


def run(
    names: Iterable[str], draws: int, folder: Path, jobs: int = 1, tell: Callable[[Row], None] = lambda row: None,
    first: int = 0,
) -> dict[str, str]:  # fmt: skip
    """Measure what the folder does not hold yet; returns the errors by class and draw. `tell` gets each new row.

    Draws are numbered from `first`: those that something was chosen from are not used to report it.
    """
    numbers = range(first, first + draws)
    todo = [(name, number) for number in numbers for name in names if not _file(folder, name, number).exists()]
    failed: dict[str, str] = {}

    def took(name: str, number: int, row: Row | str) -> None:
        if isinstance(row, str):
            failed[f"{name}, draw {number}"] = row
            return
        file = _file(folder, name, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as temporary:
            temporary.write_text(json.dumps(row) + "\n", encoding="utf-8")
        tell(row)

    if jobs <= 1:
        for name, number in todo:
            took(name, number, _work(name, number))
        return failed
    with one_thread_each(), workers(min(jobs, max(1, len(todo)))) as pool:
        # the longest first, so that no core waits at the end
        longest = sorted(todo, key=lambda one: not one[0].startswith(("random-100", "paper", "demo", "few")))
        under_way: dict[Future[Row | str], tuple[str, int]] = {pool.submit(_work, *one): one for one in longest}
        for future in as_completed(under_way):
            took(*under_way[future], future.result())
    return failed


def _work(name: str, number: int) -> Row | str:
    """One row, or the error as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return measure(CLASSES[name], number)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def read(folder: Path) -> list[Row]:
    """All stored rows, in the order of the table."""
    files = [file for name in CLASSES for file in sorted((folder / "defaults" / name).glob("[!.]*.json"))]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def line(row: Row) -> str:
    """A row in words, for the terminal."""
    extra = f", uniform weights {row['uniform_coverage']:.1%}" if "uniform_coverage" in row else ""
    return f"{row['class']} {row['draw']}: {row['coverage']:.1%} covered{extra}, {row['seconds']:.1f} s"



def chosen(names: Sequence[str] | None) -> list[str]:
    """Names of classes, checked; all by default."""
    unknown = [name for name in names or () if name not in CLASSES]
    if unknown:
        raise ValueError(f"unknown class {unknown[0]!r}; known are {', '.join(CLASSES)}")
    return list(names or CLASSES)


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / "defaults" / name / f"{number:03d}.json"


def _forget_peak() -> None:
    """Let the kernel count the peak memory of this process from here on, where it can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    """The highest memory in use since `_forget_peak`, of the whole process."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1e3
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
