"""What a learned scale gains: width and coverage of `score="adaptive"` and "normalized" beside "absolute".

    python benchmarks/adaptive_score.py 40 10     (size, data sets)

The paper's settings, noise constant and adversarial, and a setting whose stations (slices of the first axis) have
noises of their own. `at equal coverage`: the ratio of mean widths with every score's cutoff moved to where it covers
90 % of the missing entries exactly.
"""

from __future__ import annotations

import sys

import numpy as np

import corten
from corten import simulate
from corten.evidence import metrics

SCORES = ("absolute", "adaptive", "normalized")


def drawn(size: int, model: str, noise: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The truth with its noise, and what is observed of it."""
    kind = "constant" if noise == "by station" else noise
    setting = simulate.paper_setting(size, 3, model=model, noise=kind, seed=seed)
    data = setting.data
    if noise == "by station":
        spread = np.exp(np.random.default_rng(seed).normal(scale=0.7, size=(size, 1, 1)))
        data = setting.truth_signal + spread * (setting.data - setting.truth_signal)
    return data, np.where(setting.mask, data, np.nan)


def measured(size: int, model: str, noise: str, seed: int) -> list[tuple[float, float, float]]:
    """For each score its coverage at 90 %, mean width, and mean width where it covers 90 % exactly."""
    truth, x = drawn(size, model, noise, seed)
    law = corten.IsingPropensity(1 / 15, rank=3) if model == "ising" else corten.BernoulliPropensity(rank=3)
    found = []
    for score in SCORES:
        fitted = corten.ConformalCompleter(
            corten.TuckerCompletion(rank=3), law, "random", score=score, seed=seed
        ).fit(x)
        result, where = fitted.intervals(0.9), fitted.missing_entries
        unit = fitted.calibrated.scale.at(where)
        errors = np.abs(truth.reshape(-1)[where] - fitted.estimate.reshape(-1)[where]) / unit
        equal = 2.0 * float(np.quantile(errors, 0.9)) * float(unit.mean())
        found.append((metrics.coverage(truth, result), metrics.width(result), equal))
    return found


def main(size: int, sets: int) -> None:
    print(f"{sets} data sets of {size}^3, 90 % asked; +- is the standard error over data sets\n")
    print("| missingness | noise | score | coverage | width / absolute | at equal coverage |")
    print("|---|---|---|---|---|---|")
    for model in ("bernoulli", "ising"):
        for noise in ("constant", "adversarial", "by station"):
            found = np.array([measured(size, model, noise, seed) for seed in range(sets)])
            for place, score in enumerate(SCORES):
                shown = [found[:, place, 0] * 100]
                shown += [found[:, place, k] / found[:, 0, k] for k in (1, 2)]
                mean, error = [one.mean() for one in shown], [one.std(ddof=1) / np.sqrt(sets) for one in shown]
                cells = f"{mean[0]:.2f} +- {error[0]:.2f} % | {mean[1]:.3f} +- {error[1]:.3f} | "
                print(f"| {model} | {noise} | {score} | {cells}{mean[2]:.3f} +- {error[2]:.3f} |", flush=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:3]) if len(sys.argv) > 2 else (40, 10))
