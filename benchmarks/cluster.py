"""Passes on Dask workers of one thread each: what a pass costs beside the kernels, and what a second worker brings.

    python benchmarks/cluster.py [--size 400] [--workers 1 2] [--fit]

Prints a table; writes it as JSON to $OUT/cluster.json if OUT is set. Workers are processes of this machine, so nothing
travels over a network: bytes per pass are counted, not timed. Run it with at least as many cores as workers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from corten.engine import Model, Threads, as_engine
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Product
from corten.propensity.ising import IsingPropensity
from corten.propensity.link import as_link
from corten.propensity.neighborhood import resolve

SHARE, RANK, STRENGTH = 0.7, 5, 1 / 15
Row = dict[str, Any]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--size", type=int, default=400)
    arguments.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    arguments.add_argument("--repeat", type=int, default=9, help="passes timed; the median is printed")
    arguments.add_argument("--fit", action="store_true", help="time whole fits too")
    asked = arguments.parse_args()
    found: list[Row] = []

    def tell(row: Row) -> None:
        found.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)

    big, small = mask(asked.size), mask(20)
    tell({"engine": "threads (1)"} | measured(Threads(1), big, asked.repeat) | {"small": median(Threads(1), small)})
    for count in asked.workers:
        options = {"n_workers": count, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            engine = as_engine(client)
            row = {"engine": engine.label} | measured(engine, big, asked.repeat)
            tell(row | {"small": median(engine, small), "MB each way": traffic(asked.size, count) / 1e6})
            if asked.fit:
                tell({"engine": engine.label} | fitted(engine, big))
    one, *others = [row for row in found if "dask" in row["engine"] and "pass" in row]
    for row in others:
        tell({"engine": row["engine"], "times as fast as the first": one["pass"] / row["pass"]})
    tell({"overhead of a pass (s)": max(r["small"] for r in found if "small" in r) - found[0]["small"]})
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "cluster.json").write_text(json.dumps(found, indent=1))


def mask(size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random((size, size, size), np.float32) < 0.4, 1, -1).astype(np.int8)


def model_of(shape: tuple[int, ...]) -> Model:
    around, code = resolve("adjacent", shape), Product(STRENGTH).code()
    return Model(code.kind, code.terms, as_link("logit").kind, around.offsets, around.periodic)


def measured(engine: Any, spins: np.ndarray, repeat: int) -> Row:
    """Seconds to place the mask and make a first pass, and of a pass with gradient after that."""
    began = time.perf_counter()
    passes = engine.mask_pass(spins, model_of(spins.shape), SHARE)
    frame = TensorTrain.random(spins.shape, RANK, 0).frame()
    passes.loss_and_contractions(frame)
    first = time.perf_counter() - began
    return {"place and first": first, "pass": timed(lambda: passes.loss_and_contractions(frame), repeat)}


def median(engine: Any, spins: np.ndarray) -> float:
    return float(measured(engine, spins, 40)["pass"])


def fitted(engine: Any, spins: np.ndarray) -> Row:
    began = time.perf_counter()
    fit = IsingPropensity(coupling=STRENGTH, rank=RANK).fit(spins, SHARE, engine=engine)
    return {"fit": time.perf_counter() - began, "passes": fit.passes}


def timed(work: Any, repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def traffic(size: int, workers: int) -> float:
    """Bytes of factors that go out in a pass: both gauges in float64, the first core cut into the workers' rows."""
    first, middle, last = size * RANK, size * RANK**2, size * RANK
    return 2 * 8.0 * (first + workers * (middle + last))


if __name__ == "__main__":
    main()
