"""Masks drawn from a propensity model: Ising by Gibbs sampling, Bernoulli directly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from corten.data.arrays import Flags, Numbers
from corten.engine import as_engine, gibbs
from corten.propensity.coupling import Coupling, Product, as_coupling
from corten.propensity.link import Link, as_link
from corten.propensity.neighborhood import Neighborhood, resolve


def bernoulli(parameter: Numbers, link: str | Link = "logit", seed: int = 0) -> Flags:
    """Draw independent entries with log-odds 2 h(B): the Ising model without coupling.

    Examples
    --------
    >>> bool(bernoulli(np.full((3, 3), 50.0)).all())
    True
    """
    parameter = _checked(parameter)
    chance = expit(2.0 * as_link(link).value(parameter))
    return np.random.default_rng(seed).random(parameter.shape) < chance


def ising(
    parameter: Numbers,
    coupling: float | str | Coupling = Product(1 / 15),  # noqa: B008 - a frozen object
    link: str | Link = "logit",
    sweeps: int = 200,
    seed: int = 0,
    neighborhood: str | Neighborhood | ArrayLike = "adjacent",
    samples: int = 1,
    thin: int | None = None,
    burn_in: int | None = None,
    domain: Flags | None = None,
    periodic: Sequence[bool] = (),
    threads: int | None = None,
    engine: object = "auto",
) -> Flags:
    """Draw masks from the Ising model by block-Gibbs sampling; True is observed.

    The chain drops `burn_in` sweeps (a quarter of `sweeps`) and then takes one sample every `thin` sweeps
    (what is left of `sweeps`, shared evenly). One sample comes in the shape of `parameter`; more are stacked
    in front. The paper's draws are `sweeps=40_000, burn_in=10_000, samples=30`. Entries outside `domain` are
    False and have no influence. The result depends on the seed, not on `threads` or `engine`; "jax" and "gpu" sweep on
    a device.

    Examples
    --------
    >>> ising(np.ones((4, 5, 6)), sweeps=10, samples=2).shape
    (2, 4, 5, 6)
    """
    parameter = _checked(parameter)
    if samples < 1 or sweeps < samples:
        raise ValueError(f"sweeps is {sweeps} and samples {samples}; give at least one sweep per sample.")
    burn_in = sweeps // 4 if burn_in is None else burn_in
    thin = max(1, (sweeps - burn_in) // samples) if thin is None else thin
    if thin < 1 or burn_in < 0 or burn_in + thin * samples > sweeps:
        raise ValueError(
            f"sweeps is {sweeps}, but burn_in={burn_in} and {samples} samples every {thin} sweeps need "
            f"{burn_in + thin * samples}; raise sweeps."
        )
    if domain is not None and domain.shape != parameter.shape:
        raise ValueError(f"domain has shape {domain.shape}; parameter has {parameter.shape}.")
    field = 2.0 * as_link(link).value(parameter)
    hood = resolve(neighborhood, parameter.shape, periodic=periodic)
    colours = hood.colours(parameter.shape)
    plan = gibbs.prepare(
        parameter, field, coupling=as_coupling(coupling), offsets=hood.offsets, periodic=hood.periodic,
        colours=colours.number, phases=colours.phases,
    )  # fmt: skip
    start = np.random.default_rng(seed).random(parameter.shape) < expit(field)
    spins = np.where(start, np.int8(1), np.int8(-1))
    if domain is not None:
        spins[~domain] = 0
    threads = min(8, os.cpu_count() or 1) if threads is None else threads
    sweep = getattr(as_engine(engine), "sweep", None) or partial(gibbs.sweep, threads=threads)
    taken = np.empty((samples, *parameter.shape), dtype=bool)
    done = sweeps - thin * samples  # sweeps that no sample needs are spent before the first one
    spins = sweep(plan, spins, done, seed)
    for sample in taken:
        spins = sweep(plan, spins, thin, seed, first=done)
        done += thin
        np.greater(spins, 0, out=sample)
    return taken[0] if samples == 1 else taken


def _checked(parameter: Numbers) -> Numbers:
    parameter = np.asarray(parameter)
    parameter = parameter if parameter.dtype == np.float32 else parameter.astype(np.float64)
    if parameter.ndim < 2 or parameter.size == 0:
        raise ValueError(f"parameter has shape {parameter.shape}; give a non-empty array of two axes or more.")
    if not np.isfinite(parameter).all():
        raise ValueError("parameter holds NaN or infinity; every entry must be finite.")
    return parameter
