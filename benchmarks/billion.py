"""A billion entries on one machine: fits an Ising model to a 1000 x 1000 x 1000 mask and prints time and peak memory.

    python benchmarks/billion.py [side]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from corten.lowrank import TensorTrain
from corten.propensity import IsingPropensity, Product


def draw(path: Path, side: int) -> np.ndarray:
    """Independent spins with a low-rank log-odds, written plane by plane to an int8 memory map."""
    parameter = TensorTrain.random((side, side, side), 3, seed=0)
    parameter = parameter * (side**1.5 / parameter.norm())
    spins = np.lib.format.open_memmap(path, mode="w+", dtype=np.int8, shape=(side, side, side))
    rng = np.random.default_rng(0)
    for i in range(side):
        log_odds = parameter.slab(i, i + 1)[0].astype(np.float32)
        seen = rng.random((side, side), dtype=np.float32) < 0.7 / (1 + np.exp(-log_odds))
        spins[i] = np.where(seen, 1, -1)
    spins.flush()
    return np.load(path, mmap_mode="r")


def main() -> None:
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        spins = draw(Path(folder) / "spins.npy", side)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        began = time.perf_counter()
        fitted = IsingPropensity(Product(1 / 15), rank=3).fit(spins, train_share=0.7)
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = side**3
    each = seconds / fitted.passes / size * 1e9
    print(f"{side}^3: {seconds:.1f} s, {fitted.passes} passes, {each:.2f} ns an entry and pass")
    print(f"peak memory {peak / 1e9:.2f} GB ({peak / size:.2f} times the mask; {before / 1e9:.2f} GB before the fit)")


if __name__ == "__main__":
    main()
