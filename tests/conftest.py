"""What every test shares: hypothesis profiles, a count of generated cases, and a watch on what tests write.

Profiles: `short` (the default, the same cases on every run) and `long` (`--hypothesis-profile=long`, or
CORTEN_HYPOTHESIS=long): many times as many cases, new ones on every run. CORTEN_CASES=path appends, when the session
ends, one JSON line per property: {"kind": "properties", "name": test, "cases": how many cases it passed}.

Every test starts in an empty folder of its own and may write to temporary folders only; one that writes elsewhere
fails. Caches that tools keep (Python, Numba, matplotlib, pytest, hypothesis) are not the tests' doing.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# Tests call kernels outside of a fit, which would keep BLAS on one thread; spinning threads cost tenfold under load.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Compiled loops on shared machines: time says nothing about a property, and data are drawn from seeds.
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("short", max_examples=20, derandomize=True, deadline=None, suppress_health_check=QUIET)
# A failing case of a long run is shown as it is, with the line that brings it back: making it small can take an hour.
FIND = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile(
    "long", max_examples=240, deadline=None, suppress_health_check=QUIET, print_blob=True, phases=FIND
)
settings.load_profile(os.environ.get("CORTEN_HYPOTHESIS", "short"))

CASES: dict[str, int] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the cases of every property; one that was filtered out by `assume` is none."""
    for item in items:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is not None and not hasattr(handle.inner_test, "counted"):
            handle.inner_test = _counted(handle.inner_test)


def _counted(inner: Any) -> Any:
    @functools.wraps(inner)
    def run(*args: Any, **given: Any) -> Any:
        answer = inner(*args, **given)
        name = os.environ.get("PYTEST_CURRENT_TEST", "unknown").rpartition(" ")[0]
        CASES[name] = CASES.get(name, 0) + 1
        return answer

    run.counted = True  # type: ignore[attr-defined]
    return run


def pytest_sessionfinish() -> None:
    path = os.environ.get("CORTEN_CASES")
    if path and CASES:
        lines = [json.dumps({"kind": "properties", "name": name, "cases": n}) + "\n" for name, n in CASES.items()]
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))


# The watch: Python tells an audit hook of every file it opens, makes, moves or removes. What compiled libraries or
# other processes write is not told; a relative path of theirs ends in the test's own folder and is found there.

TEMPORARY = tuple({os.path.realpath(folder) for folder in (tempfile.gettempdir(), "/dev", "/proc")})
TOOLS = ("__pycache__", ".cache", ".pytest_cache", ".hypothesis", "matplotlib", "fontconfig", ".coverage")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
CHANGES = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate"}
elsewhere: list[str] = []
watching = False


def _written(event: str, args: tuple[Any, ...]) -> list[Any]:
    if event == "open":
        path, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & WRITES)
        return [path] if writes else []
    if event in CHANGES:
        return list(args[:2]) if event in ("os.rename", "os.link") else [args[1 if event == "os.symlink" else 0]]
    return []


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not watching:
        return
    for path in _written(event, args):
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if not place.startswith(TEMPORARY) and not any(tool in place for tool in TOOLS):
                elsewhere.append(f"{event} {place}")


sys.addaudithook(_watch)


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("here")


@pytest.fixture(autouse=True)
def writes_stay_in_temporary_folders(monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> Iterator[None]:
    """A relative path ends in an empty folder and is found there; an absolute one outside is heard of."""
    global watching
    monkeypatch.chdir(empty_folder)
    elsewhere.clear()
    watching = True
    yield
    watching = False
    left = sorted(os.listdir(empty_folder))
    for name in left:
        os.rename(empty_folder / name, Path(tempfile.mkdtemp(dir=empty_folder.parent)) / name)
    assert not left, f"the test wrote {', '.join(left)} where it was started; write below tmp_path"
    assert not elsewhere, f"the test wrote outside its temporary folder: {'; '.join(elsewhere[:5])}"


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a process of their own would read are read here, which saves its start.

    For tests of what is done with the content; `io/test_fuzz_readers.py` and the real programs read apart.
    """
    from corten.io import formats

    def here(path: Path, operation: str, *, max_bytes: int, **arguments: Any) -> Any:
        return formats.resolve(formats.OPERATIONS[operation])(path, max_bytes=max_bytes, **arguments)

    monkeypatch.setattr(formats, "read_apart", here)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An experiment of a study that costs nothing and tells which repetitions were run."""
    from studies import experiments

    ran: list[int] = []

    def run(cell: Any, folder: Path | None) -> list[dict[str, object]]:
        ran.append(cell.repetition)
        return [{"value": float(cell.repetition), "method": "plain"}]

    monkeypatch.setitem(experiments.EXPERIMENTS, "counted", run)
    return ran
