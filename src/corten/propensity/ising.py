"""Propensity models with a low-rank parameter (Ising, Bernoulli), a constant one, and a known one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from corten.engine.lazy import is_lazy
from corten.lowrank import TensorTrain
from corten.propensity.additive import constant_train, tally
from corten.propensity.coupling import Coupling, Product, Zero, as_coupling
from corten.propensity.estimation import STEPS
from corten.propensity.fitted import FitsMasks, FittedPropensity, TrainingMask
from corten.propensity.fitting import FIRST_RANK, Fitter, learns, open_neighborhoods
from corten.propensity.link import Link, as_link
from corten.propensity.neighborhood import Neighborhood, resolve
from corten.propensity.selection import PROPENSITY_CRITERIA


@dataclass(frozen=True)
class IsingPropensity(FitsMasks):
    """Locally dependent missingness: an Ising model with a low-rank parameter B.

    Parameters
    ----------
    coupling : Coupling, float or str
        The function g of two neighbouring entries: a coupling, a number (the strength of a product), "auto" (default;
        a product whose strength is chosen among a few, zero included) or "learned" (estimated together with B).
    link : Link or str
        "logit" (default), "probit", "zero", or a link such as `Logit("learned")`, whose offset is estimated too.
    neighborhood : str, Neighborhood or offsets
        "adjacent" (default), "adjacent:lat,lon", "cube", a set of offsets, or "auto" (chosen with the strength).
    rank : int, tuple of int or "auto"
        The tensor-train rank: one for all bonds, one for each, or (default) chosen by `criterion` up to `max_rank`.
    ridge : float or "auto"
        The factor of ``||B||^2 / 2`` in the loss; "auto" (default) grows with the number of parameters per entry.
    thinning : bool, default True
        Whether entries hidden for calibration enter with their expected spin instead of as missing.
    criterion : str
        How ranks are compared: "held-out" (default), "p-aic" or "p-bic".
    start : str or TensorTrain
        "spectral" (default), "tt-svd" (the paper's, of the perturbed mask) or a tensor train.
    step : str
        "barzilai-borwein" (default), "armijo" or "fixed" (both the paper's).
    bound : float, optional
        The largest ``|B|`` allowed.
    structure : str
        "tensor-train" (default) or "tucker".
    max_rank : int, default 15
        The largest rank tried.
    seed : int, default 0
        The seed of the random start and of held-out entries.

    Raises
    ------
    ValueError
        If an option has a value that is not allowed, or two options do not suit each other.

    Notes
    -----
    The Ising model is that of equations (boltzmann-distribution) and (hamiltonian); B is the minimiser of equation
    (low-rank-MPLE), and the criteria are (P-AIC-criterion) and (P-BIC-criterion).

    Examples
    --------
    >>> mask = np.random.default_rng(0).random((12, 12, 12)) < 0.5
    >>> IsingPropensity(coupling=Product(0.1), rank=2).fit(mask, train_share=0.7).rank
    (2, 2)
    """

    coupling: Coupling | str | float = field(default_factory=Product)
    link: Link | str = "logit"
    neighborhood: str | Neighborhood | Sequence[Sequence[int]] = "adjacent"
    rank: int | tuple[int, ...] | str = "auto"
    ridge: float | str = "auto"
    thinning: bool = True
    criterion: str = "held-out"
    start: str | TensorTrain = "spectral"
    step: str = "barzilai-borwein"
    bound: float | None = None
    structure: str = "tensor-train"
    max_rank: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "coupling", as_coupling(self.coupling))
        object.__setattr__(self, "link", as_link(self.link))
        if isinstance(self.rank, str) and self.rank != "auto":
            raise ValueError(f'rank is {self.rank!r}; give an integer, one per bond, or "auto"')
        if isinstance(self.ridge, str) and self.ridge != "auto":
            raise ValueError(f'ridge is {self.ridge!r}; give a number of at least 0 or "auto"')
        if not isinstance(self.ridge, str) and not 0 <= self.ridge < np.inf:
            raise ValueError(f"ridge is {self.ridge}; give a number of at least 0")
        learns(self.coupling, self.link)  # type: ignore[arg-type]
        if self._open_neighborhood and not getattr(self.coupling, "is_auto", False):
            raise ValueError(
                f'neighborhood is "auto" with coupling {self.coupling!r}; neighbourhoods are compared together '
                'with strengths: give coupling "auto" too'
            )
        for name, value, allowed in (
            ("criterion", self.criterion, PROPENSITY_CRITERIA),
            ("step", self.step, tuple(STEPS)),
            ("structure", self.structure, ("tensor-train", "tucker")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed are {', '.join(map(repr, allowed))}")
        if isinstance(self.start, str) and self.start not in ("spectral", "tt-svd"):
            raise ValueError(f'start is {self.start!r}; give "spectral", "tt-svd" or a TensorTrain')
        if self.max_rank < FIRST_RANK:
            raise ValueError(f"max_rank is {self.max_rank}; give at least {FIRST_RANK}")
        if self.bound is not None and not self.bound > 0:
            raise ValueError(f"bound is {self.bound}; give a positive number or None")

    @staticmethod
    def paper(coupling: Coupling | float = 1 / 15, rank: int | str = "auto") -> IsingPropensity:
        """The estimator of the paper: TT-SVD start, fixed step 0.1, no ridge, no thinning correction, P-AIC."""
        return IsingPropensity(
            coupling=as_coupling(coupling), rank=rank, ridge=0.0, thinning=False, criterion="p-aic",
            start="tt-svd", step="fixed",
        )  # fmt: skip

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        spins = given.spins
        if spins.ndim < 2:
            raise ValueError(f"training_mask has {spins.ndim} axes; at least two are needed")
        if is_lazy(spins) and self.start == "tt-svd":
            raise ValueError('start is "tt-svd", which needs the mask in memory: give "spectral", or load the mask')
        names = open_neighborhoods(spins.shape) if self._open_neighborhood else [self.neighborhood]
        neighborhoods = [resolve(name, spins.shape, given.axis_names, given.periodic) for name in names]
        fitter = Fitter(
            config=self, engine=given.runner, spins=spins, train_share=given.train_share, neighborhoods=neighborhoods
        )
        return given.completed(fitter.run())

    @property
    def _open_neighborhood(self) -> bool:
        return isinstance(self.neighborhood, str) and self.neighborhood == "auto"


@dataclass(frozen=True)
class BernoulliPropensity(FitsMasks):
    """Independent missingness with low-rank log-odds: the Ising model without coupling.

    Parameters
    ----------
    rank, link, ridge, criterion, structure, max_rank, seed
        As for `IsingPropensity`.

    Notes
    -----
    Equation (Bernoulli-model) of the paper.

    Examples
    --------
    >>> mask = np.random.default_rng(0).random((12, 12, 12)) < 0.5
    >>> BernoulliPropensity(rank=2).fit(mask, train_share=0.7).independent
    True
    """

    rank: int | tuple[int, ...] | str = "auto"
    link: Link | str = "logit"
    ridge: float | str = "auto"
    criterion: str = "held-out"
    structure: str = "tensor-train"
    max_rank: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        self._ising()

    def _ising(self) -> IsingPropensity:
        return IsingPropensity(
            coupling=Zero(), link=self.link, rank=self.rank, ridge=self.ridge, thinning=False,
            criterion=self.criterion, structure=self.structure, max_rank=self.max_rank, seed=self.seed,
        )  # fmt: skip

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        return self._ising()._fit(given)


@dataclass(frozen=True)
class UniformPropensity(FitsMasks):
    """The same probability of being observed for every entry.

    All weights are then equal, as in split conformal prediction. It has no parameters.

    Examples
    --------
    >>> mask = np.random.default_rng(0).random((12, 12)) < 0.5
    >>> UniformPropensity().fit(mask).rank
    (1,)
    """

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        spins = given.spins
        train, around = constant_train(spins.shape, tally(spins), given.train_share), resolve("adjacent", spins.shape)
        fitted = FittedPropensity(train, Zero(), as_link("logit"), around, stopped_because="nothing to fit")
        return given.completed(fitted)


@dataclass(frozen=True)
class KnownPropensity(FitsMasks):
    """A propensity model that is known, for simulations: nothing is fitted.

    Parameters
    ----------
    parameter : array or TensorTrain
        B, of the shape of the data; finite.
    coupling : Coupling, float or str
        The function g; default none.
    link : Link or str
        The function h; default "logit".
    neighborhood : str, Neighborhood or offsets
        Default "adjacent".

    Raises
    ------
    ValueError
        If B is not finite, or a strength or offset is not a number.

    Examples
    --------
    >>> mask = np.ones((3, 4), bool)
    >>> float(KnownPropensity(np.zeros((3, 4))).fit(mask).probability(mask)[0, 0])
    0.5
    """

    parameter: TensorTrain | np.ndarray
    coupling: Coupling | str | float = field(default_factory=Zero)
    link: Link | str = "logit"
    neighborhood: str | Neighborhood | Sequence[Sequence[int]] = "adjacent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "coupling", as_coupling(self.coupling))
        object.__setattr__(self, "link", as_link(self.link))
        if not isinstance(self.parameter, TensorTrain):
            array = np.array(self.parameter, np.float64)
            if not np.isfinite(array).all():
                raise ValueError("parameter has non-finite values; give finite numbers")
            array.flags.writeable = False
            object.__setattr__(self, "parameter", array)
        if isinstance(self.coupling, Product) and isinstance(self.coupling.strength, str):
            raise ValueError(f"coupling strength is {self.coupling.strength!r}; a known model needs its number")
        if getattr(self.link, "is_learned", False):
            raise ValueError("the link's offset is 'learned'; a known model needs its number")

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        shape = np.asarray(given.mask).shape
        if tuple(self.parameter.shape) != shape:
            raise ValueError(f"parameter has shape {tuple(self.parameter.shape)}; the mask has {shape}")
        around = resolve(self.neighborhood, shape, given.axis_names, given.periodic)
        coupling, link = as_coupling(self.coupling), as_link(self.link)
        fitted = FittedPropensity(self.parameter, coupling, link, around, stopped_because="known beforehand")
        return given.completed(fitted)
