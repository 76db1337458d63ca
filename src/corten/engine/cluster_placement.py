"""Where the planes of a tensor are on a cluster: which worker holds which, and what happens when one is lost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from corten.engine.cluster_blocks import Part, call
from corten.engine.lazy import is_lazy

if TYPE_CHECKING:
    from corten.engine.cluster import Cluster

WORKER_SECONDS = 30.0  # how long a cluster may be without any worker
LOOK_SECONDS = 5.0  # how often a pass that takes long looks whether its workers are still there
MAX_PASS_ATTEMPTS = 10  # a pass is repeated this often, each time on what is left of the cluster
MAX_UNWARNED_BYTES = 1 << 26  # smaller arrays may be loaded twice without a warning


class Blocks:
    """One object per worker, called all together; what was lost with a worker is made again on another."""

    def __init__(
        self,
        cluster: Cluster,
        parts: Sequence[Part],
        arrays: Sequence[Any],
        make: Callable[..., Any],
        owners: Iterable[str],
    ) -> None:
        """`make(planes of each array, part)` is the object of a part, made where its planes are; None has no planes."""
        self.cluster, self.client, self.owners = cluster, cluster.client, list(owners)[: len(parts)]
        self.parts, self.arrays, self.make = parts, arrays, make
        self.futures = [self._placed(part, owner) for part, owner in zip(parts, self.owners)]

    def _placed(self, part: Part, owner: str) -> Any:
        planes = [None if one is None else planes_on(self.client, one, part, owner) for one in self.arrays]
        return self.client.submit(self.make, *planes, part, workers=[owner], allow_other_workers=True, pure=False)

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each block answers, in order."""
        for attempt in range(MAX_PASS_ATTEMPTS):
            if attempt:
                time.sleep(0.1 * attempt)  # the scheduler may learn of a loss with a delay
                self._remake()
            tasks = [
                self.client.submit(
                    call, future, method, given, workers=[owner], allow_other_workers=True, pure=False,
                    key=f"corten-{method}-{next(_numbers)}",
                )
                for future, owner, given in zip(self.futures, self.owners, arguments)
            ]  # fmt: skip
            try:
                return self._answers(tasks)
            except CancelledError:
                continue
        raise ConnectionError(
            f"a pass failed {MAX_PASS_ATTEMPTS} times because workers were lost: their logs say why (memory, most "
            f"often); the scheduler is {address_of(self.client)}"
        )

    def _answers(self, tasks: list[Any]) -> list[Any]:
        """Wait for answers; check at intervals whether the workers are still there."""
        from distributed import wait

        while True:
            try:
                wait(tasks, timeout=LOOK_SECONDS)
            except TimeoutError:
                live = self.cluster.workers()
                if not set(self.owners) <= set(live):
                    raise CancelledError from None
            else:
                return list(self.client.gather(tasks))

    def _remake(self) -> None:
        """Place lost blocks where the fewest are, threads considered."""
        live = self.cluster.workers()
        load = dict.fromkeys(live, 0)
        lost = []
        for k, (owner, future) in enumerate(zip(self.owners, self.futures)):
            if owner in live and future.status in ("finished", "pending"):
                load[owner] += 1
            else:
                lost.append(k)
        for k in lost:
            owner = min(load, key=lambda w: (load[w] + 1) / live[w])
            load[owner] += 1
            self.owners[k], self.futures[k] = owner, self._placed(self.parts[k], owner)


def planes_on(client: Any, array: Any, part: Part, owner: str) -> Any:
    """A future of the planes a part holds: of an array they are sent to the worker, of a Dask array it loads them."""
    if is_lazy(array):
        import dask.array as da

        runs = [array[run] for run in part.runs]
        planes = runs[0] if len(runs) == 1 else da.concatenate(runs)
        # Not restricted to the owner: the scheduler never runs again what waited for a worker that is gone.
        return client.compute(planes)
    planes = np.concatenate([array[run] for run in part.runs]) if len(part.runs) > 1 else array[part.runs[0]]
    return client.scatter(np.asarray(planes), workers=[owner], hash=False)


def planes_in(array: Any, name: str) -> int:
    """The length of the first mode; Dask arrays whose chunks have no known size are refused."""
    if any(np.isnan(length) for length in array.shape):
        raise ValueError(f"{name} has chunks of unknown size; call compute_chunk_sizes() on it first")
    return int(array.shape[0])


def warn_of_chunks(array: Any, parts: Sequence[Part], name: str) -> None:
    """Warn where chunks would be loaded by several workers."""
    planes = max(part.stop - part.start for part in parts)
    small = len(parts) == 1 or not is_lazy(array) or array.nbytes <= MAX_UNWARNED_BYTES
    if small or max(array.chunks[0]) <= 2 * planes:
        return
    warnings.warn(
        f"{name} has chunks of {max(array.chunks[0])} planes along its first mode and workers hold {planes}: each "
        f"chunk is loaded by several workers. Chunks of at most {planes} planes avoid it",
        stacklevel=2,
    )


def no_workers(client: Any) -> ConnectionError:
    return ConnectionError(
        f"the cluster at {address_of(client)} has had no worker for {WORKER_SECONDS:.0f} s: start some with "
        f"`dask worker {address_of(client)}`"
    )


def address_of(client: Any) -> str:
    return str(client.scheduler.address if client.scheduler is not None else "its address")


_own = uuid4().hex[:8]  # several processes may share a scheduler
_numbers = (f"{_own}{number}" for number in count())
