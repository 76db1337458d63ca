"""Tries a file in a process of its own first: a library in C that crashes on it then takes nobody with it."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["refuse_crashing"]

SECONDS, BYTES_A_SECOND = 20, 5e6  # of computing: far more than any whole file has been seen to need
WAITING = 10  # times as long may pass by the clock: disks are slow, machines busy


def refuse_crashing(path: Path, work: Callable[[], object]) -> None:
    """Run `work` in a forked process; a ValueError if a signal ended it. What it raises is left to be raised again.

    Where there is no safe fork (Windows, macOS) nothing is tried.
    """
    if not sys.platform.startswith("linux"):
        return
    with warnings.catch_warnings():
        # Python and JAX warn of forks beside threads, which may hold locks: the caller chose to be careful here, and a
        # process that waits for such a lock is ended too.
        warnings.simplefilter("ignore")
        pid = os.fork()
    seconds = SECONDS + int(_size(path) / BYTES_A_SECOND)
    if pid == 0:
        _try(work, seconds)
    try:
        status = _answer(pid, WAITING * seconds)
    except BaseException:
        _end(pid)
        raise
    if os.WIFSIGNALED(status):
        raise ValueError(
            f"{path} makes the library that reads it crash or hang (signal {os.WTERMSIG(status)}): it is damaged, or "
            "was made to do harm"
        )


def _answer(pid: int, seconds: float) -> int:
    """The status a process ends with; after so many seconds by the clock it is ended."""
    until, pause = time.monotonic() + seconds, 0.001
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            _end(pid)
            until = float("inf")
        time.sleep(pause)
        pause = min(0.05, 1.3 * pause)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files)


def _try(work: Callable[[], object], seconds: int) -> None:
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)
