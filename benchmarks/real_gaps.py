"""Time and scores of completions with pseudo-gaps on real data whose truth is known: `python -m benchmarks real_gaps`.

    python -m benchmarks real_gaps                               all sets, seeds 0 to 2
    python -m benchmarks real_gaps ndvi-50 metro-NM30 --seeds 0  some sets
    python -m benchmarks real_gaps tec-america-1 --rounds 24     another number of rounds
    python -m benchmarks real_gaps tec-america-1 --engine gpu

Printed for each set and seed: seconds by the clock and of the processor, and at the missing entries the mean absolute
error, the coverage of 90 % intervals, the mean interval score of finite ones and the share of infinite ones; then means
over the seeds with their standard errors. The truth is used for scoring only. Data are looked for in `../shared/data`,
or in the folder that CORTEN_DATA names.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import corten

DATA = Path(os.environ.get("CORTEN_DATA", Path(__file__).parents[2] / "shared" / "data"))
COVERAGE = 0.9
SETS = (
    *(f"{name}-{day}" for name in ("tec-america", "tec-global") for day in (1, 2)),
    *(f"ndvi-{share}" for share in (20, 30, 40, 50)),
    *(f"metro-{mask}" for mask in ("block", "ising", "RM30", "RM70", "NM30", "NM70", "BM30")),
)


def load(name: str) -> tuple[xr.DataArray, np.ndarray, np.ndarray, dict[str, Any]]:
    """The data with gaps, the truth, where to score, and the options of the axes, of a set by its name."""
    kind, _, which = name.rpartition("-")
    if kind.startswith("tec"):
        whole = kind == "tec-global"
        data = np.load(DATA / ("tec_uqrg_global_20190425-26.npz" if whole else "tec_namerica_20190425-26.npz"))
        columns = slice(None, -1) if whole else slice(None)  # the last meridian of the globe repeats the first
        truth = data["tec"][:, columns, 96 * (int(which) - 1) : 96 * int(which)]
        mask, known = data["mask"][:, columns].astype(bool), np.ones(truth.shape, bool)
        dims, options = ("lat", "lon", "time"), {"periodic": ("lon",)} if whole else {}
    elif kind == "ndvi":
        data = np.load(DATA / "ndvi_modis_gapfill.npz")
        truth = data["ndvi"]
        known = np.isfinite(truth)
        mask = data[f"mask{which}"].astype(bool) & known
        dims, options = ("y", "x", "doy", "year"), {"axis_kinds": {"year": "unordered"}}
    else:
        truth = np.load(DATA / "metro_hangzhou.npz")["flow"]
        known = np.ones(truth.shape, bool)
        if which == "block":
            mask = np.asarray(corten.simulate.masks.block_mask(truth.shape, 0.4, seed=0))
        elif which == "ising":
            mask = np.asarray(corten.simulate.masks.ising_mask(truth.shape, seed=0))
        else:  # zeros count as missing there
            known = truth != 0
            mask = (np.load(DATA / "metro_hangzhou_masks.npz")[which] == 1) & known
        dims, options = ("station", "day", "slot"), {"axis_kinds": {"station": "unordered"}}
    x = xr.DataArray(np.where(mask, truth, np.nan).astype(float), dims=dims, name=kind)
    return x, truth.astype(float), known & ~mask, options


def measure(name: str, seed: int, rounds: int | None, engine: str) -> dict[str, float]:
    """One fit with its intervals."""
    x, truth, where, options = load(name)
    calibration = corten.GapCalibration() if rounds is None else corten.GapCalibration(rounds=rounds)
    began, worked = time.perf_counter(), time.process_time()
    result = corten.complete(x, COVERAGE, calibration=calibration, seed=seed, engine=engine, **options)
    estimate, low, high = (np.asarray(one)[where] for one in (result.estimate, result.lower, result.upper))
    row = {"clock": time.perf_counter() - began, "processor": time.process_time() - worked}
    at = truth[where]
    outside = np.maximum(low - at, 0) + np.maximum(at - high, 0)
    finite = np.isfinite(high - low)
    score = (high - low + 2 / (1 - COVERAGE) * outside)[finite]
    return row | {
        "MAE": float(np.abs(estimate - at).mean()),
        "covered": float((outside <= 0).mean()),
        "score": float(score.mean()),
        "infinite": float(1 - finite.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--engine", default="auto")
    asked = parser.parse_args()
    unknown = sorted(set(asked.sets) - set(SETS))
    if unknown:
        parser.error(f"unknown sets {unknown}; known are {', '.join(SETS)}")
    warnings.simplefilter("ignore")
    small = np.random.default_rng(0).standard_normal((9, 8, 7)).cumsum(0)
    small[3:5, 2:5, 2:4] = np.nan
    np.asarray(corten.complete(small, calibration="gaps", engine=asked.engine).lower)  # loads and compiles everything
    for name in asked.sets:
        rows = []
        for seed in asked.seeds:
            rows.append(measure(name, seed, asked.rounds, asked.engine))
            print(
                f"{name} seed {seed}: " + ", ".join(f"{what} {one:.4g}" for what, one in rows[-1].items()), flush=True
            )
        if len(rows) > 1:
            table = np.array([list(row.values()) for row in rows])
            means, errors = table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(len(rows))
            each = (f"{what} {mean:.4g} +- {error:.2g}" for what, mean, error in zip(rows[0], means, errors))
            print(f"{name} mean of {len(rows)}: " + ", ".join(each), flush=True)


if __name__ == "__main__":
    main()
