"""How long, how much memory, how much traffic: a small model of a fit, calibrated on this machine and checked.

    python benchmarks/scale_model.py --measure points.json          measure passes and fits here (half a minute)
    python benchmarks/scale_model.py points.json --page docs/scale.md     write the tables of that page

The model. One pass over N entries with bonds r (padded to fours) on W workers of t threads each takes

    T = o + N (a + b r) / (W t) + V / B,     V = 24 (d1 r + W (d2 r^2 + d3 r)) bytes

o: what a pass costs however small it is; a, b: nanoseconds of a core for an entry; B: bytes a second that the scheduler
can send and receive; V: every worker gets the cores in two gauges, of the first one its own rows, and sends back one
set of contractions (with the thinning correction the first fit's cores travel too: 40 instead of 24). A pass inside a
fit costs o' instead of o, for the steps in between, and f times the work, for that correction. The constants are fitted
to the points marked "fitted"; all others are predictions.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

Shape = tuple[int, ...]
SHARE = 0.7
PASSES = 24  # of a fit with the thinning correction at a fixed rank, measured at 1000^3
ELSEWHERE = [  # measured by other scripts on the same machine, beside what --measure finds
    {"what": "fit", "shape": (1000, 1000, 1000), "rank": 3, "cores": 2, "seconds": 54.0, "passes": 24},  # billion.py
    # cluster.py, workers of one thread; a pass costs 12 ms beside the kernels there (20 x 20 x 20)
    {"what": "pass", "on": "one Dask worker", "shape": (400, 400, 400), "rank": 5, "cores": 1, "seconds": 0.353,
     "dask": 0.012},
    {"what": "pass", "on": "two Dask workers", "shape": (400, 400, 400), "rank": 5, "cores": 2, "seconds": 0.206,
     "dask": 0.012},
]  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """Constants of a machine: seconds a pass, nanoseconds an entry and core (fixed and per bond); the same in a fit."""

    overhead: float
    entry: float
    bond: float
    between: float = 0.0
    factor: float = 1.0

    def work(self, shape: Shape, rank: int, cores: int) -> float:
        padded = -(-rank // 4) * 4
        return prod(shape) * (self.entry + self.bond * padded) * 1e-9 / cores

    def one_pass(self, shape: Shape, rank: int, cores: int, bandwidth: float = np.inf, workers: int = 1) -> float:
        return self.overhead + self.work(shape, rank, cores) + traffic(shape, rank, workers) / bandwidth

    def fit(
        self, shape: Shape, rank: int, cores: int, passes: int, bandwidth: float = np.inf, workers: int = 1
    ) -> float:
        travel = traffic(shape, rank, workers, thinned=True) / bandwidth
        return passes * (self.between + self.factor * self.work(shape, rank, cores) + travel)


def numbers(shape: Shape, rank: int, workers: int = 1) -> int:
    """Numbers in the cores of a tensor train with every bond `rank`, the first one's rows shared among workers."""
    return shape[0] * rank + workers * (shape[-1] * rank + sum(shape[1:-1]) * rank**2)


def traffic(shape: Shape, rank: int, workers: int, thinned: bool = False) -> int:
    """Bytes that travel in one pass: cores in two gauges to every worker, contractions back."""
    return 0 if workers == 1 else 8 * (5 if thinned else 3) * numbers(shape, rank, workers)


# ---- measuring


def measure() -> list[dict[str, object]]:
    """Passes and fits on this machine's threads."""
    from corten.engine import Threads
    from corten.engine.threads import default_threads
    from corten.lowrank import TensorTrain
    from corten.propensity import IsingPropensity, Product

    points: list[dict[str, object]] = []
    cores = default_threads()
    model = IsingPropensity(Product(1 / 15), rank=3)
    small = np.random.default_rng(0).random((20, 20, 20)) < 0.5
    law = model.fit(small, SHARE)
    for shape, rank in (
        ((100, 100, 100), 3), ((200, 200, 200), 3), ((300, 300, 300), 3), ((400, 400, 400), 3), ((60, 1000, 1000), 3),
        ((2000, 200, 200), 3), ((200, 200, 200), 8), ((200, 200, 200), 16), ((300, 300, 300), 8),
    ):  # fmt: skip
        spins = np.where(np.random.default_rng(0).random(shape, dtype=np.float32) < 0.4, 1, -1).astype(np.int8)
        passes = Threads().mask_pass(spins, law.model, SHARE)
        frame = (TensorTrain.random(shape, rank, seed=1) * 0.3).frame()
        passes.loss_and_contractions(frame)
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            passes.loss_and_contractions(frame)
            taken.append(time.perf_counter() - began)
        points.append({"what": "pass", "shape": shape, "rank": rank, "cores": cores, "seconds": min(taken)})
    for side in (100, 200, 300, 400):
        mask = np.random.default_rng(1).random((side,) * 3, dtype=np.float32) < 0.5
        began = time.perf_counter()
        fit = model.fit(mask, SHARE)
        seconds = time.perf_counter() - began
        points.append(
            {"what": "fit", "shape": (side,) * 3, "rank": 3, "cores": cores, "seconds": seconds, "passes": fit.passes}
        )
    return points


# ---- fitting and checking

FITTED = {
    ("pass", 100, 3), ("pass", 300, 3), ("pass", 200, 8), ("pass", 200, 16), ("fit", 100, 3), ("fit", 300, 3),
}  # fmt: skip


def is_fitted(point: dict) -> bool:
    sides = tuple(point["shape"])
    return len(set(sides)) == 1 and (point["what"], sides[0], point["rank"]) in FITTED


def calibrate(points: list[dict]) -> Speed:
    """The constants from the fitted points, by least squares of the relative errors."""
    passes = [p for p in points if is_fitted(p) and p["what"] == "pass"]
    units = [prod(p["shape"]) * 1e-9 / p["cores"] for p in passes]
    rows = [(1.0, unit, unit * (-(-p["rank"] // 4) * 4)) for p, unit in zip(passes, units)]
    overhead, entry, bond = _solved(rows, [p["seconds"] for p in passes])
    plain = Speed(overhead, entry, bond)
    fits = [p for p in points if is_fitted(p) and p["what"] == "fit"]
    work = [(1.0, plain.work(tuple(p["shape"]), p["rank"], p["cores"])) for p in fits]
    between, factor = _solved(work, [p["seconds"] / p["passes"] for p in fits])
    return Speed(overhead, entry, bond, between, factor)


def _solved(rows: list[tuple[float, ...]], seconds: list[float]) -> list[float]:
    relative = np.array(rows) / np.array(seconds)[:, None]
    return [float(x) for x in np.linalg.lstsq(relative, np.ones(len(seconds)), rcond=None)[0]]


def checked(points: list[dict], speed: Speed) -> list[str]:
    lines = ["| what | entries | rank | measured | model | error |", "|---|---|---|---|---|---|"]
    for p in points:
        shape: Shape = tuple(p["shape"])
        if p["what"] == "pass":
            said = speed.one_pass(shape, p["rank"], p["cores"]) + p.get("dask", 0.0)
        else:
            said = speed.fit(shape, p["rank"], p["cores"], p["passes"])
        error = "fitted" if is_fitted(p) else f"{said / p['seconds'] - 1:+.0%}"
        name = f"fit, {p['passes']} passes" if p["what"] == "fit" else f"pass, {p['on']}" if "on" in p else "pass"
        size = " x ".join(map(str, shape))
        lines.append(f"| {name} | {size} | {p['rank']} | {words(p['seconds'])} | {words(said)} | {error} |")
    return lines


def extrapolated(speed: Speed) -> list[str]:
    """A fit of the missingness at growing sizes: cores, bytes a pass, seconds a pass, a fit, memory of a worker."""
    lines = [
        "| entries | workers x cores | traffic a pass | one pass | a fit | memory a worker | cores' own share of it |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape, workers, cores in (
        ((1000, 1000, 1000), 1, 2), ((2000, 1000, 1000), 1, 2), ((10_000, 2000, 2000), 8, 16),
        ((10_000, 10_000, 1000), 16, 32), ((10_000, 10_000, 10_000), 64, 32), ((10_000, 10_000, 10_000), 256, 64),
    ):  # fmt: skip
        one = speed.one_pass(shape, 5, workers * cores, bandwidth=1e9, workers=workers)
        fit = speed.fit(shape, 5, workers * cores, PASSES, bandwidth=1e9, workers=workers)
        held = 2 * prod(shape) / workers  # spins and expected spins
        small = 8 * 6 * numbers(shape, 5)
        moved = traffic(shape, 5, workers)
        cells = [
            " x ".join(map(str, shape)), f"{workers} x {cores}", size_words(moved), words(one), words(fit),
            size_words(held + small), size_words(small),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def words(seconds: float) -> str:
    for unit, factor in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size_words(size: float) -> str:
    from corten.engine.memory import in_words

    return in_words(size) if size else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="?", type=Path, help="what --measure wrote")
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.measure is not None:
        given.measure.write_text(json.dumps(measure(), indent=1))
        return
    if given.points is None:
        parser.error("give the file that --measure wrote")
    points = [*json.loads(given.points.read_text()), *ELSEWHERE]
    speed = calibrate(points)
    constants = (
        f"o = {words(speed.overhead)}, a = {speed.entry:.2f} ns, b = {speed.bond:.2f} ns a bond, "
        f"o' = {words(speed.between)}, f = {speed.factor:.2f}."
    )
    parts = {"constants": [constants], "checks": checked(points, speed), "extrapolation": extrapolated(speed)}
    for name, lines in parts.items():
        print("\n".join([f"## {name}", *lines, ""]))
    if given.page is not None:
        text = given.page.read_text(encoding="utf-8")
        for name, lines in parts.items():
            block = "\n".join([f"<!-- {name} -->", "", *lines, "", f"<!-- end {name} -->"])
            text = re.sub(f"<!-- {name} -->.*?<!-- end {name} -->", lambda _, b=block: b, text, flags=re.DOTALL)
        given.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
