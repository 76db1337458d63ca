"""Intervals with guaranteed coverage for odds that are wrong by up to a factor; the worst case has a closed form.

Suppose every true weight lies between w/G and w G, with w the weight that was used and G >= 1 the *odds error*. Given
the set of all n + 1 scores, the test score is one of them, drawn with probabilities proportional to the true weights.
Let m be the share of the used weight that lies beyond the cutoff. The true share beyond it is largest if all true
weights beyond it are G times, and all others 1/G times, the weights used:

    m' = m G / (m G + (1 - m) / G) = m G^2 / (m G^2 + 1 - m),   that is,   odds(m') = G^2 odds(m).

So an interval of nominal coverage c covers with probability at least 1 / (1 + G^2 (1 - c) / c). For coverage c one
computes the ordinary interval at the level c' with odds(c') = G^2 odds(c). The argument holds for any set of scores
taken as "beyond", hence also for two-sided scores and for exact weights. The bound is sharp if nothing more is known of
the errors of the odds; errors that are independent of the scores have a smaller effect.
"""

from __future__ import annotations

import math


def robust_level(coverage: float, odds_error: float) -> float:
    """The level at which `coverage` is guaranteed for any odds within the factor `odds_error`."""
    factor = check_odds_error(odds_error) ** 2
    return coverage if factor == 1.0 else factor * coverage / (factor * coverage + 1.0 - coverage)


def tolerated_odds_error(coverage: float, loss: float = 0.05, infinite_share: float = 0.0) -> float:
    """The largest factor by which odds may be wrong if coverage must not fall by more than `loss`.

    Infinite intervals always cover: with a share s of them, the factor solves s + (1 - s) worst = c - loss. It is
    infinite if the infinite intervals alone give this coverage.
    """
    left = (coverage - loss - infinite_share) / (1.0 - infinite_share) if infinite_share < 1.0 else 0.0
    if left <= 0.0:
        return math.inf
    return math.sqrt(coverage / (1.0 - coverage) * (1.0 - left) / left)


def check_odds_error(odds_error: float) -> float:
    """Return the factor, or raise if it is not a finite number of at least 1."""
    if isinstance(odds_error, bool) or not isinstance(odds_error, int | float) or not 1.0 <= odds_error < math.inf:
        raise ValueError(
            f"odds_error is {odds_error!r}: give the factor by which odds may be wrong, 1 or more, such as 1.5"
        )
    return float(odds_error)
