"""Estimates of the coupling strength and the link offset, together with B, from the pseudo-likelihood.

For a fixed direction of B the log-odds are linear in three numbers: eta = u F + t B + 2 a with F_i = 2 sum_j B_i B_j
W_j, t the scale of B, u = strength t^2 and a the offset. A pass over the mask gives the loss, its gradient in (u, t, a)
and the sum of squares of the gradient's terms, whose expectation is the Fisher information: enough for a scoring step.
Scoring steps alternate with the Riemannian descent in B. The alternation converges to a fixed point at a nearly
constant rate, so each next strength is a secant step towards that point.

The ridge of the descent shrinks B, and a stronger coupling would compensate for it; the scale t, which has no ridge,
prevents this. The descent fits some of the noise of the mask, which lowers the learned strength slightly on small
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from corten.data.choices import Choice
from corten.engine.passes import MaskPass, SoftSpins
from corten.engine.threads import one_library_thread
from corten.lowrank import TensorTrain, Tucker
from corten.propensity.additive import tally
from corten.propensity.estimation import Estimate, Recipe, descend_in, effective_training_size, train_frame

MAX_TURNS = 20  # alternations of descent and scoring
MAX_SCORING_STEPS = 4  # in one turn
MAX_HALVINGS = 6  # of a scoring step that raises the loss
MAX_EXTRAPOLATION = 3.0  # length of a secant step, in lengths of the last move
CONVERGED_ERRORS = 0.1  # standard errors: turns that move the strength less have converged
MAX_STRENGTH = 5.0  # where B is nearly zero only strength times B squared is determined, and the strength diverges
CONVERGED_NATS = 1.0  # of log-likelihood: with an offset, which B can mostly replace, turns that gain less converged
SEARCH_TOLERANCE = 5e-6  # tolerance of all descents but the last
LEARNING_RIDGE = 0.02  # of the descents: a larger one changes the direction of B, and the strength compensates for it


class Learned(NamedTuple):
    """A fitted B, whose `choices` record the learned strength and offset, and these two."""

    estimate: Estimate
    strength: float
    offset: float


@dataclass(frozen=True)
class _Numbers:
    """Strength, scale of B and offset, with the loss, gradient and information of a pass there."""

    strength: float
    size: float
    offset: float
    loss: float
    slope: np.ndarray
    information: np.ndarray

    def errors(self, free: np.ndarray) -> np.ndarray:
        """Standard errors of (strength, scale, offset) for a known direction of B; zero for what is fixed."""
        along, out = self._along(free), np.zeros(3)
        out[free] = np.sqrt(np.maximum(np.diag(_inverse(along.T @ self.information @ along)), 0.0))
        return out

    def scoring_step(self, free: np.ndarray) -> np.ndarray:
        """The scoring step of (strength, scale, offset); zero for what is fixed."""
        along, out = self._along(free), np.zeros(3)
        out[free] = -_inverse(along.T @ self.information @ along) @ along.T @ self.slope
        return out

    def _along(self, free: np.ndarray) -> np.ndarray:
        """The derivative of (u, t, a) in the free numbers; at a fixed strength u = strength t^2 depends on t."""
        along = np.eye(3)
        along[0, 1] = 0.0 if free[0] else 2 * self.strength
        return along[:, free]


def learn(
    passes_at: Callable[[float, float], MaskPass],
    start: TensorTrain | Tucker,
    *,
    recipe: Recipe,
    strength: float | None,
    offset: float | None,
    start_passes: int = 0,
) -> Learned:
    """Fit B, and the strength and the offset where they are None; `passes_at(strength, offset)` makes the passes."""
    ridge = LEARNING_RIDGE if isinstance(recipe.ridge, str) else recipe.ridge
    free = np.array([strength is None, True, offset is None])
    limit = MAX_STRENGTH if strength is None else np.inf  # a given strength has no limit
    first = _even_odds(passes_at(0.0, 0.0)) if offset is None else offset
    numbers = _Numbers(strength or 0.0, 1.0, first, loss=np.inf, slope=np.zeros(3), information=np.eye(3))
    point, soft, base, passes, secant = start, None, 0.0, start_passes, _Secant()
    history: tuple[float, ...] = ()
    path: list[dict[str, object]] = []
    with one_library_thread:
        for turn in range(MAX_TURNS):
            mask_pass = passes_at(numbers.strength, numbers.offset)
            thins = recipe.thinning and mask_pass.train_share < 1
            if turn and thins:
                soft, base = mask_pass.soft_spins(train_frame(point * numbers.size)), numbers.strength
            rough = replace(recipe, tolerance=max(recipe.tolerance, SEARCH_TOLERANCE))
            found = descend_in(mask_pass, point, recipe=rough, ridge=ridge, soft=soft)
            point, history, passes = found.point, history + found.history, passes + mask_pass.passes
            here, spent = _step(passes_at, point, numbers, partial(_held, soft, base), free)
            passes += spent
            error = here.errors(free)
            path.append({"turn": turn + 1, "strength": here.strength, "offset": here.offset, "loss": here.loss})
            if thins and turn == 0:  # the next turn uses expected spins: the secant starts there
                numbers = replace(here, strength=float(np.clip(here.strength, -limit, limit)))
                converged = False
                continue
            ahead = secant.ahead(numbers.strength, here.strength)
            moves = np.abs([ahead, here.offset - numbers.offset])
            converged = bool(np.all(moves <= CONVERGED_ERRORS * error[[0, 2]]))
            converged = converged or (bool(free[2]) and abs(here.loss - numbers.loss) < CONVERGED_NATS)
            was, to = numbers.strength, float(np.clip(numbers.strength + ahead, -limit, limit))
            numbers, stays_at_limit = replace(here, strength=to), abs(to) == limit and to == was
            if converged or stays_at_limit:
                break
        final = passes_at(numbers.strength, numbers.offset)
        found = descend_in(final, point, recipe=recipe, ridge=ridge, soft=_held(soft, base, numbers.strength))
        if abs(numbers.strength) == limit:  # the scale was found for a strength above the limit, where B is smaller
            size_only = np.array([False, True, False])
            numbers, spent = _step(passes_at, found.point, numbers, partial(_held, soft, base), size_only)
            passes += spent
        fitted = found.point * numbers.size
        loss = final.loss_and_contractions(train_frame(fitted))[0]
        effective_size = effective_training_size(final, fitted)
    error = numbers.errors(free) * np.sqrt([secant.slowness, 1.0, 1.0])
    parts = [f"strength {numbers.strength:.4g}" if free[0] else "", f"offset {numbers.offset:.4g}" if free[2] else ""]
    least = " and ".join(f"{error[k]:.2g}" for k in (0, 2) if free[k])
    at_limit = abs(numbers.strength) == limit
    ended = f"{'converged' if converged else 'not converged'} after {turn + 1} turns"
    ended += ", held at the largest strength allowed" if at_limit else ""
    found_numbers = {"strength": numbers.strength, "offset": numbers.offset}
    choice = Choice(
        "learned coupling",
        ", ".join(filter(None, parts)),
        f"highest pseudo-likelihood together with B, {ended}; standard error at least {least}; the effective sample "
        f"size of the training weights is {effective_size:.0f}",
        tuple(path),
        code="strength_at_limit" if at_limit else "learning_converged" if converged else "learning_not_converged",
        values=found_numbers | {"turns": turn + 1, "effective_size": effective_size},
    )
    passes += final.passes
    made = Estimate(fitted, loss, passes, found.stopped_because, history + found.history, choices=(choice,))
    return Learned(made, numbers.strength, numbers.offset)


@dataclass
class _Secant:
    """The secant step to the fixed point of the turns, from the last two moves, limited in length."""

    place: float | None = None
    move: float = 0.0
    slowness: float = 1.0

    def ahead(self, place: float, moved_to: float) -> float:
        """The step from `place` to the estimated fixed point."""
        move, rate = moved_to - place, 0.0
        if self.place is not None and place != self.place:
            rate = float(np.clip(1 + (move - self.move) / (place - self.place), -0.5, 1 - 1 / MAX_EXTRAPOLATION))
        self.place, self.move, self.slowness = place, move, 1 / (1 - max(rate, 0.0))
        return move / (1 - rate)


def _step(
    passes_at: Callable[[float, float], MaskPass],
    point: TensorTrain | Tucker,
    numbers: _Numbers,
    soft: Callable[[float], SoftSpins | None],
    free: np.ndarray,
) -> tuple[_Numbers, int]:
    """The best (strength, scale, offset) for the direction of B at `point`, and the passes spent."""
    spent = 0

    def at(strength: float, size: float, offset: float) -> _Numbers:
        nonlocal spent
        spent += 1
        frame = train_frame(point * size)
        loss, slope, information = passes_at(strength, offset).loss_and_scalars(frame, soft(strength))
        return _Numbers(strength, size, offset, loss=loss, slope=slope, information=information)

    here = at(numbers.strength, numbers.size, numbers.offset)
    for _ in range(MAX_SCORING_STEPS):
        step = here.scoring_step(free)
        if np.all(np.abs(step) <= CONVERGED_ERRORS / 4 * here.errors(free)):
            break
        for _ in range(MAX_HALVINGS):
            growth = float(np.clip(1 + step[1], 0.5, 2.0))
            # the gradient is in u = strength t^2; a fixed strength does not change
            strength = (here.strength + step[0]) / growth**2 if free[0] else here.strength
            there = at(strength, here.size * growth, here.offset + step[2])
            if there.loss < here.loss:
                break
            step /= 2
        if not there.loss < here.loss:
            break
        here = there
    return here, spent


def _held(soft: SoftSpins | None, base: float, strength: float) -> SoftSpins | None:
    """Expected spins computed at the strength `base`, for a pass at another strength.

    A pass removes the contribution of an entry to its neighbours' expected spins, at the strength of the pass. The
    contribution was computed at `base`, so the cores are scaled by the ratio of the strengths.
    """
    if soft is None or strength == base:
        return soft
    ratio = base / strength if strength * base > 0 and abs(strength) > 1e-3 * abs(base) else 0.0
    first, middle, last = soft.cores
    return replace(soft, cores=(np.asarray(first * np.sqrt(ratio), np.float32), middle, last))


def _even_odds(mask_pass: MaskPass) -> float:
    """The offset that gives the share of observed entries without B: the start of the search."""
    counted = tally(mask_pass.spins)
    share = float(np.clip(counted.training / max(mask_pass.train_share * counted.entries, 1), 0.01, 0.99))
    return 0.5 * float(np.log(share / (1 - share)))


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Pseudo-inverse of an information matrix; numbers without information do not move."""
    return np.asarray(np.linalg.pinv(matrix, rcond=1e-10, hermitian=True))
