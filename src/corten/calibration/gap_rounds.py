"""The rounds of pseudo-gaps: complete what each round leaves, and gather how wrong the estimate is where it hid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import cast

import numpy as np

from corten.calibration.task import Round, Task
from corten.completion.protocol import Fill, Prepared, PreparedMix
from corten.conformal.local_scale import block_folds
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.data.transform import FittedTransform
from corten.engine.threads import in_order

__all__ = ["Hidden", "Run", "run_rounds"]

POOLED = 96_000  # hidden cells scored over all rounds where rounds are pooled: more only slow the scale's fit


@dataclass(frozen=True)
class Hidden:
    """What one round hid: flat entries, and the round's fill, each entry mixed as learned from other blocks.

    values: what the round saw and what it hid, in the variable that it modelled.
    """

    entries: np.ndarray
    values: np.ndarray = field(repr=False)
    mixed: np.ndarray = field(repr=False)
    fill: Fill = field(repr=False)
    round: Round = field(repr=False)

    @property
    def truth(self) -> np.ndarray:
        """The values of the entries it hid."""
        return np.asarray(self.values.reshape(-1)[self.entries])

    @property
    def estimate(self) -> np.ndarray:
        """What the round said of the entries it hid."""
        return np.asarray(self.mixed.reshape(-1)[self.entries])


@dataclass(frozen=True)
class Run:
    """All rounds of a plan and the fill that the estimate of the missing entries comes from."""

    rounds: tuple[Hidden, ...]
    final: Fill = field(repr=False)
    prepared: Prepared = field(repr=False)
    choices: tuple[Choice, ...] = ()

    @property
    def entries(self) -> np.ndarray:
        return np.concatenate([h.entries for h in self.rounds])

    @property
    def truth(self) -> np.ndarray:
        return np.concatenate([h.truth for h in self.rounds]).astype(np.float64)

    @property
    def estimate(self) -> np.ndarray:
        return np.concatenate([h.estimate for h in self.rounds]).astype(np.float64)


def run_rounds(task: Task, rounds: Sequence[Round], changed: ObservedTensor, change: FittedTransform | None) -> Run:
    """Complete each round; learn from the hidden entries how to mix members; then fill from everything observed.

    Settings (ranks, scales, covariances) are chosen once, from everything observed. changed: what was observed in the
    variable that is modelled; change: its map, learned from everything observed. A round learns a map of its own from
    its training entries: a climatology that contains the hidden entries knows a part of their errors.
    """
    values = changed.values
    of_round = [values if change is None else _seen(task, change, one.train) for one in rounds]
    steps = len(rounds) + 2
    task.tell("completion", 0.0)
    prepared = task.completion.prepare(values, changed.mask, changed.axes, task.seed)
    first = prepared.fill(of_round[0], rounds[0].train)
    # Every round starts anew: a start from another round would remember the entries now hidden.
    alone = None if first.members else 1  # a user's own function may not be safe to run twice at once
    todo = list(zip(of_round, rounds))[1:]
    others = in_order(lambda pair: prepared.fill(pair[0], pair[1].train), todo, alone, pool="rounds")
    done: list[Hidden] = []
    for number, (seen, one, fill) in enumerate(zip(of_round, rounds, chain([first], others))):
        task.tell("completion", (number + 1) / steps)
        entries = _scored(one, POOLED // len(rounds), [task.seed, number])
        done.append(Hidden(entries, seen, fill.estimate, fill, one))
    if done[0].fill.members:
        prepared, done = _mix(cast(PreparedMix, prepared), done, changed.shape, task.seed)
    final = prepared.fill(values, changed.mask)
    task.tell("completion", 1.0)
    return Run(tuple(done), final, prepared, tuple(prepared.choices))


def _seen(task: Task, whole: FittedTransform, train: np.ndarray) -> np.ndarray:
    """The values in the variable that a round learns from its training entries.

    Where these do not differ, no scale can be learned from them: that of `whole`, the map of all entries, is taken, or
    the errors of the round would be counted in another unit than those of the others.
    """
    changed, own = task.modelled(train)
    values, observed = changed.values, task.observed
    if own is None or not train.any() or np.ptp(values[train]) > 0.0:
        return values
    ends = [np.full(values.shape, end(observed.values[observed.mask]), np.float64) for end in (np.min, np.max)]
    wanted, found = (one.forward(ends[1]) - one.forward(ends[0]) for one in (whole, own))
    return np.asarray(values * np.divide(wanted, found, out=np.ones(values.shape), where=found > 0), values.dtype)


def _mix(
    prepared: PreparedMix, rounds: list[Hidden], shape: tuple[int, ...], seed: int
) -> tuple[PreparedMix, list[Hidden]]:
    """The completion with the mix learned from all hidden entries, and rounds mixed without their own blocks.

    The mix of an entry is learned from the entries of other blocks, in all rounds. An entry that helps to choose the
    mix has a smaller error than a missing entry, and the intervals would be too narrow.
    """
    entries, truth = np.concatenate([h.entries for h in rounds]), np.concatenate([h.truth for h in rounds])
    names = list(rounds[0].fill.members)
    pooled = {n: np.concatenate([h.fill.members[n].reshape(-1)[h.entries] for h in rounds]) for n in names}
    final = prepared.combine(pooled, truth)
    mixed = [np.array(final.mix(h.fill.members)) for h in rounds]
    fold, fold_of_all = (block_folds(at, shape, seed) for at in (entries, np.arange(int(np.prod(shape)))))
    for one in np.unique(fold):
        others, inside = fold != one, (fold_of_all == one).reshape(shape)
        if others.any():
            own = prepared.combine({n: estimate[others] for n, estimate in pooled.items()}, truth[others])
            for h, array in zip(rounds, mixed):
                array[inside] = own.mix({n: member[inside] for n, member in h.fill.members.items()})
    return final, [replace(h, mixed=array) for h, array in zip(rounds, mixed)]


def _scored(one: Round, most: int, seed: list[int]) -> np.ndarray:
    """The hidden entries, or a random part of them where there are many."""
    entries = np.flatnonzero(one.hidden)
    if len(entries) <= most:
        return entries
    return np.sort(np.random.default_rng(seed).choice(entries, most, replace=False))
