"""Runs cells over processes.

Every finished cell is stored at once: kill it, start it again, and only the rest is done. What was damaged meanwhile is
done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any

from studies.cells import Cell
from studies.draws import ensure_chain
from studies.store import Store

__all__ = ["Outcome", "run_cells"]

Tell = Callable[[Cell, float, float], None]
ALONE = ("timing",)  # experiments that measure time run when nothing else does
_THREADS = ("CORTEN_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class Outcome:
    """What a run did: cells done now, cells that were there already, files found damaged, and what went wrong."""

    done: int = 0
    kept: int = 0
    damaged: list[Path] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)


def run_cells(cells: Sequence[Cell], store: Store, jobs: int = 1, tell: Tell | None = None) -> Outcome:
    """Run the cells that the store does not have yet. tell: called after each with its share of the work done and
    the seconds left.

    A cell that fails is reported in the outcome and does not stop the others; an interrupt does, and loses only
    what was under way.
    """
    unique = list(dict.fromkeys(cells))
    store.seal()
    todo = [cell for cell in unique if cell not in store]
    damaged = [file for file in map(store.file, todo) if file.exists()]
    outcome = Outcome(kept=len(unique) - len(todo), damaged=damaged)
    # repetitions first: wherever a run is stopped, all settings have got about as far
    todo.sort(key=lambda cell: (cell.experiment in ALONE, cell.repetition, cell.cost, cell.key))
    clock = _Clock(sum(cell.cost for cell in todo))
    together = [cell for cell in todo if cell.experiment not in ALONE]
    alone = [cell for cell in todo if cell.experiment in ALONE]
    with one_thread_each():
        for batch, workers in ((together, jobs), (alone, 1)):
            chains = _chains(batch)
            for cell, problem in _spread(batch, chains, store, min(workers, len(batch))):
                if problem:
                    outcome.failed[cell] = problem
                else:
                    outcome.done += 1
                share, left = clock.after(cell)
                if tell is not None:
                    tell(cell, share, left)
    return outcome


def _chains(cells: Sequence[Cell]) -> dict[Cell, int]:
    """A cell of each chain of masks, and the samples wanted from it.

    Drawn before anybody needs them, so that nobody draws them twice.
    """
    wanted: dict[tuple[Any, ...], tuple[Cell, int]] = {}
    for cell in cells:
        if cell.get("model") == "ising":
            name = tuple(cell.get(p) for p in ("d", "rank", "draw", "burn_in", "thin"))
            first, samples = wanted.get(name, (cell, 0))
            wanted[name] = first, max(samples, cell.repetition + 1)
    return dict(wanted.values())


def _spread(cells: Sequence[Cell], chains: dict[Cell, int], store: Store, jobs: int) -> Iterator[tuple[Cell, str]]:
    """Each cell as it ends, with an empty string or the error."""
    folder = str(store.folder)
    if jobs <= 1:
        for cell, samples in chains.items():
            ensure_chain(cell, samples, store.folder)
        yield from ((cell, work(cell, folder)) for cell in cells)
        return
    with workers(jobs) as pool:
        try:
            for drawn in [pool.submit(ensure_chain, cell, samples, store.folder) for cell, samples in chains.items()]:
                drawn.result()
            under_way: dict[Future[str], Cell] = {pool.submit(work, cell, folder): cell for cell in cells}
            while under_way:
                ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield under_way.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def workers(number: int) -> ProcessPoolExecutor:
    """Fresh processes that end with this one, however it ends."""
    return ProcessPoolExecutor(number, get_context("spawn"), _end_with, (os.getpid(),))


def _end_with(parent: int) -> None:

    def watch() -> None:
        while os.getppid() == parent:
            sleep(0.2)
        os._exit(1)

    Thread(target=watch, name="corten-parent", daemon=True).start()


def work(cell: Cell, folder: str) -> str:
    """Run one cell and store it; the error as text, so that it can travel between processes."""
    from studies.experiments import run_cell

    began = perf_counter()
    try:
        rows = run_cell(cell, Path(folder))
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    Store(folder).write(cell, rows, perf_counter() - began)
    return ""


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Workers inherit one thread each.

    Cells are the parallel unit, and results do not depend on the number of threads.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Clock:
    """Seconds left, from the seconds that the work done so far has taken."""

    def __init__(self, total: float) -> None:
        self._total, self._done, self._began = total or 1.0, 0.0, perf_counter()

    def after(self, cell: Cell) -> tuple[float, float]:
        self._done += cell.cost
        share = min(1.0, self._done / self._total)
        return share, (perf_counter() - self._began) * (1 - share) / share
