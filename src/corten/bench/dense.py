"""Plain dense NumPy versions of what corten does fused: what a careful person would write first.

They hold B, p, V and G as whole tensors and round small cores, so that the comparison is about the pass and the steps,
not about a clumsy rounding. Product coupling, adjacent neighbours, logit link, open axes.
"""

from __future__ import annotations

import numpy as np

from corten.lowrank import TensorTrain

__all__ = ["algorithm_two", "dense_pass", "neighbour_sum"]


def neighbour_sum(x: np.ndarray) -> np.ndarray:
    """Sum over the neighbours that differ by one in one index."""
    out = np.zeros_like(x)
    for axis in range(x.ndim):
        here, there = [slice(None)] * x.ndim, [slice(None)] * x.ndim
        here[axis], there[axis] = slice(None, -1), slice(1, None)
        out[tuple(here)] += x[tuple(there)]
        out[tuple(there)] += x[tuple(here)]
    return out


def dense_pass(b: np.ndarray, w: np.ndarray, strength: float, q: float) -> tuple[float, np.ndarray]:
    """Loss (eq. low-rank-MPLE) and gradient (eq. vanilla-gradient) of the whole tensor."""
    pull = neighbour_sum(b * w)
    slope = 2 * strength * pull + 1
    p = 1 / (1 + np.exp(-b * slope))
    seen = w > 0
    loss = -float(np.log(q * p[seen]).sum(dtype=np.float64) + np.log1p(-q * p[~seen]).sum(dtype=np.float64))
    v = (1 - p) / (1 - q * p) * (q * p - seen)
    return loss, v * slope + 2 * strength * w * neighbour_sum(v * b)


def algorithm_two(
    training: np.ndarray, rank: int, strength: float, q: float, step: float = 0.1, tolerance: float = 1e-3
) -> tuple[TensorTrain, int]:
    """Algorithm 2 as printed: TT-SVD start, fixed step, stopped at a relative change; gives B and the iterations."""
    w = np.where(training, np.float32(1), np.float32(-1))
    point = TensorTrain.from_dense(w, rank)
    iteration, change = 0, np.inf
    while change >= tolerance and iteration < 1000:
        iteration += 1
        b = point.to_dense().astype(np.float32)
        _, gradient = dense_pass(b, w, strength, q)
        frame = point.frame()
        tangent = frame.project(frame.contractions(gradient))
        change = step * tangent.norm() / point.norm()
        point = tangent.retract(-step)
    return point, iteration
