"""Riemannian descent: minimise a smooth objective on a manifold of low-rank tensors, and say why it stopped.

An objective is any function point -> (value, gradient), the gradient a tangent vector with inner, norm, +, *, retract,
transport and a frame, which has `radial` (`Tangent`, `TuckerTangent`). Stopping rules are small objects that compose
with `|`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corten.lowrank.line_search import BarzilaiBorwein, Iterate, StepRule

Objective = Callable[[Any], tuple[float, Any]]


@dataclass(frozen=True)
class Progress:
    """The state of a descent after an iteration, read by stopping rules and callbacks.

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
    point: Any


@dataclass(frozen=True)
class StoppingRule(ABC):
    """Base of the rules: `reason(progress)` is a sentence when it is time to stop, else None."""

    @abstractmethod
    def reason(self, progress: Progress) -> str | None:
        """Say why to stop, or None to go on."""

    def __or__(self, other: StoppingRule) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True)
class AnyOf(StoppingRule):
    """Stop as soon as one of the rules gives a reason."""

    rules: tuple[StoppingRule, ...]

    def reason(self, progress: Progress) -> str | None:
        return next((why for rule in self.rules if (why := rule.reason(progress))), None)


@dataclass(frozen=True)
class MaxIterations(StoppingRule):
    """Stop after so many accepted steps."""

    limit: int

    def reason(self, progress: Progress) -> str | None:
        if progress.iterations < self.limit:
            return None
        return f"reached the limit of {self.limit} iterations"


@dataclass(frozen=True)
class MaxEvaluations(StoppingRule):
    """Stop after so many evaluations, that is passes over the data.

    Read between iterations: the line search of the last one may end a few evaluations beyond the limit.
    """

    limit: int

    def reason(self, progress: Progress) -> str | None:
        if progress.evaluations < self.limit:
            return None
        return f"reached the limit of {self.limit} evaluations"


@dataclass(frozen=True)
class GradientNorm(StoppingRule):
    """Stop when the gradient is small: against the first one (relative), or in itself (absolute)."""

    relative: float = 1e-4
    absolute: float = 0.0

    def reason(self, progress: Progress) -> str | None:
        bound = max(self.relative * progress.first_gradient_norm, self.absolute)
        if progress.gradient_norm > bound:
            return None
        return f"gradient norm {progress.gradient_norm:.2e} is at most {bound:.2e}"


@dataclass(frozen=True)
class RelativeChange(StoppingRule):
    """Stop when a step moves the point by little: ||B' - B|| <= tolerance ||B|| (Algorithm RGrad's rule)."""

    tolerance: float = 1e-4

    def reason(self, progress: Progress) -> str | None:
        if progress.relative_change is None or progress.relative_change > self.tolerance:
            return None
        return f"relative change {progress.relative_change:.2e} is at most {self.tolerance:.2e}"


@dataclass(frozen=True)
class ValueChange(StoppingRule):
    """Stop when the objective stayed within a share of itself over the last iterations.

    An increase counts as a change too, as steps need not be monotone.
    """

    relative: float = 1e-7
    patience: int = 5

    def reason(self, progress: Progress) -> str | None:
        if len(progress.values) <= self.patience:
            return None
        recent = progress.values[-self.patience - 1 :]
        if max(recent) - min(recent) > self.relative * abs(recent[-1]):
            return None
        return f"objective changed by less than {self.relative:.0e} of itself in {self.patience} iterations"


@dataclass(frozen=True)
class Descent:
    """The result of a descent: the best point, its value and gradient, the cost and why it stopped.

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

    step: by default `BarzilaiBorwein()`; stop: by default a small gradient, no more improvement or
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
