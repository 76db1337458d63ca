"""The answers that must not change unnoticed: small fits of every kind, as bits (a hash) and as numbers.

Run as a program it prints them as JSON. `tests/test_determinism.py` compares processes by bits, and with the stored
numbers by a tolerance; stored bits are those of the machine that stored them and are not compared.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

import corten

SHAPE = (10, 9, 8)
COMPLETERS = {
    "split": corten.ConformalCompleter(
        corten.TuckerCompletion(rank=2), corten.IsingPropensity(0.05, rank=1, ridge=0.5), "random", seed=1
    ),
    "auto ranks": corten.ConformalCompleter("tensor-train", "bernoulli", "random", "normalized", seed=2),
    "gaps": corten.ConformalCompleter(
        corten.StackedCompletion({"smooth": corten.SmoothCompletion(), "process": corten.GaussianProcessCompletion()}),
        "uniform",
        corten.GapCalibration(rounds=2),
        seed=3,
    ),
    "cross": corten.ConformalCompleter(
        "smooth", corten.BernoulliPropensity(rank=1, ridge=0.06), corten.CrossCalibration(folds=3), "signed", seed=4
    ),
}


def data(patches: bool = False) -> np.ndarray:
    """A smooth field with some noise and gaps, here and there or in patches."""
    a, b, c = np.indices(SHAPE)
    field = np.sin(0.4 * a) * np.cos(0.3 * b) + 0.2 * np.sin(0.5 * c + 0.1 * a)
    x = field + 0.2 * np.random.default_rng(7).uniform(-0.5, 0.5, SHAPE)
    masks = corten.simulate.masks
    seen = masks.patch_mask(SHAPE, 0.35, size=1.2, seed=5) if patches else masks.random_mask(SHAPE, 0.35, seed=5)
    return np.where(seen, x, np.nan)


def answers(engine: Any = "auto") -> dict[str, dict[str, Any]]:
    """Every fit's hash of all bits, and numbers of it: estimates and ends of some filled cells, counts."""
    from dataclasses import replace

    found: dict[str, dict[str, Any]] = {}
    for name, completer in COMPLETERS.items():
        x = data(patches=name == "gaps")
        cells = np.flatnonzero(np.isnan(x))[:: np.isnan(x).sum() // 8]
        fitted = replace(completer, engine=engine).fit(x)
        result = fitted.intervals(0.8)
        arrays = [result.estimate_array, result.lower_array, result.upper_array, result.draws(1, seed=0)]
        found[name] = {
            "bits": _hash(*arrays),
            "estimate": result.estimate_array.reshape(-1)[cells].tolist(),
            "half width": [_plain(w / 2) for w in result.width_array.reshape(-1)[cells]],
            "infinite": int(np.isinf(result.width_array).sum()),
            "effective size": float(fitted.calibrated.effective_sample_size()),
        }
    parameter = np.sin(np.arange(2000.0)).reshape(20, 10, 10)
    mask = corten.simulate.ising(parameter, sweeps=40, seed=6, threads=getattr(engine, "count", None) or None)
    found["gibbs"] = {"bits": _hash(mask), "seen": int(mask.sum())}
    return found


def _hash(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _plain(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


if __name__ == "__main__":
    print(json.dumps(answers(), indent=1))
