"""Read a file in another process, so that a C library that crashes or hangs does not end this one.

The process is started anew (not forked), so it works wherever Python does. It answers with JSON and raw arrays; what
comes back is checked like a file, because the process may have been taken over by what it read.
"""

from __future__ import annotations

import atexit
import builtins
import json
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from corten.data.axes import is_dataarray
from corten.data.plain import Json
from corten.io.files import MAX_BYTES, reading
from corten.io.registry import resolve
from corten.io.wire import FileDecoder, FileEncoder, receive_array, send_array

Answer: TypeAlias = tuple[dict[str, Any], dict[str, np.ndarray]]
"""The JSON of an answer, and its arrays by name."""

SECONDS, BYTES_PER_SECOND = 20, 5e6  # CPU time allowed: far more than any intact file has needed
WALL_FACTOR = 10  # wall-clock time allowed, relative to CPU time: disks are slow, machines busy
IDLE_SECONDS = 5.0  # the process waits so long for the next request about the same file
MAX_ANSWER_BYTES = 2**26  # of an answer without its arrays: text and attributes
OPERATIONS = {
    "load": "corten.io.formats:load",
    "contents": "corten.io.formats:list_contents",
    "frame": "corten.io.table:read_frame",
}
_ERRORS = (ImportError, MemoryError, OSError, TypeError, ValueError)  # that reading a file can end with
_INVALID = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def read_apart(path: Path, operation: str, *, max_bytes: int = MAX_BYTES, **arguments: object) -> Any:
    """What an operation on a file returns or raises, in another process; a ValueError if that process ends."""
    seconds = SECONDS + int(_size(path) / BYTES_PER_SECOND)
    request = {"operation": operation, "path": os.fspath(path), "max_bytes": max_bytes, "seconds": seconds}
    answer, arrays = _ask(path, request | {"arguments": arguments}, WALL_FACTOR * seconds, max_bytes)
    raised: Exception | None = None
    try:
        for message, category in answer["warnings"]:
            warnings.warn(str(message), _builtin(category, (Warning,), UserWarning), stacklevel=3)
        if "error" not in answer:
            found = FileDecoder(arrays).decode(answer["found"])
            if not _is_answer(operation, found):
                raise ValueError(f"no answer to {operation!r}")
            return found
        name, given = answer["error"]
        raised = _builtin(name, _ERRORS, ValueError)(*given)
    except _INVALID as problem:
        raise _invalid_answer(path, problem) from None
    raise raised


def _builtin(name: str, kinds: tuple[type[Exception], ...], default: type[Exception]) -> type[Any]:
    """The built-in exception or warning of that name, if it is one of these kinds."""
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, kinds) else default


def _is_answer(operation: str, found: Any) -> bool:
    """Whether a decoded value has the form of what the operation returns."""
    if operation == "frame":
        return type(found).__name__ == "DataFrame"
    if not isinstance(found, dict):
        return False
    if operation == "load":
        arrays, about = [found["data"], *found["others"].values()], found["about"]
        labelled = isinstance(about["attrs"], dict) and all(is_dataarray(one) for one in about["variables"].values())
        plain = all(isinstance(one, np.ndarray | np.generic) or is_dataarray(one) for one in arrays)
        return isinstance(found["name"], str) and plain and labelled
    return all(isinstance(one, tuple) and all(isinstance(n, int) and n >= 0 for n in one) for one in found.values())


def _invalid_answer(path: Path, problem: BaseException | str) -> ValueError:
    return ValueError(f"{path}: the process that read it sent invalid data ({problem}): it is damaged or malicious")


class _Reader:
    """A running process that answers requests about one file."""

    def __init__(self, path: Path) -> None:
        self.path, self.place, self.owner = path, path.absolute(), os.getpid()
        # The folder of the user's data must not be on the path of modules: -P, and no empty entry.
        home = str(Path(__file__).parents[2])
        known = os.pathsep.join([home, *(entry for entry in sys.path if entry)])
        self.process = subprocess.Popen(
            _command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": known},
        )  # fmt: skip

    def ask(self, request: Mapping[str, object], seconds: float, max_bytes: int) -> Answer:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        watch = threading.Timer(seconds, self.process.kill)
        watch.daemon = True
        watch.start()
        try:
            with suppress(OSError):  # it has ended: found below
                stdin.write(json.dumps(request).encode() + b"\n")
                stdin.flush()
            header = stdout.readline(MAX_ANSWER_BYTES)
            if not header.endswith(b"\n"):
                raise EOFError
            answer, arrays = json.loads(header), dict[str, np.ndarray]()
            room = 4 * max_bytes  # values, domain, flags and labels: each was checked against the limit by the reader
            for number in range(answer["arrays"]):
                array = arrays[f"a{number}"] = receive_array(stdout, room, str(self.path))
                room -= array.nbytes
            return answer, arrays
        except _INVALID as problem:
            raise _invalid_answer(self.path, problem) from None
        finally:
            watch.cancel()

    def close(self) -> None:
        if self.owner != os.getpid():  # inherited by a fork: the process belongs to the parent
            self.process.returncode = 0
            return
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self.process.wait()


_lock = threading.RLock()
_reader: _Reader | None = None
_idle: threading.Timer | None = None


def _ask(path: Path, request: Mapping[str, object], seconds: float, max_bytes: int) -> Answer:
    """One process for all requests about one file; another file gets another process."""
    global _reader, _idle
    with _lock:
        if _idle is not None:
            _idle.cancel()
        if _reader is not None and (_reader.place != path.absolute() or _reader.owner != os.getpid()):
            _close()
        if _reader is None:
            _reader = _Reader(path)
        try:
            answer = _reader.ask(request, seconds, max_bytes)
        except EOFError:
            process = _reader.process
            process.stdout.close()  # type: ignore[union-attr]
            code = process.wait()
            _close()
            how = f"signal {-code}" if code < 0 else f"code {code}"
            raise ValueError(
                f"{path} makes the library that reads it crash or hang ({how}): it is damaged or malicious"
            ) from None
        except BaseException:
            _close()
            raise
        _idle = threading.Timer(IDLE_SECONDS, _close)
        _idle.daemon = True
        _idle.start()
        return answer


def _close() -> None:
    global _reader
    with _lock:
        if _reader is not None:
            _reader.close()
            _reader = None


atexit.register(_close)


def _command() -> list[str]:
    if not sys.executable:
        raise OSError("careful=True starts another Python, but sys.executable is empty: use careful=False")
    return [sys.executable, "-P", "-c", "from corten.io.apart import serve; serve()"]


def serve() -> None:
    """In the other process: answer requests from standard input until it is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit(request["seconds"], 4 * request["max_bytes"] + 2**30)
        encoder = FileEncoder()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                work = resolve(OPERATIONS[request["operation"]])
                found = work(Path(request["path"]), max_bytes=request["max_bytes"], **request["arguments"])
                with reading(request["path"], "numbers, text and dates"):
                    answer = {"found": encoder.encode(found, "it")}
            except Exception as raised:
                answer, encoder = {"error": [*_as_builtin(raised)]}, FileEncoder()
        about = {"warnings": [[str(one.message), one.category.__name__] for one in heard]}
        arrays = list(encoder.arrays.values())
        header = json.dumps(answer | about | {"arrays": len(arrays)}).encode()
        if len(header) >= MAX_ANSWER_BYTES:
            refused = f"{request['path']} has more text than a reading in another process can send: use careful=False"
            arrays, header = [], json.dumps({"error": ["ValueError", [refused]], "arrays": 0} | about).encode()
        answers.write(header + b"\n")
        for array in arrays:
            send_array(answers, array)
        answers.flush()


def _limit(seconds: int, more_bytes: int) -> None:
    """Limit CPU time and memory of one request, and write no core dump, where the system supports it."""
    try:
        import resource
    except ImportError:
        return
    limits = {resource.RLIMIT_CPU: math.ceil(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + seconds}
    taken = Path("/proc/self/statm")
    if taken.exists():
        limits[resource.RLIMIT_AS] = int(taken.read_text().split()[0]) * resource.getpagesize() + more_bytes
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _as_builtin(raised: Exception) -> tuple[str, list[Json]]:
    """Name and arguments of the nearest built-in exception."""
    kind = next(one for one in type(raised).__mro__ if getattr(builtins, one.__name__, None) is one)
    if isinstance(raised, OSError) and raised.errno is not None:
        named = [] if raised.filename is None else [str(raised.filename)]
        return kind.__name__, [raised.errno, raised.strerror, *named]
    return ("ValueError" if issubclass(kind, UnicodeError) else kind.__name__), [str(raised)]


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files)
