"""Not enough: files that may not grow, no permission, no memory, an input that somebody writes meanwhile."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from random import Random

import numpy as np

from corten import io
from reliability.processes import (
    GAPS,
    SUFFIXES,
    Missed,
    Running,
    check_written,
    command,
    data,
    fitted,
    left_over,
    undisturbed,
    write,
)


def small_files(random: Random, folder: Path) -> None:
    """Files may not grow beyond a limit: an error that names it, and neither the old file nor the folder is harmed."""
    result = fitted().intervals(0.9)
    path = folder / f"out{random.choice(SUFFIXES)}"
    old = random.random() < 0.5
    if old:
        write(path, result)
    limit = random.choice((0, 100, 1000, 3000, 6000))

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            write(path, result)
        except OSError as problem:
            os._exit(40 if path.name in str(problem) else 41)
        except ValueError as problem:
            os._exit(40 if path.name in str(problem) else 42)
        except RuntimeError:
            os._exit(43)

    running = Running(folder, work)
    code = running.ended()
    assert code in (0, 40), f"{path.suffix} at {limit} bytes: code {code}: {running.said()[-300:]}"
    if code == 40:
        assert path.exists() == old, "a partial file"
    if path.exists():
        check_written(path, result)
    assert not left_over(folder), left_over(folder)
    if code == 0:
        raise Missed


def read_only(random: Random, folder: Path) -> None:
    """A folder that may not be written to is refused before any work."""
    undisturbed()
    import typer.rich_utils  # noqa: F401  what the program loads while it starts: nobody else may read it later

    np.save(folder / "in.npy", data())
    inside = folder / "closed"
    inside.mkdir()
    inside.chmod(0o555)
    folder.chmod(0o755)

    def work() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        command("complete", folder / "in.npy", "-o", inside / "out.nc", *GAPS)

    running = Running(folder, work)
    code = running.ended()
    assert code == 2 and "may not be written to" in running.said(), (code, running.said())


def too_little_memory(random: Random, folder: Path) -> None:
    """A fit that will not fit is refused before it starts, with both numbers."""
    np.save(folder / "in.npy", data())
    room = random.choice((10_000, 100_000, 200_000))

    def work() -> None:
        os.environ["CORTEN_MEMORY"] = str(room)
        command("complete", folder / "in.npy", "-o", folder / "out.nc", *GAPS)

    running = Running(folder, work)
    code = running.ended()
    words = running.said()
    # Where the whole tensor would not fit, the fit from disk answers, and says that it cannot do this one.
    refused = ("needs about" in words and "are available" in words) or "out-of-core mode" in words
    assert code == 2 and refused, (code, words)
    assert not (folder / "out.nc").exists()


def changed_underneath(random: Random, folder: Path) -> None:
    """A file that somebody writes while it is read: the old content, the new one, or a refusal; never a mixture."""
    path = folder / "in.npy"
    first, second = np.zeros((60, 60, 60)), np.ones((60, 60, 60))
    np.save(path, first)

    def work() -> None:
        while True:
            for one in (second, first):
                np.save(path, one)
                time.sleep(0.001 * random.random())

    running, seen = Running(folder, work), set()
    try:
        for _ in range(30):
            try:
                found = io.read(path).data
            except (ValueError, OSError) as problem:
                assert path.name in str(problem), problem
                seen.add("refused")
                continue
            assert (found == found.flat[0]).all(), "a mixture of two contents"
            seen.add(found.flat[0])
        if len(seen) < 2:
            raise Missed
    finally:
        running.send(signal.SIGKILL)
        running.ended()
