"""Passes on the workers of a Dask cluster: each keeps a run of planes, and only factors and sums travel.

Blocks are pinned: sent once, or loaded by the worker itself where the tensor is a Dask array. Where a worker is lost
its blocks are loaded again elsewhere and the pass is repeated. Dask is imported when an engine is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from corten.engine.cluster_blocks import offer
from corten.engine.cluster_passes import ClusterMaskPass, ClusterResidualPass
from corten.engine.cluster_placement import WORKER_SECONDS, address_of, no_workers
from corten.engine.passes import Model

INSTALL = "pip install 'corten[cluster]'"
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Cluster:
    """An engine on the workers of a Dask cluster.

    client: a `distributed.Client`. inside: the engine that each worker uses for its block, "gpu" or "jax" where workers
    have devices, or a number of threads; by default as many threads as the worker has. This machine needs no device.
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
        return ClusterMaskPass(self, spins, model, train_share)

    def residual_pass(self, values: Any, mask: Any) -> ClusterResidualPass:
        """Passes over values where the mask is not zero; they are placed on workers now."""
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
        address = address_of(self.client)
        try:
            return dict(self.client.nthreads())
        except OSError as problem:
            raise ConnectionError(
                f"the scheduler at {address} answers no more ({problem}): start it and its workers again"
            ) from problem

    def check(self) -> None:
        """Refuse a cluster without workers, or whose scheduler or workers lack this corten or the engine inside."""
        self.workers()
        mine = offer(None)
        found = self.client.run(offer, self.inside, on_error="return")
        answers = {f"the worker {one}": said for one, said in found.items()}
        scheduler = f"the scheduler {address_of(self.client)}"
        try:
            answers[scheduler] = self.client.run_on_scheduler(offer, None)
        except Exception as problem:  # whatever is wrong there
            answers[scheduler] = problem
        for member, answer in answers.items():
            if isinstance(answer, Exception) and "No module named 'corten" in str(answer):
                raise ImportError(f"{member} has no corten: {INSTALL} there too, version {mine} as on this machine")
            if isinstance(answer, Exception):
                raise ValueError(f"{member} cannot take part: {answer}")
            if answer != mine:
                raise ImportError(f"{member} has corten {answer}, this machine {mine}: install one version everywhere")


def is_client(engine: object) -> bool:
    """Whether something is a client of a Dask cluster, without importing Dask."""
    return type(engine).__module__.split(".")[0] == "distributed" and hasattr(engine, "scheduler_info")


def connect(address: str) -> Any:
    """A client of the scheduler at an address such as tcp://host:8786."""
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
    address and serve no page; for a dashboard, make the client yourself and pass it.
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


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as problem:
        raise ImportError(f"a cluster needs Dask and distributed: {INSTALL}") from problem
    return distributed
