"""Models of the missingness: Bernoulli, Ising, uniform and known. Configuration first, then `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corten.engine import as_engine
from corten.engine.lazy import is_lazy, takes_lazy
from corten.lowrank import TensorTrain
from corten.propensity.additive import constant_train, tally
from corten.propensity.coupling import Coupling, Product, Zero, as_coupling
from corten.propensity.estimation import STEPS
from corten.propensity.fitted import FittedPropensity, spins_of
from corten.propensity.fitting import FIRST_RANK, Fitter, learns, open_neighborhoods
from corten.propensity.link import Link, as_link
from corten.propensity.neighborhood import Neighborhood, resolve
from corten.propensity.selection import CRITERIA

__all__ = ["BernoulliPropensity", "IsingPropensity", "KnownPropensity", "UniformPropensity"]


@dataclass(frozen=True)
class IsingPropensity:
    """Locally dependent missingness: an Ising model with a parameter of low rank, fitted by pseudo-likelihood.

    coupling: how neighbours pull: `Product(strength)`, a number, "auto" (chosen among a few by what the weights are
    worth) or "learned" (estimated together with B); link: "logit", "probit", "zero" or `Logit("learned")`, whose
    offset is estimated too; neighborhood: "adjacent", "adjacent:lat,lon", "cube", offsets or "auto" (chosen together
    with the strength); rank: an integer (every bond), a tuple or "auto"; ridge: a number, or "auto" for one that grows
    with the parameters per entry; thinning: read entries hidden for calibration as their expected spin; criterion:
    how "auto" ranks are compared, up to `max_rank`; start: "spectral", "tt-svd" (the paper's, of the perturbed mask)
    or a TensorTrain; step: "barzilai-borwein", "armijo", "conjugate" or "fixed" (the paper's); bound: largest |B|
    allowed; structure: "tensor-train" or "tucker".

    Example:
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
                f'neighborhood is "auto" with coupling {self.coupling.label()}; neighbourhoods are compared together '  # type: ignore[union-attr]
                'with strengths: give coupling "auto" too'
            )
        for name, value, allowed in (
            ("criterion", self.criterion, CRITERIA),
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
        """The paper's own estimator: TT-SVD start, fixed step 0.1, no ridge, no thinning correction, P-AIC."""
        return IsingPropensity(
            coupling=as_coupling(coupling), rank=rank, ridge=0.0, thinning=False, criterion="p-aic",
            start="tt-svd", step="fixed",
        )  # fmt: skip

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = 0.7,
        *,
        domain: np.ndarray | None = None,
        axis_names: Sequence[str] | None = None,
        periodic: Sequence[bool] = (),
        engine: Any = "auto",
    ) -> FittedPropensity:
        """Fit to a boolean training mask, of which `train_share` of the observed entries was kept (1: all of them)."""
        runner = as_engine(engine)
        spins = spins_of(training_mask, domain, takes_lazy(runner))
        if spins.ndim < 2:
            raise ValueError(f"training_mask has {spins.ndim} mode(s); at least two are needed")
        if is_lazy(spins) and self.start == "tt-svd":
            raise ValueError('start is "tt-svd", which needs the whole mask here: give "spectral", or load it first')
        names = open_neighborhoods(spins.shape) if self._open_neighborhood else [self.neighborhood]
        around = [resolve(name, spins.shape, axis_names, periodic) for name in names]
        found = Fitter(self, runner, spins, float(train_share), around).run()
        fit = found.estimate
        return FittedPropensity(
            fit.train, found.coupling, found.link, found.around, domain, float(train_share), fit.loss, found.passes,
            fit.stopped_because, fit.history, found.choices, engine,
        )  # fmt: skip

    @property
    def _open_neighborhood(self) -> bool:
        return isinstance(self.neighborhood, str) and self.neighborhood == "auto"


@dataclass(frozen=True)
class BernoulliPropensity:
    """Independent missingness with a low-rank log-odds: the Ising model without neighbours.

    Example:
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

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = 0.7,
        *,
        domain: np.ndarray | None = None,
        axis_names: Sequence[str] | None = None,
        periodic: Sequence[bool] = (),
        engine: Any = "auto",
    ) -> FittedPropensity:
        """Fit to a boolean training mask, of which `train_share` of the observed entries was kept."""
        return self._ising().fit(
            training_mask, train_share, domain=domain, axis_names=axis_names, periodic=periodic, engine=engine
        )


@dataclass(frozen=True)
class UniformPropensity:
    """The same probability of being observed everywhere: all weights are equal, as in split conformal prediction.

    Example:
        >>> mask = np.random.default_rng(0).random((12, 12)) < 0.5
        >>> UniformPropensity().fit(mask).rank
        (1,)
    """

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = 0.7,
        *,
        domain: np.ndarray | None = None,
        axis_names: Sequence[str] | None = None,
        periodic: Sequence[bool] = (),
        engine: Any = "auto",
    ) -> FittedPropensity:
        """The overall share of observed entries, the same log-odds everywhere."""
        spins = spins_of(training_mask, domain, takes_lazy(as_engine(engine)))
        train = constant_train(spins.shape, tally(spins), float(train_share))
        return FittedPropensity(
            train, Zero(), as_link("logit"), resolve("adjacent", spins.shape), domain, float(train_share),
            stopped_because="nothing to fit", engine=engine,
        )  # fmt: skip


@dataclass(frozen=True)
class KnownPropensity:
    """A missingness model that is known beforehand (an oracle): parameter B, coupling and link.

    parameter: an array of the data's shape, or a TensorTrain.
    """

    parameter: Any
    coupling: Coupling | str | float = field(default_factory=Zero)
    link: Link | str = "logit"
    neighborhood: str | Neighborhood | Sequence[Sequence[int]] = "adjacent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "coupling", as_coupling(self.coupling))
        object.__setattr__(self, "link", as_link(self.link))
        if not isinstance(self.parameter, TensorTrain):
            array = np.array(self.parameter, np.float64)
            if not np.isfinite(array).all():
                raise ValueError("parameter holds values that are not finite")
            array.flags.writeable = False
            object.__setattr__(self, "parameter", array)
        if isinstance(self.coupling, Product) and isinstance(self.coupling.strength, str):
            raise ValueError(f"coupling strength is {self.coupling.strength!r}; a known model needs its number")
        if getattr(self.link, "is_learned", False):
            raise ValueError("the link's offset is 'learned'; a known model needs its number")

    def fit(
        self,
        training_mask: np.ndarray,
        train_share: float = 0.7,
        *,
        domain: np.ndarray | None = None,
        axis_names: Sequence[str] | None = None,
        periodic: Sequence[bool] = (),
        engine: Any = "auto",
    ) -> FittedPropensity:
        """Nothing is fitted; the shape is checked."""
        shape = np.asarray(training_mask).shape
        if tuple(self.parameter.shape) != shape:
            raise ValueError(f"parameter has shape {tuple(self.parameter.shape)}; the mask has {shape}")
        around = resolve(self.neighborhood, shape, axis_names, periodic)
        return FittedPropensity(
            self.parameter, as_coupling(self.coupling), as_link(self.link), around, domain,
            float(train_share), stopped_because="known beforehand", engine=engine,
        )  # fmt: skip
