"""Writes files completely or not at all: under a temporary name first, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name in the folder of `path`; it replaces `path` when the block ends without an error.

    The name begins with a dot, so that what a killed process leaves behind is not taken for a result.
    """
    target = Path(path)
    temporary = target.with_name(f".part-{os.getpid()}.{target.name}")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())  # a power cut leaves the old file or the new one
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
