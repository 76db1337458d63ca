"""Boosted regression trees as plain arrays: they can be saved without pickle and predict the same bits when loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numba import njit

from corten.data.arrays import Floats, Numbers

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

LEAF = -1  # in `feature`
MAX_LEAVES = 32  # of a tree: a set of leaves is a number of 32 bits
ALL_LEAVES = np.uint32(2**32 - 1)
ORDER = 0x077CB531  # a de Bruijn sequence: the five highest bits of its product with 2^k differ for all k below 32
PART_ROWS = 256  # whose features stay in the cache


_binning = Lock()
"""Held by a fit while it bins features: scikit-learn sets the filters of warnings of the whole process for a moment."""


def fit_trees(
    features: Numbers,
    target: Numbers,
    *,
    loss: Literal["gamma", "absolute_error"],
    trees: int,
    learning_rate: float,
    leaves: int,
    least: int,
    seed: int,
) -> Trees:
    """Boosted trees of `leaves` leaves with at least `least` rows each.

    One thread for a fit: the same bits on every machine, and no waiting threads on a busy one.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    class Boosted(HistGradientBoostingRegressor):
        def _bin_data(self, *given: object, **named: object) -> np.ndarray:
            with _binning:
                return cast(np.ndarray, super()._bin_data(*given, **named))

    boosted = Boosted(
        loss=loss, max_iter=trees, learning_rate=learning_rate, max_leaf_nodes=leaves, min_samples_leaf=least,
        l2_regularization=1.0, early_stopping=False, random_state=seed,
    )  # fmt: skip
    with threadpool_limits(1, user_api="openmp"):
        boosted.fit(features, target)
    return Trees.of(boosted)


@dataclass(frozen=True, eq=False)
class Trees:
    """The sum of regression trees; `predict` returns the exponential of the sum, for trees with a logarithmic link.

    Nodes of all trees lie one after another; tree t starts at ``starts[t]``. An inner node goes to ``left`` if its
    feature is at most ``threshold``, else to ``right``; a leaf has feature -1 and adds its ``value``.
    """

    baseline: float
    starts: np.ndarray = field(repr=False)
    feature: np.ndarray = field(repr=False)
    threshold: np.ndarray = field(repr=False)
    left: np.ndarray = field(repr=False)
    right: np.ndarray = field(repr=False)
    value: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        # Compiled code does not check indices: a damaged file must not read outside the arrays, or loop without end.
        for name in ("starts", "feature", "left", "right"):
            if getattr(self, name).dtype.kind != "i":
                raise ValueError(f"trees: {name} has numbers of type {getattr(self, name).dtype}, not integers")
        nodes = np.arange(len(self.feature))
        inner = self.feature != LEAF
        for name in ("threshold", "left", "right", "value"):
            if getattr(self, name).shape != nodes.shape:
                raise ValueError(f"trees: {name} has shape {getattr(self, name).shape}, feature {nodes.shape}")
        children = np.stack([self.left, self.right])[:, inner]
        if (children <= nodes[inner]).any() or (children >= len(nodes)).any() or (self.feature < LEAF).any():
            raise ValueError("trees: a node refers to one that is not below it")
        if len(self.starts) and not 0 <= self.starts.min() <= self.starts.max() < len(nodes):
            raise ValueError("trees: a tree starts outside the nodes")
        assert self._flat  # a tree with too many leaves is refused here

    @staticmethod
    def of(boosted: HistGradientBoostingRegressor) -> Trees:
        """The trees of a fitted ``HistGradientBoostingRegressor`` with numeric features."""
        nodes = [one.nodes for (one,) in boosted._predictors]
        starts = np.cumsum([0, *map(len, nodes)])[:-1]
        joined = np.concatenate(nodes)
        offset = np.repeat(starts, list(map(len, nodes)))
        leaf = joined["is_leaf"].astype(bool)
        return Trees(
            baseline=float(np.ravel(boosted._baseline_prediction)[0]),
            starts=starts.astype(np.int64),
            feature=np.where(leaf, LEAF, joined["feature_idx"]).astype(np.int64),
            threshold=joined["num_threshold"].astype(np.float64),
            left=(joined["left"] + offset).astype(np.int64),
            right=(joined["right"] + offset).astype(np.int64),
            value=joined["value"].astype(np.float64),
        )

    def predict(self, features: Numbers) -> Floats:
        """The exponential of the sum for every row of (entries, features)."""
        return np.exp(self.sum(features))

    def sum(self, features: Numbers) -> Floats:
        """The sum for every row of (entries, features); features are finite."""
        if self.feature.max(initial=LEAF) >= features.shape[1]:
            raise ValueError(f"trees: {features.shape[1]} features were given, {self.feature.max() + 1} are needed")
        single = features.dtype == np.float32
        threshold = _at_most(self.threshold) if single else self.threshold
        rows = np.ascontiguousarray(features, np.float32 if single else np.float64)
        return np.asarray(_sum(rows, threshold, self.baseline, self._flat))

    @cached_property
    def _flat(self) -> tuple[np.ndarray, ...]:
        return _flatten(self.starts, self.feature, self.left, self.right, self.value)


def _at_most(threshold: np.ndarray) -> np.ndarray:
    """The largest numbers of single precision up to each threshold: those features below it are the same."""
    single = threshold.astype(np.float32)
    return np.where(single > threshold, np.nextafter(single, np.float32(-np.inf)), single).astype(np.float32)


@njit(cache=True)
def _flatten(starts, feature, left, right, value):  # type: ignore[no-untyped-def]
    """For every tree its inner nodes, their features and the leaves that remain if the row goes right; its values.

    Leaves are numbered from left to right, and a set of leaves is a number with one bit for each. A value lies at the
    place that `_sum` computes from the lowest bit of a set.
    """
    count = len(starts)
    inner = np.zeros((count, MAX_LEAVES), np.int64)
    tested = np.zeros((count, MAX_LEAVES), np.int64)
    remain = np.zeros((count, MAX_LEAVES), np.uint32)
    values = np.zeros((count, MAX_LEAVES))
    sizes = np.zeros(count, np.int64)
    stack, before = np.empty(3 * MAX_LEAVES, np.int64), np.empty(MAX_LEAVES, np.int64)
    for t in range(count):
        leaves, size, waiting = 0, 0, 1
        stack[0] = starts[t]
        while waiting:
            waiting -= 1
            node = stack[waiting]
            if node < 0:  # all leaves on the left of an inner node have their numbers
                at = -1 - node
                remain[t, at] = ALL_LEAVES ^ ((1 << leaves) - (1 << before[at]))
            elif feature[node] == LEAF:
                if leaves == MAX_LEAVES:
                    raise ValueError("trees: a tree has more than 32 leaves")
                values[t, ((ORDER << leaves) & ALL_LEAVES) >> 27] = value[node]
                leaves += 1
            else:
                if size == MAX_LEAVES - 1:
                    raise ValueError("trees: a tree has more than 32 leaves")
                inner[t, size], tested[t, size], before[size] = node, feature[node], leaves
                stack[waiting], stack[waiting + 1], stack[waiting + 2] = right[node], -1 - size, left[node]
                waiting, size = waiting + 3, size + 1
        sizes[t] = size
    return sizes, inner, tested, remain, values


@njit(cache=True, nogil=True)
def _sum(features, threshold, baseline, flat):  # type: ignore[no-untyped-def]
    """The sum of the leaves that every row reaches, tree after tree.

    No row walks down a tree: every inner node at which a row goes right removes the leaves on its left, and the first
    leaf that remains is reached. Nodes are taken in any order, for all rows of a part at once.
    """
    sizes, inner, tested, remain, values = flat
    total = np.full(features.shape[0], baseline)
    part = np.empty((features.shape[1], PART_ROWS), features.dtype)
    leaves = np.empty(PART_ROWS, np.uint32)
    for first in range(0, features.shape[0], PART_ROWS):
        size = min(PART_ROWS, features.shape[0] - first)
        for i in range(size):  # loops: assignments of slices take many times as long to compile
            for j in range(features.shape[1]):
                part[j, i] = features[first + i, j]
        for t in range(len(sizes)):
            for i in range(PART_ROWS):
                leaves[i] = ALL_LEAVES
            for k in range(sizes[t]):
                column, most, right = part[tested[t, k]], threshold[inner[t, k]], remain[t, k]
                for i in range(PART_ROWS):
                    leaves[i] &= right if column[i] > most else ALL_LEAVES
            for i in range(size):
                lowest = np.uint64(leaves[i]) & (~np.uint64(leaves[i]) + np.uint64(1))
                place = ((lowest * np.uint64(ORDER)) & np.uint64(ALL_LEAVES)) >> np.uint64(27)
                total[first + i] += values[t, place]
    return total
