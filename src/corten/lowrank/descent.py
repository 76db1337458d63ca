"""Riemannian descent: minimise a smooth objective on a manifold of low-rank tensors, and say why it stopped.

Its start is spectral: power iteration in tangent spaces, from contractions with the tensor alone.

An objective is any function point -> (value, gradient), the gradient a tangent vector with inner, norm, +, *, retract,
transport and a frame, which has `radial` (`Tangent`, `TuckerTangent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, cast

import numpy as np

from corten.lowrank.line_search import BarzilaiBorwein, Evaluate, Iterate, StepRule
from corten.lowrank.points import Point, TangentVector
from corten.lowrank.tensor_train import Frame
from corten.lowrank.tucker import TuckerTangent

SPECTRAL_ITERATIONS = 4  # measured: close enough to TT-SVD that a descent from either needs the same number of passes


@dataclass(frozen=True)
class Progress(Generic[Point]):
    """The state of a descent after an iteration, from which `stop` decides.

    values: the objective at every iterate so far; relative_change: ||B' - B|| / ||B|| of the last step
    (None before the first); step: its length; point: the current point.
    """

    iterations: int
    evaluations: int
    values: Sequence[float]
    gradient_norm: float
    first_gradient_norm: float
    relative_change: float | None
    step: float | None
    point: Point


@dataclass(frozen=True)
class Stop:
    """Why to stop, as a sentence, or None to go on: the first of the given limits that a `Progress` has reached.

    gradient: its norm, as a share of the first one. relative_change: of the point in the last step (Algorithm RGrad's
    rule). value_change: the share of itself by which the objective changed, up or down, in the last `patience`
    iterations. evaluations: passes over the data, counted between iterations: the last line search may exceed them.
    """

    gradient: float | None = None
    relative_change: float | None = None
    value_change: float | None = None
    patience: int = 5
    iterations: int | None = None
    evaluations: int | None = None

    def __call__(self, progress: Progress) -> str | None:
        norm, moved, recent = progress.gradient_norm, progress.relative_change, progress.values[-self.patience - 1 :]
        if self.gradient is not None and norm <= (bound := self.gradient * progress.first_gradient_norm):
            return f"gradient norm {norm:.2e} is at most {bound:.2e}"
        if self.relative_change is not None and moved is not None and moved <= self.relative_change:
            return f"relative change {moved:.2e} is at most {self.relative_change:.2e}"
        settled = self.value_change is not None and len(recent) > self.patience
        if settled and max(recent) - min(recent) <= self.value_change * abs(recent[-1]):  # type: ignore[operator]
            return f"objective changed by less than {self.value_change:.0e} of itself in {self.patience} iterations"
        for name in ("iterations", "evaluations"):
            limit = getattr(self, name)
            if limit is not None and getattr(progress, name) >= limit:
                return f"reached the limit of {limit} {name}"
        return None


DEFAULT_STOP = Stop(gradient=1e-5, value_change=1e-9, iterations=500)


@dataclass(frozen=True)
class Descent(Generic[Point]):
    """The result of a descent: the best point, its value and gradient, the cost and why it stopped.

    evaluations: calls of the objective, each one pass over the data; history: the value at every iterate.
    """

    point: Point = field(repr=False)
    value: float
    gradient: TangentVector[Point] = field(repr=False)
    iterations: int
    evaluations: int
    stopped_because: str
    history: tuple[float, ...] = field(repr=False)


def descend(
    objective: Evaluate[Point],
    start: Point,
    *,
    step: StepRule | None = None,
    stop: Callable[[Progress[Point]], str | None] = DEFAULT_STOP,
) -> Descent[Point]:
    """Minimise an objective from a start (Algorithm RGrad, with a choice of step rules).

    step: by default `BarzilaiBorwein()`; stop: asked before every iteration for a reason to stop.

    Examples
    --------
    >>> from corten.lowrank import TensorTrain, descend
    >>> goal = TensorTrain.random((5, 6, 7), rank=2, seed=1)
    >>> def squared_distance(point):
    ...     return 0.5 * (point - goal).norm() ** 2, point.frame().project_tt(point - goal)
    >>> descend(squared_distance, TensorTrain.random((5, 6, 7), rank=2, seed=2)).value < 1e-6
    True
    """
    rule: StepRule = BarzilaiBorwein() if step is None else step
    evaluations = 0

    def evaluate(point: Point) -> tuple[float, TangentVector[Point]]:
        nonlocal evaluations
        evaluations += 1
        value, gradient = objective(point)
        return float(value), gradient

    here = Iterate(start, *evaluate(start))
    if not math.isfinite(here.value):
        raise ValueError(f"start: the objective is {here.value} there; begin at a point where it is finite")
    best, values = here, [here.value]
    last: Iterate[Point] | None = None
    norm = first_norm = here.gradient.norm()
    change: float | None = None
    why: str | None
    while True:
        progress = Progress(
            len(values) - 1, evaluations, values, gradient_norm=norm, first_gradient_norm=first_norm,
            relative_change=change, step=here.step, point=here.point,
        )  # fmt: skip
        if norm == 0.0:
            why = "the gradient is zero"
        elif not math.isfinite(norm):
            why = "the gradient is not finite"
        else:
            why = stop(progress)
        if why is not None:
            break
        found = rule.advance(evaluate, here, last, values)
        if found is None:
            why = f"no step along the direction lowers the objective (gradient norm {norm:.2e})"
            break
        change = (found.moved or 0.0) / (here.gradient.frame.radial().norm() or 1.0)
        last, here = here, found
        norm = here.gradient.norm()
        values.append(here.value)
        if here.value <= best.value:
            best = here
    return Descent(
        best.point, best.value, best.gradient, iterations=len(values) - 1, evaluations=evaluations,
        stopped_because=why, history=tuple(values),
    )  # fmt: skip


def spectral_start(
    contract: Callable[[Frame], Sequence[np.ndarray]], guess: Point, iterations: int = SPECTRAL_ITERATIONS
) -> Point:
    """About the TT-SVD (or HOSVD) of a tensor known only through its contractions with frames; one pass an iteration.

    Each step projects the tensor on to the tangent space at the last guess and rounds: what a power iteration
    does to a matrix, done to all unfoldings at once. Nothing larger than the cores is held.

    Examples
    --------
    >>> from corten.lowrank import TensorTrain
    >>> goal = TensorTrain.random((5, 6, 7), rank=2, seed=1)
    >>> found = spectral_start(lambda f: f.contractions_of(goal), TensorTrain.random(goal.shape, 2, seed=2), 8)
    >>> bool((found - goal).norm() < 1e-6 * goal.norm())
    True
    """
    point = guess
    for _ in range(iterations):
        frame = point.frame()
        tangent = frame.project(contract(frame.tt))
        lifted = tangent.to_tucker() if isinstance(tangent, TuckerTangent) else tangent.to_tt()
        point = cast(Point, lifted.round(guess.rank))
        if point.norm() == 0.0:
            break
    return point
