"""Nonconformity scores and their inverses.

A score turns (truth, estimate, scale) into a number, and cutoffs of that number into an interval. A truth whose score
equals a cutoff lies on a bound of the interval. Users can define their own; see `Score`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from corten.data.arrays import Numbers


class Tails(NamedTuple):
    """The levels of the quantiles that a score needs; None for a tail that it does not use.

    lower: the probability that the score is at or above the lower cutoff; upper: at or below the upper cutoff. A
    two-sided score at coverage c needs (1 + c)/2 for both, that is, the quantiles (1 - c)/2 and (1 + c)/2.

    >>> Absolute().tails(0.9)
    Tails(lower=None, upper=0.9)
    """

    lower: float | None
    upper: float | None


@runtime_checkable
class Score(Protocol):
    """The members of a score.

    If `needs_leverage` is True, the leverage of the completion is the scale; if the score has an attribute
    `learns_scale` that is True, the scale is learned from training residuals. `invert` gets None for a tail that
    `tails` does not use, and must keep infinite cutoffs infinite.
    """

    @property
    def name(self) -> str: ...
    @property
    def needs_leverage(self) -> bool: ...
    def score(self, truth: Numbers, estimate: Numbers, scale: Numbers) -> Numbers: ...
    def tails(self, coverage: float) -> Tails: ...
    def invert(
        self, estimate: Numbers, scale: Numbers, lower_cut: Numbers | None, upper_cut: Numbers | None
    ) -> tuple[Numbers, Numbers]: ...


@dataclass(frozen=True)
class Absolute:
    """The score ``|truth - estimate| / scale``: intervals are symmetric about the estimate.

    s <= q is equivalent to m - q u <= x <= m + q u, with estimate m and scale u.

    >>> Absolute().invert(np.array([5.0]), np.array([2.0]), None, np.array([1.5]))
    (array([2.]), array([8.]))
    """

    name: ClassVar[str] = "absolute"
    needs_leverage: ClassVar[bool] = False

    def score(self, truth: ArrayLike, estimate: ArrayLike, scale: ArrayLike = 1.0) -> Numbers:
        return np.asarray(np.abs(np.subtract(truth, estimate)) / np.asarray(scale))

    def tails(self, coverage: float) -> Tails:
        return Tails(lower=None, upper=coverage)

    def invert(
        self, estimate: ArrayLike, scale: ArrayLike, lower_cut: Numbers | None, upper_cut: Numbers | None
    ) -> tuple[Numbers, Numbers]:
        half = np.multiply(_given(upper_cut, "upper"), scale)
        return np.subtract(estimate, half), np.add(estimate, half)


@dataclass(frozen=True)
class Normalized(Absolute):
    """The absolute score with the leverage of the completion as scale: intervals are wide where leverage is high.

    The formula is that of `Absolute`; only the scale differs.
    """

    name: ClassVar[str] = "normalized"
    needs_leverage: ClassVar[bool] = True


@dataclass(frozen=True)
class Adaptive(Absolute):
    """The absolute score with a scale learned from training residuals: intervals are wide where errors were large.

    The formula is that of `Absolute`; only the scale differs. With pseudo-gaps the scale is learned from hidden entries
    for every score, so this score equals `Absolute` there.
    """

    name: ClassVar[str] = "adaptive"
    learns_scale: ClassVar[bool] = True


@dataclass(frozen=True)
class Automatic(Absolute):
    """The score that is chosen: with pseudo-gaps `Signed` or `Absolute`, by evidence; else the absolute score.

    A random split keeps the absolute score, as its theorem needs a score that no calibration entry has influenced.
    """

    name: ClassVar[str] = "auto"


@dataclass(frozen=True)
class Signed:
    """The score (truth - estimate) / scale with two cutoffs: intervals may be asymmetric.

    a <= s <= b is equivalent to m + a u <= x <= m + b u, with a and b the quantiles (1 - c)/2 and (1 + c)/2. The truth
    lies below and above with probability at most (1 - c)/2 each.

    >>> Signed().invert(np.array([5.0]), np.array([2.0]), np.array([-np.inf]), np.array([1.5]))
    (array([-inf]), array([8.]))
    """

    name: ClassVar[str] = "signed"
    needs_leverage: ClassVar[bool] = False

    def score(self, truth: ArrayLike, estimate: ArrayLike, scale: ArrayLike = 1.0) -> Numbers:
        return np.asarray(np.subtract(truth, estimate) / np.asarray(scale))

    def tails(self, coverage: float) -> Tails:
        return Tails(lower=(1.0 + coverage) / 2.0, upper=(1.0 + coverage) / 2.0)

    def invert(
        self, estimate: ArrayLike, scale: ArrayLike, lower_cut: Numbers | None, upper_cut: Numbers | None
    ) -> tuple[Numbers, Numbers]:
        low, high = _given(lower_cut, "lower"), _given(upper_cut, "upper")
        return np.add(estimate, np.multiply(low, scale)), np.add(estimate, np.multiply(high, scale))


_NAMED: dict[str, type[Absolute] | type[Signed]] = {
    one.name: one for one in (Absolute, Adaptive, Automatic, Normalized, Signed)
}


def as_score(score: str | Score) -> Score:
    """The score with this name ("absolute", "adaptive", "auto", "normalized", "signed"), or the score object itself.

    An unknown name is a ValueError, an object that lacks a member of `Score` a TypeError.

    >>> as_score("signed")
    Signed()
    """
    if isinstance(score, str):
        if score not in _NAMED:
            names = ", ".join(f'"{name}"' for name in sorted(_NAMED))
            raise ValueError(f"score is {score!r}; allowed are {names} or an object")
        return _NAMED[score]()
    if isinstance(score, type) or not isinstance(score, Score):
        raise TypeError(
            f"score is {score!r}; give one of {sorted(_NAMED)}, or an object with name, needs_leverage, score(), "
            "tails() and invert()"
        )
    return score


def _given(cut: Numbers | None, side: str) -> Numbers:
    """Return the cutoff, or raise if it is None."""
    if cut is None:
        raise ValueError(f"this score needs the {side} cutoff; got None.")
    return cut
