"""Which start spares the fit of the missingness most: `python benchmarks/starts.py [archive.npz:mask:rank ...]`.

Simulated masks always; further masks (1: observed) from NumPy archives, by name of the array and rank of the fit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from corten.engine import Model, as_engine
from corten.lowrank import TensorTrain, check_rank
from corten.lowrank.descent import spectral_start
from corten.propensity.coupling import Coupling, Product, Zero
from corten.propensity.estimation import Estimate, Recipe, estimate
from corten.propensity.fitted import spins_of
from corten.propensity.neighborhood import resolve
from corten.simulate import block_parameter, ising, tec_like

SHARE = 0.7
RECIPE = Recipe(ridge=0.02)
ENGINE = as_engine("auto")
Start = tuple[TensorTrain, float]  # where the descent begins, and the passes over the whole mask that took


@dataclass(frozen=True)
class SmoothedFrame:
    """A frame with its cores averaged along their modes: contracting it is contracting the averaged mask."""

    left: tuple[np.ndarray, ...]
    right: tuple[np.ndarray, ...]


def averaged(core: np.ndarray, times: int) -> np.ndarray:
    """Three-point averages along the mode, ends repeated."""
    for _ in range(times):
        wide = np.concatenate([core[:, :1], core, core[:, -1:]], axis=1)
        core = (wide[:, :-2] + core + wide[:, 2:]) / 3
    return core


def spectral(spins: np.ndarray, rank: int, seed: int, iterations: int = 4, smoothing: int = 0) -> Start:
    """The power iteration from a random guess, of the mask itself or averaged `smoothing` times."""
    data = ENGINE.residual_pass(spins, spins)

    def contract(frame):  # type: ignore[no-untyped-def]
        seen = SmoothedFrame(*(tuple(averaged(c, smoothing) for c in cores) for cores in (frame.left, frame.right)))
        return [averaged(d, smoothing) for d in data.contractions_of_data(seen)[1]]

    guess = TensorTrain.random(spins.shape, check_rank(spins.shape, rank), seed)
    return spectral_start(contract, guess, iterations), data.passes


def coarse(spins: np.ndarray, rank: int, seed: int, interpolate: bool) -> Start:
    """Fit every second index of the long modes, then interpolate the cores, or learn the rest in one full pass."""
    kept = [np.arange(0, d, 2 if d >= 16 else 1) for d in spins.shape]
    small = np.ascontiguousarray(spins[np.ix_(*kept)])
    begin, passes = spectral(small, rank, seed)
    # two steps apart there are no neighbours to speak of: independent missingness
    fit = fitted(small, Zero(), (begin, passes), replace(RECIPE, thinning=False, tolerance=1e-5))
    point, spent = fit.train, fit.passes * small.size / spins.size
    cores = [np.zeros((c.shape[0], d, c.shape[2])) for c, d in zip(point.cores, spins.shape)]
    for wide, core, at, d in zip(cores, point.cores, kept, spins.shape):
        wide[:, at] = core
        if interpolate:
            for left, right in np.ndindex(core.shape[0], core.shape[2]):
                wide[left, :, right] = np.interp(np.arange(d), at, core[left, :, right])
    if interpolate:
        return TensorTrain(tuple(cores)), spent
    data = ENGINE.residual_pass(spins, spins)
    found = spectral_start(lambda f: data.contractions_of_data(f)[1], TensorTrain(tuple(cores)), 1)
    there = TensorTrain(tuple(c[:, at] for c, at in zip(found.cores, kept)))
    return found * (point.norm() / there.norm()), spent + data.passes


STARTS: dict[str, Callable[[np.ndarray, int, int], Start]] = {
    "spectral": spectral,
    "six iterations": lambda w, r, s: spectral(w, r, s, iterations=6),
    "averaged once": lambda w, r, s: spectral(w, r, s, smoothing=1),
    "averaged twice": lambda w, r, s: spectral(w, r, s, smoothing=2),
    "coarse, one pass": lambda w, r, s: coarse(w, r, s, interpolate=False),
    "coarse, interpolated": lambda w, r, s: coarse(w, r, s, interpolate=True),
}


def fitted(spins: np.ndarray, coupling: Coupling, start: Start, recipe: Recipe) -> Estimate:
    """Fit from a start; the passes of both."""
    around, code = resolve("adjacent", spins.shape), coupling.code()
    model = Model(code.kind, code.terms, 0, around.offsets, around.periodic)
    fit = estimate(ENGINE.mask_pass(spins, model, SHARE), start[0], recipe=recipe)
    return replace(fit, passes=fit.passes + start[1])  # type: ignore[arg-type]


def training(mask: np.ndarray, seed: int) -> np.ndarray:
    """The spins of a random training part."""
    return spins_of(mask & (np.random.default_rng([seed, 5]).random(mask.shape) < SHARE), None)


def cases(archives: list[str]) -> Iterator[tuple[str, int, list[tuple[np.ndarray, np.ndarray | None]]]]:
    """Name, rank, and (spins, parameter where known) of every draw."""
    for side, draws, mixed in ((40, 5, False), (60, 5, False), (60, 5, True), (100, 5, False), (200, 2, False)):
        made: list[tuple[np.ndarray, np.ndarray | None]] = []
        for seed in range(draws):
            truth = block_parameter((side,) * 3, 3, seed + 100)
            if mixed:
                rng = np.random.default_rng(seed)
                truth = truth[np.ix_(*(rng.permutation(side) for _ in range(3)))]
            made.append((training(ising(truth, Product(1 / 15), sweeps=200, seed=seed), seed), truth))
        yield f"Ising {side}^3" + (", indices shuffled" if mixed else ""), 3, made
    yield "simulated TEC", 5, [(training(tec_like(seed=s).mask, s), None) for s in range(5)]
    for path, name, rank in (archive.rsplit(":", 2) for archive in archives):
        mask = np.load(path)[name] > 0
        yield f"{path.rsplit('/', 1)[-1]}, {name}", int(rank), [(training(mask, s), None) for s in range(5)]


def main() -> None:
    for title, rank, draws in cases(sys.argv[1:]):
        print(f"\n{title}, rank {rank}, {len(draws)} draws; CPU seconds; loss relative to the first row's")
        reference: list[Estimate] = []
        for name, begin in STARTS.items():
            begin(draws[0][0][:20, :20, :20], rank, 0)  # compile
            clock, fits = time.process_time(), []
            for seed, (spins, _) in enumerate(draws):
                fits.append(fitted(spins, Product(1 / 15), begin(spins, rank, seed), RECIPE))
            seconds = (time.process_time() - clock) / len(draws)
            reference = reference or fits
            more = np.array([f.passes - r.passes for f, r in zip(fits, reference)])
            loss = np.mean([f.loss / r.loss - 1 for f, r in zip(fits, reference)])
            errors = [np.linalg.norm(f.train.to_dense() - b) / np.linalg.norm(b) for f, (_, b) in zip(fits, draws)
                      if b is not None]  # fmt: skip
            print(
                f"{name:22s}{np.mean([f.passes for f in fits]):7.1f} passes ({more.mean():+6.1f}, standard error "
                f"{more.std(ddof=1) / len(more) ** 0.5:4.1f}){seconds:8.2f} s   loss {loss:+.0e}   error "
                + (f"{np.mean(errors):.4f}" if errors else "-"),
                flush=True,
            )


if __name__ == "__main__":
    main()
