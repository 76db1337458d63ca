"""Reads a file in a process of its own: a library in C that crashes or hangs on it takes nobody with it."""

from __future__ import annotations

import builtins
import os
import pickle
import struct
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn, TypeVar

__all__ = ["read_apart"]

Found = TypeVar("Found")
SECONDS, BYTES_A_SECOND = 20, 5e6  # of computing: far more than any whole file has been seen to need
WAITING = 10  # times as long may pass by the clock: disks are slow, machines busy
_EVEN = 64  # arrays begin at multiples of so many bytes


def read_apart(path: Path, work: Callable[[], Found]) -> Found:
    """What `work` gives or raises, done in a forked process; a ValueError if a signal ended it.

    Only the answer comes back, through memory that both share: bytes of the file that could lead a library astray are
    never met here. Where there is no safe fork (Windows, macOS) the work is done in this process.
    """
    if not sys.platform.startswith("linux"):
        return work()
    shared = os.memfd_create("corten-read")
    try:
        with warnings.catch_warnings():
            # Python and JAX warn of forks beside threads, which may hold locks: the caller chose to be careful here,
            # and a process that waits for such a lock is ended too.
            warnings.simplefilter("ignore")
            pid = os.fork()
        seconds = SECONDS + int(_size(path) / BYTES_A_SECOND)
        if pid == 0:
            _answer(work, seconds, shared)
        try:
            status = _ended(pid, WAITING * seconds)
        except BaseException:
            _end(pid)
            raise
        if status != 0:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
            raise ValueError(
                f"{path} makes the library that reads it crash or hang ({how}): it is damaged, or was made to do harm"
            )
        found, problem, heard = _unpacked(path, shared)
    finally:
        os.close(shared)
    for message, category in heard:
        warnings.warn(message, getattr(builtins, category, UserWarning), stacklevel=3)
    if problem is not None:
        kind, said = problem
        raise getattr(builtins, kind)(*said)
    return found


def _answer(work: Callable[[], Any], seconds: int, shared: int) -> NoReturn:
    """In the forked process: do the work within limits, write down what came of it, and leave."""
    import faulthandler
    import resource

    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        found, problem = None, None
        with warnings.catch_warnings(record=True) as heard:
            try:
                found = work()
            except Exception as raised:
                problem = _in_words(raised)
        _pack((found, problem, [(str(one.message), one.category.__name__) for one in heard]), shared)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _in_words(raised: Exception) -> tuple[str, tuple[Any, ...]]:
    """The nearest error that Python itself has, and what to make it of."""
    kind = next(one for one in type(raised).__mro__ if getattr(builtins, one.__name__, None) is one)
    if isinstance(raised, OSError) and raised.errno is not None:
        named = () if raised.filename is None else (str(raised.filename),)
        return kind.__name__, (raised.errno, raised.strerror, *named)
    return ("ValueError" if issubclass(kind, UnicodeError) else kind.__name__), (str(raised),)


def _pack(answer: Any, shared: int) -> None:
    """Arrays are written beside the rest, one copy of each, where the other process maps them into its memory."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(answer, protocol=5, buffer_callback=arrays.append)
    parts = [memoryview(rest), *(array.raw() for array in arrays)]
    with open(shared, "wb", closefd=False) as stream:
        stream.write(struct.pack(f"<{1 + len(parts)}q", len(parts), *(part.nbytes for part in parts)))
        for part in parts:
            stream.write(bytes(-stream.tell() % _EVEN))
            stream.write(part)


def _unpacked(path: Path, shared: int) -> Any:
    held = memoryview(mmap(shared, 0))
    (count,) = struct.unpack_from("<q", held)
    at, parts = 8 * (1 + count), []
    for size in struct.unpack_from(f"<{count}q", held, 8):
        at += -at % _EVEN
        parts.append(held[at : at + size])
        at += size
    try:
        return pickle.loads(parts[0], buffers=parts[1:])  # of our own process, never of the file
    except Exception as problem:
        raise ValueError(f"{path} led the process that read it astray ({problem}): it is damaged") from None


def _ended(pid: int, seconds: float) -> int:
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
