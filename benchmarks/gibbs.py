"""How fast a Gibbs sweep is against a vectorised NumPy checkerboard: `python benchmarks/gibbs.py [side]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from corten.engine import gibbs
from corten.propensity.coupling import Coupling, Product, Sigmoid
from corten.propensity.neighborhood import resolve
from corten.simulate import block_parameter


def numpy_sweep(
    spins: NDArray[np.int8],
    parameter: NDArray[np.float32],
    strength: float,
    odd: NDArray[np.bool_],
    rng: np.random.Generator,
) -> None:
    """One checkerboard sweep as NumPy has it: two dense half-updates, product coupling, logit link."""
    for colour in (odd, ~odd):
        carried = parameter * spins
        pull = np.zeros_like(carried)
        pull[1:] += carried[:-1]
        pull[:-1] += carried[1:]
        pull[:, 1:] += carried[:, :-1]
        pull[:, :-1] += carried[:, 1:]
        pull[:, :, 1:] += carried[:, :, :-1]
        pull[:, :, :-1] += carried[:, :, 1:]
        chance = 1.0 / (1.0 + np.exp(-parameter * (2.0 * strength * pull + 1.0)))
        drawn = np.where(rng.random(spins.shape, dtype=np.float32) < chance, np.int8(1), np.int8(-1))
        np.copyto(spins, drawn, where=colour)


def seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Time the work, the median of several runs after a first one that compiles."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    parameter = block_parameter((side,) * 3, rank=3, seed=0).astype(np.float32)
    spins = np.ones(parameter.shape, dtype=np.int8)
    rng = np.random.default_rng(0)
    odd = np.indices(spins.shape).sum(axis=0) % 2 == 1
    plain = seconds(lambda: numpy_sweep(spins, parameter, 1 / 15, odd, rng))
    print(f"{'NumPy checkerboard':34s}{plain * 1e3:9.2f} ms per sweep")
    cases: list[tuple[str, Coupling]] = [("adjacent", Product(1 / 15)), ("adjacent", Sigmoid(0.2))]
    for where, coupling in [*cases, ("cube", Product(1 / 60))]:
        hood = resolve(where, parameter.shape)
        colours = hood.colours(parameter.shape)
        plan = gibbs.prepare(
            parameter,
            parameter,
            coupling=coupling,
            offsets=hood.offsets,
            periodic=hood.periodic,
            colours=colours.number,
            phases=colours.phases,
        )
        for threads in (1, 2):
            took = seconds(lambda p=plan, t=threads: gibbs.sweep(p, spins, 20, seed=0, threads=t), 3) / 20
            name = f"{where}, {coupling!r}, {threads} threads"
            print(f"{name:34s}{took * 1e3:9.2f} ms per sweep, {plain / took:5.1f} times NumPy")


if __name__ == "__main__":
    main()
