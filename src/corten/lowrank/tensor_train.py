"""A tensor of low tensor-train rank, stored as K small cores (eq. TT-format), and its tangent space.

A tangent vector is sum_k U_1..U_{k-1} delta_k V_{k+1}..V_K (eq. tangent-space-tensor-form). With V
right-orthogonal the Gram matrix of eq. tangent-space-projection-solution-1 is the identity: nothing is
inverted, so points whose ranks are over-specified stay regular.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Floats, absorb, chunks, corner, frozen, full, interface, leading_left, rows
from corten.lowrank.points import LowRank, TangentVector
from corten.lowrank.ranks import check_rank, feasible_rank


@dataclass(frozen=True, eq=False, repr=False)
class TensorTrain(LowRank):
    """An immutable tensor x[i1..iK] = T_1[i1] ... T_K[iK], with cores T_k of shape (r_{k-1}, d_k, r_k).

    Cores are kept as read-only float64 arrays. The ranks may be larger than the tensor needs.

    Examples
    --------
    >>> TensorTrain.random((4, 5, 6), rank=2, seed=0)
    TensorTrain(shape=(4, 5, 6), rank=(2, 2))
    """

    cores: tuple[Floats, ...]
    check = staticmethod(check_rank)
    feasible = staticmethod(feasible_rank)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", tuple(frozen(core) for core in self.cores))
        if not self.cores or any(core.ndim != 3 for core in self.cores):
            raise ValueError(f"cores: need arrays (r, d, r'), got shapes {[c.shape for c in self.cores]}")
        ends = [1, *(core.shape[2] for core in self.cores)]
        starts = [*(core.shape[0] for core in self.cores), 1]
        if ends != starts:
            raise ValueError(f"cores: neighbouring ranks differ, got shapes {[c.shape for c in self.cores]}")

    @classmethod
    def from_dense(cls, x: npt.ArrayLike, rank: int | Sequence[int], seed: int = 0) -> TensorTrain:
        """Nearest-in-practice tensor train of a dense array: Algorithm TT-SVD, within sqrt(K-1) of the best.

        Large unfoldings are sketched (`range_finder`), O(size * rank); float32 input is worked on in float32.
        """
        work = full(x)
        shape, rng = work.shape, np.random.default_rng(seed)
        cores, left = [], 1
        for d, r in zip(shape, check_rank(shape, rank)):
            unfolding = work.reshape(left * d, -1)
            basis = leading_left(unfolding, r, rng)
            cores.append(basis.reshape(left, d, r))
            work, left = basis.T @ unfolding, r
        return cls((*cores, work.reshape(left, shape[-1], 1)))

    @classmethod
    def random(cls, shape: Sequence[int], rank: int | Sequence[int], seed: int = 0) -> TensorTrain:
        """Gaussian cores, scaled so that an entry has variance one."""
        ranks = (1, *check_rank(shape, rank), 1)
        rng = np.random.default_rng(seed)
        sizes = zip(ranks, shape, ranks[1:])
        return cls(tuple(rng.standard_normal((a, d, b)) / math.sqrt(b) for a, d, b in sizes))

    @classmethod
    def zeros(cls, shape: Sequence[int], rank: int | Sequence[int] = 1) -> TensorTrain:
        """The zero tensor, with room for the given rank."""
        ranks = (1, *check_rank(shape, rank), 1)
        return cls(tuple(np.zeros((a, d, b)) for a, d, b in zip(ranks, shape, ranks[1:])))

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return tuple(core.shape[1] for core in self.cores)

    @property
    def rank(self) -> tuple[int, ...]:
        """Ranks of the K-1 bonds."""
        return tuple(core.shape[2] for core in self.cores[:-1])

    @property
    def dimension(self) -> int:
        """Dimension of the manifold of this rank: sum_k d_k r_{k-1} r_k - sum_{k<K} r_k^2."""
        bonds = feasible_rank(self.shape, self.rank)
        ranks = (1, *bonds, 1)
        return sum(a * d * b for a, d, b in zip(ranks, self.shape, ranks[1:])) - sum(r * r for r in bonds)

    def slab(self, start: int, stop: int) -> Floats:
        """Dense planes start:stop of the first mode; O(entries * r)."""
        return interface([self.cores[0][:, start:stop], *self.cores[1:]])[..., 0]

    def at(self, index: Sequence[npt.ArrayLike]) -> Floats:
        """Entries at an index of K integer arrays (broadcast together); O(n K r^2), in chunks."""
        if len(index) != self.order:
            raise ValueError(f"index: {len(index)} arrays for {self.order} modes")
        where = np.broadcast_arrays(*(np.asarray(i, dtype=np.intp) for i in index))
        values = np.empty(where[0].shape)
        flat = values.reshape(-1)
        columns = [i.reshape(-1) for i in where]
        for part in chunks(flat.size):
            flat[part] = rows(self.cores, [i[part] for i in columns])[:, 0]
        return values

    def at_flat(self, flat: npt.ArrayLike) -> Floats:
        """Entries at flat (raveled, C order) indices."""
        return self.at(np.unravel_index(np.asarray(flat, dtype=np.intp), self.shape))

    def __add__(self, other: TensorTrain) -> TensorTrain:
        if self.shape != other.shape:
            raise ValueError(f"cannot add tensor trains of shapes {self.shape} and {other.shape}")
        if self.order == 1:
            return TensorTrain((self.cores[0] + other.cores[0],))
        first = np.concatenate([self.cores[0], other.cores[0]], axis=2)
        last = np.concatenate([self.cores[-1], other.cores[-1]], axis=0)
        middle = [corner(a, None, b) for a, b in zip(self.cores[1:-1], other.cores[1:-1])]
        return TensorTrain((first, *middle, last))

    def __neg__(self) -> TensorTrain:
        return self * -1.0

    def __sub__(self, other: TensorTrain) -> TensorTrain:
        return self + -other

    def __mul__(self, scalar: float) -> TensorTrain:
        return TensorTrain((*self.cores[:-1], self.cores[-1] * float(scalar)))

    __rmul__ = __mul__

    def inner(self, other: TensorTrain) -> float:
        """Inner product; O(K d r^3)."""
        carry = np.ones((1, 1))
        for a, b in zip(self.cores, other.cores):
            carry = np.tensordot(a, np.tensordot(carry, b, 1), ([0, 1], [0, 1]))
        return float(carry[0, 0])

    def norm(self) -> float:
        """Frobenius norm, from the last core of the left gauge (no cancellation, also for differences)."""
        return float(np.linalg.norm(self.left_orthogonal().cores[-1]))

    def left_orthogonal(self) -> TensorTrain:
        """The same tensor with cores 1..K-1 left-orthogonal; the last carries the norm."""
        done, carry = [], np.ones((1, 1))
        for core in self.cores[:-1]:
            basis, triangle = np.linalg.qr(absorb(carry, core).reshape(-1, core.shape[2]))
            done.append(basis.reshape(carry.shape[0], core.shape[1], -1))
            carry = triangle
        return TensorTrain((*done, absorb(carry, self.cores[-1])))

    def right_orthogonal(self) -> TensorTrain:
        """The same tensor with cores 2..K right-orthogonal; the first carries the norm."""
        return self.reversed().left_orthogonal().reversed()

    def gauges(self) -> tuple[TensorTrain, TensorTrain]:
        """Left and right gauge with the same ranks, reduced to what the shape allows."""
        right = self.right_orthogonal()
        left = right.left_orthogonal()
        return left, right if left.rank == right.rank else left.right_orthogonal()

    def round(self, rank: int | Sequence[int]) -> TensorTrain:
        """Quasi-optimal tensor train of at most the given ranks, in the left gauge; O(K d r^3)."""
        bonds = feasible_rank(self.shape, rank)
        cores = self.right_orthogonal().cores
        done, current = [], cores[0]
        for core, most in zip(cores[1:], bonds):
            left, d, right = current.shape
            u, s, v = np.linalg.svd(current.reshape(left * d, right), full_matrices=False)
            done.append(u[:, :most].reshape(left, d, -1))
            current = absorb(s[:most, None] * v[:most], core)
        return TensorTrain((*done, current))

    def reversed(self) -> TensorTrain:
        """Axes and ranks in reversed order."""
        return TensorTrain(tuple(core.transpose(2, 1, 0) for core in self.cores[::-1]))

    def frame(self) -> Frame:
        """Both gauges, and with them the tangent space here; O(K d r^3)."""
        left, right = self.gauges()
        return Frame(left.cores, right.cores, left)

    def leverage(self, start: int = 0, stop: int | None = None) -> Floats:
        """Squared norm of every unit tensor projected on the tangent space, for planes start:stop of mode 1.

        u_s^2 = ||P_T(I_s)||^2 = sum_{k<K} (l_{<=k-1} - l_{<=k}) rho_{>=k+1} + l_{<=K-1}, with l and rho the
        squared row norms of the left and right interfaces. Sums to `dimension` over all entries.
        """
        left, right = (tt.cores for tt in self.gauges())
        shape = (len(range(*slice(start, stop).indices(self.shape[0]))), *self.shape[1:])
        total, before = np.zeros(shape), np.ones((1,) * self.order)
        for k in range(1, self.order):
            part = interface([left[0][:, start:stop], *left[1:k]])
            here = np.square(part).sum(axis=-1).reshape(shape[:k] + (1,) * (self.order - k))
            # one row of the right interface at a time: together they can be larger than the slab
            rho = np.zeros(shape[k:])
            for a in range(right[k].shape[0]):
                rho += np.square(interface([right[k][a : a + 1], *right[k + 1 :]])[..., 0])
            total += (before - here) * rho
            before = here
        return total + before


@dataclass(frozen=True, eq=False)
class Frame:
    """A tensor train in both orthogonal gauges at once, and with it the tangent space at that point.

    left: U_1..U_{K-1} left-orthogonal, and S_K; right: S_1, and V_2..V_K right-orthogonal; point: the tensor.

    Examples
    --------
    >>> from corten.lowrank import TensorTrain
    >>> frame = TensorTrain.random((3, 4, 5), rank=2, seed=1).frame()
    >>> [core.shape for core in frame.left]
    [(1, 3, 2), (2, 4, 2), (2, 5, 1)]
    """

    left: tuple[Floats, ...]
    right: tuple[Floats, ...]
    point: TensorTrain

    @property
    def tt(self) -> Frame:
        """The frame that a pass over the data contracts with: this one."""
        return self

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

    def contractions_of(self, tt: TensorTrain) -> tuple[Floats, ...]:
        """Contractions of a low-rank tensor with the frame; O(K d r^3), nothing dense."""
        if tt.shape != self.point.shape:
            raise ValueError(f"tt: shape {tt.shape}, the frame's is {self.point.shape}")
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


class Tangent(TangentVector[TensorTrain]):
    """A tangent vector at a frame's point: one gauged delta core per mode."""

    frame: Frame

    def to_tt(self) -> TensorTrain:
        """The tangent vector as a tensor train of twice the rank."""
        return self._blocks(1.0, self.parts[-1])

    def retract(self, step: float) -> TensorTrain:
        moved = self._blocks(step, self.frame.left[-1] + step * self.parts[-1])
        return moved.round(self.frame.point.rank)

    def _blocks(self, scale: float, last: Floats) -> TensorTrain:
        left, right, deltas = self.frame.left, self.frame.right, self.parts
        if len(left) == 1:
            return TensorTrain((last,))
        first = np.concatenate([left[0], scale * deltas[0]], axis=2)
        middle = [corner(u, scale * x, v) for u, x, v in zip(left[1:-1], deltas[1:-1], right[1:-1])]
        return TensorTrain((first, *middle, np.concatenate([last, right[-1]], axis=0)))
