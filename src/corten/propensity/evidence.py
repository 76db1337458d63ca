"""Chooses the propensity model by held-out loss: the simplest one that no richer model clearly beats.

Candidates, from simple to rich: a constant, an additive model, a low-rank model, a low-rank model with coupling
(Ising). Cells of the training mask are held out in random groups: their terms leave the likelihood while their spins
stay as neighbours. Each candidate is fitted without a fold of groups and scored on each group. A richer candidate is
taken only if it lowers the loss of the one taken so far by two standard errors of the paired differences. There is one
exception: a coupling is one number more than the low-rank model has, so these two are compared by the loss of all cells
at one rank, with half a log of the number of entries charged for the number (as P-BIC would). This tells coupled from
independent cells where the held-out loss does not: on masks of 40^3 entries the gain of the true model is 50 to 90,
while the held-out loss has a standard error of 13.

Validity. Weighted conformal prediction treats the calibration entries and one missing entry as exchangeable up to
their weights, given the training entries. So the choice of the weights must not depend on which of these entries is
the missing one. Here everything is computed from the training mask alone: the candidates, their losses and the
effective sample size. The full mask would not do, not even for the effective sample size only: one entry with a very
large weight makes the effective sample size small when it is a calibration entry, and has no influence on it when
it is the missing entry, so the rule would not be symmetric just where it decides.

Effective sample size. Given the training mask, an entry outside the training set is a calibration entry with
probability c = (1 - q) p / (1 - q p) and missing with probability m = (1 - p) / (1 - q p). With the weights
w = (1 - p) / p the expected effective sample size of the calibration set is (sum c w)^2 / sum c w^2. As
c w = (1 - q) m, this is the total weight of the calibration entries divided by the mean weight of a missing entry:
the number that decides whether the interval of a missing entry is finite. A candidate whose expected effective sample
size is too small is replaced by a simpler one. The training entries alone do not show this: a model that fits the
training mask too closely gives them small weights, and large ones to all other entries, the calibration entries among
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, Model, as_engine
from corten.engine.lazy import is_lazy, takes_lazy
from corten.propensity.additive import (
    AdditivePropensity,
    Frame,
    constant_train,
    fit_additive,
    independent,
    tally,
)
from corten.propensity.coupling import Coupling, Zero
from corten.propensity.estimation import estimate, start_of
from corten.propensity.fitted import FittedPropensity, spins_of
from corten.propensity.fitting import FIRST_RANK, Fitter
from corten.propensity.ising import BernoulliPropensity, IsingPropensity, UniformPropensity
from corten.propensity.neighborhood import resolve
from corten.propensity.selection import SEARCH_TOLERANCE, Candidate, enough, held_out, swapped, without_held_out

__all__ = ["AutoPropensity", "expected_effective_size"]

FOLDS = 5
GROUPS = 10  # in each fold; standard errors come from the differences between groups
ONE_FOLD_ENTRIES = 1_000_000  # from here on one fold has cells enough to tell models apart
MIN_STANDARD_ERRORS = 2.0
MIN_GAIN = 1.0  # nats, beside the standard errors: smaller gains are rounding where models nearly agree
STREAM = 9973  # added to the seed: folds must not be those that a rank was chosen on


class _Scored(NamedTuple):
    """A candidate, and its held-out loss in each group."""

    name: str
    config: Any
    losses: np.ndarray


@dataclass(frozen=True)
class AutoPropensity:
    """Choose a constant, additive, low-rank or Ising model by held-out loss, the simplest unless a richer one is
    clearly better.

    max_rank: largest rank tried for the low-rank models; seed: of the folds.

    Example:
        >>> mask = np.random.default_rng(0).random((20, 30)) < 0.6
        >>> law = AutoPropensity().fit(mask, train_share=1.0)
        >>> law.choices[0].taken
        'constant'
    """

    max_rank: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        IsingPropensity(max_rank=self.max_rank, seed=self.seed)

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
        """Choose and fit, both from a boolean training mask, of which `train_share` of the observed entries was kept.

        The first of the fit's choices names the model and lists the loss of every candidate.
        """
        runner: Engine = as_engine(engine)
        spins = spins_of(training_mask, domain, takes_lazy(runner))
        q = float(train_share)
        found, notes = self._candidates(runner, spins, q, axis_names, periodic)
        order, rows = _by_evidence(found)
        training = tally(spins).training
        calibration = training * (1 - q) / q if q < 1 else float(training)
        need, refused = enough(int(calibration)), ""
        for one in reversed(order):
            law: FittedPropensity = one.config.fit(
                spins, q, axis_names=axis_names, periodic=periodic, engine=engine
            )
            size = expected_effective_size(law, runner, spins, q)
            if size >= need or one is order[0]:
                break
            refused += (
                f"; the {one.name} model has a lower loss, but its weights have an expected effective sample size of "
                f"{size:.0f}, below {need:.0f}"
            )
        because = (
            "the simplest model that no richer one beats in held-out loss by "
            f"{MIN_STANDARD_ERRORS:.0f} standard errors{refused}"
        )
        choice = Choice("propensity model", one.name, because, rows)
        kept = (*notes, *law.choices) if one.name in ("low rank", "Ising") else law.choices
        return replace(law, domain=domain, choices=(choice, *kept))

    def settled(self, law: FittedPropensity) -> Any:
        """The model that a fit took, with its settings, so that another mask can be fitted without a new choice."""
        made: dict[str, Any] = {
            "constant": UniformPropensity(),
            "additive": AdditivePropensity(),
            "low rank": BernoulliPropensity(rank=law.rank or 1, seed=self.seed),
            "Ising": IsingPropensity(coupling=law.coupling, rank=law.rank or 1, seed=self.seed),
        }
        return made[law.choices[0].taken]

    def _candidates(
        self, engine: Engine, spins: Any, q: float, names: Sequence[str] | None, periodic: Sequence[bool]
    ) -> tuple[list[_Scored], tuple[Choice, ...]]:
        """Every candidate with its held-out losses, from simple to rich, and what was chosen on the way."""
        shape = spins.shape
        configs: list[tuple[str, Any]] = [("constant", UniformPropensity()), ("additive", AdditivePropensity())]
        around = resolve("adjacent", shape, names, periodic)
        fitter = Fitter(IsingPropensity(max_rank=self.max_rank, seed=self.seed), engine, spins, q, [around])
        notes: tuple[Choice, ...] = ()
        coupling: Coupling = Zero()
        free: Candidate | None = None
        if min(shape) >= FIRST_RANK:
            coupling, free, _, note, _ = fitter.compare(fitter.recipe(), all_cells=True)
            notes = (note,)
            configs.append(("low rank", BernoulliPropensity(rank=free.estimate.train.rank, seed=self.seed)))
            if not isinstance(coupling, Zero):
                configs.append(("Ising", IsingPropensity(coupling=coupling, max_rank=self.max_rank, seed=self.seed)))
        folds = 1 if prod(shape) >= ONE_FOLD_ENTRIES or is_lazy(spins) else FOLDS  # masks of a cluster are large
        losses: list[list[float]] = [[] for _ in configs]
        for fold in range(folds):
            fits = self._fits(fitter, fold, coupling, free)
            for group in range(GROUPS):
                low = (fold + group / GROUPS) / FOLDS
                cells = swapped(held_out(spins, self.seed + STREAM, 1 / FOLDS / GROUPS, low))
                for have, (model, frame, soft) in zip(losses, fits):
                    have.append(engine.mask_pass(cells, model, q).loss_and_contractions(frame, soft)[0])
        return [_Scored(*one, np.array(have)) for one, have in zip(configs, losses)], notes

    def _fits(
        self, fitter: Fitter, fold: int, coupling: Coupling, free: Candidate | None
    ) -> list[tuple[Model, Any, Any]]:
        """Model, parameter and expected spins of every candidate, fitted without the cells of a fold."""
        spins, q, engine = fitter.spins, fitter.train_share, fitter.engine
        seen = held_out(spins, self.seed + STREAM, 1 / FOLDS, fold / FOLDS)
        counted, alone = tally(seen), independent(spins.shape)
        passes = engine.mask_pass(seen, alone, q)
        fits: list[tuple[Model, Any, Any]] = [
            (alone, Frame.of(constant_train(spins.shape, counted, q)), None),
            (alone, Frame.of(fit_additive(passes, counted)[0]), None),
        ]
        if free is None:
            return fits
        recipe = replace(fitter.recipe(), tolerance=SEARCH_TOLERANCE)
        start, _ = start_of(engine, without_held_out(seen), tuple(free.estimate.point.rank), recipe)
        plain = estimate(passes, start, replace(recipe, thinning=False))
        fits.append((alone, plain.train.frame(), None))
        if not isinstance(coupling, Zero):
            model = fitter.model(coupling)
            joint = estimate(engine.mask_pass(seen, model, q), plain.point, recipe, keep_soft=True)
            fits.append((model, joint.train.frame(), joint.soft))
        return fits


def _by_evidence(found: Sequence[_Scored]) -> tuple[list[_Scored], tuple[dict[str, object], ...]]:
    """The candidates that were taken on the way from simple to rich, the last one best, and the record of all."""
    taken = [found[0]]
    rows: list[dict[str, object]] = [{"model": found[0].name, "held-out loss": float(found[0].losses.sum())}]
    for one in found[1:]:
        gains = taken[-1].losses - one.losses
        gain = float(gains.sum())
        error = float(gains.std(ddof=1) * np.sqrt(len(gains)))
        rows.append({
            "model": one.name, "held-out loss": float(one.losses.sum()), "compared with": taken[-1].name,
            "gain": gain, "standard error": error,
        })  # fmt: skip
        coupled = one.name == "Ising" and taken[-1].name == "low rank"  # compared by the loss of all cells
        if gain > (0.0 if coupled else max(MIN_STANDARD_ERRORS * error, MIN_GAIN)):
            taken.append(one)
    return taken, tuple(rows)


def expected_effective_size(law: FittedPropensity, engine: Engine, spins: Any, train_share: float) -> float:
    """Effective sample size of the calibration weights that a model expects, given the training mask alone.

    With a train share of one no entry is hidden: the observed entries then stand for the calibration entries.
    """
    q, first, second = train_share, 0.0, 0.0
    passes = engine.mask_pass(spins, law.model, 1.0)
    for start, stop, eta in passes.log_odds_slabs(law.parameter.cores):  # type: ignore[union-attr]
        part = np.asarray(spins[start:stop])
        odds = np.exp(np.clip(eta[part == -1 if q < 1 else part != 0], -60, 60).astype(np.float64))
        # c = (1-q) p / (1-q p), w = (1-p) / p
        chance = (1 - q) * odds / (1 + (1 - q) * odds) if q < 1 else odds / (1 + odds)
        first += float(np.sum(chance / odds))
        second += float(np.sum(chance / odds**2))
    return first**2 / second if second > 0 else 0.0
