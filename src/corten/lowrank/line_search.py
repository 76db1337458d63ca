"""Step rules: how far to go along a direction.

A rule is a frozen set of constants; `rule.advance(evaluate, here, last, values)` gives the next `Iterate`, or None if
no step is acceptable. One evaluation gives value and gradient together, so an accepted trial costs no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol

from corten.lowrank.points import Point, TangentVector

Evaluate = Callable[[Point], tuple[float, TangentVector[Point]]]


@dataclass(frozen=True)
class Iterate(Generic[Point]):
    """A point with its value and Riemannian gradient, the move (step, length) that led there, and last short steps."""

    point: Point
    value: float
    gradient: TangentVector[Point]
    step: float | None = None
    moved: float | None = None
    shorts: tuple[float, ...] = ()


class StepRule(Protocol):
    """What `descend` takes as its `step`; last: the iterate before, None at the start; values: of all iterates."""

    def advance(
        self, evaluate: Evaluate[Point], here: Iterate[Point], last: Iterate[Point] | None, values: Sequence[float]
    ) -> Iterate[Point] | None: ...


@dataclass(frozen=True)
class FixedStep:
    """The same step every time, 0.1 in the paper; halved only where the objective is not finite."""

    step: float = 0.1

    def advance(
        self, evaluate: Evaluate[Point], here: Iterate[Point], last: Iterate[Point] | None, values: Sequence[float]
    ) -> Iterate[Point] | None:
        return _backtrack(evaluate, here, self.step, reference=math.inf, slope=0.0, alpha=0.0, halvings=30)


@dataclass(frozen=True)
class Armijo:
    """The paper's adaptive scheme: from a large step halve until l(B) - l(B') >= alpha step ||grad||^2."""

    first_step: float = 1.0
    alpha: float = 1e-4
    noise: float = 1e-14

    def advance(
        self, evaluate: Evaluate[Point], here: Iterate[Point], last: Iterate[Point] | None, values: Sequence[float]
    ) -> Iterate[Point] | None:
        reference, slope = here.value + self.noise * abs(here.value), -(here.gradient.norm() ** 2)
        return _backtrack(
            evaluate, here, self.first_step, reference=reference, slope=slope, alpha=self.alpha, halvings=40
        )


@dataclass(frozen=True)
class BarzilaiBorwein:
    """Steps from the curvature along the last move, with a non-monotone Armijo safeguard: the default.

    The long step <s,s>/<s,y> is taken unless the short one <s,y>/<y,y> is less than half of it; then the smallest of
    the last `memory` short ones. A step is accepted if it improves on the worst of the last `memory` values.
    first_step: the very first trial, about one over the curvature; None moves a tenth of the norm.
    noise: relative rounding error of the objective (about 1e-7 for float32 sums).
    """

    first_step: float | None = None
    alpha: float = 1e-4
    memory: int = 5
    noise: float = 1e-14

    def advance(
        self, evaluate: Evaluate[Point], here: Iterate[Point], last: Iterate[Point] | None, values: Sequence[float]
    ) -> Iterate[Point] | None:
        worst = max(values[-self.memory :])
        step, shorts = self.trial(here, last)
        reference, slope = worst + self.noise * abs(worst), -(here.gradient.norm() ** 2)
        found = _backtrack(
            evaluate, here, step, reference=reference, slope=slope, alpha=self.alpha, halvings=30, interpolate=True
        )
        return None if found is None else replace(found, shorts=shorts)

    def trial(self, here: Iterate[Point], last: Iterate[Point] | None) -> tuple[float, tuple[float, ...]]:
        """The first step to try, and the last short steps."""
        if last is None or here.step is None:
            given = self.first_step
            return 0.1 * (here.point.norm() or 1.0) / here.gradient.norm() if given is None else given, ()
        carried = last.gradient.transport(here.gradient.frame)
        # s = -step * carried and y = gradient - carried: one transport gives both
        change = here.gradient - carried
        s_s = here.step**2 * carried.inner(carried)
        s_y = -here.step * carried.inner(change)
        y_y = change.inner(change)
        if y_y == 0.0 or s_y <= 1e-12 * math.sqrt(s_s) * math.sqrt(y_y):
            # no measurable upward curvature along the last move: the safeguard bounds the step
            return 2.0 * here.step, here.shorts
        long, short = s_s / s_y, s_y / y_y
        shorts = (*here.shorts, short)[-self.memory :]
        return min(shorts) if short < 0.5 * long else long, shorts


def _backtrack(
    evaluate: Evaluate[Point],
    here: Iterate[Point],
    step: float,
    *,
    reference: float,
    slope: float,
    alpha: float,
    halvings: int,
    interpolate: bool = False,
) -> Iterate[Point] | None:
    """The first of shrinking steps with value <= reference + alpha step slope, value and gradient finite."""
    direction = -here.gradient
    length = direction.norm()
    for _ in range(halvings + 1):
        if not math.isfinite(step * length):
            return None
        point = direction.retract(step)
        value, gradient = evaluate(point)
        finite = math.isfinite(value) and math.isfinite(gradient.norm())
        if finite and value <= reference + alpha * step * slope:
            return Iterate(point, value, gradient, step, step * length)
        shrink = 0.5
        # the minimum of the parabola through the value here, its slope, and the refused value
        bend = value - here.value - step * slope
        if interpolate and math.isfinite(bend) and bend > 0.0:
            shrink = min(0.5, max(0.1, -step * slope / (2.0 * bend)))
        step *= shrink
    return None
