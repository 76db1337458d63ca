"""Step rules: how far to walk along a direction. They know an objective and a tangent vector, no data.

A rule is a frozen choice of constants; `rule.begin()` starts a search that remembers what the rule needs between
iterations (the rule itself where that is nothing). `search.advance(evaluate, here)` gives the next `Iterate`, or None
where no step will do. One evaluation gives value and gradient together, so a trial that is accepted costs no more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Evaluate = Callable[[Any], tuple[float, Any]]


@dataclass(frozen=True)
class Iterate:
    """A point with its value and Riemannian gradient, and the move (step, length) that led there."""

    point: Any
    value: float
    gradient: Any
    step: float | None = None
    moved: float | None = None


class Search(Protocol):
    """One descent's use of a step rule."""

    def advance(self, evaluate: Evaluate, here: Iterate) -> Iterate | None:
        """The next iterate, or None when no step is acceptable."""
        ...


class StepRule(Protocol):
    """What `descend` takes as its `step`."""

    def begin(self) -> Search:
        """Start a search of this rule."""
        ...


@dataclass(frozen=True)
class FixedStep:
    """The same step every time, 0.1 in the paper; halved only where the objective is not finite."""

    step: float = 0.1
    max_halvings: int = 30

    def begin(self) -> Search:
        return self

    def advance(self, evaluate: Evaluate, here: Iterate) -> Iterate | None:
        accept = _Accept(reference=math.inf, slope=0.0, alpha=0.0, halvings=self.max_halvings)
        return accept.search(evaluate, here, -here.gradient, self.step)


@dataclass(frozen=True)
class Armijo:
    """The paper's adaptive scheme: from a large step halve until l(B) - l(B') >= alpha step ||grad||^2."""

    first_step: float = 1.0
    alpha: float = 1e-4
    max_halvings: int = 40
    noise: float = 1e-14

    def begin(self) -> Search:
        return self

    def advance(self, evaluate: Evaluate, here: Iterate) -> Iterate | None:
        reference = here.value + self.noise * abs(here.value)
        accept = _Accept(reference, -(here.gradient.norm() ** 2), self.alpha, self.max_halvings)
        return accept.search(evaluate, here, -here.gradient, self.first_step)


@dataclass(frozen=True)
class BarzilaiBorwein:
    """Steps from the curvature seen along the last move, with a non-monotone Armijo safeguard: the default.

    The long step <s,s>/<s,y> is taken unless the short one <s,y>/<y,y> is less than `balance` of it; then the
    smallest of the last `memory` short ones. A step passes if it improves on the worst of the last `memory`
    values. first_step: the very first trial, about one over the curvature; None moves a tenth of the norm.
    noise: relative rounding error of the objective (about 1e-7 for float32 sums).
    """

    first_step: float | None = None
    alpha: float = 1e-4
    memory: int = 5
    balance: float = 0.5
    max_halvings: int = 30
    noise: float = 1e-14

    def begin(self) -> Search:
        return _BarzilaiBorweinSearch(self)


@dataclass(frozen=True)
class ConjugateGradient:
    """Polak-Ribiere+ directions carried by transport, restarted when they stop descending; Armijo steps.

    The first trial of an iteration is one over the curvature seen along the last move; mostly it is accepted.
    """

    first_step: float | None = None
    alpha: float = 1e-4
    max_halvings: int = 30
    noise: float = 1e-14

    def begin(self) -> Search:
        return _ConjugateSearch(self)


class _BarzilaiBorweinSearch:
    def __init__(self, rule: BarzilaiBorwein) -> None:
        self.rule = rule
        self.values: deque[float] = deque(maxlen=rule.memory)
        self.shorts: deque[float] = deque(maxlen=rule.memory)
        self.last: Iterate | None = None

    def advance(self, evaluate: Evaluate, here: Iterate) -> Iterate | None:
        self.values.append(here.value)
        worst = max(self.values)
        step = self._trial(here)
        self.last = here
        reference, slope = worst + self.rule.noise * abs(worst), -(here.gradient.norm() ** 2)
        accept = _Accept(reference, slope, self.rule.alpha, self.rule.max_halvings, interpolate=True)
        return accept.search(evaluate, here, -here.gradient, step)

    def _trial(self, here: Iterate) -> float:
        if self.last is None or here.step is None:
            return _first_step(self.rule.first_step, here)
        carried = self.last.gradient.transport(here.gradient.frame)
        # s = -step * carried and y = gradient - carried: one transport gives both
        change = here.gradient - carried
        s_s = here.step**2 * carried.inner(carried)
        s_y = -here.step * carried.inner(change)
        y_y = change.inner(change)
        if y_y == 0.0 or s_y <= 1e-12 * math.sqrt(s_s) * math.sqrt(y_y):
            return 2.0 * here.step  # no upward curvature (to be seen) along the last move: the safeguard watches
        long, short = s_s / s_y, s_y / y_y
        self.shorts.append(short)
        return min(self.shorts) if short < self.rule.balance * long else long


class _ConjugateSearch:
    def __init__(self, rule: ConjugateGradient) -> None:
        self.rule = rule
        self.last: Iterate | None = None
        self.direction: Any = None

    def advance(self, evaluate: Evaluate, here: Iterate) -> Iterate | None:
        direction, step = self._direction(here)
        found = self._along(evaluate, here, direction, step)
        if found is None and self.last is not None:
            direction = -here.gradient
            found = self._along(evaluate, here, direction, _first_step(self.rule.first_step, here))
        self.last, self.direction = here, direction
        return found

    def _along(self, evaluate: Evaluate, here: Iterate, direction: Any, step: float) -> Iterate | None:
        reference, slope = here.value + self.rule.noise * abs(here.value), here.gradient.inner(direction)
        accept = _Accept(reference, slope, self.rule.alpha, self.rule.max_halvings, interpolate=True)
        return accept.search(evaluate, here, direction, step)

    def _direction(self, here: Iterate) -> tuple[Any, float]:
        steepest = -here.gradient
        if self.last is None or here.step is None:
            return steepest, _first_step(self.rule.first_step, here)
        frame = here.gradient.frame
        before = self.last.gradient.transport(frame)
        carried = self.direction.transport(frame)
        weight = max(0.0, here.gradient.inner(here.gradient - before) / self.last.gradient.norm() ** 2)
        direction = steepest + carried * weight
        if here.gradient.inner(direction) > -1e-2 * direction.norm() * here.gradient.norm():
            direction = steepest
        # curvature per unit length along the last move, by the secant of its two slopes
        turn, length = carried.inner(here.gradient - before), here.step * carried.inner(carried)
        if not (turn > 0.0 and length > 0.0):
            return direction, 2.0 * here.step
        return direction, -here.gradient.inner(direction) * length / (turn * direction.inner(direction))


def _first_step(given: float | None, here: Iterate) -> float:
    if given is not None:
        return given
    return 0.1 * (here.point.norm() or 1.0) / here.gradient.norm()


@dataclass(frozen=True)
class _Accept:
    """Backtracking: shrink a step until value <= reference + alpha step slope.

    A trial whose value or gradient is not finite is refused like one that is too high.
    """

    reference: float
    slope: float
    alpha: float
    halvings: int
    interpolate: bool = False

    def search(self, evaluate: Evaluate, here: Iterate, direction: Any, step: float) -> Iterate | None:
        length = direction.norm()
        for _ in range(self.halvings + 1):
            if not math.isfinite(step * length):
                return None
            point = direction.retract(step)
            value, gradient = evaluate(point)
            fine = math.isfinite(value) and math.isfinite(gradient.norm())
            if fine and value <= self.reference + self.alpha * step * self.slope:
                return Iterate(point, value, gradient, step, step * length)
            shrink = 0.5
            # the lowest point of the parabola through the value here, its slope, and the refused value
            bend = value - here.value - step * self.slope
            if self.interpolate and math.isfinite(bend) and bend > 0.0:
                shrink = min(0.5, max(0.1, -step * self.slope / (2.0 * bend)))
            step *= shrink
        return None
