"""Time and memory of completions with pseudo-gaps for shapes that are long, thin, many-sided, sparse or small.

    python -m benchmarks cliffs                      all; needs ../shared/data for stations, TEC, metro, NDVI
    python -m benchmarks cliffs "6^6" "tec day"      some of them
    python -m benchmarks cliffs --write              all, into the table of docs/how-long.md
    CORTEN_THREADS=1 python -m benchmarks cliffs --profile "6^6"    processor time of the functions of one fit

Each shape runs in a process of its own, after a small fit that loads and compiles everything. Printed: CPU seconds
since the prediction and as predicted, wall-clock seconds and their limit on two idle cores, and the peak of memory
above what the process held before, measured and predicted for the threads of this machine.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[2] / "shared" / "data"
PAGE = Path(__file__).parents[1] / "docs" / "how-long.md"


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


def scattered(shape: tuple[int, ...]) -> np.ndarray:
    """A smooth field of which a random third is missing, for a random split."""
    x = wavy(shape)
    x[np.random.default_rng(1).random(shape) < 1 / 3] = np.nan
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


def labelled_stations() -> Any:
    """The same with times and names: the stations are unordered."""
    import xarray as xr

    times = np.load(DATA / "aqi36_dev.npz")["time"]
    labels = {"time": times, "station": [f"station {k + 1}" for k in range(36)]}
    return xr.DataArray(stations(), dims=("time", "station"), coords=labels)


def metro(mask: str) -> Any:
    """Passengers at 80 stations, 25 days and 108 slots: the stations are unordered."""
    import xarray as xr

    flow = np.load(DATA / "metro_hangzhou.npz")["flow"].astype(float)
    known = (np.load(DATA / "metro_hangzhou_masks.npz")[mask] == 1) & (flow != 0)
    labels = {"station": [f"station {k + 1}" for k in range(80)]}
    return xr.DataArray(np.where(known, flow, np.nan), dims=("station", "day", "slot"), coords=labels)


def ndvi() -> Any:
    """A vegetation index in 100 x 100 places, 8 times in each of six years, which are unordered."""
    import xarray as xr

    data = np.load(DATA / "ndvi_modis_gapfill.npz")
    values = np.where(data["mask50"].astype(bool), data["ndvi"], np.nan)
    years = {"year": [f"year {number}" for number in range(2004, 2010)]}
    return xr.DataArray(values, dims=("y", "x", "doy", "year"), coords=years)


def tec_day() -> np.ndarray:
    """Total electron content over North America in one day."""
    data = np.load(DATA / "tec_namerica_20190425-26.npz")
    return np.where(data["mask"].astype(bool), data["tec"][:, :, :96], np.nan)


# Name: how to make it, and the most seconds on two idle cores.
CASES: dict[str, tuple[Callable[[], Any], float]] = {
    "1,680 entries": (lambda: with_gap((12, 14, 10)), 5),
    "10,000 entries": (lambda: with_gap((25, 20, 20)), 5),
    "one plane": (one_plane, 30),
    "6^6": (lambda: with_gap((6,) * 6), 30),
    "2 x 500,000": (thin, 30),
    "99.9 % missing": (sparse, 30),
    "stations": (stations, 60),
    "stations, labelled": (labelled_stations, 90),
    "tec day": (tec_day, 40),
    "metro, NM30": (lambda: metro("NM30"), 10),
    "metro, NM70": (lambda: metro("NM70"), 11),
    "ndvi, mask 50": (ndvi, 40),
    "random, 40^3": (lambda: scattered((40, 40, 40)), 30),
    "random, 100^3": (lambda: scattered((100, 100, 100)), 60),
}


def measure(name: str, profiled: AbstractContextManager[object] | None = None) -> dict[str, object]:
    """Seconds and peak memory of one fit with its intervals, in this process."""
    import corten
    from corten.options import predicted_seconds

    warnings.simplefilter("ignore")

    class Progress:
        """Keeps the predicted memory, and how much time reading had taken by then."""

        needed, reading = 0, 0.0

        def __call__(self, stage: str, share: float) -> None:
            pass

        def predicted(self, seconds: float, needed: int, on_device: int | None) -> None:
            self.needed, self.reading = needed, time.process_time() - busy

    def held(what: str) -> int:  # of this process: the peak that getrusage gives may be that of the one that started it
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status[what].split()[0]) * 1024

    calibration = corten.SplitCalibration() if name.startswith("random") else corten.GapCalibration()
    folder = Path(tempfile.mkdtemp())
    small = corten.ConformalCompleter(calibration=calibration).fit(with_gap((9, 8, 7))).intervals(0.9)
    small.to_netcdf(folder / "small.nc")
    x = CASES[name][0]()
    progress = Progress()
    before, busy, began = held("VmRSS"), time.process_time(), time.perf_counter()
    with profiled or nullcontext():
        fitted = corten.ConformalCompleter(calibration=calibration).fit(x, progress=progress)
        result = fitted.intervals(0.9)
    spent, clock = time.process_time() - busy, time.perf_counter() - began
    missing = int(np.isnan(np.asarray(x)).sum())
    result.to_netcdf(folder / "result.nc")  # the prediction of memory includes a file
    shutil.rmtree(folder)
    return {
        "entries": x.size, "missing": missing, "processor": spent - progress.reading, "clock": clock,
        "limit": CASES[name][1], "peak": held("VmHWM") - before,
        "said_seconds": predicted_seconds(calibration, fitted.observed.axes, missing, cores=1),
        "said_peak": progress.needed, "reading": progress.reading,
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    if sys.argv[1:2] == ["--profile"]:
        profiled = cProfile.Profile(time.process_time)
        print(json.dumps(measure(sys.argv[2], profiled)))
        pstats.Stats(profiled).sort_stats("cumtime").print_stats("corten", 70)
        return
    names = [one for one in sys.argv[1:] if one != "--write"] or list(CASES)
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise SystemExit(f"unknown shapes {unknown}; known are {list(CASES)}")
    columns = "shape", "entries", "missing", "CPU, s", "predicted, s", "peak, MB", "predicted, MB"
    lines = ["| " + " | ".join(columns) + " |", "|" + len(columns) * "---|"]
    print("\n".join(lines), flush=True)
    for name in names:
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True)
        if done.returncode:
            print(f"| {name} | failed: {done.stderr.strip().splitlines()[-1]} |", flush=True)
            continue
        row = json.loads(done.stdout)
        lines.append(
            f"| {name} | {row['entries']:,} | {row['missing'] / row['entries']:.1%} | {row['processor']:.1f} | "
            f"{row['said_seconds']:.1f} | {row['peak'] / 1e6:.0f} | {row['said_peak'] / 1e6:.0f} |"
        )
        beside = f"reading {row['reading']:.1f} CPU s, wall-clock {row['clock']:.0f} s, limit {row['limit']} s"
        print(f"{lines[-1]} {beside}", flush=True)
    if "--write" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split("<!-- measured -->")
        after = rest.split("<!-- end measured -->")[1]
        table = "\n".join(["<!-- measured -->", *lines, "<!-- end measured -->"])
        PAGE.write_text(before + table + after, encoding="utf-8")


if __name__ == "__main__":
    main()
