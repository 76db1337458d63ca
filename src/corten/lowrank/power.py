"""A spectral start from contractions with the tensor alone: power iteration in tangent spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from corten.lowrank.tensor_train import Frame, TensorTrain
from corten.lowrank.tucker import Tucker

ITERATIONS = 4  # measured: close enough to TT-SVD that a descent from either needs the same number of passes

Point = TypeVar("Point", bound=TensorTrain | Tucker)


def spectral_start(
    contract: Callable[[Frame], Sequence[np.ndarray]], guess: Point, iterations: int = ITERATIONS
) -> Point:
    """About the TT-SVD (or HOSVD) of a tensor known only through its contractions with frames; one pass an iteration.

    Each step projects the tensor on to the tangent space at the last guess and rounds: what a power iteration
    does to a matrix, done to all unfoldings at once. Nothing larger than the cores is held.

    Examples
    --------
    >>> goal = TensorTrain.random((5, 6, 7), rank=2, seed=1)
    >>> found = spectral_start(lambda f: f.contractions_of(goal), TensorTrain.random(goal.shape, 2, seed=2), 8)
    >>> bool((found - goal).norm() < 1e-6 * goal.norm())
    True
    """
    point = guess
    for _ in range(iterations):
        frame: Any = point.frame()
        tangent = frame.project(contract(frame.tt))
        lifted = tangent.to_tucker() if isinstance(point, Tucker) else tangent.to_tt()
        point = lifted.round(guess.rank)
        if point.norm() == 0.0:
            break
    return point
