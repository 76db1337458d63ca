"""The rounds of pseudo-gaps: complete each round and collect the errors of its hidden entries."""

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

MAX_POOLED_ENTRIES = 96_000  # hidden entries scored over all rounds: more only slow the fit of the scale


@dataclass(frozen=True)
class Hidden:
    """The hidden entries of one round, and the fill of the round.

    entries: flat indices of the hidden entries that are scored; values: the data in the variable that the round
    modelled; mixed: the estimate of every entry, with weights of the members learned from other blocks.
    """

    entries: np.ndarray
    values: np.ndarray = field(repr=False)
    mixed: np.ndarray = field(repr=False)
    fill: Fill = field(repr=False)
    round: Round = field(repr=False)

    @property
    def truth(self) -> np.ndarray:
        """The values of the hidden entries."""
        return np.asarray(self.values.reshape(-1)[self.entries])

    @property
    def estimate(self) -> np.ndarray:
        """The estimates of the hidden entries."""
        return np.asarray(self.mixed.reshape(-1)[self.entries])


@dataclass(frozen=True)
class Run:
    """All rounds of a plan, and the final fill, which gives the estimate of the missing entries."""

    rounds: tuple[Hidden, ...]
    final: Fill = field(repr=False)
    prepared: Prepared = field(repr=False)
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


def run_rounds(task: Task, rounds: Sequence[Round], changed: ObservedTensor, change: FittedTransform | None) -> Run:
    """Complete each round, learn the weights of the members from the hidden entries, then fill from all observed ones.

    Settings (ranks, scales, covariances) are chosen once, from all observed entries. `changed` is the data in the
    modelled variable and `change` the transform, fitted to all observed entries. A round fits a transform of its own to
    its training entries: a climatology that contains the hidden entries would contain a part of their errors.
    """
    values = changed.values
    of_round = [values if change is None else _values_of_round(task, change, one.train) for one in rounds]
    steps = len(rounds) + 2
    task.tell("completion", 0.0)
    prepared = task.completion.prepare(values, changed.mask, changed.axes, task.seed)
    first = prepared.fill(of_round[0], rounds[0].train)
    # Every round has a start of its own: a start from another round would depend on the entries now hidden.
    threads = None if first.members else 1  # a function of the user may not be safe to run in two threads
    todo = list(zip(of_round, rounds))[1:]
    others = in_order(lambda pair: prepared.fill(pair[0], pair[1].train), todo, threads, pool="rounds")
    done: list[Hidden] = []
    for number, (round_values, one, fill) in enumerate(zip(of_round, rounds, chain([first], others))):
        task.tell("completion", (number + 1) / steps)
        entries = _scored(one, MAX_POOLED_ENTRIES // len(rounds), [task.seed, number])
        done.append(Hidden(entries=entries, values=round_values, mixed=fill.estimate, fill=fill, round=one))
    if done[0].fill.members:
        prepared, done = _mix(cast(PreparedMix, prepared), done, changed.shape, task.seed)
    final = prepared.fill(values, changed.mask)
    task.tell("completion", 1.0)
    return Run(tuple(done), final, prepared, tuple(prepared.choices))


def _values_of_round(task: Task, whole: FittedTransform, train: np.ndarray) -> np.ndarray:
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


def _mix(
    prepared: PreparedMix, rounds: list[Hidden], shape: tuple[int, ...], seed: int
) -> tuple[PreparedMix, list[Hidden]]:
    """The completion with member weights learned from all hidden entries, and rounds with cross-fitted weights.

    The weights for an entry of a round are learned from the entries of other blocks, in all rounds. An entry that takes
    part in the choice of the weights has a smaller error than a missing entry, and intervals would be too narrow.
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


def _scored(one: Round, limit: int, seed: list[int]) -> np.ndarray:
    """Flat indices of the hidden entries, or of `limit` random ones if there are more."""
    entries = np.flatnonzero(one.hidden)
    if len(entries) <= limit:
        return entries
    return np.sort(np.random.default_rng(seed).choice(entries, limit, replace=False))
