"""Boosted regression trees as plain arrays: they can be saved without pickle and predict the same bits when loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["Trees"]

LEAF = -1  # in `feature`


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
        # Compiled code does not check indices: a damaged file must not read outside the arrays, or walk in circles.
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

    @staticmethod
    def of(boosted: Any) -> Trees:
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

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """The exponential of the sum for every row of (entries, features)."""
        return np.exp(self.sum(features))

    def sum(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """The sum for every row of (entries, features); features are finite."""
        if self.feature.max(initial=LEAF) >= features.shape[1]:
            raise ValueError(f"trees: {features.shape[1]} features were given, {self.feature.max() + 1} are needed")
        rows = np.ascontiguousarray(features, np.float64)
        walked = _walk(
            rows, self.baseline, self.starts, self.feature, self.threshold, self.left, self.right, self.value
        )
        return np.asarray(walked)


@njit(cache=True, nogil=True)
def _walk(rows, baseline, starts, feature, threshold, left, right, value):  # type: ignore[no-untyped-def]
    """The sum of the leaves that every row reaches, tree after tree."""
    total = np.full(rows.shape[0], baseline)
    for start in starts:
        for i in range(rows.shape[0]):
            node = start
            while feature[node] != -1:
                node = left[node] if rows[i, feature[node]] <= threshold[node] else right[node]
            total[i] += value[node]
    return total
