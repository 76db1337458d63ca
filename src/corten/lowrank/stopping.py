"""Stopping rules: small objects that compose with `|` and `&` and say in words why a descent stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """What a descent knows after an iteration; stopping rules and callbacks read it.

    values: the objective at every iterate so far; relative_change: ||B' - B|| / ||B|| of the last step
    (None before the first); step: its length; point: where the descent stands.
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

    def __and__(self, other: StoppingRule) -> AllOf:
        return AllOf((self, other))


@dataclass(frozen=True)
class AnyOf(StoppingRule):
    """Stop as soon as one of the rules says so."""

    rules: tuple[StoppingRule, ...]

    def reason(self, progress: Progress) -> str | None:
        return next((why for rule in self.rules if (why := rule.reason(progress))), None)


@dataclass(frozen=True)
class AllOf(StoppingRule):
    """Stop when all of the rules say so."""

    rules: tuple[StoppingRule, ...]

    def reason(self, progress: Progress) -> str | None:
        given = [why for rule in self.rules if (why := rule.reason(progress))]
        return " and ".join(given) if len(given) == len(self.rules) else None


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

    A non-monotone step that rises is a change too: a search still on the move is not taken for a finished one.
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
