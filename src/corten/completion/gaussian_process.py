"""Gaussian process completion: the conditional mean of the field, solved in the spectral basis of its axes.

With reflecting ends the prior covariance is diagonal in the cosine basis. The coefficients c of the mean satisfy
(noise / spectrum + B M B') c = B M y, with B the transform and M the mask. Conjugate gradients need two transforms an
iteration, O(N log N). The preconditioner is the sum of two: the inverse as if every entry were observed, and the exact
inverse on the modes with the largest variance. The first alone leaves smooth directions inside gaps, which need several
hundred iterations; those are the directions that the second solves. The iterations start from a solution on a grid with
half the positions along every long axis: the errors that converge slowly are smooth, and there an iteration costs an
eighth in three dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg

from corten.completion.axes_kinds import Basis, along, axis_kinds, basis_of, move_gap, standardise
from corten.completion.covariance import Covariance, Season, circle_of, fit_covariance
from corten.completion.positions import Grid, grids_in_words, grids_of, length_in_words, moved_grids
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.completion.units import UnitCorrelation, unit_correlations
from corten.data.axes import is_distance
from corten.data.choices import Choice

__all__ = ["GaussianProcessCompletion", "PreparedProcess"]

COARSE_MODES = 1500
"""At most so many modes are solved exactly: a dense matrix of this size is inverted once in a fill."""
COARSE_NUMBERS = 2e7
"""Numbers in the largest array of products of two modes along one axis."""
CYCLES = {"daily": 1.0, "weekly": 7.0, "yearly": 365.2425}
"""Periods of the cycles that are looked for along axes of dates, in days."""
COARSE_ITERATIONS = 60
"""Largest number of iterations on the grid with half the positions."""
MIN_HALVED_LENGTH, MIN_HALVED_ENTRIES = 16, 20_000
"""Axes and tensors that are smaller are not halved."""
UNEVEN_FACTOR = 3
"""So many times the iterations where an axis has unequal steps or a cycle: no coarse grid has half its positions."""
NOISE_FACTORS, MIN_NOISE_GAIN = (1, 4, 16), 0.02
"""Multiples of the most likely noise that are compared by held-out error, and the gain that a larger one must have."""
NOISE_TEST_ENTRIES, MIN_NOISE_TEST_ENTRIES = 50_000, 200
"""Most entries of the part on which they are compared, and fewest hidden ones."""
SETTLED = 2e-3
"""Iterations stop when ten of them move the missing entries by less than this, in standard deviations of the data."""


@dataclass(frozen=True)
class CoarseModes:
    """The modes with the largest variance, and the inverse of the system restricted to them (its lower triangle)."""

    where: tuple[np.ndarray, ...]
    inverse: np.ndarray

    @staticmethod
    def of(bases: Sequence[Basis], spectrum: np.ndarray, noise: float, kept: np.ndarray, most: int) -> CoarseModes:
        """A box of modes; `kept` is one where an entry is observed."""
        chosen = _box_of_modes(bases, spectrum, most)
        # Double precision: directions that live in gaps have eigenvalues far below the rounding of single precision.
        products = kept.astype(np.float64)
        # An axis with few modes for its length first: it makes the array smaller.
        for basis, modes in sorted(zip(bases, chosen), key=lambda one: len(one[1]) ** 2 / spectrum.shape[one[0].axis]):
            unit = np.zeros((len(modes), spectrum.shape[basis.axis]), spectrum.dtype)
            unit[np.arange(len(modes)), modes] = 1
            rows = replace(basis, axis=1).inverse(unit).astype(np.float64)
            pairs = (rows[:, None, :] * rows[None, :, :]).reshape(-1, rows.shape[1])
            products = along(np.ascontiguousarray(pairs), products, basis.axis)
        counts = [len(modes) for modes in chosen]
        size = int(np.prod(counts))
        split = products.reshape([n for count in counts for n in (count, count)])
        order = [*range(0, split.ndim, 2), *range(1, split.ndim, 2)]
        system = split.transpose(order).reshape(size, size)
        every: list[np.ndarray] = [np.arange(1)] * spectrum.ndim
        for basis, modes in zip(bases, chosen):
            every[basis.axis] = modes
        where = np.ix_(*every)
        system[np.diag_indices(size)] += noise / spectrum[where].ravel().astype(np.float64)
        factor = scipy.linalg.cholesky(system, lower=True, overwrite_a=True, check_finite=False)
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
        return CoarseModes(where, inverse)

    def add_to(self, scaled: np.ndarray, residual: np.ndarray) -> None:
        part = residual[self.where]
        product = scipy.linalg.blas.dsymv(1.0, self.inverse, part.ravel().astype(np.float64), lower=1)
        scaled[self.where] += product.reshape(part.shape)


def _box_of_modes(bases: Sequence[Basis], spectrum: np.ndarray, most: int) -> list[np.ndarray]:
    """Modes along each axis, added one by one where the variance is largest, at most `most` in the box."""
    profiles = [spectrum.max(axis=tuple(k for k in range(spectrum.ndim) if k != basis.axis)) for basis in bases]
    orders = [np.argsort(-profile, kind="stable") for profile in profiles]
    counts = [1] * len(bases)
    limits = [min(len(p), max(1, int(np.sqrt(COARSE_NUMBERS / len(p))))) for p in profiles]
    while True:
        size = int(np.prod(counts))
        free = [i for i, n in enumerate(counts) if n < limits[i] and size // n * (n + 1) <= most]
        if not free:
            return [np.sort(order[:n]) for order, n in zip(orders, counts)]
        counts[max(free, key=lambda i: profiles[i][orders[i][counts[i]]])] += 1


@dataclass(frozen=True)
class SpectralPrior:
    """A Gaussian prior that is diagonal in the basis of the axes: eigenvalues there, and the noise."""

    bases: tuple[Basis, ...]
    spectrum: np.ndarray
    noise: np.floating[Any]

    @staticmethod
    def of(
        covariance: Covariance,
        kinds: Sequence[str],
        shape: tuple[int, ...],
        correlations: dict[int, UnitCorrelation],
        grids: Sequence[Grid] = (),
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
        number: Any = np.float32 if all(grid.positions is None for grid in grids) else np.float64
        bases: list[Basis] = []
        along_axes: list[np.ndarray | None] = []
        for k, (kind, n) in enumerate(zip(kinds, shape)):
            if n == 1:
                along_axes.append(None)
                continue
            if kind == "unordered":
                basis, values = correlations[k].spectrum(k, number)
            else:
                basis = basis_of(kind, k, grids[k].size, number, positions=grids[k].positions)
                values = basis.frequencies
            bases.append(basis)
            along_axes.append(values)
        # Coefficients far below the noise never move: a floor keeps their inverse within single precision.
        total = np.maximum(covariance.spectrum(along_axes), 1e-5 * covariance.noise)
        return SpectralPrior(tuple(bases), total.astype(number), number(covariance.noise))

    def forward(self, array: np.ndarray) -> np.ndarray:
        for basis in self.bases:
            array = basis.forward(array)
        return array

    def inverse(self, array: np.ndarray) -> np.ndarray:
        for basis in self.bases:
            array = basis.inverse(array)
        return array

    def condition(self, values: np.ndarray, kept: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
        """Mean of the field given `values` with weights `kept` (0 where missing); iterations begin with `start`."""
        number = self.spectrum.dtype.type
        most = max(min(kept.size, 200), min(COARSE_MODES, kept.size // 20))
        coarse = CoarseModes.of(self.bases, self.spectrum, float(self.noise), kept, most)
        ratio = self.noise / self.spectrum
        # A grid that is finer than the entries has fewer than one entry for each of its points.
        shrink = 1 / (number(kept.size / self.spectrum.size) + ratio)
        mean = self.forward(start) * shrink
        residual = self.forward(kept * (values - self.inverse(mean))) - ratio * mean
        direction = np.zeros_like(mean)
        scaled = np.empty_like(mean)
        before, first = 1.0, 0.0
        field, missing = None, kept == 0
        for iteration in range(iterations):
            np.multiply(shrink, residual, out=scaled)
            coarse.add_to(scaled, residual)
            now = float(np.vdot(residual, scaled))
            first = max(first, now)
            if now <= 1e-10 * first:
                break
            direction *= number(now / before)
            direction += scaled
            seen = self.inverse(direction)
            seen *= kept
            image = self.forward(seen)
            image += np.multiply(ratio, direction, out=scaled)
            curvature = float(np.vdot(direction, image))
            if curvature <= 0.0:  # residuals too small to be squared: there is nothing left to fit
                break
            step = number(now / curvature)
            mean += np.multiply(step, direction, out=scaled)
            image *= step
            residual -= image
            before = now
            if iteration % 10 == 9 and iteration + 1 < iterations:
                last, field = field, self.inverse(mean)
                if last is not None and np.linalg.norm((field - last)[missing]) <= SETTLED * np.sqrt(missing.sum()):
                    break
        return self.inverse(mean)


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

    def on_axes(self, axes: Sequence[Any]) -> PreparedProcess:
        """The same covariance, in the unit of the coordinates, on other axes."""
        grids, ratios = moved_grids(self.grids, axes)
        return replace(
            self, covariance=self.covariance.rescaled(ratios), grids=grids, pyramid=self.pyramid.on_axes(axes)
        )

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, with the iterations started from another estimate made of the same entries."""
        data = standardise(values, mask, self.kinds)
        first = (start - data.centre) / data.scale
        # The correlation of units is estimated from these entries: hidden ones must not shine through it.
        units = unit_correlations(data.values, mask, self.kinds)
        prior = SpectralPrior.of(self.covariance, self.kinds, mask.shape, units, self.grids)
        number = prior.spectrum.dtype
        known, kept, first = (one.astype(number) for one in (data.values, mask, first))
        first = self._with_coarse(known, kept, first, units)
        mean = prior.condition(known, kept, first, self.iterations * (1 if number == np.float32 else UNEVEN_FACTOR))
        return Fill(data.undo(mean.astype(np.float64)))

    def _with_coarse(
        self, values: np.ndarray, kept: np.ndarray, start: np.ndarray, units: dict[int, UnitCorrelation]
    ) -> np.ndarray:
        """The start with its smooth part solved on a grid with half the positions along every long ordered axis."""
        grids = list(self.grids or grids_of(None, kept.shape))
        cycled = {season.axis for season in self.covariance.seasons}
        even = [k for k, grid in enumerate(grids) if grid.positions is None and k not in cycled]
        halved = [k for k in even if self.kinds[k] != "unordered" and kept.shape[k] >= MIN_HALVED_LENGTH]
        if not halved or kept.size < MIN_HALVED_ENTRIES:
            return start
        # Means of what the start leaves, not of the values: a cell observed on one side only would be off its centre.
        left, weight, coarse = kept * (values - start), kept, start
        for k in halved:
            left, weight, coarse = (_pair_means(array, k) for array in (left, weight, coarse))
        known = coarse + np.divide(left, weight, out=np.zeros_like(left), where=weight > 0)
        components = tuple(
            replace(one, lengths=tuple(length / 2 if k in halved else length for k, length in enumerate(one.lengths)))
            for one in self.covariance.components
        )
        covariance = replace(self.covariance, components=components)
        grids = [Grid(weight.shape[k]) if k in halved else grid for k, grid in enumerate(grids)]
        prior = SpectralPrior.of(covariance, self.kinds, weight.shape, units, grids)
        change = prior.condition(known, weight, coarse, COARSE_ITERATIONS) - coarse
        for k in halved:
            change = _between_pairs(change, k, kept.shape[k])
        return start + change


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
    iterations : int, default 50
        Largest number of iterations of conjugate gradients in a fill. They stop earlier when the estimate at the
        missing entries no longer changes.
    """

    iterations: int = 50

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> PreparedProcess:
        kinds = axis_kinds(axes, mask.shape)
        data = standardise(values, mask, kinds)
        units = unit_correlations(data.values, mask, kinds)
        grids, choices = grids_of(axes, mask.shape), []
        seasons = seasons_of(kinds, grids)
        covariance, tried = fit_covariance(data.values, mask, kinds, units, seed, grids, seasons)
        doubtful = [k for k, grid in enumerate(grids) if grid.positions is not None and not is_distance(axes[k])]
        if doubtful:
            equal = tuple(Grid(mask.shape[k]) if k in doubtful else grid for k, grid in enumerate(grids))
            other, also_tried = fit_covariance(data.values, mask, kinds, units, seed, equal, seasons)
            most = max(int(str(one["entries"])) for one in tried)
            with_steps, without = (
                max(float(str(one["penalised"])) for one in fits if one["entries"] == most)
                for fits in (tried, also_tried)
            )
            if without > with_steps:
                grids, covariance, tried = equal, other, also_tried
                choices.append(_equal_steps([axes[k].name for k in doubtful], with_steps, without))
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        words = grids_in_words(axes, grids)
        if words:
            choices.append(Choice("grid of unequal steps", words, "positions are taken from the coordinates"))
        choice = Choice(
            "covariance of the process",
            describe(covariance, axes, grids),
            "maximum likelihood on samples of the observed entries",
            tried,
        )
        prepared = PreparedProcess(kinds, covariance, pyramid, self.iterations, (choice, *choices), grids)
        return _with_tested_noise(prepared, values, mask, seed)


def _with_tested_noise(prepared: PreparedProcess, values: np.ndarray, mask: np.ndarray, seed: int) -> PreparedProcess:
    """The process with more noise where that clearly lowers the error under a pseudo-gap.

    Errors with heavy tails, and the differences of neighbours that no component describes, are noise to an estimate in
    a gap; the likelihood of pairs that lie close together sees less of it.
    """
    rng = np.random.default_rng((seed, 0x2015E))
    hidden = mask & move_gap(~mask, prepared.kinds, rng)
    box = _box_with_most(hidden, mask & ~hidden, prepared, rng)
    known, part = mask[box] & ~hidden[box], hidden[box]
    if min(int(known.sum()), int(part.sum())) < MIN_NOISE_TEST_ENTRIES:
        return prepared
    grids = tuple(
        grid if grid.size == 1 or n == mask.shape[k] else replace(grid, size=n)
        for k, (grid, n) in enumerate(zip(prepared.grids, part.shape))
    )
    pyramid = replace(prepared.pyramid, grids=grids)
    start = pyramid.fill(values[box], known).estimate
    errors = {}
    for factor in NOISE_FACTORS:
        covariance = replace(prepared.covariance, noise=min(factor * prepared.covariance.noise, 0.5))
        one = replace(prepared, covariance=covariance, pyramid=pyramid, grids=grids)
        errors[factor] = float(np.abs(one.fill_from(values[box], known, start).estimate - values[box])[part].mean())
    best = min(errors, key=lambda factor: errors[factor])
    if errors[best] > (1 - MIN_NOISE_GAIN) * errors[1]:
        return prepared
    noise = min(best * prepared.covariance.noise, 0.5)
    choice = Choice(
        "noise of the process",
        f"{noise:.2g}",
        f"{best} times the most likely noise: lowest error of {int(part.sum())} entries under a copy of the gaps",
        tuple({"factor": factor, "error": error} for factor, error in errors.items()),
        code="noise_by_held_out_error",
        values={"noise": noise, "factor": best},
    )
    return replace(
        prepared, covariance=replace(prepared.covariance, noise=noise), choices=(*prepared.choices, choice)
    )


def _box_with_most(
    hidden: np.ndarray, known: np.ndarray, prepared: PreparedProcess, rng: np.random.Generator
) -> tuple[slice, ...]:
    """A box of bounded size with many hidden and many known entries; it cuts ordered axes with equal steps only."""
    shape = list(hidden.shape)
    cut = [k for k, grid in enumerate(prepared.grids) if grid.positions is None and prepared.kinds[k] == "ordered"]
    while np.prod(shape, dtype=float) > NOISE_TEST_ENTRIES and any(shape[k] > 8 for k in cut):
        longest = max(cut, key=lambda k: shape[k])
        shape[longest] = max(8, int(0.9 * shape[longest]))
    found = []
    for _ in range(8):
        box = tuple(slice(at := int(rng.integers(n - m + 1)), at + m) for n, m in zip(hidden.shape, shape))
        found.append((min(int(hidden[box].sum()), int(known[box].sum())), box))
    return max(found, key=lambda one: one[0])[1]


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


def describe(covariance: Covariance, axes: Sequence[Any], grids: Sequence[Grid] = ()) -> str:
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
        factors += [f"correlation of {names[k]}" for k, own in enumerate(component.own) if not np.isnan(own)]
        terms.append(" x ".join([f"{component.variance:.3g}", *factors]))
    return " + ".join([*terms, f"noise {covariance.noise:.2g}"])
