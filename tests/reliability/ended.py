"""Ctrl-C, and being asked to end: at once, with the right code, no traceback and nothing partial."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import numpy as np

from reliability.processes import (
    GAPS,
    Missed,
    Running,
    arrays_of,
    command,
    data,
    from_disk,
    left_over,
    same,
    undisturbed,
    undisturbed_from_disk,
)

WAITS: list[tuple[float, float]] = []  # seconds from a signal to the end of the program, and what of it was our stall


def interrupted(random: Random, folder: Path, how: int = signal.SIGINT) -> None:
    """Ctrl-C at any moment of `corten complete`: ends at once with code 130, no traceback, no partial output."""
    expected, seconds = undisturbed()
    np.save(folder / "in.npy", data())
    out = folder / "out.nc"
    running = Running(folder, lambda: command("complete", folder / "in.npy", "-o", out, *GAPS))
    time.sleep(random.random() * seconds)
    _ends_at_once(running, how)
    _left_nothing(folder, out, expected)


def told_to_end(random: Random, folder: Path) -> None:
    """SIGTERM, as batch systems send it, is like Ctrl-C; its code is 143."""
    interrupted(random, folder, signal.SIGTERM)


def told_to_end_from_disk(random: Random, folder: Path) -> None:
    """SIGTERM or Ctrl-C while a Zarr store is written in parts, by several threads: no hidden store is left."""
    expected, seconds = undisturbed_from_disk()
    np.save(folder / "in.npy", data())
    running = from_disk(folder)
    until = time.monotonic() + (random.random() * seconds if random.random() < 0.3 else 10 * seconds)
    while time.monotonic() < until and not left_over(folder) and not (folder / "out.zarr").exists():
        time.sleep(0.001)  # most of the time until the store is begun
    time.sleep(random.random() * 0.3 * seconds)
    _ends_at_once(running, random.choice((signal.SIGINT, signal.SIGTERM)))
    _left_nothing(folder, folder / "out.zarr", expected)


def _ends_at_once(running: Running, how: int) -> None:
    running.wait_until_it_listens()
    if not running.send(how):
        raise Missed
    since = time.monotonic()
    code = running.ended()
    WAITS.append((time.monotonic() - since, running.stall))
    if code == 0:
        raise Missed
    assert code == 128 + how, f"exit code {code}: {running.said()[-300:]}"
    assert "Traceback" not in running.said(), running.said()[-600:]


def _left_nothing(folder: Path, out: Path, expected: list[np.ndarray]) -> None:
    assert not left_over(folder), left_over(folder)
    if out.exists():
        assert same(arrays_of(out), expected)
