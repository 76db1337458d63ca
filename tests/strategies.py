"""Inputs for properties: shapes, masks, values, and the same array in every memory layout.

Structure (shape, share, layout, scale) is drawn by hypothesis and shrinks; numbers come from a drawn seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
DTYPES = ("f8", "f4", "f2", ">f8", ">f4", ">f2")
INTEGERS = ("?", "i1", "u1", "i2", ">i4", "i8", "u8", ">u2")
LAYOUTS = ("C", "F", "strided", "reversed", "broadcastable view", "read-only")


def costly(times: int) -> settings:
    """For a property whose cases take so many times as long as others: as many times fewer of them."""
    return settings(max_examples=max(2, settings.default.max_examples // times))


seeds = st.integers(0, 2**32 - 1)
levels = st.sampled_from([0.01, 0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999])


@st.composite
def shapes(draw: Any, orders: tuple[int, int] = (2, 5), longest: int = 6, most: int = 200) -> tuple[int, ...]:
    """Two to five modes, some of length 1, some lopsided; never more than `most` entries."""
    order = draw(st.integers(*orders))
    shape: list[int] = []
    size = 1
    for _ in range(order):
        length = draw(st.one_of(st.just(1), st.integers(1, longest), st.integers(1, longest)))
        length = max(1, min(length, most // size))
        size *= length
        shape.append(length)
    if draw(st.booleans()):  # lopsided: one mode as long as there is room for
        k = draw(st.integers(0, order - 1))
        shape[k] = max(1, most // (size // shape[k]))
    return tuple(shape)


@st.composite
def masks(draw: Any, shape: tuple[int, ...], observed: int = 1, missing: int = 0) -> np.ndarray:
    """True where observed, from 1 % to 99 % of it; at least so many observed and missing entries."""
    rng = np.random.default_rng(draw(seeds))
    mask = rng.random(shape) < draw(st.sampled_from(SHARES))
    if draw(st.booleans()) and shape[0] > 2:
        mask[rng.integers(shape[0])] = draw(st.booleans())  # a whole slice
    order = rng.permutation(mask.size)
    flat = mask.reshape(-1)
    flat[order[:observed]] = True
    flat[order[observed : observed + missing]] = False
    return mask


@st.composite
def values(draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Finite float64 of order one: rough, smooth, low-rank, tied, constant, or constant but for one entry."""
    rng = np.random.default_rng(draw(seeds))
    kind = draw(st.sampled_from(["rough", "smooth", "low rank", "ties", "constant", "one spike", "heavy tails"]))
    if kind == "rough":
        return rng.normal(size=shape)
    if kind == "heavy tails":
        return rng.standard_t(1.5, size=shape)
    if kind == "ties":
        return rng.integers(0, 3, shape).astype(float)
    if kind in ("smooth", "low rank"):
        out = np.ones(())
        for length in shape:
            factor = np.sin(np.arange(length) / 2 + 1) + 2 if kind == "smooth" else rng.normal(size=length)
            out = np.multiply.outer(out, factor)
        return out
    out = np.full(shape, 2.5)
    if kind == "one spike":
        out.reshape(-1)[rng.integers(out.size)] = 7.0
    return out


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers in another memory layout."""
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided":
        wide = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
        view[...] = array
        return view
    if layout == "reversed":
        turn = tuple(slice(None, None, -1) for _ in array.shape)
        return np.ascontiguousarray(array[turn])[turn]
    if layout == "broadcastable view":
        return np.concatenate([array[None], array[None]])[1]
    out = array.copy()
    if layout == "read-only":
        out.setflags(write=False)
    return out


@dataclass
class Gappy:
    """A tensor with gaps in float64, and what the caller may say of its axes."""

    x: np.ndarray
    mask: np.ndarray
    periodic: tuple[int, ...] = ()
    kinds: dict[str | int, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape


@st.composite
def gappy(draw: Any, orders: tuple[int, int] = (2, 5), most: int = 120, observed: int = 12) -> Gappy:
    """A tensor with gaps that can be completed: enough observed entries for a split, and one missing."""
    shape = draw(shapes(orders, most=most))
    size = int(np.prod(shape))
    if size < observed + 1:
        shape = (*shape[:-1], -(-(observed + 1) * shape[-1] // size))
    mask = draw(masks(shape, observed, 1))
    x = np.where(mask, draw(values(shape)), np.nan)
    periodic = tuple(k for k in range(len(shape)) if draw(st.booleans()))
    kinds: dict[str | int, str] = {
        k: "unordered" for k in range(len(shape)) if k not in periodic and draw(st.integers(0, 4)) == 0
    }
    return Gappy(x, mask, periodic, kinds)
