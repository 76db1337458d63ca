"""Processor time per entry of completions in memory: `python -m benchmarks growth 5e5 2e6 1e7`.

Cubes of the synthetic sea surface with clouds and land, filled with pseudo-gaps, each in a process of its own after a
small fit that loads and compiles everything. Printed for each size: processor and clock seconds, microseconds of
processor time per entry and their ratio to the first size, peak memory above the data, coverage and interval score of
new measurements. Without sizes: 5e5 and 2e6. 1e7 entries take about 3 GB and ten minutes on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np

import corten
from benchmarks.sea_surface import SeaSurface
from benchmarks.tiles import forget_peak, peak_bytes, scores


def measure(side: int) -> dict[str, float]:
    """One fit of a cube with its intervals, in this process."""
    small = SeaSurface((12, 12, 12), 1)
    corten.complete(small.observed(0, 12), calibration="gaps")
    sea = SeaSurface((side,) * 3, 5)
    x, where = sea.observed(0, side), np.broadcast_to(sea.sea[..., None], (side,) * 3)
    forget_peak()
    before, worked, began = peak_bytes(), time.process_time(), time.perf_counter()
    result = corten.complete(x, where=where, calibration="gaps")
    cpu, clock, peak = time.process_time() - worked, time.perf_counter() - began, peak_bytes() - before
    gap = np.isnan(x) & where
    sums = scores(sea.planes(0, side)[gap], result.estimate[gap], result.lower[gap], result.upper[gap])
    return {"entries": x.size, "cpu": cpu, "clock": clock, "peak": peak, "covered": sums[2] / sums[0],
            "score": sums[4] / sums[0]}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    first = None
    print("| entries | processor, s | clock, s | microseconds an entry | over the first | peak, MB | covered | score |")
    print("|---|---|---|---|---|---|---|---|")
    for size in map(float, sys.argv[1:] or ("5e5", "2e6")):
        command = [sys.executable, __file__, "--one", str(round(size ** (1 / 3)))]
        row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        each = 1e6 * row["cpu"] / row["entries"]
        first = first or each
        print(
            f"| {row['entries']:,.0f} | {row['cpu']:.0f} | {row['clock']:.0f} | {each:.0f} | {each / first:.2f} | "
            f"{row['peak'] / 1e6:.0f} | {row['covered']:.1%} | {row['score']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
