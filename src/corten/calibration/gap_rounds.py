"""The rounds of pseudo-gaps: complete each round, keep what is scored of it and drop its full arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import cast

import numpy as np

from corten.calibration.device_rounds import Final, found_on_device, rounds_on_device
from corten.calibration.round_entries import (
    MAX_POOLED_ENTRIES,
    Hidden,
    Surroundings,
    cross_fitted_mix,
    pooled,
    reduced,
    scored,
    with_estimates,
)
from corten.calibration.task import Round, Task, trend_of
from corten.completion.axes_kinds import axis_kinds, has_stations
from corten.completion.correction import PreparedCorrected, learn_correction
from corten.completion.neighbours import NeighbourFeatures
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.conformal.local_scale import EntryFeatures
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.transform import FittedTransform
from corten.engine.memory import USABLE_SHARE, available
from corten.engine.threads import default_threads, in_order

BYTES_PER_ENTRY, BYTES_PER_ENTRY_AND_THREAD = 70, 100  # peak memory of a fit and its file (benchmarks cliffs)
BYTES_PER_MISSING = 60  # features of the missing entries
BYTES_AT_LEAST, BYTES_PER_THREAD = 6_000_000, 45_000_000  # the latter: matrices of the modes, measured
ENTRIES_OF_MODES = 30_000  # from so many entries on all modes are solved exactly


@dataclass(frozen=True)
class Run:
    """All rounds of a plan, and the final fill, which gives the estimate of the missing entries.

    describe, first: the features, and the completion before its members were weighted by the rounds. Features are
    computed from the estimates of `first` everywhere, so that a round can be dropped as soon as it is filled.
    neighbours: features of neighbours that the scale is learned from too, None if no axis is unordered. around:
    computes the surroundings of the missing entries where the final fill was computed, None on the host.
    """

    rounds: tuple[Hidden, ...]
    final: Fill = field(repr=False)
    prepared: Prepared = field(repr=False)
    describe: EntryFeatures = field(repr=False)
    first: Prepared = field(repr=False)
    neighbours: NeighbourFeatures | None = field(default=None, repr=False)
    choices: tuple[Choice, ...] = ()
    around: Callable[[], Surroundings] | None = field(default=None, repr=False)

    @property
    def entries(self) -> np.ndarray:
        """Flat indices of the hidden entries of all rounds."""
        return pooled(self.rounds, "entries")

    @property
    def truth(self) -> np.ndarray:
        """Their values."""
        return pooled(self.rounds, "truth").astype(np.float64)

    @property
    def estimate(self) -> np.ndarray:
        """Their estimates."""
        return pooled(self.rounds, "estimate").astype(np.float64)

    @property
    def features(self) -> np.ndarray:
        """Their features, (entries, features)."""
        return pooled(self.rounds, "features") if self.neighbours is None else _all_features(self.rounds)


def run_rounds(
    task: Task, rounds: Sequence[Round], *, changed: ObservedTensor, change: FittedTransform | None,
    first: Prepared | None = None,
) -> Run:  # fmt: skip
    """Complete each round, learn the weights of the members from the hidden entries, then fill from all observed ones.

    Settings (ranks, scales, covariances) are chosen once, from all observed entries. `changed` is the data in the
    modelled variable and `change` the transform, fitted to all observed entries. A round fits a transform of its own to
    its training entries: a climatology that contains the hidden entries would contain a part of their errors.
    `first`: the completion with its settings, if they were chosen before.
    """
    values = changed.values
    steps = len(rounds) + 2
    task.tell("completion", 0.0)
    first = first or task.completion.prepare(values, changed.mask, changed.axes, task.seed)
    describe = EntryFeatures.of(values, changed.mask, changed.axes)
    neighbours = NeighbourFeatures.of(values, changed.mask, describe, changed.covariates)
    limit = MAX_POOLED_ENTRIES // len(rounds)
    one_transform = Lock()  # a transform of the user may not be safe to run in two threads

    def values_of(train: np.ndarray) -> np.ndarray:
        if change is None or train is changed.mask:
            return values
        with one_transform:
            return values_of_round(task, change, train)

    def completed(number: int) -> Hidden:
        """One round, reduced here to its scored entries: full arrays of several rounds are never kept."""
        train, entries = rounds[number].train, scored(rounds[number], limit, [task.seed, number])
        own = values_of(train)
        # Every round has a start of its own: a start from another round would depend on the entries now hidden.
        fill = first.fill(own, train)
        return reduced(fill, own, train=train, entries=entries, describe=describe, neighbours=neighbours)

    device, where = rounds_on_device(task.engine, first, values.shape, len(rounds))
    found: Iterator[Hidden | Final]
    if device is not None:
        found = found_on_device(
            device, rounds, values_of=values_of, changed=changed, describe=describe, neighbours=neighbours,
            limit=limit, seed=task.seed,
        )  # fmt: skip
    else:
        # A function of the user, which has no members, may not be safe to run in two threads.
        threads = threads_that_fit(values.size, len(rounds)) if isinstance(first, PreparedMix) else 1
        found = in_order(completed, range(len(rounds)), threads)
    done: list[Hidden] = []
    last = None
    for one in found:
        if isinstance(one, Final):
            last = one
            continue
        done.append(one)
        task.tell("completion", len(done) / steps)
    prepared, choices = first, first.choices
    if done[0].members:
        stations = has_stations(axis_kinds(changed.axes, values.shape), values.shape)
        mixed, done = cross_fitted_mix(cast(PreparedMix, first), done, values.shape, task.seed, stations=stations)
        prepared, done, choice = _corrected(
            cast(PreparedMix, first), mixed, rounds=done, neighbours=neighbours, observed=changed.mask, seed=task.seed
        )
        choices = (*mixed.choices, choice)
    if last is None or isinstance(prepared, PreparedCorrected):
        final = prepared.fill(values, changed.mask)
    else:
        final = Fill(cast(PreparedMix, prepared).mix(last.fill.members), last.fill.members)
    task.tell("completion", 1.0)
    # Errors of smooth maps are learned from their own features: trees with covariates would learn places.
    near = neighbours if neighbours.correlations and done[0].members else None
    return Run(
        tuple(done), final, prepared=prepared, describe=describe, first=first, neighbours=near,
        choices=(*where, *choices), around=None if last is None else last.around,
    )  # fmt: skip


def _all_features(rounds: Sequence[Hidden]) -> np.ndarray:
    """All features of the hidden entries."""
    return np.concatenate([np.hstack([h.features, cast(np.ndarray, h.around)]) for h in rounds])


def _corrected(
    first: PreparedMix, mixed: PreparedMix, *, rounds: list[Hidden], neighbours: NeighbourFeatures,
    observed: np.ndarray, seed: int,
) -> tuple[Prepared, list[Hidden], Choice]:  # fmt: skip
    """The mix with a learned correction of it, and rounds with corrected estimates, if that lowers their errors."""
    entries, estimate, features = pooled(rounds, "entries"), pooled(rounds, "estimate"), _all_features(rounds)
    correction, choice = learn_correction(
        neighbours, features, residuals=pooled(rounds, "truth") - estimate, entries=entries, observed=observed,
        seed=seed,
    )  # fmt: skip
    if correction is None:
        return mixed, rounds, choice
    done = with_estimates(rounds, estimate + correction.predict(features, entries))
    return PreparedCorrected(mixed, first, correction, choice), done, choice


def peak_of_rounds(entries: int, threads: int, missing: int = 0) -> int:
    """Peak memory of a fit whose rounds run in so many threads, in bytes."""
    modes = BYTES_PER_THREAD * min(1.0, entries / ENTRIES_OF_MODES) ** 2
    each = BYTES_PER_ENTRY + BYTES_PER_ENTRY_AND_THREAD * threads
    return BYTES_AT_LEAST + int(modes) * threads + each * entries + BYTES_PER_MISSING * missing


def threads_that_fit(entries: int, rounds: int) -> int:
    """Threads for the rounds: as many as there are, but no more than memory allows."""
    threads = min(default_threads(), rounds)
    while threads > 1 and peak_of_rounds(entries, threads) > USABLE_SHARE * available():
        threads -= 1
    return threads


def values_of_round(task: Task, whole: FittedTransform, train: np.ndarray) -> np.ndarray:
    """The data in the variable of the transform fitted to the training entries of a round.

    If all training values are equal no scale can be fitted: the scale of `whole`, the transform of all entries, is
    used, so that the errors of the round have the same unit as those of the others.
    """
    # Few coefficients fitted to many entries: those of all entries serve every round, as other settings do.
    changed, own = task.modelled(train, trend_of(whole))
    values, observed = changed.values, task.observed
    if own is None or not train.any() or np.ptp(values[train]) > 0.0:
        return values
    known = observed.values[observed.mask]
    low, high = (np.full(values.shape, limit(known), np.float64) for limit in (np.min, np.max))
    wanted, found = (one.forward(high) - one.forward(low) for one in (whole, own))
    return np.asarray(values * np.divide(wanted, found, out=np.ones(values.shape), where=found > 0), values.dtype)
