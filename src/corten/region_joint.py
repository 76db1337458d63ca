"""Bands that hold whole slices: how much miscoverage a slice may spend on its entries and still be held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from corten.fitted import Fitted
from corten.region_groups import DRAWS, hidden_groups, like_missing

__all__ = ["joint_budget"]

PARTS = (1.0, 0.5, 0.25)


def joint_budget(fitted: Fitted, slices: NDArray[np.intp], seed: int = 0) -> Callable[[float, int], float]:
    """How much miscoverage, counted in entries, a slice with m missing entries may spend to be held whole.

    Each calibration entry has a p-value, the weighted share of scores at least as large as its own. Entries drawn
    from a slice by their weights look like its missing ones; n times the smallest of their n p-values is what this
    slice needed. The (1 - c) quantile of that over slices, with one more slice for the one to come, is the budget
    t for slices of n entries. It does not depend on n if errors within a slice are independent, and grows with n
    the more they go together: its growth from a quarter to a half to all of the drawn entries is followed to m.
    Never less than 1 - c, which is Bonferroni's and always enough. Holds on average over slices whose errors are
    alike.
    """
    logs, p = fitted.log_weights.astype(np.float64), _p_values(fitted)
    place = hidden_groups(fitted, slices)
    needs = [_needs(p, place, logs, part, seed) for part in PARTS]

    def budget(coverage: float, size: int) -> float:
        alpha = 1.0 - coverage
        found = [_quantile(pooled, groups, alpha) for pooled, groups, _ in needs]
        if found[0] is None:
            return alpha
        growth = 0.0
        if all(one is not None and one > 0 for one in found):
            growth = float(np.clip(np.polyfit(np.log(PARTS), np.log(np.array(found, np.float64)), 1)[0], 0.0, 1.0))
        return float(max(alpha, found[0] * (size / needs[0][2]) ** growth))

    return budget


def _needs(
    p: NDArray[np.float64], place: NDArray[np.intp], logs: NDArray[np.float64], part: float, seed: int
) -> tuple[NDArray[np.float64], float, float]:
    """n times the smallest p-value of each slice over many draws, sorted; how many slices a draw has, and
    entries in each.
    """
    need: list[NDArray[np.float64]] = []
    sizes = []
    for number in range(DRAWS):
        rng = np.random.default_rng([seed, number])
        kept = like_missing(logs, rng)
        taken = np.flatnonzero(kept & (rng.random(logs.size) < part))
        smallest = np.full(int(place.max(initial=0)) + 1, np.inf)
        np.minimum.at(smallest, place[taken], p[taken])
        count = np.bincount(place[taken], minlength=smallest.size)
        need.append(count[count > 0] * smallest[count > 0])
        sizes.append(float(count[count > 0].mean()) if taken.size else 1.0)
    return np.sort(np.concatenate(need)), float(np.mean([one.size for one in need])), float(np.mean(sizes))


def _quantile(pooled: NDArray[np.float64], groups: float, alpha: float) -> float | None:
    """The lower alpha quantile with one more group for the one to come; None where there are too few groups."""
    k = np.floor(alpha * (groups + 1.0) + 1e-9)
    if k < 1 or not pooled.size:
        return None
    return float(pooled[min(max(int(np.floor(k / groups * pooled.size)) - 1, 0), pooled.size - 1)])


def _p_values(fitted: Fitted) -> NDArray[np.float64]:
    """The weighted share of calibration scores at least as extreme as each; two-sided where the score is."""
    weight = np.exp(fitted.log_weights - fitted.log_weights.max()).astype(np.float64)

    def tail(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        order = np.argsort(-scores, kind="stable")
        p = np.empty(scores.size)
        p[order] = np.cumsum(weight[order]) / weight.sum()
        return p

    assert fitted.calibrated is not None
    scores = np.asarray(fitted.scores, np.float64)
    if fitted.calibrated.score.tails(0.5).lower is None:
        return tail(scores)
    return np.minimum(1.0, 2.0 * np.minimum(tail(scores), tail(-scores)))
