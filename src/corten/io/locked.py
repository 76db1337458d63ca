"""Let one program at a time change a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: there is no lock there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Wait until no other program holds the lock of a file, and hold it during the block.

    The lock is on a file of its own beside it, since the file itself is replaced when it is written. The system frees
    the lock of a killed program. Without locks (Windows, some file systems) the block simply runs.
    """
    if fcntl is None:
        yield
        return
    place = Path(path)
    beside = place.with_name(f".{place.name}.lock")
    held = _acquired(beside)
    try:
        yield
    finally:
        # Removed while it is still held: a program that waits finds another file there, or none, and tries again.
        with suppress(OSError):
            beside.unlink()
        os.close(held)


def _acquired(beside: Path) -> int:
    """The descriptor of the lock file, locked, and still the file of that name."""
    while True:
        held = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(beside)):
                return held
        os.close(held)
