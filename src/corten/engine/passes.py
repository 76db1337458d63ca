"""Passes over the mask: all expensive computations of the propensity model.

(spins, cores, coupling, link, train share)  ->  (loss, contractions of the gradient with the cores' frame)

The result of a box is as large as the cores, and nothing larger is sent between threads or machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from corten.engine.arithmetic import LOGIT, PRODUCT
from corten.engine.layout import Box, Layout
from corten.engine.lazy import Planes
from corten.engine.likelihood import field_box, likelihood_box
from corten.engine.memory import byte_tensor, let_go, parts, read_only
from corten.engine.threads import in_order, threads_for

EMPTY = read_only(np.zeros((0, 0, 0), np.int8))
FIELD_ENTRIES = 1 << 22  # log-odds are given in blocks of planes of about this many entries


class FrameLike(Protocol):
    """A tensor train in both orthogonal gauges: left (U_1 .. U_{K-1}, S) and right (S, V_2 .. V_K)."""

    @property
    def left(self) -> tuple[np.ndarray, ...]: ...
    @property
    def right(self) -> tuple[np.ndarray, ...]: ...


class PlainFrame(NamedTuple):
    """Cores for a pass that are not in orthogonal gauges, or those of some planes only."""

    left: tuple[np.ndarray, ...]
    right: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Model:
    """The propensity model in the form that kernels read."""

    coupling_kind: int
    terms: np.ndarray
    link_kind: int
    offsets: np.ndarray
    periodic: tuple[bool, ...]
    shift: float = 0.0  # added to every log-odds: twice the link's offset


def check_spins(spins: Planes, train_share: float) -> None:
    """Refuse spins and train shares that no engine can pass over."""
    if spins.dtype != np.int8:
        raise TypeError(f"spins must be int8, got {spins.dtype}")
    if not 0 < train_share <= 0.9999 and train_share != 1.0:
        raise ValueError(f"train_share must be in (0, 0.9999] or 1, got {train_share}")


def weight_sums(spins: np.ndarray, eta: np.ndarray) -> tuple[float, float, float]:
    """Largest log-weight -eta of entries with a positive spin; sums of weights and of their squares relative to it."""
    logs = -eta[spins > 0]
    top = float(logs.max(initial=-np.inf))
    weights = np.exp(logs - np.float32(top))
    return top, float(weights.sum(dtype=np.float64)), float(np.square(weights).sum(dtype=np.float64))


def size_of(found: Iterable[tuple[float, float, float]]) -> float:
    """The effective sample size of all weights, from the `weight_sums` of parts."""
    sums = [(float(top), float(one), float(two)) for top, one, two in found if one > 0]
    if not sums:
        return 0.0
    tops, ones, twos = np.array(sums).T
    shrink = np.exp(tops - tops.max())
    return float((shrink @ ones) ** 2 / (shrink**2 @ twos))


class AnyMaskPass:
    """What passes over a mask share on all engines."""

    spins: Planes
    train_share: float
    _constant: float | None = None

    def log_odds(self, cores: Sequence[np.ndarray]) -> np.ndarray:
        """eta of every entry as one float32 array, with neighbours read from these spins."""
        out = np.empty(self.spins.shape, np.float32)
        for start, stop, part in self.log_odds_slabs(cores):
            out[start:stop] = part
        return out

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        raise NotImplementedError

    def _observed_constant(self) -> float:
        """-log q for every training term: constant in the parameter, kept so that the loss is the paper's."""
        if self.train_share == 1.0:
            return 0.0
        if self._constant is None:
            self._constant = -self._training_entries() * float(np.log(self.train_share))
        return self._constant

    def _training_entries(self) -> int:
        raise NotImplementedError


@dataclass
class MaskPass(AnyMaskPass):
    """Passes over one mask of spins (int8, the tensor's shape; possibly a memory map).

    Spins: +-1 in the likelihood, +-2 held out (neighbours of others, no term of its own), 0 outside the domain.
    """

    spins: np.ndarray
    model: Model
    train_share: float = 1.0
    threads: int | None = None
    slab: int | None = None
    tile: int | None = None
    passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_spins(self.spins, self.train_share)
        self.threads = self.threads or threads_for(self.spins.size)
        offsets = self.model.offsets if self.model.coupling_kind else np.zeros((0, self.spins.ndim), np.int64)
        self.layout = Layout.of(self.spins.shape, offsets, self.model.periodic, self.slab, self.tile)
        self._flat = self.spins.reshape(self.layout.flat_shape)

    def loss_and_contractions(self, frame: FrameLike, soft: SoftSpins | None = None) -> tuple[float, list[np.ndarray]]:
        """The pseudo-likelihood loss (eq. low-rank-MPLE) and its gradient contracted with the frame. One pass."""
        total, contractions, _ = self._likelihood(frame, soft, 0)
        return total, contractions

    def loss_and_scalars(self, frame: FrameLike, soft: SoftSpins | None = None) -> tuple[float, np.ndarray, np.ndarray]:
        """The loss, its slope in three numbers and the sum of squared terms of it, a 3 x 3 information. One pass.

        The numbers: the strength of a product coupling, the size of B in the logit link, the link's offset.
        """
        if self.model.coupling_kind != PRODUCT or self.model.link_kind != LOGIT:
            raise ValueError("slopes in strength, size and offset are those of a product coupling and the logit link")
        total, _, sums = self._likelihood(frame, soft, 9)
        squares = np.zeros((3, 3))
        squares[np.triu_indices(3)] = sums[3:]
        return total, sums[:3], squares + np.triu(squares, 1).T

    def _likelihood(
        self, frame: FrameLike, soft: SoftSpins | None, count: int
    ) -> tuple[float, list[np.ndarray], np.ndarray]:
        self.passes += 1
        cores = pack(frame.left)
        right = pack(frame.right)
        base = soft.cores if soft is not None else cores
        tau = soft.values.reshape(self.layout.flat_shape) if soft is not None else EMPTY
        q = np.float32(self.train_share)
        model, layout = self.model, self.layout
        terms = np.ascontiguousarray(model.terms, np.float64).reshape(-1, 3)

        def zeros() -> list[np.ndarray]:
            return [*(np.zeros(core.shape) for core in cores), np.zeros(count)]

        def one(box: Box) -> tuple[float, list[np.ndarray]]:
            found = zeros()
            loss = likelihood_box(
                self._planes(self._flat, box), self._planes(tau, box) if soft is not None else EMPTY,
                box.spin_start, box.plane_index, box.plane_level, box.rows, box.row_level,
                layout.offsets, box.table, layout.radius, layout.reach, layout.periodic_last,
                *cores, right[1], right[2], *base, model.coupling_kind, terms, model.link_kind,
                np.float32(model.shift), q, *found,
            )  # fmt: skip
            return loss, found

        total, sums, behind = 0.0, zeros(), 0
        for box, (loss, found) in zip(layout.boxes, in_order(one, layout.boxes, self.threads)):
            total += loss
            for have, part in zip(sums, found):
                have += part
            needed = box.start - 2 * layout.radius  # the other boxes of this slab still read so far back
            if needed > behind:
                self._let_go(behind, needed, tau)
                behind = needed
        self._let_go(behind, layout.shape[0], tau)
        return total + self._observed_constant(), unpack(sums[:3], frame), sums[3]

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """eta in blocks of planes: (start, stop, planes start:stop). One pass."""
        self.passes += 1
        planes, rows, n = self.layout.flat_shape
        slab = self.layout.boxes[0].stop - self.layout.boxes[0].start
        step = max(1, min(slab, FIELD_ENTRIES // max(1, rows * n)))

        def one(start: int) -> tuple[int, int, np.ndarray]:
            stop = min(start + step, planes)
            return start, stop, self.log_odds_between(cores, start, stop)

        yield from in_order(one, range(0, planes, step), self.threads)

    def log_odds_between(self, cores: Sequence[np.ndarray], start: int, stop: int) -> np.ndarray:
        """eta of planes start:stop, with neighbours read from these spins; no thread but the caller's."""
        packed = pack(tuple(cores))
        model, layout = self.model, self.layout
        terms = np.ascontiguousarray(model.terms, np.float64).reshape(-1, 3)
        out = np.empty((stop - start, *layout.flat_shape[1:]), np.float32)
        for box in layout.between(start, stop):
            field_box(
                self._planes(self._flat, box), box.spin_start, box.plane_index, box.plane_level, box.rows,
                box.row_level, layout.offsets, box.table, layout.radius, layout.reach, layout.periodic_last,
                *packed, model.coupling_kind, terms, model.link_kind, np.float32(model.shift), out,
            )  # fmt: skip
        self._let_go(max(0, start - layout.radius), stop + layout.radius)
        return out.reshape((stop - start, *layout.shape[1:]))

    def effective_size(self, cores: Sequence[np.ndarray]) -> float:
        """Effective sample size of the weights exp(-eta) on the training entries, slab by slab. One pass."""
        found = []
        for start, stop, eta in self.log_odds_slabs(cores):
            found.append(weight_sums(self.spins[start:stop], eta))
            self._let_go(start, stop)
        return size_of(found)

    def soft_spins(self, frame: FrameLike) -> SoftSpins:
        """Expected spins of the entries not in training, given a first fit: tanh((eta + log(1 - q)) / 2), in 1/127.

        An entry that is -1 in the training mask may be observed: E[W | W_tr = -1] = 2 (1 - q) p / (1 - q p) - 1.
        """
        shift = np.float32(np.log1p(-self.train_share))
        values = byte_tensor(self.spins.shape)
        for start, stop, eta in self.log_odds_slabs(frame.left):
            values[start:stop] = np.rint(127 * np.tanh((eta + shift) * np.float32(0.5))).astype(np.int8)
            let_go(values[start:stop])
        return SoftSpins(values, pack(frame.left))

    def _planes(self, flat: np.ndarray, box: Box) -> np.ndarray:
        planes = box.planes
        if planes[-1] - planes[0] + 1 == len(planes):
            return read_only(flat[planes[0] : planes[-1] + 1])
        return read_only(np.ascontiguousarray(flat[planes]))

    def _let_go(self, start: int, stop: int, soft: np.ndarray = EMPTY) -> None:
        """Release pages of spins in a file once they were read."""
        let_go(self._flat[start:stop])
        let_go(soft[start:stop])

    def _training_entries(self) -> int:
        return sum(int(np.count_nonzero(np.asarray(part) == 1)) for _, _, part in parts(self._flat))


@dataclass(frozen=True)
class SoftSpins:
    """Expected spins (int8, in 1/127) and the cores they were computed from."""

    values: np.ndarray
    cores: tuple[np.ndarray, np.ndarray, np.ndarray]


def flattened(cores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cores as (first, middle, last), middle cores multiplied out."""
    first, last = cores[0][0], cores[-1][..., 0]
    if len(cores) == 2:
        return first, np.eye(last.shape[0])[:, None, :], last
    middle = cores[1]
    for core in cores[2:-1]:
        middle = np.tensordot(middle, core, 1)
    return first, middle.reshape(first.shape[1], -1, last.shape[0]), last


def pack(cores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`flattened` cores in float32, the last bond padded to fours."""
    first, middle, last = flattened(cores)
    pad = -last.shape[0] % 4
    return (
        np.ascontiguousarray(first, np.float32),
        np.ascontiguousarray(np.pad(middle, ((0, 0), (0, 0), (0, pad))), np.float32),
        np.ascontiguousarray(np.pad(last, ((0, pad), (0, 0))), np.float32),
    )


def unpack(sums: Sequence[np.ndarray], frame: FrameLike) -> list[np.ndarray]:
    """Contractions D_k of every core from those of (first, middle, last)."""
    first, middle, last = sums
    left, right = frame.left, frame.right
    order, bond = len(left), left[-1].shape[0]
    out = [first[None]]
    for k in range(1, order - 1):
        part = middle[..., :bond].reshape(middle.shape[0], *(c.shape[1] for c in left[1:-1]), bond)
        for core in left[1:k]:
            part = np.tensordot(core, part, ((0, 1), (0, 1)))
        for core in reversed(right[k + 1 : -1]):
            part = np.tensordot(part, core, ((-2, -1), (1, 2)))
        out.append(part)
    out.append(last[:bond, :, None])
    return out
