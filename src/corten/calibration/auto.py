"""Chooses between the random split and pseudo-gaps by how deep the missing entries lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from corten.calibration.gap_shaped import GapShaped
from corten.calibration.random_split import RandomSplit
from corten.calibration.rounds import Calibration
from corten.choices import Choice
from corten.conformal.depth import depth, distance_along

__all__ = ["choose_calibration", "share_deeper"]

ENOUGH = 0.15
"""Masks with weak local dependence give 0.04 to 0.08, fields with patches 0.3 to 1."""


def choose_calibration(observed: Any, seed: int) -> tuple[Calibration, Choice]:
    """Pseudo-gaps where many missing entries lie deeper than calibration entries would, else the random split."""
    split = RandomSplit()
    shares = share_deeper(observed, split, seed)
    where, share = max(shares.items(), key=lambda item: item[1], default=("anywhere", 0.0))
    gaps = share > ENOUGH
    because = (
        f"{share:.0%} of the missing entries lie further from training entries ({where}) than 99% of the entries "
        f"a random split would hide, {'more' if gaps else 'not more'} than {ENOUGH:.0%}"
    )
    evidence = tuple({"where": name, "share": round(value, 3)} for name, value in shares.items())
    if gaps:
        return GapShaped(), Choice("calibration", "gaps", because, evidence)
    return split, Choice("calibration", "random", because, evidence)


def share_deeper(observed: Any, split: RandomSplit, seed: int) -> dict[str, float]:
    """Share of missing entries beyond the 99% quantile of a random split's hidden entries, by kind of distance.

    Distances in steps: along each ordered axis, and straight (within a unit). Without ordered axes there is no depth.
    """
    mask, axes = np.asarray(observed.mask, bool), observed.axes
    missing = np.asarray(observed.missing, bool)
    ordered = [k for k, axis in enumerate(axes) if axis.kind != "unit" and mask.shape[k] > 1]
    if not ordered or not missing.any() or mask.sum() < 20:
        return {}
    one = split.plan(observed, seed).rounds[0]
    distances = {f"along {axes[k].name}": distance_along(one.train, k, axes[k].periodic) for k in ordered}
    distances["straight"] = depth(one.train, axes, np.ones(mask.ndim))
    return {
        name: float(np.mean(distance[missing] > np.quantile(distance[one.hidden], 0.99)))
        for name, distance in distances.items()
    }
