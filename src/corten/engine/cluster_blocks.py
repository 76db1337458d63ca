"""What a worker of a cluster holds: a run of planes as a small tensor of its own, passed over by an ordinary engine.

A block keeps its own planes and, for a mask, the neighbours' planes around them, coded as held out: those are seen,
but have no term. The losses of blocks then add up to the loss of the whole, and so do their gradients, each of which
reaches into the neighbours' planes. Nobody talks to anybody during a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from corten.engine.local import Threads, as_local_engine
from corten.engine.log_odds import weight_sums
from corten.engine.passes import Model

__all__ = [
    "LocalFrame", "MaskBlock", "Part", "ResidualBlock", "SoftRecipe", "call", "merged_weights", "offer", "parts_of",
]  # fmt: skip


class LocalFrame(NamedTuple):
    """A frame whose first core has the rows of one block's planes only."""

    left: tuple[np.ndarray, ...]
    right: tuple[np.ndarray, ...]


class SoftRecipe(NamedTuple):
    """Expected spins as what they are computed from: a block that was reloaded elsewhere makes them again."""

    number: int
    frame: LocalFrame


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


@dataclass
class MaskBlock:
    """Passes over one block of a mask. spins: the held planes; inside: the engine that runs on the worker.

    Where the first mode is periodic, the block closes on itself between planes that are held out: no term sees it.
    """

    spins: np.ndarray
    part: Part
    model: Model
    train_share: float
    inside: Any = None
    _passes: Any = field(default=None, init=False, repr=False)
    _soft: tuple[int, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.spins.dtype != np.int8:
            raise TypeError(f"spins must be int8, got {self.spins.dtype}")
        self.spins = np.array(self.spins, order="C")
        for around in (self.spins[: self.part.own.start], self.spins[self.part.own.stop :]):
            np.copyto(around, 2 * np.sign(around))

    def loss_and_contractions(
        self, frame: LocalFrame, soft: SoftRecipe | None = None
    ) -> tuple[float, list[np.ndarray]]:
        """Loss of the block's own entries, and the contractions of its gradient, which the held planes share."""
        return self._pass().loss_and_contractions(frame, self._soft_of(soft))

    def loss_and_scalars(
        self, frame: LocalFrame, soft: SoftRecipe | None = None
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """As `MaskPass.loss_and_scalars`, of the block's own entries."""
        return self._pass().loss_and_scalars(frame, self._soft_of(soft))

    def log_odds(self, cores: Sequence[np.ndarray]) -> np.ndarray:
        """eta of the block's own planes."""
        return self._pass().log_odds(cores)[self.part.own]

    def weight_sums(self, cores: Sequence[np.ndarray]) -> tuple[float, float, float]:
        """Of its own training entries: the largest log-weight -eta, and sums of weights and squares relative to it."""
        found, n, own = [], self.spins.shape[-1], self.part.own
        for start, stop, eta in self._pass().log_odds_slabs(cores):
            low, high = max(start, own.start), min(stop, own.stop)
            if low < high:
                here = np.ascontiguousarray(eta[low - start : high - start]).reshape(-1, n)
                found.append(weight_sums(self.spins[low:high].reshape(-1, n), here))
        return merged_weights(found)

    def _pass(self) -> Any:
        if self._passes is None:
            self._passes = _engine(self.inside).mask_pass(self.spins, self.model, self.train_share)
        return self._passes

    def _soft_of(self, recipe: SoftRecipe | None) -> Any:
        if recipe is None:
            return None
        if self._soft is None or self._soft[0] != recipe.number:
            self._soft = recipe.number, self._pass().soft_spins(recipe.frame)
        return self._soft[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_passes": None, "_soft": None}

    def __sizeof__(self) -> int:
        return self.spins.nbytes


@dataclass
class ResidualBlock:
    """Passes over one block of data where its mask is not zero."""

    values: np.ndarray
    mask: np.ndarray
    inside: Any = None
    _passes: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        shared = self.mask is self.values
        self.values = np.require(self.values, requirements=["C", "W"])
        self.mask = self.values if shared else np.require(self.mask, requirements=["C", "W"])

    def loss_and_contractions(self, frame: LocalFrame) -> tuple[float, list[np.ndarray]]:
        """As `ResidualPass.loss_and_contractions`, of the block's planes."""
        return self._pass().loss_and_contractions(frame)

    def contractions_of_data(self, frame: LocalFrame) -> tuple[float, list[np.ndarray]]:
        """As `ResidualPass.contractions_of_data`, of the block's planes."""
        return self._pass().contractions_of_data(frame)

    def _pass(self) -> Any:
        if self._passes is None:
            self._passes = _engine(self.inside).residual_pass(self.values, self.mask)
        return self._passes

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_passes": None}

    def __sizeof__(self) -> int:
        return self.values.nbytes + self.mask.nbytes


def offer(inside: str | int | None) -> str:
    """What a member of the cluster says before any work: the version it has, if it has the engine asked for."""
    from corten import __version__

    as_local_engine(inside)
    return __version__


def call(block: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """The task every pass is made of."""
    return getattr(block, method)(*arguments)


def merged_weights(found: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Sums of weights and squares that are relative to different largest log-weights, brought to one."""
    seen = [(float(top), float(one), float(two)) for top, one, two in found if one > 0]
    if not seen:
        return -np.inf, 0.0, 0.0
    tops, ones, twos = np.array(seen).T
    shrink = np.exp(tops - tops.max())
    return float(tops.max()), float(shrink @ ones), float(shrink**2 @ twos)


def _engine(inside: Any) -> Any:
    """The engine asked for, or as many threads as the worker has."""
    if inside is not None:
        return as_local_engine(inside)
    from distributed import get_worker

    try:
        return Threads(get_worker().state.nthreads)
    except ValueError:  # not on a worker
        return Threads()
