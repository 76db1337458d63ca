"""A spectral start from contractions with the tensor alone: power iteration in tangent spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from corten.lowrank.points import Point
from corten.lowrank.tensor_train import Frame
from corten.lowrank.tucker import TuckerTangent

SPECTRAL_ITERATIONS = 4  # measured: close enough to TT-SVD that a descent from either needs the same number of passes


def spectral_start(
    contract: Callable[[Frame], Sequence[np.ndarray]], guess: Point, iterations: int = SPECTRAL_ITERATIONS
) -> Point:
    """About the TT-SVD (or HOSVD) of a tensor known only through its contractions with frames; one pass an iteration.

    Each step projects the tensor on to the tangent space at the last guess and rounds: what a power iteration
    does to a matrix, done to all unfoldings at once. Nothing larger than the cores is held.

    Examples
    --------
    >>> from corten.lowrank import TensorTrain
    >>> goal = TensorTrain.random((5, 6, 7), rank=2, seed=1)
    >>> found = spectral_start(lambda f: f.contractions_of(goal), TensorTrain.random(goal.shape, 2, seed=2), 8)
    >>> bool((found - goal).norm() < 1e-6 * goal.norm())
    True
    """
    point = guess
    for _ in range(iterations):
        frame = point.frame()
        tangent = frame.project(contract(frame.tt))
        lifted = tangent.to_tucker() if isinstance(tangent, TuckerTangent) else tangent.to_tt()
        point = cast(Point, lifted.round(guess.rank))
        if point.norm() == 0.0:
            break
    return point
