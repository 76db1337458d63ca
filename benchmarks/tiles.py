"""Completion of a field larger than memory in tiles: `python -m benchmarks tiles 1000 1000 100 --memory "4 GB"`.

A synthetic sea surface with clouds and land is written to a Zarr store, filled from there, and compared plane by plane
with new measurements of the truth. Prints error, coverage, width, interval score, time and peak memory. With
`--compare N` the corner of N^2 places is completed in memory too.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import corten
from benchmarks.sea_surface import NOISE, SeaSurface

COVERAGE = 0.9


def scores(truth: np.ndarray, estimate: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Sums over entries: count, error against the truth; coverage, width and interval score of new measurements."""
    new = truth + NOISE * np.random.default_rng(truth.size).standard_normal(truth.shape, dtype=np.float32)
    width = (high - low).astype(float)
    outside = np.maximum(low - new, 0) + np.maximum(new - high, 0)
    parts = (np.abs(estimate - truth), outside <= 0, width, width + 2 / (1 - COVERAGE) * outside)
    return np.array([truth.size, *(float(np.sum(part)) for part in parts)])


def tell(name: str, sums: np.ndarray) -> None:
    error, covered, width, score = sums[1:] / sums[0]
    print(
        f"{name}: {sums[0]:,.0f} entries filled, MAE {error:.4f}, {covered:.2%} covered, width {width:.4f}, "
        f"interval score {score:.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=int, nargs=3)
    parser.add_argument("--memory", default="4 GB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", type=int, default=0)
    asked = parser.parse_args()
    import zarr

    shape = tuple(asked.shape)
    sea = SeaSurface(shape, asked.seed)
    with tempfile.TemporaryDirectory(prefix="corten-tiles-") as folder:
        data = zarr.create_array(Path(folder) / "sea.zarr", shape=shape, chunks=(8, *shape[1:]), dtype="f4")
        for start in range(0, shape[0], 8):
            stop = min(start + 8, shape[0])
            data[start:stop] = sea.observed(start, stop)
        began, worked = time.perf_counter(), time.process_time()
        filled = corten.complete_to_zarr(
            data, Path(folder) / "filled.zarr", COVERAGE, where=sea.sea[:, :, None], memory=asked.memory, say=print
        )
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{shape}: {seconds:.0f} s, {cpu:.0f} CPU s, peak {peak:.2f} GB with Python", flush=True)
        store = filled.open()
        names = [filled.variable, *(f"{filled.variable}_{end}" for end in ("lower", "upper"))]
        total = np.zeros(5)
        corner = np.zeros(5)
        for start in range(0, shape[0], 8):
            stop = min(start + 8, shape[0])
            gap = np.isnan(np.asarray(data[start:stop])) & sea.sea[start:stop, :, None]
            truth = sea.planes(start, stop)
            arrays = [store[name][start:stop].values for name in names]
            total += scores(truth[gap], *(array[gap] for array in arrays))
            if start < asked.compare:
                gap[max(0, asked.compare - start) :] = False
                gap[:, asked.compare :] = False
                corner += scores(truth[gap], *(array[gap] for array in arrays))
        tell("from disk", total)
        if asked.compare:
            n = asked.compare
            tell("from disk, corner", corner)
            x, where = np.asarray(data[:n])[:, :n], np.broadcast_to(sea.sea[:n, :n, None], (n, n, shape[2]))
            kinds = dict.fromkeys((0, 1, 2), "ordered")
            result = corten.complete(x, COVERAGE, where=where, calibration="gaps", axis_kinds=kinds)
            gap = np.isnan(x) & where
            tell(
                "in memory, corner",
                scores(sea.planes(0, n)[:, :n][gap], result.estimate[gap], result.lower[gap], result.upper[gap]),
            )


if __name__ == "__main__":
    main()
