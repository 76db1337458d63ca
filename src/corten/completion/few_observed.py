"""The conditional mean of a Gaussian process from few observed entries of a large tensor, without iterations.

The covariance of two entries of a field with reflecting ends depends, along every axis, on the difference and on the
sum of their positions: it is a sum of numbers of a table, which is made by one transform of the spectrum. So the matrix
of few observed entries is cheap, and one linear system is solved instead of a hundred transforms of the whole tensor.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import scipy.fft
import scipy.linalg

if TYPE_CHECKING:
    from corten.completion.gaussian_process import SpectralPrior

MAX_LOOKUPS_PER_ENTRY, MAX_FEW = 10, 3000
"""Numbers looked up in the table for each entry of the tensor: an iteration takes as long as ten or twenty of them. And
the most observed entries: their matrix takes memory of the square of their number."""


def are_few(observed: int, entries: int, axes: int) -> bool:
    """Whether so many observed entries of a tensor are few: the mean takes less time here than by iterations.

    Examples
    --------
    >>> are_few(1_000, 1_000_000, 3), are_few(2_000, 1_000_000, 3)
    (True, False)
    """
    return observed <= MAX_FEW and 2**axes * observed**2 <= MAX_LOOKUPS_PER_ENTRY * entries


def has_few_observed(prior: SpectralPrior, kept: np.ndarray) -> bool:
    """Whether the mean is computed here: few entries are observed, and all axes are ordered with equal steps."""
    few = are_few(int(np.count_nonzero(kept)), kept.size, len(prior.bases))
    return few and all(basis.cosines is not None for basis in prior.bases)


def mean_of_few(prior: SpectralPrior, values: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Mean of the field given `values` where `kept` is one; zero if nothing is observed."""
    at = np.nonzero(kept)
    matrix = covariance_of(prior, at)
    matrix[np.diag_indices_from(matrix)] += float(prior.noise)
    field = np.zeros(kept.shape, values.dtype)
    field[at] = scipy.linalg.solve(matrix, values[at].astype(np.float64), assume_a="pos") if len(matrix) else 0.0
    for basis in prior.bases:
        field = basis.forward(field)
    field *= prior.spectrum
    for basis in prior.bases:
        field = basis.inverse(field)
    return field


def covariance_of(prior: SpectralPrior, at: tuple[np.ndarray, ...]) -> np.ndarray:
    """The covariance of all pairs of the entries at these indices, without the noise."""
    axes = [basis.axis for basis in prior.bases]
    table = prior.spectrum.astype(np.float64)
    places = []
    for basis in prior.bases:
        size, position = len(basis.frequencies), at[basis.axis]
        # 2 cos a cos b = cos(a - b) + cos(a + b): sums of cosines, that of the number 0 with half the weight.
        padded = np.pad(table, [(0, int(k == basis.axis)) for k in range(table.ndim)])
        table = scipy.fft.dct(padded, type=1, axis=basis.axis) / (2 * size)
        difference = np.abs(np.subtract.outer(position, position))
        total = np.add.outer(position, position) + 1
        places.append((difference, np.minimum(total, 2 * size - total)))
    table = table.squeeze(tuple(k for k in range(table.ndim) if k not in axes))
    found = np.zeros((len(at[0]),) * 2)
    for signs in product(*places):
        found += table[signs]
    return found
