"""Adaptive conformal inference: a level that is corrected by the past errors, for data that drift."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from corten.data.coverage import check_coverage

MIN_DISTANCE_TO_ENDS = 1e-9  # of the next coverage, to 0 and to 1; intervals near 1 are infinite


@dataclass(frozen=True)
class AdaptiveCoverage:
    """The coverage to give next, so that the share of covered values over a long time is the nominal one.

    After a step in which a share e of the values was outside its intervals, the level a (one minus the coverage that
    is given) becomes a + rate (alpha - e), with alpha one minus the nominal coverage.

    Parameters
    ----------
    coverage : float, default 0.9
        Nominal coverage over all steps.
    rate : float, default 0.05
        Change of the level per unit of error. A larger rate follows drift faster, and the width of intervals varies
        more.
    level : float, optional
        The present level a; it may leave [0, 1] by at most the rate. Default: one minus the coverage.
    steps : int, default 0
        Number of steps so far.

    Raises
    ------
    ValueError
        If the coverage is not between 0 and 1, or the rate is not positive.

    Notes
    -----
    Let e_t be the share of step t outside, a_1 the first level and T the number of steps. Whatever the data are,
    |mean of e_1, ..., e_T - alpha| <= (max(a_1, 1 - a_1) + rate) / (rate T), provided that intervals at a level of at
    most 0 cover everything and those at a level of at least 1 cover nothing (Gibbs and Candes 2021, Proposition 4.1).
    Infinite intervals do the first. It is a statement about the average over time, not about one step, and steps whose
    values never arrive do not count. If errors are known only d steps later, rate is replaced by (d + 1) rate in the
    numerator.

    Examples
    --------
    >>> adaptive = AdaptiveCoverage(0.9, rate=0.05)
    >>> round(adaptive.after(0.3).next_coverage, 3)
    0.91
    """

    coverage: float = 0.9
    rate: float = 0.05
    level: float | None = None
    steps: int = 0

    def __post_init__(self) -> None:
        check_coverage(self.coverage)
        if not self.rate > 0:
            raise ValueError(f"rate is {self.rate!r}; give a positive number, such as 0.05")

    @property
    def present(self) -> float:
        """The present level a."""
        return 1.0 - self.coverage if self.level is None else self.level

    @property
    def next_coverage(self) -> float:
        """The coverage to give in the next step, strictly between 0 and 1."""
        return min(max(1.0 - self.present, MIN_DISTANCE_TO_ENDS), 1.0 - MIN_DISTANCE_TO_ENDS)

    @property
    def bound(self) -> float:
        """The largest possible difference between the share outside and one minus the coverage, after these steps."""
        first = 1.0 - self.coverage
        return (max(first, 1.0 - first) + self.rate) / (self.rate * self.steps) if self.steps else float("inf")

    def after(self, outside: float) -> AdaptiveCoverage:
        """The same after one more step, with a share `outside` of its values outside their intervals."""
        if not 0.0 <= outside <= 1.0:
            raise ValueError(f"outside is {outside!r}; give a share between 0 and 1")
        level = self.present + self.rate * (1.0 - self.coverage - outside)
        return replace(self, level=level, steps=self.steps + 1)

    def after_all(self, outside: Iterable[float]) -> AdaptiveCoverage:
        """The same after several steps."""
        return reduce(AdaptiveCoverage.after, outside, self)
