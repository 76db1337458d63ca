"""How long the conformal step takes: approximate weights against exact Ising weights.

    python benchmarks/conformal_step.py [--calibration 1000000] [--tests 10000000] [--levels 20]

Both ways answer the same test entries at the same levels, in chunks, as the package does it. The exact way runs twice:
with 30 % of the six neighbours in the calibration list, as on real masks, and with all six, the worst there is. Making
the neighbour table is not timed.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from corten.conformal import NeighbourFactor, WeightedScores
from corten.engine.threads import default_threads

CHUNK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibration", type=int, default=1_000_000)
    parser.add_argument("--tests", type=int, default=10_000_000)
    parser.add_argument("--levels", type=int, default=20)
    parser.add_argument("--neighbours", type=int, default=6)
    parser.add_argument("--spread", type=float, default=1.5, help="standard deviation of the log-weights")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    levels = np.linspace(0.80, 0.99, options.levels)
    scores = rng.exponential(size=options.calibration)
    logs = rng.normal(scale=options.spread, size=options.calibration)
    tests = rng.normal(loc=1.0, scale=options.spread, size=options.tests)
    shape = (min(CHUNK, options.tests), options.neighbours)
    log_factor = rng.normal(scale=0.5, size=shape)
    every = rng.integers(0, options.calibration, shape)
    some = np.where(rng.random(shape) < 0.3, every, -1)

    warm = WeightedScores(scores[:9], logs[:9])
    one = NeighbourFactor(np.zeros((1, 1), int), np.ones((1, 1)))
    for near in (None, one):
        warm.cutoffs(tests[:1], levels, near)

    start = time.perf_counter()
    lists = WeightedScores(scores, logs)
    sort = time.perf_counter() - start

    def seconds(neighbours: np.ndarray | None) -> float:
        spent = 0.0
        for first in range(0, options.tests, CHUNK):
            part = tests[first : first + CHUNK]
            near = None
            if neighbours is not None:
                near = NeighbourFactor(neighbours[: part.size], log_factor[: part.size])
            begin = time.perf_counter()
            lists.cutoffs(part, levels, near)
            spent += time.perf_counter() - begin
        return spent

    approximate, usual, worst = seconds(None), seconds(some), seconds(every)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{options.calibration:,} calibration scores, {options.tests:,} test entries, "
        f"{options.levels} levels, {default_threads()} threads"
    )
    print(f"sort and sum               {sort:8.2f} s")
    print(f"approximate                {approximate:8.2f} s")
    print(f"exact, 30 % of {options.neighbours} near     {usual:8.2f} s   ratio {usual / approximate:.2f}")
    print(f"exact, all {options.neighbours} near         {worst:8.2f} s   ratio {worst / approximate:.2f}")
    print(f"largest memory             {memory:8.2f} GiB")


if __name__ == "__main__":
    main()
