"""Whether an axis that nobody described has an order: are neighbouring slices more alike than strangers?

A bare array does not say whether an axis runs through space or time or lists stations. Slices of an ordered axis are
most like their neighbours; shuffling them would show. An axis is taken for a set of units only where shuffling does
not show while another axis of the same array clearly has an order: without that, nothing in the array has one (noise,
people x products), and order does no harm.
"""

from __future__ import annotations

import numpy as np

from corten.data.choices import Choice

__all__ = ["neighbours_alike", "unordered_axes"]

LEAST = 5  # slices: with fewer, every order looks like another
CLEAR = 0.5
FAINT = 0.25
SHUFFLES = 200
SLICES, CELLS = 300, 4096
"""At most so many slices, from the middle of the axis, and cells of each are looked at."""


def unordered_axes(values: np.ndarray, mask: np.ndarray) -> tuple[Choice, ...]:
    """The axes to be taken for units, each with the evidence; `what` of the choice is the axis position.

    Example:
        >>> hours = np.sin(np.arange(48) / 5) * np.random.default_rng(0).normal(5, 1, (12, 1))
        >>> [choice.what for choice in unordered_axes(hours, np.ones(hours.shape, bool))]
        ['0']
    """
    found = [neighbours_alike(values, mask, axis) for axis in range(mask.ndim)]
    if not any(alike > CLEAR and alike > luck for alike, luck in found):
        return ()
    return tuple(
        Choice(
            str(axis),
            "unordered",
            f"its neighbours differ {1 - alike:.0%} as much as its strangers, and shuffled slices by chance as little "
            f"as {1 - luck:.0%}, while another axis has a clear order; say axis_kinds to decide otherwise",
            code="unordered_axis",
            values={"axis": axis, "alike": alike, "alike_by_chance": luck},
        )
        for axis, (alike, luck) in enumerate(found)
        if mask.shape[axis] >= LEAST and alike < FAINT and alike <= luck
    )


def neighbours_alike(values: np.ndarray, mask: np.ndarray, axis: int, seed: int = 0) -> tuple[float, float]:
    """How alike neighbours along an axis are (1 the same, 0 as strangers), and what one shuffle in ten reaches.

    One minus the mean squared difference of neighbouring slices over that of all pairs of slices. (nan, nan) where too
    little is observed to tell.
    """
    rng = np.random.default_rng((seed, 0xA11))
    length = mask.shape[axis]
    skip = max(0, (length - SLICES) // 2)
    window = slice(skip, skip + SLICES)
    seen = np.moveaxis(mask, axis, 0)[window].reshape(min(length, SLICES), -1)
    y = np.moveaxis(values, axis, 0)[window].reshape(seen.shape)
    if seen.shape[1] > CELLS:
        cells = np.sort(rng.choice(seen.shape[1], CELLS, replace=False))
        seen, y = seen[:, cells], y[:, cells]
    if len(seen) < 3 or not seen.any():
        return float("nan"), float("nan")
    y = np.where(seen, y, 0.0).astype(np.float64)  # sums and squares of large float32 values do not fit in float32
    y = np.where(seen, y - y[seen].mean(), 0.0)
    m = seen.astype(np.float64)
    both = m @ m.T
    squares = y**2 @ m.T
    total = np.maximum(squares + squares.T - 2 * y @ y.T, 0.0)
    near, strangers = both.diagonal(1).sum(), np.triu(both, 1).sum()
    usual = np.triu(total, 1).sum()
    if near < 20 or strangers < 40 or not usual > 0:
        return float("nan"), float("nan")

    def alike(order: np.ndarray) -> float:
        pairs = order[:-1], order[1:]
        count = both[pairs].sum()
        return 1 - (total[pairs].sum() / count) / (usual / strangers) if count else 0.0

    shuffled = [alike(rng.permutation(len(seen))) for _ in range(SHUFFLES)]
    return float(alike(np.arange(len(seen)))), float(np.quantile(shuffled, 0.9))
