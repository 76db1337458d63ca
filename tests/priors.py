"""The prior of a Gaussian process for one field: its basis, forward and back, and the conditional mean."""

import numpy as np

from corten.completion.gaussian_process import SpectralPrior
from corten.completion.spectral_solver import condition
from corten.engine.arrays import HostArrays


def to_coefficients(prior: SpectralPrior, array: np.ndarray) -> np.ndarray:
    """The coefficients of an array in the basis of the axes."""
    for basis in prior.bases:
        array = basis.forward(array)
    return array


def to_field(prior: SpectralPrior, array: np.ndarray) -> np.ndarray:
    """The array with these coefficients."""
    for basis in prior.bases:
        array = basis.inverse(array)
    return array


def conditional_mean(
    prior: SpectralPrior, values: np.ndarray, kept: np.ndarray, start: np.ndarray, iterations: int
) -> np.ndarray:
    """The mean of the field given `values` with weights `kept`; iterations begin with `start`."""
    one = {"values": values[None], "kept": kept[None], "start": start[None]}
    return np.asarray(condition(HostArrays(), [prior], **one, iterations=iterations)[0])
