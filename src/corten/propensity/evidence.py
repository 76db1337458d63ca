"""Automatic choice of the propensity model by held-out loss: a richer model must be better by two standard errors.

docs/how-it-works.md has the candidates, the steps and the reasons. A coupling adds one number to the low-rank model, so
these two are compared by the loss of all entries at one rank, with a penalty as in P-BIC: on masks of 40^3 entries the
gain of the true model is 50 to 90 nats, while the held-out loss has a standard error of 13.

Everything is computed from the training mask alone, also the expected effective sample size: validity needs weights
that do not depend on which of the other entries are missing. The weights of the training entries do not show that a
model fits too closely: it gives them small weights, and large weights to all other entries.

If only a constant would be left, although it is clearly worse, the simplest better model is taken, without the entries
of the largest weights: as few as the effective sample size allows. Calibration has almost no entries like them; the
missing ones among them are flagged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, Model
from corten.engine.lazy import is_lazy
from corten.engine.passes import FrameLike, SoftSpins
from corten.propensity.additive import AdditivePropensity, constant_train, fit_additive, frame_of, independent, tally
from corten.propensity.coupling import Coupling, Zero
from corten.propensity.estimation import estimate, start_of
from corten.propensity.fitted import FitsMasks, FittedPropensity, PropensityModel, TrainingMask
from corten.propensity.fitting import FIRST_RANK, Fitter
from corten.propensity.ising import BernoulliPropensity, IsingPropensity, UniformPropensity
from corten.propensity.neighborhood import resolve
from corten.propensity.selection import SEARCH_TOLERANCE, Candidate, held_out, swapped, without_held_out

CROSS_FOLDS = 5
GROUPS_PER_FOLD = 10  # standard errors come from the differences between groups
ONE_FOLD_ENTRIES = 1_000_000  # tensors of this size or larger use one fold
MIN_GAIN_STANDARD_ERRORS = 2.0
MIN_GAIN_NATS = 1.0  # smaller gains are rounding where models nearly agree
SEED_SHIFT = 9973  # added to the seed, so that the folds differ from those that a rank was chosen on
MIN_CALIBRATION_SIZE, MIN_CALIBRATION_SHARE = 50.0, 0.2  # with less, weights do more harm than good
LOG_LIMITS = np.arange(-4.0, 12.0, 0.25)  # of weights, tried if a model is kept with limited weights
MAX_LIMITED_SHARE = 0.3  # of the missing entries, above the limit
MIN_TOTAL_WEIGHT = 20.0  # of the calibration entries, in largest weights: intervals are finite up to a coverage of 95 %
MAX_LOG_WEIGHT = 60.0  # limits the weights in the expected effective sample size to what float64 can square


class _Scored(NamedTuple):
    """A candidate and its held-out loss in each group."""

    name: str
    config: PropensityModel
    losses: np.ndarray


@dataclass(frozen=True)
class AutoPropensity(FitsMasks):
    """Choose a constant, additive, low-rank or Ising model by held-out loss.

    The simplest model is taken unless a richer one is better by two standard errors and its weights keep a sufficient
    effective sample size.

    Parameters
    ----------
    max_rank : int, default 15
        The largest rank tried for the low-rank models.
    seed : int, default 0
        The seed of the folds.

    Raises
    ------
    ValueError
        If `max_rank` is less than 2.

    Examples
    --------
    >>> mask = np.random.default_rng(0).random((20, 30)) < 0.6
    >>> AutoPropensity().fit(mask, train_share=1.0).choices[0].taken
    'constant'
    """

    max_rank: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        IsingPropensity(max_rank=self.max_rank, seed=self.seed)

    def _fit(self, given: TrainingMask) -> FittedPropensity:
        """Choose and fit; the first of the returned `choices` names the model and lists the loss of every candidate."""
        runner, spins, q = given.runner, given.spins, given.train_share
        found, notes = self._candidates(given)
        order, rows = _by_evidence(found)
        training = tally(spins).training
        calibration = training * (1 - q) / q if q < 1 else float(training)
        need, refused, refused_names = min(MIN_CALIBRATION_SIZE, MIN_CALIBRATION_SHARE * int(calibration)), "", []
        for one in reversed(order):
            fitted = one.config.fit(spins, q, axis_names=given.axis_names, periodic=given.periodic, engine=given.engine)
            size = expected_effective_size(fitted, runner, spins, q)
            if size >= need or one is order[0]:
                break
            refused_names.append(one.name)
            refused += (
                f"; the {one.name} model has a lower loss, but its weights have an expected effective sample size of "
                f"{size:.0f}, below {need:.0f}"
            )
            limit = _limit(fitted, runner, spins, q, need) if one is order[1] else None
            if limit is not None:
                fitted, size = replace(fitted, max_log_weight=limit[0]), need
                refused += f"; the {limit[1]:.1%} of the missing entries with the largest weights are left out of it"
                break
        because = (
            "the simplest model whose held-out loss no richer model lowers by "
            f"{MIN_GAIN_STANDARD_ERRORS:.0f} standard errors{refused}"
        )
        code = "simplest_after_refusal" if refused else "simplest_sufficient_model"
        values = {"expected_effective_size": size, "needed_effective_size": need, "refused": tuple(refused_names)}
        choice = Choice("propensity model", one.name, because, rows, code=code, values=values)
        kept = (*notes, *fitted.choices) if one.name in ("low rank", "Ising") else fitted.choices
        return replace(fitted, domain=given.domain, choices=(choice, *kept))

    def settled(self, fitted: FittedPropensity) -> PropensityModel:
        """The model that a fit chose, with its settings, to fit another mask without a new choice."""
        made: dict[str, PropensityModel] = {
            "constant": UniformPropensity(),
            "additive": AdditivePropensity(),
            "low rank": BernoulliPropensity(rank=fitted.rank or 1, seed=self.seed),
            "Ising": IsingPropensity(coupling=fitted.coupling, rank=fitted.rank or 1, seed=self.seed),
        }
        return made[fitted.choices[0].taken]

    def _candidates(self, given: TrainingMask) -> tuple[list[_Scored], tuple[Choice, ...]]:
        """Every candidate with its held-out losses, from simple to rich, and the settings chosen before."""
        engine, spins, q = given.runner, given.spins, given.train_share
        shape = spins.shape
        configs: list[tuple[str, PropensityModel]]
        configs = [("constant", UniformPropensity()), ("additive", AdditivePropensity())]
        around = resolve("adjacent", shape, given.axis_names, given.periodic)
        config = IsingPropensity(max_rank=self.max_rank, seed=self.seed)
        fitter = Fitter(config, engine, spins=spins, train_share=q, neighborhoods=[around])
        notes: tuple[Choice, ...] = ()
        coupling: Coupling = Zero()
        free: Candidate | None = None
        if min(shape) >= FIRST_RANK:
            coupling, free, _, note, _ = fitter.compare(fitter.recipe(), all_entries=True)
            notes = (note,)
            configs.append(("low rank", BernoulliPropensity(rank=free.estimate.train.rank, seed=self.seed)))
            if not isinstance(coupling, Zero):
                configs.append(("Ising", IsingPropensity(coupling=coupling, max_rank=self.max_rank, seed=self.seed)))
        folds = 1 if prod(shape) >= ONE_FOLD_ENTRIES or is_lazy(spins) else CROSS_FOLDS
        losses: list[list[float]] = [[] for _ in configs]
        for fold in range(folds):
            fits = self._fits(fitter, fold, coupling, free)
            for group in range(GROUPS_PER_FOLD):
                low = (fold + group / GROUPS_PER_FOLD) / CROSS_FOLDS
                group_spins = swapped(held_out(spins, self.seed + SEED_SHIFT, 1 / CROSS_FOLDS / GROUPS_PER_FOLD, low))
                for own, (model, frame, soft) in zip(losses, fits):
                    own.append(engine.mask_pass(group_spins, model, q).loss_and_contractions(frame, soft)[0])
        return [_Scored(*one, np.array(own)) for one, own in zip(configs, losses)], notes

    def _fits(
        self, fitter: Fitter, fold: int, coupling: Coupling, free: Candidate | None
    ) -> list[tuple[Model, FrameLike, SoftSpins | None]]:
        """Model, parameter and expected spins of every candidate, fitted without the entries of a fold."""
        spins, q, engine = fitter.spins, fitter.train_share, fitter.engine
        kept_spins = held_out(spins, self.seed + SEED_SHIFT, 1 / CROSS_FOLDS, fold / CROSS_FOLDS)
        counted, alone = tally(kept_spins), independent(spins.shape)
        passes = engine.mask_pass(kept_spins, alone, q)
        fits: list[tuple[Model, FrameLike, SoftSpins | None]] = [
            (alone, frame_of(constant_train(spins.shape, counted, q)), None),
            (alone, frame_of(fit_additive(passes, counted)[0]), None),
        ]
        if free is None:
            return fits
        recipe = replace(fitter.recipe(), tolerance=SEARCH_TOLERANCE)
        start, _ = start_of(engine, without_held_out(kept_spins), tuple(free.estimate.point.rank), recipe)
        plain = estimate(passes, start, recipe=replace(recipe, thinning=False))
        fits.append((alone, plain.train.frame(), None))
        if not isinstance(coupling, Zero):
            model = fitter.model(coupling)
            joint = estimate(engine.mask_pass(kept_spins, model, q), plain.point, recipe=recipe, keep_soft=True)
            fits.append((model, joint.train.frame(), joint.soft))
        return fits


def _by_evidence(found: Sequence[_Scored]) -> tuple[list[_Scored], tuple[dict[str, object], ...]]:
    """The candidates taken from simple to rich, the best one last, and the record of all."""
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
        coupled = one.name == "Ising" and taken[-1].name == "low rank"  # compared by the loss of all entries before
        if gain > (0.0 if coupled else max(MIN_GAIN_STANDARD_ERRORS * error, MIN_GAIN_NATS)):
            taken.append(one)
    return taken, tuple(rows)


def _limit(
    fitted: FittedPropensity, engine: Engine, spins: np.ndarray, train_share: float, need: float
) -> tuple[float, float] | None:
    """The largest limit of log-weights that leaves enough weight, and the share of missing entries above it.

    None if there is no such limit, or too many entries are above it, or exact weights of a coupled model are needed.
    """
    if not fitted.independent:
        return None
    sums = [_sums(fitted, engine, spins, train_share, limit) for limit in LOG_LIMITS]
    kept = [
        k for k, (limit, (first, second, _)) in enumerate(zip(LOG_LIMITS, sums))
        if second > 0 and first**2 / second >= need and first >= MIN_TOTAL_WEIGHT * np.exp(limit)
    ]  # fmt: skip
    if not kept or sums[kept[-1]][2] > MAX_LIMITED_SHARE:
        return None
    return float(LOG_LIMITS[kept[-1]]), sums[kept[-1]][2]


def expected_effective_size(fitted: FittedPropensity, engine: Engine, spins: np.ndarray, train_share: float) -> float:
    """Expected effective sample size of the calibration weights under a fitted model, given the training mask.

    With a train share of one no entry is hidden, and the observed entries take the place of the calibration entries.
    """
    first, second, _ = _sums(fitted, engine, spins, train_share)
    return first**2 / second if second > 0 else 0.0


def _sums(
    fitted: FittedPropensity, engine: Engine, spins: np.ndarray, train_share: float, limit: float = MAX_LOG_WEIGHT
) -> tuple[float, float, float]:
    """Expected sums of calibration weights up to a limit and of their squares; share of missing entries above it.

    Outside the training set an entry is a calibration entry with probability c = (1 - q) p / (1 - q p), of weight
    w = (1 - p) / p. As c w = (1 - q) m, with m the probability of being missing, (sum c w)^2 / sum c w^2 is also the
    total weight of the calibration entries divided by the mean weight of a missing entry.
    """
    q, first, second, missing = train_share, 0.0, 0.0, 0.0
    passes = engine.mask_pass(spins, fitted.model, 1.0)
    for start, stop, eta in passes.log_odds_slabs(fitted.parameter.cores):  # type: ignore[union-attr]
        part = np.asarray(spins[start:stop])
        counted = part == -1 if q < 1 else part != 0
        odds = np.exp(np.clip(eta[counted], -MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).astype(np.float64))
        chance = (1 - q) * odds / (1 + (1 - q) * odds) if q < 1 else odds / (1 + odds)
        below = odds >= np.exp(-limit)
        first += float(np.sum((chance / odds)[below]))
        second += float(np.sum((chance / odds**2)[below]))
        missing += float(np.sum(chance / odds))
    return first, second, 1 - first / missing if missing > 0 else 0.0
