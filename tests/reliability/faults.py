"""Faults, one after another: killed, interrupted, out of disk, memory or permission, files changed underneath.

Each fault is a function of a source of randomness and an empty folder; it ends well, or an AssertionError says what
broke, or it says that it missed: then it is drawn again. The signals are real.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from reliability import ended, full, killed, lacking
from reliability.processes import Missed, NotHere

__all__ = ["FAULTS", "many_faults"]

Fault = Callable[[Random, Path], None]
WITHIN = 1.0  # seconds from a signal to the end, beyond those for which the machine kept us waiting too
FAULTS: dict[str, Fault] = {
    "kill -9 of `corten complete`": killed.killed_complete,
    "kill -9 of `corten complete --checkpoint`, its files damaged too": killed.killed_with_checkpoint,
    "kill -9 while a file is written (nine formats)": killed.killed_write,
    "kill -9 of a study, its cells damaged too": killed.killed_study,
    "kill -9 of a study with two workers, its cells damaged too": killed.killed_study_of_two,
    "kill -9 of `corten complete --memory`, which writes a Zarr store in parts": killed.killed_from_disk,
    "Ctrl-C of `corten complete`": ended.interrupted,
    "SIGTERM of `corten complete`": ended.told_to_end,
    "SIGTERM or Ctrl-C of `corten complete --memory`": ended.told_to_end_from_disk,
    "full disk (NetCDF, Zarr, a fit)": full.full_disk_file,
    "full disk of `corten complete --checkpoint`": full.full_disk_checkpoint,
    "full disk of `corten complete --memory`": full.full_disk_memory,
    "files may not grow (nine formats)": lacking.small_files,
    "read-only folder": lacking.read_only,
    "too little memory": lacking.too_little_memory,
    "input changed while it is read": lacking.changed_underneath,
}


def strike(fault: Fault, seed: str) -> None:
    """One fault, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="corten-faults-") as name:
        fault(Random(seed), Path(name))


def many_faults(count: int, seed: int) -> dict[str, Any]:
    """Every fault until it has struck `count` times: how many were survived, and what was not."""
    ended.WAITS.clear()
    found = {name: _one(name, fault, count, seed) for name, fault in FAULTS.items()}
    waited, stall = max(ended.WAITS, key=lambda one: one[0] - one[1], default=(0.0, 0.0))
    return {"faults": found, "slowest_interrupt": waited, "stall": stall, "within": WITHIN}


def _one(name: str, fault: Fault, count: int, seed: int) -> dict[str, Any]:
    struck, missed, failed, began = 0, 0, [], time.monotonic()
    while struck < count and missed < 20 * count:
        k, before, broken = struck + missed, len(ended.WAITS), []
        try:
            strike(fault, f"{seed} {name} {k}")
            hit = True
        except Missed:
            hit = False
        except NotHere as why:
            return {"struck": 0, "survived": 0, "missed": 0, "failed": [], "seconds": 0.0, "not_here": str(why)}
        except AssertionError as problem:
            broken.append(str(problem))
        broken += [
            f"ended after {waited:.2f} s, of which the machine stalled for {stall:.2f} s"
            for waited, stall in ended.WAITS[before:]
            if waited - stall >= WITHIN
        ]
        if broken:
            failed.append(f"number {k}: {'; '.join(broken)}")
        struck, missed = (struck + 1, missed) if broken or hit else (struck, missed + 1)
    survived = struck - len(failed)
    if struck < count:
        failed.append(f"struck {struck} times only")
    told = {"struck": struck, "survived": survived, "missed": missed, "failed": failed}
    return told | {"seconds": time.monotonic() - began}
