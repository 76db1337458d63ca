"""Slope checks: does a gradient belong to its objective, does a retraction agree with its tangent vector.

Both errors shrink like the square of the step when all is right, so a log-log plot has slope two; a wrong
gradient shows slope one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corten.lowrank import TensorTrain, feasible_rank
from corten.lowrank.cores import Floats, frozen


@dataclass(frozen=True)
class SlopeCheck:
    """Outcome of a slope check: the measured order of the error, and whether it is (at least) two.

    An error that is zero to rounding at every step has slope infinity, which is fine.
    """

    what: str
    slope: float
    steps: Floats = field(repr=False)
    errors: Floats = field(repr=False)

    @property
    def ok(self) -> bool:
        """True where the error falls at least like the square of the step."""
        return self.slope > 1.85

    def __repr__(self) -> str:
        return f"{self.what}: log-log slope {self.slope:.2f}, {'ok' if self.ok else 'WRONG'} (2 expected)"

    def __bool__(self) -> bool:
        return self.ok


def random_tangent(frame: Any, seed: int) -> Any:
    """A random tangent vector of norm one: the projection of a random tensor train."""
    train = TensorTrain.random(frame.point.shape, feasible_rank(frame.point.shape, 3), seed)
    drawn = frame.project_tt(train)
    return drawn * (1.0 / drawn.norm())


def check_gradient(
    objective: Callable[[Any], tuple[float, Any]], point: Any, seed: int = 0, size: float = 1e-1, noise: float = 1e-13
) -> SlopeCheck:
    """Compare an objective with its gradient along a half random line: f(R(t x)) - f - t <grad, x> = O(t^2).

    size: the largest step, as a share of the point's norm; noise: relative rounding of the objective, about 1e-9 for
    the float32 passes, whose errors partly cancel in their float64 sums.
    """
    value, gradient = objective(point)
    direction = random_tangent(gradient.frame, seed)
    if gradient.norm() > 0.0:  # a direction nearly orthogonal to the gradient would hide a wrong scale
        if gradient.inner(direction) < 0.0:  # in few dimensions the two could cancel
            direction = -direction
        direction = (direction + gradient * (1.0 / gradient.norm())) * 0.5
    slope = gradient.inner(direction)
    steps = _steps(size, point)
    found = np.array([objective(direction.retract(t))[0] for t in steps])
    errors = np.abs(found - value - steps * slope)
    floor = noise * (abs(value) + np.abs(found)) + 1e-300
    return SlopeCheck("gradient", _order(steps, errors, floor), frozen(steps), frozen(errors))


def check_retraction(point: Any, seed: int = 0, size: float = 1e-1) -> SlopeCheck:
    """Compare a retraction with its tangent vector: ||R(t x) - (point + t x)|| = O(t^2)."""
    frame = point.frame()
    direction = random_tangent(frame, seed)
    base, along = frame.point.to_dense(), direction.to_tt().to_dense()
    steps = _steps(size, point)
    errors = np.array([np.linalg.norm(direction.retract(t).to_dense() - base - t * along) for t in steps])
    floor = np.full(len(steps), 1e-13 * float(np.linalg.norm(base)) + 1e-300)
    return SlopeCheck("retraction", _order(steps, errors, floor), frozen(steps), frozen(errors))


def _steps(size: float, point: Any) -> Floats:
    return size * (point.norm() or 1.0) * np.logspace(0.0, -5.0, 16)


def _order(steps: Floats, errors: Floats, floor: Floats) -> float:
    """Slope over the smallest steps whose error still stands clear of rounding."""
    clear = errors > 100.0 * floor
    count = len(steps) if clear.all() else int(np.argmin(clear))
    if count < 3:
        return float("inf")
    chosen = slice(max(0, count - 8), count)
    return float(np.polyfit(np.log(steps[chosen]), np.log(errors[chosen]), 1)[0])
