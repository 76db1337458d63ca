"""Tangent vectors of the tensor-train manifold: projection, retraction and transport on small cores only.

A tangent vector is sum_k U_1..U_{k-1} delta_k V_{k+1}..V_K (eq. tangent-space-tensor-form). With V
right-orthogonal the Gram matrix of eq. tangent-space-projection-solution-1 is the identity: nothing is
inverted, so points whose ranks are over-specified stay regular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Array, absorb, corner, interface
from corten.lowrank.points import TangentVector

if TYPE_CHECKING:
    from corten.lowrank.tensor_train import TensorTrain


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
        """Contractions of a dense gradient, for tests and small problems; O(size * K r)."""
        dense = np.asarray(dense)
        if dense.shape != self.shape:
            raise ValueError(f"dense: shape {dense.shape}, the frame's is {self.shape}")
        found: list[Array] = []
        rest = dense.astype(np.float64).reshape(-1, 1)
        for k in range(len(self.left) - 1, 0, -1):
            core, head = self.right[k], interface(self.left[:k])
            head = head.reshape(-1, head.shape[-1])
            found.append((head.T @ rest.reshape(head.shape[0], -1)).reshape(self.left[k].shape))
            rest = rest.reshape(len(head), -1) @ core.reshape(core.shape[0], -1).T
        return (rest.reshape(self.left[0].shape), *found[::-1])

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

    def random(self, seed: int = 0) -> Tangent:
        """A Gaussian tangent vector of norm one, for slope checks."""
        rng = np.random.default_rng(seed)
        drawn = self.project([rng.standard_normal(core.shape) for core in self.left])
        return drawn * (1.0 / drawn.norm())


class Tangent(TangentVector):
    """A tangent vector at a frame's point: one gauged delta core per mode."""

    def to_tt(self) -> TensorTrain:
        """The tangent vector as a tensor train of twice the rank."""
        return self._blocks(1.0, self.parts[-1])

    def retract(self, step: float) -> TensorTrain:
        moved = self._blocks(step, self.frame.left[-1] + step * self.parts[-1])
        return moved.round(self.frame.rank)

    def _blocks(self, scale: float, last: Array) -> TensorTrain:
        left, right, deltas, train = self.frame.left, self.frame.right, self.parts, type(self.frame.point)
        if len(left) == 1:
            return train((last,))
        first = np.concatenate([left[0], scale * deltas[0]], axis=2)
        middle = [corner(u, scale * x, None, v) for u, x, v in zip(left[1:-1], deltas[1:-1], right[1:-1])]
        return train((first, *middle, np.concatenate([last, right[-1]], axis=0)))
