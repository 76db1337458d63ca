"""Which rank, which coupling strength: chosen from the training mask alone, on the record.

Ranks are compared by P-AIC, P-BIC (eqs. P-AIC-criterion, P-BIC-criterion, with the unpenalised loss) or by
the loss of held-out cells: random cells whose terms leave the likelihood while their spins stay as
neighbours. Strengths are compared by held-out loss, neighbourhoods together with strengths by the loss of
all cells at one rank, both among those whose weights keep an effective size that can bear an interval;
likelihood alone prefers couplings whose weights are useless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import log, prod

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, Model
from corten.engine.lazy import in_planes, is_lazy
from corten.engine.memory import byte_tensor, parts
from corten.lowrank import TensorTrain, Tucker, feasible_rank, feasible_tucker_rank
from corten.propensity.estimation import Estimate, Recipe, effective_training_size, estimate, start_of

__all__ = [
    "CRITERIA", "Candidate", "candidate_at", "choose_model", "choose_rank", "enough", "held_out", "swapped",
    "without_held_out",
]  # fmt: skip

CRITERIA = ("held-out", "p-aic", "p-bic")
HELD_SHARE = 0.1
ENOUGH = 200.0  # effective size at which the standard error of a 90 % coverage is two points
SEARCH_TOLERANCE = 5e-6  # ranks differ by more than this; the one taken is fitted to the full tolerance
PATIENCE = 2  # a search ends after this many rises of its criterion in a row, unless told otherwise


@dataclass(frozen=True)
class Candidate:
    """One model tried: its rank, its criteria and what its weights are worth."""

    rank: int
    score: float
    estimate: Estimate
    effective_size: float = float("nan")


def held_out(spins: np.ndarray, seed: int, share: float = HELD_SHARE, low: float = 0.0) -> np.ndarray:
    """Spins with a random share of cells held out (coded +-2): those whose uniform number is in low to low + share.

    Shares that do not overlap hold out different cells, so that folds are made by moving `low`.
    """
    return _changed(spins, partial(_hidden, seed=seed, low=low, high=low + share))


def swapped(spins: np.ndarray) -> np.ndarray:
    """Held-out cells in the likelihood, all others out of it."""
    return _changed(spins, lambda part, start: np.where(np.abs(part) == 2, np.sign(part), 2 * part))


def without_held_out(spins: np.ndarray) -> np.ndarray:
    """Held-out cells as if they were outside the domain, for a start that may not see them."""
    return _changed(spins, lambda part, start: np.where(np.abs(part) == 2, np.int8(0), part))


def _hidden(part: np.ndarray, start: int, seed: int, low: float, high: float) -> np.ndarray:
    """Planes from `start` with cells held out: the same cells however the mask is cut into parts."""
    rng = np.random.default_rng([seed, 77])
    rng.bit_generator.advance(start * prod(part.shape[1:]))  # type: ignore[attr-defined]
    number = rng.random(part.shape)
    return np.where((number >= low) & (number < high), 2 * part, part)


def _changed(spins: np.ndarray, change: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Spins changed part by part: now, or by those who will load them."""
    if is_lazy(spins):
        return in_planes(spins, change)  # type: ignore[no-any-return]
    out = byte_tensor(spins.shape)
    for (start, _, here), (_, _, part) in zip(parts(out), parts(spins)):
        here[...] = change(part, start)
    return out


def enough(training: int) -> float:
    """Effective size asked of the weights: 200, or a fifth of a small training set."""
    return min(ENOUGH, 0.2 * training)


def choose_rank(
    engine: Engine,
    spins: np.ndarray,
    model: Model,
    train_share: float,
    recipe: Recipe,
    criterion: str,
    ranks: Iterable[int],
    patience: int | None = PATIENCE,
) -> tuple[Candidate, list[Candidate]]:
    """The best rank of a range and every candidate tried. Ends after `patience` rises in a row (None: never)."""
    first = replace(recipe, thinning=False, tolerance=max(recipe.tolerance, SEARCH_TOLERANCE))
    out = criterion == "held-out"
    seen = held_out(spins, recipe.seed) if out else spins
    passes = engine.mask_pass(seen, model, train_share)
    check = engine.mask_pass(swapped(seen), model, train_share) if out else None
    feasible = feasible_tucker_rank if recipe.structure == "tucker" else feasible_rank
    wanted: list[tuple[int, tuple[int, ...]]] = []
    for rank in ranks:
        bonds = feasible(spins.shape, rank)
        if not wanted or wanted[-1][1] != bonds:
            wanted.append((rank, bonds))
    tried: list[Candidate] = []
    start: TensorTrain | Tucker | None = None
    rises = 0
    for position, (rank, bonds) in enumerate(wanted):
        ahead = wanted[min(position + 3, len(wanted) - 1)][1]
        if start is None or any(have < want for have, want in zip(start.rank, bonds)):
            start, _ = start_of(
                engine, spins, ahead, recipe
            )  # one start serves the next few ranks, truncated
        fit = estimate(passes, start.round(bonds), first)
        score = _score(fit, criterion, spins, check)
        size = effective_training_size(passes, fit.point)
        rises = rises + 1 if tried and score > tried[-1].score else 0
        tried.append(Candidate(rank, score, fit, size))
        if patience is not None and rises >= patience:
            break
    best = min(tried, key=lambda c: c.score)
    if check is not None and recipe.thinning and len(model.offsets) and model.coupling_kind == 1:
        # strengths are compared with the correction in: read as -1, hidden entries make every coupling look
        # weak
        fit = estimate(passes, best.estimate.point, recipe, keep_soft=True)
        loss = float(check.loss_and_contractions(fit.train.frame(), fit.soft)[0])
        size = effective_training_size(passes, fit.point)
        best = Candidate(best.rank, loss, replace(fit, soft=None), size)
    return best, tried


def candidate_at(
    engine: Engine,
    spins: np.ndarray,
    model: Model,
    train_share: float,
    recipe: Recipe,
    start: TensorTrain | Tucker,
) -> Candidate:
    """A model fitted from a start to every cell, scored by its loss with hidden neighbours read as they are expected.

    Models of one rank may be compared by it, as they have equally many parameters: on masks of 40^3 entries it tells
    coupled from independent cells by tens, where the loss of a tenth held out says less than its own noise.
    """
    passes = engine.mask_pass(spins, model, train_share)
    fit = estimate(passes, start, recipe, keep_soft=True)
    loss = float(passes.loss_and_contractions(fit.train.frame(), fit.soft)[0])
    size = effective_training_size(passes, fit.point)
    return Candidate(max(fit.point.rank), loss, replace(fit, soft=None), size)


def _score(fit: Estimate, criterion: str, spins: np.ndarray, check: object) -> float:
    if criterion == "p-aic":
        return 2 * fit.loss + 2 * fit.dimension
    if criterion == "p-bic":
        return 2 * fit.loss + fit.dimension * log(prod(spins.shape))
    frame = fit.train.frame()
    return float(check.loss_and_contractions(frame)[0])  # type: ignore[attr-defined]


def choose_model(
    candidates: dict[str, Candidate], training: int, what: str, score: str = "held-out loss"
) -> tuple[str, Choice]:
    """The smallest loss among candidates whose weights are `enough`; if none are, the largest effective size."""
    need = enough(training)
    able = {name: c for name, c in candidates.items() if c.effective_size >= need}
    code = "smallest_loss_with_enough_weight" if able else "no_candidate_with_enough_weight"
    if able:
        name = min(able, key=lambda n: able[n].score)
        because = (
            f"smallest {score} among those whose weights keep an effective size of at least {need:.0f}"
        )
    else:
        name = max(candidates, key=lambda n: candidates[n].effective_size)
        because = f"no candidate's weights keep an effective size of {need:.0f}; this one's is the largest"
    rows = tuple(
        {what: n, "rank": c.rank, score: c.score, "effective size": c.effective_size}
        for n, c in candidates.items()
    )
    return name, Choice(what, name, because, rows, code=code, values={"needed_effective_size": need})
