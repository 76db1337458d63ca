"""Helpers of the figures: axes, ticks, hatching, colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corten.data.axes import Axis
from corten.report.planes import labels, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap

RUST, BLUE, INK, SOFT, PALE = "#a3461b", "#1f5f8b", "#1d1b19", "#6b655e", "#e4dfd8"
COLOURS = {"value": ("viridis", 1.0), "width": ("magma_r", 0.8), "chance": ("cividis", 1.0)}
"""Colour maps suitable for colour-blind readers, and the part of each that is used: the end of magma is black."""


def axes_for(ax: Axes | None, size: tuple[float, float] = (7.0, 4.2)) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def index_on(axis: Axis, value: object) -> int:
    """The position on an axis of an index or a label; an error that names valid ones if there is none."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if -axis.length <= value < axis.length:
            return int(value) % axis.length
        raise ValueError(f"{axis.name} is {value}; give an index from 0 to {axis.length - 1}")
    known = labels(axis)
    if isinstance(value, float) and (places := numbers(axis)) is not None:
        return int(np.argmin(np.abs(places - value)))
    if isinstance(value, np.datetime64 | str) and axis.coordinates is not None and axis.coordinates.dtype.kind == "M":
        return int(np.argmin(np.abs(axis.coordinates - np.datetime64(value))))
    if str(value) in known:
        return known.index(str(value))
    raise ValueError(
        f"{axis.name} is {value!r}; give an index from 0 to {axis.length - 1} or a label such as {known[0]!r}"
    )


def ticks_of(axis: Axis, most: int) -> tuple[np.ndarray, list[str]]:
    """Tick positions and texts: round numbers for numeric coordinates, else some of the labels."""
    from matplotlib.ticker import MaxNLocator

    places = numbers(axis)
    if places is None or (axis.coordinates is not None and axis.coordinates.dtype.kind == "M"):
        step = -(-axis.length // most)
        words = labels(axis)[::step]
        days = {word[:10] for word in words}
        short = len(days) == 1 and all(len(word) > 10 for word in words) and places is not None
        return np.arange(0, axis.length, step) + 0.5, [word[11:] for word in words] if short else words
    round_ones = MaxNLocator(most).tick_values(places.min(), places.max())
    round_ones = round_ones[(round_ones >= places.min()) & (round_ones <= places.max())]
    order = np.argsort(places)
    return np.interp(round_ones, places[order], order + 0.5), [f"{value:g}" for value in round_ones]


def positions(axis: Axis) -> np.ndarray:
    """Coordinates for the x axis of a series: dates, numbers, or the index."""
    if axis.coordinates is not None and axis.kind == "ordered" and axis.coordinates.dtype.kind in "iufM":
        return axis.coordinates
    return np.arange(axis.length)


def hatch_entries(ax: Axes, where: np.ndarray, colour: str, hatch: str) -> None:
    if where.any():
        from matplotlib.colors import ListedColormap

        ones, own = np.ma.masked_array(np.ones(where.shape), ~where), ListedColormap([colour])
        mesh = ax.pcolor(ones, cmap=own, hatch=hatch or None, edgecolor="#b9b1a6" if hatch else colour, lw=0)
        mesh.set_rasterized(True)


def colour_map(use: str) -> ListedColormap:
    """The colours of values, widths or probabilities."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    name, part = COLOURS[use]
    return ListedColormap(colormaps[name](np.linspace(0.0, part, 256)))


def brief_dates(ax: Axes, x: np.ndarray) -> None:
    """Short date labels, if the axis has dates."""
    if x.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=9)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))


def tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#ece8e2", lw=0.8)
    ax.set_axisbelow(True)


def note(ax: Axes, words: str) -> Axes:
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=SOFT)
    return ax


def bare(text: str) -> str:
    """Text without punctuation, so that '(8, 8, 8)' and '8x8x8' are equal."""
    return " ".join("".join(c if c.isalnum() or c == "." else " " for c in text.replace("x", " ")).split())
