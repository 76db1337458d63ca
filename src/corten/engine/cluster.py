"""Passes on the workers of a Dask cluster: each keeps a block of planes, and only factors and sums are sent.

A block is sent once, or loaded by the worker itself where the tensor is a Dask array. If a worker is lost, its blocks
are loaded again elsewhere and the pass is repeated. Dask is imported when an engine is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from corten.engine.arithmetic import PRODUCT
from corten.engine.cluster_blocks import ClusterPass, MaskBlock, ResidualBlock, SoftRecipe, address_of, rows_of
from corten.engine.lazy import Planes
from corten.engine.local import as_local_engine
from corten.engine.passes import AnyMaskPass, FrameLike, Model, PlainFrame, check_spins, size_of
from corten.engine.residuals import AnyResidualPass

if TYPE_CHECKING:
    import distributed

INSTALL_DASK = "pip install 'corten[cluster]'"
CONNECT_SECONDS = 5.0
WORKER_SECONDS = 30.0  # how long a cluster may be without any worker

_soft_numbers = count()


@dataclass(frozen=True)
class Cluster:
    """An engine on the workers of a Dask cluster.

    client: a `distributed.Client`. inside: the engine that each worker uses for its block, "gpu" or "jax" where workers
    have devices, or a number of threads; by default as many threads as the worker has. This machine needs no device.
    """

    client: distributed.Client
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

    def mask_pass(self, spins: Planes, model: Model, train_share: float) -> ClusterMaskPass:
        """Passes over spins (an array, or a Dask array that workers load); they are placed on workers now."""
        return ClusterMaskPass(self, spins, model, train_share)

    def residual_pass(self, values: Planes, mask: Planes) -> ClusterResidualPass:
        """Passes over values where the mask is not zero; they are placed on workers now."""
        return ClusterResidualPass(self, values, mask)

    def workers(self) -> dict[str, int]:
        """Addresses of the workers there are, and their threads."""
        found = self._threads()
        if not found:
            try:
                self.client.wait_for_workers(1, timeout=WORKER_SECONDS)
            except TimeoutError:
                raise ConnectionError(
                    f"the cluster at {address_of(self.client)} has had no worker for {WORKER_SECONDS:.0f} s: start "
                    f"some with `dask worker {address_of(self.client)}`"
                ) from None
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
        except Exception as problem:
            answers[scheduler] = problem
        for member, answer in answers.items():
            if isinstance(answer, Exception) and "No module named 'corten" in str(answer):
                raise ImportError(
                    f"{member} has no corten: {INSTALL_DASK} there too, version {mine} as on this machine"
                )
            if isinstance(answer, Exception):
                raise ValueError(f"{member} cannot take part: {answer}")
            if answer != mine:
                raise ImportError(f"{member} has corten {answer}, this machine {mine}: install one version everywhere")


class ClusterMaskPass(ClusterPass, AnyMaskPass):
    """Passes over one mask of spins, as `MaskPass`, on the workers of a cluster."""

    def __init__(self, cluster: Cluster, spins: Planes, model: Model, train_share: float) -> None:
        check_spins(spins, train_share)
        self.spins, self.model, self.train_share = spins, model, float(train_share)
        radius = int(np.abs(np.asarray(model.offsets)[:, 0]).max(initial=0)) if model.coupling_kind else 0
        # Expected spins of the planes next to a block need their own neighbours too.
        halo = radius * (2 if train_share < 1 and model.coupling_kind == PRODUCT else 1)
        make = partial(MaskBlock, model=model, train_share=self.train_share)
        periodic = bool(model.periodic[0])
        super().__init__(cluster, spins, name="the mask", make=make, radius=radius, halo=halo, periodic=periodic)

    def loss_and_contractions(self, frame: FrameLike, soft: SoftRecipe | None = None) -> tuple[float, list[np.ndarray]]:
        """The pseudo-likelihood loss (eq. low-rank-MPLE) and its gradient contracted with the frame. One pass."""
        recipes = [None if soft is None else SoftRecipe(soft.number, part.frame(soft.frame)) for part in self.parts]
        given = [(part.frame(frame), recipe) for part, recipe in zip(self.parts, recipes)]
        return self.added("loss_and_contractions", given, frame)

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """eta block by block: (start, stop, planes start:stop). One pass."""
        for part, eta in zip(self.parts, self._at("log_odds", cores)):
            yield part.start, part.stop, eta

    def effective_size(self, cores: Sequence[np.ndarray]) -> float:
        """Effective sample size of the weights exp(-eta) on the training entries, without moving eta. One pass."""
        return size_of(self._at("weight_sums", cores))

    def soft_spins(self, frame: FrameLike) -> SoftRecipe:
        """Expected spins of entries not in training, as `MaskPass.soft_spins`; workers compute and keep them."""
        self.passes += 1
        return SoftRecipe(next(_soft_numbers), PlainFrame(tuple(frame.left), tuple(frame.right)))

    def _at(self, method: str, cores: Sequence[np.ndarray]) -> list[Any]:
        return self.ask(method, [(rows_of(cores, part.held),) for part in self.parts])


class ClusterResidualPass(ClusterPass, AnyResidualPass):
    """Passes over `values` (float32 or int8) where `mask` (bool or int8) is not zero, as `ResidualPass`."""

    def __init__(self, cluster: Cluster, values: Planes, mask: Planes) -> None:
        self.shape = values.shape
        super().__init__(cluster, values, None if mask is values else mask, name="the data", make=ResidualBlock)

    def run(self, frame: FrameLike, subtract: bool) -> tuple[float, list[np.ndarray]]:
        return self.added("run", [(part.frame(frame), subtract) for part in self.parts], frame)


def offer(inside: str | int | None) -> str:
    """The version of corten on a member of the cluster, if that has the engine; an ImportError otherwise."""
    from corten import __version__

    as_local_engine(inside)
    return __version__


def is_client(engine: object) -> bool:
    """Whether something is a client of a Dask cluster, without importing Dask."""
    return type(engine).__module__.split(".")[0] == "distributed" and hasattr(engine, "scheduler_info")


def connect(address: str) -> distributed.Client:
    """A client of the scheduler at an address such as tcp://host:8786."""
    module = _distributed()
    try:
        return module.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as problem:
        raise ConnectionError(
            f"no Dask scheduler answers at {address} within {CONNECT_SECONDS:.0f} s: start one with `dask scheduler`, "
            "workers with `dask worker ADDRESS`, and give the address the scheduler prints, such as tcp://host:8786"
        ) from problem


def default_client() -> distributed.Client:
    """The client of this process; where there is none, one with a worker inside this process is started.

    Scheduler and worker talk within the process. Their HTTP servers, which Dask always starts, listen on the loopback
    address and serve no page; for a dashboard, make the client yourself and pass it.
    """
    module = _distributed()
    try:
        return module.default_client()
    except ValueError:
        import dask

        here = "127.0.0.1:0"
        with dask.config.set({f"distributed.{one}.http.routes": [] for one in ("scheduler", "worker")}):
            return module.Client(
                processes=False, dashboard_address=here, worker_dashboard_address=here,
                scheduler_kwargs={"dashboard": False},
            )  # fmt: skip


def _distributed() -> ModuleType:
    try:
        import distributed
    except ImportError as problem:
        raise ImportError(f"a cluster needs Dask and distributed: {INSTALL_DASK}") from problem
    return distributed
