"""Several files at once, one task each: on this machine one after the other, on a cluster side by side.

Files are read and written here; a worker gets a tensor and gives back the bytes of a file, so it needs no common disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from corten import io
from corten.cli.options import DataOptions
from corten.cli.terminal import Terminal
from corten.data.plain import Json
from corten.engine.cluster_blocks import LOOK_SECONDS
from corten.io import Loaded
from corten.io.files import suffix_of
from corten.io.whole import refuse_inputs, refuse_taken, whole_file

if TYPE_CHECKING:
    from distributed import Future

    from corten.completer import ConformalCompleter
    from corten.engine.cluster import Cluster
    from corten.options import EngineName

Done: TypeAlias = "tuple[bytes, dict[str, Json]]"
"""A NetCDF file, as bytes, and its summary."""
Answers: TypeAlias = "Iterator[tuple[int, Done | BaseException]]"
"""By the number of the file."""

EXPECTED = (ValueError, TypeError, OSError, MemoryError)  # errors that a file can cause
TENSORS_PER_THREAD = 2  # sent ahead for each thread of the cluster
MAX_TRIES = 4  # a tensor that was lost with its worker is sent again


@dataclass(frozen=True)
class Job:
    """What is done with every file, and the engine of the machine where it runs."""

    completer: ConformalCompleter
    engine: str | int
    levels: tuple[float, ...]
    data: DataOptions

    def run(self, loaded: Loaded) -> Done:
        """A NetCDF file, as bytes, and its summary."""
        completer = replace(self.completer, engine=cast("EngineName", self.engine))
        fitted = completer.fit(self.data.tensor(loaded))
        first, *further = fitted.intervals(list(self.levels))
        with tempfile.TemporaryDirectory() as folder:
            written = io.write(Path(folder, "filled.nc"), first, further=further, like=loaded.like)
            return written.read_bytes(), first.summary().to_dict()


def targets(files: Sequence[Path], folder: Path, overwrite: bool) -> list[Path]:
    """A NetCDF file for every input, named after it, in one folder; names that clash or exist are refused."""
    if folder.suffix or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"output is {folder}: with several files give a folder; each is written there as NAME.nc")
    named = [folder / (path.name[: len(path.name) - len(suffix_of(path))] + ".nc") for path in files]
    for path in named:
        if named.count(path) > 1:
            raise ValueError(f"several inputs would be written to {path}: give files of different names")
        if folder.exists():
            refuse_taken(path, overwrite)
    refuse_inputs(named, files)
    return named


def complete_files(
    files: Sequence[Path], named: Sequence[Path], *, read: Callable[[Path], Loaded], job: Job, cluster: Cluster | None,
    terminal: Terminal, overwrite: bool,
) -> None:  # fmt: skip
    """Complete every file; those that fail are named at the end, the others are written."""
    named[0].parent.mkdir(parents=True, exist_ok=True)
    done: dict[int, dict[str, object]] = {}
    failed: dict[int, str] = {}
    filled: dict[int, Json] = {}
    stage = f"completing {len(files)} files"
    with terminal.progress() as move:
        move(stage, 0.0)
        found = _here(files, read, job) if cluster is None else _there(files, read, job, cluster)
        for k, answer in found:
            if isinstance(answer, BaseException):
                kind = "" if isinstance(answer, EXPECTED) else f"{type(answer).__name__}: "
                failed[k] = kind + " ".join(str(answer).split())
            else:
                with whole_file(named[k], overwrite) as temporary:
                    temporary.write_bytes(answer[0])
                done[k] = {"output": str(named[k]), "summary": answer[1]}
                filled[k] = answer[1]["missing"]
            move(stage, (len(done) + len(failed)) / len(files))
    for k, missing in sorted(filled.items()):
        terminal.say(f"{files[k]}: {missing} entries filled, wrote {named[k]}")
    terminal.answer(
        {
            "files": {str(files[k]): one for k, one in sorted(done.items())},
            "failed": {str(files[k]): why for k, why in sorted(failed.items())},
        }
    )
    if failed:
        raise ValueError(f"{len(failed)} of {len(files)} files could not be completed: {_listed(files, failed)}")


def _listed(files: Sequence[Path], failed: dict[int, str]) -> str:
    """Every reason once, after the files it stopped."""
    by_reason: dict[str, list[str]] = {}
    for k, why in sorted(failed.items()):
        by_reason.setdefault(why, []).append(str(files[k]))
    return "; ".join(f"{', '.join(those)}: {why}" for why, those in by_reason.items())


def _here(files: Sequence[Path], read: Callable[[Path], Loaded], job: Job) -> Answers:
    for k, path in enumerate(files):
        try:
            yield k, job.run(read(path))
        except EXPECTED as problem:
            yield k, problem


def _there(files: Sequence[Path], read: Callable[[Path], Loaded], job: Job, cluster: Cluster) -> Answers:
    """As tasks, of one thread each unless another engine was asked for; a few tensors are sent at a time."""
    from distributed import wait

    client = cluster.client
    job = replace(job, engine=cluster.inside or 1)
    waiting = [(k, 1) for k in range(len(files))]
    running: dict[Future, tuple[int, int]] = {}
    while waiting or running:
        try:
            threads = sum(cluster.workers().values())
        except OSError as problem:  # no worker is left for the others
            for k, _ in (*waiting, *running.values()):
                yield k, problem
            return
        while waiting and len(running) < TENSORS_PER_THREAD * threads:
            k, tries = waiting.pop(0)
            try:
                tensor = client.scatter(read(files[k]), hash=False)
            except EXPECTED as problem:
                yield k, problem
                continue
            running[client.submit(job.run, tensor, pure=False)] = k, tries
        with suppress(CancelledError, TimeoutError):  # one was lost: found below; or nothing happened: look again
            wait(list(running), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED")
        for future in [one for one in running if one.status != "pending"]:
            k, tries = running.pop(future)
            if future.status == "finished":
                yield k, future.result()
            elif future.status == "error":
                yield k, future.exception()
            elif tries < MAX_TRIES:
                waiting.append((k, tries + 1))
            else:
                yield k, ConnectionError(f"its worker was lost {MAX_TRIES} times (often for lack of memory)")
