"""The weighted quantile.

Guarantee. For calibration scores v_1..v_n with weights w_1..w_n, a test entry of weight w and a level c in
(0, 1), the upper cutoff is the smallest score v with

    sum of w_k over v_k <= v   >=   c (w_1 + ... + w_n + w) (1 - 1e-12),

and +infinity if there is none: the mass of the test entry is at +infinity (equation
qhat-weighted-definition). If the test score is a draw from all n+1 scores with probabilities proportional
to the weights, it lies at or below the cutoff with probability at least c (1 - 1e-12) (Proposition
conformal-interval-weight). The lower cutoff is minus the upper cutoff of the negated scores, with the mass of the test
entry at -infinity.

Numerics. Running sums are compensated, so the comparison is accurate to about 1e-13 of the total weight, and the
relative 1e-12 affects ties only (nine equal weights at 90 % give the ninth score, not infinity). Weights are stored as
logarithms, shifted by their maximum: a common factor has no effect, ratios of 1e+-300 are allowed, nothing is clipped.
An infinite cutoff is a regular result, not an error.

Cost. One sort; then one search of the running sums for each test entry and level. With exact Ising weights they are
adjusted at N positions; the weights are summed again, O(n), only for test entries that remove all but a thousandth of
the total weight.
`benchmarks/conformal_step.py` measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from corten.conformal import kernels
from corten.data.arrays import Floats, Numbers
from corten.engine.threads import in_order

Tail = Literal["upper", "lower"]

TIE_GUARD = 1e-12  # relative tolerance of the comparison with a level
TASK_ENTRIES = 1 << 19  # test entries of one task of the thread pool
CHANGED_TASK_ENTRIES = 1 << 14  # if each changes weights: what is computed for them stays in the cache


@dataclass(frozen=True)
class NeighbourFactor:
    """The changes of calibration weights when a test entry is set to observed.

    For test entry t, and for no other, the weight of calibration entry `neighbours[t, n]` is multiplied by
    `exp(log_factor[t, n])`. Both are (tests, N): positions in the list of calibration entries, -1 for none and each
    once in a row, and logarithms that are finite or -inf.
    """

    neighbours: NDArray[np.integer]
    log_factor: Numbers

    def __post_init__(self) -> None:
        if self.neighbours.ndim != 2 or self.neighbours.shape != self.log_factor.shape:
            raise ValueError(
                "neighbours and log_factor must both be (tests, N) arrays; "
                f"got shapes {self.neighbours.shape} and {self.log_factor.shape}."
            )


class WeightedScores:
    """Calibration scores with weights, sorted once, for cutoffs at any test weight and level.

    Parameters
    ----------
    scores : array
        The calibration scores; no NaN.
    log_weights : array
        Their log-weights; finite or -inf (no weight).
    tail : "upper" or "lower"
        Which cutoffs are computed; default "upper".

    Notes
    -----
    Equation (qhat-weighted-definition) of the paper.

    Examples
    --------
    >>> scores = WeightedScores(np.arange(1.0, 10.0), np.zeros(9))
    >>> scores.cutoffs(np.zeros(1), 0.9)
    array([[9.]])
    """

    def __init__(self, scores: ArrayLike, log_weights: ArrayLike, tail: Tail = "upper") -> None:
        values = np.asarray(scores, dtype=np.float64).ravel()
        logs = np.asarray(log_weights, dtype=np.float64).ravel()
        if values.size != logs.size:
            raise ValueError(f"scores and log_weights must match; got {values.size} and {logs.size} entries.")
        if np.isnan(values).any():
            raise ValueError("scores contain NaN; score observed entries only.")
        if np.isnan(logs).any() or (logs == np.inf).any():
            raise ValueError("log_weights must be finite or -inf (no weight); got NaN or +inf.")
        if tail not in ("upper", "lower"):
            raise ValueError(f"tail must be 'upper' or 'lower'; got {tail!r}.")
        self.tail: Tail = tail
        if tail == "lower":
            values = -values
        order = np.argsort(values, kind="stable")
        self._scores = values[order]
        self._rank_of = np.full(order.size + 1, -1)  # the last: of no neighbour
        self._rank_of[order] = np.arange(order.size)
        top = float(logs.max()) if logs.size else -np.inf
        self._shift = top if np.isfinite(top) else 0.0
        self._log_weights = logs[order] - self._shift
        self._weights = np.append(np.exp(self._log_weights), 0.0)
        self._empty = not np.isfinite(top)
        if not self._empty:
            self._sums = kernels.running_sum(self._weights[:-1])

    @property
    def size(self) -> int:
        """The number of calibration scores."""
        return self._scores.size

    @property
    def log_total(self) -> float:
        """Logarithm of the sum of the calibration weights; -inf if all are zero."""
        return -np.inf if self._empty else self._shift + float(np.log(self._sums[-1]))

    def log_weights(self) -> Floats:
        """The calibration log-weights, in the order in which the scores were given."""
        return (self._log_weights + self._shift)[self._rank_of[:-1]]

    def cutoffs(
        self,
        log_test_weights: ArrayLike,
        levels: float | Sequence[float] | Numbers,
        neighbour_factor: NeighbourFactor | None = None,
    ) -> Floats:
        """Cutoffs of test entries.

        Parameters
        ----------
        log_test_weights : array
            Log-weights of the test entries, on the scale of the calibration weights.
        levels : float or sequence of float
            Levels strictly between 0 and 1.
        neighbour_factor : NeighbourFactor, optional
            Changes of calibration weights, one row per test entry.

        Returns
        -------
        array, shape (levels, tests)

        Examples
        --------
        >>> WeightedScores([1.0, 2.0], np.log([1.0, 3.0])).cutoffs(np.log([1.0, 0.1]), [0.2, 0.5, 0.9])
        array([[ 1.,  1.],
               [ 2.,  2.],
               [inf,  2.]])
        """
        tests = np.asarray(log_test_weights, dtype=np.float64).ravel()
        wanted = as_levels(levels)
        if np.isnan(tests).any():
            raise ValueError("log_test_weights contain NaN.")
        if neighbour_factor is not None and neighbour_factor.neighbours.shape[0] != tests.size:
            raise ValueError(
                "neighbour_factor must have one row per test entry; "
                f"got {neighbour_factor.neighbours.shape[0]} rows for {tests.size} entries."
            )
        out = np.full((wanted.size, tests.size), np.inf if self.tail == "upper" else -np.inf)
        if not self._empty:
            self._fill(tests, wanted, neighbour_factor, out)
        return out

    def _fill(self, tests: Floats, wanted: Floats, factor: NeighbourFactor | None, out: Floats) -> None:
        """Write the cutoffs to `out`, in chunks of test entries on a thread pool."""
        values = np.append(self._scores, np.inf) * (1.0 if self.tail == "upper" else -1.0)
        levels = wanted * (1.0 - TIE_GUARD)
        if factor is not None and not ((factor.neighbours < self.size).all() and (factor.log_factor < np.inf).all()):
            raise ValueError("neighbour_factor holds a position past the calibration list, a NaN or a +inf.")

        @np.errstate(over="ignore", under="ignore")
        def alike(start: int) -> None:
            logs = tests[start : start + TASK_ENTRIES] - self._shift
            order = np.argsort(logs)
            whole = self._sums[-1] + np.exp(logs[order])
            for row, level in enumerate(levels):
                out[row, start + order] = kernels.search_ascending(self._sums, values, level * whole)

        @np.errstate(over="ignore", under="ignore", invalid="ignore")
        def changed(start: int) -> None:
            assert factor is not None
            part = slice(start, start + CHANGED_TASK_ENTRIES)
            logs, near, own = tests[part] - self._shift, factor.neighbours[part], factor.log_factor[part]
            ranks = self._rank_of.take(near)
            changes = self._weights.take(ranks) * (np.exp(own, dtype=np.float64) - 1.0)
            found = kernels.search_changed(self._sums, values, self._guide, np.exp(logs), ranks, changes, levels)
            for t in np.flatnonzero(np.isnan(found[0])):
                used = ranks[t] >= 0
                found[:, t] = values[self._summed_again(float(logs[t]), ranks[t, used], own[t, used], levels)]
            out[:, part] = found

        starts = range(0, tests.size, TASK_ENTRIES if factor is None else CHANGED_TASK_ENTRIES)
        for _ in in_order(alike if factor is None else changed, starts, None if len(starts) > 1 else 1):
            pass

    @cached_property
    def _guide(self) -> NDArray[np.int32]:
        return kernels.guide_table(self._sums)

    def _summed_again(
        self, log_test: float, ranks: NDArray[np.int64], log_factor: Numbers, levels: Floats
    ) -> NDArray[np.intp]:
        """Positions of the cutoffs of one test entry from a new sum of its weights, shifted by their maximum."""
        logs = self._log_weights.copy()
        logs[ranks] += log_factor
        top = max(log_test, float(logs.max()))
        if top == -np.inf:
            return np.full(levels.size, self.size)
        sums = kernels.running_sum(np.exp(logs - top))
        return np.searchsorted(sums, levels * (sums[-1] + np.exp(log_test - top)))


def weighted_cutoffs(
    scores: ArrayLike,
    weights: ArrayLike,
    *,
    test_weights: ArrayLike,
    coverage: float | Sequence[float],
    tail: Tail = "upper",
) -> Numbers:
    """Cutoffs that test scores do not exceed, with a given coverage, shape (levels, tests).

    `weights` and `test_weights` are not negative and on a common scale, such as odds of being missing. With
    ``tail="lower"`` the test score lies at or *above* the cutoff. See `WeightedScores`.

    >>> weighted_cutoffs([3.0, 1.0, 2.0], [1, 1, 1], test_weights=[1, 9], coverage=0.5)
    array([[ 2., inf]])
    >>> weighted_cutoffs([3.0, 1.0, 2.0], [1, 1, 1], test_weights=[1], coverage=0.5, tail="lower")
    array([[2.]])
    """
    return WeightedScores(scores, _logs("weights", weights), tail).cutoffs(
        _logs("test_weights", test_weights), coverage
    )


def as_levels(levels: float | Sequence[float] | Numbers) -> Floats:
    """Levels as a one-dimensional array, each strictly between 0 and 1."""
    wanted = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if wanted.ndim != 1 or not ((wanted > 0) & (wanted < 1)).all():
        raise ValueError(f"coverage is {levels!r}; give a probability between 0 and 1 (90 percent is coverage=0.9).")
    return wanted


def rounded_up(values: Numbers, dtype: DTypeLike) -> Numbers:
    """The values in another type, rounded up."""
    with np.errstate(over="ignore", under="ignore"):
        cast: Numbers = np.array(values, dtype=dtype)
        short = cast < values
        cast[short] = np.nextafter(cast[short], np.array(np.inf, cast.dtype))
    return cast


def rounded_out(bounds: tuple[Numbers, Numbers], dtype: DTypeLike) -> tuple[Numbers, Numbers]:
    """Lower and upper bounds in another type, rounded outwards so that no interval loses coverage."""
    lower, upper = bounds
    return -rounded_up(-lower, dtype), rounded_up(upper, dtype)


def _logs(name: str, weights: ArrayLike) -> Floats:
    """The logarithms of non-negative weights."""
    values = np.asarray(weights, dtype=np.float64)
    if not ((values >= 0) & (values < np.inf)).all():
        raise ValueError(f"{name} has negative or non-finite values; WeightedScores takes logarithms of weights.")
    with np.errstate(divide="ignore"):
        return np.log(values)
