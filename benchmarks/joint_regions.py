"""Joint bands for whole maps: how often all missing entries of a map lie inside at once, and how wide the band is.

    python benchmarks/joint_regions.py 40 0     (data sets per setting, half as many of the paper's; first seed)

Beside it the entrywise band, which is not made for the question, and Bonferroni's, each entry of a map with m missing
ones at level 1 - 0.1/m. Errors are simulated (the completion is zero), but for the paper's setting.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.ndimage import gaussian_filter

import corten
from corten import simulate
from corten.results.fitted import Fitted

ZERO = np.zeros_like
SETTINGS = {
    "80 maps of 10 x 10, errors independent": {"shape": (80, 10, 10)},
    "80 maps of 10 x 10, common part 0.7": {"shape": (80, 10, 10), "common": 0.7},
    "80 maps of 10 x 10, common part 3": {"shape": (80, 10, 10), "common": 3.0},
    "the same, large errors where entries go missing": {"shape": (80, 10, 10), "common": 3.0, "uneven": True},
    "40 maps of 20 x 20, smooth errors": {"shape": (40, 20, 20), "smooth": 3.0},
    "20 maps of 20 x 20, common part 1": {"shape": (20, 20, 20), "common": 1.0},
    "the same, five folds": {"shape": (20, 20, 20), "common": 1.0, "calibration": "cross"},
}


def drawn(
    seed: int, shape: tuple[int, int, int], common: float = 0.0, smooth: float = 0.0, uneven: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of every map, what is observed of them, and the parameter of the missingness."""
    rng = np.random.default_rng(seed)
    errors = rng.normal(size=shape)
    if smooth:
        maps = np.stack([gaussian_filter(one, smooth, mode="wrap") for one in errors])
        errors = maps / maps.std() + 0.3 * rng.normal(size=shape)
    errors = errors + common * rng.normal(size=(shape[0], 1, 1))
    parameter = np.zeros(shape)
    if uneven:
        parameter = np.broadcast_to(np.linspace(-1.5, 1.5, shape[2]), shape)
        errors = errors * np.exp(-0.5 * parameter)
    mask = rng.random(shape) < 1 / (1 + np.exp(-parameter))
    return errors, np.where(mask, errors, np.nan), parameter


def simulated(seed: int, calibration: str = "random", **setting: object) -> tuple[np.ndarray, Fitted]:
    truth, x, parameter = drawn(seed, **setting)  # type: ignore[arg-type]
    law = corten.KnownPropensity(parameter)
    return truth, corten.ConformalCompleter(ZERO, law, calibration, seed=seed).fit(x)


def paper(seed: int, noise: str, score: str) -> tuple[np.ndarray, Fitted]:
    setting = simulate.paper_setting(30, 3, model="bernoulli", noise=noise, seed=seed)
    completer = corten.ConformalCompleter(
        corten.TuckerCompletion(rank=3), corten.BernoulliPropensity(rank=3), "random", score=score, seed=seed
    )
    return setting.data, completer.fit(setting.observed)


def bonferroni(fitted: Fitted, coverage: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends with every entry of a map with m missing ones at level 1 - (1 - c)/m."""
    lower, upper = np.array(fitted.estimate, np.float64), np.array(fitted.estimate, np.float64)
    maps = np.unravel_index(fitted.missing_entries, fitted.observed.shape)[0]
    for number in np.unique(maps):
        here = fitted.missing_entries[maps == number]
        wanted = 1 - (1 - coverage) / here.size
        ends = fitted.calibrated.intervals(here, wanted)
        lower.reshape(-1)[here], upper.reshape(-1)[here] = ends[0][0], ends[1][0]
    return lower, upper


def measured(truth: np.ndarray, fitted: Fitted) -> list[float]:
    """Shares of maps held by the entrywise band, Bonferroni's and the joint one; mean width of the joint band against
    Bonferroni's where both are finite; the share of entries where it is the narrower one; shares of infinite ends.
    """
    missing = fitted.observed.missing
    alone, joint = fitted.intervals(0.9), fitted.intervals(0.9, joint=0)
    bands = [(alone.lower_array, alone.upper_array), bonferroni(fitted, 0.9), (joint.lower_array, joint.upper_array)]
    held = [((low <= truth) & (truth <= high) | ~missing).all(axis=(1, 2)).mean() for low, high in bands]
    wide, own = ((bands[k][1] - bands[k][0])[missing] for k in (1, 2))
    both = np.isfinite(wide) & np.isfinite(own)
    ratio = own[both].mean() / wide[both].mean() if both.any() else np.nan
    return [*held, ratio, np.mean(own < wide), np.isinf(wide).mean(), np.isinf(own).mean()]


def main(sets: int = 40, first: int = 0) -> None:
    print(f"{sets} data sets each, {sets // 2} of the paper's, from seed {first}; 90 % asked; +- standard error\n")
    heads = (
        "held: entrywise",
        "Bonferroni",
        "joint",
        "width / Bonferroni",
        "narrower at",
        "infinite: Bonferroni",
        "joint",
    )
    print(f"| setting | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|")
    makers = {name: (lambda seed, of=of: simulated(seed, **of)) for name, of in SETTINGS.items()}
    for noise, score in (("constant", "absolute"), ("adversarial", "absolute"), ("adversarial", "adaptive")):
        name = f"the paper's, 30 maps of 30 x 30, {noise} noise, {score} score"
        makers[name] = lambda seed, noise=noise, score=score: paper(seed, noise, score)
    for name, make in makers.items():
        count = sets // 2 if name.startswith("the paper") else sets
        found = np.array([measured(*make(seed)) for seed in range(first, first + count)])
        both = np.isfinite(found[:, 3])
        mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(count)
        held = " | ".join(f"{100 * mean[k]:.1f} +- {100 * error[k]:.1f} %" for k in range(3))
        ratio = f"{found[both, 3].mean():.2f}" if both.any() else "-"
        print(f"| {name} | {held} | {ratio} | {mean[4]:.0%} | {mean[5]:.0%} | {mean[6]:.0%} |", flush=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:3]))
