"""Passes on the workers of a Dask cluster: each keeps a run of planes, and only factors and sums travel.

Blocks are pinned: sent once, or loaded by the worker itself where the tensor is a Dask array. Where a worker is lost
its blocks are loaded again elsewhere and the pass is repeated. Dask is imported when an engine is made.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from corten.engine.cluster_blocks import Part, call, offer
from corten.engine.lazy import is_lazy
from corten.engine.passes import Model

if TYPE_CHECKING:
    from corten.engine.cluster_passes import ClusterMaskPass, ClusterResidualPass

__all__ = ["Blocks", "Cluster", "connect", "default_client", "is_client", "planes_on"]

INSTALL = "pip install 'corten[cluster]'"
CONNECT_SECONDS = 5.0
WORKER_SECONDS = 30.0  # how long a cluster may be without any worker
LOOK_SECONDS = 5.0  # how often a pass that takes long looks whether its workers are still there
ATTEMPTS = 10  # a pass is repeated this often, each time on what is left of the cluster
SMALL_BYTES = 1 << 26  # loading this twice is not worth a word

Make = Callable[[str], Any]


@dataclass(frozen=True)
class Cluster:
    """An engine on the workers of a Dask cluster.

    client: a `distributed.Client`. inside: the engine that each worker uses for its block, "gpu" or "jax" where workers
    have devices, or a number of threads; by default as many threads as the worker has. This machine needs no device.

    Example:
        >>> Cluster(client, inside="gpu").mask_pass  # doctest: +SKIP
    """

    client: Any
    inside: str | int | None = None
    lazy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _distributed()
        if not is_client(self.client):
            raise TypeError(f"client is {self.client!r}; give a distributed.Client")
        if self.client.asynchronous:
            raise ValueError("client is asynchronous; give one made without asynchronous=True")
        if self.client.status != "running":
            raise ValueError(f"client is {self.client.status}; give one that is connected to a scheduler")
        if self.inside in (None, "auto", "threads"):
            object.__setattr__(self, "inside", None)
        elif self.inside not in ("jax", "gpu") and (type(self.inside) is not int or self.inside < 1):
            raise ValueError(
                f'inside is {self.inside!r}; workers can use "threads" (as many as each has), a number of threads, '
                '"jax" or "gpu"'
            )

    @property
    def label(self) -> str:
        threads = self.client.nthreads()
        count, total = len(threads), sum(threads.values())
        words = f"{count} worker{'s' * (count != 1)}, {total} thread{'s' * (total != 1)}"
        return f"dask ({words}{f', {self.inside} inside' if self.inside is not None else ''})"

    def mask_pass(self, spins: Any, model: Model, train_share: float) -> ClusterMaskPass:
        """Passes over spins (an array, or a Dask array that workers load); they are placed on workers now."""
        from corten.engine.cluster_passes import ClusterMaskPass

        return ClusterMaskPass(self, spins, model, train_share)

    def residual_pass(self, values: Any, mask: Any) -> ClusterResidualPass:
        """Passes over values where the mask is not zero; they are placed on workers now."""
        from corten.engine.cluster_passes import ClusterResidualPass

        return ClusterResidualPass(self, values, mask)

    def workers(self) -> dict[str, int]:
        """Addresses of the workers there are, and their threads."""
        found = self._threads()
        if not found:
            try:
                self.client.wait_for_workers(1, timeout=WORKER_SECONDS)
            except TimeoutError:
                raise no_workers(self.client) from None
            found = self._threads()
        return found

    def _threads(self) -> dict[str, int]:
        address = _address(self.client)
        try:
            return dict(self.client.nthreads())
        except OSError as problem:
            raise ConnectionError(
                f"the scheduler at {address} answers no more ({problem}): start it and its workers again"
            ) from problem

    def check(self) -> None:
        """Refuse a cluster without workers, and one whose scheduler or workers lack this corten or the engine inside.

        Example:
            >>> Cluster(client, inside="gpu").check()  # doctest: +SKIP
        """
        self.workers()
        mine = offer(None)
        found = self.client.run(offer, self.inside, on_error="return")
        answers = {f"the worker {one}": said for one, said in found.items()}
        scheduler = f"the scheduler {_address(self.client)}"
        try:
            answers[scheduler] = self.client.run_on_scheduler(offer, None)
        except Exception as problem:  # whatever is wrong there
            answers[scheduler] = problem
        for who, said in answers.items():
            if isinstance(said, Exception) and "No module named 'corten" in str(said):
                raise ImportError(f"{who} has no corten: {INSTALL} there too, version {mine} as on this machine")
            if isinstance(said, Exception):
                raise ValueError(f"{who} cannot take part: {said}")
            if said != mine:
                raise ImportError(f"{who} has corten {said}, this machine {mine}: install one version everywhere")


class Blocks:
    """One object per worker, asked all together; what was lost with a worker is made again on another."""

    def __init__(self, cluster: Cluster, makers: Sequence[Make], owners: Sequence[str]) -> None:
        self.cluster, self.client, self.makers, self.owners = cluster, cluster.client, list(makers), list(owners)
        self.futures = [make(owner) for make, owner in zip(self.makers, self.owners)]

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each block answers, in order."""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(0.1 * attempt)  # the scheduler's word on what is lost may lag behind
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
            f"a pass failed {ATTEMPTS} times because workers were lost: their logs say why (memory, most often); "
            f"the scheduler is {_address(self.client)}"
        )

    def _answers(self, tasks: list[Any]) -> list[Any]:
        """Wait for answers; now and then see whether those who shall give them are still there."""
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
            self.owners[k], self.futures[k] = owner, self.makers[k](owner)


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
    """Say so where chunks would be loaded again and again."""
    planes = max(part.stop - part.start for part in parts)
    if not is_lazy(array) or len(parts) == 1 or array.nbytes <= SMALL_BYTES or max(array.chunks[0]) <= 2 * planes:
        return
    warnings.warn(
        f"{name} has chunks of {max(array.chunks[0])} planes along its first mode and workers hold {planes}: each "
        f"chunk is loaded by several workers. Chunks of at most {planes} planes avoid it",
        stacklevel=2,
    )


def is_client(engine: object) -> bool:
    """Whether something is a client of a Dask cluster, without importing Dask."""
    return type(engine).__module__.split(".")[0] == "distributed" and hasattr(engine, "scheduler_info")


def connect(address: str) -> Any:
    """A client of the scheduler at an address such as tcp://host:8786.

    Example:
        >>> connect("tcp://127.0.0.1:8786")  # doctest: +SKIP
    """
    distributed = _distributed()
    try:
        return distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as problem:
        raise ConnectionError(
            f"no Dask scheduler answers at {address} within {CONNECT_SECONDS:.0f} s: start one with `dask scheduler`, "
            "workers with `dask worker ADDRESS`, and give the address the scheduler prints, such as tcp://host:8786"
        ) from problem


def default_client() -> Any:
    """The client of this process; where there is none, one with a worker inside this process is started.

    Scheduler and worker talk within the process. Their HTTP servers, which Dask always starts, listen on the loopback
    address and serve no page; whoever wants a dashboard makes the client, and gives it.
    """
    distributed = _distributed()
    try:
        return distributed.default_client()
    except ValueError:
        import dask

        here = "127.0.0.1:0"
        with dask.config.set({f"distributed.{one}.http.routes": [] for one in ("scheduler", "worker")}):
            return distributed.Client(
                processes=False, dashboard_address=here, worker_dashboard_address=here,
                scheduler_kwargs={"dashboard": False},
            )  # fmt: skip


def no_workers(client: Any) -> ConnectionError:
    return ConnectionError(
        f"the cluster at {_address(client)} has had no worker for {WORKER_SECONDS:.0f} s: start some with "
        f"`dask worker {_address(client)}`"
    )


def _address(client: Any) -> str:
    return str(client.scheduler.address if client.scheduler is not None else "its address")


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as problem:
        raise ImportError(f"a cluster needs Dask and distributed: {INSTALL}") from problem
    return distributed


def _count() -> Any:
    from itertools import count
    from uuid import uuid4

    own = uuid4().hex[:8]  # several processes may share a scheduler
    return (f"{own}{number}" for number in count())


_numbers = _count()
