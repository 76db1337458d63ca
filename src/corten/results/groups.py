"""Groups of entries, random subsets of calibration entries that resemble missing ones, budgets of joint intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
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
KEPT_SHARES = (1.0, 0.5, 0.25)  # of the drawn entries, at which the budget is measured
RESAMPLINGS = 40  # of slices, for the standard error of the growth
SUBTRACTED_ERRORS = 0.5  # standard errors by which the growth is reduced


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


def joint_budget(fitted: Fitted, slices: Entries, seed: int = 0) -> Callable[[float, int], float]:
    """The expected number of uncovered entries, as a function of coverage and slice size, for a joint coverage.

    Each calibration entry has a p-value, the weighted share of scores at least as large as its own. Entries drawn from
    a slice by weight resemble its missing entries; n times the smallest of their n p-values is the largest budget at
    which that slice is covered. The (1 - c) quantile of this number over slices (counting one more, the new one) is the
    budget t for slices of n entries. It does not depend on n if errors within a slice are independent, and grows with n
    if they are correlated. The growth is measured at a quarter, a half and all of the drawn entries and extrapolated to
    m missing entries, less half a standard error (from slices drawn with replacement). With too few slices for the
    quantile the budget is that of Bonferroni, 1 - c. The coverage holds on average over slices with similar errors.
    """
    flat, logs, p = np.ravel(slices), fitted.log_weights.astype(np.float64), _p_values(fitted)
    place, first = hidden_groups(fitted, slices), np.arange(logs.size)
    if len(lists_of(fitted)) > 1:  # all splits share their slices
        _, first = np.unique(fitted.entries, return_index=True)
        place = np.unique(flat[fitted.entries[first]], return_inverse=True)[1]
    of_slice = np.zeros(int(place.max(initial=-1)) + 1, np.intp)
    of_slice[place] = flat[fitted.entries[first]]
    needs = [_needs(p[first], place, logs[first], part, seed) for part in KEPT_SHARES]

    @cache
    def spent(coverage: float) -> tuple[float, float]:
        """The budget at the mean number of drawn entries, and the exponent of its growth with that number."""
        known = _quantiles(needs, of_slice, 1.0 - coverage)
        if known is None:
            return 1.0 - coverage, 0.0
        rng, numbers = np.random.default_rng([seed, DRAWS]), np.unique(of_slice)
        columns = [np.flatnonzero(of_slice == one) for one in numbers]
        grown = []
        for _ in range(RESAMPLINGS):
            taken = np.concatenate([columns[k] for k in rng.integers(numbers.size, size=numbers.size)])
            again = _quantiles([(table[:, taken], size) for table, size in needs], of_slice, 1.0 - coverage)
            grown.append(_growth(known if again is None else again))
        return float(known[0]), float(np.clip(_growth(known) - SUBTRACTED_ERRORS * np.std(grown), 0.0, 1.0))

    def budget(coverage: float, size: int) -> float:
        t, growth = spent(coverage)
        return float(t * (size / needs[0][1]) ** growth)

    return budget


def _needs(p: Floats, place: Entries, logs: Floats, part: float, seed: int) -> tuple[Floats, float]:
    """n times the smallest p-value of each slice, (draws, slices), NaN where no entry was drawn; and the mean number of
    entries drawn from a slice.
    """
    table, sizes = np.full((DRAWS, int(place.max(initial=-1)) + 1), np.nan), []
    for number in range(DRAWS):
        rng = np.random.default_rng([seed, number])
        kept = like_missing(logs, rng)
        taken = np.flatnonzero(kept & (rng.random(logs.size) < part))
        smallest = np.full(table.shape[1], np.inf)
        np.minimum.at(smallest, place[taken], p[taken])
        count = np.bincount(place[taken], minlength=smallest.size)
        table[number, count > 0] = count[count > 0] * smallest[count > 0]
        sizes.append(float(count[count > 0].mean()) if taken.size else 1.0)
    return table, float(np.mean(sizes))


def _quantiles(needs: Sequence[tuple[Floats, float]], of_slice: Entries, alpha: float) -> Floats | None:
    """The alpha quantile over slices, for each share of their entries; None with too few slices.

    With G slices it is the alpha (G + 1)-th smallest, interpolated linearly, averaged over draws.
    """
    groups = np.unique(of_slice).size
    if alpha * (groups + 1.0) < 1.0 - 1e-9:
        return None
    found = []
    for table, _ in needs:
        drawn = [np.sort(row[~np.isnan(row)]) for row in table]
        places = [alpha * (groups + 1.0) / groups * row.size - 1.0 for row in drawn]
        found.append(np.mean([np.interp(at, np.arange(row.size), row) for at, row in zip(places, drawn) if row.size]))
    return np.maximum(found, np.finfo(np.float64).tiny)


def _growth(found: Floats) -> float:
    return float(np.polyfit(np.log(KEPT_SHARES), np.log(found), 1)[0])


def _p_values(fitted: Fitted) -> Floats:
    """The weighted share of calibration scores at least as extreme as each; two-sided where the score is.

    Merged splits have equal total weight, so that the p-value is a mean over splits, as for missing entries.
    """
    assert fitted.calibrated is not None
    scores, logs = np.asarray(fitted.scores, np.float64), fitted.log_weights.astype(np.float64)
    weight = np.exp(logs - logs.max(initial=-np.inf))
    if len(lists_of(fitted)) > 1:
        split = fitted.calibrated.round_numbers
        weight = weight / np.bincount(split, weight)[split]
    upper = _tail(scores, weight)
    if fitted.calibrated.score.tails(0.5).lower is None:
        return upper
    return np.minimum(1.0, 2.0 * np.minimum(upper, _tail(-scores, weight)))


def _tail(scores: Floats, weight: Floats) -> Floats:
    order = np.argsort(-scores, kind="stable")
    p = np.empty(scores.size)
    p[order] = np.cumsum(weight[order]) / weight.sum()
    return p
