"""Models of the missingness: Bernoulli, Ising, uniform and known. Configuration first, then `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corten.choices import Choice
from corten.engine import Engine, MaskPass, Model, Threads, as_engine
from corten.engine.lazy import is_lazy, takes_lazy
from corten.engine.memory import parts
from corten.lowrank import TensorTrain, Tucker, check_rank, check_tucker_rank
from corten.propensity.coupling import Coupling, Product, Zero, as_coupling
from corten.propensity.estimation import STEPS, Estimate, Recipe, estimate, start_of
from corten.propensity.fitted import FittedPropensity, spins_of
from corten.propensity.learning import Learned, learn
from corten.propensity.link import Link, Logit, as_link
from corten.propensity.neighborhood import Neighborhood, resolve
from corten.propensity.selection import CRITERIA, Candidate, choose_model, choose_rank

__all__ = ["BernoulliPropensity", "IsingPropensity", "KnownPropensity", "UniformPropensity"]

STRENGTHS = (1 / 30, 1 / 15, 0.15, 0.3)
FIRST_RANK = 2


@dataclass(frozen=True)
class IsingPropensity:
    """Locally dependent missingness: an Ising model with a parameter of low rank, fitted by pseudo-likelihood.

    coupling: how neighbours pull: `Product(strength)`, a number, "auto" (chosen among a few by what the weights are
    worth) or "learned" (estimated together with B); link: "logit", "probit", "zero" or `Logit("learned")`, whose
    offset is estimated too; neighborhood: "adjacent", "adjacent:lat,lon", "cube" or offsets; rank: an integer (every
    bond), a tuple or "auto"; ridge: a number, or "auto" for one that grows with the parameters per entry; thinning:
    read entries hidden for calibration as their expected spin; criterion: how "auto" ranks are compared, up to
    `max_rank`; start: "spectral", "tt-svd" (the paper's, of the perturbed mask) or a TensorTrain; step:
    "barzilai-borwein", "armijo", "conjugate" or "fixed"
    (the paper's); bound: largest |B| allowed; structure: "tensor-train" or "tucker".

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
        _learns(self.coupling, self.link)  # type: ignore[arg-type]
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
        around = resolve(self.neighborhood, spins.shape, axis_names, periodic)
        fitter = _Fitter(self, runner, spins, float(train_share), around)
        fit, coupling, link, choices, passes = fitter.run()
        return FittedPropensity(
            fit.train, coupling, link, around, domain, float(train_share), fit.loss, passes,
            fit.stopped_because, fit.history, choices, engine,
        )  # fmt: skip


@dataclass
class _Fitter:
    """One fit: the choices left open, made in order; strength by held-out loss, rank by its criterion."""

    config: IsingPropensity
    engine: Engine
    spins: np.ndarray
    train_share: float
    around: Neighborhood

    def run(self) -> tuple[Estimate, Coupling, Link, tuple[Choice, ...], int]:
        coupling, link = as_coupling(self.config.coupling), as_link(self.config.link)
        if _learns(coupling, link):
            return self._learn(coupling, link)
        recipe = self._recipe()
        choices: list[Choice] = []
        spent = 0
        best: Candidate | None = None
        if isinstance(coupling, Product) and coupling.is_auto:
            # Strengths are compared at the rank that suits independent missingness; the one taken searches its own.
            free, tried = self._search(Zero(), recipe, "held-out")
            spent += sum(c.estimate.passes + 1 for c in tried)
            table = {"0": free}
            for strength in STRENGTHS:
                found, _ = self._search(Product(strength), recipe, "held-out", free.rank)
                table[f"{strength:.3g}"] = found
                spent += found.estimate.passes + 1
            taken, choice = choose_model(table, self._training(), "coupling strength")
            choices.append(choice)
            named: dict[str, Coupling] = dict(zip(table, (Zero(), *map(Product, STRENGTHS))))
            coupling = named[taken]
            if taken == "0" and self.config.criterion == "held-out":
                best = free
                self._record_rank(choices, best, tried, "held-out")
        rank = self.config.rank
        if isinstance(rank, str):
            if best is None:
                best, all_tried = self._search(coupling, recipe, self.config.criterion)
                spent += sum(c.estimate.passes + 1 for c in all_tried)
                self._record_rank(choices, best, all_tried, self.config.criterion)
            rank = tuple(best.estimate.point.rank)
        passes = self.engine.mask_pass(self.spins, self._model(coupling), self.train_share)
        if best is not None and self.config.start == "spectral":
            start, start_passes = best.estimate.point, 0  # the same minimum in a quarter fewer passes
        else:
            start, start_passes = self._start(rank, recipe)
        fit = estimate(passes, start, recipe, start_passes)
        return fit, coupling, link, (*choices, *fit.choices), spent + fit.passes

    def _learn(self, coupling: Coupling, link: Link) -> tuple[Estimate, Coupling, Link, tuple[Choice, ...], int]:
        """Learn strength or offset with B; an open rank is searched without coupling, then once more with it."""
        known = None if getattr(coupling, "is_learned", False) else coupling.code().terms[0, 0]
        offset = None if link.is_learned else link.offset  # type: ignore[attr-defined]
        recipe, rank, spent = self._recipe(), self.config.rank, 0
        choices: list[Choice] = []
        found: Learned | None = None
        for _ in range(2 if isinstance(rank, str) else 1):
            bonds = rank
            if isinstance(rank, str):
                at = Product(found.strength) if found else Zero()
                best, tried = self._search(at, recipe, self.config.criterion, shift=2 * found.offset if found else 0.0)
                spent += sum(c.estimate.passes + 1 for c in tried)
                bonds = tuple(best.estimate.point.rank)
                if found and bonds == found.estimate.point.rank:
                    break
                choices = []
                self._record_rank(choices, best, tried, self.config.criterion)
            start, start_passes = self._start(bonds, recipe)  # type: ignore[arg-type]
            found = learn(self._passes_at, start, recipe, known, offset, start_passes)
            spent += found.estimate.passes
        assert found is not None
        return found.estimate, Product(found.strength), Logit(found.offset), (*choices, found.choice), spent

    def _passes_at(self, strength: float, offset: float) -> MaskPass:
        """Slopes in strength and offset are taken by threads; an accelerator has no pass for them."""
        threads = self.engine if isinstance(self.engine, Threads) else Threads()
        return threads.mask_pass(self.spins, self._model(Product(strength), 2 * offset), self.train_share)

    def _training(self) -> int:
        return sum(int(np.count_nonzero(part == 1)) for _, _, part in parts(self.spins))

    def _record_rank(
        self, choices: list[Choice], best: Candidate, tried: list[Candidate], criterion: str
    ) -> None:
        rows: tuple[dict[str, object], ...] = tuple(
            {"rank": c.rank, criterion: c.score, "effective size": c.effective_size} for c in tried
        )
        choices.append(
            Choice("propensity rank", str(best.rank), f"smallest {criterion} of the ranks tried", rows)
        )

    def _search(
        self, coupling: Coupling, recipe: Recipe, criterion: str, only: int | None = None, shift: float | None = None
    ) -> tuple[Candidate, list[Candidate]]:
        rank = self.config.rank if only is None or not isinstance(self.config.rank, str) else only
        ranks = range(FIRST_RANK, self.config.max_rank + 1) if isinstance(rank, str) else [rank]
        return choose_rank(
            self.engine,
            self.spins,
            self._model(coupling, shift),
            self.train_share,
            recipe,
            criterion,
            ranks,  # type: ignore[arg-type]
        )

    def _model(self, coupling: Coupling, shift: float | None = None) -> Model:
        code, link, around = coupling.code(), as_link(self.config.link), self.around
        return Model(
            code.kind, code.terms, link.kind, around.offsets, around.periodic, link.shift() if shift is None else shift
        )

    def _recipe(self) -> Recipe:
        c = self.config
        return Recipe(
            ridge=c.ridge, thinning=c.thinning, bound=c.bound, step=c.step, structure=c.structure, seed=c.seed
        )

    def _start(self, rank: int | tuple[int, ...], recipe: Recipe) -> tuple[TensorTrain | Tucker, int]:
        shape = self.spins.shape
        if isinstance(self.config.start, TensorTrain):
            if self.config.start.shape != shape:
                raise ValueError(f"start has shape {self.config.start.shape}; the mask has {shape}")
            return self.config.start.round(check_rank(shape, rank)), 0
        if self.config.start == "tt-svd":
            rng = np.random.default_rng([self.config.seed, 2])
            noisy = self.spins.astype(np.float64) + 0.1 * rng.standard_normal(shape)
            if recipe.structure == "tucker":
                return Tucker.from_dense(noisy, check_tucker_rank(shape, rank), self.config.seed), 1
            return TensorTrain.from_dense(noisy, check_rank(shape, rank), self.config.seed), 1
        return start_of(self.engine, self.spins, rank, recipe)


def _learns(coupling: Coupling, link: Link) -> bool:
    """Whether strength or offset are to be learned; refuses pairs for which they cannot be."""
    strength, offset = getattr(coupling, "is_learned", False), getattr(link, "is_learned", False)
    if not strength and not offset:
        return False
    if not isinstance(coupling, Product) or coupling.is_auto or not isinstance(link, Logit):
        what = "coupling" if strength else "offset"
        raise ValueError(
            f"the {what} is to be learned with coupling {coupling.label()} and link {link.label()}; that takes a "
            "product coupling, learned or with a number, and the logit link"
        )
    return True


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
    """Every entry equally likely to be missing: unweighted conformal prediction."""

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
        mask = spins_of(training_mask, domain)
        counts = [(np.count_nonzero(part > 0), np.count_nonzero(part)) for _, _, part in parts(mask)]
        seen, inside = np.sum(counts, axis=0)
        share = float(np.clip(seen / (train_share * max(inside, 1)), 1e-6, 1 - 1e-6))
        level = float(np.log(share / (1 - share)))
        cores = [np.ones((1, d, 1)) for d in mask.shape]
        cores[0] = cores[0] * level
        around = resolve("adjacent", mask.shape)
        return FittedPropensity(
            TensorTrain(tuple(cores)), Zero(), as_link("logit"), around, domain, float(train_share),
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
