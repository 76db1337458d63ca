"""The choice of a covariance: groups of axes by held-out error, parameters by maximum likelihood on small samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from corten.completion.covariance import Component, Covariance, Groups, Season
from corten.completion.covariance_likelihood import Likelihood, Sample, sample_entries
from corten.completion.held_out import HeldOut
from corten.completion.positions import Grid, grids_of
from corten.completion.unordered import PositionCorrelation
from corten.engine.threads import in_order, one_library_thread

SAMPLE_SIZE = 150
"""Entries in a sample. One likelihood costs the cube of it, so that many small samples are better for the same time."""
COMPARED_SAMPLES, SAMPLES = 8, 24
"""Samples on which groupings are compared, and on which the parameters are fitted in the end."""
COMPARED_ITERATIONS, FIT_ITERATIONS = 15, 40
"""Iterations of the fits that are compared, and of those to all samples."""
SPARE_ERRORS = (0.03, 0.05)
"""Groupings, and numbers of components, whose held-out error is larger than the lowest by at most this share are
compared by likelihood."""
COMPARED_PARTS, FIT_PARTS = 2, 4
"""Parts with hidden entries on which groupings are compared, and on which numbers of components are; those differ
less."""
OWN_PARTS, OWN_SMOOTHNESS = ((1 / 4, 0.1), (16.0, 0.05)), 0.5
"""Variation that every position of an unordered axis has for itself: lengths as multiples of those of the first
component, and shares of the variance; and its Matern parameter."""
MIN_GAIN_OF_OWN = 0.01
"""Of the held-out error, for it to be kept."""


def groupings(axes: Sequence[int]) -> Iterator[Groups]:
    """All ways to put axes into groups, one group of all first.

    Examples
    --------
    >>> list(groupings([0, 1]))
    [((0, 1),), ((0,), (1,))]
    """
    if not axes:
        yield ()
        return
    for rest in groupings(axes[:-1]):
        for i, group in enumerate(rest):
            yield (*rest[:i], (*group, axes[-1]), *rest[i + 1 :])
        yield (*rest, (axes[-1],))


def _candidates(ordered: Sequence[int]) -> list[Groups]:
    """Groupings that are compared: all of them for up to three axes, else neighbouring axes joined."""
    if len(ordered) <= 3:
        return list(groupings(ordered))
    joined = [((a, b), *((k,) for k in ordered if k not in (a, b))) for a, b in pairwise(ordered)]
    return [(tuple(ordered),), tuple((k,) for k in ordered), *joined]


@dataclass(frozen=True)
class _Fit:
    """A fitted model: its log-likelihood less a penalty for its parameters, its parameters, and its record."""

    score: float
    theta: np.ndarray
    model: Likelihood
    record: dict[str, object]

    @property
    def covariance(self) -> Covariance:
        return self.model.covariance(self.theta)


def fit_covariance(
    values: np.ndarray,
    mask: np.ndarray,
    *,
    kinds: Sequence[str],
    units: dict[int, PositionCorrelation],
    seed: int,
    grids: Sequence[Grid] = (),
    seasons: Sequence[Season] = (),
    held_out: HeldOut | None = None,
) -> tuple[Covariance, tuple[dict[str, object], ...]]:
    """The covariance of standardised `values` where `mask` is True, and what was compared.

    Groupings are compared with one component on a few samples: by the errors of `held_out` entries, and by likelihood
    where those are alike or there are none. Then second components are fitted from several starts. The best of each
    kind is fitted to more samples. The second component is kept where it gains more than half the logarithm of the
    number of entries for each of its parameters and the held-out error is not much larger. A component for each of the
    `seasons` is kept by likelihood, and what each position of the unordered axes has for itself by held-out error.
    """
    grids = grids or grids_of(None, mask.shape)
    shape = tuple(grid.size for grid in grids)
    rng = np.random.default_rng((seed, 0xC0F))
    count = int(np.clip(mask.sum() // SAMPLE_SIZE, 1, SAMPLES))
    drawn = [sample_entries(mask, kinds, SAMPLE_SIZE, rng) for _ in range(count)]
    samples = [Sample.of(values, entries, kinds=kinds, units=units, grids=grids) for entries in drawn]
    tried: list[dict[str, object]] = []

    def attempts(
        models: Sequence[Likelihood], iterations: int, guesses: Sequence[Sequence[np.ndarray | None]]
    ) -> list[_Fit]:
        """The most likely fit of each model from its guesses."""
        todo = [(model, guess) for model, own in zip(models, guesses) for guess in own]
        with one_library_thread:  # threads of a library that wait for each other cost a hundredfold on a busy machine
            fits = list(in_order(lambda one: one[0].fit(iterations, one[1]), todo))
        found = []
        for model in models:
            own = [fit for (other, _), fit in zip(todo, fits) if other is model]
            theta, value = max(own, key=lambda fit: fit[1])
            score = value - 0.5 * model.count() * float(np.log(max(model.entries, 2)))
            tried.append(
                {"components": [list(map(list, groups)) for groups in model.components], "entries": model.entries,
                 "seasons": [season.name for season in model.seasons], "log-likelihood": round(value, 1),
                 "penalised": round(score, 1)}
            )  # fmt: skip
            found.append(_Fit(score, theta, model, tried[-1]))
        return found

    def likeliest(found: Sequence[_Fit]) -> _Fit:
        return max(found, key=lambda one: one.score)

    def acceptable(found: Sequence[_Fit], spare: float, parts: int) -> list[_Fit]:
        """Those whose held-out error is the lowest or not much larger."""
        if held_out is None or len(found) < 2:
            return list(found)
        errors = held_out.errors([one.covariance for one in found], parts)
        for one, own in zip(found, errors):
            one.record["held-out error"] = own
        return [one for one, own in zip(found, errors) if own <= (1 + spare) * min(errors)]

    ordered = [k for k, n in enumerate(mask.shape) if n > 1 and kinds[k] != "unordered"]
    apart = tuple((k,) for k in ordered)
    compared = samples[:COMPARED_SAMPLES]
    single = [Likelihood(compared, kinds, shape=shape, components=[groups]) for groups in _candidates(ordered)]
    fits = attempts(single, COMPARED_ITERATIONS, [(None,)] * len(single))
    one = likeliest(acceptable(fits, SPARE_ERRORS[0], COMPARED_PARTS))
    first = one.model.components[0]
    double = [
        Likelihood(compared, kinds, shape=shape, components=[first, other]) for other in dict.fromkeys((first, apart))
    ]
    starts = [tuple(model.starts(one.model, one.theta)) for model in double]
    two = likeliest(attempts(double, COMPARED_ITERATIONS, starts))
    last = [Likelihood(samples, kinds, shape=shape, components=found.model.components) for found in (one, two)]
    fits = attempts(last, FIT_ITERATIONS, [(one.theta,), (two.theta,)])
    best = likeliest(acceptable(fits, SPARE_ERRORS[1], FIT_PARTS))
    for season in seasons:
        known = (*best.model.seasons, season)
        with_cycle = [
            Sample.of(values, entries, kinds=kinds, units=units, grids=grids, seasons=known) for entries in drawn
        ]
        components = [*best.model.components, _cycle(best.model.components[0], season, len(shape) + len(known) - 1)]
        few, every = (
            Likelihood(s, kinds, shape=shape, components=components, seasons=known)
            for s in (with_cycle[:COMPARED_SAMPLES], with_cycle)
        )
        guess = attempts([few], COMPARED_ITERATIONS, [tuple(few.season_starts(best.model, best.theta))])[0].theta
        best = likeliest([best, *attempts([every], FIT_ITERATIONS, [(guess,)])])
    found = best.covariance
    if held_out is not None and units:
        found = _with_own_parts(found, held_out, tried)
    return found, tuple(tried)


def _with_own_parts(found: Covariance, held_out: HeldOut, tried: list[dict[str, object]]) -> Covariance:
    """The covariance with what every position of the unordered axes has for itself, where held-out errors are smaller.

    A station has its own variation, shorter than what all stations share, and a level that changes slowly. Likelihoods
    of small samples hardly show them: of one station such a sample has few entries.
    """
    first, total = found.components[0], sum(one.variance for one in found.components)
    error = None
    for factor, share in OWN_PARTS:
        part = Component(
            variance=share * total,
            groups=first.groups,
            smoothness=(OWN_SMOOTHNESS,) * len(first.groups),
            lengths=tuple(factor * length for length in first.lengths),
            own=tuple(one if np.isnan(one) else 1.0 for one in first.own),
        )
        richer = replace(found, components=(*found.components, part))
        error, own = held_out.errors([found, richer]) if error is None else (error, *held_out.errors([richer]))
        tried.append({"variation of each position, lengths times": factor, "held-out error": own, "without": error})
        if own <= (1 - MIN_GAIN_OF_OWN) * error:
            found, error = richer, own
    return found


def _cycle(groups: Groups, season: Season, circle: int) -> Groups:
    """Groups with the axis of a season alone, and the circle of the season beside it."""
    others = (tuple(k for k in group if k != season.axis) for group in groups)
    return (*(group for group in others if group), (season.axis,), (circle,))
