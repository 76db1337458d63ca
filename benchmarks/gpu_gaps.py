"""Completion with pseudo-gaps on a GPU: seconds of every stage, memory of the device, and the scores of the intervals.

    python -m benchmarks gpu_gaps                           TEC day and 181 x 361 x 288, engine gpu
    python -m benchmarks gpu_gaps --cases tec --engines gpu threads
    python -m benchmarks gpu_gaps --cases small --engines jax threads     a small field, where there is no GPU

Each case and engine runs in a process of its own: a cold fit, then a warm one. The TEC day is looked for in
`../shared/data`, or in the folder that CORTEN_DATA names; the other fields are simulated. Writes $OUT/gpu_gaps.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(os.environ.get("CORTEN_DATA", Path(__file__).parents[2] / "shared" / "data"))
COVERAGE = 0.9


def tec() -> tuple[np.ndarray, np.ndarray]:
    """Total electron content over North America in one day: truth and mask."""
    data = np.load(DATA / "tec_namerica_20190425-26.npz")
    return data["tec"][:, :, :96].astype(np.float64), data["mask"].astype(bool)


def simulated(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """A sum of moving waves of many lengths with noise, hidden under clouds that move: truth and mask."""
    rng = np.random.default_rng(0)
    grid = [np.linspace(0, 1, n, dtype=np.float32) for n in shape]
    truth = np.zeros(shape, np.float32)
    clouds = np.zeros(shape, np.float32)
    for field, waves, power in ((truth, 40, 1.5), (clouds, 40, 1.0)):
        for _ in range(waves):
            size = 2 ** rng.uniform(0.5, 5)
            k = size * rng.standard_normal(3)
            phase = rng.uniform(0, 2 * np.pi)
            # A wave is the real part of a product of three vectors.
            a, b, c = (
                np.exp(1j * (2 * np.pi * f * g).astype(np.float32)).astype(np.complex64) for f, g in zip(k, grid)
            )
            plane = (np.exp(1j * phase) * a[:, None] * b).astype(np.complex64)
            field += np.float32(size**-power) * (plane.real[:, :, None] * c.real - plane.imag[:, :, None] * c.imag)
    truth /= truth.std()
    truth += 0.05 * rng.standard_normal(shape, dtype=np.float32)
    return 20 + 5 * truth.astype(np.float64), clouds < np.quantile(clouds, 0.6)


CASES = {
    "tec": tec,
    "global": lambda: simulated((181, 361, 288)),
    "small": lambda: simulated((20, 24, 22)),
    "middle": lambda: simulated((60, 90, 70)),
}


@contextmanager
def timed(found: dict[str, float], names: dict[str, tuple[Any, str]]) -> Iterator[None]:
    """Inside, the seconds of these functions (module, name) are added up by stage."""
    before = {stage: getattr(owner, name) for stage, (owner, name) in names.items()}

    def wrapped(stage: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return before[stage](*args, **more)
            finally:
                spent = time.perf_counter() - began
                found[stage] = found.get(stage, 0.0) + spent
                if spent > 1:
                    print(f"{spent:18.2f} s  {stage}", file=sys.stderr, flush=True)

        return call

    for stage, (owner, name) in names.items():
        setattr(owner, name, wrapped(stage))
    try:
        yield
    finally:
        for stage, (owner, name) in names.items():
            setattr(owner, name, before[stage])


def measure(case: str, engine: str, seeds: int) -> Iterator[dict[str, Any]]:
    """A cold fit and `seeds` warm ones; stages overlap where threads run beside the device, and some contain others."""
    import corten
    from corten.calibration import device_rounds, gap_rounds, gap_scale, gaps
    from corten.completion import batched, gaussian_process, stack, unfoldings
    from corten.completion.gaussian_process import PreparedProcess
    from corten.conformal.local_scale import LearnedScale
    from corten.data.observed import ObservedTensor
    from corten.evidence.metrics import interval_scores

    warnings.simplefilter("ignore")
    truth, mask = CASES[case]()
    x = np.where(mask, truth, np.nan)
    stages: dict[str, tuple[Any, str]] = {
        "observed": (ObservedTensor, "of"),
        "model of the mask": (gaps, "_model_of_mask"),
        "masks drawn": (gaps, "draw_masks"),
        "plan": (gaps.GapCalibration, "_plan_with"),
        "settings": (stack.StackedCompletion, "prepare"),
        "- covariance": (gaussian_process, "fit_covariance"),
        "- noise": (gaussian_process, "_with_tested_noise"),
        "- low rank": (unfoldings, "held_out_errors"),
        "- first mix": (stack, "_learn_mix"),
        "rounds and final fill": (gaps, "run_rounds"),
        "- standardise": (stack, "standardise"),
        "- pyramid": (batched, "pyramid"),
        "- coarse grid": (PreparedProcess, "coarse_start"),
        "- Gaussian process": (batched, "conditioned"),
        "- low-rank member": (batched, "minimise"),
        "- features": (device_rounds, "scored_on_device"),
        "- mix": (gap_rounds, "cross_fitted_mix"),
        "learned scale": (gaps, "learn_locally"),
        "missing described": (device_rounds, "_around_missing"),
        "at missing": (gap_scale.Local, "at_missing"),
        "- trees": (LearnedScale, "predict"),
    }
    for number, label in enumerate(["cold", *["warm"] * seeds]):
        seconds: dict[str, float] = {}
        began = time.perf_counter()
        with timed(seconds, stages):
            completer = corten.ConformalCompleter(
                calibration=corten.GapCalibration(), engine=engine, seed=max(number - 1, 0)
            )
            fitted = completer.fit(x, progress=said(began))
            fit = time.perf_counter() - began
            intervals = fitted.intervals(COVERAGE)
        total = time.perf_counter() - began
        missing = ~mask
        low, high, middle = (np.asarray(one)[missing] for one in (intervals.lower, intervals.upper, intervals.estimate))
        row: dict[str, Any] = {
            "case": case,
            "engine": engine,
            "run": label,
            "seed": max(number - 1, 0),
            "seconds": total,
            "fit": fit,
        }
        row |= {stage: seconds[stage] for stage in stages if stage in seconds}
        row |= {
            "MAE": float(np.abs(middle - truth[missing]).mean()),
            "coverage": float(((low <= truth[missing]) & (truth[missing] <= high)).mean()),
            "interval score": float(interval_scores(truth[missing], low, high, COVERAGE).mean()),
        }
        for one in fitted.choices:
            if one.what == "rounds run on":
                row |= {"ran on": one.taken, "device bytes said": one.values.get("device_bytes"), "why": one.because}
        row |= {"device bytes peak": device_peak(engine)}
        yield row


def said(began: float) -> Any:
    """Prints a stage when it begins, with the seconds since `began`."""
    stages: list[str] = []

    def tell(stage: str, share: float) -> None:
        if stage not in stages[-1:]:
            stages.append(stage)
            print(f"{time.perf_counter() - began:8.2f} s  {stage}", file=sys.stderr, flush=True)

    return tell


def device_peak(engine: str) -> int | None:
    """Peak bytes in use on the first JAX device."""
    if engine not in ("jax", "gpu"):
        return None
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--cases", nargs="*", default=["tec", "global"], choices=list(CASES))
    asked.add_argument("--engines", nargs="*", default=["gpu"])
    asked.add_argument("--warm", type=int, default=1, help="warm fits, with seeds 0, 1, ...")
    asked.add_argument("--one", nargs=2, help="run one case and engine here, one JSON row a line")
    options = asked.parse_args()
    if options.one:
        for row in measure(*options.one, options.warm):
            print(json.dumps(row), flush=True)
        return
    found = []
    for case in options.cases:
        for engine in options.engines:
            command = [sys.executable, "-m", "benchmarks.gpu_gaps", "--one", case, engine, "--warm", str(options.warm)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
                assert running.stdout is not None
                for line in running.stdout:
                    found.append(json.loads(line))
                    print(
                        "\n".join(
                            f"{k:24} {v:.4g}" if isinstance(v, float) else f"{k:24} {v}" for k, v in found[-1].items()
                        )
                    )
                    print(flush=True)
            if "OUT" in os.environ:
                Path(os.environ["OUT"], "gpu_gaps.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
