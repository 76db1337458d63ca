"""A linear trend in covariates, removed before the completion and added again.

The error that a smoother leaves in pseudo-gaps is compared with the part of each covariate that the same smoother does
not predict there: this is the regression of a partially linear model (Robinson 1988, Econometrica 56, 931-954). A
covariate is used if it lowers the error in blocks that its coefficient was not fitted to by two standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from corten.completion.axes_kinds import axis_kinds, pseudo_gap
from corten.completion.smooth import SmoothCompletion
from corten.conformal.local_scale import COARSE_BLOCKS_PER_AXIS, block_folds, block_of, exceeds
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.transform import Affine

TREND_HIDDEN_SHARE = 0.15  # of the training entries at most, in a pseudo-gap
MIN_ROUNDS, MAX_ROUNDS, ENOUGH_ENTRIES = 2, 8, 2000  # rounds of pseudo-gaps, until so many entries were hidden
MAX_TREND_ENTRIES = 40_000
MIN_TREND_ENTRIES = 30  # with fewer, no covariate is used
RIDGE = 1e-5  # of the variance of a covariate
MIN_TREND_GAIN = 0.005  # of the squared error


@dataclass(frozen=True)
class FittedTrend(Affine):
    """The trend as the centre of a change of variable, with the record of its coefficients."""

    choice: Choice = field(default_factory=lambda: Choice("covariates", "none", ""))


def fill_covariates(observed: ObservedTensor) -> ObservedTensor:
    """The tensor with the gaps of its covariates filled by kernel averages of their own values, and a record."""
    filled, choices = {}, []
    for name, array in observed.covariates.items():
        mask = ~np.isnan(array)
        if mask.all():
            filled[name] = array
            continue
        sides = zip(observed.axes, array.shape)
        axes = [axis if n > 1 else replace(axis, length=1, coordinates=None) for axis, n in sides]
        smooth = SmoothCompletion().prepare(array, mask, axes, seed=0).fill(array, mask).estimate
        filled[name] = np.where(mask, array, smooth).astype(array.dtype)
        because = f"{1 - mask.mean():.1%} of its values are missing: kernel averages of the others filled them"
        choices.append(Choice(f"covariate {name}", "gaps filled", because, code="covariate_filled"))
    return replace(observed, covariates=filled, choices=(*observed.choices, *choices)) if choices else observed


def fit_trend(
    values: np.ndarray, train: np.ndarray, *, axes: Sequence[Axis], covariates: Mapping[str, np.ndarray], seed: int
) -> FittedTrend:
    """The trend learned from the entries in `train` only."""
    left, entries = _left_in_gaps(values, train, axes, covariates, seed)
    names = list(covariates)
    sizes = np.array([np.var(one, dtype=np.float64) for one in covariates.values()])
    used, gain = _select(left, entries, sizes, train.shape, seed) if len(entries) >= MIN_TREND_ENTRIES else ([], 0.0)
    slopes = _slopes(left, used, sizes)
    centre = np.zeros((1,) * train.ndim)
    for k, slope in zip(used, slopes):
        array = covariates[names[k]].astype(np.float64)
        centre = centre + slope * (array - array.mean())
    return FittedTrend(centre, np.ones((1,) * train.ndim), _record(names, used, slopes, gain, len(entries)))


def _left_in_gaps(
    values: np.ndarray, train: np.ndarray, axes: Sequence[Axis], covariates: Mapping[str, np.ndarray], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """What the smoother does not predict of the values and of each covariate at hidden entries, and these entries."""
    rng = np.random.default_rng((seed, 0xC07))
    kinds, smooth = axis_kinds(axes, train.shape), SmoothCompletion().prepare(values, train, axes, seed)
    parts: list[np.ndarray] = []
    entries: list[np.ndarray] = []
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and sum(one.size for one in entries) >= ENOUGH_ENTRIES:
            break
        hidden = pseudo_gap(train, kinds, rng, TREND_HIDDEN_SHARE)
        known = train & ~hidden
        if not hidden.any() or not known.any():
            continue
        at = np.flatnonzero(hidden)
        if len(at) > MAX_TREND_ENTRIES // MIN_ROUNDS:
            at = np.sort(rng.choice(at, MAX_TREND_ENTRIES // MIN_ROUNDS, replace=False))
        columns = []
        for array in (values, *(np.broadcast_to(one, train.shape) for one in covariates.values())):
            estimate = smooth.fill(array, known).estimate
            columns.append(array.reshape(-1)[at].astype(np.float64) - estimate.reshape(-1)[at])
        parts.append(np.stack(columns, axis=1))
        entries.append(at)
    if not parts:
        return np.zeros((0, 1 + len(covariates))), np.zeros(0, np.intp)
    return np.concatenate(parts), np.concatenate(entries)


def _slopes(left: np.ndarray, used: Sequence[int], sizes: np.ndarray) -> np.ndarray:
    """Ridge coefficients of the used covariates; column 0 of `left` is the response."""
    own = left[:, [k + 1 for k in used]]
    # A covariate that the smoother predicts almost completely has no coefficient of its own: the ridge makes it small.
    ridge = RIDGE * len(left) * np.diag(np.maximum(sizes[list(used)], 1e-300))
    return np.linalg.solve(own.T @ own + ridge, own.T @ left[:, 0]) if used else np.zeros(0)


def _select(
    left: np.ndarray, entries: np.ndarray, sizes: np.ndarray, shape: tuple[int, ...], seed: int
) -> tuple[list[int], float]:
    """Covariates that lower the squared error in blocks they were not fitted to, best first; and the decrease."""
    fold, block = block_folds(entries, shape, seed), block_of(entries, shape, COARSE_BLOCKS_PER_AXIS)
    folds = [fold == one for one in np.unique(fold)]

    def squares(used: list[int]) -> np.ndarray:
        error = np.array(left[:, 0])
        for inside in folds:
            if not inside.all():
                error[inside] -= left[inside][:, [k + 1 for k in used]] @ _slopes(left[~inside], used, sizes)
        return error**2

    first = now = squares([])
    used: list[int] = []
    candidates = [k for k in range(len(sizes)) if sizes[k] > 0]
    while len(folds) > 1 and (rest := [k for k in candidates if k not in used]):
        tried = {k: squares([*used, k]) for k in rest}
        best = min(rest, key=lambda k: float(tried[k].sum()))
        gain = now - tried[best]
        if gain.sum() < MIN_TREND_GAIN * now.sum() or not exceeds(gain, block):
            break
        used, now = [*used, best], tried[best]
    return used, float(1 - now.sum() / max(first.sum(), 1e-300))


def _record(names: Sequence[str], used: Sequence[int], slopes: np.ndarray, gain: float, count: int) -> Choice:
    """The record of the covariates in the trend."""
    out = [name for k, name in enumerate(names) if k not in used]
    taken = ", ".join(f"{slope:.4g} x {names[k]}" for k, slope in zip(used, slopes)) or "none in the trend"
    because = f"squared error of a smoother in {count:,} entries of pseudo-gaps: {-gain:+.1%}"
    if out:
        because += f"; left out, as they do not lower it by two standard errors: {', '.join(out)}"
    values = {"coefficients": {names[k]: float(s) for k, s in zip(used, slopes)}, "gain": gain}
    return Choice("covariates", taken, because, code="covariates", values=values)
