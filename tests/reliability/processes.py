"""What faults are tried on: programs in processes forked from this one, and the answers that nobody disturbed.

This process has loaded everything already: a signal then falls into the work, not into the start of Python.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import corten
import corten.cli.app  # before any fork: who may read nothing later has it loaded
from corten import io
from corten.__main__ import main
from corten.cli.evaluate import read_result
from corten.results.intervals import Intervals

SUFFIXES = (".nc", ".zarr", ".npz", ".npy", ".csv", ".parquet", ".mat", ".html", ".corten")
GAPS = ("--calibration", "gaps", "--completion", "smooth", "--propensity", "uniform", "--quiet")
DISK = ("--completion", "tucker", "--propensity", "uniform", "--calibration", "random", "--quiet")
made: dict[str, Any] = {}  # answers that nobody disturbed


class Missed(Exception):
    """The fault did not strike: the program had ended before, or did not need what it lacked."""


class NotHere(Exception):
    """The fault cannot be tried on this machine."""


def data() -> np.ndarray:
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 4.0, 10)
    x = np.sin(t[:, None, None] + 0.7 * t[:, None]) * np.cos(t) + 0.05 * rng.normal(size=(10, 10, 10))
    x[2:6, 3:7, 4:8] = np.nan
    x[7:9, 1:4, :4] = np.nan
    return x


class Running:
    """A forked process that does some work; its words go to a file.

    Attributes:
        stall: seconds by which our own short naps came late in all, while we waited for its end: what the machine was
            too busy for.
    """

    def __init__(self, folder: Path, work: Callable[[], object]) -> None:
        self.words = folder / ".words"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        self.code: int | None = None
        self.stall = 0.0
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

    def ended(self, patience: float = 600.0) -> int:
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
                asleep = time.monotonic()
                time.sleep(0.003)
                self.stall += time.monotonic() - asleep - 0.003
        return self.code

    def kill(self) -> None:
        """kill -9, if it still runs."""
        if not self.send(signal.SIGKILL) or self.ended() != -signal.SIGKILL:
            raise Missed

    def wait_until_it_listens(self) -> None:
        """Until the program has set its handlers: before, a signal ends it as it ends any."""
        while self.code is None and not self._catches(signal.SIGTERM):
            time.sleep(0.002)
            self.send(0)

    def _catches(self, number: int) -> bool:
        try:
            words = Path(f"/proc/{self.pid}/status").read_text().split()
        except OSError:
            return False
        return "SigCgt:" in words and bool(int(words[words.index("SigCgt:") + 1], 16) >> number - 1 & 1)

    def send(self, what: int) -> bool:
        """Whether it was still running when the signal came."""
        if self.code is not None:
            return False
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
    estimate, (level, *_) = read_result(path, None, None)
    return [np.asarray(one) for one in (estimate, level.lower, level.upper)]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".corten"))


def children(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, task.read_text().split()))
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def undisturbed() -> tuple[list[np.ndarray], float]:
    """The answer of `corten complete` that nobody disturbs, and how long it takes."""
    if "complete" not in made:
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
            made["complete"] = arrays_of(folder / "o.nc"), seconds
    return made["complete"]


def sooner() -> None:
    """Halve the known times: a program that ended before it was struck was measured while the machine was busier."""
    made.update({name: (one[0], one[1] / 2) for name, one in made.items() if isinstance(one, tuple)})


def fitted() -> corten.Fitted:
    if "fit" not in made:
        made["fit"] = corten.ConformalCompleter("smooth", "uniform", "random", seed=0).fit(data())
    return made["fit"]


def command_from_disk(folder: Path, *more: str) -> None:
    """`corten complete --memory`, as for a file that does not fit: read, fitted and written to Zarr in parts."""
    import corten.cli.complete as program

    program.too_large = lambda *_: True
    command("complete", folder / "in.npy", "-o", folder / "out.zarr", "--memory", "1GB", *DISK, *more)


def from_disk(folder: Path, *more: str) -> Running:
    return Running(folder, lambda: command_from_disk(folder, *more))


def undisturbed_from_disk() -> tuple[list[np.ndarray], float]:
    if "disk" not in made:
        from corten.large.flow import complete_to_zarr

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.save(folder / "in.npy", data())
            options = {"completion": "tucker", "propensity": "uniform", "calibration": "random", "memory": "1GB"}
            complete_to_zarr(folder / "in.npy", folder / "warm.zarr", **options)  # compiled and loaded before any fork
            began = time.monotonic()
            done = from_disk(folder)
            assert done.ended() == 0, done.said()
            made["disk"] = arrays_of(folder / "out.zarr"), time.monotonic() - began
    return made["disk"]


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
        found = np.asarray(read_result(path, result.coverage, None)[1][0].lower)
        assert np.allclose(found, result.lower_array, rtol=1e-12, equal_nan=True), "other values"
