"""A disk that is full: a small one of our own, which nobody else sees."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from reliability.processes import (
    GAPS,
    Missed,
    NotHere,
    Running,
    arrays_of,
    check_written,
    command,
    command_from_disk,
    data,
    fitted,
    left_over,
    same,
    undisturbed,
    undisturbed_from_disk,
    write,
)

NEW_MOUNTS = 0x00020000  # CLONE_NEWNS of Linux: what the process mounts from now on, only its own children see
NOT_HERE, MISSED = 77, 78


def full_disk_file(random: Random, folder: Path) -> None:
    """No room for a NetCDF file, a Zarr store or a fit: an error that names it; what was there before stays."""
    result, suffix, old = fitted().intervals(0.9), random.choice((".nc", ".zarr", ".corten")), random.random() < 0.5

    def work(disk: Path) -> None:
        path = disk / f"out{suffix}"
        if old:
            write(path, result)
        with _nearly_full(disk, random):
            try:
                write(path, result)
            except OSError as problem:
                assert path.name in str(problem), f"names no file: {problem}"
            else:
                raise Missed
            assert path.exists() == old, "a partial file"
            assert not left_over(disk), left_over(disk)
            if old:
                check_written(path, result)
        write(path, result)
        check_written(path, result)

    _on_a_disk_of_its_own(folder, work)


def full_disk_checkpoint(random: Random, folder: Path) -> None:
    """No room for rounds or output of `corten complete --checkpoint`: one line, code 2; with room it goes on."""
    expected, _ = undisturbed()

    def work(disk: Path) -> None:
        np.save(disk / "in.npy", data())
        asked = ("complete", disk / "in.npy", "-o", disk / "out.nc", *GAPS, "--checkpoint", disk / "kept")
        _refused_then_done(folder, disk, random, lambda: command(*asked))
        assert same(arrays_of(disk / "out.nc"), expected), "another answer"
        assert not (disk / "kept").exists(), "the checkpoint was left"

    _on_a_disk_of_its_own(folder, work)


def full_disk_memory(random: Random, folder: Path) -> None:
    """No room for the store that `corten complete --memory` writes in parts: one line, code 2, and no store."""
    expected, _ = undisturbed_from_disk()

    def work(disk: Path) -> None:
        np.save(disk / "in.npy", data())
        _refused_then_done(folder, disk, random, lambda: command_from_disk(disk))
        assert same(arrays_of(disk / "out.zarr"), expected), "another answer"

    _on_a_disk_of_its_own(folder, work)


def _refused_then_done(folder: Path, disk: Path, random: Random, program: Callable[[], None]) -> None:
    inner = folder / "inner"
    inner.mkdir()
    with _nearly_full(disk, random):
        first = Running(inner, program)
        if first.ended() == 0:
            raise Missed
        said = first.said()
        assert first.code == 2 and str(disk) in said and "Traceback" not in said, f"code {first.code}: {said[-600:]}"
        assert not left_over(disk), left_over(disk)
        assert not list(disk.glob("out.*")), "a partial output"
    second = Running(inner, program)
    assert second.ended() == 0, second.said()


@contextmanager
def _nearly_full(disk: Path, random: Random) -> Iterator[None]:
    """A few pages are left."""
    left = 4096 * random.choice((0, 1, 2, 4, 8, 16, 24))
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - left))
    yield
    (disk / "filler").unlink()


def _on_a_disk_of_its_own(folder: Path, work: Callable[[Path], None]) -> None:
    """Do the work in a process with a disk of 4 MB. Needs Linux, and a user who may mount."""
    disk = folder / "disk"
    disk.mkdir()

    def child() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS) != 0:
                raise OSError(ctypes.get_errno(), "no mounts of its own")
            for asked in (("--make-rprivate", "/"), ("-t", "tmpfs", "-o", "size=4m", "none", str(disk))):
                subprocess.run(["mount", *asked], check=True)
        except (OSError, AttributeError, subprocess.SubprocessError):
            os._exit(NOT_HERE)
        try:
            work(disk)
        except Missed:
            os._exit(MISSED)

    running = Running(folder, child)
    code = running.ended()
    if code == NOT_HERE:
        raise NotHere("a disk of its own needs Linux and a user who may mount")
    if code == MISSED:
        raise Missed
    assert code == 0, running.said()[-900:]
