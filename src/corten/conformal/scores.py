"""Non-conformity scores, each next to its inverse: how wrong an estimate was, and which values are not.

A score object turns (truth, estimate, scale) into a number, and cutoffs of that number back into an
interval. The two undo each other: a truth whose score lies exactly on a cutoff lies on the interval's end.
Users may bring their own; see `Score`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Absolute", "Adaptive", "Normalized", "Score", "Signed", "Tails", "as_score"]

Array = NDArray[np.floating]


class Tails(NamedTuple):
    """The levels a score asks the quantile for; None where a tail is not needed.

    `upper` is the level at or below which the score must stay, `lower` the level at or above which: a
    two-sided score at coverage c asks for (1 + c)/2 of both, that is, for the quantiles (1 - c)/2 and (1 +
    c)/2.

    Examples
    --------
    >>> Absolute().tails(0.9)
    Tails(lower=None, upper=0.9)
    """

    lower: float | None
    upper: float | None


@runtime_checkable
class Score(Protocol):
    """What a score object must offer.

    `needs_leverage` says that the completion's own uncertainty should be the scale; a score that has
    `learns_scale` and sets it gets one learned from training residuals. `invert` gets None for
    a tail that `tails` did not ask for, and keeps infinite cutoffs infinite.
    """

    @property
    def name(self) -> str: ...
    @property
    def needs_leverage(self) -> bool: ...
    def score(self, truth: Array, estimate: Array, scale: Array) -> Array: ...
    def tails(self, coverage: float) -> Tails: ...
    def invert(
        self, estimate: Array, scale: Array, lower_cut: Array | None, upper_cut: Array | None
    ) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Absolute:
    """|truth - estimate| / scale: an interval symmetric about the estimate.

    s <= q  is  |x - m| <= q u  is  m - q u <= x <= m + q u.

    Examples
    --------
    >>> Absolute().invert(np.array([5.0]), np.array([2.0]), None, np.array([1.5]))
    (array([2.]), array([8.]))
    """

    name: ClassVar[str] = "absolute"
    needs_leverage: ClassVar[bool] = False

    def score(self, truth: ArrayLike, estimate: ArrayLike, scale: ArrayLike = 1.0) -> Array:
        return np.asarray(np.abs(np.subtract(truth, estimate)) / np.asarray(scale))

    def tails(self, coverage: float) -> Tails:
        return Tails(lower=None, upper=coverage)

    def invert(
        self,
        estimate: ArrayLike,
        scale: ArrayLike,
        lower_cut: Array | None,
        upper_cut: Array | None,
    ) -> tuple[Array, Array]:
        half = np.multiply(_given(upper_cut, "upper"), scale)
        return np.subtract(estimate, half), np.add(estimate, half)


@dataclass(frozen=True)
class Normalized(Absolute):
    """The absolute score with the completion's leverage u as its scale: wide where the estimate is unsure.

    The formula is that of `Absolute`; what differs is the scale it asks the flow for.

    Examples
    --------
    >>> Normalized().score(np.array([3.0]), np.array([1.0]), np.array([4.0]))
    array([0.5])
    """

    name: ClassVar[str] = "normalized"
    needs_leverage: ClassVar[bool] = True


@dataclass(frozen=True)
class Adaptive(Absolute):
    """The absolute score with a scale learned from training residuals: wide where errors were large.

    The formula is that of `Absolute`; what differs is the scale it asks the flow for. With pseudo-gaps the scale is
    learned from hidden entries for every score, so there it is the same as `Absolute`.

    Examples
    --------
    >>> Adaptive().score(np.array([3.0]), np.array([1.0]), np.array([4.0]))
    array([0.5])
    """

    name: ClassVar[str] = "adaptive"
    learns_scale: ClassVar[bool] = True


@dataclass(frozen=True)
class Signed:
    """(truth - estimate) / scale, cut on both sides: an interval that may lean to one side.

    a <= s <= b  is  m + a u <= x <= m + b u, with a and b the quantiles (1 - c)/2 and (1 + c)/2. Each tail
    misses with probability at most (1 - c)/2, so both together at most 1 - c.

    Examples
    --------
    >>> Signed().invert(np.array([5.0]), np.array([2.0]), np.array([-np.inf]), np.array([1.5]))
    (array([-inf]), array([8.]))
    """

    name: ClassVar[str] = "signed"
    needs_leverage: ClassVar[bool] = False

    def score(self, truth: ArrayLike, estimate: ArrayLike, scale: ArrayLike = 1.0) -> Array:
        return np.asarray(np.subtract(truth, estimate) / np.asarray(scale))

    def tails(self, coverage: float) -> Tails:
        return Tails(lower=(1.0 + coverage) / 2.0, upper=(1.0 + coverage) / 2.0)

    def invert(
        self,
        estimate: ArrayLike,
        scale: ArrayLike,
        lower_cut: Array | None,
        upper_cut: Array | None,
    ) -> tuple[Array, Array]:
        low, high = _given(lower_cut, "lower"), _given(upper_cut, "upper")
        return np.add(estimate, np.multiply(low, scale)), np.add(estimate, np.multiply(high, scale))


_NAMED: dict[str, Any] = {"absolute": Absolute, "adaptive": Adaptive, "normalized": Normalized, "signed": Signed}


def as_score(score: str | Score) -> Score:
    """The score object behind a name; an object of one's own passes through.

    Examples
    --------
    >>> as_score("signed")
    Signed()
    """
    if isinstance(score, str):
        if score not in _NAMED:
            raise ValueError(f"score must be one of {sorted(_NAMED)} or a Score object; got {score!r}.")
        made: Score = _NAMED[score]()
        return made
    if isinstance(score, type) or not isinstance(score, Score):
        raise TypeError(
            f"score must be one of {sorted(_NAMED)} or an object with name, needs_leverage, score(), tails() "
            f"and invert(); got {score!r}."
        )
    return score


def _given(cut: Array | None, side: str) -> Array:
    if cut is None:
        raise ValueError(f"this score needs the {side} cutoff; got None.")
    return cut
