"""Gaussian process completion: the conditional mean of the field, solved in the spectral basis of its axes.

With reflecting ends the prior covariance is diagonal in the cosine basis. The coefficients c of the mean satisfy
(1/spectrum + B M B' / noise) c = B M y / noise, with B the transform and M the mask. Conjugate gradients, preconditioned as if
every cell were observed, need two transforms an iteration, O(N log N). Started from the kernel pyramid they settle within
100-200 iterations; the system on the missing side, preconditioned by the prior, needed ten times as many and twice the
transforms. What remains unsettled after that are directions inside wide gaps, where the pyramid is as good a guess as the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corten.choices import Choice
from corten.completion.axes_kinds import Basis, axis_kinds, basis_of, standardise
from corten.completion.covariance import Covariance, fit_covariance, unit_correlation
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion

__all__ = ["GaussianProcessCompletion", "PreparedProcess"]


@dataclass(frozen=True)
class PreparedProcess:
    """The process with its covariance fitted."""

    kinds: tuple[str, ...]
    covariance: Covariance
    bases: tuple[Basis, ...] = field(repr=False)
    spectrum: np.ndarray = field(repr=False)
    pyramid: PreparedSmooth = field(repr=False)
    iterations: int
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray, warm: object | None = None) -> Fill:
        return self.fill_from(values, mask, self.pyramid.fill(values, mask).estimate)

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, with the iterations started from another estimate made of the same entries."""
        data = standardise(values, mask, self.kinds)
        first = ((start - data.centre) / data.scale).astype(self.spectrum.dtype)
        return Fill(data.undo(self._solve(data.values, mask, first).astype(np.float64)))

    def combine(self, members: dict[str, np.ndarray], truth: np.ndarray) -> PreparedProcess:
        return self

    def _forward(self, array: np.ndarray) -> np.ndarray:
        for basis in self.bases:
            array = basis.forward(array)
        return array

    def _inverse(self, array: np.ndarray) -> np.ndarray:
        for basis in self.bases:
            array = basis.inverse(array)
        return array

    def _solve(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Conditional mean given `values` where `mask` is True, iterations started from the field `start`."""
        kept = mask.astype(start.dtype)
        noise = start.dtype.type(self.covariance.noise)
        preconditioner = noise * self.spectrum / (self.spectrum + noise)
        mean = self._forward(start) * (self.spectrum / (self.spectrum + noise))
        residual = self._forward(kept * (values.astype(start.dtype) - self._inverse(mean))) / noise
        residual -= mean / self.spectrum
        direction = np.zeros_like(mean)
        before, first = 1.0, 0.0
        for _ in range(self.iterations):
            scaled = preconditioner * residual
            now = float(np.vdot(residual, scaled))
            first = max(first, now)
            if now <= 1e-10 * first:
                break
            direction = scaled + start.dtype.type(now / before) * direction
            image = self._forward(kept * self._inverse(direction)) / noise + direction / self.spectrum
            step = start.dtype.type(now / float(np.vdot(direction, image)))
            mean += step * direction
            residual -= step * image
            before = now
        return self._inverse(mean)


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
        units = {
            k: unit_correlation(data.values, mask, k)
            for k, kind in enumerate(kinds)
            if kind == "unit" and mask.shape[k] > 1
        }
        covariance = fit_covariance(data.values, mask, kinds, units, self.kernel, seed)
        bases, spectrum = _spectrum(covariance, kinds, mask.shape, units)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        lengths = " and ".join(
            "(" + ", ".join("unit" if np.isnan(x) else f"{x:.3g}" for x in row) + ")"
            for row in covariance.lengths
        )
        choice = Choice(
            f"{self.kernel} process",
            f"lengths {lengths}, variances {covariance.variances.round(3).tolist()}, noise {covariance.noise:.2g}",
            "maximum likelihood on a sample of the observed cells",
        )
        return PreparedProcess(kinds, covariance, bases, spectrum, pyramid, self.iterations, (choice,))


def _spectrum(
    covariance: Covariance,
    kinds: Sequence[str],
    shape: tuple[int, ...],
    correlations: dict[int, np.ndarray],
    dtype: Any = np.float32,
) -> tuple[tuple[Basis, ...], np.ndarray]:
    """The bases of the axes with length above one, and the prior's eigenvalues in them."""
    bases: list[Basis] = []
    parts = [np.full((1,) * len(shape), v) for v in covariance.variances]
    for k, (kind, n) in enumerate(zip(kinds, shape)):
        if n == 1:
            continue
        if kind == "unit":
            eigenvalues, vectors = np.linalg.eigh(correlations[k])
            basis = basis_of(kind, k, n, dtype, vectors)
            rows = [(1 - own) * np.maximum(eigenvalues, 0) + own for own in covariance.own[:, k]]
        else:
            basis = basis_of(kind, k, n, dtype)
            rows = [covariance.axis_spectrum(c, k, basis.frequencies) for c in range(len(parts))]
        bases.append(basis)
        along = [1] * len(shape)
        along[k] = n
        parts = [part * row.reshape(along) for part, row in zip(parts, rows)]
    total = np.broadcast_to(sum(parts), shape)
    # Coefficients far below the noise never move: a floor keeps their inverse within single precision.
    return tuple(bases), np.maximum(total, 1e-5 * covariance.noise).astype(dtype)
