"""Whether an axis without labels is ordered or unordered, chosen by held-out error.

A bare array does not say whether an axis is space, time or a list of stations. Along an ordered axis an entry is best
predicted from its near neighbours. Along an unordered axis it is best predicted from the mean of all slices and from
its own slice, after every slice was brought to a common level and scale. Both predictions are made for observed entries
hidden under pseudo-gaps (copies of the real gaps at other places), and the clearly smaller error decides. Where the
errors are alike, a permutation test decides: the clearer it finds the order, the lower the error must be without it.
The predictor is a smoother on windows of bounded size, so that the cost does not grow with the array: about a second
of one core. The neighbours in a window of a slow series may differ by noise only. A long axis that shows no order there
is looked at again with steps so large that a window spans it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from corten.data.choices import Choice

WINDOWS = 2
WINDOW_ENTRIES, WINDOW_LENGTH = 50_000, 500
"""Number of windows, and the most entries of a window and steps along one of its axes."""

MIN_ORDER_ENTRIES = 50
"""Hidden entries over all windows; with fewer, all axes are ordered."""

ORDER_WIDTHS = (40.0, 16.0, 6.5, 2.6, 1.0, 0.5)
"""Widths of the smoother in steps, from coarse to fine."""

ORDERED = ((1.0,), (0.1,), (0.3,), (3.0,), (10.0,), (10.0, 0.3), (10.0, 0.1), (3.0, 0.1))
UNORDERED = (np.inf, 0.0)
"""Factors of the widths along an axis, in one sweep from coarse to fine or in two. An ordered axis takes the best of
several; an unordered one first takes the mean of all slices, then each slice by itself."""

MAX_RATIOS = ((0.005, 0.85), (0.02, 1.0), (1.0, 1.25))
"""An axis is unordered where the error without its order is below a multiple of the error with it: for each p-value of
the order up to the first number of a pair, the second. One of fifty random orders has a p-value of at most 0.02, and
one of 200 has the smallest, 0.005."""

MIN_TEST_LENGTH = 5
"""Slices; with fewer no p-value below 0.05 is possible (4 slices have 12 orders), and an order is assumed."""

PERMUTATIONS = 199
TEST_SLICES, TEST_ENTRIES = 300, 4096
"""Most slices, from the middle of the axis, and entries of each that enter the permutation test."""

Plan = tuple[tuple[float, ...], ...]
"""The factors of the widths along every axis."""


@dataclass(frozen=True)
class AxisEvidence:
    """Mean absolute errors of hidden entries with and without the order of an axis, and the test of the order.

    Errors are in standard deviations of the observed values.
    """

    length: int
    ordered_error: float
    unordered_error: float
    p_value: float

    @property
    def unordered(self) -> bool:
        """Whether the axis is to be treated as unordered."""
        p_value = 0.0 if self.length < MIN_TEST_LENGTH else self.p_value
        limit = next(ratio for most, ratio in MAX_RATIOS if p_value <= most)
        return self.unordered_error < limit * self.ordered_error


def unordered_axes(values: np.ndarray, mask: np.ndarray) -> tuple[Choice, ...]:
    """The axes to be treated as unordered, each with the evidence; `what` of the choice is the axis position."""
    from corten.engine.threads import one_library_thread  # loaded late: it takes half a second

    with one_library_thread:
        found = enumerate(axis_evidence(values, mask))
    return tuple(
        Choice(
            str(axis),
            "unordered",
            f"held-out error {one.unordered_error:.3g} standard deviations as an unordered axis, "
            f"{one.ordered_error:.3g} as an ordered one; p-value of the order {one.p_value:.2g}",
            ({"kind": "ordered", "error": one.ordered_error}, {"kind": "unordered", "error": one.unordered_error}),
            code="unordered_axis",
            values={"axis": axis, "ordered_error": one.ordered_error, "unordered_error": one.unordered_error},
        )
        for axis, one in found
        if one.unordered
    )


def axis_evidence(values: np.ndarray, mask: np.ndarray, seed: int = 0) -> tuple[AxisEvidence, ...]:
    """The evidence for every axis; empty where too few entries are observed to hide some.

    The widths of all axes are chosen first, as if all were ordered. Then the axes are compared one after the other,
    each with the others as found so far, twice: what an axis of stations adds depends on how time is treated. A long
    axis without order in the windows has the evidence of larger steps where those show one.
    """
    near = _evidence(values, mask, seed)
    longest = _longest(mask.shape)
    steps = [-(-one.length // longest) if one.unordered else 1 for one in near]
    if max(steps, default=1) == 1:
        return near
    part = tuple(slice(None, None, step) for step in steps)
    far = _evidence(values[part], mask[part], seed) or near
    return tuple(b if step > 1 and not b.unordered else a for a, b, step in zip(near, far, steps))


def _evidence(values: np.ndarray, mask: np.ndarray, seed: int) -> tuple[AxisEvidence, ...]:
    """The evidence for every axis at the steps of the array."""
    rng = np.random.default_rng((seed, 0xA11))
    windows = [_window(values, mask, rng) for _ in range(WINDOWS)]
    if sum(int(window.hidden.sum()) for window in windows) < MIN_ORDER_ENTRIES:
        return ()
    tests = [order_p_value(values, mask, axis, seed) for axis in range(mask.ndim)]
    known: dict[Plan, float] = {}
    from corten.engine.threads import in_order  # loaded late: it takes half a second

    def error(plan: Plan) -> float:
        return float(np.mean([window.error(plan) for window in windows]))

    def best(k: int, plan: Plan, options: Sequence[tuple[float, ...]]) -> tuple[float, Plan]:
        """The lowest error over the options of axis k, the other ordered axes as planned or all alike."""
        alike = tuple(one if one == UNORDERED else ORDERED[0] for one in plan)
        plans = [(*rest[:k], one, *rest[k + 1 :]) for rest in (plan, alike) for one in options]
        new = [one for one in dict.fromkeys(plans) if one not in known]
        known.update(zip(new, in_order(error, new)))
        return min(((known[one], one) for one in plans), key=lambda pair: pair[0])

    plan: Plan = (ORDERED[0],) * mask.ndim
    evidence = [AxisEvidence(n, 1.0, 1.0, 1.0) for n in mask.shape]
    for compare in (False, False, True, True):
        before = plan
        for k, length in enumerate(mask.shape):
            if length == 1:
                continue
            with_order, plan = best(k, plan, ORDERED)
            if compare:
                without, other = best(k, plan, (UNORDERED,))
                evidence[k] = AxisEvidence(length, with_order, without, tests[k])
                plan = other if evidence[k].unordered else plan
        if compare and plan == before:
            break
    return tuple(evidence)


@dataclass(frozen=True)
class _Window:
    """A part of the array with a pseudo-gap: values (zero where not kept), kept and hidden entries, hidden truth."""

    values: np.ndarray
    kept: np.ndarray
    hidden: np.ndarray
    truth: np.ndarray

    def error(self, plan: Plan) -> float:
        """Mean absolute error of the hidden entries."""
        return float(np.abs(self.predict(plan)[self.hidden] - self.truth).mean()) if self.truth.size else 0.0

    def predict(self, plan: Plan) -> np.ndarray:
        """Averages of ever narrower surroundings, each of what the wider ones left."""
        unordered = [k for k, one in enumerate(plan) if one == UNORDERED]
        left, centre, scale = _common_scale(self.values, self.kept, unordered)
        left = left.astype(np.float32)
        weight = self.kept.astype(np.float32)
        estimate = np.zeros_like(left)
        for stretches in product(*plan):
            pooled = tuple(k + 1 for k, stretch in enumerate(stretches) if stretch == np.inf)
            smoothed = [(k, stretch) for k, stretch in enumerate(stretches) if 0 < stretch < np.inf]
            for width in ORDER_WIDTHS if smoothed else ORDER_WIDTHS[:1]:
                both = np.stack([left, weight]).sum(axis=pooled, keepdims=True)
                for k, stretch in smoothed:
                    both = _along(_kernel(left.shape[k], width * stretch), both, k + 1)
                step = both[0] / (both[1] + np.float32(1e-3))
                estimate += step
                left -= step * weight
        return estimate * scale + centre


def _longest(shape: tuple[int, ...]) -> int:
    """The most steps of a window along an axis."""
    longest = max(1, min(WINDOW_LENGTH, max(shape)))
    while longest > 1 and np.prod([min(n, longest) for n in shape], dtype=float) > WINDOW_ENTRIES:
        longest -= 1
    return longest


def _window(values: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> _Window:
    """Of eight random windows with a pseudo-gap, the one with most entries both kept and hidden."""
    longest = _longest(mask.shape)
    shape = [min(n, longest) for n in mask.shape]
    best, box, best_hidden = -1, tuple(slice(0, n) for n in shape), np.zeros(shape, bool)
    for _ in range(8):
        start = [int(rng.integers(n - m + 1)) for n, m in zip(mask.shape, shape)]
        here = tuple(slice(a, a + m) for a, m in zip(start, shape))
        hidden = mask[here] & _moved_gap(mask, here, rng)
        observed = int(mask[here].sum())
        for _ in range(4):
            # The part of the gaps that two copies share is smaller and has shapes of the same kind.
            if hidden.sum() > observed / 2:
                hidden &= _moved_gap(mask, here, rng)
        if hidden.sum() > observed / 2:
            hidden &= rng.random(shape) < 0.5
        if hidden.sum() < 0.05 * observed:
            hidden = mask[here] & (rng.random(shape) < 0.2)
        least = min(int(hidden.sum()), observed - int(hidden.sum()))
        if least > best:
            best, box, best_hidden = least, here, hidden
    kept = mask[box] & ~best_hidden
    if not kept.any():
        return _Window(np.zeros(shape), kept, np.zeros(shape, bool), np.zeros(0))
    inside = np.where(mask[box], values[box], 0.0).astype(np.float64)
    centre = float(inside[kept].mean())
    spread = float(inside[kept].std())
    inside = np.where(mask[box], (inside - centre) / (spread if spread > 0 else 1.0), 0.0)
    return _Window(inside * kept, kept, best_hidden, inside[best_hidden])


def _moved_gap(mask: np.ndarray, box: tuple[slice, ...], rng: np.random.Generator) -> np.ndarray:
    """A copy of the gaps inside a window, rolled and reflected along every axis."""
    index = []
    for n, part in zip(mask.shape, box):
        steps = (np.arange(part.start, part.stop) + rng.integers(n)) % n
        index.append(n - 1 - steps if rng.random() < 0.5 else steps)
    return ~mask[np.ix_(*index)]


def _common_scale(
    values: np.ndarray, kept: np.ndarray, unordered: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values with the level and scale of every slice of the unordered axes removed; these levels and scales.

    Both are shrunk towards those of all slices, as if five typical entries of each slice had been observed besides.
    """
    prior = 5.0
    centre, scale = np.zeros((1,) * kept.ndim), np.ones((1,) * kept.ndim)
    for k in unordered:
        rest = tuple(j for j in range(kept.ndim) if j != k)
        count = kept.sum(axis=rest, keepdims=True)
        level = values.sum(axis=rest, keepdims=True) / (count + prior)
        values = (values - level) * kept
        squares = (values**2).sum(axis=rest, keepdims=True)
        usual = squares.sum() / max(int(kept.sum()), 1)
        width = np.sqrt(np.maximum((squares + prior * usual) / (count + prior), 1e-12))
        values = values / width
        centre, scale = centre + scale * level, scale * width
    return values, centre, scale


@lru_cache(maxsize=256)
def _kernel(length: int, width: float) -> np.ndarray:
    """Gaussian weights between all positions of an ordered axis."""
    distance = np.subtract.outer(np.arange(length), np.arange(length)) / width
    # Weights too small for single precision would make products slow.
    return np.where(np.abs(distance) < 6, np.exp(-0.5 * distance**2), 0.0).astype(np.float32)


def _along(matrix: np.ndarray, array: np.ndarray, axis: int) -> np.ndarray:
    """Multiply every fibre of `array` along `axis` by a symmetric matrix."""
    if axis == array.ndim - 1:
        return array @ matrix
    before = int(np.prod(array.shape[:axis]))
    return (matrix @ array.reshape(before, array.shape[axis], -1)).reshape(array.shape)


def order_p_value(values: np.ndarray, mask: np.ndarray, axis: int, seed: int = 0) -> float:
    """P-value of the order of an axis: the share of random orders with neighbours at least as alike.

    Slices are alike where their mean squared difference over the entries observed in both is small. 1.0 where too
    little is observed to tell.
    """
    rng = np.random.default_rng((seed, axis, 0xA12))
    skip = max(0, (mask.shape[axis] - TEST_SLICES) // 2)
    rest = mask.shape[:axis] + mask.shape[axis + 1 :]
    size = int(np.prod(rest))
    some = np.arange(size) if size <= TEST_ENTRIES else np.unique(rng.integers(size, size=TEST_ENTRIES))
    part: tuple[slice | np.ndarray, ...] = (slice(skip, skip + TEST_SLICES), *np.unravel_index(some, rest))
    observed, y = np.moveaxis(mask, axis, 0)[part], np.moveaxis(values, axis, 0)[part]
    if len(observed) < 3 or not observed.any():
        return 1.0
    y = np.where(observed, y, 0.0).astype(np.float64)
    y = np.where(observed, y - y[observed].mean(), 0.0)
    weight = observed.astype(np.float64)
    pairs = weight @ weight.T
    squares = y**2 @ weight.T
    difference = np.maximum(squares + squares.T - 2 * y @ y.T, 0.0)

    def unlike(order: np.ndarray) -> float:
        near = order[:-1], order[1:]
        count = pairs[near].sum()
        return float(difference[near].sum() / count) if count else np.inf

    found = unlike(np.arange(len(observed)))
    as_alike = sum(unlike(rng.permutation(len(observed))) <= found for _ in range(PERMUTATIONS))
    return (1 + as_alike) / (1 + PERMUTATIONS)
