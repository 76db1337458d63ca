"""Load: many fits at once from threads and processes, and very many one after another."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import corten

__all__ = ["soak", "together"]


def data(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 1, 1)) * rng.normal(size=(6, 1)) * rng.normal(size=6) + 0.1 * rng.normal(size=(6, 6, 6))
    x[rng.random(x.shape) < 0.3] = np.nan
    return x


def answer(seed: int) -> bytes:
    """All bits of the answer to a small problem; every third is weighted by a fitted law of the missingness."""
    law: Any = corten.BernoulliPropensity(rank=1) if seed % 3 == 0 else "uniform"
    result = corten.complete(data(seed), completion=corten.TuckerCompletion(1), propensity=law, calibration="random")
    return b"".join(np.asarray(one).tobytes() for one in (result.estimate, result.lower, result.upper))


def small_fit(k: int) -> None:
    """One of many small fits: most are quick, one in twenty takes every part of the way."""
    completion: Any = "smooth"
    law: Any = "uniform"
    if k % 20 == 0:
        completion, law = corten.TuckerCompletion(1), corten.BernoulliPropensity(rank=1)
    elif k % 20 in (5, 10, 15):
        completion = corten.TensorTrainCompletion(1)
    corten.complete(data(k % 50), completion=completion, propensity=law, calibration="random").summary()


def together(count: int, seed: int, processes: int = 4) -> dict[str, Any]:
    """The same fits one after another, from 8 threads, from forked and from fresh processes: are all bits equal?"""
    seeds = range(seed, seed + count)
    serial = [answer(one) for one in seeds]
    with ThreadPoolExecutor(8) as pool:
        threads = list(pool.map(answer, seeds))
    found = {"calls": count, "threads_equal": sum(a == b for a, b in zip(serial, threads, strict=True))}
    for how in ("fork", "spawn"):
        with ProcessPoolExecutor(processes, mp_context=get_context(how)) as pool:
            others = list(pool.map(answer, seeds, chunksize=4))
        found[f"{how}_equal"] = sum(a == b for a, b in zip(serial, others, strict=True))
    return found


def resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


WARM = 200  # fits after which everything is compiled, loaded and cached that ever will be
BOUND = 16 * 2**20  # bytes that very many fits may add to what a warm process holds: less than 2 kB a fit of 10,000


def soak(count: int, seed: int) -> dict[str, Any]:
    """Small fits one after another: the memory held by the process when warm, in the middle and at the end.

    The slope over the second half, with its standard error, tells a steady leak from memory that is held once.
    """
    began, at, held = time.monotonic(), [], []
    for k in range(count + 1):
        late = k >= count // 2 and (k - count // 2) % max(1, count // 40) == 0
        if late or k in (min(WARM, count // 2), count):
            gc.collect()
            at.append(k)
            held.append(resident())
        if k < count:
            small_fit(seed + k)
    second = [(k, size) for k, size in zip(at, held, strict=True) if k >= count // 2]
    line, covariance = np.polyfit(*np.array(second, float).T, 1, cov=True)
    return {
        "fits": count,
        "start": held[0],
        "middle": second[0][1],
        "end": held[-1],
        "grown": held[-1] - held[0],
        "bound": BOUND,
        "slope": float(line[0]),
        "error": float(np.sqrt(covariance[0, 0])),
        "seconds": time.monotonic() - began,
    }
