"""Neighbourhoods: which entries are neighbours, and colourings in which neighbours have different colours.

A neighbourhood is given by name ("adjacent", "cube", "adjacent:lat,lon") or by offsets, and resolved for a shape:
along a periodic axis of length 1 there is no neighbour, along one of length 2 there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.data.arrays import Entries
from corten.data.axes import position
from corten.engine.layout import neighbours_of

MAX_COLOURINGS_TRIED = 1000  # then the separable colouring is taken


class Colouring(NamedTuple):
    """Colours such that neighbours differ: entry i has colour sum_k phases[k][i_k] mod number."""

    number: int
    phases: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """The neighbours of every entry of a tensor, made by `resolve`.

    Parameters
    ----------
    offsets : array of int, shape (n, K)
        Index differences to the neighbours, symmetric. No two of them lead to the same entry, none to the entry itself.
    periodic : tuple of bool
        Which axes are periodic.
    name : str
        A short text for summaries.

    Examples
    --------
    >>> resolve("cube", (4, 5)).neighbours([0], (4, 5)).tolist()
    [[-1, -1, -1, -1, 1, -1, 5, 6]]
    """

    offsets: NDArray[np.int64]
    periodic: tuple[bool, ...]
    name: str = "offsets"

    def __repr__(self) -> str:
        return f"Neighborhood({self.name!r}, {len(self.offsets)} offsets, periodic={self.periodic})"

    @property
    def radius(self) -> tuple[int, ...]:
        """The largest distance of a neighbour along each axis, in steps (the shorter way on a periodic axis)."""
        if len(self.offsets) == 0:
            return (0,) * len(self.periodic)
        return tuple(int(reach) for reach in np.abs(self.offsets).max(axis=0))

    def neighbours(self, flat: ArrayLike, shape: Sequence[int]) -> Entries:
        """Flat indices of the neighbours of entries, one column per offset, -1 where there is none."""
        return neighbours_of(np.asarray(flat, dtype=np.intp).ravel(), self.offsets, shape, self.periodic)

    def colours(self, shape: Sequence[int]) -> Colouring:
        """A colouring with few colours for block sampling: neighbours have different colours.

        Two for adjacent, three if a periodic axis has odd length, 2^K for the cube; others by search.
        """
        rings = [_ring_colours(length, reach, wraps) for length, reach, wraps in zip(shape, self.radius, self.periodic)]
        sizes = [int(ring.max()) + 1 for ring in rings]
        separable = int(np.prod(sizes))
        lines = [np.arange(length) for length in shape]
        for number in range(1, separable):
            if number ** len(rings) > MAX_COLOURINGS_TRIED:
                break
            for factors in product(range(number), repeat=len(rings)):
                for bases in (lines, rings):
                    phases = tuple(factor * base % number for factor, base in zip(factors, bases))
                    if self._separates(phases, number):
                        return Colouring(number, phases)
        # one digit per axis: neighbours differ in a digit, so in the colour
        strides = np.cumprod([1, *sizes[:-1]])
        return Colouring(separable, tuple(stride * ring for stride, ring in zip(strides, rings)))

    def _separates(self, phases: tuple[NDArray[np.int64], ...], number: int) -> bool:
        """Whether every offset changes the colour: 0 is not among the sums of phase differences."""
        for offset in self.offsets:
            reachable = {0}
            for phase, step, wraps in zip(phases, offset.tolist(), self.periodic):
                if step:
                    moved = np.roll(phase, -step) - phase
                    if not wraps:
                        moved = moved[max(0, -step) : len(phase) - max(0, step)]
                    steps = set((moved % number).tolist())
                    reachable = {(old + new) % number for old in reachable for new in steps}
            if 0 in reachable:
                return False
        return True


def resolve(
    spec: str | Neighborhood | ArrayLike,
    shape: Sequence[int],
    axis_names: Sequence[str] | None = None,
    periodic: Sequence[bool] = (),
) -> Neighborhood:
    """The neighbourhood of a tensor of this shape; a ValueError if a name, an axis or an offset is not allowed.

    spec: "adjacent" (2K neighbours), "cube" (3^K - 1), either restricted to some axes by name or position
    ("adjacent:lat,lon", "cube:0,1"), or a symmetric set of offsets, shape (n, K).

    >>> len(resolve("adjacent", (2, 5), periodic=(True, False)).offsets)
    3
    """
    shape = tuple(int(length) for length in shape)
    order = len(shape)
    flags = tuple(bool(flag) for flag in periodic) or (False,) * order
    if len(flags) != order:
        raise ValueError(f"periodic has {len(flags)} flags; give one for each of the {order} axes, or none.")
    if isinstance(spec, Neighborhood):
        if spec.offsets.shape[1] != order:
            raise ValueError(f"neighborhood is for {spec.offsets.shape[1]} axes; the tensor has {order}.")
        if spec.periodic != flags and periodic:
            raise ValueError(f"neighborhood has periodic={spec.periodic}, but {flags} was given; make them agree.")
        flags = spec.periodic
        offsets, name = spec.offsets, spec.name
    elif isinstance(spec, str):
        offsets, name = _named_offsets(spec, order, axis_names), spec
    else:
        offsets, name = _checked_offsets(spec, order), "offsets"
    return Neighborhood(_deduplicated(offsets, shape, flags), flags, name)


def _named_offsets(spec: str, order: int, axis_names: Sequence[str] | None) -> NDArray[np.int64]:
    """The offsets of a neighbourhood given by name."""
    kind, colon, chosen = spec.partition(":")
    if kind not in ("adjacent", "cube") or (colon and not chosen):
        raise ValueError(
            f'neighborhood is {spec!r}; give "adjacent", "cube", either with axes as in "adjacent:0,1", '
            "or a symmetric set of offsets."
        )
    axes = list(range(order))
    if chosen:
        names = [str(name) for name in axis_names or range(order)]
        given = [name.strip() for name in chosen.split(",")]
        numbers = [one if one in names or not one.lstrip("-").isdigit() else int(one) for one in given]
        axes = sorted({position(one, names, "neighborhood") for one in numbers})
    if kind == "adjacent":
        unit = np.eye(order, dtype=np.int64)[axes]
        return np.concatenate([-unit, unit])
    steps = [(-1, 0, 1) if axis in axes else (0,) for axis in range(order)]
    return np.array([offset for offset in product(*steps) if any(offset)], dtype=np.int64)


def _checked_offsets(spec: ArrayLike, order: int) -> NDArray[np.int64]:
    """The offsets as whole numbers, checked: no zero offset, and symmetric."""
    given = np.asarray(spec)
    offsets = given.astype(np.int64)
    if offsets.ndim != 2 or offsets.shape[1] != order or len(offsets) == 0 or np.any(offsets != given):
        raise ValueError(
            f"neighborhood offsets have shape {given.shape}; give whole numbers, shape (n, {order}), n >= 1."
        )
    known = {tuple(offset) for offset in offsets.tolist()}
    if (0,) * order in known:
        raise ValueError("neighborhood has the zero offset; an entry is not its own neighbour: leave it out.")
    for offset in sorted(known):
        opposite = tuple(-step for step in offset)
        if opposite not in known:
            raise ValueError(f"neighborhood has {offset} but not {opposite}; make the set symmetric.")
    return offsets


def _deduplicated(offsets: NDArray[np.int64], shape: tuple[int, ...], periodic: tuple[bool, ...]) -> NDArray[np.int64]:
    """The offsets, the shorter way round periodic axes, without repetitions, zero and those that leave the shape."""
    kept: dict[tuple[int, ...], None] = {}
    for offset in offsets.tolist():
        steps = []
        for step, length, wraps in zip(offset, shape, periodic):
            if wraps:
                step %= length
                step -= length if step > length // 2 else 0
            steps.append(step)
        inside = all(wraps or abs(step) < length for step, length, wraps in zip(steps, shape, periodic))
        if inside and any(steps):
            kept[tuple(steps)] = None
    return np.array(sorted(kept), dtype=np.int64).reshape(-1, len(shape))


def _ring_colours(length: int, reach: int, wraps: bool) -> NDArray[np.int64]:
    """Colours of the positions of one axis: up to `reach` apart they differ, across a periodic end too."""
    colours = np.arange(length) % (reach + 1)
    first = max(0, length - reach) if wraps else length  # from here on neighbours lie across the end
    colours[first:] = -1
    for place in range(first, length):
        around = [place + step for step in range(-reach, reach + 1) if step]
        taken = {int(colours[p % length]) for p in around if p % length != place}
        colours[place] = next(c for c in range(length) if c not in taken)
    return colours
