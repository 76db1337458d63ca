"""Plain dense NumPy versions of what corten does fused: what a careful person would write first.

They hold B, p, V and G as whole tensors. Product coupling, adjacent neighbours, logit link, open axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from corten.lowrank import TensorTrain

__all__ = ["algorithm_two", "dense_contractions", "dense_pass", "neighbour_sum", "tt_svd"]


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


def dense_contractions(frame: Any, dense: np.ndarray) -> tuple[np.ndarray, ...]:
    """Contractions of a dense gradient with the tensor-train frame of a point; O(size * K r)."""
    left, right = frame.tt.left, frame.tt.right
    found: list[np.ndarray] = []
    rest = dense.astype(np.float64).reshape(-1, 1)
    for k in range(len(left) - 1, 0, -1):
        head = np.ones((1, 1))
        for core in left[:k]:
            head = (head @ core.reshape(core.shape[0], -1)).reshape(-1, core.shape[2])
        found.append((head.T @ rest.reshape(head.shape[0], -1)).reshape(left[k].shape))
        rest = rest.reshape(len(head), -1) @ right[k].reshape(right[k].shape[0], -1).T
    return (rest.reshape(left[0].shape), *found[::-1])


def algorithm_two(
    training: np.ndarray,
    rank: int,
    strength: float,
    q: float,
    step: float = 0.1,
    tolerance: float = 1e-3,
    small_cores: bool = False,
) -> tuple[TensorTrain, int]:
    """Algorithm 2 as printed: TT-SVD start, fixed step, stopped at a relative change; gives B and the iterations.

    The updated tensor is rounded by Algorithm 1 (TT-SVD of the dense tensor), or, with `small_cores`, by rounding the
    tangent's cores: a trick the paper does not print, shown as a second opponent.
    """
    w = np.where(training, np.float32(1), np.float32(-1))
    point = tt_svd(w, rank)
    iteration, change = 0, np.inf
    while change >= tolerance and iteration < 1000:
        iteration += 1
        b = point.to_dense().astype(np.float32)
        _, gradient = dense_pass(b, w, strength, q)
        frame = point.frame()
        tangent = frame.project(dense_contractions(frame, gradient))
        change = step * tangent.norm() / point.norm()
        if small_cores:
            point = tangent.retract(-step)
        else:
            point = tt_svd(b - step * tangent.to_tt().to_dense().astype(np.float32), rank)
    return point, iteration


def tt_svd(x: np.ndarray, rank: int) -> TensorTrain:
    """Algorithm 1 as printed: an SVD of each unfolding in turn, truncated."""
    cores, rest, bond = [], x, 1
    for length in x.shape[:-1]:
        u, s, v = np.linalg.svd(rest.reshape(bond * length, -1), full_matrices=False)
        cores.append(u[:, :rank].reshape(bond, length, -1))
        rest, bond = s[:rank, None] * v[:rank], min(rank, len(s))
    return TensorTrain((*cores, rest.reshape(bond, x.shape[-1], 1)))
