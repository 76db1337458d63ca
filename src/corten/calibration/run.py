"""Runs a plan: completes what each round leaves, and gathers how wrong it was on what the round hid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import cast

import numpy as np

from corten.calibration.rounds import Plan, Round
from corten.completion.protocol import Completion, Fill, Prepared, PreparedMix
from corten.conformal.local_scale import block_folds
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
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


def run_rounds(
    plan: Plan,
    completion: Completion,
    observed: ObservedTensor,
    seed: int,
    tell: Callable[[str, float], None] = lambda stage, share: None,
    seen_from: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Run:
    """Complete each round; learn from the hidden entries how to mix members; then make the final fill.

    Settings (ranks, scales, covariances) are chosen once: from the training entries of a single round or, where
    the final estimate uses everything observed, from everything observed. seen_from: the values in the variable that a
    round models, which it learns from its training entries (a climatology that holds the hidden entries knows a part
    of their errors); None: they are those of `observed` in every round.
    """
    values, axes = observed.values, observed.axes
    of_round = [values if seen_from is None else seen_from(one.train) for one in plan.rounds]
    steps = len(plan.rounds) + (2 if plan.refit else 1)
    tell("completion", 0.0)
    prepared = completion.prepare(values, observed.mask if plan.refit else plan.rounds[0].train, axes, seed)
    first = prepared.fill(of_round[0], plan.rounds[0].train)
    # Every round starts cold: a start from another round would remember the entries now hidden.
    alone = None if first.members else 1  # a user's own function may not bear to be run twice at once
    todo = list(zip(of_round, plan.rounds))[1:]
    others = in_order(lambda pair: prepared.fill(pair[0], pair[1].train), todo, alone, pool="rounds")
    rounds: list[Hidden] = []
    for number, (seen, one, fill) in enumerate(zip(of_round, plan.rounds, chain([first], others))):
        tell("completion", (number + 1) / steps)
        entries = _scored(one, POOLED // len(plan.rounds) if plan.refit else None, [seed, number])
        rounds.append(Hidden(entries, seen, fill.estimate, fill, one))
    if plan.refit and rounds[0].fill.members:
        prepared, rounds = _mix(cast(PreparedMix, prepared), rounds, observed.shape, seed)
    final = prepared.fill(values, observed.mask) if plan.refit else rounds[0].fill
    tell("completion", 1.0)
    return Run(tuple(rounds), final, prepared, tuple(prepared.choices))


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


def _scored(one: Round, most: int | None, seed: list[int]) -> np.ndarray:
    """The hidden entries, or a random part of them where rounds are pooled and there are many."""
    entries = np.flatnonzero(one.hidden)
    if most is None or len(entries) <= most:
        return entries
    return np.sort(np.random.default_rng(seed).choice(entries, most, replace=False))
