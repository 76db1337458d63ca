"""Riemannian descent: walk down a smooth objective on a manifold of low-rank tensors, and say why it stopped.

Knows no Ising model and no data: an objective is any function point -> (value, gradient), the gradient a
tangent vector with inner, norm, +, *, retract, transport and a frame, which has `radial` (`Tangent`, `TuckerTangent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from corten.lowrank.line_search import BarzilaiBorwein, Iterate, StepRule
from corten.lowrank.stopping import GradientNorm, MaxIterations, Progress, StoppingRule, ValueChange

Objective = Callable[[Any], tuple[float, Any]]


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: the best point met, its value and gradient, what it cost and why it stopped.

    evaluations: calls of the objective, each one pass over the data; history: the value at every iterate.
    """

    point: Any = field(repr=False)
    value: float
    gradient: Any = field(repr=False)
    iterations: int
    evaluations: int
    stopped_because: str
    history: tuple[float, ...] = field(repr=False)


def descend(
    objective: Objective,
    start: Any,
    *,
    step: StepRule | None = None,
    stop: StoppingRule | None = None,
    callback: Callable[[Progress], object] | None = None,
) -> Descent:
    """Minimise an objective from a start (Algorithm RGrad, with a choice of step rules).

    step: `BarzilaiBorwein()` unless told otherwise; stop: by default a small gradient, no more improvement or
    500 iterations; callback: called after every iteration with the `Progress`; returning True stops.

    Examples
    --------
    >>> from corten.lowrank import Frame, TensorTrain, descend
    >>> goal = TensorTrain.random((5, 6, 7), rank=2, seed=1)
    >>> def squared_distance(point):
    ...     frame = Frame.of(point)
    ...     return 0.5 * (point - goal).norm() ** 2, frame.project_tt(point - goal)
    >>> descend(squared_distance, TensorTrain.random((5, 6, 7), rank=2, seed=2)).value < 1e-6
    True
    """
    rule: StepRule = BarzilaiBorwein() if step is None else step
    until = GradientNorm(1e-5) | ValueChange(1e-9, 5) | MaxIterations(500) if stop is None else stop
    evaluations = 0

    def evaluate(point: Any) -> tuple[float, Any]:
        nonlocal evaluations
        evaluations += 1
        value, gradient = objective(point)
        return float(value), gradient

    here = Iterate(start, *evaluate(start))
    if not math.isfinite(here.value):
        raise ValueError(f"start: the objective is {here.value} there; begin at a point where it is finite")
    best, values, search = here, [here.value], rule.begin()
    norm = first_norm = here.gradient.norm()
    change: float | None = None
    why: str | None
    while True:
        progress = Progress(len(values) - 1, evaluations, values, norm, first_norm, change, here.step, here.point)
        if callback is not None and len(values) > 1 and callback(progress) is True:
            why = "the callback asked to stop"
        elif norm == 0.0:
            why = "the gradient is zero"
        elif not math.isfinite(norm):
            why = "the gradient is not finite"
        else:
            why = until.reason(progress)
        if why is not None:
            break
        found = search.advance(evaluate, here)
        if found is None:
            why = f"no step along the direction lowers the objective (gradient norm {norm:.2e})"
            break
        change = (found.moved or 0.0) / (here.gradient.frame.radial().norm() or 1.0)
        here = found
        norm = here.gradient.norm()
        values.append(here.value)
        if here.value <= best.value:
            best = here
    return Descent(best.point, best.value, best.gradient, len(values) - 1, evaluations, why, tuple(values))
