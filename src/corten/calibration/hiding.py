"""Hides observed entries for an audit: in the shape of gaps, with a known probability for every entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corten.calibration.task import EngineLike
from corten.completion.axes_kinds import axis_kinds, move_gap
from corten.data.arrays import Flags, Numbers
from corten.data.observed import ObservedTensor
from corten.lowrank import TensorTrain
from corten.propensity import FittedPropensity

HIDING_KINDS = ("drawn", "moved", "random")
AUDIT_SHARE = 0.15  # of the observed entries: sufficient to measure coverage, and close to the original fit
MAX_HIDING_ATTEMPTS = 20  # moved copies tried until enough entries are hidden
MIN_STRETCH = 4  # positions along an axis, so that a stretch contains gaps
BURN_IN_SWEEPS, SWEEPS_BETWEEN_MASKS = 60, 15


@dataclass(frozen=True, eq=False)
class Hiding:
    """Observed entries that are hidden, and the probabilities of being hidden.

    kind: "drawn" (under a mask drawn from the model), "moved" (under a moved copy of the gaps) or "random".
    `log_hidden` and `log_kept` are the logarithms of the probabilities of being hidden and of being kept, arrays of the
    tensor's shape or numbers, up to an additive constant.
    """

    kind: str
    hidden: Flags
    log_hidden: Numbers | float = 0.0
    log_kept: Numbers | float = 0.0


def draw_hidings(
    observed: ObservedTensor, propensity: FittedPropensity, *, rounds: int, seed: int,
    kinds: Sequence[str] = HIDING_KINDS, whole: bool = False,
) -> list[Hiding]:  # fmt: skip
    """Draw `rounds` sets of about a seventh of the observed entries to hide, the kinds in turn.

    A gap that would hide more is cut to a window along one axis, placed at random. With `whole` moved copies are not
    cut, so that hidden entries lie as deep as missing ones; they hide more entries.

    A moved copy is rolled by a random number of steps along every axis, so each entry is covered with the same
    probability. A mask W' drawn from the model hides entry s with probability 1 - p'_s given the other entries of W';
    division by it is exact on average, because P(W'_s = -1 | rest) = 1 - p'_s.
    """
    for kind in kinds:
        if kind not in HIDING_KINDS:
            raise ValueError(f"kinds holds {kind!r}; allowed are {', '.join(map(repr, HIDING_KINDS))}")
    order = [kinds[number % len(kinds)] for number in range(rounds)]
    drawn = iter(draw_masks(propensity, observed, count=order.count("drawn"), seed=seed))
    made = []
    for number, kind in enumerate(order):
        rng = np.random.default_rng([seed, 31, number])
        if kind == "random":
            made.append(_random(observed, rng))
        elif kind == "moved":
            made.append(_moved(observed, rng, whole))
        else:
            made.append(_under(next(drawn), propensity, observed, rng))
    return [one for one in made if one.hidden.any() and (observed.mask & ~one.hidden).any()]


def draw_masks(
    propensity: FittedPropensity, observed: ObservedTensor, *, count: int, seed: int, engine: EngineLike = "auto"
) -> Flags:
    """Masks drawn from the fitted model, with sweeps between them so that they differ."""
    from corten.simulate import bernoulli, ising

    if count == 0:
        return np.empty((0, *observed.shape), bool)
    dense = propensity.parameter.to_dense() if isinstance(propensity.parameter, TensorTrain) else propensity.parameter
    if propensity.independent:
        return np.stack([bernoulli(dense, propensity.link, seed=seed + 7919 * (k + 1)) for k in range(count)])
    masks = ising(
        dense,
        propensity.coupling,
        propensity.link,
        sweeps=BURN_IN_SWEEPS + SWEEPS_BETWEEN_MASKS * count,
        seed=seed,
        neighborhood=propensity.neighborhood,
        samples=count,
        thin=SWEEPS_BETWEEN_MASKS,
        burn_in=BURN_IN_SWEEPS,
        domain=observed.domain,
        periodic=propensity.neighborhood.periodic,
        engine=engine,
    )
    return masks.reshape(count, *observed.shape)


def _under(mask: Flags, propensity: FittedPropensity, observed: ObservedTensor, rng: np.random.Generator) -> Hiding:
    """The entries under a mask drawn from the model."""
    gap = ~mask & observed.inside
    window, share = _window(gap, observed, rng)
    missing = 1.0 - propensity.probability(np.asarray(mask & observed.inside)).astype(np.float64)
    chance = np.clip(missing, 1e-12, 1.0)
    hidden = gap & window & observed.mask
    return Hiding("drawn", hidden, np.log(share * chance), np.log1p(-share * chance * (1 - 1e-9)))


def _moved(observed: ObservedTensor, rng: np.random.Generator, whole: bool) -> Hiding:
    """The entries under a moved copy of the gaps, or random ones if no copy covers any."""
    kinds = axis_kinds(observed.axes, observed.shape)
    gap = np.asarray(observed.missing)
    best = np.zeros(observed.shape, bool)
    for _ in range(MAX_HIDING_ATTEMPTS):
        copy = move_gap(gap, kinds, rng=rng)
        window = True if whole else _window(copy, observed, rng)[0]
        hidden = copy & window & observed.mask
        if hidden.sum() > best.sum():
            best = hidden
        if best.sum() >= max(1, 0.25 * AUDIT_SHARE * min(gap.sum(), observed.n_observed)):
            break
    if not best.any():
        return _random(observed, rng)
    return Hiding("moved", best, float(np.log(best.sum() / observed.n_observed)))


def _random(observed: ObservedTensor, rng: np.random.Generator) -> Hiding:
    """Random entries."""
    return Hiding("random", observed.mask & (rng.random(observed.shape) < AUDIT_SHARE), float(np.log(AUDIT_SHARE)))


def _window(gap: Flags, observed: ObservedTensor, rng: np.random.Generator) -> tuple[Flags | bool, float]:
    """A random window in which a gap hides about a seventh of the observed entries, and the share of entries in it.

    It consists of stretches of the longest axis, evenly spread and periodic, so that every entry is in the window with
    the same probability, each long enough to contain a gap; or of some positions of an unordered axis.
    """
    wanted = int(np.count_nonzero(gap & observed.mask))
    if wanted <= AUDIT_SHARE * observed.n_observed:
        return True, 1.0
    axis = int(np.argmax(observed.shape))
    length = observed.shape[axis]
    count = min(length, max(1, round(AUDIT_SHARE * observed.n_observed / wanted * length)))
    if observed.axes[axis].kind == "unordered":
        taken = rng.permutation(length)[:count]
    else:
        pieces = max(1, count // MIN_STRETCH)
        step = np.arange(count)
        start = (step * pieces // count) * length // pieces
        first = -(-(step * pieces // count) * count // pieces)
        taken = (rng.integers(length) + start + step - first) % length
    inside = np.zeros(length, bool)
    inside[taken] = True
    share = np.count_nonzero(inside) / length
    return inside.reshape([-1 if k == axis else 1 for k in range(len(observed.shape))]), share
