"""Pieces the study's figures are made of: panels, colours, whiskers and lines with their bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.comparison import summarise
from studies.part_tables import SHORT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "NAMES", "NOISES", "SIZES", "conditions", "legend", "line", "panels", "whiskers"]

Row = dict[str, Any]
NOISES = {"constant": "const", "adversarial": "adv"}
COLOURS = {
    "unweighted": "#7f7f7f",
    "oracle": "#000000",
    "plain": "#d55e00",
    "default": "#0072b2",
    "automatic": "#56b4e9",
    "RGrad": "#d55e00",
    "RGrad-adaptive": "#e69f00",
    "corten": "#0072b2",
    "GCP": "#009e73",
    "projected gradient, dense TT-SVD": "#cc79a7",
}
NAMES = {"plain": "RGrad (paper)", "default": "RGrad (corten)"}
SIZES = {30: "#cccccc", 40: "#a6cee3", 60: "#1f78b4", 80: "#33a02c", 100: "#b15928"}


def panels(rows: int, columns: int, width: float = 3.1, height: float = 2.6, **more: Any) -> tuple[Figure, np.ndarray]:
    from matplotlib.figure import Figure

    figure = Figure((width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def conditions() -> list[tuple[str, str, str]]:
    return [(model, noise, f"{SHORT[model]}, {NOISES[noise]}") for model in SHORT for noise in NOISES]


def whiskers(axes: Axes, x: float, values: Iterable[float], colour: str, label: str | None) -> None:
    """Median, a thick bar over the quartiles and a thin one over the 2.5 % and 97.5 % quantiles."""
    found = np.array([v for v in values if v is not None and np.isfinite(v)])
    if not found.size:
        return
    low, first, middle, third, high = np.quantile(found, [0.025, 0.25, 0.5, 0.75, 0.975])
    axes.plot([x, x], [low, high], color=colour, lw=1)
    axes.plot([x, x], [first, third], color=colour, lw=4, solid_capstyle="butt")
    axes.plot([x], [middle], "o", color=colour, ms=4, label=label, mec="white", mew=0.5)


def line(
    axes: Axes, rows: list[Row], x: str | Callable[[Row], float], y: str, colour: str, label: str, style: str = "o-"
) -> None:
    """Means over the values of a column, with bars from their 2.5 % to their 97.5 % quantile."""
    groups: dict[float, list[Row]] = {}
    for row in rows:
        groups.setdefault(float(x(row) if callable(x) else row[x]), []).append(row)
    points = [(at, found) for at in sorted(groups) if (found := summarise(groups[at], y)) is not None]
    if points:
        means = np.array([s.mean for _, s in points])
        finite = [[row[y] for row in groups[at] if row.get(y) is not None and np.isfinite(row[y])] for at, _ in points]
        ends = np.array([np.quantile(one, (0.025, 0.975)) for one in finite]).T
        axes.errorbar(
            [at for at, _ in points],
            means,
            np.maximum(0.0, [means - ends[0], ends[1] - means]),
            fmt=style,
            color=colour,
            label=label,
            ms=4,
            lw=1.2,
            capsize=2,
        )


def legend(figure: Figure, panel: Axes) -> None:
    """One legend for all panels, below them, from what one panel shows."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
