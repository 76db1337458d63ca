"""Tangent vectors of the Tucker manifold, fed by the same contractions as tensor trains.

The tensors of multilinear rank r lie among the tensor trains of rank min(r_1..r_k, r_{k+1}..r_K), and so do
their tangent spaces. A gradient therefore enters as contractions with the tensor-train frame (`tt`);
its projection there is all the Tucker projection needs, so passes over data are written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from corten.lowrank.cores import Array, frozen, multiply
from corten.lowrank.points import TangentVector
from corten.lowrank.tangent import Frame
from corten.lowrank.tensor_train import TensorTrain

if TYPE_CHECKING:
    from corten.lowrank.tucker import Tucker

MIN_SINGULAR_RATIO = 1e-10  # a core with a smaller one is rank-deficient
NUDGE_SHARE = 1e-9  # of the norm, by which a rank-deficient point is moved


@dataclass(frozen=True, eq=False)
class TuckerFrame:
    """A Tucker point with orthonormal factors, the row spaces of its core, and its tensor-train frame.

    rows[k] has shape (r_k, r_1, .., r_{k-1}, r_{k+1}, .., r_K): an orthonormal basis of the row space of the
    core's k-th unfolding. tt: the `Frame` a pass over the data contracts with.
    """

    point: Tucker
    rows: tuple[Array, ...]
    tt: Frame

    @classmethod
    def of(cls, tucker: Tucker) -> TuckerFrame:
        """The frame at a point; all work on core-sized arrays.

        Where the core is rank-deficient the tangent space is not defined: the point is then nudged by 1e-9 of
        its norm in a fixed random direction, which gives it one.
        """
        point = tucker.orthonormal()
        if _deficient(point.core):
            noise = np.random.default_rng(0).standard_normal(point.rank)
            size = NUDGE_SHARE * (float(np.linalg.norm(point.core)) or 1.0) / float(np.linalg.norm(noise))
            point = type(point)(point.core + size * noise, point.factors)
        rows = []
        for k, r in enumerate(point.rank):
            unfolding = np.moveaxis(point.core, k, 0).reshape(r, -1)
            basis = np.linalg.qr(unfolding.T)[0].T
            rows.append(frozen(basis.reshape(r, *point.rank[:k], *point.rank[k + 1 :])))
        return cls(point, tuple(rows), Frame.of(point.to_tensor_train()))

    @property
    def factors(self) -> tuple[Array, ...]:
        """The orthonormal factors."""
        return self.point.factors

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return self.point.shape

    @property
    def rank(self) -> tuple[int, ...]:
        """Multilinear ranks."""
        return self.point.rank

    def project(self, contractions: Sequence[npt.ArrayLike]) -> TuckerTangent:
        """Project a gradient, given its contractions D_k with the tensor-train frame `tt`."""
        return self.project_tt(self.tt.project(contractions).to_tt())

    def project_tt(self, tt: TensorTrain) -> TuckerTangent:
        """Project a low-rank tensor: its core part, and for each mode (I - U_k U_k^T) G_(k) (x)U_j V_k."""
        if tt.shape != self.shape:
            raise ValueError(f"tt: shape {tt.shape}, the frame's is {self.shape}")
        reduced = [multiply(core, factor.T, 1) for core, factor in zip(tt.cores, self.factors)]
        deltas = []
        for k, (factor, rows) in enumerate(zip(self.factors, self.rows)):
            partly = TensorTrain((*reduced[:k], tt.cores[k], *reduced[k + 1 :])).to_dense()
            reach = np.moveaxis(partly, k, 0).reshape(self.shape[k], -1) @ rows.reshape(len(rows), -1).T
            deltas.append(reach - factor @ (factor.T @ reach))
        return TuckerTangent(self, (TensorTrain(tuple(reduced)).to_dense(), *deltas))

    def contractions(self, dense: npt.ArrayLike) -> tuple[Array, ...]:
        """Contractions of a dense gradient with the tensor-train frame: for tests and small problems."""
        return self.tt.contractions(dense)

    def radial(self) -> TuckerTangent:
        """The point itself as a tangent vector: the gradient of ||B||^2 / 2."""
        return TuckerTangent(self, (self.point.core, *(np.zeros(f.shape) for f in self.factors)))

    def random(self, seed: int = 0) -> TuckerTangent:
        """A Gaussian tangent vector of norm one, for slope checks."""
        rng = np.random.default_rng(seed)
        drawn = [rng.standard_normal(factor.shape) for factor in self.factors]
        deltas = [d - factor @ (factor.T @ d) for d, factor in zip(drawn, self.factors)]
        vector = TuckerTangent(self, (rng.standard_normal(self.rank), *deltas))
        return vector * (1.0 / vector.norm())


class TuckerTangent(TangentVector):
    """A tangent vector: a core part, and for each mode a part W_k orthogonal to U_k that multiplies rows[k].

    Written on orthonormal row spaces the parts are orthogonal to each other and no Gram matrix is inverted.
    """

    def to_tucker(self) -> Tucker:
        """The tangent vector as a Tucker tensor of twice the rank."""
        return self._double(1.0, self.parts[0])

    def to_tt(self) -> TensorTrain:
        return self.to_tucker().to_tensor_train()

    def retract(self, step: float) -> Tucker:
        # the core has (2r)^K entries; a higher-order SVD brings it back to the rank
        return self._double(step, self.frame.point.core + step * self.parts[0]).round(self.frame.rank)

    def _double(self, scale: float, core: Array) -> Tucker:
        rank = self.frame.rank
        wide = np.zeros([2 * r for r in rank])
        wide[tuple(slice(r) for r in rank)] = core
        factors = []
        for k, (rows, u, w) in enumerate(zip(self.frame.rows, self.frame.factors, self.parts[1:])):
            block = tuple(slice(r, None) if j == k else slice(r) for j, r in enumerate(rank))
            size = float(np.linalg.norm(w))  # goes into the core: beside rows of norm one a small core would be lost
            wide[block] = scale * size * np.moveaxis(rows, 0, k)
            factors.append(np.hstack([u, w / (size or 1.0)]))
        return type(self.frame.point)(wide, tuple(factors))


def _deficient(core: Array) -> bool:
    order = core.ndim
    unfoldings = [np.moveaxis(core, k, 0).reshape(core.shape[k], -1) for k in range(order)]
    unfoldings += [core.reshape(int(np.prod(core.shape[:k])), -1) for k in range(2, order - 1)]
    for unfolding in unfoldings:
        values = np.linalg.svd(unfolding, compute_uv=False)
        if values[-1] <= MIN_SINGULAR_RATIO * values[0]:
            return True
    return False
