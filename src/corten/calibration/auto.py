"""Chooses between the random split and pseudo-gaps by how deep the missing entries lie, and the share that trains."""

from __future__ import annotations

from typing import Any

import numpy as np

from corten.calibration.gaps import GapCalibration
from corten.calibration.split import SplitCalibration
from corten.calibration.task import Calibration
from corten.conformal.depth import depth, distance_along
from corten.data.choices import Choice

__all__ = ["choose_calibration", "share_deeper", "train_share_of"]

ENOUGH = 0.15
"""Masks with weak local dependence give 0.04 to 0.08, fields with patches 0.3 to 1."""
SPLITS = 25
POOLED_ENTRIES = 50_000  # hidden entries pooled over the splits: more do not make a 99 % quantile more certain
MANY_TRAIN_SHARE, LEAST_TRAIN_SHARE = 0.7, 0.4
EXTRA_CALIBRATION_ENTRIES = 9  # the fewest that can carry a coverage of 90 %


def choose_calibration(observed: Any, seed: int) -> tuple[Calibration, tuple[Choice, ...]]:
    """Pseudo-gaps where many missing entries lie deeper than calibration entries would, else the random split."""
    count = int(np.count_nonzero(observed.mask))
    split = SplitCalibration(train_share_of(count))
    shares = share_deeper(observed, split, seed)
    where, share = max(shares.items(), key=lambda item: item[1], default=("anywhere", 0.0))
    gaps = share > ENOUGH
    because = (
        f"{share:.0%} of the missing entries lie further from training entries ({where}) than 99% of the entries "
        f"that random splits hide, {'more' if gaps else 'not more'} than {ENOUGH:.0%}"
    )
    evidence = tuple({"where": name, "share": round(value, 3)} for name, value in shares.items())
    if gaps:
        return GapCalibration(), (Choice("calibration", "gaps", because, evidence),)
    why = f"{1 - MANY_TRAIN_SHARE:.0%} of the {count} observed entries and {EXTRA_CALIBRATION_ENTRIES} more calibrate"
    return split, (
        Choice("calibration", "random", because, evidence),
        Choice("train share", f"{split.train_share:g}", why),
    )


def train_share_of(count: int) -> float:
    """Share of `count` observed entries that trains: 0.7 of many entries, less of few, down to 0.4.

    An interval of coverage c needs c / (1 - c) calibration entries at least, however few entries there are.

    Example:
        >>> [train_share_of(n) for n in (30, 100, 300, 3000)]
        [0.4, 0.61, 0.67, 0.7]
    """
    share = MANY_TRAIN_SHARE - EXTRA_CALIBRATION_ENTRIES / max(count, 1)
    return max(LEAST_TRAIN_SHARE, round(share, 2))


def share_deeper(observed: Any, split: SplitCalibration, seed: int) -> dict[str, float]:
    """Share of missing entries beyond the 99% quantile of the entries that random splits hide, by kind of distance.

    The entries hidden by several splits are pooled, as one split of a small tensor hides too few for this quantile.
    Distances in steps: along each ordered axis, and straight (within a unit). Without ordered axes there is no depth.
    """
    mask, axes = np.asarray(observed.mask, bool), observed.axes
    missing = np.asarray(observed.missing, bool)
    ordered = [k for k, axis in enumerate(axes) if axis.kind != "unordered" and mask.shape[k] > 1]
    if not ordered or not missing.any() or mask.sum() < 20:
        return {}
    hidden_in_one = (1 - split.train_share) * mask.sum()
    count = int(np.clip(np.ceil(POOLED_ENTRIES / hidden_in_one), 1, SPLITS))
    seeds = [seed, *np.random.SeedSequence([seed, 47]).generate_state(SPLITS).tolist()][:count]
    hidden: dict[str, list[np.ndarray]] = {}
    absent: dict[str, list[np.ndarray]] = {}
    for number in seeds:
        one = split.plan(observed, int(number)).rounds[0]
        distances = {f"along {axes[k].name}": distance_along(one.train, k, axes[k].periodic) for k in ordered}
        distances["straight"] = depth(one.train, axes, np.ones(mask.ndim))
        for name, distance in distances.items():
            hidden.setdefault(name, []).append(distance[one.hidden])
            absent.setdefault(name, []).append(distance[missing])
    return {
        name: float(np.mean(np.concatenate(absent[name]) > np.quantile(np.concatenate(hidden[name]), 0.99)))
        for name in hidden
    }
