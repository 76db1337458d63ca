"""Choice between a random split and pseudo-gaps by the depth of the missing entries, and of the train share."""

from __future__ import annotations

import numpy as np

from corten.calibration.gaps import GapCalibration
from corten.calibration.split import SplitCalibration
from corten.calibration.task import Calibration, MaskedTensor
from corten.conformal.depth import depth, distance_along
from corten.data.choices import Choice

__all__ = ["choose_calibration", "share_deeper", "train_share_of"]

MAX_DEEPER_SHARE = 0.15  # masks with weak local dependence give 0.04 to 0.08, fields with patches 0.3 to 1
MAX_SPLITS = 25
POOLED_ENTRIES = 50_000  # hidden entries pooled over the splits: more do not make a 99 % quantile more certain
DEPTH_QUANTILE = 0.99
MIN_OBSERVED_ENTRIES = 20  # with fewer, depths are not compared
MAX_TRAIN_SHARE, MIN_TRAIN_SHARE = 0.7, 0.4
EXTRA_CALIBRATION_ENTRIES = 9  # the fewest with finite intervals at a coverage of 90 %


def choose_calibration(observed: MaskedTensor, seed: int) -> tuple[Calibration, tuple[Choice, ...]]:
    """Return pseudo-gaps if many missing entries lie deeper than calibration entries would, else a random split."""
    count = int(np.count_nonzero(observed.mask))
    split = SplitCalibration(train_share_of(count))
    shares = share_deeper(observed, split, seed)
    direction, share = max(shares.items(), key=lambda item: item[1], default=("in any direction", 0.0))
    gaps = share > MAX_DEEPER_SHARE
    because = (
        f"{share:.0%} of the missing entries lie further from training entries ({direction}) than 99% of the entries "
        f"that random splits hide, {'more' if gaps else 'not more'} than {MAX_DEEPER_SHARE:.0%}"
    )
    rows = tuple({"distance": name, "share": round(value, 3)} for name, value in shares.items())
    values = {"deeper_share": share, "max_deeper_share": MAX_DEEPER_SHARE}
    if gaps:
        return GapCalibration(), (Choice("calibration", "gaps", because, rows, code="deep_gaps", values=values),)
    share_because = (
        f"{1 - MAX_TRAIN_SHARE:.0%} of the {count} observed entries and {EXTRA_CALIBRATION_ENTRIES} more calibrate"
    )
    share_values = {"train_share": split.train_share, "observed": count}
    return split, (
        Choice("calibration", "random", because, rows, code="shallow_gaps", values=values),
        Choice(
            "train share", f"{split.train_share:g}", share_because, code="train_share_by_count", values=share_values
        ),
    )


def train_share_of(count: int) -> float:
    """The share of `count` observed entries that trains: 0.7 of many entries, less of few, at least 0.4.

    A finite interval of coverage c needs at least c / (1 - c) calibration entries.

    Examples
    --------
    >>> [train_share_of(n) for n in (30, 100, 300, 3000)]
    [0.4, 0.61, 0.67, 0.7]
    """
    share = MAX_TRAIN_SHARE - EXTRA_CALIBRATION_ENTRIES / max(count, 1)
    return max(MIN_TRAIN_SHARE, round(share, 2))


def share_deeper(observed: MaskedTensor, split: SplitCalibration, seed: int) -> dict[str, float]:
    """The share of missing entries deeper than the 99% quantile of entries that random splits hide, for each distance.

    The entries hidden by several splits are pooled, as one split of a small tensor hides too few for this quantile.
    Distances are in steps: along each ordered axis, and Euclidean over all ordered axes (within one position of the
    unordered axes). Without ordered axes the result is empty.
    """
    mask, axes = np.asarray(observed.mask, bool), observed.axes
    missing = np.asarray(observed.missing, bool)
    ordered = [k for k, axis in enumerate(axes) if axis.kind != "unordered" and mask.shape[k] > 1]
    if not ordered or not missing.any() or mask.sum() < MIN_OBSERVED_ENTRIES:
        return {}
    hidden_in_one = (1 - split.train_share) * mask.sum()
    count = int(np.clip(np.ceil(POOLED_ENTRIES / hidden_in_one), 1, MAX_SPLITS))
    seeds = [seed, *np.random.SeedSequence([seed, 47]).generate_state(MAX_SPLITS).tolist()][:count]
    hidden: dict[str, list[np.ndarray]] = {}
    at_missing: dict[str, list[np.ndarray]] = {}
    for split_seed in seeds:
        one = split.plan(observed, int(split_seed)).rounds[0]
        distances = {f"along {axes[k].name}": distance_along(one.train, k, axes[k].periodic) for k in ordered}
        distances["straight"] = depth(one.train, axes, np.ones(mask.ndim))
        for name, distance in distances.items():
            hidden.setdefault(name, []).append(distance[one.hidden])
            at_missing.setdefault(name, []).append(distance[missing])
    return {
        name: float(np.mean(np.concatenate(at_missing[name]) > np.quantile(np.concatenate(own), DEPTH_QUANTILE)))
        for name, own in hidden.items()
    }
