"""One fit of an Ising model: first the settings left to "auto", in order and recorded, then the descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, prod
from typing import TYPE_CHECKING

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, MaskPass, Model, Threads
from corten.lowrank import TensorTrain, Tucker, check_rank
from corten.lowrank.tucker import STRUCTURES
from corten.propensity.additive import tally
from corten.propensity.coupling import Coupling, Product, Zero, as_coupling
from corten.propensity.estimation import Estimate, Recipe, estimate, start_of
from corten.propensity.fitted import FittedPropensity, model_of
from corten.propensity.learning import Learned, learn
from corten.propensity.link import Link, Logit, as_link
from corten.propensity.neighborhood import Neighborhood
from corten.propensity.selection import Candidate, candidate_at, choose_model, choose_rank

if TYPE_CHECKING:
    from corten.propensity.ising import IsingPropensity

STRENGTHS = (1 / 30, 1 / 15, 0.15, 0.3)  # coupling strengths tried by "auto", besides zero
FIRST_RANK = 2  # smallest rank tried by "auto"


def open_neighborhoods(shape: Sequence[int]) -> list[str]:
    """The neighbourhoods that "auto" compares: adjacent entries, adjacent without one axis, and the cube."""
    axes = range(len(shape))
    without = [",".join(str(k) for k in axes if k != left_out) for left_out in axes]
    return ["adjacent", *(f"adjacent:{kept}" for kept in without), "cube"]


@dataclass
class Fitter:
    """Chooses the settings left to "auto" (neighbourhood and strength, then the rank) and fits.

    `neighborhoods` are the candidates to choose from; one if the neighbourhood is given.
    """

    config: IsingPropensity
    engine: Engine
    spins: np.ndarray
    train_share: float
    neighborhoods: Sequence[Neighborhood]

    def __post_init__(self) -> None:
        self.neighborhood = self.neighborhoods[0]
        self.known: Candidate | None = None  # the chosen strength at the rank that strengths were compared at

    def run(self) -> FittedPropensity:
        """Choose the open settings and fit."""
        coupling, link = as_coupling(self.config.coupling), as_link(self.config.link)
        if learns(coupling, link):
            return self._learn(coupling, link)
        recipe = self.recipe()
        choices: list[Choice] = []
        spent = 0
        best: Candidate | None = None
        if isinstance(coupling, Product) and coupling.is_auto:
            coupling, free, tried, choice, spent = self.compare(recipe)
            choices.append(choice)
            if isinstance(coupling, Zero) and self.config.criterion == "held-out":
                best = free
                choices.append(_rank_choice(best, tried, "held-out"))
        rank = self.config.rank
        if isinstance(rank, str):
            if best is None:
                best, all_tried = self._search(self.model(coupling), recipe, self.config.criterion, known=self.known)
                spent += sum(c.estimate.passes + 1 for c in all_tried)
                choices.append(_rank_choice(best, all_tried, self.config.criterion))
            rank = tuple(best.estimate.point.rank)
        passes = self.engine.mask_pass(self.spins, self.model(coupling), self.train_share)
        if best is not None and self.config.start == "spectral":
            start, start_passes = best.estimate.point, 0  # reaches the same minimum with a quarter fewer passes
        else:
            start, start_passes = self._start(rank, recipe)
        fit = estimate(passes, start, recipe=recipe, start_passes=start_passes)
        return self._fitted(fit, coupling, link, (*choices, *fit.choices), spent + fit.passes)

    def _fitted(
        self, fit: Estimate, coupling: Coupling, link: Link, choices: tuple[Choice, ...], passes: int
    ) -> FittedPropensity:
        """The fitted model; `passes` counts those of the choices too."""
        return FittedPropensity(
            fit.train, coupling, link, self.neighborhood, train_share=self.train_share, loss=fit.loss, passes=passes,
            stopped_because=fit.stopped_because, history=fit.history, choices=choices,
        )  # fmt: skip

    def compare(
        self, recipe: Recipe, all_entries: bool = False
    ) -> tuple[Coupling, Candidate, list[Candidate], Choice, int]:
        """The chosen coupling, the model without coupling, the ranks tried for it, the setting, and the passes spent.

        Independence and every strength are compared at the rank chosen for independent missingness, in every
        neighbourhood if that is open too. With `all_entries` they are compared by the loss of all entries, which
        separates strengths better than the loss of a held-out tenth.
        """
        free, tried = self._search(self.model(Zero()), recipe, "held-out")
        spent = sum(c.estimate.passes + 1 for c in tried)
        if len(self.neighborhoods) > 1 or all_entries:
            coupling, choice, more = self._compare_neighborhoods(free, recipe)
            return coupling, free, tried, choice, spent + more
        table = {"0": free}
        for strength in STRENGTHS:
            found, _ = self._search(self.model(Product(strength)), recipe, "held-out", free.rank)
            table[f"{strength:.3g}"] = found
            spent += found.estimate.passes + 1
        taken, choice = choose_model(table, tally(self.spins).training, "coupling strength")
        if self.train_share == 1 and self.config.criterion == "held-out":  # no expected spins: comparable with ranks
            self.known = table[taken]
        named: dict[str, Coupling] = dict(zip(table, (Zero(), *map(Product, STRENGTHS))))
        return named[taken], free, tried, choice, spent

    def _compare_neighborhoods(self, free: Candidate, recipe: Recipe) -> tuple[Coupling, Choice, int]:
        """The chosen coupling, the setting and the passes spent; also sets the neighbourhood.

        Strengths are divided by the relative number of neighbours. A coupling has one parameter more than independence,
        for which half the logarithm of the number of entries is added, as in P-BIC.
        """
        usual, penalty = len(self.neighborhoods[0].offsets), 0.5 * log(prod(self.spins.shape))
        models: dict[str, tuple[Coupling, Neighborhood]] = {"independent": (Zero(), self.neighborhoods[0])}
        for candidate in self.neighborhoods:
            for strength in STRENGTHS if len(candidate.offsets) else ():
                divided = strength * usual / len(candidate.offsets)
                models[f"{candidate.name}, {divided:.3g}"] = Product(divided), candidate
        table = {}
        for name, (coupling, self.neighborhood) in models.items():
            passes = self.engine.mask_pass(self.spins, self.model(coupling), self.train_share)
            found = candidate_at(passes, recipe, start=free.estimate.point)
            table[name] = replace(found, score=found.score + (0.0 if isinstance(coupling, Zero) else penalty))
        what, training = "neighborhood and coupling strength", tally(self.spins).training
        taken, choice = choose_model(table, training, what, score="penalised loss")
        coupling, self.neighborhood = models[taken]
        return coupling, choice, sum(c.estimate.passes + 1 for c in table.values())

    def _learn(self, coupling: Coupling, link: Link) -> FittedPropensity:
        """The fit with a learned strength or offset; an open rank is searched first without coupling, then with it."""
        known = None if getattr(coupling, "is_learned", False) else coupling.code().terms[0, 0]
        offset = None if link.is_learned else link.offset  # type: ignore[attr-defined]
        recipe, rank, spent = self.recipe(), self.config.rank, 0
        choices: list[Choice] = []
        found: Learned | None = None
        for _ in range(2 if isinstance(rank, str) else 1):
            bonds = rank
            if isinstance(rank, str):
                at = self.model(Product(found.strength), 2 * found.offset) if found else self.model(Zero(), 0.0)
                best, tried = self._search(at, recipe, self.config.criterion)
                spent += sum(c.estimate.passes + 1 for c in tried)
                bonds = tuple(best.estimate.point.rank)
                if found and bonds == found.estimate.point.rank:
                    break
                choices = [_rank_choice(best, tried, self.config.criterion)]
            start, passes = self._start(bonds, recipe)  # type: ignore[arg-type]
            found = learn(self._passes_at, start, recipe=recipe, strength=known, offset=offset, start_passes=passes)
            spent += found.estimate.passes
        assert found is not None
        coupling, link = Product(found.strength), Logit(found.offset)
        return self._fitted(found.estimate, coupling, link, (*choices, *found.estimate.choices), spent)

    def _passes_at(self, strength: float, offset: float) -> MaskPass:
        """A pass at this strength and offset; on threads, as accelerators have no pass with these derivatives."""
        threads = self.engine if isinstance(self.engine, Threads) else Threads()
        return threads.mask_pass(self.spins, self.model(Product(strength), 2 * offset), self.train_share)

    def _search(
        self,
        model: Model,
        recipe: Recipe,
        criterion: str,
        only: int | tuple[int, ...] | None = None,
        known: Candidate | None = None,
    ) -> tuple[Candidate, list[Candidate]]:
        """The best candidate among the ranks allowed (`only`: at one rank), and all that were tried."""
        rank = self.config.rank if only is None or not isinstance(self.config.rank, str) else only
        open_ranks = range(FIRST_RANK, self.config.max_rank + 1)
        ranks: Sequence[int | tuple[int, ...]] = open_ranks if isinstance(rank, str) else [rank]
        return choose_rank(
            self.engine, self.spins, model=model, train_share=self.train_share, recipe=recipe, criterion=criterion,
            ranks=ranks, known=known,
        )  # fmt: skip

    def model(self, coupling: Coupling, shift: float | None = None) -> Model:
        """The model in the form that passes read."""
        return model_of(coupling, as_link(self.config.link), self.neighborhood, shift)

    def recipe(self) -> Recipe:
        """The settings of the estimates, from the configuration."""
        c = self.config
        return Recipe(c.ridge, c.thinning, c.bound, c.step, c.structure, seed=c.seed)

    def _start(self, rank: int | tuple[int, ...], recipe: Recipe) -> tuple[TensorTrain | Tucker, int]:
        """The start that the configuration asks for, and the passes it took."""
        shape = self.spins.shape
        if isinstance(self.config.start, TensorTrain):
            if self.config.start.shape != shape:
                raise ValueError(f"start has shape {self.config.start.shape}; the mask has {shape}")
            return self.config.start.round(check_rank(shape, rank)), 0
        if self.config.start == "tt-svd":
            rng = np.random.default_rng([self.config.seed, 2])
            noisy = self.spins.astype(np.float64) + 0.1 * rng.standard_normal(shape)
            return STRUCTURES[recipe.structure].from_dense(noisy, rank, self.config.seed), 1
        return start_of(self.engine, self.spins, rank, recipe)


def _rank_choice(best: Candidate, tried: list[Candidate], criterion: str) -> Choice:
    """The record of the chosen rank and its candidates."""
    rows: tuple[dict[str, object], ...]
    rows = tuple({"rank": c.rank, criterion: c.score, "effective size": c.effective_size} for c in tried)
    name = "held-out loss" if criterion == "held-out" else criterion.upper()
    because = f"lowest {name} among ranks {tried[0].rank} to {tried[-1].rank}"
    code = f"rank_by_{criterion.replace('-', '_')}"
    return Choice("propensity rank", str(best.rank), because, rows, code=code, values={"rank": best.rank})


def learns(coupling: Coupling, link: Link) -> bool:
    """Whether the strength or the offset is learned; raises if coupling and link do not allow it."""
    strength, offset = getattr(coupling, "is_learned", False), getattr(link, "is_learned", False)
    if not strength and not offset:
        return False
    if not isinstance(coupling, Product) or coupling.is_auto or not isinstance(link, Logit):
        what = "coupling" if strength else "offset"
        raise ValueError(
            f"the {what} is 'learned' with coupling {coupling!r} and link {link!r}; give a "
            "product coupling (learned, or with a number) and the logit link"
        )
    return True
