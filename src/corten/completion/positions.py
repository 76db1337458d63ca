"""Positions along axes, from their coordinates: steps of unequal length and jumps on a regular grid.

The completions of fields work on regular grids. An axis with unequal steps gets a finer regular grid of its own: its
entries lie at positions between or on the grid points, and grid points without an entry are not observed. A regular
axis is its own grid, and nothing is computed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corten.data.axes import Axis, numbers_of, period_of

MAX_SHIFT = 0.1
"""An axis is regular if no coordinate is further than this from a regular one, in steps: months are regular."""
MAX_GROWTH = 4.0
"""The grids of all axes together have at most so many times the entries of the tensor ..."""
SMALL_ENTRIES = 20_000
"""... or so many entries, where that is more."""
MAX_JUMP_LENGTHS = 2.0
"""A jump longer than this, in lengths of the rest of the axis, separates its two sides and is cut to this."""


@dataclass(frozen=True)
class Grid:
    """The regular grid of one axis.

    size: number of grid points; positions: where the entries of the axis lie, in steps of the grid, None if entry i
    lies on grid point i; step, unit: length of a step in the unit of the coordinates; longest_jump: the longest step
    of the axis, in the same unit, where it was cut.
    """

    size: int
    positions: np.ndarray | None = None
    step: float = 1.0
    unit: str = "steps"
    longest_jump: float | None = None

    @property
    def usual_step(self) -> float:
        """Median distance of neighbouring entries, in steps of the grid."""
        return 1.0 if self.positions is None else float(np.median(np.diff(self.positions)))


def grids_of(axes: Sequence[Axis] | None, shape: tuple[int, ...]) -> tuple[Grid, ...]:
    """The grid of every axis."""
    if not axes:
        return tuple(Grid(n) for n in shape)
    found = [_regular(axis) for axis in axes]
    irregular = [k for k, grid in enumerate(found) if grid is None]
    entries = float(np.prod(shape, dtype=float))
    growth = max(MAX_GROWTH, SMALL_ENTRIES / max(entries, 1.0)) ** (1 / max(len(irregular), 1))
    return tuple(_refined(axis, growth) if grid is None else grid for axis, grid in zip(axes, found))


def moved_grids(old: Sequence[Grid], axes: Sequence[Axis]) -> tuple[tuple[Grid, ...], tuple[float, ...]]:
    """The grids of other axes, and how many of its new steps an old step is, along each axis.

    Steps that were counted as equal are so again.
    """
    grids, ratios = [], []
    for before, axis, grid in zip(old, axes, grids_of(axes, tuple(axis.length for axis in axes))):
        equal = before.unit == "steps" or grid.unit != before.unit
        grids.append(Grid(axis.length) if equal else grid)
        ratios.append(1 / before.usual_step if equal else before.step / grid.step)
    return tuple(grids), tuple(ratios)


def _steps(axis: Axis) -> tuple[np.ndarray, str] | None:
    """Lengths of the steps along an ordered axis, with their unit; a periodic one has a last step that closes it."""
    known = numbers_of(axis)
    if axis.kind == "unordered" or axis.length < 2 or known is None:
        return None
    numbers, unit = known
    steps = np.abs(np.diff(numbers))
    if not np.isfinite(steps).all() or not (steps > 0).all():
        return None
    if axis.periodic:
        around = period_of(axis)
        closing = float(np.median(steps)) if around is None else around - float(steps.sum())
        steps = np.append(steps, max(closing, 0.0))
    return steps, unit


def _regular(axis: Axis) -> Grid | None:
    """The grid of an axis without known positions or with equal steps; None for unequal steps."""
    known = _steps(axis)
    if known is None:
        return Grid(axis.length)
    steps, unit = known
    mean = float(steps.mean())
    shift = np.abs(np.cumsum(steps) / mean - np.arange(1, len(steps) + 1))
    return Grid(axis.length, None, mean, unit) if shift.max() <= MAX_SHIFT else None


def _refined(axis: Axis, growth: float) -> Grid:
    """A grid whose step is a short step of the axis, with at most `growth` times its entries."""
    known = _steps(axis)
    assert known is not None  # only axes with known steps are irregular
    steps, unit = known
    short, usual = np.quantile(steps[steps > 0], [0.25, 0.5])
    longest = MAX_JUMP_LENGTHS * axis.length * float(usual)
    cut = np.minimum(steps, longest)
    most = int(growth * axis.length)
    step = max(float(short), float(cut.sum()) / (most - 1))
    if axis.periodic:  # a whole number of steps around the circle
        size = max(2, round(cut.sum() / step))
        step = float(cut.sum()) / size
        cut = cut[:-1]
    else:
        size = int(np.ceil(cut.sum() / step - 1e-6)) + 1
    positions = np.append(0.0, np.cumsum(cut)) / step
    return Grid(size, positions, step, unit, float(steps.max()) if steps.max() > longest else None)


def length_in_words(name: str, grid: Grid, steps: float) -> str:
    """A length along an axis in the unit of its coordinates; seconds as days, hours or minutes."""
    size, unit = grid.step, grid.unit
    if unit == "s":
        size, unit = next((size / n, text) for n, text in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
                          if steps * size >= n or n == 1)  # fmt: skip
    return f"{name} {steps * size:.3g} {unit}".rstrip()


def grids_in_words(axes: Sequence[Axis], grids: Sequence[Grid]) -> str:
    """The grids of axes with unequal steps, and the jumps that were cut; empty if all axes are regular."""
    parts = []
    for axis, grid in zip(axes, grids):
        if grid.positions is None:
            continue
        text = f"{grid.size} points, step of {length_in_words(axis.name, grid, 1.0)}"
        if grid.longest_jump is not None:
            widest = float(np.diff(grid.positions).max())
            jump = length_in_words("", grid, grid.longest_jump / grid.step)
            text += f" (a jump of{jump} counts as{length_in_words('', grid, widest)})"
        parts.append(text)
    return "; ".join(parts)
