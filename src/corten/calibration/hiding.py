"""Hides observed entries again, the way an audit needs it: shaped like gaps, with a known chance for every
entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corten.completion.axes_kinds import axis_kinds, move_gap
from corten.data.observed import ObservedTensor
from corten.lowrank import TensorTrain
from corten.propensity import FittedPropensity

__all__ = ["KINDS", "Hiding", "draw_hidings", "draw_masks"]

KINDS = ("drawn", "moved", "random")
SHARE = 0.15
"""About this share of the observed entries is hidden: enough to measure on, few enough to stay near the real
fit.
"""
ATTEMPTS = 20
STRETCH = 4
BURN_IN, APART = 60, 15


@dataclass(frozen=True, eq=False)
class Hiding:
    """Observed entries hidden on purpose, and the chances that this way of hiding had to hide each of them.

    kind: "drawn" (under a mask drawn from the model), "moved" (under a moved copy of the real gaps) or "random".
    `log_hidden` and `log_kept` are logarithms of the chance to be hidden and to be kept, arrays of the tensor's
    shape or numbers; constants do not matter.
    """

    kind: str
    hidden: NDArray[np.bool_]
    log_hidden: NDArray[np.floating] | float = 0.0
    log_kept: NDArray[np.floating] | float = 0.0


def draw_hidings(
    observed: ObservedTensor,
    law: FittedPropensity,
    rounds: int,
    seed: int,
    kinds: Sequence[str] = KINDS,
    whole: bool = False,
) -> list[Hiding]:
    """Draw `rounds` ways to hide about a seventh of the observed entries, the kinds taking turns.

    With `whole` moved copies are not cut, so that what they hide lies as deep as what is missing; they hide more.

    A gap is cut to a window along one axis, placed at random, where it would hide more: inside it looks like the
    real gaps. A moved copy is rolled by a random number of steps along every axis, so each entry has the same
    chance to lie under it. A mask W' drawn from the model hides entry s with chance 1 - p'_s given the other
    entries of W'; dividing by it is exact on average, because P(W'_s = -1 | rest) = 1 - p'_s.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"kinds holds {kind!r}; allowed are {', '.join(map(repr, KINDS))}")
    order = [kinds[number % len(kinds)] for number in range(rounds)]
    drawn = iter(draw_masks(law, observed, order.count("drawn"), seed))
    made = []
    for number, kind in enumerate(order):
        rng = np.random.default_rng([seed, 31, number])
        if kind == "random":
            made.append(_random(observed, rng))
        elif kind == "moved":
            made.append(_moved(observed, rng, whole))
        else:
            made.append(_under(next(drawn), law, observed, rng))
    return [one for one in made if one.hidden.any() and (observed.mask & ~one.hidden).any()]


def draw_masks(law: FittedPropensity, observed: ObservedTensor, count: int, seed: int) -> NDArray[np.bool_]:
    """Masks drawn from the fitted model, apart enough to be different."""
    from corten.simulate import bernoulli, ising

    if count == 0:
        return np.empty((0, *observed.shape), bool)
    dense = law.parameter.to_dense() if isinstance(law.parameter, TensorTrain) else law.parameter
    if law.independent:
        return np.stack([bernoulli(dense, law.link, seed=seed + 7919 * (k + 1)) for k in range(count)])
    masks = ising(
        dense, law.coupling, law.link, sweeps=BURN_IN + APART * count, seed=seed, neighborhood=law.neighborhood,
        samples=count, thin=APART, burn_in=BURN_IN, domain=observed.domain, periodic=law.neighborhood.periodic,
    )  # fmt: skip
    return masks.reshape(count, *observed.shape)


def _under(
    mask: NDArray[np.bool_], law: FittedPropensity, observed: ObservedTensor, rng: np.random.Generator
) -> Hiding:
    gap = ~mask & observed.inside
    window, share = _window(gap, observed, rng)
    missing = 1.0 - law.probability(np.asarray(mask & observed.inside)).astype(np.float64)
    chance = np.clip(missing, 1e-12, 1.0)
    hidden = gap & window & observed.mask
    return Hiding("drawn", hidden, np.log(share * chance), np.log1p(-share * chance * (1 - 1e-9)))


def _moved(observed: ObservedTensor, rng: np.random.Generator, whole: bool) -> Hiding:
    kinds = axis_kinds(observed.axes, observed.shape)
    gap = np.asarray(observed.missing)
    best = np.zeros(observed.shape, bool)
    for _ in range(ATTEMPTS):
        copy = move_gap(gap, kinds, rng)
        window = True if whole else _window(copy, observed, rng)[0]
        hidden = copy & window & observed.mask
        if hidden.sum() > best.sum():
            best = hidden
        if best.sum() >= max(1, 0.25 * SHARE * min(gap.sum(), observed.n_observed)):
            break
    if not best.any():
        return _random(observed, rng)
    return Hiding("moved", best, float(np.log(best.sum() / observed.n_observed)))


def _random(observed: ObservedTensor, rng: np.random.Generator) -> Hiding:
    return Hiding("random", observed.mask & (rng.random(observed.shape) < SHARE), float(np.log(SHARE)))


def _window(gap: NDArray[np.bool_], observed: ObservedTensor, rng: np.random.Generator) -> tuple[Any, float]:
    """A random window that leaves about a seventh of the observed entries hidden, and the share of cells in it.

    Stretches of the longest axis, evenly spread and closed on themselves so that every cell is in them equally
    often, each long enough to hold a gap; or some units of an unordered axis.
    """
    wanted = int(np.count_nonzero(gap & observed.mask))
    if wanted <= SHARE * observed.n_observed:
        return True, 1.0
    axis = int(np.argmax(observed.shape))
    length = observed.shape[axis]
    count = min(length, max(1, round(SHARE * observed.n_observed / wanted * length)))
    if observed.axes[axis].kind == "unordered":
        taken = rng.permutation(length)[:count]
    else:
        pieces = max(1, count // STRETCH)
        step = np.arange(count)
        start = (step * pieces // count) * length // pieces
        first = -(-(step * pieces // count) * count // pieces)
        taken = (rng.integers(length) + start + step - first) % length
    inside = np.zeros(length, bool)
    inside[taken] = True
    share = np.count_nonzero(inside) / length
    return inside.reshape([-1 if k == axis else 1 for k in range(len(observed.shape))]), share
