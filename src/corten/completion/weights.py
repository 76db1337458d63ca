"""Weights of the members of a stack: the same for all entries, or by how far the members differ at an entry.

Where members agree, a mean of them has a smaller error than each. Where they differ by much, one of them has often
failed: a Gaussian process returns to the mean where a low-rank model still follows a day that is unlike all others. One
set of weights for all entries is a compromise, which the many entries with small differences determine. From the
largest differences on one member is used alone: they lie in a few gaps, too few to learn a mix, and a missing entry may
have a difference that no hidden entry has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.optimize

KNOTS = (0.5, 0.8, 0.95, 0.99)  # quantiles of the difference at hidden entries; weights are linear between them
KNOT_SHRINKAGE = 0.01  # towards the weights of all entries, relative to the squared errors at a knot
ALIKE = 1e-3  # a small ridge: alike members share their weight
SUM_ROW = 1e3  # of the rows that make sums of weights one, relative to the others


def simplex_weights(members: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Non-negative weights with sum one and the least squared error; `members` is (entries, members)."""
    count = members.shape[1]
    errors = members - truth[:, None]
    gram = errors.T @ errors
    size = float(np.trace(gram)) / count
    if count == 1 or not size > 0:
        return np.full(count, 1 / count)
    gram = gram / size + ALIKE * np.eye(count)
    # min w'Gw on the simplex is a non-negative least squares problem with a heavy row for the sum.
    root = np.linalg.cholesky(gram).T
    heavy = SUM_ROW * np.ones((1, count))
    weights, _ = scipy.optimize.nnls(np.vstack([root, heavy]), np.concatenate([np.zeros(count), [SUM_ROW]]))
    return weights / weights.sum()


@dataclass(frozen=True)
class WeightsByDifference:
    """Weights that depend on the difference of the members at an entry.

    common: weights for all entries, with which the difference is measured: the weighted standard deviation of the
    members. knots: differences, ascending; weights: those at the knots, (knots, members).
    """

    common: np.ndarray = field(repr=False)
    knots: np.ndarray
    weights: np.ndarray

    @staticmethod
    def fit(
        members: np.ndarray, truth: np.ndarray, common: np.ndarray, compared: np.ndarray | None = None
    ) -> WeightsByDifference | None:
        """The weights with the least squared error, at the last knot the largest weight alone.

        `members` is (entries, members). None if no members differ.

        compared: the members in the variable in which their difference is measured. Default: their own.
        """
        difference = _difference(list((members if compared is None else compared).T), common)
        knots, count = np.unique(np.quantile(difference, KNOTS)), members.shape[1]
        if len(knots) < 2 or count < 2:
            return None
        errors = members - truth[:, None]
        hats = np.stack([np.interp(difference, knots, one) for one in np.eye(len(knots))], axis=1)
        design = (hats[:, :, None] * errors[:, None, :]).reshape(len(errors), -1)
        gram = design.T @ design
        size = np.diagonal(gram).reshape(len(knots), count).mean(axis=1)  # of the squared errors at a knot
        if not (size > 0).all():
            return None
        each = np.repeat(size, count)
        root = np.linalg.cholesky(gram + ALIKE * np.diag(each)).T
        shrink = np.diag(np.sqrt(KNOT_SHRINKAGE * each))
        sums = SUM_ROW * np.repeat(np.diag(np.sqrt(size)), count, axis=1)
        wanted = [np.zeros(len(gram)), shrink @ np.tile(common, len(knots)), SUM_ROW * np.sqrt(size)]
        found = scipy.optimize.nnls(np.vstack([root, shrink, sums]), np.concatenate(wanted))[0].reshape(-1, count)
        found /= found.sum(axis=1, keepdims=True)
        found[-1] = np.eye(count)[found[-1].argmax()]
        return WeightsByDifference(np.asarray(common), knots, found)

    def mix(self, members: Sequence[np.ndarray], compared: Sequence[np.ndarray] | None = None) -> np.ndarray:
        """The weighted mean of the members, arrays of one shape; `compared` as in `fit`."""
        difference = _difference(members if compared is None else compared, self.common)
        return np.asarray(sum(np.interp(difference, self.knots, w) * one for w, one in zip(self.weights.T, members)))


def _difference(members: Sequence[np.ndarray], common: np.ndarray) -> np.ndarray:
    """The weighted standard deviation of the members at every entry."""
    middle = sum(weight * one for weight, one in zip(common, members))
    return np.sqrt(sum(weight * (one - middle) ** 2 for weight, one in zip(common, members)))
