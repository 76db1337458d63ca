"""A tensor of low Tucker (multilinear) rank, a small core and one orthonormal factor per mode, and its tangent space.

The tensors of multilinear rank r lie among the tensor trains of rank min(r_1..r_k, r_{k+1}..r_K), and so do
their tangent spaces. A gradient therefore enters as contractions with the tensor-train frame (`tt`);
its projection there is all the Tucker projection needs, so passes over data are written once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Floats, frozen, full, leading_left, multiply
from corten.lowrank.points import LowRank, TangentVector
from corten.lowrank.ranks import check_tucker_rank, feasible_tucker_rank
from corten.lowrank.tensor_train import Frame, TensorTrain

MIN_SINGULAR_RATIO = 1e-10  # a core with a smaller one is rank-deficient
PERTURBATION_SHARE = 1e-9  # of the norm, by which a rank-deficient point is moved


@dataclass(frozen=True, eq=False, repr=False)
class Tucker(LowRank):
    """An immutable tensor core x_1 U_1 ... x_K U_K, with factors U_k of shape (d_k, r_k).

    Made here the factors are orthonormal; given by hand they may be any.

    Examples
    --------
    >>> Tucker.random((4, 5, 6), rank=(2, 2, 3), seed=0)
    Tucker(shape=(4, 5, 6), rank=(2, 2, 3))
    """

    core: Floats
    factors: tuple[Floats, ...]
    check = staticmethod(check_tucker_rank)
    feasible = staticmethod(feasible_tucker_rank)

    def __post_init__(self) -> None:
        object.__setattr__(self, "core", frozen(self.core))
        object.__setattr__(self, "factors", tuple(frozen(factor) for factor in self.factors))
        if tuple(factor.shape[1] for factor in self.factors) != self.core.shape:
            shapes = [factor.shape for factor in self.factors]
            raise ValueError(f"factors: shapes {shapes} do not fit the core's {self.core.shape}")

    @classmethod
    def from_dense(cls, x: npt.ArrayLike, rank: int | Sequence[int], seed: int = 0) -> Tucker:
        """Higher-order SVD, mode after mode, within sqrt(K) of the best; O(size * rank) where large."""
        work = full(x)
        rng = np.random.default_rng(seed)
        factors = []
        for k, r in enumerate(check_tucker_rank(work.shape, rank)):
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

    def slab(self, start: int, stop: int) -> Floats:
        """Dense planes start:stop of the first mode."""
        return self.to_tensor_train().slab(start, stop)

    def at_flat(self, flat: npt.ArrayLike) -> Floats:
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
        """The tangent space here; all work on core-sized arrays.

        Where the core is rank-deficient the tangent space is not defined: the point is then moved by 1e-9 of
        its norm in a fixed random direction, which gives it one.
        """
        point = self.orthonormal()
        if _deficient(point.core):
            noise = np.random.default_rng(0).standard_normal(point.rank)
            size = PERTURBATION_SHARE * (float(np.linalg.norm(point.core)) or 1.0) / float(np.linalg.norm(noise))
            point = Tucker(point.core + size * noise, point.factors)
        rows = []
        for k, r in enumerate(point.rank):
            unfolding = np.moveaxis(point.core, k, 0).reshape(r, -1)
            basis = np.linalg.qr(unfolding.T)[0].T
            rows.append(frozen(basis.reshape(r, *point.rank[:k], *point.rank[k + 1 :])))
        return TuckerFrame(point, tuple(rows), point.to_tensor_train().frame())

    def leverage(self, start: int = 0, stop: int | None = None) -> Floats:
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


STRUCTURES: dict[str, type[TensorTrain] | type[Tucker]] = {"tensor-train": TensorTrain, "tucker": Tucker}


@dataclass(frozen=True, eq=False)
class TuckerFrame:
    """A Tucker point with orthonormal factors, the row spaces of its core, and its tensor-train frame.

    rows[k] has shape (r_k, r_1, .., r_{k-1}, r_{k+1}, .., r_K): an orthonormal basis of the row space of the
    core's k-th unfolding. tt: the `Frame` a pass over the data contracts with.
    """

    point: Tucker
    rows: tuple[Floats, ...]
    tt: Frame

    @property
    def factors(self) -> tuple[Floats, ...]:
        """The orthonormal factors."""
        return self.point.factors

    def project(self, contractions: Sequence[npt.ArrayLike]) -> TuckerTangent:
        """Project a gradient, given its contractions D_k with the tensor-train frame `tt`."""
        return self.project_tt(self.tt.project(contractions).to_tt())

    def project_tt(self, tt: TensorTrain) -> TuckerTangent:
        """Project a low-rank tensor: its core part, and for each mode (I - U_k U_k^T) G_(k) (x)U_j V_k."""
        if tt.shape != self.point.shape:
            raise ValueError(f"tt: shape {tt.shape}, the frame's is {self.point.shape}")
        reduced = [multiply(core, factor.T, 1) for core, factor in zip(tt.cores, self.factors)]
        deltas = []
        for k, (factor, rows) in enumerate(zip(self.factors, self.rows)):
            partly = TensorTrain((*reduced[:k], tt.cores[k], *reduced[k + 1 :])).to_dense()
            reach = np.moveaxis(partly, k, 0).reshape(len(factor), -1) @ rows.reshape(len(rows), -1).T
            deltas.append(reach - factor @ (factor.T @ reach))
        return TuckerTangent(self, (TensorTrain(tuple(reduced)).to_dense(), *deltas))

    def radial(self) -> TuckerTangent:
        """The point itself as a tangent vector: the gradient of ||B||^2 / 2."""
        return TuckerTangent(self, (self.point.core, *(np.zeros(f.shape) for f in self.factors)))


class TuckerTangent(TangentVector[Tucker]):
    """A tangent vector: a core part, and for each mode a part W_k orthogonal to U_k that multiplies rows[k].

    Written on orthonormal row spaces the parts are orthogonal to each other and no Gram matrix is inverted.
    """

    frame: TuckerFrame

    def to_tucker(self) -> Tucker:
        """The tangent vector as a Tucker tensor of twice the rank."""
        return self._double(1.0, self.parts[0])

    def to_tt(self) -> TensorTrain:
        return self.to_tucker().to_tensor_train()

    def retract(self, step: float) -> Tucker:
        # the core has (2r)^K entries; a higher-order SVD brings it back to the rank
        return self._double(step, self.frame.point.core + step * self.parts[0]).round(self.frame.point.rank)

    def _double(self, scale: float, core: Floats) -> Tucker:
        rank = self.frame.point.rank
        wide = np.zeros([2 * r for r in rank])
        wide[tuple(slice(r) for r in rank)] = core
        factors = []
        for k, (rows, u, w) in enumerate(zip(self.frame.rows, self.frame.factors, self.parts[1:])):
            block = tuple(slice(r, None) if j == k else slice(r) for j, r in enumerate(rank))
            size = float(np.linalg.norm(w))  # goes into the core: beside rows of norm one a small core would be lost
            wide[block] = scale * size * np.moveaxis(rows, 0, k)
            factors.append(np.hstack([u, w / (size or 1.0)]))
        return Tucker(wide, tuple(factors))


def _deficient(core: Floats) -> bool:
    order = core.ndim
    unfoldings = [np.moveaxis(core, k, 0).reshape(core.shape[k], -1) for k in range(order)]
    unfoldings += [core.reshape(int(np.prod(core.shape[:k])), -1) for k in range(2, order - 1)]
    for unfolding in unfoldings:
        values = np.linalg.svd(unfolding, compute_uv=False)
        if values[-1] <= MIN_SINGULAR_RATIO * values[0]:
            return True
    return False
