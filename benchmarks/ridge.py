"""The ridge that grows with the parameters per entry against one of 0.02: `python benchmarks/ridge.py 40 10`.

Side and number of fresh draws of B*. Ranks are searched; the completion is taken as perfect, so that mis-coverage is
that of the weights. Prints a Markdown table; eight cells, half a minute of one core a draw.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from corten import simulate
from corten.conformal import CalibratedScores, ExactIsingWeights, OddsWeights, Weights, as_score
from corten.propensity import FittedPropensity, IsingPropensity, Product, Zero

SHARE = 0.7
STRENGTH = 1 / 15
LEVELS = np.round(np.arange(0.80, 0.995, 0.01), 2)
RIDGES: tuple[str | float, ...] = (0.02, "auto")


def miscoverage(law: FittedPropensity, parameter: np.ndarray, mask: np.ndarray, train: np.ndarray, seed: int) -> float:
    """Mis-coverage in percent under adversarial noise, the scores being the noise itself."""
    spread = 0.5 * (1.0 + np.exp(-parameter))
    scores = np.abs(spread * np.random.default_rng([seed, 3]).standard_normal(parameter.shape)).reshape(-1)
    hidden, missing = np.flatnonzero(mask & ~train), np.flatnonzero(~mask)
    odds = law.log_weights(mask)
    weights: Weights = OddsWeights(odds)
    if not law.independent:
        near, pair = law.neighbours, law.pair
        weights = ExactIsingWeights(odds, shape=mask.shape, calibration=hidden, neighbours=near, pair=pair)
    calibrated = CalibratedScores(as_score("absolute"), scores[hidden], hidden, weights)
    _, upper = calibrated.intervals(missing, np.zeros(missing.size), np.ones(missing.size), tuple(LEVELS))
    return 100 * float(np.abs((scores[missing] <= upper).mean(axis=1) - LEVELS).mean())


def draw(model: str, side: int, rank: int, seed: int) -> list[tuple[float, float, float]]:
    """Chosen rank, relative error and mis-coverage of one draw, for each ridge."""
    parameter = simulate.block_parameter((side,) * 3, rank, 900_000 + seed)
    if model == "Ising":
        mask = simulate.ising(parameter, STRENGTH, sweeps=401, burn_in=400, thin=1, samples=1, seed=seed)
        mask = mask.reshape(parameter.shape)
    else:
        mask = simulate.bernoulli(parameter, seed=seed)
    train = mask & (np.random.default_rng([seed, 2]).random(mask.shape) < SHARE)
    found = []
    for ridge in RIDGES:
        coupling = Product(STRENGTH) if model == "Ising" else Zero()
        law = IsingPropensity(coupling, ridge=ridge).fit(train, SHARE)
        error = float(np.linalg.norm(law.parameter.to_dense() - parameter) / np.linalg.norm(parameter))
        found.append((float(max(law.rank)), error, miscoverage(law, parameter, mask, train, seed)))
    return found


def gap(values: Iterable[float], digits: int) -> str:
    found = np.array(list(values))
    return f"{found.mean():+.{digits}f} ± {found.std(ddof=1) / np.sqrt(found.size):.{digits}f}"


if __name__ == "__main__":
    side, draws = (int(text) for text in sys.argv[1:3])
    columns = ("model", "side", "rank of B", "n", "rank, 0.02", "grown", "error, 0.02", "grown - 0.02")
    print("| " + " | ".join((*columns, "mis-coverage %, 0.02", "grown - 0.02")) + " |")
    print("|" + "---|" * 10)
    for model in ("Bernoulli", "Ising"):
        for rank in (3, 5, 7, 9):
            runs = np.array([draw(model, side, rank, 100 * k + rank) for k in range(draws)])
            small, grown = runs[:, 0].mean(axis=0), runs[:, 1].mean(axis=0)
            change = runs[:, 1] - runs[:, 0]
            print(
                f"| {model} | {side} | {rank} | {draws} | {small[0]:.1f} | {grown[0]:.1f} | {small[1]:.3f} | "
                f"{gap(change[:, 1], 3)} | {small[2]:.2f} | {gap(change[:, 2], 2)} |",
                flush=True,
            )
