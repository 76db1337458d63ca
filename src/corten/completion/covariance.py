"""The covariance of a field, learned by maximum likelihood from a sample of its observed cells.

Two separable components plus noise. Along an ordered axis a component falls off as a Matern-3/2 or an
exponential kernel of the distance in steps, along units it follows the correlation that the data show. One
likelihood with gradient costs O(n^3) in the number n of sampled cells; kernels are read from tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from numba import njit

from corten.completion.units import UnitCorrelation

__all__ = ["Covariance", "fit_covariance", "sample_cells"]

NOISE_FLOOR = 2e-3
CELLS = 800
SAMPLES = 3
SHAPES = {"matern": ("matern", "exponential"), "exponential": ("exponential", "exponential")}


@dataclass(frozen=True)
class Covariance:
    """Two components plus noise, for data of variance about one.

    `lengths[c, k]` is the length of component c along axis k in steps (nan along units), `own[c, k]` the part
    of it that each unit has for itself (nan along ordered axes).
    """

    shapes: tuple[str, ...]
    variances: np.ndarray
    lengths: np.ndarray
    own: np.ndarray
    noise: float

    def axis_spectrum(self, component: int, axis: int, frequencies: np.ndarray) -> np.ndarray:
        """Eigenvalues of one component's kernel along an ordered or periodic axis (closed form)."""
        return kernel_spectrum(self.shapes[component], self.lengths[component, axis], frequencies)


def kernel_spectrum(shape: str, length: float, frequencies: np.ndarray) -> np.ndarray:
    """Fourier sum over all integers of the kernel with that length at these frequencies."""
    rate = (np.sqrt(3.0) if shape == "matern" else 1.0) / length
    decay = np.exp(-rate)
    # 1 - decay and 1 - cos lose digits for long kernels: expm1 and half angles do not.
    gap = -np.expm1(-rate)
    versine = 2 * np.sin(frequencies / 2) ** 2
    below = gap**2 + 2 * decay * versine
    above = gap * (1 + decay)
    if shape == "exponential":
        return above / below
    slope = (-2 * decay * below + 2 * above * (gap - versine)) / below**2
    return np.maximum(above / below + rate * decay * slope, 1e-300)


def kernel_table(shape: str, length: float, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The kernel at these distances and the ratio of its derivative in log length to itself."""
    if shape == "matern":
        a = np.sqrt(3.0) * distances / length
        return (1 + a) * np.exp(-a), a**2 / (1 + a)
    a = distances / length
    return np.exp(-a), a


def periodic_table(shape: str, length: float, period: int) -> tuple[np.ndarray, np.ndarray]:
    """As `kernel_table` on a circle: the sum over all images of the kernel, so positive definite."""
    steps = np.arange(period)
    waves = np.cos(2 * np.pi * np.outer(steps, steps) / period) / period
    nudge = 1e-4
    table, above, below = (
        waves @ kernel_spectrum(shape, length * np.exp(shift), 2 * np.pi * steps / period)
        for shift in (0.0, nudge, -nudge)
    )
    table = np.maximum(table, 1e-12)
    return table, (above - below) / (2 * nudge * table)


def sample_cells(mask: np.ndarray, kinds: Sequence[str], size: int, rng: np.random.Generator) -> np.ndarray:
    """Observed cells for the fit, (n, K): a third at random, the rest in clusters of two sizes."""
    observed = np.flatnonzero(mask)
    if observed.size <= size:
        return np.stack(np.unravel_index(observed, mask.shape), axis=1)
    taken = [rng.choice(observed, size // 3, replace=False)]
    shape = np.array(mask.shape)
    for share in (0.0, 0.07):
        spread = np.maximum(1.5, share * shape)
        per_cluster = 30
        wanted = size // 3
        centres = np.stack(np.unravel_index(rng.choice(observed, 4 * (wanted // per_cluster) + 1), mask.shape), 1)
        steps = np.rint(rng.standard_normal((len(centres), 2 * per_cluster, mask.ndim)) * spread).astype(int)
        cells = centres[:, None, :] + steps
        for k, kind in enumerate(kinds):
            if kind == "periodic":
                cells[..., k] %= shape[k]
            elif kind == "unordered":
                other = rng.integers(shape[k], size=cells.shape[:2])
                same = rng.random(cells.shape[:2]) < 0.5
                cells[..., k] = np.where(same, centres[:, None, k], other)
        inside = np.all((cells >= 0) & (cells < shape), axis=-1)
        flat = np.ravel_multi_index(tuple(cells[inside].T), mask.shape)
        flat = flat[mask.ravel()[flat]]
        taken.append(flat[np.sort(np.unique(flat, return_index=True)[1])][:wanted])
    return np.stack(np.unravel_index(np.unique(np.concatenate(taken)), mask.shape), axis=1)


@njit(cache=True, nogil=True)
def _assemble(index, tables, variances, components):  # type: ignore[no-untyped-def]
    """Every component's covariance between all pairs; `index` (n, n, K) reads into `tables` (C, K, D)."""
    n = index.shape[0]
    for i in range(n):
        for j in range(i + 1):
            for c in range(tables.shape[0]):
                value = variances[c]
                for k in range(tables.shape[1]):
                    value *= tables[c, k, index[i, j, k]]
                components[c, i, j] = value


@njit(cache=True, nogil=True)
def _collect(index, tables, variances, weight, histogram):  # type: ignore[no-untyped-def]
    """Sum weight times component over the pairs at each table entry (gradient of all tables at once)."""
    n = index.shape[0]
    for i in range(n):
        for j in range(i + 1):
            twice = weight[i, j] if i == j else 2 * weight[i, j]
            for c in range(tables.shape[0]):
                value = variances[c] * twice
                for k in range(tables.shape[1]):
                    value *= tables[c, k, index[i, j, k]]
                for k in range(tables.shape[1]):
                    histogram[c, k, index[i, j, k]] += value


class _Likelihood:
    """Minus the log likelihood of the sampled cells, with gradient, as a function of log parameters."""

    def __init__(
        self,
        cells: np.ndarray,
        values: np.ndarray,
        shapes: tuple[str, ...],
        kinds: Sequence[str],
        correlations: dict[int, UnitCorrelation],
        lengths: tuple[int, ...],
    ) -> None:
        self.y, self.shapes, self.kinds = values, shapes, kinds
        self.correlations, self.n_axis = correlations, lengths
        self.axes = [k for k in range(len(lengths)) if lengths[k] > 1]
        n = len(cells)
        self.index = np.zeros((n, n, len(self.axes)), np.int32)
        self.entries: list[np.ndarray] = []
        for position, k in enumerate(self.axes):
            a, b = cells[:, None, k], cells[None, :, k]
            if kinds[k] == "unordered":
                flat = a * lengths[k] + b
                used, inverse = np.unique(flat, return_inverse=True)
                self.index[..., position] = inverse.reshape(n, n)
                self.entries.append(correlations[k].between(used // lengths[k], used % lengths[k]))
            else:
                distance = np.abs(a - b)
                if kinds[k] == "periodic":
                    distance = np.minimum(distance, lengths[k] - distance)
                self.index[..., position] = distance
                self.entries.append(np.arange(lengths[k], dtype=float))
        self.depth = max((len(e) for e in self.entries), default=1)

    def start(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First guess, and centre and width of the weak prior, of the log parameters."""
        guess, centre, width = [], [], []
        for c in range(len(self.shapes)):
            guess.append(np.log(0.7 if c == 0 else 0.2))
            centre.append(np.log(0.5))
            width.append(1.5)
            for k in self.axes:
                if self.kinds[k] == "unordered":
                    guess.append(-2.0 if c == 0 else 0.0)
                    centre.append(-1.0)
                    width.append(2.0)
                else:
                    guess.append(np.log(max(1.0, self.n_axis[k] * (0.5 if c == 0 else 0.1))))
                    centre.append(np.log(max(1.0, self.n_axis[k] * (0.5 if c == 0 else 0.15))))
                    width.append(1.5)
        return (
            np.array([*guess, np.log(0.02)]),
            np.array([*centre, np.log(0.02)]),
            np.array([*width, 2.0]),
        )

    def _unpack(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        per = 1 + len(self.axes)
        block = theta[:-1].reshape(len(self.shapes), per)
        variances = np.exp(block[:, 0])
        tables = np.ones((len(self.shapes), len(self.axes), self.depth))
        ratios = np.zeros_like(tables)
        for c, shape in enumerate(self.shapes):
            for p, k in enumerate(self.axes):
                entry = self.entries[p]
                if self.kinds[k] == "unordered":
                    own = 1 / (1 + np.exp(-block[c, 1 + p]))
                    same = (entry >= 1 - 1e-12).astype(float)
                    table = (1 - own) * entry + own * same
                    slope = own * (1 - own) * (same - entry)
                    ratio = slope / np.where(np.abs(table) > 1e-9, table, 1e-9)
                elif self.kinds[k] == "periodic":
                    table, ratio = periodic_table(shape, np.exp(block[c, 1 + p]), len(entry))
                else:
                    table, ratio = kernel_table(shape, np.exp(block[c, 1 + p]), entry)
                tables[c, p, : len(entry)] = table
                ratios[c, p, : len(entry)] = ratio
        return variances, tables, ratios, float(np.exp(theta[-1]))

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        n = len(self.y)
        variances, tables, ratios, extra = self._unpack(theta)
        components = np.zeros((len(self.shapes), n, n))
        _assemble(self.index, tables, variances, components)
        matrix = components.sum(axis=0)
        matrix[np.diag_indices(n)] += NOISE_FLOOR + extra
        try:
            factor = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        alpha = scipy.linalg.cho_solve((factor, True), self.y, check_finite=False)
        value = 0.5 * self.y @ alpha + np.log(np.diag(factor)).sum()
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
        weight = 0.5 * (inverse - np.outer(alpha, alpha))
        histogram = np.zeros_like(tables)
        _collect(self.index, tables, variances, np.tril(weight), histogram)
        gradient = np.empty_like(theta)
        block = gradient[:-1].reshape(len(self.shapes), -1)
        block[:, 0] = histogram[:, 0].sum(axis=-1) if self.axes else 0.0
        block[:, 1:] = (histogram * ratios).sum(axis=-1)
        gradient[-1] = np.trace(weight) * extra
        return float(value), gradient

    def covariance(self, theta: np.ndarray) -> Covariance:
        block = theta[:-1].reshape(len(self.shapes), -1)
        lengths = np.full((len(self.shapes), len(self.n_axis)), np.nan)
        own = np.full_like(lengths, np.nan)
        for p, k in enumerate(self.axes):
            if self.kinds[k] == "unordered":
                own[:, k] = 1 / (1 + np.exp(-block[:, 1 + p]))
            else:
                lengths[:, k] = np.exp(block[:, 1 + p])
        noise = NOISE_FLOOR + float(np.exp(theta[-1]))
        return Covariance(self.shapes, np.exp(block[:, 0]), lengths, own, noise)


def fit_covariance(
    values: np.ndarray,
    mask: np.ndarray,
    kinds: Sequence[str],
    correlations: dict[int, UnitCorrelation],
    kernel: str,
    seed: int,
) -> Covariance:
    """Fit the covariance of standardised `values`, read where `mask` is True.

    The likelihoods of a few small samples are added: they cost less than one of a large sample (the work grows with
    the cube of its size), see more of the field, and vary less from seed to seed.
    """
    rng = np.random.default_rng((seed, 0xC0F))
    parts = []
    for _ in range(SAMPLES if mask.sum() > CELLS else 1):
        cells = sample_cells(mask, kinds, CELLS, rng)
        y = values[tuple(cells.T)].astype(float)
        parts.append(_Likelihood(cells, y, SHAPES[kernel], kinds, correlations, mask.shape))
    guess, centre, width = parts[0].start()

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        off = (theta - centre) / width
        answers = [part(theta) for part in parts]
        gradient = np.sum([slope for _, slope in answers], axis=0)
        return sum(value for value, _ in answers) + 0.5 * float(off @ off), gradient + off / width

    bounds: list[Any] = [(c - 6 * w, c + 6 * w) for c, w in zip(centre, width)]
    options = {"maxiter": 60}
    found = scipy.optimize.minimize(objective, guess, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return parts[0].covariance(found.x)
