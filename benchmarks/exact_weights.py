"""How far approximate Ising weights lie from exact ones, entry by entry: python benchmarks/exact_weights.py [--tec
FILE].

Prints, for each mask and coupling, quantiles over the missing entries of the bound on |F* - F| (design 3.10), and
how often and how much the 90 % cutoffs differ. Scores are random: the numbers speak of weights alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import corten
from corten.conformal import CalibratedScores, ExactIsingWeights, OddsWeights, WeightedScores, weight_gap
from corten.simulate import paper_setting

SHARE = 0.7


def compare(mask: np.ndarray, law: object, seed: int = 0) -> dict[str, float]:
    """Bound on the distance of both score laws at every missing entry, and what it does to cutoffs."""
    rng = np.random.default_rng(seed)
    entries = np.flatnonzero(mask & (rng.random(mask.shape) >= SHARE))
    missing = np.flatnonzero(~mask)
    odds = law.log_weights(mask)
    exact = ExactIsingWeights(
        odds, shape=mask.shape, calibration=entries, neighbours=law.neighbours, pair=law.pair
    )
    scores = rng.exponential(size=entries.size)
    gap = weight_gap(
        WeightedScores(scores, exact.log_weight(entries)), exact.log_weight(missing), exact.neighbour_factor(missing)
    )
    cuts = [
        CalibratedScores("absolute", scores, entries, weights).intervals(missing, 0.0, 1.0, 0.9)[1][0]
        for weights in (exact, OddsWeights(odds))
    ]
    both = np.isfinite(cuts[0]) & np.isfinite(cuts[1])
    moved = np.abs(cuts[0][both] / cuts[1][both] - 1)
    return {
        "entries": float(missing.size),
        "bound median": float(np.median(gap)),
        "bound 99 %": float(np.quantile(gap, 0.99)),
        "bound largest": float(gap.max()),
        "cutoffs that differ": float(np.mean(cuts[0] != cuts[1])),
        "largest change": float(moved.max(initial=0.0)),
        "infinite exact": float(np.mean(np.isinf(cuts[0]))),
        "infinite approximate": float(np.mean(np.isinf(cuts[1]))),
    }


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--tec", type=Path, default=Path("../shared/data/tec_namerica_20190425-26.npz"))
    given = reader.parse_args()
    masks = {"simulated 40^3": (paper_setting(40, 3, seed=0).mask, (1 / 15, 0.3))}
    if given.tec.exists():
        masks["TEC 50 x 115 x 96"] = (np.load(given.tec)["mask"].astype(bool), (1 / 15, 0.3, 1.25))
    for name, (mask, couplings) in masks.items():
        train = mask & (np.random.default_rng(1).random(mask.shape) < SHARE)
        for coupling in couplings:
            law = corten.IsingPropensity(coupling=coupling, rank=3).fit(train, SHARE)
            found = compare(mask, law)
            words = ", ".join(f"{k} {v:.3g}" for k, v in found.items())
            print(f"{name}, coupling {coupling:.3g}: {words}", flush=True)


if __name__ == "__main__":
    main()
