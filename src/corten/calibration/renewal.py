"""A calibration used again: for new data with nothing chosen again, or renewed from pseudo-gaps in new slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from corten.calibration.gap_rounds import values_of_round
from corten.calibration.gap_scale import MIN_TESTING_ROUNDS, Local, first_estimate, tested_depth
from corten.calibration.gaps import GAP_SEED_STREAM, split_of
from corten.calibration.pseudo_gaps import MIN_HIDDEN_SHARE, hide_in_round
from corten.calibration.round_entries import MAX_POOLED_ENTRIES, Hidden, reduced, scored
from corten.calibration.split import scale_of, training_entries
from corten.calibration.task import Round, Task
from corten.completion.axes_kinds import axis_kinds
from corten.completion.protocol import Prepared, on_axes
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import TableScale
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.data.axes import Axis
from corten.data.matching import Joined
from corten.data.observed import ObservedTensor
from corten.data.transform import Affine, FittedChain, FittedTransform

MIN_PRIOR_SCORES = 200  # of a ratio of errors of 1: a few scores of new slices say little

__all__ = ["Renewed", "Settled", "fill_gaps", "fill_split", "renew"]


@dataclass(frozen=True, eq=False)
class Settled:
    """A completion that is already prepared: its settings are not chosen again, and hold on the axes of the data."""

    prepared: Prepared

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> Prepared:
        return on_axes(self.prepared, axes)


def fill_gaps(
    split: CalibratedSplit, completion: Prepared, *, observed: ObservedTensor, fresh: np.ndarray, count: int, seed: int
) -> tuple[CalibratedSplit, float]:
    """The calibration of pseudo-gaps for new data: one fill, the learned scale, the same scores; and a ratio of errors.

    Their weights are those of the depths of the new missing entries. A slice (a year, a day) can have larger or smaller
    errors than the features of its entries say, all of them by about the same factor. `count` rounds of pseudo-gaps in
    `fresh` measure it, and the scale there is multiplied by it.
    """
    assert split.local is not None  # a calibration of pseudo-gaps has it
    changed = in_model(split.change, observed)
    prepared = on_axes(completion, observed.axes)
    fill = prepared.fill(changed.values, changed.mask)
    made = split_of(
        split.local, split.score, scores=split.scores, entries=split.entries, changed=changed, fill=fill,
        round_sizes=split.round_sizes,
    )  # fmt: skip
    rounds: list[_NewRound] = []
    if count and np.count_nonzero(fresh & observed.mask) > 1:
        rng = np.random.default_rng((seed, GAP_SEED_STREAM, len(split.scores)))
        limit = MAX_POOLED_ENTRIES // max(len(split.round_sizes), count)
        local = split.local.on_axes(observed.axes)
        found = _new_rounds(
            local, prepared, observed=observed, fresh=fresh, count=count, limit=limit, seed=seed, rng=rng,
            values_of=lambda train: changed.values,
        )  # fmt: skip
        rounds = list(found)
    ratio = _ratio_of_errors(made, rounds)
    before = made.scale.at(np.arange(observed.values.size))
    scale = TableScale(np.where(np.ravel(fresh & observed.missing), ratio * before, before))
    return replace(made, change=split.change, scale=scale), ratio


def _ratio_of_errors(split: CalibratedSplit, rounds: Sequence[_NewRound]) -> float:
    """Mean error, relative to its scale, in new slices over that of the calibration entries, shrunk towards 1.

    A further round with a ratio of 1 is added to those of the new slices, of at least `MIN_PRIOR_SCORES` scores: the
    errors of one round are correlated.
    """
    usual, scores = float(np.average(np.abs(split.scores), weights=_weights(split.log_weights))), np.zeros(0)
    if rounds:
        scores = np.concatenate([np.abs(one.kept.truth - one.kept.estimate) / one.scale for one in rounds])
    if not (len(scores) and usual > 0):
        return 1.0
    assert split.local is not None and split.local.by_depth is not None
    logs = split.local.by_depth.at(np.concatenate([one.kept.depths for one in rounds]))
    found = float(np.average(scores, weights=_weights(logs)))
    prior = max(len(scores) / len(rounds), MIN_PRIOR_SCORES)
    return (len(scores) * found / usual + prior) / (len(scores) + prior)


def _weights(logs: np.ndarray) -> np.ndarray:
    """Weights from their logarithms, the largest one 1."""
    return np.asarray(np.exp(logs - logs.max(initial=-np.inf)))


class _NewRound(NamedTuple):
    """A round of pseudo-gaps in new slices: what is kept of its scored entries, and their scale."""

    plan: Round
    kept: Hidden
    scale: np.ndarray


def _new_rounds(
    local: Local, prepared: Prepared, *, observed: ObservedTensor, fresh: np.ndarray, count: int, limit: int, seed: int,
    rng: np.random.Generator, values_of: Callable[[np.ndarray], np.ndarray],
) -> Iterator[_NewRound]:  # fmt: skip
    """Rounds of pseudo-gaps whose hidden entries are scored where `fresh` is True, with nothing chosen again.

    values_of: the data in the modelled variable, given the training entries of the round; limit: of scored entries.
    """
    usable = observed.mask & observed.inside
    fresh = usable & fresh
    kinds = axis_kinds(observed.axes, observed.shape)
    least = MIN_HIDDEN_SHARE * min(observed.n_missing, int(np.count_nonzero(fresh)))
    for number in range(count):
        # Copies hide entries of all slices, as gaps do: a new slice alone would be filled from the slices beside it.
        hidden = hide_in_round(
            None, gap=observed.missing, usable=usable, kinds=kinds, least=least, rng=rng, scored=fresh
        )
        one = Round(observed.mask & ~hidden, hidden & fresh)
        own = values_of(one.train)
        fill = prepared.fill(own, one.train)
        entries = scored(one, limit, [seed, number])
        kept = reduced(
            fill, own, train=one.train, entries=entries, describe=local.describe,
            estimate=first_estimate(local.first, fill),
        )  # fmt: skip
        features = local.scale_features(entries, kept.features, values=own, train=one.train, fill=fill)
        yield _NewRound(one, kept, local.learned.predict(features))


def fill_split(
    split: CalibratedSplit, completion: Prepared, *, observed: ObservedTensor, train_share: float, seed: int
) -> CalibratedSplit:
    """The calibration of a random split for new data: filled from as large a share of the observed entries.

    The errors then have the distribution of the calibration errors, if the new data have that of the old ones. The
    weights are the odds that the propensity model gives for the new mask.
    """
    model = split.propensity
    assert model is not None  # every random split has one
    known = split.estimate.shape
    changed = in_model(split.change, observed)
    if observed.shape == known:
        odds = np.asarray(model.limited(model.log_weights(observed.mask), False), np.float64)
    elif np.ptp(split.log_weights) == 0.0 and model.independent:
        odds = np.full(observed.shape, float(split.log_weights[0]))
    else:
        raise ValueError(
            f"the new data have shape {observed.shape}, the fit {known}: its propensity model has no odds for other "
            "positions; give data of the same shape, or fit with calibration='gaps' or propensity='constant'"
        )
    train, _ = training_entries(observed.mask, train_share, seed)
    if not train.any():
        raise ValueError(f"{observed.n_observed} observed entries are too few: none of them would train")
    fill = on_axes(completion, observed.axes).fill(changed.values, train)
    scale = scale_of(split.score, fill, propensity=model, values=changed.values, train=train)
    weights = PooledWeights(split.entries, split.log_weights, odds)
    scored = CalibratedScores(split.score, split.scores, split.entries, weights)
    return CalibratedSplit(scored, np.ascontiguousarray(fill.estimate), scale, split.change, model)


def in_model(change: FittedTransform | None, observed: ObservedTensor) -> ObservedTensor:
    """New data in the variable that was modelled, by the transform of the fit."""
    if change is None:
        return observed
    _refuse_other_positions(change, observed.shape)
    values = change.forward(observed.values).astype(observed.values.dtype)
    if not np.isfinite(values[observed.mask]).all():
        raise ValueError("the transform of the fit is not finite at some new values: fit them, or use another one")
    return replace(observed, values=np.where(observed.mask, values, np.nan))


def _refuse_other_positions(change: FittedTransform, shape: tuple[int, ...]) -> None:
    """Refuse a transform with a mean or scale for every position of an axis that now has other positions."""
    for step in change.steps if isinstance(change, FittedChain) else (change,):
        for part in (step.centre, step.scale) if isinstance(step, Affine) else ():
            if any(m not in (1, n) for m, n in zip(part.shape, shape)):
                raise ValueError(
                    f"the transform of the fit has means for positions of shape {part.shape}, the new data have shape "
                    f"{shape}: give data of the same shape, or fit again"
                )


@dataclass(frozen=True, eq=False)
class Renewed:
    """A calibration on a window of old and new slices; residuals are those of all scores, rounds the new ones."""

    calibrated: CalibratedSplit
    residuals: np.ndarray
    rounds: tuple[Round, ...]


def renew(
    split: CalibratedSplit, residuals: np.ndarray, *, task: Task, window: Joined, axis: int, rounds: int,
    half_life: float,
) -> Renewed:  # fmt: skip
    """Calibrate on a window: scores of old slices that are still in it, and of pseudo-gaps in the new slices.

    Nothing is chosen again: completion, mix and scale model are those of the fit. Of `rounds`, as many are run as
    the new slices have of the window, and at least four; none if no slice is new. A score of age a has weight
    2^(-a / half_life); the age is in steps along the axis, from the last slice.
    """
    observed, local = window.observed, split.local
    assert local is not None  # a calibration of pseudo-gaps has it
    changed, change = task.modelled(observed.mask)
    prepared = task.completion.prepare(changed.values, changed.mask, changed.axes, task.seed)
    local = local.on_axes(observed.axes)
    ones = [1] * len(observed.shape)
    ones[axis] = -1
    fresh = window.fresh.reshape(ones)
    kept, moved = _still_there(split, window, axis)
    if np.count_nonzero(observed.mask & observed.inside & fresh) < 2 and (window.fresh.any() or not kept.any()):
        raise ValueError("the new slices have fewer than two observed values in the window: nothing can be calibrated")
    count = int(np.clip(round(rounds * window.fresh.mean()), min(MIN_TESTING_ROUNDS, rounds), rounds))
    count = count if window.fresh.any() else 0
    rng = np.random.default_rng((task.seed, GAP_SEED_STREAM, len(split.scores)))
    limit = MAX_POOLED_ENTRIES // rounds
    done, plans, scales = [], [], []

    def values_of(train: np.ndarray) -> np.ndarray:
        return changed.values if change is None else values_of_round(task, change, train)

    found = _new_rounds(
        local, prepared, observed=observed, fresh=fresh, count=count, limit=limit, seed=task.seed, rng=rng,
        values_of=values_of,
    )  # fmt: skip
    for one in found:
        done.append(one.kept)
        plans.append(one.plan)
        scales.append(one.scale)
        task.tell("completion", len(done) / (count + 1))
    none = np.zeros(0)
    truth = np.concatenate([none, *(one.truth for one in done)])
    estimate = np.concatenate([none, *(one.estimate for one in done)])
    new_scores = np.asarray(task.score.score(truth, estimate, np.concatenate([none, *scales])))
    entries = np.concatenate([moved, *(one.entries for one in done)])
    age = observed.shape[axis] - 1 - np.unravel_index(entries, observed.shape)[axis]
    renewed = replace(
        local,
        depths=np.concatenate([local.depths[kept], *(one.depths for one in done)]),
        tested=max(tested_depth([one.depths for one in done]), local.tested if kept.any() else 0.0),
        log_ages=-np.log(2.0) * age / half_life,
    )
    scores = np.concatenate([split.scores[kept], new_scores])
    fill = prepared.fill(changed.values, changed.mask)
    sizes = (*np.bincount(split.round_numbers[kept]).tolist(), *(len(one.entries) for one in done))
    made = split_of(renewed, split.score, scores=scores, entries=entries, changed=changed, fill=fill, round_sizes=sizes)
    task.tell("completion", 1.0)
    residuals = np.concatenate([residuals[kept], truth - estimate])
    return Renewed(replace(made, change=change), residuals, tuple(plans))


def _still_there(split: CalibratedSplit, window: Joined, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Which scores are of slices that are still in the window, and their entries there."""
    index = list(np.unravel_index(split.entries, split.estimate.shape))
    place = window.place[index[axis]]
    kept = place >= 0
    index = [one[kept] for one in index]
    index[axis] = place[kept]
    return kept, np.ravel_multi_index(tuple(index), window.observed.shape).astype(np.intp)
