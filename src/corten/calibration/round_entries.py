"""What is kept of a round of pseudo-gaps: arrays over its scored entries, never over the tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from corten.calibration.task import Round
from corten.completion.neighbours import NeighbourFeatures
from corten.completion.protocol import Fill, PreparedMix
from corten.conformal.depth import depth
from corten.conformal.local_scale import COARSE_BLOCKS_PER_AXIS, EntryFeatures, block_folds, block_of, exceeds

MAX_POOLED_ENTRIES = 96_000  # hidden entries scored over all rounds: more only slow the fit of the scale


@dataclass(frozen=True)
class Hidden:
    """The scored entries of one round.

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


def scored(one: Round, limit: int, seed: list[int]) -> np.ndarray:
    """Flat indices of the hidden entries, or of `limit` random ones if there are more."""
    entries = np.flatnonzero(one.hidden)
    if len(entries) <= limit:
        return entries
    return np.sort(np.random.default_rng(seed).choice(entries, limit, replace=False))


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


def pooled(rounds: Sequence[Hidden], name: str) -> np.ndarray:
    """One array of the hidden entries of all rounds."""
    return np.concatenate([getattr(one, name) for one in rounds])


def with_estimates(rounds: Sequence[Hidden], estimate: np.ndarray) -> list[Hidden]:
    """The rounds with other estimates of their entries, given for all rounds."""
    parts = np.split(estimate, np.cumsum([len(one.entries) for one in rounds])[:-1])
    return [replace(one, estimate=part) for one, part in zip(rounds, parts)]


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
    return final, with_estimates(rounds, mixed)
