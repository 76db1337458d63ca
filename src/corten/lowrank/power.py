"""A spectral start that never sees the tensor: power iteration in tangent spaces, from contractions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from corten.lowrank.tangent import Frame
from corten.lowrank.tensor_train import TensorTrain

__all__ = ["spectral_start"]

ITERATIONS = 4  # measured: close enough to TT-SVD that a descent from either needs the same number of passes


def spectral_start(
    contract: Callable[[Frame], Sequence[np.ndarray]],
    shape: Sequence[int],
    rank: int | Sequence[int],
    seed: int = 0,
    iterations: int = ITERATIONS,
) -> TensorTrain:
    """About the TT-SVD of a tensor known only through its contractions with frames; `iterations` passes over it.

    Each step projects the tensor on to the tangent space at the last guess and rounds: what a power iteration does to a
    matrix, done to all unfoldings at once. Nothing larger than the cores is held.

    Example:
        >>> goal = TensorTrain.random((5, 6, 7), rank=2, seed=1)
        >>> found = spectral_start(lambda frame: frame.contractions_of(goal), goal.shape, 2)
        >>> bool((found - goal).norm() < 1e-6 * goal.norm())
        True
    """
    point = TensorTrain.random(shape, rank, seed)
    for _ in range(iterations):
        frame = point.frame()
        point = frame.project(contract(frame)).to_tt().round(point.rank)
        if point.norm() == 0.0:
            return point
    return point
