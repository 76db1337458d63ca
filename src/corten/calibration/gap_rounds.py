"""The rounds of pseudo-gaps: complete each round, keep what is scored of it and drop its full arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import NamedTuple, cast

import numpy as np

from corten.calibration.device_rounds import DeviceRounds, described_on_device, rounds_on_device, scored_on_device
from corten.calibration.task import Round, Task, trend_of
from corten.completion.axes_kinds import axis_kinds, has_stations
from corten.completion.correction import PreparedCorrected, learn_correction
from corten.completion.neighbours import NeighbourFeatures
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.completion.stack import BatchedFill
from corten.conformal.depth import depth
from corten.conformal.local_scale import COARSE_BLOCKS_PER_AXIS, EntryFeatures, block_folds, block_of, exceeds
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.transform import FittedTransform
from corten.engine.memory import USABLE_SHARE, available
from corten.engine.threads import default_threads, in_order

BYTES_PER_ENTRY, BYTES_PER_ENTRY_AND_THREAD = 70, 100  # peak memory of a fit and its file (benchmarks cliffs)
BYTES_PER_MISSING = 60  # features of the missing entries
BYTES_AT_LEAST, BYTES_PER_THREAD = 6_000_000, 45_000_000  # the latter: matrices of the modes, measured
ENTRIES_OF_MODES = 30_000  # from so many entries on all modes are solved exactly
MAX_POOLED_ENTRIES = 96_000  # hidden entries scored over all rounds: more only slow the fit of the scale


@dataclass(frozen=True)
class Hidden:
    """What is kept of one round: arrays over its scored entries, never over the tensor.

    entries: flat indices of the hidden entries that are scored; truth: their values in the variable that the round
    modelled; estimate: their estimates, with weights of the members learned from other blocks; members: the estimates
    of each member; features, depths: what the scale and the weights are learned from; around: what a correction of a
    stack, and the scale where an axis is unordered, are learned from in addition.
    """

    entries: np.ndarray
    truth: np.ndarray = field(repr=False)
    estimate: np.ndarray = field(repr=False)
    members: dict[str, np.ndarray] = field(repr=False)
    features: np.ndarray = field(repr=False)
    depths: np.ndarray = field(repr=False)
    around: np.ndarray | None = field(default=None, repr=False)


class Surroundings(NamedTuple):
    """Features and depths of the missing entries of a tensor."""

    features: np.ndarray
    depths: np.ndarray


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


def pooled(rounds: Sequence[Hidden], name: str) -> np.ndarray:
    """One array of the hidden entries of all rounds."""
    return np.concatenate([getattr(one, name) for one in rounds])


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
    found: Iterator[Hidden | _Final]
    if device is not None:
        found = _on_device(
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
        if isinstance(one, _Final):
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


class _Final(NamedTuple):
    """The fill from all observed entries, and what computes the surroundings of the missing ones on the device."""

    fill: Fill
    around: Callable[[], Surroundings] | None


def _on_device(
    device: DeviceRounds, rounds: Sequence[Round], *, values_of: Callable[[np.ndarray], np.ndarray],
    changed: ObservedTensor, describe: EntryFeatures, neighbours: NeighbourFeatures, limit: int, seed: int,
) -> Iterator[Hidden | _Final]:  # fmt: skip
    """The rounds in their order, filled on a device, and at the end the fill from all observed entries."""
    ordered = all(axis.kind != "unordered" for axis in describe.axes) and not neighbours.covariates
    for batch, numbers, values, trains in device.filled(rounds, values_of, changed.mask):
        inside = [number for number in numbers if number < len(rounds)]
        entries = [scored(rounds[number], limit, [seed, number]) for number in inside]
        if not ordered:
            # Features of neighbours along unordered axes, and covariates, are gathered on the host.
            def reduce(b: int) -> Hidden:
                fill, own, train = batch.fill(b), values[b], trains[b]  # noqa: B023
                return reduced(fill, own, train=train, entries=entries[b], describe=describe, neighbours=neighbours)  # noqa: B023

            yield from in_order(reduce, range(len(inside)))
        elif inside:
            # All rounds of a batch take part, the fill from all entries too, with any entry: one program serves.
            spare = [entries[0]] * (len(numbers) - len(inside))
            for own, here, one in zip(scored_on_device(batch, describe, [*entries, *spare]), entries, values):
                estimate = cast(PreparedMix, device.stack).mix(own.members)
                around = np.empty((len(here), 0), np.float32)  # no correction is learned
                yield Hidden(
                    here, one.reshape(-1)[here], estimate=estimate, members=own.members, features=own.features,
                    depths=own.depths, around=around,
                )  # fmt: skip
        if len(inside) < len(numbers):
            alone = batch.only(len(inside))
            yield _Final(alone.fill(0), partial(_around_missing, alone, describe, changed) if ordered else None)


def _around_missing(fill: BatchedFill, describe: EntryFeatures, changed: ObservedTensor) -> Surroundings:
    """The surroundings of the missing entries, from their fill on a device."""
    features, depths = described_on_device(fill, describe, np.flatnonzero(changed.missing)[None])
    return Surroundings(features[0], depths[0])


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
    done = _with_estimates(rounds, estimate + correction.predict(features, entries))
    return PreparedCorrected(mixed, first, correction, choice), done, choice


def _with_estimates(rounds: Sequence[Hidden], estimate: np.ndarray) -> list[Hidden]:
    """The rounds with other estimates of their entries, given for all rounds."""
    parts = np.split(estimate, np.cumsum([len(one.entries) for one in rounds])[:-1])
    return [replace(one, estimate=part) for one, part in zip(rounds, parts)]


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


def reduced(
    fill: Fill, values: np.ndarray, *, train: np.ndarray, entries: np.ndarray, describe: EntryFeatures,
    estimate: np.ndarray | None = None, neighbours: NeighbourFeatures | None = None,
) -> Hidden:  # fmt: skip
    """What is kept of a round that was filled from the entries in `train`.

    Features are computed from `estimate`; `neighbours`: features of a stack that are kept too.
    """
    around = None
    if neighbours is not None and fill.members:
        around = neighbours.at(entries, values, train=train, estimate=fill.estimate, members=fill.members)
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
        around=around,
    )


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


def cross_fitted_mix(
    prepared: PreparedMix, rounds: list[Hidden], shape: tuple[int, ...], seed: int, *, stations: bool = False
) -> tuple[PreparedMix, list[Hidden]]:
    """The completion with member weights learned from all hidden entries, and rounds with cross-fitted weights.

    The weights for an entry of a round are learned from the entries of other blocks, in all rounds. An entry that takes
    part in the choice of the weights has a smaller error than a missing entry, and intervals would be too narrow.
    Weights by the difference of the members are for `stations`: there members fail at single positions. They are used
    unless their cross-fitted estimates have a squared error that is larger by two standard errors.
    """
    entries, truth = pooled(rounds, "entries"), pooled(rounds, "truth")
    members = {name: np.concatenate([h.members[name] for h in rounds]) for name in rounds[0].members}
    fold = block_folds(entries, shape, seed)

    def cross_fitted(combine: Callable[..., PreparedMix]) -> tuple[PreparedMix, np.ndarray]:
        final = combine(members, truth)
        mixed = np.array(final.mix(members))
        for one in np.unique(fold):
            inside = fold == one
            if not inside.all():
                own = combine({n: estimate[~inside] for n, estimate in members.items()}, truth[~inside])
                mixed[inside] = own.mix({n: estimate[inside] for n, estimate in members.items()})
        return final, mixed

    final, mixed = cross_fitted(prepared.combine)
    if stations and hasattr(prepared, "combine_by_difference"):
        other, refined = cross_fitted(prepared.combine_by_difference)
        lost = (refined - truth) ** 2 - (mixed - truth) ** 2
        if not exceeds(lost, block_of(entries, shape, COARSE_BLOCKS_PER_AXIS)):
            final, mixed = other, refined
    return final, _with_estimates(rounds, mixed)


def scored(one: Round, limit: int, seed: list[int]) -> np.ndarray:
    """Flat indices of the hidden entries, or of `limit` random ones if there are more."""
    entries = np.flatnonzero(one.hidden)
    if len(entries) <= limit:
        return entries
    return np.sort(np.random.default_rng(seed).choice(entries, limit, replace=False))
