"""From disk against in memory: time per entry, peak memory and disk of a whole completion with intervals.

    python benchmarks/outofcore.py 2000 1000 1000 --memory 1.5GB            from disk, at any size
    python benchmarks/outofcore.py 400 500 500 --memory 1GB --compare       the same data in memory too

Data: Tucker rank 3 plus noise in a Zarr store of float32, half of it missing by a low-rank law. Each run is a process
of its own, so that its peak memory is its own; ranks and coupling are given, so that both do the same work.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def draw(path: Path, shape: tuple[int, ...]) -> None:
    """A store with gaps, written a few planes at a time."""
    import zarr

    from corten.lowrank import TensorTrain, Tucker

    signal = Tucker.random(shape, 3, seed=1).to_tensor_train()
    law = TensorTrain.random(shape, 3, seed=2)
    rng = np.random.default_rng(0)
    step = max(1, (1 << 21) // (shape[1] * shape[2]))
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array(
        "x", shape=shape, chunks=(step, *shape[1:]), dtype="f4", attributes={"_ARRAY_DIMENSIONS": ["a", "b", "c"]}
    )
    for a in range(0, shape[0], step):
        b = min(a + step, shape[0])
        values = signal.slab(a, b).astype(np.float32)
        values += 0.3 * rng.standard_normal(values.shape, dtype=np.float32)
        odds = law.slab(a, b).astype(np.float32)
        values[rng.random(values.shape, dtype=np.float32) > 1 / (1 + np.exp(-odds))] = np.nan
        array[a:b] = values


def run(source: Path, output: Path, memory: str | None) -> dict[str, object]:
    """One completion in this process, with seconds by stage and its peak memory."""
    import corten

    options = {
        "completion": corten.TuckerCompletion(rank=3),
        "propensity": corten.IsingPropensity(coupling=corten.Product(1 / 15), rank=3),
        "calibration": "random",
    }
    warm(options)
    began, stages, last = time.perf_counter(), {}, [""]
    used = busy()

    def progress(stage: str, share: float) -> None:
        now = time.perf_counter() - began
        if stage != last[0]:
            stages[stage] = f"{now:.2f} s, {busy() - used:.2f} s of processor, {peak() / 1e9:.2f} GB"
            print(stage, stages[stage], file=sys.stderr, flush=True)
            last[0] = stage

    words = ""
    if memory is None:
        import xarray as xr

        x = xr.open_zarr(source, consolidated=False, chunks=None).x.load()
        fitted = corten.ConformalCompleter(**options).fit(x, progress=progress)
        result = fitted.intervals(0.9)
        progress("writing", 0.0)
        from corten.io import write

        write(output, result)
        summary = result.summary()
    else:
        told: list[str] = []
        filled = corten.complete_to_zarr(
            source, output, 0.9, memory=memory, progress=progress, say=told.append, **options
        )
        summary, words = filled.summary(), told[0]
    seconds = time.perf_counter() - began
    disk = sum(f.stat().st_size for f in output.rglob("*") if f.is_file())
    return {
        "seconds": seconds, "processor": busy() - used, "peak": peak(), "disk": disk,
        "stages begin at": stages, "said": words,
        "mean width": summary.mean_width, "infinite": summary.infinite, "missing": summary.missing,
    }  # fmt: skip


def peak() -> int:
    """The most memory this process has held so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def busy() -> float:
    """Processor seconds of this process so far, all threads together."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def warm(options: dict[str, object]) -> None:
    """Load libraries and compiled kernels on a small tensor: neither run should pay for that."""
    import corten

    x = np.random.default_rng(0).standard_normal((12, 12, 12)).astype(np.float32)
    x[np.random.default_rng(1).random(x.shape) < 0.4] = np.nan
    corten.complete(x, **options).summary()
    with tempfile.TemporaryDirectory() as folder:
        corten.complete_to_zarr(x, Path(folder) / "small.zarr", **options)


def apart(*arguments: object) -> dict[str, object]:
    """Run in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", type=int, nargs=3)
    parser.add_argument("--memory", default="1.5GB")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--step", default=None)
    given = parser.parse_args()
    shape = tuple(given.shape)
    if given.step == "draw":
        draw(given.folder / "x.zarr", shape)
        return
    if given.step is not None:
        memory = given.memory if given.step == "disk" else None
        print(json.dumps(run(given.folder / "x.zarr", given.folder / f"{given.step}.zarr", memory)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        apart(*shape, "--folder", folder, "--step", "draw")
        size = float(np.prod(shape))
        for step in ("disk", "memory") if given.compare else ("disk",):
            found = apart(*shape, "--folder", folder, "--step", step, "--memory", given.memory)
            print(f"{' x '.join(map(str, shape))}, {step}: {found['seconds']:.1f} s, "
                  f"{found['seconds'] / size * 1e9:.1f} ns an entry, "
                  f"{found['processor']:.1f} s of processor, {found['processor'] / size * 1e9:.1f} ns an entry, "
                  f"peak {found['peak'] / 1e9:.2f} GB, output {found['disk'] / 1e9:.2f} GB")  # fmt: skip
            shown = ("seconds", "processor", "peak", "disk")
            print("  ", {k: v for k, v in found.items() if k not in shown}, flush=True)


if __name__ == "__main__":
    main()
