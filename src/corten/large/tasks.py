"""Where the work on tiles runs: in threads of this process, or as tasks of a Dask cluster.

A task on a cluster reads its tile from files that all workers see, and returns little: what it fills it writes to the
store itself. If a worker is lost, Dask runs its tasks again elsewhere. A task writes whole chunks that no other task
writes, so that a second run changes nothing.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from corten.engine.arrays import device_arrays
from corten.engine.cluster import Cluster
from corten.engine.threads import in_order, one_library_thread, one_thread
from corten.large.stages import Tell

if TYPE_CHECKING:
    from distributed import Client

    from corten.engine import Engine

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TileRunner:
    """Runs the same work on many tiles, in threads or on the workers of a cluster that see `folder`.

    inside: the engine that completes a tile, one with a device or "auto" for the host; on a cluster that of the worker.
    """

    threads: int
    cluster: Cluster | None = None
    folder: Path | None = None
    inside: object = "auto"

    @staticmethod
    @contextmanager
    def of(engine: Engine, threads: int, beside: Path) -> Iterator[TileRunner]:
        """The runner of an engine; for a cluster with a folder in `beside`, removed at the end."""
        if not isinstance(engine, Cluster):
            yield TileRunner(threads, inside=engine)
            return
        engine.check()
        with tempfile.TemporaryDirectory(prefix=".corten-", suffix=".tasks", dir=beside) as folder:
            inside = engine.inside or "auto"
            yield TileRunner(max(engine.workers().values()), engine, folder=Path(folder), inside=inside)

    @property
    def device(self) -> str | None:
        """The device that fills tiles, in words; None on the host."""
        if self.cluster is not None:
            return f"{self.inside} on each worker" if self.inside in ("jax", "gpu") else None
        arrays = device_arrays(self.inside)
        return None if arrays is None else arrays.label

    def run(self, work: Callable[[Item], Result], items: Sequence[Item], tell: Tell) -> list[Result]:
        """What `work` returns for each item, in the order of the items; `tell` hears the share that is done."""
        if self.cluster is None:
            found = []
            for one in in_order(work, items, self.threads):
                found.append(one)
                tell(len(found) / len(items))
            return found
        return self._on_cluster(self.cluster.client, work, items, tell)

    def _on_cluster(
        self, client: Client, work: Callable[[Item], Result], items: Sequence[Item], tell: Tell
    ) -> list[Result]:
        import cloudpickle
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        # A file, not data sent to workers: those would be lost with the workers that hold them.
        with tempfile.NamedTemporaryFile(suffix=".work", dir=self.folder, delete=False) as file:
            cloudpickle.dump(work, file)
        # What a task leaves to the host beside a device is short, and few threads share it.
        single = self.device is None
        futures = client.map(_run, [file.name] * len(items), list(items), [single] * len(items), pure=False)
        numbers = {future.key: number for number, future in enumerate(futures)}
        found: dict[int, Result] = {}
        try:
            with client.as_current():
                for future, result in as_completed(futures, with_results=True):
                    found[numbers[future.key]] = result
                    tell(len(found) / len(items))
        except KilledWorker as problem:
            raise MemoryError(
                f"a tile was lost with {problem.last_worker.address} and with every worker before it that took it: "
                "most often their memory was too small; give workers more memory, or a smaller memory= here"
            ) from problem
        finally:
            client.cancel(futures)
        return [found[number] for number in range(len(items))]


def _run(path: str, item: object, single: bool) -> object:
    """One item, on a worker: on a `single` thread, as the worker runs as many tasks as it has threads."""
    with one_library_thread, one_thread() if single else nullcontext():
        return _loaded(path)(item)


@lru_cache(maxsize=1)
def _loaded(path: str) -> Callable[[object], object]:
    """The work in a file, kept for the next item."""
    try:
        with Path(path).open("rb") as file:
            work: Callable[[object], object] = pickle.load(file)  # written by the process that sent this task
    except FileNotFoundError:
        raise FileNotFoundError(
            f"this worker does not see {path}: the folder of the output must be on a disk that all workers share"
        ) from None
    return work
