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

from corten.completion.axes_kinds import Basis, along, axis_kinds, basis_of, standardise
from corten.completion.covariance import Covariance, fit_covariance
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.completion.units import UnitCorrelation, unit_correlations
from corten.data.choices import Choice

__all__ = ["GaussianProcessCompletion", "PreparedProcess"]

COARSE_MODES = 1500
"""At most so many modes are solved exactly: a dense matrix of this size is inverted once in a fill."""
COARSE_NUMBERS = 2e7
"""Numbers in the largest array of products of two modes along one axis."""
COARSE_ITERATIONS = 60
"""Largest number of iterations on the grid with half the positions."""
MIN_HALVED_LENGTH, MIN_HALVED_ENTRIES = 16, 20_000
"""Axes and tensors that are smaller are not halved."""
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
            if basis.cosines is not None:
                rows = _sums_of_cosines(basis.cosines[modes], spectrum.shape[basis.axis])
                products = along(rows, products, basis.axis)
                continue
            unit = np.zeros((len(modes), spectrum.shape[basis.axis]), np.float32)
            unit[np.arange(len(modes)), modes] = 1
            rows = replace(basis, axis=1).inverse(unit).astype(np.float64)
            pairs = (rows[:, None, :] * rows[None, :, :]).reshape(-1, rows.shape[1])
            products = along(np.ascontiguousarray(pairs), products, basis.axis)
        for basis, modes in zip(bases, chosen):
            if basis.cosines is not None:
                products = _products_of_cosines(products, basis.cosines[modes], basis.axis, spectrum.shape[basis.axis])
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


def _sums_of_cosines(numbers: np.ndarray, length: int) -> np.ndarray:
    """Cosines of all numbers up to twice the largest of `numbers`, without their norms."""
    return np.cos(np.pi / length * np.outer(np.arange(2 * numbers.max() + 1), np.arange(length) + 0.5))


def _products_of_cosines(sums: np.ndarray, numbers: np.ndarray, axis: int, length: int) -> np.ndarray:
    """Sums of products of all pairs of normed cosines, from sums of cosines: 2 cos a cos b = cos(a-b) + cos(a+b)."""
    norm = np.where(numbers == 0, np.sqrt(1 / length), np.sqrt(2 / length))
    difference, total = np.abs(np.subtract.outer(numbers, numbers)).ravel(), np.add.outer(numbers, numbers).ravel()
    share = (np.outer(norm, norm) / 2).reshape([-1 if k == axis else 1 for k in range(sums.ndim)])
    return np.asarray(share * (np.take(sums, difference, axis=axis) + np.take(sums, total, axis=axis)))


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
    noise: np.float32

    @staticmethod
    def of(
        covariance: Covariance,
        kinds: Sequence[str],
        shape: tuple[int, ...],
        correlations: dict[int, UnitCorrelation],
    ) -> SpectralPrior:
        """The prior of a fitted covariance on a grid; unordered axes use the eigenvectors of their correlation."""
        bases: list[Basis] = []
        along_axes: list[np.ndarray | None] = []
        for k, (kind, n) in enumerate(zip(kinds, shape)):
            if n == 1:
                along_axes.append(None)
                continue
            if kind == "unordered":
                basis, values = correlations[k].spectrum(k, np.float32)
            else:
                basis = basis_of(kind, k, n, np.float32)
                values = basis.frequencies
            bases.append(basis)
            along_axes.append(values)
        # Coefficients far below the noise never move: a floor keeps their inverse within single precision.
        total = np.maximum(covariance.spectrum(along_axes), 1e-5 * covariance.noise)
        return SpectralPrior(tuple(bases), total.astype(np.float32), np.float32(covariance.noise))

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
        most = max(min(kept.size, 200), min(COARSE_MODES, kept.size // 20))
        coarse = CoarseModes.of(self.bases, self.spectrum, float(self.noise), kept, most)
        ratio = self.noise / self.spectrum
        shrink = 1 / (1 + ratio)
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
            direction *= np.float32(now / before)
            direction += scaled
            seen = self.inverse(direction)
            seen *= kept
            image = self.forward(seen)
            image += np.multiply(ratio, direction, out=scaled)
            curvature = float(np.vdot(direction, image))
            if curvature <= 0.0:  # residuals too small to be squared: there is nothing left to fit
                break
            step = np.float32(now / curvature)
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

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        return self.fill_from(values, mask, self.pyramid.fill(values, mask).estimate)

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, with the iterations started from another estimate made of the same entries."""
        data = standardise(values, mask, self.kinds)
        first = ((start - data.centre) / data.scale).astype(np.float32)
        # The correlation of units is estimated from these entries: hidden ones must not shine through it.
        units = unit_correlations(data.values, mask, self.kinds)
        known, kept = data.values.astype(np.float32), mask.astype(np.float32)
        first = self._with_coarse(known, kept, first, units)
        prior = SpectralPrior.of(self.covariance, self.kinds, mask.shape, units)
        mean = prior.condition(known, kept, first, self.iterations)
        return Fill(data.undo(mean.astype(np.float64)))

    def _with_coarse(
        self, values: np.ndarray, kept: np.ndarray, start: np.ndarray, units: dict[int, UnitCorrelation]
    ) -> np.ndarray:
        """The start with its smooth part solved on a grid with half the positions along every long ordered axis."""
        halved = [k for k, n in enumerate(kept.shape) if self.kinds[k] != "unordered" and n >= MIN_HALVED_LENGTH]
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
        prior = SpectralPrior.of(covariance, self.kinds, weight.shape, units)
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
        covariance, tried = fit_covariance(data.values, mask, kinds, units, seed)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        choice = Choice(
            "covariance of the process",
            describe(covariance, axes),
            "maximum likelihood on samples of the observed entries",
            tried,
        )
        return PreparedProcess(kinds, covariance, pyramid, self.iterations, (choice,))


def describe(covariance: Covariance, axes: Sequence[Any]) -> str:
    """A covariance in words: groups of axes, smoothness, and lengths in units of the coordinates."""
    terms = []
    for component in covariance.components:
        factors = []
        for group, smoothness in zip(component.groups, component.smoothness):
            lengths = ", ".join(_length_in_words(axes, k, component.lengths[k]) for k in group)
            factors.append(f"Matern(nu {smoothness:.2g}; {lengths})")
        factors += [f"correlation of {_name(axes, k)}" for k, own in enumerate(component.own) if not np.isnan(own)]
        terms.append(" x ".join([f"{component.variance:.3g}", *factors]))
    return " + ".join([*terms, f"noise {covariance.noise:.2g}"])


def _name(axes: Sequence[Any], k: int) -> str:
    return str(getattr(axes[k], "name", k)) if axes else f"axis {k}"


def _length_in_words(axes: Sequence[Any], k: int, steps: float) -> str:
    """A length along an axis: in units of its coordinates where they are regular, else in steps."""
    coordinates = getattr(axes[k], "coordinates", None) if axes else None
    size, unit = 1.0, "steps"
    if coordinates is not None and len(coordinates) > 1:
        dates = np.issubdtype(coordinates.dtype, np.datetime64)
        if dates or np.issubdtype(coordinates.dtype, np.number):
            seconds = coordinates.astype("datetime64[s]") if dates else coordinates
            differences = np.abs(np.diff(seconds.astype(float)))
            if np.allclose(differences, differences[0], rtol=1e-3) and differences[0] > 0:
                size, unit = float(differences[0]), "s" if dates else getattr(axes[k], "units", None) or ""
    if unit == "s":
        size, unit = next((size / n, name) for n, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
                          if steps * size >= n or n == 1)  # fmt: skip
    return f"{_name(axes, k)} {steps * size:.3g} {unit}".rstrip()
