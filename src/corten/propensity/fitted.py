"""A fitted propensity model: log-odds of every entry, couplings and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, MaskPass, Model, as_engine
from corten.engine.layout import neighbours_of
from corten.engine.lazy import behind, check_codes, is_lazy, lazy_spins, takes_lazy
from corten.engine.memory import byte_tensor, let_go
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Coupling
from corten.propensity.link import Link
from corten.propensity.neighborhood import Neighborhood

NO_LOG_WEIGHT = -1e4  # its exponential is zero


@runtime_checkable
class PropensityModel(Protocol):
    """A model of the probability of being observed, before it is fitted."""

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = 0.7,
        *,
        domain: np.ndarray | None = None,
        axis_names: Sequence[str] | None = None,
        periodic: Sequence[bool] = (),
        engine: object = "auto",
    ) -> FittedPropensity:
        """Fit to a training mask.

        Parameters
        ----------
        training_mask : array of bool or int8
            True (or +1) for training entries, with at least two axes; int8 masks have 0 outside the domain.
        train_share : float, default 0.7
            The share of the observed entries that trains; 1 if all of them do.
        domain : array of bool, optional
            True for entries that could be observed; default all.
        axis_names : sequence of str, optional
            The names of the axes, for neighbourhoods such as "adjacent:lat,lon".
        periodic : sequence of bool, optional
            Which axes are periodic; default none.
        engine : str, int or Engine, default "auto"
            What runs the passes over the mask.

        Returns
        -------
        FittedPropensity

        Raises
        ------
        TypeError
            If the mask is neither boolean nor int8.
        ValueError
            If the mask has fewer than two axes, or an option does not suit its shape.
        """
        ...


def model_of(coupling: Coupling, link: Link, neighborhood: Neighborhood, shift: float | None = None) -> Model:
    """The model in the form that passes read; `shift` replaces that of the link."""
    code = coupling.code()
    offsets, periodic = neighborhood.offsets, neighborhood.periodic
    return Model(code.kind, code.terms, link.kind, offsets, periodic, shift=link.shift() if shift is None else shift)


@dataclass(frozen=True)
class FittedPropensity:
    """A fitted propensity model, returned by the `fit` of a propensity model.

    Parameters
    ----------
    parameter : TensorTrain or array
        The parameter B; an array only if it was given, not fitted.
    coupling, link, neighborhood : Coupling, Link, Neighborhood
        The functions g and h, and which entries are neighbours.
    domain : array of bool, optional
        True for entries that could be observed; None for all.
    train_share : float
        The share of the observed entries that the training mask kept.
    loss : float
        The negative log pseudo-likelihood of the training mask, in nats.
    passes : int
        Passes over the mask that the fit took.
    stopped_because : str
        Why the descent ended.
    history : tuple of float
        The loss (with ridge) after each pass.
    choices : tuple of Choice
        The settings that were chosen automatically.
    engine : str, int or Engine
        What runs passes over masks.
    max_log_weight : float
        The logarithm of the largest conformal weight that is used (see `limited`).

    Notes
    -----
    Given all other entries, entry i is observed with log-odds eta_i = 2 sum_j g(B_i, B_j) W_j + 2 h(B_i), the sum over
    its neighbours j, with W = +1 for observed and -1 for missing entries (equation pseudo-pi).

    Examples
    --------
    >>> from corten.propensity import UniformPropensity
    >>> mask = np.random.default_rng(0).random((20, 20)) < 0.5
    >>> fitted = UniformPropensity().fit(mask, train_share=1.0)
    >>> bool(np.isclose(fitted.probability(mask)[0, 0], mask.mean()))
    True
    """

    parameter: TensorTrain | np.ndarray
    coupling: Coupling
    link: Link
    neighborhood: Neighborhood
    domain: np.ndarray | None = None
    train_share: float = 1.0
    loss: float = float("nan")
    passes: int = 0
    stopped_because: str = ""
    history: tuple[float, ...] = ()
    choices: tuple[Choice, ...] = ()
    engine: object = field(default="auto", repr=False)
    max_log_weight: float = float("inf")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(self.parameter.shape)

    @property
    def rank(self) -> tuple[int, ...] | None:
        """Tensor-train ranks of the parameter; None if it is a plain array."""
        return self.parameter.rank if isinstance(self.parameter, TensorTrain) else None

    @property
    def independent(self) -> bool:
        """Whether entries are missing independently of their neighbours."""
        return self.coupling.code().kind == 0 or len(self.neighborhood.offsets) == 0

    @cached_property
    def model(self) -> Model:
        """The model in the form that passes read."""
        return model_of(self.coupling, self.link, self.neighborhood)

    def log_odds(self, mask: np.ndarray) -> np.ndarray:
        """Log-odds of being observed of every entry, given the other entries of `mask` (True = observed); float32.

        Raises
        ------
        ValueError
            If the mask has another shape than the model.
        """
        engine: Engine = as_engine(self.engine)
        spins = spins_of(mask, self.domain, isinstance(self.parameter, TensorTrain) and takes_lazy(engine))
        if spins.shape != self.shape:
            raise ValueError(f"mask has shape {spins.shape}; the model was fitted to {self.shape}")
        if isinstance(self.parameter, TensorTrain):
            passes: MaskPass = engine.mask_pass(spins, self.model, 1.0)
            return passes.log_odds(self.parameter.cores)
        return _dense_log_odds(self.parameter, spins, self.neighborhood, self.coupling, self.link)

    def log_weights(self, mask: np.ndarray) -> np.ndarray:
        """Log-odds of being missing, -eta, given the full mask: the logarithms of the conformal weights."""
        return -self.log_odds(mask)

    def limited(self, log_weights: np.ndarray, calibration: np.ndarray | bool) -> np.ndarray:
        """Log-weights up to the limit: calibration entries above it have no weight, missing entries the limit itself.

        For the missing entries below the limit this is exact: calibration entries above it are not like them.
        """
        if np.isinf(self.max_log_weight):
            return log_weights
        above = np.where(calibration, NO_LOG_WEIGHT, self.max_log_weight).astype(log_weights.dtype)
        return np.where(log_weights > self.max_log_weight, above, log_weights)

    def probability(self, mask: np.ndarray) -> np.ndarray:
        """Probability of being observed of every entry, given the other entries of `mask`."""
        eta = self.log_odds(mask)
        small = np.exp(-np.abs(eta))
        return np.where(eta >= 0, 1.0, small) / (1.0 + small)

    def pair(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """g(B_a, B_b) for flat indices a and b."""
        return np.asarray(self.coupling.value(self._at(a), self._at(b)))

    def neighbours(self, flat: np.ndarray) -> np.ndarray:
        """Flat indices of the neighbours of flat indices, -1 where there is none."""
        return self.neighborhood.neighbours(flat, self.shape)

    def _at(self, flat: np.ndarray) -> np.ndarray:
        """B at flat indices."""
        if isinstance(self.parameter, TensorTrain):
            return self.parameter.at_flat(flat)
        return self.parameter.reshape(-1)[flat]


@dataclass(frozen=True)
class TrainingMask:
    """The arguments of `PropensityModel.fit`; the mask is read and the engine made when they are first used."""

    mask: np.ndarray
    train_share: float
    domain: np.ndarray | None
    axis_names: Sequence[str] | None
    periodic: Sequence[bool]
    engine: object

    @cached_property
    def runner(self) -> Engine:
        return as_engine(self.engine)

    @cached_property
    def spins(self) -> np.ndarray:
        return spins_of(self.mask, self.domain, takes_lazy(self.runner))

    def completed(self, fitted: FittedPropensity) -> FittedPropensity:
        """The fitted model with its members that are those of the mask."""
        return replace(fitted, domain=self.domain, train_share=self.train_share, engine=self.engine)


class FitsMasks:
    """The `fit` of propensity models, which leaves the rest to their `_fit`."""

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = 0.7,
        *,
        domain: np.ndarray | None = None,
        axis_names: Sequence[str] | None = None,
        periodic: Sequence[bool] = (),
        engine: object = "auto",
    ) -> FittedPropensity:
        """Fit to a training mask; the parameters are those of `PropensityModel.fit`."""
        share = float(train_share)
        return self._fit(TrainingMask(training_mask, share, domain, axis_names, periodic=periodic, engine=engine))

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        raise NotImplementedError


def spins_of(mask: np.ndarray, domain: np.ndarray | None = None, lazy: bool = False) -> np.ndarray:
    """Return a boolean mask (True = observed) as int8 spins: +1, -1, and 0 outside the domain.

    Spins (int8, possibly a memory map) are returned without a copy if no domain is given. A Zarr or HDF5 array is read
    plane by plane, to memory if it fits and to a file otherwise. So is a Dask array, unless `lazy`: then it stays one,
    and the workers convert their parts.
    """
    mask = behind(mask)
    if lazy and is_lazy(mask):
        return lazy_spins(mask, domain)  # type: ignore[return-value]  # a Dask array, which a cluster takes
    chunks = None if isinstance(mask, np.ndarray) else getattr(mask, "chunks", None)
    if not hasattr(mask, "dtype"):
        mask = np.asarray(mask)
    if mask.dtype not in (np.dtype(bool), np.dtype(np.int8)):
        raise TypeError(f"mask has dtype {mask.dtype}; give a boolean mask (True = observed) or int8 spins")
    if mask.ndim < 2:
        raise ValueError(f"mask has {mask.ndim} axes; at least two are needed")
    if isinstance(mask, np.ndarray) and mask.dtype == np.int8 and mask.flags.c_contiguous and domain is None:
        return check_codes(mask)
    spins = byte_tensor(mask.shape)
    step = max(1, int(np.max(chunks[0]))) if chunks else 1
    for start in range(0, mask.shape[0], step):
        part, out = np.ascontiguousarray(mask[start : start + step]), spins[start : start + step]
        if part.dtype == bool:
            np.multiply(part.view(np.int8), np.int8(2), out=out)
            out -= np.int8(1)
        else:
            out[...] = check_codes(part)
        if domain is not None:
            out[~np.asarray(domain[start : start + step], bool)] = 0
        let_go(out)
    return spins


def _dense_log_odds(
    parameter: np.ndarray, spins: np.ndarray, neighborhood: Neighborhood, coupling: Coupling, link: Link
) -> np.ndarray:
    """Log-odds for a parameter given as an array, computed with one shifted copy per offset."""
    b, spin = np.asarray(parameter, np.float64), np.sign(spins).astype(np.float64)
    eta = 2 * np.asarray(link.value(b), np.float64)
    for offset in neighborhood.offsets if coupling.code().kind else ():
        near = neighbours_of(np.arange(b.size), offset[None], b.shape, neighborhood.periodic).reshape(b.shape)
        eta += 2 * np.asarray(coupling.value(b, b.flat[near])) * np.where(near < 0, 0.0, spin.flat[near])
    return eta.astype(np.float32)
