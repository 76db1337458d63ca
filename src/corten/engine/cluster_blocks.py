"""What a worker of a cluster holds: a run of planes as a small tensor of its own, passed over by an ordinary engine.

A block keeps its own planes and, for a mask, the neighbours' planes around them, coded as held out: those are seen,
but have no term. The losses of blocks then add up to the loss of the whole, and so do their gradients, each of which
reaches into the neighbours' planes. Workers exchange nothing during a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from corten.engine.local import Threads, as_local_engine
from corten.engine.log_odds import weight_sums
from corten.engine.passes import FrameLike, Model, PlainFrame, check_spins, merged_weights


def local_frame(frame: FrameLike, held: np.ndarray) -> PlainFrame:
    """A frame whose first core has the rows of the planes held by a block only."""
    return PlainFrame(rows_of(frame.left, held), rows_of(frame.right, held))


def rows_of(cores: Sequence[np.ndarray], held: np.ndarray) -> tuple[np.ndarray, ...]:
    """The cores of some planes: the first has their rows only."""
    return (np.ascontiguousarray(cores[0][:, held]), *(np.ascontiguousarray(core) for core in cores[1:]))


class SoftRecipe(NamedTuple):
    """Expected spins as what they follow from: workers compute them where they hold the mask, lost blocks again."""

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
        """Where its own planes lie among those held."""
        return slice(self.before, self.before + self.stop - self.start)

    @property
    def runs(self) -> list[slice]:
        """The held planes as consecutive slices of the tensor: one, or more where a periodic axis closes."""
        ends = np.flatnonzero(np.diff(self.held) != 1) + 1
        return [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(self.held, ends)]


def parts_of(planes: int, shares: Sequence[float], radius: int, halo: int, periodic: bool) -> list[Part]:
    """Cut planes in proportion to shares, so that no block is thinner than its neighbours' reach.

    A single part holds every plane once; the periodic axis then closes inside it.
    """
    count = max(1, min(len(shares), planes // (2 * radius + 1)))
    ends = np.rint(np.cumsum(shares[:count]) / np.sum(shares[:count]) * planes).astype(int)
    edges = np.array([0, *ends])
    least = 2 * radius + 1
    for k in range(1, count):
        edges[k] = min(max(edges[k], edges[k - 1] + least), planes - least * (count - k))
    if count == 1:
        return [Part(0, planes, np.arange(planes), 0)]
    parts = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist()):
        first, end = (start - halo, stop + halo) if periodic else (max(0, start - halo), min(planes, stop + halo))
        parts.append(Part(start, stop, np.arange(first, end) % planes, start - first))
    return parts


class Block:
    """Passes of an ordinary engine over one block, made at the first call; they are not sent between machines."""

    inside: Any

    def _made(self, engine: Any) -> Any:
        raise NotImplementedError

    @cached_property
    def passes(self) -> Any:
        return self._made(_engine(self.inside))

    def loss_and_contractions(self, frame: PlainFrame, *more: Any) -> tuple[float, list[np.ndarray]]:
        """The loss of the block's own entries, and the contractions of its gradient, which the held planes share."""
        found: tuple[float, list[np.ndarray]] = self.passes.loss_and_contractions(frame, *more)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("passes", "_soft")}


@dataclass
class MaskBlock(Block):
    """Passes over one block of a mask. spins: the held planes; inside: the engine that runs on the worker.

    Where the first mode is periodic, the block closes on itself between planes that are held out: no term sees it.
    """

    spins: np.ndarray
    part: Part
    model: Model
    train_share: float
    inside: Any = None
    _soft = (-1, None)  # the number of a recipe, and the expected spins it gave

    def __post_init__(self) -> None:
        check_spins(self.spins, self.train_share)
        self.spins = np.array(self.spins, order="C")
        for around in (self.spins[: self.part.own.start], self.spins[self.part.own.stop :]):
            np.copyto(around, 2 * np.sign(around))

    def _made(self, engine: Any) -> Any:
        return engine.mask_pass(self.spins, self.model, self.train_share)

    def loss_and_contractions(self, frame: PlainFrame, *more: Any) -> tuple[float, list[np.ndarray]]:
        (recipe,) = more
        if recipe is not None and self._soft[0] != recipe.number:
            self._soft = recipe.number, self.passes.soft_spins(recipe.frame)
        return super().loss_and_contractions(frame, None if recipe is None else self._soft[1])

    def log_odds(self, cores: Sequence[np.ndarray]) -> np.ndarray:
        """eta of the block's own planes."""
        return np.asarray(self.passes.log_odds(cores)[self.part.own])

    def weight_sums(self, cores: Sequence[np.ndarray]) -> tuple[float, float, float]:
        """Of its own training entries: the largest log-weight -eta, and sums of weights and squares relative to it."""
        found, n, own = [], self.spins.shape[-1], self.part.own
        for start, stop, eta in self.passes.log_odds_slabs(cores):
            low, high = max(start, own.start), min(stop, own.stop)
            if low < high:
                here = np.ascontiguousarray(eta[low - start : high - start]).reshape(-1, n)
                found.append(weight_sums(self.spins[low:high].reshape(-1, n), here))
        return merged_weights(found)

    def __sizeof__(self) -> int:
        return self.spins.nbytes


@dataclass
class ResidualBlock(Block):
    """Passes over one block of data where its mask is not zero; without a mask, where the data are not."""

    values: np.ndarray
    mask: np.ndarray | None
    part: Part
    inside: Any = None

    def __post_init__(self) -> None:
        self.values = np.require(self.values, requirements=["C", "W"])
        if self.mask is not None:
            self.mask = np.require(self.mask, requirements=["C", "W"])

    def _made(self, engine: Any) -> Any:
        return engine.residual_pass(self.values, self.values if self.mask is None else self.mask)

    def contractions_of_data(self, frame: PlainFrame) -> tuple[float, list[np.ndarray]]:
        """As `ResidualPass.contractions_of_data`, of the block's planes."""
        found: tuple[float, list[np.ndarray]] = self.passes.contractions_of_data(frame)
        return found

    def __sizeof__(self) -> int:
        return self.values.nbytes + (0 if self.mask is None else self.mask.nbytes)


def offer(inside: str | int | None) -> str:
    """The version of corten on a member of the cluster, if that has the engine; an ImportError otherwise."""
    from corten import __version__

    as_local_engine(inside)
    return __version__


def call(block: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """The task every pass is made of."""
    return getattr(block, method)(*arguments)


def _engine(inside: Any) -> Any:
    """The given engine, or as many threads as the worker has."""
    if inside is not None:
        return as_local_engine(inside)
    from distributed import get_worker

    try:
        return Threads(get_worker().state.nthreads)
    except ValueError:  # not on a worker
        return Threads()
