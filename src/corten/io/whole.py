"""Write files whole or not at all, even if the program is killed; one program at a time; others are not replaced."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from corten.io.files import by_desktop

try:
    import fcntl
except ImportError:  # not on Windows: there is no lock there
    fcntl = None  # type: ignore[assignment]

MAX_RENAME_ATTEMPTS = 20
MAX_REMOVE_ATTEMPTS = 20  # a thread may still create a file in a folder that is being removed
SECONDS_BETWEEN_ATTEMPTS = 0.01
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_HERE = sha256(platform.node().encode()).hexdigest()[:6]
_LEFT = re.compile(r"\.corten-(?P<host>[0-9a-f]{6})-(?P<pid>\d+)-[0-9a-f]{8}\.")
_ABOUT, _CHUNK = re.compile(r"\.zgroup|\.zattrs|\.zarray|\.zmetadata|zarr\.json"), re.compile(r"c|\d+(\.\d+)*")
_unfinished: set[Path] = set()
_naming = threading.Lock()  # held during renames, and forever once the program ends


def refuse_taken(target: Path, overwrite: bool, *, store: bool = False) -> None:
    """Refuse a target that may not be written, or not be replaced, before the long work starts.

    With `overwrite` a file replaces a file (of a link the link, not what it points to), and a Zarr store (`store`) a
    Zarr store that corten wrote and that holds nothing else. No other folder is ever removed.
    """
    closed = f"the folder {target.parent} may not be written to: write {target.name} elsewhere"
    try:
        taken, there = target.exists() or target.is_symlink(), target.parent.is_dir()
    except PermissionError:
        raise PermissionError(closed) from None
    if taken and not overwrite:
        raise FileExistsError(f"{target} exists: choose another name, or allow it with overwrite=True")
    if not there:
        raise FileNotFoundError(
            f"the folder {target.parent} does not exist: create it, or write {target.name} elsewhere"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(closed)
    reason = _irreplaceable(target, store) if taken else ""
    if reason:
        raise FileExistsError(f"{target} {reason}, so it is not replaced, --overwrite or not: choose another name")


def refuse_no_page(target: Path | None) -> None:
    """Refuse a report whose name is not that of an HTML page."""
    if target is not None and target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{target}: a report is an HTML page, so its name must end in .html")


def _irreplaceable(target: Path, store: bool) -> str:
    """Why something that exists may not be replaced; empty where it may."""
    if not target.is_dir():
        if store:
            return "is a file, and a Zarr store is a folder"
        return "" if target.is_file() or target.is_symlink() else "is neither a file nor a folder"
    if not store:
        return "is a folder, and a file is to be written"
    if target.is_symlink():
        return "is a link to a folder"
    try:
        old = (target / ".zgroup").is_file()
        attrs = json.loads((target / (".zattrs" if old else "zarr.json")).read_text("utf-8"))
        ours = any(key.startswith("corten_") for key in (attrs if old else attrs["attributes"]))
    except (OSError, ValueError, TypeError, KeyError):
        ours = False
    if not ours:
        return "is a folder, and not a Zarr store that corten wrote"
    for found in target.rglob("*"):
        if found.is_dir() and not found.is_symlink():
            continue
        inside = found.relative_to(target)
        array = any((target / inside.parts[0] / name).is_file() for name in (".zarray", "zarr.json"))
        if not (_ABOUT.fullmatch(found.name) or (array and _CHUNK.fullmatch(found.name)) or by_desktop(found.name)):
            return f"holds {inside}, which is no part of a Zarr store"
    return ""


def refuse_inputs(targets: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Refuse targets that are, by whatever name, in or around an input or another target: data would be lost."""
    given, before = [(path, *_place(path)) for path in inputs], list[tuple[Path, str, tuple[int, int] | None]]()
    for target in filter(None, targets):
        place, number = _place(target)
        for other, there, its in given + before:
            inside = f"{place}{os.sep}".startswith(f"{there}{os.sep}") or there.startswith(f"{place}{os.sep}")
            if inside or (number is not None and number == its):
                kind = "the output" if (other, there, its) in before else "the input"
                raise ValueError(f"{target} is {kind} {other}, or a part of it, and would be lost: write elsewhere")
        before.append((target, place, number))


def _place(path: Path) -> tuple[str, tuple[int, int] | None]:
    """Where a path leads, and the number of the file that is there: two names of one file have the same."""
    found = path.stat() if path.exists() else None
    return os.path.realpath(path), None if found is None else (found.st_dev, found.st_ino)


@contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = False, *, store: bool = False) -> Iterator[Path]:
    """A temporary name in the same folder, renamed to `path` if the block succeeds and removed if it fails."""
    target = Path(path)
    _clear_away(target)
    refuse_taken(target, overwrite, store=store)
    temporary = target.with_name(f".corten-{_HERE}-{os.getpid()}-{secrets.token_hex(4)}.{target.name}")
    _unfinished.add(temporary)
    try:
        yield temporary
        _flush(temporary)
        # Another program may have written the file meanwhile: check again.
        refuse_taken(target, overwrite, store=store)
        with _naming:
            _move(temporary, target)
            _unfinished.discard(temporary)
    except OSError as problem:
        if problem.errno not in _FULL:
            raise
        free = shutil.disk_usage(target.parent).free / 1e6
        raise OSError(
            problem.errno,
            f"{target} could not be written: the disk is full or a limit is reached ({os.strerror(problem.errno)}; "
            f"{free:.0f} MB are free): make room, or write elsewhere",
        ) from None
    finally:
        # Stays in the list after an error: a library's thread may still write, and create it again.
        _remove(temporary)


def discard_unfinished() -> None:
    """Remove unfinished files before the program exits; no file is renamed afterwards.

    Threads that still write into a folder would create it again: a plain file takes its name until all is removed.
    What a thread creates after that is removed when the file is written again, like the remains of a killed program.
    """
    _naming.acquire()
    unfinished = tuple(_unfinished)
    for _ in range(MAX_REMOVE_ATTEMPTS):
        moved = [gone for temporary in unfinished for gone in _block_name(temporary)]
        for path in (*moved, *unfinished):
            _remove(path)
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)
        if not any(path.exists() for path in unfinished):
            return


def _block_name(temporary: Path) -> list[Path]:
    """Put a plain file in place of a file or folder, even if threads create the folder again; their new names."""
    moved: list[Path] = []
    for again in range(MAX_RENAME_ATTEMPTS):
        gone = temporary.with_name(temporary.name + ".gone" * (again + 1))
        with suppress(OSError):
            os.replace(temporary, gone)
            moved.append(gone)
        with suppress(OSError):
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL))
            break
    return moved


def _flush(written: Path) -> None:
    """Flush all bytes before the rename: after a power cut there is the old file or the new one."""
    files = [found for found in written.rglob("*") if found.is_file()] if written.is_dir() else [written]
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _move(temporary: Path, target: Path) -> None:
    if not target.is_dir():
        os.replace(temporary, target)
        return
    # A folder cannot be replaced in one step: the old one is renamed first, so that one of them is always complete.
    aside = temporary.with_name(f"{temporary.name}.old")
    try:
        os.replace(target, aside)
        os.replace(temporary, target)
    except BaseException:
        if aside.exists() and not target.exists():
            os.replace(aside, target)
        raise
    _unfinished.add(aside)
    _remove(aside)
    _unfinished.discard(aside)


def _clear_away(target: Path) -> None:
    """Remove what killed programs of this machine left of the same file; a folder renamed by `_move` is restored."""
    for found in target.parent.glob(f".corten-{_HERE}-*"):
        match = _LEFT.match(found.name)
        if not match or _runs(int(match["pid"])):
            continue
        left = found.name[match.end() :]
        if left == f"{target.name}.old" and not target.exists():
            os.replace(found, target)
        elif re.sub(r"(\.old|\.gone)+$", "", left) == target.name:
            _remove(found)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    for _ in range(MAX_REMOVE_ATTEMPTS):
        if not path.is_dir() or path.is_symlink():
            break
        shutil.rmtree(path, ignore_errors=True)
    else:
        return
    with suppress(OSError):
        path.unlink()


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
