"""A tensor of low Tucker (multilinear) rank: a small core, and one orthonormal factor per mode."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Array, frozen, multiply
from corten.lowrank.points import LowRank
from corten.lowrank.range_finder import leading_left
from corten.lowrank.ranks import check_tucker_rank, feasible_tucker_rank
from corten.lowrank.tensor_train import TensorTrain
from corten.lowrank.tucker_tangent import TuckerFrame


@dataclass(frozen=True, eq=False, repr=False)
class Tucker(LowRank):
    """An immutable tensor core x_1 U_1 ... x_K U_K, with factors U_k of shape (d_k, r_k).

    Made here the factors are orthonormal; given by hand they may be any.

    Examples
    --------
    >>> Tucker.random((4, 5, 6), rank=(2, 2, 3), seed=0)
    Tucker(shape=(4, 5, 6), rank=(2, 2, 3))
    """

    core: Array
    factors: tuple[Array, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", frozen(self.core))
        object.__setattr__(self, "factors", tuple(frozen(factor) for factor in self.factors))
        if tuple(factor.shape[1] for factor in self.factors) != self.core.shape:
            shapes = [factor.shape for factor in self.factors]
            raise ValueError(f"factors: shapes {shapes} do not fit the core's {self.core.shape}")

    @classmethod
    def from_dense(cls, x: npt.ArrayLike, rank: int | Sequence[int], seed: int = 0) -> Tucker:
        """Higher-order SVD, mode after mode, within sqrt(K) of the best; O(size * rank) where large."""
        x = np.asarray(x)
        work = x if x.dtype == np.float32 else x.astype(np.float64)
        if not np.isfinite(work).all():
            raise ValueError("x: contains NaN or infinity; fill the missing entries first")
        rng = np.random.default_rng(seed)
        factors = []
        for k, r in enumerate(check_tucker_rank(x.shape, rank)):
            unfolding = np.moveaxis(work, k, 0).reshape(work.shape[k], -1)
            factors.append(leading_left(unfolding, r, rng))
            work = multiply(work, factors[-1].T, k)
        return cls(work, tuple(factors))

    @classmethod
    def random(cls, shape: Sequence[int], rank: int | Sequence[int], seed: int = 0) -> Tucker:
        """Gaussian core and random orthonormal factors, scaled so that an entry has variance one."""
        modes = check_tucker_rank(shape, rank)
        rng = np.random.default_rng(seed)
        factors = tuple(np.linalg.qr(rng.standard_normal((d, r)))[0] for d, r in zip(shape, modes))
        return cls(rng.standard_normal(modes) * math.sqrt(math.prod(shape) / math.prod(modes)), factors)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return tuple(factor.shape[0] for factor in self.factors)

    @property
    def rank(self) -> tuple[int, ...]:
        """Multilinear ranks, one per mode."""
        return self.core.shape

    @property
    def dimension(self) -> int:
        """Dimension of the manifold of this rank: prod_k r_k + sum_k r_k (d_k - r_k)."""
        return math.prod(self.rank) + sum(r * (d - r) for r, d in zip(self.rank, self.shape))

    def orthonormal(self) -> Tucker:
        """The same tensor with orthonormal factors."""
        core, factors = self.core, []
        for k, factor in enumerate(self.factors):
            basis, triangle = np.linalg.qr(factor)
            core = multiply(core, triangle, k)
            factors.append(basis)
        return Tucker(core, tuple(factors))

    def to_tensor_train(self) -> TensorTrain:
        """The same tensor as a tensor train, exactly, of ranks min(r_1..r_k, r_{k+1}..r_K) (products)."""
        bonds = [min(math.prod(self.rank[:k]), math.prod(self.rank[k:])) for k in range(1, self.order)]
        small, rest, left = [], np.asarray(self.core), 1
        for r, bond in zip(self.rank, bonds):
            u, s, v = np.linalg.svd(rest.reshape(left * r, -1), full_matrices=False)
            small.append(u[:, :bond].reshape(left, r, bond))
            rest, left = s[:bond, None] * v[:bond], bond
        small.append(rest.reshape(left, self.rank[-1], 1))
        return TensorTrain(tuple(multiply(core, factor, 1) for core, factor in zip(small, self.factors)))

    def slab(self, start: int, stop: int) -> Array:
        """Dense planes start:stop of the first mode."""
        return self.to_tensor_train().slab(start, stop)

    def at_flat(self, flat: npt.ArrayLike) -> Array:
        """Entries at flat (raveled, C order) indices."""
        return self.to_tensor_train().at_flat(flat)

    def norm(self) -> float:
        """Frobenius norm."""
        return float(np.linalg.norm(self.orthonormal().core))

    def __mul__(self, scalar: float) -> Tucker:
        return Tucker(self.core * float(scalar), self.factors)

    __rmul__ = __mul__

    def round(self, rank: int | Sequence[int]) -> Tucker:
        """Higher-order SVD of the small core: at most the given ranks; nothing dense."""
        given = self.orthonormal()
        wanted = feasible_tucker_rank(self.shape, rank)
        core, factors = np.asarray(given.core), []
        for k, (factor, most) in enumerate(zip(given.factors, wanted)):
            unfolding = np.moveaxis(core, k, 0).reshape(core.shape[k], -1)
            basis = np.linalg.svd(unfolding, full_matrices=False)[0][:, :most]
            core = multiply(core, basis.T, k)
            factors.append(factor @ basis)
        return Tucker(core, tuple(factors))

    def frame(self) -> TuckerFrame:
        """The tangent space here: `TuckerFrame.of(self)`."""
        return TuckerFrame.of(self)

    def leverage(self, start: int = 0, stop: int | None = None) -> Array:
        """Squared norm of every unit tensor projected on the tangent space, for planes start:stop of mode 1.

        u_s^2 = prod_k l_k + sum_k (1 - l_k) ||V_k^T (x)_{j != k} u_j||^2, with u_j rows of the orthonormal
        factors, l_k their squared norms and V_k the row space of the core's unfolding. Sums to `dimension`.
        """
        frame = self.frame()
        factors = [frame.factors[0][start:stop], *frame.factors[1:]]
        own = [np.square(factor).sum(axis=1) for factor in factors]
        shape = tuple(len(rows) for rows in own)
        total = functools.reduce(np.multiply.outer, own)
        for k, basis in enumerate(frame.rows):
            others = [j for j in range(self.order) if j != k]
            field = np.zeros([shape[j] for j in others])
            for part in basis:  # one direction of the row space at a time keeps memory at one plane
                for axis, j in enumerate(others):
                    part = multiply(part, factors[j], axis)
                field += np.square(part)
            side = (1.0 - own[k]).reshape([-1 if j == k else 1 for j in range(self.order)])
            total = total + side * np.expand_dims(field, k)
        return total
