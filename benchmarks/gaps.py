"""Measure the gap recipe on real data whose truth is known: `python benchmarks/gaps.py tec-america-1 ndvi-50`.

Truth is used for scoring only. Data are looked for in `../shared/data`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corten import ObservedTensor
from corten.calibration.gap_rounds import run_rounds
from corten.calibration.gap_scale import learn_locally
from corten.calibration.gaps import GapCalibration
from corten.calibration.task import Task
from corten.completion.protocol import Completion
from corten.completion.stack import StackedCompletion
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scores import as_score

LEVELS = np.arange(0.80, 0.995, 0.01)


def run_gaps(
    values: np.ndarray,
    mask: np.ndarray,
    axes: Sequence[Any],
    rounds: int,
    seed: int,
    completion: Completion | None = None,
    drawn: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, CalibratedScores, dict[str, Any]]:
    """The whole recipe: estimate and scale everywhere, the calibrated scores, and seconds of each stage."""
    began = time.perf_counter()
    observed = ObservedTensor.of(np.where(mask, values, np.nan), axes=axes)
    plan = GapCalibration(rounds, drawn).plan(observed, seed)
    task = Task(observed, completion or StackedCompletion(), None, as_score("absolute"), seed=seed)
    run = run_rounds(task, plan.rounds, changed=observed, change=None)
    filled = time.perf_counter()
    local = learn_locally(run, observed, seed)
    error = np.abs(run.truth - run.estimate)
    calibrated = CalibratedScores("absolute", error / local.at_hidden, run.entries, local.weights)
    evidence = {
        "fills": round(filled - began, 1),
        "scale": round(time.perf_counter() - filled, 1),
        "hidden_mae": float(error.mean()),
        "mix": run.choices[0].taken,
    }
    return run.final.estimate, local.scale.at(np.arange(mask.size)), calibrated, evidence


def score(
    truth: np.ndarray, cells: np.ndarray, estimate: np.ndarray, u: np.ndarray, calibrated: CalibratedScores
) -> dict[str, float]:
    """Errors and coverage at the flat `cells`, in the table's units."""
    error = np.abs(truth - estimate).reshape(-1)[cells]
    width = u.reshape(-1)[cells]
    cutoffs = calibrated.intervals(cells, 0.0, 1.0, LEVELS.tolist())[1]
    covered = [(error <= width * cut).mean() for cut in cutoffs]
    at90 = width * cutoffs[int(np.argmin(np.abs(LEVELS - 0.9)))]
    finite = np.isfinite(at90)
    return {
        "mae": float(error.mean()),
        "mis": 100 * float(np.abs(np.array(covered) - LEVELS).mean()),
        "cov90": 100 * float((error <= at90).mean()),
        "width90": 2 * float(at90[finite].mean()),
        "infinite": 100 * float((~finite).mean()),
    }


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...], np.ndarray]:
    """Truth, mask, axes and where to score, of a set by its name."""
    kind, _, which = name.rpartition("-")
    if kind in ("tec-america", "tec-global"):
        america = kind == "tec-america"
        data = np.load(folder / ("tec_namerica_20190425-26.npz" if america else "tec_uqrg_global_20190425-26.npz"))
        day = slice(96 * (int(which) - 1), 96 * int(which))
        columns = slice(None) if america else slice(None, -1)
        truth, mask = data["tec"][:, columns, day], data["mask"][:, columns].astype(bool)
        names, periodic, kinds = ("lat", "lon", "time"), () if america else ("lon",), {}
    elif kind in ("ndvi", "ndvi-ordered"):
        data = np.load(folder / "ndvi_modis_gapfill.npz")
        truth = data["ndvi"]
        mask = data[f"mask{which}"].astype(bool) & np.isfinite(truth)
        names, periodic = ("y", "x", "doy", "year"), ()
        kinds = {"year": "unordered"} if kind == "ndvi" else {}
    else:
        raise SystemExit(f"unknown set {name!r}")
    hidden = np.where(mask, truth, np.nan)
    axes = ObservedTensor.of(hidden, axes=names, periodic=periodic, axis_kinds=kinds).axes
    return truth.astype(float), mask, axes, np.isfinite(truth) & ~mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--drawn", type=float, default=0.0, help="share of rounds drawn from a fitted Ising model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    for name in options.sets:
        truth, mask, axes, where = load(name, options.data)
        for seed in options.seeds:
            began, busy = time.perf_counter(), time.process_time()
            estimate, u, calibrated, stages = run_gaps(truth, mask, axes, options.rounds, seed, None, options.drawn)
            row = score(truth, np.flatnonzero(where), estimate, u, calibrated)
            row["seconds"] = time.perf_counter() - began
            row["cpu_seconds"] = time.process_time() - busy
            print(name, seed, " ".join(f"{k} {v:.4g}" for k, v in row.items()), stages, flush=True)


if __name__ == "__main__":
    main()
