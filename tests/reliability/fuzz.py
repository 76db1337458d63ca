"""Reads damaged and hostile files in forked workers, and counts what was read, refused, and what went wrong.

A worker that crashes (a library in C may), hangs or grows is counted, named by its seed, and replaced.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from corten.io import apart
from reliability.corpus import KINDS, Content
from reliability.doors import DOORS, LIMIT, doors_of, whole_files
from reliability.hostile import HOME, MARK, SECRET, SECRET_FILE
from reliability.mutate import damaged

__all__ = ["Tally", "case_of", "fuzz", "judge", "place"]

GROWTH = 400 * 2**20  # resident memory a single file may add, libraries included
ADDRESS = 3 * 2**30  # address space a worker may add
PATIENCE = 30.0  # seconds a single file may take on a busy machine


@dataclass
class Tally:
    """What happened, and the seeds of what should not have."""

    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    read: int = 0
    refused: int = 0
    contained: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.tried.values())


def case_of(seed: int, kinds: Sequence[str] | None = None) -> tuple[str, str, Content]:
    """The file of a seed: its kind, the door by which it comes, and its content."""
    random = Random(seed)
    kind = random.choice(KINDS if kinds is None else list(kinds))
    door = random.choice(doors_of(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind, door, damaged(kind, random, whole_files(kind, door))


def place(content: Content, path: Path) -> None:
    """Write a case to disk."""
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    shutil.rmtree(path, ignore_errors=True)
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def judge(path: Path, door: str = "read", careful: bool = False) -> tuple[str, str]:
    """Let a file in: 'read', 'refused' (a ValueError or OSError that names it), or 'wrong' and why."""
    _SEEN.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        held = DOORS[door](path, careful)
        verdict, why = "read", ""
    except (ValueError, OSError) as problem:
        verdict, why, held = "refused", str(problem), None
        if path.name not in why:
            verdict, why = "wrong", f"does not name the file: {type(problem).__name__}: {why[:200]}"
        elif any(word in why for word in ("Unable to allocate", "MemoryError", "bad_alloc")):
            verdict, why = "wrong", f"memory: {why[:200]}"
    except BaseException as problem:
        verdict, why, held = "wrong", f"{type(problem).__name__}: {str(problem)[:200]}", None
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown * 1024 > GROWTH:
        verdict, why = "wrong", f"took {grown >> 10} MB of memory"
    if MARK.exists():
        MARK.rmdir()
        verdict, why = "wrong", "code in the file was run"
    if _SEEN:
        verdict, why = "wrong", f"did what no reader may: {_SEEN[0]}"
    if held is not None and SECRET in np.asarray(held).tobytes():
        verdict, why = "wrong", "the content of another file came back"
    return verdict, why


_SEEN: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and arguments[1] == apart._command():
        return  # the process that reads apart
    if event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect"):
        _SEEN.append(f"{event} {arguments!r:.100}")
    elif event == "open" and str(arguments[0]).startswith(str(SECRET_FILE)):
        _SEEN.append(f"opened {arguments[0]}")


def prepare() -> None:
    """A folder with a secret beside the files, where links of hostile files lead."""
    import h5py

    HOME.mkdir(parents=True, exist_ok=True)
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    SECRET_FILE.write_bytes(SECRET)
    with h5py.File(str(SECRET_FILE) + ".h5", "w") as file:
        file["secret"] = np.frombuffer(SECRET, np.uint8).reshape(2, 8)


class _Shared:
    """Numbers that outlive a worker: the seed under way, files read and refused, the kind under way, files by kind."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 8 * (4 + len(KINDS)))

    def __getitem__(self, k: int) -> int:
        return int(struct.unpack_from("<q", self._map, 8 * k)[0])

    def __setitem__(self, k: int, value: int) -> None:
        struct.pack_into("<q", self._map, 8 * k, value)


def _work(
    start: int, stop: int, shared: _Shared, failures: Path, kinds: Sequence[str] | None, careful: bool = False
) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS, size + ADDRESS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["CORTEN_MEMORY"] = str(LIMIT)
    sys.addaudithook(_watch)
    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    folder = HOME / str(os.getpid())
    folder.mkdir()
    for seed in range(start, stop):
        shared[0] = seed
        kind, door, content = case_of(seed, kinds)
        shared[3] = KINDS.index(kind)
        path = folder / f"bad{kind}"
        place(content, path)
        verdict, why = judge(path, door, careful)
        shared[4 + shared[3]] += 1
        if verdict == "wrong":
            with failures.open("a") as stream:
                stream.write(json.dumps(f"seed {seed}, {kind}, {door}: {why}") + "\n")
        else:
            shared[1 if verdict == "read" else 2] += 1
    shared[0] = stop
    shutil.rmtree(folder, ignore_errors=True)


def fuzz(
    count: int,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    patience: float = PATIENCE,
) -> Tally:
    """Read `count` files, those of seeds `seed * 10**9` and on; one that takes longer than `patience` has hung."""
    prepare()
    tally, shared, began = Tally(), _Shared(), time.monotonic()
    failures = HOME / "failures"
    failures.write_text("")
    at = seed * 10**9
    stop = at + count
    while at < stop:
        shared[0] = at
        # A fresh worker now and then: what a library leaks over ten thousand files is not what is asked here.
        end = min(stop, at + 10_000)
        at, died = _run(at, end, shared, failures, kinds, patience)
        if died:
            # A library crashed or hung in our process: does reading carefully turn that into a refusal?
            _, again = _run(at - 1, at, shared, failures, kinds, 10 * patience, careful=True)
            worse = tally.hung if "more than" in again else tally.crashed
            (worse if again else tally.contained).append(died)
    tally.read, tally.refused = shared[1], shared[2]
    tally.tried = {kind: shared[4 + k] for k, kind in enumerate(KINDS)}
    tally.wrong += [json.loads(line) for line in failures.read_text().splitlines()]
    tally.seconds = time.monotonic() - began
    shutil.rmtree(HOME, ignore_errors=True)
    return tally


def _run(
    at: int,
    end: int,
    shared: _Shared,
    failures: Path,
    kinds: Sequence[str] | None,
    patience: float,
    careful: bool = False,
) -> tuple[int, str]:
    """A worker from its start to its end: where the next one has to begin, and what killed this one, if anything."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _work(at, end, shared, failures, kinds, careful)
            code = 0
        finally:
            os._exit(code)
    seen, waited, last = shared[0], 0.0, time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                return end, ""
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
            return shared[0] + 1, f"seed {shared[0]}, {KINDS[shared[3]]}: {how}"
        now = time.monotonic()
        # Steps of a tenth of a second at most: when the whole machine stands still, nobody has hung.
        waited, last = waited + min(now - last, 0.1), now
        if shared[0] != seen:
            seen, waited = shared[0], 0.0
        if waited > patience:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return shared[0] + 1, f"seed {shared[0]}, {KINDS[shared[3]]}: more than {patience:.0f} s"
        time.sleep(0.01)


def main() -> None:
    """`PYTHONPATH=tests python -m reliability.fuzz COUNT [SEED]` for a quick look; or `replay SEED` for one file."""
    if sys.argv[1] == "replay":
        prepare()
        kind, door, content = case_of(int(sys.argv[2]))
        path = HOME / f"bad{kind}"
        place(content, path)
        os.environ["CORTEN_MEMORY"] = str(LIMIT)
        print(path, door, judge(path, door))
        return
    tally = fuzz(
        int(sys.argv[1]),
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
        sys.argv[3].split(",") if len(sys.argv) > 3 else None,
    )
    print(f"{tally.total} files in {tally.seconds:.0f} s: {tally.read} read, {tally.refused} refused")
    for what in ("contained", "crashed", "hung", "wrong"):
        found = getattr(tally, what)
        print(what, len(found), *found[:60], sep="\n  ")


if __name__ == "__main__":
    main()
