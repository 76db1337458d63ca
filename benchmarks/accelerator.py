"""Passes, fits and a rank search on JAX's first device, and how they agree with the threads of this machine.

    python benchmarks/accelerator.py [--sizes 100 300 1000] [--engine gpu]

Prints a table; writes it as JSON to $OUT/accelerator.json if OUT is set. Every part runs in a process of its own, so
that first fits and the search pay for starting the device and for compilation. Times are wall-clock, with transfers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corten.engine import Model, as_engine, gibbs
from corten.engine.accelerator import Accelerator
from corten.engine.threads import default_threads, in_order
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Product
from corten.propensity.estimation import Recipe
from corten.propensity.ising import IsingPropensity
from corten.propensity.neighborhood import resolve
from corten.propensity.selection import choose_rank

SHARE, RANK, STRENGTH = 0.7, 5, 1 / 15
Row = dict[str, Any]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sizes", type=int, nargs="*", default=[100, 300, 1000])
    arguments.add_argument("--engine", default="gpu")
    arguments.add_argument("--compare-up-to", type=int, default=300, help="largest size the threads run too")
    arguments.add_argument("--part", type=int, help="run one size here (0: the rank search), one JSON row a line")
    asked = arguments.parse_args()
    if asked.part is not None:
        rows = size(asked.part, asked.engine, asked.part <= asked.compare_up_to) if asked.part else search(asked.engine)
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    found: list[Row] = []
    for part in (0, *asked.sizes):
        more = ["--engine", asked.engine, "--compare-up-to", str(asked.compare_up_to), "--part", str(part)]
        done = subprocess.run([sys.executable, __file__, *more], stdout=subprocess.PIPE, text=True, check=True)
        for row in map(json.loads, done.stdout.splitlines()):
            found.append(row)
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "accelerator.json").write_text(json.dumps(found, indent=1))


def search(engine: str) -> Iterator[Row]:
    """Ranks 2 to 15 at 100^3."""
    _, mask = masks(100)
    spins, model = ising(mask)
    began = time.perf_counter()
    best, tried = choose_rank(
        as_engine(engine), spins, model=model, train_share=SHARE, recipe=Recipe(), criterion="p-bic",
        ranks=range(2, 16), patience=None,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    yield {"what": "rank search", "size": 100, "ranks": len(tried), "best": best.rank, "seconds": seconds}


def size(length: int, engine: str, compare: bool) -> Iterator[Row]:
    """Fits first, while everything is cold; then passes, alone and against the threads."""
    tensor, mask = masks(length)
    yield {"what": "engine", "size": length, "label": as_engine(engine).label}
    for label in ("first fit", "second fit"):
        began = time.perf_counter()
        fit = IsingPropensity(coupling=STRENGTH, rank=RANK).fit(mask, SHARE, engine=engine)
        seconds = time.perf_counter() - began
        yield {"what": label, "size": length, "seconds": seconds, "passes": fit.passes, "loss": fit.loss / mask.size}
    spins, model = ising(mask)
    passes = as_engine(engine).mask_pass(spins, model, SHARE)
    passes.loss_and_contractions(tensor.frame())
    yield {"what": "pass", "size": length, "ms": 1e3 * median(passes, tensor)}
    fused = Accelerator("gpu" if engine == "gpu" else "any", fused=True).mask_pass(spins, model, SHARE)
    began = time.perf_counter()
    found = fused.loss_and_contractions(tensor.frame())
    seconds = time.perf_counter() - began
    yield {"what": "fused pass", "size": length, "ms": 1e3 * median(fused, tensor), "first call s": seconds}
    del fused
    soft = passes.soft_spins(tensor.frame())
    passes.loss_and_contractions(tensor.frame(), soft)
    yield {"what": "thinned pass", "size": length, "ms": 1e3 * median(passes, tensor, soft)}
    if not compare:
        return
    yield from gibbs_sweeps(tensor, engine)
    threads = as_engine("threads")
    slow = threads.mask_pass(spins, model, SHARE)
    wanted = slow.loss_and_contractions(tensor.frame())
    off = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found[1], wanted[1]))
    milliseconds = 1e3 * median(slow, tensor)
    yield {
        "what": threads.label,
        "size": length,
        "ms": milliseconds,
        "loss apart": abs(found[0] / wanted[0] - 1),
        "sums apart": off,
    }
    began = time.perf_counter()
    other = IsingPropensity(coupling=STRENGTH, rank=RANK).fit(mask, SHARE, engine="threads")
    seconds = time.perf_counter() - began
    gap = float((fit.parameter - other.parameter).norm() / other.parameter.norm())
    apart = abs(fit.loss / other.loss - 1)
    yield {"what": "threads' fit", "size": length, "seconds": seconds, "loss apart": apart, "parameter apart": gap}


def gibbs_sweeps(tensor: TensorTrain, engine: str) -> Iterator[Row]:
    """Twenty sweeps on the device and on the threads, from the same numbers."""
    parameter = tensor.to_dense().astype(np.float32)
    around = resolve("adjacent", parameter.shape)
    colours = around.colours(parameter.shape)
    neighbours = around.offsets, around.periodic, colours.number, colours.phases
    plan = gibbs.prepare(parameter, parameter, Product(STRENGTH), *neighbours)
    spins = np.where(parameter > 0, np.int8(1), np.int8(-1))
    device = Accelerator("gpu" if engine == "gpu" else "any")
    device.sweep(plan, spins, 20, 3)
    began = time.perf_counter()
    found = device.sweep(plan, spins, 20, 3)
    seconds = time.perf_counter() - began
    gibbs.sweep(plan, spins, 1, 3, threads=default_threads())
    began = time.perf_counter()
    wanted = gibbs.sweep(plan, spins, 20, 3, threads=default_threads())
    slow = time.perf_counter() - began
    apart = float((found != wanted).mean())
    yield {"what": "20 sweeps", "size": tensor.shape[0], "seconds": seconds, "threads s": slow, "spins apart": apart}


def ising(mask: np.ndarray) -> tuple[np.ndarray, Model]:
    """Spins and the model the fits use."""
    around, code = resolve("adjacent", mask.shape), Product(STRENGTH).code()
    return np.where(mask, np.int8(1), np.int8(-1)), Model(code.kind, code.terms, 0, around.offsets, around.periodic)


def masks(length: int) -> tuple[TensorTrain, np.ndarray]:
    """A tensor train and a training mask drawn from it, plane by plane."""
    tensor = TensorTrain.random((length,) * 3, RANK, 1)
    tensor = tensor * (np.sqrt(tensor.size) / tensor.norm())
    mask = np.empty(tensor.shape, bool)

    def plane(p: int) -> None:
        rng = np.random.default_rng([7, p])
        odds = np.exp(-tensor.slab(p, p + 1).astype(np.float32))
        mask[p] = rng.random(odds.shape[1:], np.float32) * (1 + odds[0]) < np.float32(SHARE)

    for _ in in_order(plane, range(length)):
        pass
    return tensor, mask


def median(passes: Any, tensor: TensorTrain, *more: object) -> float:
    """Median wall-clock seconds of a pass."""
    frame, seconds = tensor.frame(), []
    for _ in range(9):
        began = time.perf_counter()
        passes.loss_and_contractions(frame, *more)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
