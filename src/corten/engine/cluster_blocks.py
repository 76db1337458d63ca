"""Blocks of planes on the workers of a cluster: what a block holds, and what happens when a worker is lost.

A block is a small tensor of its own, passed over by an ordinary engine. It keeps its own planes and, for a mask, the
neighbours' planes around them, coded as held out: they have an influence, but no term. The losses of blocks then add
up to the loss of the whole, and so do their gradients, each of which reaches into the neighbours' planes. Workers
exchange nothing during a pass.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

import numpy as np

from corten.engine.lazy import Planes, is_lazy
from corten.engine.local import Engine, Threads, as_local_engine
from corten.engine.passes import FrameLike, MaskPass, Model, PlainFrame, SoftSpins, check_spins, weight_sums
from corten.engine.residuals import ResidualPass

if TYPE_CHECKING:
    import distributed

    from corten.engine.cluster import Cluster

LOOK_SECONDS = 5.0  # between two checks, during a long pass, whether its workers are still there
MAX_PASS_ATTEMPTS = 10  # a pass is repeated this often, each time on what is left of the cluster
MAX_UNWARNED_BYTES = 1 << 26  # smaller arrays may be loaded twice without a warning
Passes = TypeVar("Passes", MaskPass, ResidualPass)

_process = uuid4().hex[:8]  # several processes may share a scheduler
_task_numbers = count()


def rows_of(cores: Sequence[np.ndarray], held: np.ndarray) -> tuple[np.ndarray, ...]:
    """The cores of some planes: the first has their rows only."""
    return (np.ascontiguousarray(cores[0][:, held]), *(np.ascontiguousarray(core) for core in cores[1:]))


class SoftRecipe(NamedTuple):
    """What expected spins follow from: workers compute them where they hold the mask, lost blocks again."""

    number: int
    frame: FrameLike


@dataclass(frozen=True)
class Part:
    """Planes [start, stop) of the tensor, and the planes held for them in order, neighbours' planes included."""

    start: int
    stop: int
    held: np.ndarray
    before: int  # how many of the held planes come before the block's own

    @property
    def own(self) -> slice:
        """Its own planes among those held."""
        return slice(self.before, self.before + self.stop - self.start)

    @property
    def runs(self) -> list[slice]:
        """The held planes as consecutive slices of the tensor: one, or more where a periodic axis closes."""
        ends = np.flatnonzero(np.diff(self.held) != 1) + 1
        return [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(self.held, ends)]

    def frame(self, frame: FrameLike) -> PlainFrame:
        """A frame for the planes held."""
        return PlainFrame(rows_of(frame.left, self.held), rows_of(frame.right, self.held))


def parts_of(planes: int, shares: Sequence[float], *, radius: int, halo: int, periodic: bool) -> list[Part]:
    """Cut planes in proportion to shares, so that no block is thinner than its neighbours' reach.

    A single part holds every plane once; the periodic axis then closes inside it.
    """
    least = 2 * radius + 1
    number = max(1, min(len(shares), planes // least))
    if number == 1:
        return [Part(0, planes, np.arange(planes), 0)]
    edges = np.array([0, *np.rint(np.cumsum(shares[:number]) / np.sum(shares[:number]) * planes).astype(int)])
    for k in range(1, number):
        edges[k] = min(max(edges[k], edges[k - 1] + least), planes - least * (number - k))
    parts = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist()):
        first, end = (start - halo, stop + halo) if periodic else (max(0, start - halo), min(planes, stop + halo))
        parts.append(Part(start, stop, np.arange(first, end) % planes, start - first))
    return parts


class Block(Generic[Passes]):
    """Passes of an ordinary engine over one block, made at the first call; they are not sent between machines."""

    inside: str | int | None

    @cached_property
    def passes(self) -> Passes:
        return self._passes(_engine(self.inside))

    def _passes(self, engine: Engine) -> Passes:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("passes", "_soft")}


@dataclass
class MaskBlock(Block[MaskPass]):
    """Passes over one block of a mask. spins: the held planes; inside: the engine that runs on the worker.

    Where the first mode is periodic, the block closes on itself between planes that are held out: no term uses it.
    """

    spins: np.ndarray
    part: Part
    model: Model
    train_share: float
    inside: str | int | None = None
    _soft: tuple[int, SoftSpins | None] = field(default=(-1, None), init=False, repr=False, compare=False)
    # the number of a recipe, and the expected spins it gave

    def __post_init__(self) -> None:
        check_spins(self.spins, self.train_share)
        self.spins = np.array(self.spins, order="C")
        for around in (self.spins[: self.part.own.start], self.spins[self.part.own.stop :]):
            np.copyto(around, 2 * np.sign(around))

    def _passes(self, engine: Engine) -> MaskPass:
        return engine.mask_pass(self.spins, self.model, self.train_share)

    def loss_and_contractions(self, frame: PlainFrame, recipe: SoftRecipe | None) -> tuple[float, list[np.ndarray]]:
        """The loss of the block's own entries, and the contractions of its gradient, which the held planes share."""
        if recipe is None:
            return self.passes.loss_and_contractions(frame)
        if self._soft[0] != recipe.number:
            self._soft = recipe.number, self.passes.soft_spins(recipe.frame)
        return self.passes.loss_and_contractions(frame, self._soft[1])

    def log_odds(self, cores: Sequence[np.ndarray]) -> np.ndarray:
        """eta of the block's own planes."""
        return np.asarray(self.passes.log_odds(cores)[self.part.own])

    def weight_sums(self, cores: Sequence[np.ndarray]) -> tuple[float, float, float]:
        """Of its own training entries: the largest log-weight -eta, and sums of weights and squares relative to it."""
        return weight_sums(self.spins[self.part.own], self.log_odds(cores))

    def __sizeof__(self) -> int:
        return self.spins.nbytes


@dataclass
class ResidualBlock(Block[ResidualPass]):
    """Passes over one block of data where its mask is not zero; without a mask, where the data are not."""

    values: np.ndarray
    mask: np.ndarray | None
    part: Part
    inside: str | int | None = None

    def __post_init__(self) -> None:
        self.values = np.ascontiguousarray(self.values)
        if self.mask is not None:
            self.mask = np.ascontiguousarray(self.mask)

    def _passes(self, engine: Engine) -> ResidualPass:
        return engine.residual_pass(self.values, self.values if self.mask is None else self.mask)

    def __sizeof__(self) -> int:
        return self.values.nbytes + (0 if self.mask is None else self.mask.nbytes)


def call(block: Block, method: str, arguments: tuple[object, ...]) -> Any:
    """The task every pass is made of: a method of the block, or of its passes where the block has none."""
    return getattr(block if hasattr(block, method) else block.passes, method)(*arguments)


def _engine(inside: str | int | None) -> Engine:
    """The given engine, or as many threads as the worker has."""
    if inside is not None:
        return as_local_engine(inside)
    from distributed import get_worker

    try:
        return Threads(get_worker().state.nthreads)
    except ValueError:  # not on a worker
        return Threads()


class ClusterPass:
    """Passes over arrays whose planes are placed on the workers now, and again where a worker was lost.

    `make(planes of each array, part)` is the block of a part, made where its planes are; None has no planes.
    """

    def __init__(
        self,
        cluster: Cluster,
        array: Planes,
        *others: Planes | None,
        name: str,
        make: Callable,
        radius: int = 0,
        halo: int = 0,
        periodic: bool = False,
    ) -> None:
        if any(np.isnan(length) for length in array.shape):
            raise ValueError(f"{name} has chunks of unknown size; call compute_chunk_sizes() on it first")
        self.cluster, self.client, self.passes = cluster, cluster.client, 0
        self.arrays, self.make = (array, *others), partial(make, inside=cluster.inside)
        threads = list(cluster.workers().values())
        self.parts = parts_of(int(array.shape[0]), threads, radius=radius, halo=halo, periodic=periodic)
        warn_of_chunks(array, self.parts, name)
        self._place()

    def added(
        self, method: str, given: Sequence[tuple[object, ...]], frame: FrameLike
    ) -> tuple[float, list[np.ndarray]]:
        """Losses and contractions of blocks as those of the whole, in the order of the blocks."""
        found = self.ask(method, given)
        total, first = 0.0, np.zeros(frame.left[0].shape)
        others = [np.zeros(np.shape(part)) for part in found[0][1][1:]]
        for part, (loss, contractions) in zip(self.parts, found):
            total += loss
            # A plane may be held twice where a short periodic axis closes: it gets both shares.
            np.add.at(first[0], part.held, contractions[0][0])
            for have, more in zip(others, contractions[1:]):
                have += more
        return total, [first, *others]

    def _place(self) -> None:
        """Place the parts on the workers there are."""
        workers = list(self.cluster.workers())
        self.owners = [workers[k % len(workers)] for k in range(len(self.parts))]
        self.futures = []
        for part, owner in zip(self.parts, self.owners):
            planes = [None if one is None else planes_on(self.client, one, part, owner) for one in self.arrays]
            where = {"workers": [owner], "allow_other_workers": True}
            self.futures.append(self.client.submit(self.make, *planes, part, **where, pure=False))

    def ask(self, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """What each block answers, in order. One pass."""
        self.passes += 1
        for attempt in range(MAX_PASS_ATTEMPTS):
            if attempt:
                time.sleep(0.1 * attempt)  # the scheduler may learn of a loss with a delay
                self._place()
            tasks = [
                self.client.submit(
                    call, future, method, given, workers=[owner], allow_other_workers=True, pure=False,
                    key=f"corten-{method}-{_process}{next(_task_numbers)}",
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

    def _answers(self, tasks: list[distributed.Future]) -> list[Any]:
        """Wait for answers; check at intervals whether the workers are still there."""
        from distributed import wait

        while True:
            try:
                with self.client.as_current():  # `wait` needs a client; this one may not be the default of the process
                    wait(tasks, timeout=LOOK_SECONDS)
            except TimeoutError:
                if not set(self.owners) <= set(self.cluster.workers()):
                    raise CancelledError from None
            else:
                return list(self.client.gather(tasks))


def planes_on(client: distributed.Client, array: Planes, part: Part, owner: str) -> distributed.Future:
    """A future of the planes a part holds: of an array they are sent to the worker, of a Dask array it loads them."""
    runs = [array[run] for run in part.runs]
    if is_lazy(array):
        import dask.array as da

        # Not restricted to the owner: the scheduler never runs again what waited for a worker that is gone.
        return client.compute(runs[0] if len(runs) == 1 else da.concatenate(runs))
    planes = runs[0] if len(runs) == 1 else np.concatenate(runs)
    return client.scatter(np.asarray(planes), workers=[owner], hash=False)


def warn_of_chunks(array: Planes, parts: Sequence[Part], name: str) -> None:
    """Warn where chunks would be loaded by several workers."""
    planes = max(part.stop - part.start for part in parts)
    if len(parts) == 1 or not is_lazy(array) or array.nbytes <= MAX_UNWARNED_BYTES:
        return
    if max(array.chunks[0]) <= 2 * planes:
        return
    warnings.warn(
        f"{name} has chunks of {max(array.chunks[0])} planes along its first mode and workers hold {planes}: each "
        f"chunk is loaded by several workers. Chunks of at most {planes} planes avoid it",
        stacklevel=2,
    )


def address_of(client: distributed.Client) -> str:
    """The address of the scheduler, for messages."""
    return str(client.scheduler.address if client.scheduler is not None else "its address")
