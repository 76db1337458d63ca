"""Tries a file in a process of its own first: a library in C that crashes on it then takes nobody with it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["refuse_crashing"]

SECONDS, BYTES_A_SECOND = 20, 5e6  # of computing: far more than any whole file has been seen to need


def refuse_crashing(path: Path, work: Callable[[], object]) -> None:
    """Run `work` in a forked process; a ValueError if a signal ended it. What it raises is left to be raised again.

    Where there is no safe fork (Windows, macOS) nothing is tried.
    """
    if not sys.platform.startswith("linux"):
        return
    with warnings.catch_warnings():
        # Python warns of forks beside threads, which may hold locks: the caller chose to be careful here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _try(work, SECONDS + int(_size(path) / BYTES_A_SECOND))
    try:
        _, status = os.waitpid(pid, 0)
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        raise
    if os.WIFSIGNALED(status):
        raise ValueError(
            f"{path} makes the library that reads it crash or hang (signal {os.WTERMSIG(status)}): it is damaged, or "
            "was made to do harm"
        )


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
