"""Reading files: size limits, and errors that name the file."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 16 * 2**30
"""The largest array a file may declare before reading is refused."""

_SMALL = 2**26  # bytes that any machine has
_COMPRESSED = (".gz", ".z")


def suffix_of(path: str | os.PathLike[str]) -> str:
    """The lower-case suffix of the format, with that of a compression: '.nc', '.csv.gz', '.19i.z'."""
    name = Path(path).name.lower()
    stem, last = os.path.splitext(name)
    return os.path.splitext(stem)[1] + last if last in _COMPRESSED else last


def existing(path: str | os.PathLike[str]) -> Path:
    """The path; a FileNotFoundError if it does not exist."""
    found = Path(path)
    if not found.exists():
        beside = found.parent if found.parent.is_dir() else Path.cwd()
        raise FileNotFoundError(f"{found} does not exist (looked in {beside})")
    return found


def check_size(shape: Sequence[int], itemsize: int, max_bytes: int, what: str) -> None:
    """Refuse an array that would be larger than `max_bytes`, before anything is allocated."""
    need, limit, what_limit, remedy = math.prod(int(n) for n in shape) * itemsize, max_bytes, "", ", or raise max_bytes"
    if _SMALL < need <= max_bytes:
        from corten.engine.memory import available

        limit, what_limit, remedy = available(), " of available memory", ""
    if need > limit:
        raise ValueError(
            f"{what} declares {' x '.join(map(str, shape))} values, {need / 2**30:.3g} GiB, above the limit of "
            f"{limit / 2**30:.3g} GiB{what_limit}: read a part of it{remedy}"
        )


class Unchanged:
    """Detects that a file changes while it is read, by its size and the time of its last change.

    `check(whole=True)` compares all files of a folder; `check(whole=False)` those directly in it first, and all files
    only if these differ (files that desktops create do not count).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._front, self._whole = _state(path, whole=False), _state(path, whole=True)

    def check(self, *, whole: bool) -> None:
        try:
            front = None if whole else _state(self.path, whole=False)
            same = front == self._front or _state(self.path, whole=True) == self._whole
            if same and front is not None:
                self._front = front
        except FileNotFoundError:
            same = False
        if not same:
            raise ValueError(f"{self.path} was changed while it was read: read it again when writing has finished")


def by_desktop(name: str) -> bool:
    """Whether desktops and network disks create files of that name in folders."""
    return name.startswith(("._", ".nfs")) or name.lower() in (".ds_store", "thumbs.db", "desktop.ini")


def _state(path: Path, whole: bool) -> int:
    """A hash of names, times and sizes of files that does not depend on their order; of folders only on the front."""
    found = [path] if not path.is_dir() else path.rglob("*") if whole else path.iterdir()
    states = ((one, one.stat(follow_symlinks=False)) for one in found if not by_desktop(one.name))
    return sum(
        hash((str(one), about.st_mtime_ns, about.st_size))
        for one, about in states
        if not (whole and stat.S_ISDIR(about.st_mode))
    )


@contextmanager
def reading(path: Path | str, expected: str, *passed: type[Exception]) -> Iterator[None]:
    """Turn the many ways in which libraries fail on a damaged file into one error that names it, but for `passed`."""
    try:
        yield
    except passed:
        raise
    except Exception as problem:
        detail = " ".join(str(problem).split()) or type(problem).__name__
        raise ValueError(
            f"{path} could not be read as {expected} (damaged, cut short, or of another kind): {detail}"
        ) from None
