"""Gaussian process completion: the conditional mean of the field, solved in the spectral basis of its axes.

With reflecting ends the prior covariance is diagonal in the cosine basis. The coefficients c of the mean
satisfy (1/spectrum + B M B' / noise) c = B M y / noise, with B the transform and M the mask. Conjugate
gradients, preconditioned as if every cell were observed, need two transforms an iteration, O(N log N). Started
from the kernel pyramid they settle within 100-200 iterations; the system of the missing cells, preconditioned
by the prior, needed ten times as many and twice the transforms. What is unsettled by then are directions
inside wide gaps, where the pyramid is as good a guess as the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corten.completion.axes_kinds import Basis, axis_kinds, basis_of, standardise
from corten.completion.covariance import Covariance, fit_covariance
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.completion.units import UnitCorrelation, unit_correlations
from corten.data.choices import Choice

__all__ = ["GaussianProcessCompletion", "PreparedProcess"]


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
        """The prior of a fitted covariance on a grid; units use the eigenvectors of their correlation."""
        bases: list[Basis] = []
        parts = [np.full((1,) * len(shape), v) for v in covariance.variances]
        for k, (kind, n) in enumerate(zip(kinds, shape)):
            if n == 1:
                continue
            if kind == "unordered":
                basis, eigenvalues = correlations[k].spectrum(k, np.float32)
                rows = [(1 - own) * eigenvalues + own for own in covariance.own[:, k]]
            else:
                basis = basis_of(kind, k, n, np.float32)
                rows = [covariance.axis_spectrum(c, k, basis.frequencies) for c in range(len(parts))]
            bases.append(basis)
            along = [1] * len(shape)
            along[k] = n
            parts = [part * row.reshape(along) for part, row in zip(parts, rows)]
        # Coefficients far below the noise never move: a floor keeps their inverse within single precision.
        total = np.maximum(np.broadcast_to(sum(parts), shape), 1e-5 * covariance.noise)
        return SpectralPrior(tuple(bases), total.astype(np.float32), np.float32(covariance.noise))

    def forward(self, array: np.ndarray) -> np.ndarray:
        for basis in self.bases:
            array = basis.forward(array)
        return array

    def inverse(self, array: np.ndarray) -> np.ndarray:
        for basis in self.bases:
            array = basis.inverse(array)
        return array

    def condition(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
        """Mean of the field given `values` where `mask` is True; iterations start from the field `start`."""
        kept = mask.astype(np.float32)
        shrink = self.spectrum / (self.spectrum + self.noise)
        mean = self.forward(start) * shrink
        residual = self.forward(kept * (values - self.inverse(mean))) / self.noise - mean / self.spectrum
        direction = np.zeros_like(mean)
        before, first = 1.0, 0.0
        for _ in range(iterations):
            scaled = self.noise * shrink * residual
            now = float(np.vdot(residual, scaled))
            first = max(first, now)
            if now <= 1e-10 * first:
                break
            direction = scaled + np.float32(now / before) * direction
            image = self.forward(kept * self.inverse(direction)) / self.noise + direction / self.spectrum
            curvature = float(np.vdot(direction, image))
            if curvature <= 0.0:  # residuals too small to be squared: there is nothing left to fit
                break
            step = np.float32(now / curvature)
            mean += step * direction
            residual -= step * image
            before = now
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
        prior = SpectralPrior.of(self.covariance, self.kinds, mask.shape, units)
        mean = prior.condition(data.values.astype(np.float32), mask, first, self.iterations)
        return Fill(data.undo(mean.astype(np.float64)))


@dataclass(frozen=True)
class GaussianProcessCompletion:
    """Fill a field by the conditional mean of a Gaussian process whose covariance is learned from the data.

    `kernel` is "matern" (a smooth and a rough component) or "exponential" (two rough ones).
    """

    kernel: str = "matern"
    iterations: int = 150

    def __post_init__(self) -> None:
        if self.kernel not in ("matern", "exponential"):
            raise ValueError(f'kernel is {self.kernel!r}: allowed are "matern" and "exponential"')

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> PreparedProcess:
        kinds = axis_kinds(axes, mask.shape)
        data = standardise(values, mask, kinds)
        units = unit_correlations(data.values, mask, kinds)
        covariance = fit_covariance(data.values, mask, kinds, units, self.kernel, seed)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        lengths = " and ".join(
            "(" + ", ".join("unordered" if np.isnan(x) else f"{x:.3g}" for x in row) + ")" for row in covariance.lengths
        )
        choice = Choice(
            f"{self.kernel} process",
            f"lengths {lengths}, variances {covariance.variances.round(3).tolist()}, noise {covariance.noise:.2g}",
            "maximum likelihood on a sample of the observed cells",
        )
        return PreparedProcess(kinds, covariance, pyramid, self.iterations, (choice,))
