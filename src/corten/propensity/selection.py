"""The choice of rank, coupling strength and neighbourhood, from the training mask alone.

Ranks are compared by P-AIC, P-BIC (equations P-AIC-criterion and P-BIC-criterion, with the unpenalised loss) or by
the loss of held-out entries: random entries whose terms leave the likelihood while their spins stay as neighbours.
Strengths are compared by held-out loss, neighbourhoods together with strengths by the loss of all entries at one rank.
Only candidates whose weights keep a sufficient effective sample size are compared: the likelihood alone prefers
couplings whose weights give infinite intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import log, prod

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, MaskPass, Model
from corten.engine.lazy import in_planes, is_lazy
from corten.engine.memory import byte_tensor, parts
from corten.lowrank import TensorTrain, Tucker
from corten.lowrank.tucker import STRUCTURES
from corten.propensity.estimation import Estimate, Recipe, effective_training_size, estimate, start_of

PROPENSITY_CRITERIA = ("held-out", "p-aic", "p-bic")
HELD_OUT_ENTRY_SHARE = 0.1  # of the entries
MIN_TRAINING_SIZE = 200.0  # at this size the standard error of a 90 % coverage is two points
MIN_TRAINING_SHARE = 0.2  # of the training entries, for small training sets
SEARCH_TOLERANCE = 5e-6  # ranks differ by more than this; the chosen one is fitted to the full tolerance
PATIENCE = 2  # a search ends after this many rises of its criterion in a row
RANKS_PER_START = 3  # a start is made for this many ranks ahead and truncated for each


@dataclass(frozen=True)
class Candidate:
    """One fitted candidate: its rank, its score, and the effective sample size of its training weights."""

    rank: int | tuple[int, ...]
    score: float
    estimate: Estimate
    effective_size: float = float("nan")


def held_out(spins: np.ndarray, seed: int, share: float = HELD_OUT_ENTRY_SHARE, low: float = 0.0) -> np.ndarray:
    """Spins with a random share of the entries held out (coded +-2): those with a uniform number in [low, low + share).

    Intervals that do not overlap hold out different entries, so folds have different `low`.
    """
    return _changed(spins, partial(_hidden, seed=seed, low=low, high=low + share))


def swapped(spins: np.ndarray) -> np.ndarray:
    """Spins with the held-out entries in the likelihood and all others out of it."""
    return _changed(spins, lambda part, start: np.where(np.abs(part) == 2, np.sign(part), 2 * part))


def without_held_out(spins: np.ndarray) -> np.ndarray:
    """Spins with the held-out entries outside the domain, for a start that does not use them."""
    return _changed(spins, lambda part, start: np.where(np.abs(part) == 2, np.int8(0), part))


def _hidden(part: np.ndarray, start: int, seed: int, low: float, high: float) -> np.ndarray:
    """Planes from `start` with entries held out; which ones does not depend on how the mask is divided."""
    rng = np.random.default_rng([seed, 77])
    rng.bit_generator.advance(start * prod(part.shape[1:]))  # type: ignore[attr-defined]
    number = rng.random(part.shape)
    return np.where((number >= low) & (number < high), 2 * part, part)


def _changed(spins: np.ndarray, change: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Spins changed part by part: at once, or lazily where they are lazy."""
    if is_lazy(spins):
        return in_planes(spins, change)  # type: ignore[return-value]  # a Dask array, which a cluster takes
    out = byte_tensor(spins.shape)
    for (start, _, here), (_, _, part) in zip(parts(out), parts(spins)):
        here[...] = change(part, start)
    return out


def needed_effective_size(training: int) -> float:
    """The effective sample size that weights need: 200, or a fifth of a small training set."""
    return min(MIN_TRAINING_SIZE, MIN_TRAINING_SHARE * training)


def choose_rank(
    engine: Engine,
    spins: np.ndarray,
    *,
    model: Model,
    train_share: float,
    recipe: Recipe,
    criterion: str,
    ranks: Iterable[int | tuple[int, ...]],
    patience: int | None = PATIENCE,
    known: Candidate | None = None,
) -> tuple[Candidate, list[Candidate]]:
    """The best of a range of ranks, and all that were tried; it ends after `patience` rises in a row (None: never).

    known: a candidate that an earlier call found for the same model.
    """
    first = replace(recipe, thinning=False, tolerance=max(recipe.tolerance, SEARCH_TOLERANCE))
    holds_out = criterion == "held-out"
    kept_spins = held_out(spins, recipe.seed) if holds_out else spins
    passes = engine.mask_pass(kept_spins, model, train_share)
    check = engine.mask_pass(swapped(kept_spins), model, train_share) if holds_out else None
    wanted: list[tuple[int | tuple[int, ...], tuple[int, ...]]] = []
    for rank in ranks:
        bonds = STRUCTURES[recipe.structure].feasible(spins.shape, rank)
        if not wanted or wanted[-1][1] != bonds:
            wanted.append((rank, bonds))
    tried: list[Candidate] = []
    start: TensorTrain | Tucker | None = None
    rises = 0
    for position, (rank, bonds) in enumerate(wanted):
        found = known if known is not None and known.rank == rank else None
        if found is None:
            ahead = wanted[min(position + RANKS_PER_START, len(wanted) - 1)][1]
            if start is None or any(have < want for have, want in zip(start.rank, bonds)):
                start, _ = start_of(engine, spins, ahead, recipe)
            fit = estimate(passes, start.round(bonds), recipe=first)
            score = _score(fit, criterion, spins, check)
            found = Candidate(rank, score, fit, effective_training_size(passes, fit.point))
        rises = rises + 1 if tried and found.score > tried[-1].score else 0
        tried.append(found)
        if patience is not None and rises >= patience:
            break
    best = min(tried, key=lambda c: c.score)
    thins = recipe.thinning and train_share < 1 and len(model.offsets) and model.coupling_kind == 1
    if check is not None and thins:
        # Strengths are compared with the thinning correction: hidden entries read as -1 bias every coupling downwards.
        best = replace(candidate_at(passes, recipe, best.estimate.point, check), rank=best.rank)
    return best, tried


def candidate_at(
    passes: MaskPass, recipe: Recipe, start: TensorTrain | Tucker, check: MaskPass | None = None
) -> Candidate:
    """The candidate fitted from a start, scored with expected spins of hidden neighbours, by `check` or all entries.

    Models of one rank can be compared by the loss of all entries, as they have the same number of parameters: on masks
    of 40^3 entries coupled and independent entries differ by tens of nats, more than the noise of a held-out loss.
    """
    fit = estimate(passes, start, recipe=recipe, keep_soft=True)
    loss = float((check or passes).loss_and_contractions(fit.train.frame(), fit.soft)[0])
    return Candidate(max(fit.point.rank), loss, replace(fit, soft=None), effective_training_size(passes, fit.point))


def _score(fit: Estimate, criterion: str, spins: np.ndarray, check: MaskPass | None) -> float:
    """The criterion of a fit; `check` is the pass over held-out entries."""
    if criterion == "p-aic":
        return 2 * fit.loss + 2 * fit.dimension
    if criterion == "p-bic":
        return 2 * fit.loss + fit.dimension * log(prod(spins.shape))
    assert check is not None
    return float(check.loss_and_contractions(fit.train.frame())[0])


def choose_model(
    candidates: dict[str, Candidate], training: int, what: str, score: str = "held-out loss"
) -> tuple[str, Choice]:
    """The candidate with the lowest loss among those with a sufficient effective size, or with the largest size."""
    need = needed_effective_size(training)
    able = {name: c for name, c in candidates.items() if c.effective_size >= need}
    code = "smallest_loss_with_enough_weight" if able else "no_candidate_with_enough_weight"
    if able:
        name = min(able, key=lambda n: able[n].score)
        because = f"lowest {score} among candidates whose effective sample size is at least {need:.0f}"
    else:
        name = max(candidates, key=lambda n: candidates[n].effective_size)
        because = f"no candidate has an effective sample size of {need:.0f}; this one has the largest"
    rows: tuple[dict[str, object], ...] = tuple(
        {what: n, "rank": c.rank, score: c.score, "effective size": c.effective_size} for n, c in candidates.items()
    )
    values = {"needed_effective_size": need, "effective_size": candidates[name].effective_size}
    return name, Choice(what, name, because, rows, code=code, values=values)
