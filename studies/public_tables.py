"""Public comparisons: the defaults of corten beside published numbers, with protocol, source and seconds."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from studies.field_sets import data_folder
from studies.files import whole_file
from studies.store import code_version

__all__ = ["CASES", "Case", "Problem", "Row", "evaluate", "linear_in_time", "page", "read_rows", "run_tables"]

QUANTILES = np.arange(1, 20) / 20  # those of the published CRPS
Measures = dict[str, float]


@dataclass(frozen=True)
class Problem:
    """A labelled array with gaps, the truth, and where it is scored."""

    x: Any
    truth: np.ndarray = field(repr=False)
    score: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Case:
    """One column of a public table; `published`: measures by method, `shown`: the measures in their order."""

    table: str
    name: str
    file: str
    make: Callable[[Path], Problem] = field(repr=False)
    shown: tuple[str, ...]
    published: dict[str, Measures]


@dataclass(frozen=True)
class Row:
    """The measures that corten reached in one case."""

    case: str
    measures: Measures
    seconds: float
    cpu_seconds: float
    settings: dict[str, str]
    version: str


def _air(folder: Path) -> Problem:
    import xarray as xr

    with np.load(folder / "aqi36_dev.npz") as data:
        truth, hidden, time = data["pm25"].astype(np.float64), data["dev_mask"], data["time"]
    stations = [f"station {k + 1}" for k in range(truth.shape[1])]
    x = np.where(hidden, np.nan, truth)
    labels = {"time": time, "station": stations}
    return Problem(xr.DataArray(x, dims=("time", "station"), coords=labels, name="pm25"), truth, hidden)


def _metro(mask: str) -> Callable[[Path], Problem]:
    def make(folder: Path) -> Problem:
        import xarray as xr

        with np.load(folder / "metro_hangzhou.npz") as data, np.load(folder / "metro_hangzhou_masks.npz") as masks:
            truth, known = data["flow"].astype(np.float64), masks[mask] == 1
        known &= truth != 0
        stations = {"station": [f"station {k + 1}" for k in range(truth.shape[0])]}
        x = xr.DataArray(np.where(known, truth, np.nan), dims=("station", "day", "slot"), coords=stations, name="flow")
        return Problem(x, truth, (truth != 0) & ~known)

    return make


AIR, METRO = "AQI-36", "Hangzhou metro"
PROTOCOL = {
    AIR: "Hourly PM2.5 at 36 stations in Beijing, 2014-05 to 2015-04, 8,759 x 36. The benchmark scores entries of the "
    "months 3, 6, 9 and 12; these values are not in our copy. **corten is scored on 15,303 entries "
    "of the other months that are hidden by the same rule**, so its row is on other entries than the "
    "published ones. Linear interpolation in time, on both, shows how the two compare. CRPS: mean over q = 0.05, ..., "
    "0.95 of 2 x sum of pinball losses / sum of |y|. corten gets the labels of time and stations and nothing else; the "
    "seconds are those of the whole call, as nothing is trained before.",
    METRO: "Incoming passengers at 80 stations, 25 days, 108 slots of 10 minutes. RM: entries missing at random; NM: "
    "whole station-days; BM: all stations dark for 6 slots; the number is the share in percent. Masks are redrawn by "
    "the published rule (seed 1000), zeros count as missing, and the hidden nonzero entries are scored. corten gets "
    "the labels of the stations.",
}
SOURCE = {
    AIR: "GRIN: Cini et al. (2022); SPIN and SPIN-H: Marisca et al. (2022); CSDI: Tashiro et al. (2021); CFMI and the "
    "others: as reported with them. Data: Microsoft Research, urban air.",
    METRO: "LRTC-TNN: Chen, Yang and Sun (2020); LATC: Chen et al. (2021). Data: Zenodo 3145403.",
}
PUBLISHED_AIR: dict[str, Measures] = {
    "linear interpolation": {"MAE": 14.6},
    "VAR": {"MAE": 15.64},
    "BRITS": {"MAE": 14.50},
    "GRIN": {"MAE": 12.08},
    "SPIN": {"MAE": 11.77},
    "SPIN-H": {"MAE": 10.89},
    "CSDI": {"MAE": 9.60, "CRPS": 0.108},
    "CFMI": {"MAE": 9.40, "CRPS": 0.098},
}
PUBLISHED_METRO: dict[str, dict[str, tuple[float, float]]] = {
    "RM30": {"LRTC-TNN": (18.63, 24.95)},
    "RM70": {"LRTC-TNN": (20.16, 29.55)},
    "NM30": {"LRTC-TNN": (19.39, 47.60)},
    "NM70": {"LRTC-TNN": (22.64, 41.83)},
    "BM30": {"LRTC-TNN": (21.37, 29.28), "LATC": (21.9, 28.6)},
}
CASES: dict[str, Case] = {
    "AQI-36": Case(AIR, "AQI-36", "aqi36_dev.npz", _air, ("MAE", "CRPS"), PUBLISHED_AIR),
    **{
        name: Case(
            METRO, name, "metro_hangzhou_masks.npz", _metro(name), ("MAPE", "RMSE"),
            {method: dict(zip(("MAPE", "RMSE"), pair)) for method, pair in methods.items()},
        )
        for name, methods in PUBLISHED_METRO.items()
    },
}  # fmt: skip


def evaluate(case: str, problem: Problem, complete: Callable[[Any], Any]) -> Row:
    """The measures of one case; `complete` gives intervals at 90 %."""
    began, cpu = perf_counter(), process_time()
    result = complete(problem.x)
    seconds, cpu_seconds = perf_counter() - began, process_time() - cpu
    at, y = problem.score, problem.truth[problem.score]
    error = result.estimate_array[at] - y
    losses = [_pinball(y - np.asarray(result.quantile(float(q)))[at], float(q)) for q in QUANTILES]
    inside = (result.lower_array[at] <= y) & (y <= result.upper_array[at])
    measures = {
        "MAE": float(np.abs(error).mean()),
        "RMSE": float(np.sqrt((error**2).mean())),
        "MAPE": float(100 * np.mean(np.abs(error)[y != 0] / np.abs(y[y != 0]))),
        "CRPS": float(2 * np.mean(losses) * len(y) / np.abs(y).sum()),
        "coverage": float(100 * inside.mean()),
        "width": float((result.upper_array - result.lower_array)[at].mean()),
    }
    taken = {"calibration", "correction of the stack", "weights of the stack"}
    settings = {one.what: one.taken for one in result.source.choices if one.what in taken}
    return Row(case, measures, seconds, cpu_seconds, settings, code_version())


def _pinball(under: np.ndarray, q: float) -> float:
    return float(np.maximum(q * under, (q - 1) * under).mean())


def linear_in_time(problem: Problem) -> float:
    """The mean absolute error of linear interpolation along the first axis, each position of the second by itself."""
    x = np.array(problem.x)
    steps = np.arange(len(x))
    for column in x.T:
        known = np.isfinite(column)
        column[~known] = np.interp(steps[~known], steps[known], column[known])
    return float(np.abs(x - problem.truth)[problem.score].mean())


def run_tables(
    names: Sequence[str],
    data: Path | None,
    output: Path,
    tell: Callable[[Row], None],
    complete: Callable[[Any], Any] | None = None,
) -> list[Row]:
    """Run the cases that have no row in the folder yet; each row is stored as soon as it is known."""
    import corten

    folder, rows = data_folder(data), read_rows(output)
    for name in names:
        if name not in CASES:
            raise ValueError(f"unknown case {name!r}; known are {', '.join(CASES)}")
        if any(row.case == name for row in rows):
            continue
        if not (folder / CASES[name].file).exists():
            raise FileNotFoundError(f"{CASES[name].file} is not in {folder}: name the data folder with --data PATH")
        problem = CASES[name].make(folder)
        row = evaluate(name, problem, complete or corten.complete)
        if CASES[name].table == AIR:
            row.measures["linear"] = linear_in_time(problem)
        rows = [*(old for old in read_rows(output) if old.case != name), row]  # another process may have stored some
        output.mkdir(parents=True, exist_ok=True)
        with whole_file(output / "tables.json") as temporary:
            temporary.write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n", encoding="utf-8")
        tell(row)
    return rows


def read_rows(folder: Path) -> list[Row]:
    """The rows that earlier runs stored."""
    path = folder / "tables.json"
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def page(rows: Sequence[Row], command: str) -> str:
    """The page as Markdown: each table with its protocol, the published rows and ours, better or worse."""
    by_case = {row.case: row for row in rows}
    better = [_ratio(CASES[name], m, row) <= 1 for name, row in by_case.items() for m in CASES[name].shown]
    parts = [
        "# Public tables",
        f"corten with defaults beside published numbers: {sum(better)} of {len(better)} of its numbers are at least as "
        f"good as the best published one of the same case; {len(by_case)} of {len(CASES)} cases were run. Lower is "
        "better everywhere but in coverage. These data were used in development, among others to choose the power 2/3 "
        "of the low-rank member, so that corten's rows are not tests on new data.",
        f"Written by `{command}` from stored results, Python {platform.python_version()}, {os.cpu_count()} cores; do "
        "not edit. Published numbers are quoted. Seconds are wall-clock and processor time; wall-clock times include "
        "other load.",
    ]
    for table in (AIR, METRO):
        cases = [case for case in CASES.values() if case.table == table]
        parts += [f"## {table}", PROTOCOL[table]]
        parts += [_table(case, by_case.get(case.name)) for case in cases]
        parts.append(f"Sources: {SOURCE[table]}")
    return "\n\n".join(parts) + "\n"


def _ratio(case: Case, measure: str, row: Row) -> float:
    """Our number divided by the best published one."""
    return row.measures[measure] / min(one[measure] for one in case.published.values() if measure in one)


def _table(case: Case, row: Row | None) -> str:
    heads = [case.name, *case.shown, "coverage at 90 %", "s", "CPU s", "code"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for method, measures in case.published.items():
        cells = [f"{measures[name]:g}" if name in measures else "" for name in case.shown]
        lines.append(f"| {method} | " + " | ".join(cells) + " | | | | |")
    if row is None:
        lines.append("| **corten** | not run |" + " |" * (len(heads) - 2))
        return "\n".join(lines)
    if "linear" in row.measures:
        lines.append(
            f"| linear interpolation, entries of corten's row | {row.measures['linear']:.4g} |"
            + " |" * (len(heads) - 2)
        )
    cells = [f"{row.measures[name]:.4g} ({_ratio(case, name, row) - 1:+.0%})" for name in case.shown]
    cells += [f"{row.measures['coverage']:.1f} %", f"{row.seconds:.0f}", f"{row.cpu_seconds:.0f}", row.version]
    lines.append("| **corten** (against the best published) | " + " | ".join(cells) + " |")
    return "\n".join(lines)
