"""Brings odds into line with counts: in every slice and every class of like odds, observed entries stand for as
many as are missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["rake"]

CLASSES = 20
SWEEPS = 10
MOST = 4.0
LEAST = 20


def rake(
    log_odds: NDArray[np.floating], mask: NDArray[np.bool_], missing: NDArray[np.bool_], sweeps: int = SWEEPS
) -> NDArray[np.float64]:
    """Log-odds of being missing, corrected by iterative proportional fitting.

    True odds satisfy E[sum of odds over the observed entries of a set] = E[number missing in it]. Fitted odds need
    not: a ridge pulls extreme ones inwards. Twenty classes of like odds and the slices of every axis are brought
    to equality in turn; a class with fewer than twenty entries of either kind is left alone, and one step changes
    odds by at most a factor of four.

    Examples
    --------
    >>> mask = np.array([[True] * 60 + [False] * 40, [True] * 20 + [False] * 80])
    >>> raked = rake(np.zeros((2, 100)), mask, ~mask)
    >>> np.exp(raked[:, 0]).round(2).tolist()
    [0.67, 4.0]
    """
    logs = np.array(log_odds, np.float64)
    edges = np.unique(np.quantile(logs[mask | missing], np.linspace(0, 1, CLASSES + 1)[1:-1]))
    groups = [np.searchsorted(edges, logs, side="right")]
    for axis, length in enumerate(mask.shape):
        index = np.arange(length).reshape([-1 if k == axis else 1 for k in range(mask.ndim)])
        groups.append(np.broadcast_to(index, mask.shape))
    for _ in range(sweeps):
        moved = 0.0
        for group in groups:
            step = _step(logs, group, mask, missing)
            moved = max(moved, float(np.abs(step).max()))
            logs += step[group]
        if moved < 1e-3:
            break
    return logs


def _step(
    logs: NDArray[np.float64], group: NDArray[np.intp], mask: NDArray[np.bool_], missing: NDArray[np.bool_]
) -> NDArray[np.float64]:
    count = int(group.max()) + 1
    here = group[mask]
    wanted = np.bincount(group[missing], minlength=count)
    have = np.bincount(here, np.exp(logs[mask]), minlength=count)
    able = (wanted >= LEAST) & (np.bincount(here, minlength=count) >= LEAST)
    ratio = np.divide(wanted, have, out=np.ones(count), where=able & (have > 0))
    return np.asarray(np.log(np.clip(ratio, 1 / MOST, MOST)))
