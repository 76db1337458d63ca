"""Gaussian process completion: the conditional mean of the field, with a covariance learned from the data.

The mean is solved in the spectral basis of the axes (`spectral_solver`). On the host the iterations start from a
solution on a grid with half the positions along every long axis: the errors that converge slowly are smooth, and there
an iteration costs an eighth in three dimensions. From few observed entries the mean is computed without iterations
(`few_observed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TypeAlias

import numpy as np

from corten.completion.axes_kinds import Basis, axis_kinds, basis_of, standardise
from corten.completion.covariance import Covariance, Season, circle_of
from corten.completion.covariance_choice import fit_covariance
from corten.completion.few_observed import has_few_observed, mean_of_few
from corten.completion.held_out import HeldOut, Part
from corten.completion.positions import Grid, grids_in_words, grids_of, length_in_words, moved_grids
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.completion.spectral_solver import condition
from corten.completion.unordered import PositionCorrelation, position_correlations
from corten.data.axes import Axis, is_distance
from corten.data.choices import Choice
from corten.engine.arrays import Array, Arrays, HostArrays
from corten.engine.threads import in_order

Units: TypeAlias = dict[int, PositionCorrelation]
"""The correlation of the positions of each unordered axis."""
Move: TypeAlias = "Callable[[Array], Array] | Array"
CYCLES = {"daily": 1.0, "weekly": 7.0, "yearly": 365.2425}
"""Periods of the cycles that are looked for along axes of dates, in days."""
COARSE_ITERATIONS = 240
"""Largest number of iterations on the grid with half the positions. On three of four fields 60 leave the fill twice as
far from the exact mean, for no less time; on the fourth there is no difference."""
MIN_HALVED_LENGTH, MIN_HALVED_ENTRIES = 16, 20_000
"""Axes and tensors that are smaller are not halved."""
NOISE_FACTORS, MIN_NOISE_GAIN = (1, 4, 16), 0.02
"""Multiples of the most likely noise that are compared by held-out error, and the gain that a larger one must have."""
FILLS_AT_ONCE = 16
"""Covariances are compared in batches of a multiple of this on a device."""
DIVERGED = 10.0
"""An estimate so many times larger than the data is solved again in double precision: a smooth field with little noise
has directions inside gaps that are below the rounding of single precision."""


@dataclass(frozen=True)
class SpectralPrior:
    """A Gaussian prior that is diagonal in the basis of the axes: eigenvalues there, and the noise."""

    bases: tuple[Basis, ...]
    spectrum: np.ndarray
    noise: np.floating

    @staticmethod
    def of(
        covariance: Covariance,
        kinds: Sequence[str],
        *,
        shape: tuple[int, ...],
        correlations: dict[int, PositionCorrelation],
        grids: Sequence[Grid] = (),
        on_host: bool = False,
    ) -> SpectralPrior:
        """The prior of a fitted covariance on a grid; unordered axes use the eigenvectors of their correlation."""
        grids = list(grids or grids_of(None, shape))
        kinds = list(kinds)
        for k in {season.axis for season in covariance.seasons}:
            # On a circle of twice the length a cycle keeps its phase; ends that reflect would reverse it.
            grid, kinds[k] = grids[k], "periodic"
            positions = np.arange(float(grid.size)) if grid.positions is None else grid.positions
            points = circle_of([season for season in covariance.seasons if season.axis == k], grid.size)
            grids[k] = replace(grid, size=points, positions=positions)
        # Entries that lie close together determine more than the rounding of single precision lets through.
        number: type[np.floating] = np.float32 if all(grid.positions is None for grid in grids) else np.float64
        bases: list[Basis] = []
        along_axes: list[np.ndarray | None] = []
        for k, (kind, n) in enumerate(zip(kinds, shape)):
            if n == 1:
                along_axes.append(None)
                continue
            if kind == "unordered":
                basis, values = correlations[k].spectrum(k, number)
            else:
                at, size = grids[k].positions, grids[k].size
                basis = basis_of(kind, k, length=size, dtype=number, positions=at, extended=True, on_host=on_host)
                values = basis.frequencies
            bases.append(basis)
            along_axes.append(values)
        # Coefficients far below the noise never move: a floor keeps their inverse within single precision.
        total = np.maximum(covariance.spectrum(along_axes), 1e-5 * covariance.noise)
        return SpectralPrior(tuple(bases), total.astype(number), number(covariance.noise))

    def in_double(self) -> SpectralPrior:
        """The same prior in double precision."""
        bases = []
        for basis in self.bases:
            rows = None if basis.rows is None else basis.rows.astype(np.float64)
            folded = None if basis.folded is None else (basis.folded[0].astype(float), basis.folded[1].astype(float))
            bases.append(replace(basis, rows=rows, folded=folded))
        return SpectralPrior(tuple(bases), self.spectrum.astype(np.float64), np.float64(self.noise))


def conditioned(
    arrays: Arrays, priors: Sequence[SpectralPrior], *, values: Array, kept: Array, start: Array, iterations: int
) -> Array:
    """`condition`, with rounds that diverge in single precision solved again in double precision."""
    means = condition(arrays, priors, values=values, kept=kept, start=start, iterations=iterations)
    xp, every = arrays.xp, tuple(range(1, values.ndim))
    largest = xp.maximum(xp.abs(values).max(axis=every), xp.abs(start).max(axis=every))
    diverged = np.flatnonzero(arrays.get(~(xp.abs(means).max(axis=every) <= DIVERGED * largest)))
    if not len(diverged):
        return means
    solved = list(means)
    for b in diverged.tolist():
        double = [priors[b if len(priors) > 1 else 0].in_double()]
        with arrays.running():
            given = {"values": values, "kept": kept, "start": start}
            own = {name: one[b : b + 1].astype(np.float64) for name, one in given.items()}
            solved[b] = condition(arrays, double, **own, iterations=iterations)[0].astype(means.dtype)
    return xp.stack(solved)


@dataclass(frozen=True)
class PreparedProcess:
    """The process with its covariance fitted."""

    kinds: tuple[str, ...]
    covariance: Covariance
    pyramid: PreparedSmooth = field(repr=False)
    iterations: int
    choices: tuple[Choice, ...] = ()
    grids: tuple[Grid, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        return self.fill_from(values, mask, self.pyramid.fill(values, mask).estimate)

    def on_axes(self, axes: Sequence[Axis]) -> PreparedProcess:
        """The same covariance, in the unit of the coordinates, on other axes."""
        grids, ratios = moved_grids(self.grids, axes)
        return replace(
            self, covariance=self.covariance.rescaled(ratios), grids=grids, pyramid=self.pyramid.on_axes(axes)
        )

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, with the iterations started from another estimate made of the same entries."""
        data = standardise(values, mask, self.kinds)
        first = (start - data.centre) / data.scale
        # The correlation of positions is estimated from these entries: hidden ones must not affect it.
        units = [position_correlations(data.values, mask, self.kinds)]
        priors = self.priors(HostArrays(), mask.shape, units)
        number = priors[0].spectrum.dtype
        known, kept, first = (one.astype(number)[None] for one in (data.values, mask, first))
        if has_few_observed(priors[0], kept[0]):
            return Fill(data.undo(mean_of_few(priors[0], known[0], kept[0]).astype(np.float64)))
        first = self.coarse_start(HostArrays(), units, known=known, kept=kept, start=first)
        means = conditioned(
            HostArrays(), priors, values=known, kept=kept, start=first, iterations=self.iterations
        )
        return Fill(data.undo(np.asarray(means[0], np.float64)))

    def priors(self, arrays: Arrays, shape: tuple[int, ...], units: Sequence[Units]) -> list[SpectralPrior]:
        """The prior of each round, or one for all, given the correlations of its positions."""
        on_host = isinstance(arrays, HostArrays)
        return [
            SpectralPrior.of(
                self.covariance, self.kinds, shape=shape, correlations=own, grids=self.grids, on_host=on_host
            )
            for own in units
        ]

    def coarse_start(
        self, arrays: Arrays, units: Sequence[Units], *, known: Array, kept: Array, start: Array
    ) -> Array:
        """The start with its smooth part solved on a grid with half the positions along every long ordered axis."""
        shape = kept.shape[1:]
        halved, coarser = self.halved(shape)
        if not halved:
            return start
        pairs, between = zip(*(_between_grids(arrays, k, shape[k]) for k in halved))
        along = {"axes": tuple(halved)}
        first, weight, values = arrays.compiled(_halve, **along)(pairs, known, kept, start)
        priors = coarser.priors(arrays, weight.shape[1:], units)
        solved = condition(arrays, priors, values=values, kept=weight, start=first, iterations=COARSE_ITERATIONS)
        return arrays.compiled(_add_between, **along)(between, start, solved - first)

    def halved(self, shape: tuple[int, ...]) -> tuple[list[int], PreparedProcess]:
        """The axes that are halved for a start, none for small tensors, and the process on that grid."""
        grids = list(self.grids or grids_of(None, shape))
        cycled = {season.axis for season in self.covariance.seasons}
        even = [k for k, grid in enumerate(grids) if grid.positions is None and k not in cycled]
        axes = [k for k in even if self.kinds[k] != "unordered" and shape[k] >= MIN_HALVED_LENGTH]
        if prod(shape) < MIN_HALVED_ENTRIES:
            axes = []
        components = tuple(
            replace(one, lengths=tuple(length / 2 if k in axes else length for k, length in enumerate(one.lengths)))
            for one in self.covariance.components
        )
        covariance = replace(self.covariance, components=components)
        coarse = tuple(Grid((shape[k] + 1) // 2) if k in axes else grid for k, grid in enumerate(grids))
        return axes, replace(self, covariance=covariance, grids=coarse)


def _between_grids(arrays: Arrays, axis: int, length: int) -> tuple[Move, Move]:
    """The way to a grid with half the positions along an axis and back: functions on the host, matrices on a device."""
    if isinstance(arrays, HostArrays):
        return partial(_pair_means, axis=axis + 1), partial(_between_pairs, axis=axis + 1, length=length)
    fine, coarse = (np.eye(size, dtype=np.float32) for size in (length, (length + 1) // 2))
    return arrays.put(_pair_means(fine, 0)), arrays.put(_between_pairs(coarse, 0, length))


def _moved(arrays: Arrays, moves: Sequence[Move], axes: tuple[int, ...], array: Array) -> Array:
    for k, move in zip(axes, moves):
        array = move(array) if callable(move) else arrays.along(move, array, k + 1)
    return array


def _halve(
    arrays: Arrays, pairs: tuple[Move, ...], known: Array, kept: Array, start: Array, *, axes: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """The start, the weights and the values on the coarse grid.

    The values are means of what the start leaves: a cell observed on one side only would otherwise be off its centre.
    """
    left, weight, first = (_moved(arrays, pairs, axes, array) for array in (kept * (known - start), kept, start))
    return first, weight, first + arrays.xp.where(weight > 0, left / arrays.xp.where(weight > 0, weight, 1), 0)


def _add_between(
    arrays: Arrays, between: tuple[Move, ...], start: Array, change: Array, *, axes: tuple[int, ...]
) -> Array:
    """The start with a change on the coarse grid interpolated and added."""
    return start + _moved(arrays, between, axes, change)


def _pair_means(array: np.ndarray, axis: int) -> np.ndarray:
    """Means of neighbouring pairs along an axis; the last position of an odd length stays alone."""
    count = array.shape[axis]
    pairs = np.add.reduceat(array, np.arange(0, count, 2), axis=axis)
    size = np.full(pairs.shape[axis], 2, array.dtype)
    size[-1] -= count % 2
    return pairs / size.reshape([-1 if k == axis else 1 for k in range(array.ndim)])


def _between_pairs(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    """The array at `length` positions along an axis, interpolated between the centres of pairs."""
    place = np.clip((np.arange(length) - 0.5) / 2, 0, array.shape[axis] - 1)
    below = np.minimum(place.astype(np.intp), array.shape[axis] - 2)
    share = (place - below).astype(array.dtype).reshape([-1 if k == axis else 1 for k in range(array.ndim)])
    low, high = (np.take(array, at, axis=axis) for at in (below, below + 1))
    return np.asarray(low + share * (high - low))


@dataclass(frozen=True)
class GaussianProcessCompletion:
    """Fill a field by the conditional mean of a Gaussian process whose covariance is learned from the data.

    Parameters
    ----------
    iterations : int, default 150
        Largest number of iterations of conjugate gradients in a fill. They stop earlier when the estimate at the
        missing entries no longer changes.
    """

    iterations: int = 150

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedProcess:
        return self.prepare_on(None, values, mask=mask, axes=axes, seed=seed)

    def prepare_on(
        self, arrays: Arrays | None, values: np.ndarray, *, mask: np.ndarray, axes: Sequence[Axis], seed: int
    ) -> PreparedProcess:
        """`prepare`, with covariances compared on a device if `arrays` are given."""
        kinds = axis_kinds(axes, mask.shape)
        data = standardise(values, mask, kinds)
        units = position_correlations(data.values, mask, kinds)
        grids, choices = grids_of(axes, mask.shape), []
        seasons = seasons_of(kinds, grids)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)

        def fills(todo: Sequence[tuple[Covariance, Part]]) -> list[np.ndarray]:
            """Parts filled, each with its covariance."""
            work = [
                (PreparedProcess(kinds, one, pyramid, self.iterations, grids=part.grids), part) for one, part in todo
            ]
            even = all(grid.positions is None for _, part in work for grid in part.grids)
            if arrays is not None and even and not any(one.seasons for one, _ in todo):
                return _fills_on(arrays, work)

            def filled(one: tuple[PreparedProcess, Part]) -> np.ndarray:
                process, part = one
                return process.fill_from(part.values, part.kept, part.start).estimate

            return list(in_order(filled, work))

        def fitted(on: tuple[Grid, ...]) -> tuple[HeldOut | None, Covariance, tuple[dict[str, object], ...]]:
            held_out = HeldOut.of(values, mask, kinds=kinds, grids=on, pyramid=pyramid, seed=seed, fills=fills)
            return held_out, *fit_covariance(
                data.values, mask, kinds=kinds, units=units, seed=seed, grids=on, seasons=seasons, held_out=held_out
            )

        held_out, covariance, tried = fitted(grids)
        doubtful = [k for k, grid in enumerate(grids) if grid.positions is not None and not is_distance(axes[k])]
        if doubtful:
            equal = tuple(Grid(mask.shape[k]) if k in doubtful else grid for k, grid in enumerate(grids))
            other_held_out, other, also_tried = fitted(equal)
            most = max(int(str(one.get("entries", 0))) for one in tried)
            with_steps, without = (
                max(float(str(one["penalised"])) for one in fits if one.get("entries") == most)
                for fits in (tried, also_tried)
            )
            if without > with_steps:
                grids, held_out, covariance, tried = equal, other_held_out, other, also_tried
                choices.append(_equal_steps([axes[k].name for k in doubtful], with_steps, without))
        words = grids_in_words(axes, grids)
        if words:
            choices.append(Choice("grid of unequal steps", words, "positions are taken from the coordinates"))
        choice = Choice(
            "covariance of the process",
            describe(covariance, axes, grids),
            "groups by the error of held-out entries, parameters by maximum likelihood on samples",
            tried,
        )
        prepared = PreparedProcess(kinds, covariance, pyramid, self.iterations, choices=(choice, *choices), grids=grids)
        return prepared if held_out is None else _with_tested_noise(prepared, held_out)


def _with_tested_noise(prepared: PreparedProcess, held_out: HeldOut) -> PreparedProcess:
    """The process with more noise where that clearly lowers the error of held-out entries.

    Errors with heavy tails, and the differences of neighbours that no component describes, are noise to an estimate in
    a gap; the likelihood of pairs that lie close together contains less of it.
    """
    noises = [min(factor * prepared.covariance.noise, 0.5) for factor in NOISE_FACTORS]
    errors = held_out.errors([replace(prepared.covariance, noise=noise) for noise in noises])
    best = int(np.argmin(errors))
    if errors[best] > (1 - MIN_NOISE_GAIN) * errors[0]:
        return prepared
    factor, noise = NOISE_FACTORS[best], noises[best]
    choice = Choice(
        "noise of the process",
        f"{noise:.2g}",
        f"{factor} times the most likely noise: lowest error of {held_out.count} entries under copies of the gaps",
        tuple({"factor": one, "error": error} for one, error in zip(NOISE_FACTORS, errors)),
        code="noise_by_held_out_error",
        values={"noise": noise, "factor": factor},
    )
    return replace(prepared, covariance=replace(prepared.covariance, noise=noise), choices=(*prepared.choices, choice))


def _fills_on(arrays: Arrays, work: Sequence[tuple[PreparedProcess, Part]]) -> list[np.ndarray]:
    """Parts of one shape filled at once."""
    kinds, count = work[0][0].kinds, len(work)
    data = {id(part): standardise(part.values, part.kept, kinds) for _, part in work}
    units = {id(part): position_correlations(data[id(part)].values, part.kept, kinds) for _, part in work}
    priors = [
        SpectralPrior.of(one.covariance, kinds, shape=part.kept.shape, correlations=units[id(part)], grids=part.grids)
        for one, part in work
    ]
    # Batches of few sizes, filled up with the last one: each size has programs of its own.
    spare = -count % FILLS_AT_ONCE
    priors += priors[-1:] * spare
    begun = [(data[id(part)], part) for _, part in [*work, *[work[-1]] * spare]]
    with arrays.running():
        known, kept, first = (
            arrays.put(np.stack([np.asarray(one, np.float32) for one in each]))
            for each in zip(*((d.values, part.kept, (part.start - d.centre) / d.scale) for d, part in begun))
        )
        iterations = work[0][0].iterations
        means = arrays.get(conditioned(arrays, priors, values=known, kept=kept, start=first, iterations=iterations))
    return [d.undo(mean.astype(np.float64)) for (d, _), mean in zip(begun[:count], means)]


def seasons_of(kinds: Sequence[str], grids: Sequence[Grid]) -> tuple[Season, ...]:
    """The cycles that may be found along axes of dates: with three periods or more and four steps in a period."""
    found = []
    for k, (kind, grid) in enumerate(zip(kinds, grids)):
        for name, days in CYCLES.items():
            period = days * 86400 / grid.step
            if grid.unit == "s" and kind == "ordered" and 4 <= period <= grid.size / 3:
                found.append(Season(k, name, period))
    return tuple(found)


def _equal_steps(names: Sequence[str], with_steps: float, without: float) -> Choice:
    """The choice to count unequal steps as equal ones."""
    those = ", ".join(map(repr, names))
    return Choice(
        "steps along axes",
        f"equal along {those}",
        f"The coordinates of axis {those} are not used by the Gaussian process, which counts their unequal steps as "
        f"equal: the data are more likely so (log-likelihood {without:.0f} instead of {with_steps:.0f}). If other "
        "distances fit (pressure levels), give other coordinates, such as the logarithm.",
        code="unequal_steps_not_used",
        values={"axes": list(names), "with_coordinates": with_steps, "with_equal_steps": without},
    )


def describe(covariance: Covariance, axes: Sequence[Axis], grids: Sequence[Grid] = ()) -> str:
    """A covariance in words: groups of axes, smoothness, and lengths in units of the coordinates."""
    shape = tuple(axis.length for axis in axes) if axes else (1,) * len(covariance.components[0].lengths)
    names = [str(axis.name) for axis in axes] if axes else [f"axis {k}" for k in range(len(shape))]
    grids = [*(grids or grids_of(axes, shape))]
    for season in covariance.seasons:
        names.append(f"{season.name} cycle of {names[season.axis]}")
        grids.append(grids[season.axis])
    terms = []
    for component in covariance.components:
        factors = []
        for group, smoothness in zip(component.groups, component.smoothness):
            lengths = ", ".join(length_in_words(names[k], grids[k], component.lengths[k]) for k in group)
            factors.append(f"Matern(nu {smoothness:.2g}; {lengths})")
        factors += [
            f"each {names[k]} for itself" if own == 1 else f"correlation of {names[k]}"
            for k, own in enumerate(component.own)
            if not np.isnan(own)
        ]
        terms.append(" x ".join([f"{component.variance:.3g}", *factors]))
    return " + ".join([*terms, f"noise {covariance.noise:.2g}"])
