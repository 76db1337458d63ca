"""Choice between a random split and pseudo-gaps by the depth of the missing entries, and of the train share."""

from __future__ import annotations

import math

import numpy as np

from corten.calibration.gaps import GapCalibration
from corten.calibration.split import MAX_COUNTED_ENTRIES, SplitCalibration
from corten.calibration.task import Calibration, MaskedTensor
from corten.conformal.depth import depth, distance_along
from corten.data.choices import Choice

MAX_DEEPER_SHARE = 0.15  # masks with weak local dependence give 0.04 to 0.08, fields with patches 0.3 to 1
MAX_SPLITS = 25
POOLED_ENTRIES = 50_000  # hidden entries pooled over the splits: more do not make a 99 % quantile more certain
DEPTH_QUANTILE = 0.99
MIN_OBSERVED_ENTRIES = 20  # with fewer, depths are not compared
MAX_TRAIN_SHARE, MIN_TRAIN_SHARE = 0.7, 0.4
EXTRA_CALIBRATION_ENTRIES = 9  # the fewest with finite intervals at a coverage of 90 %
MAX_CALIBRATION_SHARE = 0.7
MAX_CALIBRATION_ENTRIES = 10_000  # the coverage of one draw then has a standard deviation of 0.3 %; the others train
USUAL_COVERAGE = 0.9


def choose_calibration(
    observed: MaskedTensor, seed: int, coverage: float | None = None
) -> tuple[Calibration, tuple[Choice, ...]]:
    """Return pseudo-gaps if many missing entries lie deeper than calibration entries would, else a random split."""
    count = int(np.count_nonzero(observed.mask))
    counted = 2 <= count <= MAX_COUNTED_ENTRIES
    size = calibration_size(count, USUAL_COVERAGE if coverage is None else coverage)
    split = SplitCalibration(1 - size / count if counted else train_share_of(count))
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
        f"{size} of the {count} observed entries calibrate, a number whose coverage is near the nominal one"
        if counted
        else f"{1 - MAX_TRAIN_SHARE:.0%} of the {count:,} observed entries, plus {EXTRA_CALIBRATION_ENTRIES}, calibrate"
        if split.train_share <= MAX_TRAIN_SHARE
        else f"about {MAX_CALIBRATION_ENTRIES:,} of the {count:,} observed entries calibrate, more are not needed"
    )
    share_values = {"train_share": split.train_share, "observed": count}
    return split, (
        Choice("calibration", "random", because, rows, code="shallow_gaps", values=values),
        Choice(
            "train share", f"{split.train_share:.2g}", share_because, code="train_share_by_count", values=share_values
        ),
    )


def train_share_of(count: int) -> float:
    """The share of `count` observed entries that trains: 0.7, less of few entries, more of more than 33,000.

    A finite interval of coverage c needs at least c / (1 - c) calibration entries, and more than 10,000 make the
    coverage hardly more certain, whereas the estimate gains from every training entry.

    Examples
    --------
    >>> [train_share_of(n) for n in (30, 100, 300, 3000, 100_000)]
    [0.4, 0.61, 0.67, 0.7, 0.9]
    """
    share = MAX_TRAIN_SHARE - EXTRA_CALIBRATION_ENTRIES / max(count, 1)
    return max(MIN_TRAIN_SHARE, round(share, 2), 1 - MAX_CALIBRATION_ENTRIES / max(count, 1))


def calibration_size(count: int, coverage: float) -> int:
    """The number of `count` observed entries that calibrate, near the share that `train_share_of` leaves.

    With n calibration entries of equal weight the intervals cover with probability ceil((n + 1) c) / (n + 1): 0.947 for
    n = 18 and c = 0.9, but 0.9 for n = 19. Of the sizes near the intended one, the one with the lowest such coverage is
    taken; it depends on the number of entries only, never on their values.

    Examples
    --------
    >>> [calibration_size(n, 0.9) for n in (20, 30, 100)], calibration_size(30, 0.95)
    ([9, 19, 39], 19)
    """
    intended = round((1 - train_share_of(count)) * count)
    reach = math.ceil(0.5 / max(1 - coverage, 1e-9))
    most = max(intended, math.floor(MAX_CALIBRATION_SHARE * count))
    sizes = np.arange(max(1, intended - reach), min(most, intended + reach) + 1)
    reached = np.ceil((sizes + 1) * coverage - 1e-9) / (sizes + 1)
    finite = reached < 1
    if not finite.any():
        return intended
    order = np.lexsort((np.abs(sizes - intended), np.round(reached, 12)))
    return int(next(sizes[k] for k in order if finite[k]))


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
