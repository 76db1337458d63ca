"""The strength of the coupling and the offset of the link, learned together with B from the pseudo-likelihood.

For a fixed shape of B the log-odds are linear in three numbers: eta = u F + t B + 2 a with F_i = 2 sum_j B_i B_j W_j,
t the size of B, u = strength t^2 and a the link's offset. A pass over the mask gives the loss, its slope in (u, t, a)
and the sum of squared terms of the slope, which is the information in expectation: one guarded scoring step.
These steps take turns with the Riemannian descent in B. The turns shrink the distance to where they agree by a nearly
constant factor, so each next strength is a secant step towards that point.

The ridge of the descent shrinks B, which a stronger coupling would make up for; the size t, free of the ridge, keeps
it from doing so. Descent fits some of the mask's noise, which weakens the learned strength a little on small tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from corten.data.choices import Choice
from corten.engine.passes import MaskPass, SoftSpins
from corten.engine.threads import one_library_thread
from corten.lowrank import TensorTrain, Tucker
from corten.propensity.estimation import Estimate, Recipe, descend_in, effective_training_size, train_frame

__all__ = ["Learned", "learn"]

MOST_TURNS = 20
MOST_STEPS = 4
FURTHEST = 3.0  # times a turn's own move: how far ahead of it the meeting point is believed
CLOSE = 0.1  # in standard errors: turns that move the strength less have met
STRONGEST = 5.0  # where B all but vanishes only strength times B squared is known: without a limit it runs away
NATS = 1.0  # of log-likelihood: with an offset, which B can mostly stand in for, turns that gain less have met
LOOSE = 5e-6  # tolerance of all descents but the last
RIDGE = 0.02  # of the descents, unless told: a larger one bends the shape of B, which strong couplings then make up for


class Learned(NamedTuple):
    """A fitted B with the numbers learned beside it, and the record of how."""

    estimate: Estimate
    strength: float
    offset: float
    choice: Choice


@dataclass(frozen=True)
class _Numbers:
    """Strength, size of B and offset, and what a pass says of them."""

    strength: float
    size: float
    offset: float
    loss: float
    slope: np.ndarray
    information: np.ndarray

    def errors(self, free: np.ndarray) -> np.ndarray:
        """Standard errors of (strength, size, offset) with the shape of B known; zero for what is held fixed."""
        along, out = self._along(free), np.zeros(3)
        out[free] = np.sqrt(np.maximum(np.diag(_inverse(along.T @ self.information @ along)), 0.0))
        return out

    def scoring_step(self, free: np.ndarray) -> np.ndarray:
        """The step that scoring takes; zero for what is held fixed."""
        along, out = self._along(free), np.zeros(3)
        out[free] = -_inverse(along.T @ self.information @ along) @ along.T @ self.slope
        return out

    def _along(self, free: np.ndarray) -> np.ndarray:
        """How (u, t, a) move with what is free: at a fixed strength u = strength t^2 goes along with the size."""
        along = np.eye(3)
        along[0, 1] = 0.0 if free[0] else 2 * self.strength
        return along[:, free]


def learn(
    passes_at: Callable[[float, float], MaskPass],
    start: TensorTrain | Tucker,
    recipe: Recipe,
    strength: float | None,
    offset: float | None,
    start_passes: int = 0,
) -> Learned:
    """Fit B, and the strength and the offset where they are None; `passes_at(strength, offset)` makes the passes."""
    ridge = RIDGE if isinstance(recipe.ridge, str) else recipe.ridge
    free = np.array([strength is None, True, offset is None])
    limit = STRONGEST if strength is None else np.inf  # a strength that was given is left alone
    first = _even_odds(passes_at(0.0, 0.0)) if offset is None else offset
    numbers = _Numbers(strength or 0.0, 1.0, first, np.inf, np.zeros(3), np.eye(3))
    point, soft, base, passes, secant = start, None, 0.0, start_passes, _Secant()
    history: tuple[float, ...] = ()
    path: list[dict[str, object]] = []
    with one_library_thread:
        for turn in range(MOST_TURNS):
            mask_pass = passes_at(numbers.strength, numbers.offset)
            thins = recipe.thinning and mask_pass.train_share < 1
            if turn and thins:
                soft, base = mask_pass.soft_spins(train_frame(point * numbers.size)), numbers.strength
            rough = replace(recipe, tolerance=max(recipe.tolerance, LOOSE))
            found = descend_in(mask_pass, point, rough, ridge, soft)
            point, history, passes = found.point, history + found.history, passes + mask_pass.passes
            here, spent = _step(passes_at, point, numbers, partial(_held, soft, base), free)
            passes += spent
            error = here.errors(free)
            path.append({"turn": turn + 1, "strength": here.strength, "offset": here.offset, "loss": here.loss})
            if thins and turn == 0:  # the next turn will see expected spins: this one says nothing about its pace
                numbers = replace(here, strength=float(np.clip(here.strength, -limit, limit)))
                met = False
                continue
            ahead = secant.ahead(numbers.strength, here.strength)
            met = abs(ahead) <= CLOSE * error[0] and abs(here.offset - numbers.offset) <= CLOSE * error[2]
            met = met or (bool(free[2]) and abs(here.loss - numbers.loss) < NATS)
            was, to = numbers.strength, float(np.clip(numbers.strength + ahead, -limit, limit))
            numbers, held = replace(here, strength=to), abs(to) == limit and to == was
            if met or held:
                break
        final = passes_at(numbers.strength, numbers.offset)
        found = descend_in(final, point, recipe, ridge, _held(soft, base, numbers.strength))
        if abs(numbers.strength) == limit:  # the size was found for a strength beyond, where B is smaller
            size_only = np.array([False, True, False])
            numbers, spent = _step(passes_at, found.point, numbers, partial(_held, soft, base), size_only)
            passes += spent
        fitted = found.point * numbers.size
        loss = final.loss_and_contractions(train_frame(fitted))[0]
        worth = effective_training_size(final, fitted)
    error = numbers.errors(free) * np.sqrt([secant.slowness, 1.0, 1.0])
    parts = [f"strength {numbers.strength:.4g}" if free[0] else "", f"offset {numbers.offset:.4g}" if free[2] else ""]
    least = " and ".join(f"{error[k]:.2g}" for k in (0, 2) if free[k])
    ended = f"settled after {turn + 1} turns" if met else f"still moving after {turn + 1} turns"
    ended += ", held at the largest strength allowed" if abs(numbers.strength) == limit else ""
    choice = Choice(
        "learned coupling",
        ", ".join(filter(None, parts)),
        f"largest pseudo-likelihood together with B, {ended}; standard error no less than {least}; "
        f"weights worth {worth:.0f} equal ones",
        tuple(path),
    )
    passes += final.passes
    made = Estimate(fitted, loss, passes, found.stopped_because, history + found.history, numbers.size, (choice,))
    return Learned(made, numbers.strength, numbers.offset, choice)


@dataclass
class _Secant:
    """Where turns that move a number will meet, from the last two moves; no further than believed."""

    place: float | None = None
    move: float = 0.0
    slowness: float = 1.0

    def ahead(self, place: float, moved_to: float) -> float:
        """The step from `place` to where turns should meet."""
        move, rate = moved_to - place, 0.0
        if self.place is not None and place != self.place:
            rate = float(np.clip(1 + (move - self.move) / (place - self.place), -0.5, 1 - 1 / FURTHEST))
        self.place, self.move, self.slowness = place, move, 1 / (1 - max(rate, 0.0))
        return move / (1 - rate)


def _step(
    passes_at: Callable[[float, float], MaskPass],
    point: Any,
    numbers: _Numbers,
    soft: Callable[[float], SoftSpins | None],
    free: np.ndarray,
) -> tuple[_Numbers, int]:
    """The best (strength, size, offset) for the shape of B at `point`: scoring steps, halved where the loss rises."""
    spent = 0

    def at(strength: float, size: float, offset: float) -> _Numbers:
        nonlocal spent
        spent += 1
        loss, slope, information = passes_at(strength, offset).loss_and_scalars(
            train_frame(point * size), soft(strength)
        )
        return _Numbers(strength, size, offset, loss, slope, information)

    here = at(numbers.strength, numbers.size, numbers.offset)
    for _ in range(MOST_STEPS):
        step = here.scoring_step(free)
        if np.all(np.abs(step) <= CLOSE / 4 * here.errors(free)):
            break
        for _ in range(6):
            growth = float(np.clip(1 + step[1], 0.5, 2.0))
            # u = strength t^2 is what the slope is taken in; a strength held fixed stays as it is
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
    """Expected spins as found at the strength `base`, for a pass at another one.

    A pass takes an entry's own pull on its neighbours' expected spins out again, with the strength it runs at; the
    pull was exerted at `base`, so the cores it is computed from are scaled to make up for the difference.
    """
    if soft is None or strength == base:
        return soft
    ratio = base / strength if strength * base > 0 and abs(strength) > 1e-3 * abs(base) else 0.0
    first, middle, last = soft.cores
    return replace(soft, cores=(np.asarray(first * np.sqrt(ratio), np.float32), middle, last))


def _even_odds(mask_pass: MaskPass) -> float:
    """The offset that explains the share of observed entries alone: where a search for it begins."""
    up = sum(int(np.count_nonzero(np.asarray(plane) == 1)) for plane in mask_pass.spins)
    down = sum(int(np.count_nonzero(np.asarray(plane) == -1)) for plane in mask_pass.spins)
    share = float(np.clip(up / max(mask_pass.train_share * (up + down), 1), 0.01, 0.99))
    return 0.5 * float(np.log(share / (1 - share)))


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Inverse of an information matrix; numbers that nothing is known of stay where they are."""
    return np.asarray(np.linalg.pinv(matrix, rcond=1e-10, hermitian=True))
