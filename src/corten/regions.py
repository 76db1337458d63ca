"""Promises shaped like tensors: per group, for whole slices, for means, for exceedances, and the whole
predictive law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.choices import Choice
from corten.conformal.calibrated import Calibrated
from corten.conformal.robust import check_odds_error, robust_level
from corten.conformal.scores import Signed, Tails
from corten.conformal.selection import select
from corten.conformal.shaped import Grouped, Joint, Robust
from corten.fitted import Fitted
from corten.observed import ObservedTensor

__all__ = ["draws", "exceedance", "group_numbers", "joint_budget", "quantile", "reshaped", "signed_scores"]

DRAWS = 20
PARTS = (1.0, 0.5, 0.25)
CAP = 0.95


def reshaped(fitted: Fitted, odds_error: float = 1.0, groups: Any = None, joint: Any = None) -> Fitted:
    """The same fit with another promise behind its intervals: `odds_error`, `groups` and `joint` of
    `Fitted.intervals`.
    """
    if fitted.calibrated is None:
        return fitted
    factor = check_odds_error(odds_error)
    calibrated: Any = fitted.calibrated
    choices: list[Choice] = []
    if groups is not None:
        numbers, names = group_numbers(fitted.observed, groups)
        calibrated = Grouped(_single(fitted), fitted.scores, numbers)
        what = groups if isinstance(groups, str) else f"{len(names)} groups"
        choices.append(Choice("intervals", f"per {what}", "asked for: small groups borrow from the others"))
    if joint is not None:
        slices, _ = group_numbers(fitted.observed, joint)
        calibrated = Joint(calibrated, slices, joint_budget(fitted, slices))
        choices.append(Choice("intervals", f"jointly over each slice of {joint}", "asked for"))
    if factor > 1.0:
        calibrated = Robust(calibrated, factor)
        because = f"odds may be wrong by a factor of {factor:g}: 90 % asks for level {robust_level(0.9, factor):.4f}"
        choices.append(Choice("odds error", f"{factor:g}", because))
    return replace(fitted, calibrated=calibrated, choices=(*fitted.choices, *choices))


def group_numbers(observed: ObservedTensor, groups: Any) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """The group of every entry as a number, and the groups' names.

    groups: the name (or position) of an axis, several of them, or an array of labels that fits the tensor's shape
    (lengths of 1 are repeated).
    """
    if isinstance(groups, str | int):
        groups = (groups,)
    if isinstance(groups, tuple | list) and groups and all(isinstance(one, str | int) for one in groups):
        places = [observed.axis(one) for one in groups]
        number = np.zeros((1,) * len(observed.shape), np.intp)
        for place in places:
            along = [-1 if k == place else 1 for k in range(len(observed.shape))]
            number = number * observed.shape[place] + np.arange(observed.shape[place]).reshape(along)
        count = int(np.prod([observed.shape[place] for place in places]))
        return np.broadcast_to(number, observed.shape), tuple(str(one) for one in range(count))
    labels = np.asarray(groups)
    if labels.ndim != len(observed.shape):
        raise ValueError(
            f"groups has shape {labels.shape}: give an axis name, or one label per entry of {observed.shape} "
            "(lengths of 1 are repeated)"
        )
    names, codes = np.unique(np.broadcast_to(labels, observed.shape), return_inverse=True)
    return codes.reshape(observed.shape), tuple(str(one) for one in names)


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
    entries, logs, p = fitted.entries, fitted.log_weights.astype(np.float64), _p_values(fitted)
    rounds = np.cumsum(np.diff(entries, prepend=entries[:1]) < 0) if entries.size else entries
    place = np.ravel(slices)[entries] + rounds * (int(np.max(slices)) + 1)
    _, place = np.unique(place, return_inverse=True)
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
        kept = _like_missing(logs, rng)
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


def _like_missing(logs: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """A random part of the calibration entries that follows the law of the missing ones: kept in proportion to
    weight.

    The heaviest twentieth is always kept: it cannot be kept more than once.
    """
    chance = np.exp(np.minimum(logs - np.quantile(logs, CAP), 0.0))
    return rng.random(logs.size) < chance


def signed_scores(fitted: Fitted) -> NDArray[np.float64]:
    """(truth - estimate) / scale of the calibration entries, whatever score the fit uses."""
    assert fitted.calibrated is not None
    if isinstance(fitted.calibrated.score, Signed):
        return np.asarray(fitted.scores, np.float64)
    if fitted.residuals.size != fitted.scores.size:
        raise ValueError("this fit has no residuals (it was saved by an older corten): fit again")
    return np.copysign(np.abs(fitted.scores), fitted.residuals)


@dataclass(frozen=True)
class _OneSided:
    """A score whose interval is a single predictive quantile, both ends at once."""

    tail: str
    name: ClassVar[str] = "one-sided"
    needs_leverage: ClassVar[bool] = False

    def score(self, truth: ArrayLike, estimate: ArrayLike, scale: ArrayLike) -> NDArray[np.floating]:
        return np.asarray(np.subtract(truth, estimate) / np.asarray(scale))

    def tails(self, coverage: float) -> Tails:
        return Tails(coverage, None) if self.tail == "lower" else Tails(None, coverage)

    def invert(
        self, estimate: ArrayLike, scale: ArrayLike, lower_cut: Any, upper_cut: Any
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        end = np.add(estimate, np.multiply(lower_cut if self.tail == "lower" else upper_cut, scale))
        return end, end


def quantile(fitted: Fitted, level: float) -> NDArray[np.float64]:
    """The predictive quantile of every missing entry, as a full array: its value lies at or below it with chance
    `level`.

    Above one half the entry lies at or below with chance *at least* `level`, below one half at or above with
    chance at least 1 - `level`: the doubt about the test entry's own weight is always on the outer side. Same
    guarantee as the intervals, one-sided.
    """
    if isinstance(level, bool) or not 0.0 < float(level) < 1.0:
        raise ValueError(f"level is {level!r}: give a number strictly between 0 and 1, such as 0.3")
    if fitted.calibrated is None:
        return np.array(fitted.estimate, np.float64)
    single = _single(fitted)
    lower = level < 0.5
    score: Any = _OneSided("lower" if lower else "upper")
    one = Calibrated(score, signed_scores(fitted), single.entries, single.weights)
    ends = replace(fitted, calibrated=one).bounds(1.0 - level if lower else level)
    return ends[0] if lower else ends[1]


def draws(fitted: Fitted, count: int, seed: int = 0) -> NDArray[np.float64]:
    """`count` filled tensors, (count, *shape), for multiple imputation: observed entries stay, missing ones are
    drawn.

    Each missing entry gets its estimate plus its scale times a calibration score drawn by weight: its own
    predictive law is that of `quantile`. Errors of different entries are drawn independently: right for questions
    about single entries, too sure for averages over many entries whose errors go together; ask `mean` for those.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count is {count!r}: give a whole number of at least 1")
    filled = np.repeat(np.array(fitted.estimate, np.float64)[None], count, axis=0)
    seen = fitted.observed.mask
    filled[:, seen] = fitted.observed.values[seen]
    if fitted.calibrated is not None:
        where, rng = fitted.missing_entries, np.random.default_rng(seed)
        scores, logs = signed_scores(fitted), fitted.log_weights.astype(np.float64)
        sums = np.cumsum(np.exp(logs - logs.max()))
        middle = np.asarray(fitted.estimate if fitted.middle is None else fitted.middle, np.float64)
        scale = fitted.scale.at(where)
        for one in filled:
            taken = np.searchsorted(sums, rng.random(where.size) * sums[-1], side="right")
            values = middle.copy()
            values.reshape(-1)[where] += scale * scores[np.minimum(taken, scores.size - 1)]
            values = values if fitted.undo is None else fitted.undo.backward(values)
            one.reshape(-1)[where] = values.reshape(-1)[where]
        if fitted.limits is not None:
            filled[:, fitted.observed.missing] = np.clip(filled[:, fitted.observed.missing], *fitted.limits)
    if fitted.observed.domain is not None:
        filled[:, ~fitted.observed.domain] = np.nan
    return filled


def exceedance(fitted: Fitted, threshold: Any, fdr: float = 0.1, above: bool = True) -> NDArray[np.bool_]:
    """Missing entries claimed to lie above a threshold (a number, or one per entry); at most `fdr` of the claims
    are false.

    On average over repetitions, for entries that go missing independently with the fitted odds; see
    `conformal/selection.py`.
    """
    if fitted.undo is not None:
        raise ValueError("exceedance needs a fit without transform: its threshold lives in the data's own variable")
    claims = np.zeros(fitted.observed.shape, bool)
    if fitted.calibrated is None:
        return claims
    where, sign = fitted.missing_entries, 1.0 if above else -1.0
    limit = np.broadcast_to(np.asarray(threshold, np.float64), fitted.observed.shape).reshape(-1)[where]
    middle = np.asarray(fitted.estimate if fitted.middle is None else fitted.middle, np.float64).reshape(-1)[where]
    scores = sign * (limit - middle) / fitted.scale.at(where)
    tests = _single(fitted).weights.log_weight(where)
    claims.reshape(-1)[where] = select(sign * signed_scores(fitted), fitted.log_weights, scores, tests, fdr)
    return claims


def _single(fitted: Fitted) -> Calibrated:
    """The one list of scores behind a fit; merged splits keep several and have no such list."""
    if not isinstance(fitted.calibrated, Calibrated):
        raise ValueError(
            "this question needs one list of calibration scores: use calibration='random' or 'gaps', not merged "
            "splits, and no other promise (groups, joint, odds_error) at the same time"
        )
    return fitted.calibrated


def axes_of(observed: ObservedTensor, names: Sequence[str | int]) -> tuple[int, ...]:
    """Positions of axes; all of them where none is named."""
    return tuple(observed.axis(one) for one in names) if names else tuple(range(len(observed.shape)))
