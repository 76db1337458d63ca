"""kill -9 at any moment, and disks that lose bytes on top of it."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import corten
from reliability.processes import (
    GAPS,
    SUFFIXES,
    Running,
    arrays_of,
    check_written,
    children,
    command,
    data,
    fitted,
    from_disk,
    left_over,
    made,
    runs,
    same,
    undisturbed,
    undisturbed_from_disk,
    write,
)
from studies import experiments
from studies.cells import Cell
from studies.presets import PRESETS
from studies.runner import run_cells
from studies.simulation import part_named
from studies.store import Store


def killed_complete(random: Random, folder: Path, checkpoint: bool = False) -> None:
    """kill -9 at any moment of `corten complete`: nothing, or everything; run again, it gives the same answer."""
    expected, seconds = undisturbed()
    np.save(folder / "in.npy", data())
    out, kept = folder / "out.nc", folder / "kept"
    asked = ("complete", folder / "in.npy", "-o", out, *GAPS, *(("--checkpoint", kept) if checkpoint else ()))
    first = Running(folder, lambda: command(*asked))
    time.sleep(random.random() * seconds * 1.1)
    first.kill()
    if out.exists():
        assert same(arrays_of(out), expected), "a killed run left another answer"
    elif checkpoint:
        damage(random, sorted(kept.glob("*.round")))
    again = Running(folder, lambda: command(*asked, "--overwrite"))
    assert again.ended() == 0, again.said()
    assert same(arrays_of(out), expected), "the second run gave another answer"
    assert not left_over(folder), left_over(folder)
    assert not kept.exists(), "the checkpoint was left"


def damage(random: Random, files: list[Path]) -> None:
    """Half of the time, a byte of one of the files is another; half of that time the file is cut too."""
    if files and random.random() < 0.5:
        hurt = random.choice(files)
        raw = bytearray(hurt.read_bytes())
        raw[random.randrange(len(raw))] ^= 0xFF
        hurt.write_bytes(raw[: random.choice((len(raw), len(raw) // 2))])


def killed_with_checkpoint(random: Random, folder: Path) -> None:
    """kill -9 of `corten complete --checkpoint`, its files damaged too: the second run goes on to the same answer."""
    killed_complete(random, folder, checkpoint=True)


def killed_from_disk(random: Random, folder: Path) -> None:
    """kill -9 of a completion that writes a Zarr store in parts: no store or a whole one; again, the same answer."""
    expected, seconds = undisturbed_from_disk()
    np.save(folder / "in.npy", data())
    first = from_disk(folder)
    # Most of the time into the last part, when the store is being written.
    time.sleep((random.random() if random.random() < 0.3 else 0.6 + 0.4 * random.random()) * seconds)
    first.kill()
    if (folder / "out.zarr").exists():
        assert same(arrays_of(folder / "out.zarr"), expected), "a killed run left another answer"
    again = from_disk(folder, "--overwrite")
    assert again.ended() == 0, again.said()
    assert same(arrays_of(folder / "out.zarr"), expected), "the second run gave another answer"
    assert not left_over(folder), left_over(folder)


def killed_write(random: Random, folder: Path) -> None:
    """kill -9 while a file of any format is written, and written over: the old one or the new one, whole."""
    result = fitted().intervals(0.9)
    path = folder / f"out{random.choice(SUFFIXES)}"

    def work() -> None:
        while True:
            write(path, result)

    running = Running(folder, work)
    time.sleep(0.05 + random.random() * 0.6)
    assert running.send(signal.SIGKILL), running.said()
    running.ended()
    if path.exists():
        check_written(path, result)
    else:
        # A folder that stood aside when the kill came is brought back by the next write, or replaced.
        assert path.suffix == ".zarr" or not any(p.name.endswith(".old") for p in folder.iterdir())
    write(path, result)
    check_written(path, result)
    assert not left_over(folder), left_over(folder)


def killed_study(random: Random, folder: Path) -> None:
    """kill -9 of a study, its cells damaged too: the rest is done again, and all numbers are the same."""

    def fit(cell: Cell, _: Path | None) -> list[dict[str, Any]]:
        result = corten.complete(
            data(), completion="smooth", propensity="uniform", calibration="random", seed=cell["draw"]
        )
        return [{"width": float(np.mean(result.width)), "middle": float(np.mean(result.estimate))}]

    experiments.EXPERIMENTS["fault"] = fit
    cells = [Cell.of("fault", k, model="none", d=10, rank=1, draw=k) for k in range(6)]
    fit(cells[0], None)  # loaded and compiled before any fork
    expected, seconds = undisturbed_study("study", cells, 1)
    running = Running(folder, lambda: run_cells(cells, Store(folder / "study")))
    time.sleep(random.random() * seconds)
    running.kill()
    _goes_on(random, folder, cells, expected, 1)


def killed_study_of_two(random: Random, folder: Path) -> None:
    """kill -9 of a study with two workers: they end too, and the rest is done again to the same numbers."""
    cells = part_named("coverage").cells(PRESETS["tiny"])
    cells = [cell for cell in cells if cell.experiment == "reading"] + cells[:1]  # quick ones, and one to be killed in
    expected, seconds = undisturbed_study("study of two", cells, 2)
    running = Running(folder, lambda: run_cells(cells, Store(folder / "study"), 2))
    until = time.monotonic() + random.random() * seconds
    seen: set[int] = set()
    while time.monotonic() < until or (len(seen) < 2 and running.send(0)):
        seen.update(children(running.pid))
        time.sleep(0.01)
    running.kill()
    since = time.monotonic()
    while any(map(runs, seen)) and time.monotonic() - since < 10:
        time.sleep(0.01)
    assert not any(map(runs, seen)), "workers were left running"
    _goes_on(random, folder, cells, expected, 2)


def undisturbed_study(name: str, cells: list[Cell], jobs: int) -> tuple[str, float]:
    """The rows of a study that nobody disturbs, and how long it takes."""
    if name not in made:
        with tempfile.TemporaryDirectory() as there:
            folder = Path(there)
            store, began = Store(folder), time.monotonic()
            done = Running(folder, lambda: run_cells(cells, store, jobs))
            assert done.ended() == 0, done.said()
            made[name] = _rows(store, cells), time.monotonic() - began
    return made[name]


def _rows(store: Store, cells: list[Cell]) -> str:
    rows = [row for name in sorted({cell.experiment for cell in cells}) for row in store.rows(name)]
    return repr([{k: v for k, v in row.items() if "seconds" not in k and k != "version"} for row in rows])


def _goes_on(random: Random, folder: Path, cells: list[Cell], expected: str, jobs: int) -> None:
    damage(random, sorted((folder / "study" / "cells").glob("*/[!.]*.parquet")))
    again = Running(folder, lambda: run_cells(cells, Store(folder / "study"), jobs))
    assert again.ended() == 0, again.said()
    assert _rows(Store(folder / "study"), cells) == expected, "other numbers"
