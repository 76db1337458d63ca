"""The mean with one effect per position of each axis: what few observed entries can determine of a table.

The effects of an axis are independent with a common variance, and so are the errors. The variances have the highest
restricted likelihood among ratios to that of the errors; an axis without influence gets the ratio zero. The estimate is
the best linear unbiased prediction: with few entries of a position its effect is shrunk towards zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from corten.completion.protocol import Fill
from corten.data.axes import Axis
from corten.data.choices import Choice

RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Variances of the effects of an axis, in variances of the errors, that are compared."""

MAX_SWEEPS = 4  # over the axes; one of them changes at a time
MAX_SOLVER_SWEEPS, SOLVER_TOLERANCE = 1000, 1e-6  # the latter in standard deviations of the values
MAX_LIKELIHOOD_ENTRIES = 500  # of the observed ones; the likelihood takes a time of the third power of their number


@dataclass(frozen=True)
class EffectsCompletion:
    """Fill with the mean and a shrunken effect for each position of each axis.

    Examples
    --------
    >>> x = np.add.outer(np.arange(8.0), 3 * np.arange(6.0))
    >>> mask = np.random.default_rng(0).random(x.shape) < 0.7
    >>> fill = EffectsCompletion().prepare(x, mask, (), seed=0).fill(x, mask)
    >>> bool(np.abs(fill.estimate - x).max() < 0.5)
    True
    """

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedEffects:
        """Choose the variances of the effects from the entries in `mask`."""
        entries = np.flatnonzero(mask)
        if entries.size > MAX_LIKELIHOOD_ENTRIES:
            entries = np.sort(np.random.default_rng((seed, 0xEF)).permutation(entries)[:MAX_LIKELIHOOD_ENTRIES])
        y, alike = values.reshape(-1)[entries].astype(np.float64), _alike(entries, mask.shape)
        ratios, best = np.zeros(mask.ndim), -np.inf
        if entries.size > 2 and y.min() < y.max():
            y = (y - y.mean()) / y.std()
            for _ in range(MAX_SWEEPS):
                before = best
                for k in range(mask.ndim):
                    for ratio in RATIOS:
                        tried = np.where(np.arange(mask.ndim) == k, ratio, ratios)
                        found = _restricted_likelihood(y, alike, tried)
                        if found > best + 1e-9:
                            best, ratios = found, tried
                if best <= before:
                    break
        names = [axis.name for axis in axes] or [f"axis {k}" for k in range(mask.ndim)]
        words = ", ".join(f"{name} {ratio:g}" for name, ratio in zip(names, ratios))
        because = "highest restricted likelihood of variances relative to that of the errors"
        choice = Choice(
            "variance of effects", words, because, code="effects_by_likelihood",
            values=dict(zip(names, map(float, ratios))),
        )  # fmt: skip
        return PreparedEffects(tuple(map(float, ratios)), (choice,))


@dataclass(frozen=True)
class PreparedEffects:
    """Effects with the ratios of their variances to that of the errors."""

    ratios: tuple[float, ...]
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill with the best linear unbiased prediction, by sweeps that solve for one axis at a time."""
        entries = np.flatnonzero(mask)
        places = np.unravel_index(entries, mask.shape)
        residual = values.reshape(-1)[entries].astype(np.float64)
        spread, centre = float(residual.std()), 0.0
        effects = [np.zeros(length) for length in mask.shape]
        counts = [np.bincount(place, minlength=length) for place, length in zip(places, mask.shape)]
        for _ in range(MAX_SOLVER_SWEEPS):
            change = float(residual.mean())
            centre, residual, largest = centre + change, residual - change, abs(change)
            for ratio, place, count, own in zip(self.ratios, places, counts, effects):
                if ratio:
                    step = (np.bincount(place, residual, minlength=own.size) - own / ratio) / (count + 1 / ratio)
                    own += step
                    residual -= step[place]
                    largest = max(largest, float(np.abs(step).max()))
            if largest <= SOLVER_TOLERANCE * spread:
                break
        estimate = np.full(mask.shape, centre)
        for k, own in enumerate(effects):
            estimate += own.reshape([-1 if j == k else 1 for j in range(mask.ndim)])
        return Fill(estimate)


def _alike(entries: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    """For each axis, whether two entries have the same position along it."""
    return [place[:, None] == place for place in np.unravel_index(entries, shape)]


def _covariance(alike: Sequence[np.ndarray], ratios: Sequence[float] | np.ndarray) -> np.ndarray:
    """The covariance of the observed values, in variances of the errors."""
    found = np.eye(len(alike[0]))
    for ratio, same in zip(ratios, alike):
        if ratio:
            found += ratio * same
    return found


def _restricted_likelihood(y: np.ndarray, alike: Sequence[np.ndarray], ratios: np.ndarray) -> float:
    """The restricted log-likelihood of the ratios but for a constant; mean and scale are eliminated."""
    root = scipy.linalg.cholesky(_covariance(alike, ratios), lower=True, overwrite_a=True, check_finite=False)
    both = np.stack([np.ones(y.size), y], axis=1)
    ones, data = scipy.linalg.solve_triangular(root, both, lower=True, check_finite=False).T
    information = ones @ ones
    residual = data @ data - (ones @ data) ** 2 / information
    log_determinant = 2 * np.log(np.diagonal(root)).sum()
    return float(-0.5 * (log_determinant + np.log(information) + (y.size - 1) * np.log(max(residual, 1e-12))))
