"""Groups of entries: slices of axes, labels, and random subsets of calibration entries that resemble missing ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corten.conformal.merged import MergedSplits
from corten.conformal.split import CalibratedSplit
from corten.data.arrays import Entries, Flags, Floats
from corten.data.observed import ObservedTensor
from corten.evidence.audit import CARRIED

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

Groups = str | int | Sequence[str | int] | np.ndarray
"""Axes by name or position, or one label per entry."""
DRAWS = 20  # random subsets of the calibration entries, drawn by weight
CAPPED_WEIGHT_LEVEL = 0.95  # quantile of the weights above which an entry is always kept


def group_numbers(observed: ObservedTensor, groups: Groups) -> tuple[Entries, tuple[str, ...]]:
    """The group of every entry as a number, and the names of the groups.

    groups: an axis by name or position, several of them, or an array of labels (lengths of 1 are repeated).
    """
    if isinstance(groups, str | int):
        groups = (groups,)
    if isinstance(groups, tuple | list) and groups and all(isinstance(one, str | int) for one in groups):
        places = [observed.axis(one) for one in groups]
        lengths = [observed.shape[place] for place in places]
        index = np.indices(observed.shape, sparse=True)
        number = np.ravel_multi_index([index[place] for place in places], lengths)
        return np.broadcast_to(number, observed.shape), tuple(map(str, range(math.prod(lengths))))
    labels = np.asarray(groups)
    if labels.ndim != len(observed.shape):
        raise ValueError(
            f"groups has shape {labels.shape}: give an axis name, or one label per entry of {observed.shape} "
            "(lengths of 1 are repeated)"
        )
    names, codes = np.unique(np.broadcast_to(labels, observed.shape), return_inverse=True)
    return codes.reshape(observed.shape), tuple(str(one) for one in names)


def splits_of(fitted: Fitted) -> CalibratedSplit | MergedSplits:
    """The calibration of a fit; an error where it has another kind of coverage, so that its scores do not suffice."""
    if not isinstance(fitted.calibrated, CalibratedSplit | MergedSplits):
        raise ValueError(
            "this is not defined for intervals with groups, joint or odds_error: use intervals without these options, "
            "fitted.intervals(coverage)"
        )
    return fitted.calibrated


def lists_of(fitted: Fitted) -> Sequence[CalibratedSplit]:
    """The lists of scores of a fit: one, or one for each of merged splits."""
    return splits_of(fitted).lists


def hidden_groups(fitted: Fitted, slices: Entries) -> Entries:
    """A number per calibration entry, the same for entries of one slice that were hidden in one round."""
    assert fitted.calibrated is not None
    flat = np.ravel(slices)
    place = flat[fitted.entries] + fitted.calibrated.round_numbers * (int(flat.max(initial=0)) + 1)
    return np.unique(place, return_inverse=True)[1]


def like_missing(logs: Floats, rng: np.random.Generator) -> Flags:
    """A random subset of the calibration entries that is distributed like the missing entries.

    Entries are kept with a probability proportional to their weight; the 5 % with the largest weights are always kept.
    """
    chance = np.exp(np.minimum(logs - np.quantile(logs, CAPPED_WEIGHT_LEVEL), 0.0))
    return rng.random(logs.size) < chance


def refuse_carried(fitted: Fitted, what: str) -> None:
    """Raise if the calibration entries are those of earlier data, and `what` needs entries of the same data."""
    if fitted.carried:
        raise ValueError(CARRIED.format(what))
