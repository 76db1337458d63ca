"""Time and memory of completions with pseudo-gaps for shapes that are long, thin, many-sided, sparse or small.

    python -m benchmarks cliffs                      all shapes; needs ../shared/data for "tec day" and "stations"
    python -m benchmarks cliffs "6^6" "tec day"      some of them

Each shape runs in a process of its own, after a small fit that loads and compiles everything. Printed: seconds of
processor and clock, the limit that the clock should meet on two idle cores, the peak of memory above what the process
held before, and what `GapCalibration.seconds` and `peak_bytes` predict.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[2] / "shared" / "data"


def wavy(shape: tuple[int, ...]) -> np.ndarray:
    """A smooth field with noise."""
    rng = np.random.default_rng(0)
    x = 0.1 * rng.standard_normal(shape)
    for k, n in enumerate(shape):
        x += np.sin(np.arange(n) * 6 / n + k).reshape([-1 if j == k else 1 for j in range(len(shape))])
    return x


def with_gap(shape: tuple[int, ...]) -> np.ndarray:
    """A smooth field with a box missing in its middle."""
    x = wavy(shape)
    x[tuple(slice(n // 3, max(n // 3 + 1, 2 * n // 3)) for n in shape)] = np.nan
    return x


def one_plane() -> np.ndarray:
    """Of 30 planes only one is observed."""
    x = wavy((30, 50, 50))
    x[np.arange(30) != 12] = np.nan
    return x


def sparse() -> np.ndarray:
    """A million entries of which one in a thousand is observed."""
    x = wavy((100, 100, 100))
    x[np.random.default_rng(1).random(x.shape) > 0.001] = np.nan
    return x


def thin() -> np.ndarray:
    """Two rows of half a million, with gaps of 100 to 2,000 entries."""
    x = wavy((2, 500_000))
    rng = np.random.default_rng(1)
    for start, length in zip(rng.integers(498_000, size=200), rng.integers(100, 2_000, size=200)):
        x[rng.integers(2), start : start + length] = np.nan
    return x


def stations() -> np.ndarray:
    """A year of hourly PM2.5 at 36 stations."""
    data = np.load(DATA / "aqi36_dev.npz")
    return np.where(data["dev_mask"], np.nan, data["pm25"])


def tec_day() -> np.ndarray:
    """Total electron content over North America in one day."""
    data = np.load(DATA / "tec_namerica_20190425-26.npz")
    return np.where(data["mask"].astype(bool), data["tec"][:, :, :96], np.nan)


# Name: how to make it, and the most seconds on two idle cores.
CASES: dict[str, tuple[Callable[[], np.ndarray], float]] = {
    "1,680 entries": (lambda: with_gap((12, 14, 10)), 5),
    "10,000 entries": (lambda: with_gap((25, 20, 20)), 5),
    "one plane": (one_plane, 30),
    "6^6": (lambda: with_gap((6,) * 6), 30),
    "2 x 500,000": (thin, 30),
    "99.9 % missing": (sparse, 30),
    "stations": (stations, 60),
    "tec day": (tec_day, 40),
}


def measure(name: str) -> dict[str, object]:
    """Seconds and peak memory of one fit with its intervals, in this process."""
    import corten
    from corten.engine.threads import default_threads

    warnings.simplefilter("ignore")

    def held(what: str) -> int:  # of this process: the peak that getrusage gives may be that of the one that started it
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status[what].split()[0]) * 1024

    gaps = corten.GapCalibration()
    corten.ConformalCompleter(calibration=gaps).fit(with_gap((9, 8, 7)))
    x = CASES[name][0]()
    before, busy, began = held("VmRSS"), time.process_time(), time.perf_counter()
    corten.ConformalCompleter(calibration=gaps).fit(x).intervals(0.9)
    spent, clock = time.process_time() - busy, time.perf_counter() - began
    missing = int(np.isnan(x).sum())
    return {
        "entries": x.size, "missing": missing, "processor": spent, "clock": clock, "limit": CASES[name][1],
        "peak": held("VmHWM") - before, "said_seconds": gaps.seconds(x.size, missing, default_threads()),
        "said_peak": gaps.peak_bytes(x.size, missing),
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    names = sys.argv[1:] or list(CASES)
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise SystemExit(f"unknown shapes {unknown}; known are {list(CASES)}")
    columns = "shape", "entries", "missing", "processor, s", "clock, s", "limit, s", "predicted, s", "peak, MB"
    print("| " + " | ".join((*columns, "predicted, MB")) + " |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        if done.returncode:
            print(f"| {name} | failed: {done.stderr.strip().splitlines()[-1]} |", flush=True)
            continue
        row = json.loads(done.stdout)
        print(
            f"| {name} | {row['entries']:,} | {row['missing'] / row['entries']:.1%} | {row['processor']:.1f} | "
            f"{row['clock']:.1f} | {row['limit']} | {row['said_seconds']:.0f} | {row['peak'] / 1e6:.0f} | "
            f"{row['said_peak'] / 1e6:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
