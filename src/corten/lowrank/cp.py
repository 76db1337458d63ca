"""A tensor that is a short sum of rank-one tensors (CP), as other libraries' completions give it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from corten.lowrank.cores import Floats, chunks, frozen
from corten.lowrank.points import LowRank
from corten.lowrank.tensor_train import TensorTrain

MIN_EIGENVALUE_RATIO = 1e-10  # to the largest one; smaller ones count as zero


@dataclass(frozen=True, eq=False, repr=False)
class CP(LowRank):
    """An immutable tensor sum_a w[a] A_1[:, a] (x) .. (x) A_K[:, a], with factors A_k of shape (d_k, r).

    Examples
    --------
    >>> CP.random((4, 5, 6), rank=2, seed=0)
    CP(shape=(4, 5, 6), rank=2)
    """

    weights: Floats
    factors: tuple[Floats, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen(self.weights))
        object.__setattr__(self, "factors", tuple(frozen(factor) for factor in self.factors))
        if len(self.factors) < 2 or any(f.shape[1:] != self.weights.shape for f in self.factors):
            shapes = [factor.shape for factor in self.factors]
            raise ValueError(f"factors: need two or more of shape (d, {self.weights.size}), got {shapes}")

    @classmethod
    def random(cls, shape: Sequence[int], rank: int, seed: int = 0) -> CP:
        """Gaussian factors, scaled so that an entry has variance one."""
        rng = np.random.default_rng(seed)
        factors = tuple(rng.standard_normal((d, rank)) for d in shape)
        return cls(np.full(rank, 1.0 / math.sqrt(rank)), factors)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return tuple(factor.shape[0] for factor in self.factors)

    @property
    def rank(self) -> int:
        """Number of rank-one terms."""
        return self.weights.size

    @property
    def dimension(self) -> int:
        """Parameters of a generic tensor of this rank: r (sum d_k - K + 1); of a matrix r (d_1 + d_2 - r).

        Never more than the number of entries. Special tensors have fewer: `leverage` sums to what they have.
        """
        r, d = self.rank, self.shape
        if self.order == 2:
            r = min(r, *d)
            return r * (sum(d) - r)
        return min(r * (sum(d) - self.order + 1), self.size)

    def balanced(self) -> CP:
        """The same tensor with weights one and, in every term, factors of equal norm."""
        norms = np.array([np.linalg.norm(factor, axis=0) for factor in self.factors])
        size = np.abs(self.weights) * norms.prod(axis=0)
        scale = size ** (1.0 / self.order) / np.where(norms > 0.0, norms, 1.0)
        sign = np.sign(self.weights)
        first, *others = (factor * s for factor, s in zip(self.factors, scale))
        return CP(np.ones(self.rank), (first * sign, *others))

    def to_tensor_train(self) -> TensorTrain:
        """The same tensor as a tensor train of rank r on every bond, with diagonal cores."""
        first, *inner, last = self.factors
        middle = [np.eye(self.rank)[:, None, :] * factor for factor in inner]
        return TensorTrain(((first * self.weights)[None], *middle, last.T[:, :, None]))

    def slab(self, start: int, stop: int) -> Floats:
        """Dense planes start:stop of the first mode."""
        dense = self.factors[0][start:stop] * self.weights
        for factor in self.factors[1:-1]:
            dense = dense[..., None, :] * factor
        return dense @ self.factors[-1].T

    def leverage(self) -> Floats:
        """Squared norm of every unit tensor projected on the tangent space.

        u_s^2 = j^T (J^T J)^+ j with j the row of the factors' Jacobian J at entry s. Sums to the rank of J.
        O(size K^2 r^2) in chunks, after one (r sum d_k)^2 pseudo-inverse.
        """
        factors, r = self.balanced().factors, self.rank
        eigenvalues, vectors = np.linalg.eigh(_gram(factors))
        kept = eigenvalues > MIN_EIGENVALUE_RATIO * max(eigenvalues[-1], 0.0)
        inverse = (vectors[:, kept] / eigenvalues[kept]) @ vectors[:, kept].T
        starts = np.concatenate([[0], np.cumsum(self.shape)])
        blocks = inverse.reshape(starts[-1], r, starts[-1], r).transpose(0, 2, 1, 3)
        values = np.zeros(self.size)
        for part in chunks(self.size, max(1, (1 << 21) // r**2)):
            index = np.unravel_index(np.arange(part.start, part.stop), self.shape)
            local = [f[i] for f, i in zip(factors, index)]
            rest = [np.prod([*local[:k], *local[k + 1 :]], axis=0) for k in range(self.order)]
            for k in range(self.order):
                for j in range(self.order):
                    block = blocks[starts[k] + index[k], starts[j] + index[j]]
                    values[part] += np.einsum("na,nab,nb->n", rest[k], block, rest[j], optimize=True)
        return values.reshape(self.shape)


def _gram(factors: Sequence[Floats]) -> Floats:
    """J^T J of the map from factors to tensor, rows ordered (mode, position, term)."""
    order, r = len(factors), factors[0].shape[1]
    grams = [factor.T @ factor for factor in factors]
    whole = []
    for k in range(order):
        row = []
        for j in range(order):
            others = reduce(np.multiply, (gram for m, gram in enumerate(grams) if m not in (k, j)), np.ones((r, r)))
            if k == j:
                block = np.einsum("xy,ab->xayb", np.eye(len(factors[k])), others)
            else:
                block = np.einsum("xb,ya,ab->xayb", factors[k], factors[j], others)
            row.append(block.reshape(len(factors[k]) * r, len(factors[j]) * r))
        whole.append(row)
    return np.block(whole)
