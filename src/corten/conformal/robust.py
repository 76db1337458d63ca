"""Intervals that hold although the odds are wrong by a factor: the worst case has a closed form.

Suppose every true weight lies between w/G and w G, w being the weight that was used and G >= 1 the *odds error*.
Take all n + 1 scores as a bag: the test score is one of them, drawn with probabilities proportional to the true
weights. Let m be the share of the used weight that lies beyond the cutoff. The true share beyond it is largest
when all weights beyond are G times, all others 1/G times what was used:

    m' = m G / (m G + (1 - m) / G) = m G^2 / (m G^2 + 1 - m),   that is,   odds(m') = G^2 odds(m).

So an interval asked for coverage c covers at least 1 / (1 + G^2 (1 - c) / c), and to keep c one asks for the
coverage c' with odds(c') = G^2 odds(c): robust intervals are ordinary intervals of a higher level, no new search
is needed. The argument holds for any set of scores taken as "beyond", hence for two-sided scores too, and for
exact weights. It is the sharp bound if nothing more is known of the errors; odds that are wrong in the same
direction for large and small scores do less harm.
"""

from __future__ import annotations

import math

__all__ = ["check_odds_error", "robust_level", "tolerated_odds_error", "worst_coverage"]


def robust_level(coverage: float, odds_error: float) -> float:
    """The level to ask for so that `coverage` holds for any odds within the factor `odds_error`.

    Examples
    --------
    >>> round(robust_level(0.9, 1.5), 4), robust_level(0.9, 1.0)
    (0.9529, 0.9)
    """
    factor = check_odds_error(odds_error) ** 2
    return coverage if factor == 1.0 else factor * coverage / (factor * coverage + 1.0 - coverage)


def worst_coverage(coverage: float, odds_error: float) -> float:
    """The least coverage an interval of level `coverage` can have if odds are wrong by up to `odds_error`.

    Examples
    --------
    >>> round(worst_coverage(robust_level(0.9, 1.5), 1.5), 12)
    0.9
    """
    factor = check_odds_error(odds_error) ** 2
    return coverage / (coverage + factor * (1.0 - coverage))


def tolerated_odds_error(coverage: float, loss: float = 0.05, infinite_share: float = 0.0) -> float:
    """The factor by which odds may be wrong before intervals of this coverage can lose `loss` of it.

    Infinite intervals cannot lose: with a share s of them s + (1 - s) worst = c - loss is solved. Infinity where
    the infinite ones alone hold the promise.

    Examples
    --------
    >>> round(tolerated_odds_error(0.9), 3), tolerated_odds_error(0.9, infinite_share=0.85)
    (1.26, inf)
    """
    left = (coverage - loss - infinite_share) / (1.0 - infinite_share) if infinite_share < 1.0 else 0.0
    if left <= 0.0:
        return math.inf
    return math.sqrt(coverage / (1.0 - coverage) * (1.0 - left) / left)


def check_odds_error(odds_error: float) -> float:
    """A factor of at least 1, or an error that says so."""
    if isinstance(odds_error, bool) or not isinstance(odds_error, int | float) or not 1.0 <= odds_error < math.inf:
        raise ValueError(
            f"odds_error is {odds_error!r}: give the factor by which odds may be wrong, 1 or more, such as 1.5"
        )
    return float(odds_error)
