"""Completion of a field larger than memory in tiles: `python -m benchmarks tiles 1000 1000 100 --memory "4 GB"`.

A synthetic sea surface with clouds and land is written to a Zarr store, filled from there, and compared plane by plane
with new measurements of the truth. Prints error, coverage, width, interval score, time and peak memory. Options:

--seed 1 2 3     takes one field after the other; with --compare prints means over the fields and their standard errors
--compare N      completes the corner of N^2 places (and a margin around it) in memory too, and prints both scores
--workers 1 2    fills on so many Dask workers of one thread each, one count after the other; prints the ratio of the
                 times, a hash of each result, to see that they agree, and the CPU seconds of this process and of the
                 workers: twice as many workers save half of the latter at most
--folder PATH    keeps the data there, so that a second run does not simulate them again
--write          puts the row of this run into the table of docs/how-long.md, in place of one of the same shape
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

import corten
from benchmarks.sea_surface import NOISE, SeaSurface
from corten.data.axes import Axis
from corten.engine.memory import read_size
from corten.engine.threads import default_threads
from corten.large.needs import TileNeeds
from corten.large.tiles import MARGIN

COVERAGE = 0.9
PAGE = Path(__file__).parents[1] / "docs" / "how-long.md"
SETTINGS_DONE = 0.3  # share of the completion when its settings are chosen and its coarse fields filled
PLANES = 8  # written and compared at a time


def scores(truth: np.ndarray, estimate: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Sums over entries: count, error against the truth; coverage, width and interval score of new measurements."""
    new = truth + NOISE * np.random.default_rng(truth.size).standard_normal(truth.shape, dtype=np.float32)
    width = (high - low).astype(float)
    outside = np.maximum(low - new, 0) + np.maximum(new - high, 0)
    parts = (np.abs(estimate - truth), outside <= 0, width, width + 2 / (1 - COVERAGE) * outside)
    return np.array([truth.size, *(float(np.sum(part)) for part in parts)])


def tell(name: str, sums: np.ndarray) -> np.ndarray:
    """Print the means, and return them: error, coverage, width and interval score."""
    error, covered, width, score = means = sums[1:] / sums[0]
    print(
        f"{name}: {sums[0]:,.0f} entries filled, MAE {error:.4f}, {covered:.2%} covered, width {width:.4f}, "
        f"interval score {score:.4f}",
        flush=True,
    )
    return means


def tell_all(pairs: list[np.ndarray]) -> None:
    """Print means over fields, with standard errors, from the means of each field: from disk and in memory."""
    disk, memory = np.moveaxis(pairs, 1, 0)
    rows = {
        "interval score from disk over in memory": disk[:, 3] / memory[:, 3],
        "MAE from disk over in memory": disk[:, 0] / memory[:, 0],
        "coverage from disk": disk[:, 1],
        "coverage in memory": memory[:, 1],
    }
    for name, each in rows.items():
        error = each.std(ddof=1) / np.sqrt(len(each))
        print(f"{name}: {each.mean():.4f} +- {error:.4f} ({', '.join(f'{one:.4f}' for one in each)})", flush=True)


def simulated(sea: SeaSurface, path: Path) -> Any:
    """The data as a Zarr array; one that is complete there already is opened."""
    import zarr

    done = path.with_suffix(".done")
    if not done.exists():
        began = time.process_time()
        data = zarr.create_array(path, shape=sea.shape, chunks=(PLANES, *sea.shape[1:]), dtype="f4", overwrite=True)
        for start in range(0, sea.shape[0], PLANES):
            stop = min(start + PLANES, sea.shape[0])
            data[start:stop] = sea.observed(start, stop)
        done.touch()
        print(f"simulated in {time.process_time() - began:.0f} CPU s", flush=True)
    return zarr.open_array(path, mode="r")


def forget_peak() -> None:
    """Let the system count the peak memory of this process from now on: the simulation takes memory too."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Peak memory of this process."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def cpu_seconds() -> float:
    """CPU seconds of this process and of workers that have ended."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def cpu_of_workers(client: Any) -> float:
    """CPU seconds of all workers of a Dask client so far."""
    return sum(client.run(time.process_time).values())


def fill(data: Any, sea: SeaSurface, target: Path, memory: str, engine: Any) -> tuple[Any, float]:
    """Fill the store; returns the filled store and the seconds that it took."""
    before = 0.0
    serial, last = 0.0, 0.0

    def progress(stage: str, share: float) -> None:
        nonlocal before, serial, last
        now = time.perf_counter() - began
        if stage == "reading" or (stage == "completion" and share <= SETTINGS_DONE):
            serial = now
        elif stage == "completion" and share == 1:
            serial += now - last  # the learned scale, after the last sampled tile
        last = now
        if time.perf_counter() > before + 60:
            before = time.perf_counter()
            print(f"{stage} {share:.0%}, {time.process_time() - worked:.0f} CPU s", flush=True)

    sea.sea  # noqa: B018  (computed here, before the peak is counted)
    forget_peak()
    began, worked = time.perf_counter(), time.process_time()
    filled = corten.complete_to_zarr(
        data, target, COVERAGE, where=sea.sea[:, :, None], memory=memory, engine=engine, say=print, progress=progress,
        overwrite=True,
    )  # fmt: skip
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    print(
        f"{sea.shape}: {seconds:.0f} s, of which {serial:.0f} s serial or in few tasks (reading, settings, coarse "
        f"fields, scale); {cpu:.0f} CPU s here ({1e6 * cpu / data.size:.1f} microseconds an entry), "
        f"peak {peak_bytes() / 1e9:.2f} GB with Python",
        flush=True,
    )
    return filled, seconds


def digest(filled: Any) -> str:
    """A short hash of all numbers of a filled store."""
    found, store = hashlib.sha256(), filled.open()
    for name in sorted(store.data_vars):
        for start in range(0, store[name].shape[0], PLANES):
            found.update(store[name][start : start + PLANES].values.tobytes())
    return found.hexdigest()[:16]


def row_of(sea: SeaSurface, data: Any, memory: str, cpu: float, peak: int, covered: float, ratio: float) -> str:
    """The row of the table: measured and predicted."""
    missing = sum(
        int(np.count_nonzero(np.isnan(np.asarray(data[at : at + PLANES])) & sea.sea[at : at + PLANES, :, None]))
        for at in range(0, sea.shape[0], PLANES)
    )
    axes = [Axis(name, n) for name, n in zip("yxt", sea.shape)]
    needs = TileNeeds.of(axes, read_size(memory), threads=default_threads(), missing=missing, item=4, arrays=3)
    name = " x ".join(map(str, sea.shape))
    beside = "" if np.isnan(ratio) else f"{ratio:.3f}"
    return (
        f"| {name} | {data.size:,} | {default_threads()} | {cpu:.0f} | {needs.seconds:.0f} | {peak / 1e6:.0f} | "
        f"{needs.memory / 1e6:.0f} | {covered:.1%} | {beside} |"
    )


def write(row: str) -> None:
    """Put a row into the table, in place of one of the same shape."""
    before, rest = PAGE.read_text(encoding="utf-8").split("<!-- tiles -->\n")
    table, after = rest.split("<!-- end tiles -->")
    kept = [line for line in table.splitlines() if line.split("|")[1] != row.split("|")[1]]
    lines = [*kept[:2], *sorted([*kept[2:], row], key=lambda line: int(line.split("|")[2].replace(",", "")))]
    PAGE.write_text(before + "<!-- tiles -->\n" + "\n".join(lines) + "\n<!-- end tiles -->" + after, encoding="utf-8")


def compare(data: Any, sea: SeaSurface, filled: Any, n: int) -> tuple[float, np.ndarray | None]:
    """Coverage of all filled entries, and with n the means of a corner from disk and in memory."""
    store = filled.open()
    names = [filled.variable, *(f"{filled.variable}_{end}" for end in ("lower", "upper"))]
    total, corner = np.zeros(5), np.zeros(5)
    for start in range(0, sea.shape[0], PLANES):
        stop = min(start + PLANES, sea.shape[0])
        gap = np.isnan(np.asarray(data[start:stop])) & sea.sea[start:stop, :, None]
        truth = sea.planes(start, stop)
        arrays = [store[name][start:stop].values for name in names]
        total += scores(truth[gap], *(array[gap] for array in arrays))
        if start < n:
            gap[max(0, n - start) :] = False
            gap[:, n:] = False
            corner += scores(truth[gap], *(array[gap] for array in arrays))
    tell("from disk", total)
    covered = float(total[2] / total[0])
    if not n:
        return covered, None
    wide = n + MARGIN  # tiles see as much around the corner
    from_disk = tell("from disk, corner", corner)
    x = np.asarray(data[:wide, :wide])
    where = np.broadcast_to(sea.sea[:wide, :wide, None], x.shape)
    began = time.process_time()
    kinds: dict[str | int, Literal["ordered", "unordered"]] = dict.fromkeys((0, 1, 2), "ordered")
    result = corten.complete(x, COVERAGE, where=where, calibration="gaps", axis_kinds=kinds)
    print(f"in memory: {x.size:,} entries in {time.process_time() - began:.0f} CPU s", flush=True)
    gap = np.isnan(x) & where
    gap[n:], gap[:, n:] = False, False
    truth = sea.planes(0, len(x))[:, :wide]
    arrays = [result.estimate[gap], result.lower[gap], result.upper[gap]]
    in_memory = tell("in memory, corner", scores(truth[gap], *arrays))
    print(f"interval score from disk over in memory: {from_disk[3] / in_memory[3]:.3f}", flush=True)
    return covered, np.stack([from_disk, in_memory])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=int, nargs=3)
    parser.add_argument("--memory", default="4 GB")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--compare", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="*", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    pairs = [one for seed in asked.seed if (one := measure(asked, seed)) is not None]
    if len(pairs) > 1:
        tell_all(pairs)


def measure(asked: argparse.Namespace, seed: int) -> np.ndarray | None:
    """Fill one field, and print what it took; returns the means of the corner from disk and in memory."""
    sea = SeaSurface(tuple(asked.shape), seed)
    with ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="corten-tiles-")))
        folder.mkdir(exist_ok=True)
        data = simulated(sea, folder / f"sea-{'-'.join(map(str, asked.shape))}-{seed}.zarr")
        seconds: dict[int, float] = {}
        cpu, before = 0.0, cpu_seconds()
        for count in asked.workers:
            from distributed import Client, LocalCluster

            options = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
            with LocalCluster(**options) as cluster, Client(cluster) as client:
                client.wait_for_workers(count)
                started, here = cpu_of_workers(client), time.process_time()
                filled, seconds[count] = fill(data, sea, folder / "filled.zarr", asked.memory, client)
                workers, here = cpu_of_workers(client) - started, time.process_time() - here
                print(
                    f"{count} worker(s): {here:.1f} CPU s of this process, {workers:.1f} of the workers; twice as many "
                    f"take {(here + workers / count / 2) / (here + workers / count):.2f} of the time at least",
                    flush=True,
                )
            before, cpu = cpu_seconds(), cpu_seconds() - before
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            first = seconds[asked.workers[0]]
            print(
                f"{count} worker(s): {first / seconds[count]:.2f} times the first, {cpu:.0f} CPU s of all processes, "
                f"peak {peak:.2f} GB, hash of the result {digest(filled)}",
                flush=True,
            )
        if not asked.workers:
            filled, _ = fill(data, sea, folder / "filled.zarr", asked.memory, "auto")
            cpu = cpu_seconds() - before
        peak = peak_bytes()
        covered, corner = compare(data, sea, filled, asked.compare)
        ratio = np.nan if corner is None else float(corner[0, 3] / corner[1, 3])
        row = row_of(sea, data, asked.memory, cpu, peak, covered, ratio)
        print(row, flush=True)
        if asked.write and not asked.workers:
            write(row)
        return corner


if __name__ == "__main__":
    main()
