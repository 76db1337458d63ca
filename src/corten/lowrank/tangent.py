"""Tangent vectors of the tensor-train manifold: projection, retraction and transport on small cores only.

A tangent vector is sum_k U_1..U_{k-1} delta_k V_{k+1}..V_K (eq. tangent-space-tensor-form). With V
right-orthogonal the Gram matrix of eq. tangent-space-projection-solution-1 is the identity: nothing is
inverted, so points whose ranks are over-specified stay regular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Array, absorb, corner, frozen, interface

if TYPE_CHECKING:
    from corten.lowrank.tensor_train import TensorTrain

__all__ = ["Frame", "Tangent"]

SLAB_ENTRIES = 1 << 20


@dataclass(frozen=True, eq=False)
class Frame:
    """A tensor train in both orthogonal gauges at once, and with it the tangent space at that point.

    left: U_1..U_{K-1} left-orthogonal, and S_K; right: S_1, and V_2..V_K right-orthogonal; point: the tensor.

    Examples
    --------
    >>> from corten.lowrank import TensorTrain
    >>> frame = Frame.of(TensorTrain.random((3, 4, 5), rank=2, seed=1))
    >>> [core.shape for core in frame.left]
    [(1, 3, 2), (2, 4, 2), (2, 5, 1)]
    """

    left: tuple[Array, ...]
    right: tuple[Array, ...]
    point: TensorTrain

    @classmethod
    def of(cls, tt: TensorTrain) -> Frame:
        """Both gauges of a tensor train; O(K d r^3)."""
        left, right = tt.gauges()
        return cls(left.cores, right.cores, left)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return self.point.shape

    @property
    def rank(self) -> tuple[int, ...]:
        """Ranks of the bonds."""
        return self.point.rank

    def project(self, contractions: Sequence[npt.ArrayLike]) -> Tangent:
        """Project a gradient on to the tangent space, given its contractions D_k with the frame.

        delta_k = (I - U_k U_k^T) D_k in the left unfolding for k < K and delta_K = D_K
        (eqs. tangent-space-projection-solution-1 and -2).
        """
        deltas = [np.asarray(d, dtype=np.float64) for d in contractions]
        wanted = [core.shape for core in self.left]
        if [d.shape for d in deltas] != wanted:
            raise ValueError(f"contractions: shapes {[d.shape for d in deltas]}, the frame's are {wanted}")
        for k, core in enumerate(self.left[:-1]):
            basis = core.reshape(-1, core.shape[2])
            flat = deltas[k].reshape(basis.shape)
            deltas[k] = (flat - basis @ (basis.T @ flat)).reshape(core.shape)
        return Tangent(self, tuple(deltas))

    def contractions(self, dense: npt.ArrayLike) -> tuple[Array, ...]:
        """Contractions of a dense gradient, slab by slab: for tests and small problems; O(size * K r)."""
        dense = np.asarray(dense)
        if dense.shape != self.shape:
            raise ValueError(f"dense: shape {dense.shape}, the frame's is {self.shape}")
        found = [np.zeros(core.shape) for core in self.left]
        order, planes = len(self.left), max(1, SLAB_ENTRIES * self.shape[0] // max(1, dense.size))
        for start in range(0, self.shape[0], planes):
            rest = dense[start : start + planes].astype(np.float64).reshape(-1, 1)
            for k in range(order - 1, -1, -1):
                d, r = self.left[k].shape[1:]
                if k == 0:
                    found[0][0, start : start + planes] = rest
                else:
                    head = interface([self.left[0][:, start : start + planes], *self.left[1:k]])
                    head = head.reshape(-1, head.shape[-1])
                    found[k] += (head.T @ rest.reshape(head.shape[0], -1)).reshape(-1, d, r)
                    core = self.right[k]
                    rest = rest.reshape(-1, d * r) @ core.reshape(core.shape[0], -1).T
        return tuple(found)

    def contractions_of(self, tt: TensorTrain) -> tuple[Array, ...]:
        """Contractions of a low-rank tensor with the frame; O(K d r^3), nothing dense."""
        if tt.shape != self.shape:
            raise ValueError(f"tt: shape {tt.shape}, the frame's is {self.shape}")
        tails = [np.ones((1, 1))]
        for core, basis in zip(tt.cores[:0:-1], self.right[:0:-1]):
            tails.append(np.tensordot(core @ tails[-1], basis, ([1, 2], [1, 2])))
        found, head = [], np.ones((1, 1))
        for core, basis, tail in zip(tt.cores, self.left, tails[::-1]):
            reached = absorb(head, core)
            found.append(reached @ tail)
            head = np.tensordot(basis, reached, ([0, 1], [0, 1]))
        return tuple(found)

    def project_tt(self, tt: TensorTrain) -> Tangent:
        """Project a low-rank tensor on to the tangent space."""
        return self.project(self.contractions_of(tt))

    def radial(self) -> Tangent:
        """The point itself as a tangent vector: the gradient of ||B||^2 / 2, all of it in the last core."""
        return Tangent(self, (*(np.zeros(core.shape) for core in self.left[:-1]), self.left[-1]))

    def zero(self) -> Tangent:
        """The zero tangent vector."""
        return Tangent(self, tuple(np.zeros(core.shape) for core in self.left))

    def random(self, seed: int = 0) -> Tangent:
        """A Gaussian tangent vector of norm one, for slope checks."""
        rng = np.random.default_rng(seed)
        drawn = self.project([rng.standard_normal(core.shape) for core in self.left])
        return drawn * (1.0 / drawn.norm())


@dataclass(frozen=True, eq=False)
class Tangent:
    """A tangent vector at a frame's point: one gauged delta core per mode, mutually orthogonal as tensors."""

    frame: Frame
    deltas: tuple[Array, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "deltas", tuple(frozen(delta) for delta in self.deltas))

    @classmethod
    def zero(cls, frame: Frame) -> Tangent:
        """The zero tangent vector of a frame."""
        return frame.zero()

    def inner(self, other: Tangent) -> float:
        """Inner product of the dense tensors: the sum of those of the delta cores."""
        self._same_frame(other)
        return float(sum(np.vdot(a, b) for a, b in zip(self.deltas, other.deltas)))

    def norm(self) -> float:
        """Frobenius norm of the dense tensor."""
        return float(np.linalg.norm([np.linalg.norm(delta) for delta in self.deltas]))

    def __add__(self, other: Tangent) -> Tangent:
        self._same_frame(other)
        return self._map(other, np.add)

    def __sub__(self, other: Tangent) -> Tangent:
        self._same_frame(other)
        return self._map(other, np.subtract)

    def __mul__(self, scalar: float) -> Tangent:
        return Tangent(self.frame, tuple(delta * float(scalar) for delta in self.deltas))

    __rmul__ = __mul__

    def __neg__(self) -> Tangent:
        return self * -1.0

    def to_tt(self) -> TensorTrain:
        """The tangent vector as a tensor train of twice the rank."""
        return self._blocks(1.0, self.deltas[-1])

    def retract(self, step: float) -> TensorTrain:
        """Walk `step` along the vector and round back to the rank (Step III); O(K d (2r)^3), cores only."""
        moved = self._blocks(step, self.frame.left[-1] + step * self.deltas[-1])
        return moved.round(self.frame.rank)

    def transport(self, frame: Frame) -> Tangent:
        """The vector carried to another point, by projection on to the tangent space there; O(K d r^3)."""
        return frame.project_tt(self.to_tt())

    def _blocks(self, scale: float, last: Array) -> TensorTrain:
        left, right, deltas, train = self.frame.left, self.frame.right, self.deltas, type(self.frame.point)
        if len(left) == 1:
            return train((last,))
        first = np.concatenate([left[0], scale * deltas[0]], axis=2)
        middle = [corner(u, scale * x, None, v) for u, x, v in zip(left[1:-1], deltas[1:-1], right[1:-1])]
        return train((first, *middle, np.concatenate([last, right[-1]], axis=0)))

    def _map(self, other: Tangent, combine: Callable[[Array, Array], Array]) -> Tangent:
        return Tangent(self.frame, tuple(combine(a, b) for a, b in zip(self.deltas, other.deltas)))

    def _same_frame(self, other: Tangent) -> None:
        if self.frame is not other.frame:
            raise ValueError("tangent vectors of two frames do not mix: carry one over with transport(frame)")
