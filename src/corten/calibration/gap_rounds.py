"""The rounds of pseudo-gaps: complete each round, keep what is scored of it and drop its full arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import cast

import numpy as np

from corten.calibration.task import Round, Task
from corten.completion.correction import NeighbourFeatures, PreparedCorrected, learn_correction
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.conformal.depth import depth
from corten.conformal.local_scale import EntryFeatures, block_folds
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.transform import FittedTransform
from corten.engine.memory import ROOM, available
from corten.engine.threads import default_threads, in_order

__all__ = [
    "Hidden", "Run", "peak_of_rounds", "reduced", "run_rounds", "scored", "threads_that_fit", "values_of_round",
]  # fmt: skip

BYTES_PER_ENTRY, BYTES_PER_ENTRY_AND_THREAD = 75, 90  # peak memory of a fit and its file (test_peak_memory.py)
BYTES_PER_THREAD = 50_000_000  # matrices of the coarse modes, measured
MAX_POOLED_ENTRIES = 96_000  # hidden entries scored over all rounds: more only slow the fit of the scale


@dataclass(frozen=True)
class Hidden:
    """What is kept of one round: arrays over its scored entries, never over the tensor.

    entries: flat indices of the hidden entries that are scored; truth: their values in the variable that the round
    modelled; estimate: their estimates, with weights of the members learned from other blocks; members: the estimates
    of each member; features, depths: what the scale and the weights are learned from; around: what a correction of a
    stack is learned from in addition.
    """

    entries: np.ndarray
    truth: np.ndarray = field(repr=False)
    estimate: np.ndarray = field(repr=False)
    members: dict[str, np.ndarray] = field(repr=False)
    features: np.ndarray = field(repr=False)
    depths: np.ndarray = field(repr=False)
    around: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Run:
    """All rounds of a plan, and the final fill, which gives the estimate of the missing entries.

    describe, first: the features, and the completion before its members were weighted by the rounds. Features are
    computed from the estimates of `first` everywhere, so that a round can be dropped as soon as it is filled.
    """

    rounds: tuple[Hidden, ...]
    final: Fill = field(repr=False)
    prepared: Prepared = field(repr=False)
    describe: EntryFeatures = field(repr=False)
    first: Prepared = field(repr=False)
    choices: tuple[Choice, ...] = ()

    @property
    def entries(self) -> np.ndarray:
        """Flat indices of the hidden entries of all rounds."""
        return np.concatenate([h.entries for h in self.rounds])

    @property
    def truth(self) -> np.ndarray:
        """Their values."""
        return np.concatenate([h.truth for h in self.rounds]).astype(np.float64)

    @property
    def estimate(self) -> np.ndarray:
        """Their estimates."""
        return np.concatenate([h.estimate for h in self.rounds]).astype(np.float64)

    @property
    def features(self) -> np.ndarray:
        """Their features, (entries, features)."""
        return np.concatenate([h.features for h in self.rounds])


def run_rounds(task: Task, rounds: Sequence[Round], changed: ObservedTensor, change: FittedTransform | None) -> Run:
    """Complete each round, learn the weights of the members from the hidden entries, then fill from all observed ones.

    Settings (ranks, scales, covariances) are chosen once, from all observed entries. `changed` is the data in the
    modelled variable and `change` the transform, fitted to all observed entries. A round fits a transform of its own to
    its training entries: a climatology that contains the hidden entries would contain a part of their errors.
    """
    values = changed.values
    steps = len(rounds) + 2
    task.tell("completion", 0.0)
    first = task.completion.prepare(values, changed.mask, changed.axes, task.seed)
    describe = EntryFeatures.of(values, changed.mask, changed.axes)
    neighbours = NeighbourFeatures.of(values, changed.mask, describe)
    limit = MAX_POOLED_ENTRIES // len(rounds)
    one_transform = Lock()  # a transform of the user may not be safe to run in two threads

    def completed(number: int) -> Hidden:
        """One round, reduced here to its scored entries: full arrays of several rounds are never kept."""
        one = rounds[number]
        train, own = one.train, values
        if change is not None:
            with one_transform:
                own = values_of_round(task, change, train)
        # Every round has a start of its own: a start from another round would depend on the entries now hidden.
        fill = first.fill(own, train)
        hidden = reduced(fill, own, train, scored(one, limit, [task.seed, number]), describe)
        if not fill.members:
            return hidden
        around = neighbours.at(hidden.entries, own, train, fill.estimate, fill.members)
        return replace(hidden, around=around)

    done = [completed(0)]
    # A function of the user, which has no members, may not be safe to run in two threads.
    threads = threads_that_fit(values.size, len(rounds)) if done[0].members else 1
    others = in_order(completed, range(1, len(rounds)), threads, pool="rounds")
    task.tell("completion", 1 / steps)
    for number, hidden in enumerate(others, 2):
        task.tell("completion", number / steps)
        done.append(hidden)
    prepared, choices = first, first.choices
    if done[0].members:
        mixed, done = cross_fitted_mix(cast(PreparedMix, first), done, changed.shape, task.seed)
        prepared, done, choice = _corrected(cast(PreparedMix, first), mixed, done, neighbours, changed.shape, task.seed)
        choices = (*mixed.choices, choice)
    final = prepared.fill(values, changed.mask)
    task.tell("completion", 1.0)
    return Run(tuple(done), final, prepared, describe, first, tuple(choices))


def _corrected(
    first: PreparedMix,
    mixed: PreparedMix,
    rounds: list[Hidden],
    neighbours: NeighbourFeatures,
    shape: tuple[int, ...],
    seed: int,
) -> tuple[Prepared, list[Hidden], Choice]:
    """The mix with a learned correction of it, and rounds with corrected estimates, if that lowers their errors."""
    entries = np.concatenate([h.entries for h in rounds])
    residuals = np.concatenate([h.truth - h.estimate for h in rounds])
    features = np.concatenate([np.hstack([h.features, cast(np.ndarray, h.around)]) for h in rounds])
    correction, choice = learn_correction(neighbours, features, residuals, entries, shape=shape, seed=seed)
    if correction is None:
        return mixed, rounds, choice
    added = np.split(correction.predict(features, entries), np.cumsum([len(h.entries) for h in rounds])[:-1])
    done = [replace(h, estimate=h.estimate + one) for h, one in zip(rounds, added)]
    return PreparedCorrected(mixed, first, correction, choice), done, choice


def peak_of_rounds(entries: int, threads: int) -> int:
    """Peak memory of rounds that run in so many threads, in bytes."""
    return BYTES_PER_THREAD * threads + (BYTES_PER_ENTRY + BYTES_PER_ENTRY_AND_THREAD * threads) * entries


def threads_that_fit(entries: int, rounds: int) -> int:
    """Threads for the rounds: as many as there are, but no more than memory allows."""
    threads = min(default_threads(), max(rounds - 1, 1))
    while threads > 1 and peak_of_rounds(entries, threads) > ROOM * available():
        threads -= 1
    return threads


def reduced(
    fill: Fill,
    values: np.ndarray,
    train: np.ndarray,
    entries: np.ndarray,
    describe: EntryFeatures,
    estimate: np.ndarray | None = None,
) -> Hidden:
    """What is kept of a round that was filled from the entries in `train`; features are computed from `estimate`."""
    deep = depth(train, describe.axes, describe.change)
    whole = fill.estimate if estimate is None else estimate
    features = describe.at(entries, values=values, train=train, estimate=whole, members=fill.members, deep=deep)
    return Hidden(
        entries=entries,
        truth=values.reshape(-1)[entries],
        estimate=fill.estimate.reshape(-1)[entries],
        members={name: member.reshape(-1)[entries] for name, member in fill.members.items()},
        features=features,
        depths=deep.reshape(-1)[entries],
    )


def values_of_round(task: Task, whole: FittedTransform, train: np.ndarray) -> np.ndarray:
    """The data in the variable of the transform fitted to the training entries of a round.

    If all training values are equal no scale can be fitted: the scale of `whole`, the transform of all entries, is
    used, so that the errors of the round have the same unit as those of the others.
    """
    changed, own = task.modelled(train)
    values, observed = changed.values, task.observed
    if own is None or not train.any() or np.ptp(values[train]) > 0.0:
        return values
    known = observed.values[observed.mask]
    low, high = (np.full(values.shape, limit(known), np.float64) for limit in (np.min, np.max))
    wanted, found = (one.forward(high) - one.forward(low) for one in (whole, own))
    return np.asarray(values * np.divide(wanted, found, out=np.ones(values.shape), where=found > 0), values.dtype)


def cross_fitted_mix(
    prepared: PreparedMix, rounds: list[Hidden], shape: tuple[int, ...], seed: int
) -> tuple[PreparedMix, list[Hidden]]:
    """The completion with member weights learned from all hidden entries, and rounds with cross-fitted weights.

    The weights for an entry of a round are learned from the entries of other blocks, in all rounds. An entry that takes
    part in the choice of the weights has a smaller error than a missing entry, and intervals would be too narrow.
    """
    entries, truth = np.concatenate([h.entries for h in rounds]), np.concatenate([h.truth for h in rounds])
    pooled = {name: np.concatenate([h.members[name] for h in rounds]) for name in rounds[0].members}
    final = prepared.combine(pooled, truth)
    mixed = np.array(final.mix(pooled))
    fold = block_folds(entries, shape, seed)
    for one in np.unique(fold):
        inside = fold == one
        if not inside.all():
            own = prepared.combine({n: estimate[~inside] for n, estimate in pooled.items()}, truth[~inside])
            mixed[inside] = own.mix({n: estimate[inside] for n, estimate in pooled.items()})
    ends = np.cumsum([len(h.entries) for h in rounds])[:-1]
    return final, [replace(h, estimate=estimate) for h, estimate in zip(rounds, np.split(mixed, ends))]


def scored(one: Round, limit: int, seed: list[int]) -> np.ndarray:
    """Flat indices of the hidden entries, or of `limit` random ones if there are more."""
    entries = np.flatnonzero(one.hidden)
    if len(entries) <= limit:
        return entries
    return np.sort(np.random.default_rng(seed).choice(entries, limit, replace=False))
