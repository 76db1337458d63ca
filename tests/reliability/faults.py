"""Faults, one after another: killed, interrupted, out of disk, memory or permission, files changed underneath.

Each fault is a function of a source of randomness and an empty folder; it ends well, or an AssertionError says what
broke.
Programs run in processes forked from this one, which has loaded everything already: a kill then falls into the work,
not into the start of Python. The signals are real.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import corten
from corten import io
from corten.cli import main
from corten.result import Intervals

__all__ = ["FAULTS", "many_faults"]

SUFFIXES = (".nc", ".zarr", ".npz", ".npy", ".csv", ".parquet", ".mat", ".html", ".corten")
SLOWEST = [0.0]  # seconds from an interrupt to the end of the program


def data() -> np.ndarray:
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 4.0, 10)
    x = np.sin(t[:, None, None] + 0.7 * t[:, None]) * np.cos(t) + 0.05 * rng.normal(size=(10, 10, 10))
    x[2:6, 3:7, 4:8] = np.nan
    x[7:9, 1:4, :4] = np.nan
    return x


class Running:
    """A forked process that does some work; its words go to a file."""

    def __init__(self, folder: Path, work: Callable[[], object]) -> None:
        self.words = folder / ".words"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        self.code: int | None = None
        if self.pid == 0:
            code = 70
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                stream = os.open(self.words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(stream, 1)
                os.dup2(stream, 2)
                sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)  # pytest puts its own in their place
                warnings.simplefilter("ignore")
                work()
                code = 0
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def ended(self, patience: float = 120.0) -> int:
        """The exit code, or minus the signal."""
        since = time.monotonic()
        while self.code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - since > patience:
                self.send(signal.SIGKILL)
                raise AssertionError(f"still running after {patience} s")
            else:
                time.sleep(0.003)
        return self.code

    def send(self, what: int) -> bool:
        """Whether it was still running when the signal came."""
        found, status = os.waitpid(self.pid, os.WNOHANG)
        if found:
            self.code = os.waitstatus_to_exitcode(status)
            return False
        os.kill(self.pid, what)
        return True

    def said(self) -> str:
        return self.words.read_text(errors="replace") if self.words.exists() else ""


def command(*arguments: object) -> None:
    """The program, as the shell would start it."""
    sys.argv = ["corten", *map(str, arguments)]
    main()


def arrays_of(path: Path) -> list[np.ndarray]:
    return [np.asarray(io.read(path, name).data) for name in ("estimate", "lower", "upper")]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".corten"))


GAPS = ("--calibration", "gaps", "--completion", "smooth", "--propensity", "uniform", "--quiet")
DISK = ("--completion", "tucker", "--propensity", "uniform", "--calibration", "random", "--quiet")
_made: dict[str, Any] = {}


def undisturbed() -> tuple[list[np.ndarray], float]:
    """The answer of `corten complete` that nobody disturbs, and how long it takes."""
    if "complete" not in _made:
        # In this process first: it then holds everything that the forked ones need, compiled and loaded.
        corten.ConformalCompleter("smooth", "uniform", "gaps").fit(data()).intervals(0.9)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.save(folder / "in.npy", data())
            asked = ("complete", folder / "in.npy", "-o", folder / "o.nc", *GAPS)
            began = time.monotonic()
            done = Running(folder, lambda: command(*asked))
            assert done.ended() == 0, done.said()
            seconds = time.monotonic() - began
            _made["complete"] = arrays_of(folder / "o.nc"), seconds
    return _made["complete"]


def fitted() -> corten.Fitted:
    if "fit" not in _made:
        _made["fit"] = corten.ConformalCompleter("smooth", "uniform", "random", seed=0).fit(data())
    return _made["fit"]


def killed_complete(random: Random, folder: Path, checkpoint: bool = False) -> None:
    """kill -9 at any moment of `corten complete`: nothing, or everything; run again, it gives the same answer."""
    expected, seconds = undisturbed()
    np.save(folder / "in.npy", data())
    out, kept = folder / "out.nc", folder / "kept"
    asked = ("complete", folder / "in.npy", "-o", out, *GAPS, *(("--checkpoint", kept) if checkpoint else ()))
    first = Running(folder, lambda: command(*asked))
    time.sleep(random.random() * seconds * 1.1)
    first.send(signal.SIGKILL)
    first.ended()
    if out.exists():
        assert same(arrays_of(out), expected), "a killed run left another answer"
    elif checkpoint and kept.exists() and random.random() < 0.5:
        rounds = sorted(kept.glob("*.round"))
        if rounds:  # a disk that loses bytes, on top of it
            hurt = random.choice(rounds)
            raw = bytearray(hurt.read_bytes())
            raw[random.randrange(len(raw))] ^= 0xFF
            hurt.write_bytes(raw[: random.choice((len(raw), len(raw) // 2))])
    again = Running(folder, lambda: command(*asked, "--overwrite"))
    assert again.ended() == 0, again.said()
    assert same(arrays_of(out), expected), "the second run gave another answer"
    assert not left_over(folder), left_over(folder)
    assert not kept.exists(), "the checkpoint was left"


def killed_with_checkpoint(random: Random, folder: Path) -> None:
    """kill -9 of `corten complete --checkpoint`, its files damaged too: the second run goes on to the same answer."""
    killed_complete(random, folder, checkpoint=True)


def from_disk(folder: Path, *more: str) -> Running:
    """`corten complete --memory`, as for a file that does not fit: read, fitted and written to Zarr in parts."""
    import corten.commands.complete as program

    def work() -> None:
        program.too_large = lambda *_: True
        command("complete", folder / "in.npy", "-o", folder / "out.zarr", "--memory", "1GB", *DISK, *more)

    return Running(folder, work)


def undisturbed_from_disk() -> tuple[list[np.ndarray], float]:
    if "disk" not in _made:
        from corten.large.flow import complete_to_zarr

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.save(folder / "in.npy", data())
            options = {"completion": "tucker", "propensity": "uniform", "calibration": "random", "memory": "1GB"}
            complete_to_zarr(folder / "in.npy", folder / "warm.zarr", **options)  # compiled and loaded before any fork
            began = time.monotonic()
            done = from_disk(folder)
            assert done.ended() == 0, done.said()
            _made["disk"] = arrays_of(folder / "out.zarr"), time.monotonic() - began
    return _made["disk"]


def killed_from_disk(random: Random, folder: Path) -> None:
    """kill -9 of a completion that writes a Zarr store in parts: no store or a whole one; again, the same answer."""
    expected, seconds = undisturbed_from_disk()
    np.save(folder / "in.npy", data())
    first = from_disk(folder)
    # Most of the time into the last part, when the store is being written.
    time.sleep((random.random() if random.random() < 0.3 else 0.6 + 0.4 * random.random()) * seconds)
    first.send(signal.SIGKILL)
    first.ended()
    if (folder / "out.zarr").exists():
        assert same(arrays_of(folder / "out.zarr"), expected), "a killed run left another answer"
    again = from_disk(folder, "--overwrite")
    assert again.ended() == 0, again.said()
    assert same(arrays_of(folder / "out.zarr"), expected), "the second run gave another answer"
    assert not left_over(folder), left_over(folder)


def write(path: Path, result: Intervals) -> None:
    if path.suffix == ".html":
        result.report(path, overwrite=True)
    elif path.suffix == ".corten":
        fitted().save(path, overwrite=True)
    else:
        io.write(path, result, overwrite=True)


def check_written(path: Path, result: Intervals) -> None:
    """A file that is there is whole."""
    if path.suffix == ".html":
        assert path.read_text().rstrip().endswith("</html>"), "half a page"
    elif path.suffix == ".corten":
        assert np.array_equal(corten.load(path).estimate, fitted().estimate), "another fit"
    elif path.suffix == ".npy":
        assert np.array_equal(np.asarray(io.read(path).data)[0], result.estimate_array), "other values"
    else:
        axes = [axis.name for axis in result.observed.axes]
        table = {"axes": axes} if path.suffix in (".csv", ".parquet") else {}
        found = np.asarray(io.read(path, "lower", **table).data)
        assert np.allclose(found, result.lower_array, rtol=1e-12, equal_nan=True), "other values"


def killed_write(random: Random, folder: Path) -> None:
    """kill -9 while a file of any format is written, and written over: the old one or the new one, whole."""
    result = fitted().intervals(0.9)
    path = folder / f"out{random.choice(SUFFIXES)}"

    def work() -> None:
        while True:
            write(path, result)

    running = Running(folder, work)
    time.sleep(0.05 + random.random() * 0.6)
    running.send(signal.SIGKILL)
    running.ended()
    if path.exists():
        check_written(path, result)
    else:
        # A folder that stood aside when the kill came is brought back by the next write, or replaced.
        assert path.suffix == ".zarr" or not any(p.name.endswith(".old") for p in folder.iterdir())
    write(path, result)
    check_written(path, result)
    assert not left_over(folder), left_over(folder)


def killed_study(random: Random, folder: Path) -> None:
    """kill -9 of a study: what was finished is kept, the rest is done again, and all numbers are the same."""
    from corten.studies import experiments
    from corten.studies.cells import Cell
    from corten.studies.runner import run_cells
    from corten.studies.store import Store

    def fit(cell: Cell, _: Path | None) -> list[dict[str, Any]]:
        result = corten.complete(
            data(), completion="smooth", propensity="uniform", calibration="random", seed=cell["draw"]
        )
        return [{"width": float(np.mean(result.width)), "middle": float(np.mean(result.estimate))}]

    experiments.EXPERIMENTS["fault"] = fit
    cells = [Cell.of("fault", k, model="none", d=10, rank=1, draw=k) for k in range(6)]

    def rows(store: Store) -> list[dict[str, Any]]:
        plain = [{k: v for k, v in row.items() if "seconds" not in k and k != "version"} for row in store.rows("fault")]
        return sorted(plain, key=lambda row: (row["repetition"], str(row)))

    if "study" not in _made:
        with tempfile.TemporaryDirectory() as name:
            done = Running(folder, lambda: run_cells(cells, Store(name)))
            assert done.ended() == 0, done.said()
            began = time.monotonic()
            done = Running(folder, lambda: run_cells(cells, Store(f"{name}/again")))
            assert done.ended() == 0, done.said()
            _made["study"] = rows(Store(name)), time.monotonic() - began
    expected, seconds = _made["study"]
    running = Running(folder, lambda: run_cells(cells, Store(folder / "study")))
    time.sleep(random.random() * seconds)
    running.send(signal.SIGKILL)
    running.ended()
    again = Running(folder, lambda: run_cells(cells, Store(folder / "study")))
    assert again.ended() == 0, again.said()
    assert repr(rows(Store(folder / "study"))) == repr(expected), "other numbers"


def interrupted(random: Random, folder: Path, how: int = signal.SIGINT) -> None:
    """Ctrl-C at any moment of `corten complete`: ends at once with code 130, no traceback, no partial output."""
    expected, seconds = undisturbed()
    np.save(folder / "in.npy", data())
    out = folder / "out.nc"
    running = Running(folder, lambda: command("complete", folder / "in.npy", "-o", out, *GAPS))
    time.sleep(0.02 + random.random() * seconds)
    _ends_at_once(running, how, folder, out, expected)


def told_to_end(random: Random, folder: Path) -> None:
    """SIGTERM, as batch systems send it, is like Ctrl-C; its code is 143."""
    interrupted(random, folder, signal.SIGTERM)


def told_to_end_from_disk(random: Random, folder: Path) -> None:
    """SIGTERM or Ctrl-C while a Zarr store is written in parts, by several threads: no hidden store is left."""
    expected, seconds = undisturbed_from_disk()
    np.save(folder / "in.npy", data())
    running = from_disk(folder)
    until = time.monotonic() + (random.random() * seconds if random.random() < 0.3 else 10 * seconds)
    while time.monotonic() < until and not left_over(folder) and not (folder / "out.zarr").exists():
        time.sleep(0.001)  # most of the time until the store is begun
    time.sleep(random.random() * 0.3 * seconds)
    how = random.choice((signal.SIGINT, signal.SIGTERM))
    _ends_at_once(running, how, folder, folder / "out.zarr", expected)


def told_to_end_study(random: Random, folder: Path) -> None:
    """SIGTERM of a study with two workers: they end too, and no half cell is left."""
    asked = ("study", "simulation", "--preset", "tiny", "--jobs", "2", "--output", folder / "study", "--quiet")
    running = Running(folder, lambda: command(*asked))
    workers: list[int] = []
    since = time.monotonic()
    while len(workers) < 2 and time.monotonic() - since < 60:  # one, and the process that watches over what they share
        workers = _children(running.pid)
        time.sleep(0.01)
    time.sleep(random.random() * 8.0)
    workers = _children(running.pid)
    if not running.send(signal.SIGTERM):
        return
    assert running.ended() == 143, running.said()[-600:]
    since = time.monotonic()
    while any(_runs(pid) for pid in workers) and time.monotonic() - since < 10:
        time.sleep(0.01)
    left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers if _runs(pid)]
    assert not left, f"workers were left running: {left}"
    assert not list(folder.rglob(".corten-*")), "half a cell was left"


def _children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _ends_at_once(running: Running, how: int, folder: Path, out: Path, expected: list[np.ndarray]) -> None:
    if not running.send(how):
        return
    since = time.monotonic()
    code = running.ended()
    waited = time.monotonic() - since
    if code == 0:
        return
    SLOWEST[0] = max(SLOWEST[0], waited)
    assert code == 128 + how, f"exit code {code}: {running.said()[-300:]}"
    assert "Traceback" not in running.said(), running.said()[-600:]
    assert not left_over(folder), left_over(folder)
    if out.exists():
        assert same(arrays_of(out), expected)


def full_disk(random: Random, folder: Path) -> None:
    """No room for the output: an error that names it, and neither the old file nor the folder is harmed."""
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
    assert code == 2 and (("needs about" in words and "are available" in words) or "from disk" in words), (code, words)
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

    running = Running(folder, work)
    try:
        for _ in range(30):
            try:
                found = io.read(path).data
            except (ValueError, OSError) as problem:
                assert path.name in str(problem), problem
                continue
            assert (found == found.flat[0]).all(), "a mixture of two contents"
    finally:
        running.send(signal.SIGKILL)
        running.ended()


FAULTS: dict[str, Callable[[Random, Path], None]] = {
    "kill -9 of `corten complete`": killed_complete,
    "kill -9 of `corten complete --checkpoint`, its files damaged too": killed_with_checkpoint,
    "kill -9 while a file is written (nine formats)": killed_write,
    "kill -9 of a study": killed_study,
    "kill -9 of `corten complete --memory`, which writes a Zarr store in parts": killed_from_disk,
    "Ctrl-C of `corten complete`": interrupted,
    "SIGTERM of `corten complete`": told_to_end,
    "SIGTERM or Ctrl-C of `corten complete --memory`": told_to_end_from_disk,
    "SIGTERM of a study with two workers": told_to_end_study,
    "full disk (nine formats)": full_disk,
    "read-only folder": read_only,
    "too little memory": too_little_memory,
    "input changed while it is read": changed_underneath,
}


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corten-faults-") as name:
        yield Path(name)


def many_faults(count: int, seed: int) -> dict[str, Any]:
    """Every fault `count` times: how many were survived, and what was not."""
    found: dict[str, Any] = {}
    for name, fault in FAULTS.items():
        survived, failed = 0, []
        for k in range(count):
            with _folder() as folder:
                try:
                    fault(Random(f"{seed} {name} {k}"), folder)
                    survived += 1
                except AssertionError as problem:
                    failed.append(f"number {k}: {problem}")
        found[name] = {"tried": count, "survived": survived, "failed": failed}
    return {"faults": found, "slowest_interrupt": SLOWEST[0]}
