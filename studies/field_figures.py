"""Figures of the application: intervals by bins of the value (fig:application-TEC-CI) and maps (fig:TEC-plot)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from studies.field_sets import FieldSet
from studies.files import whole_file

__all__ = ["draw_bins", "draw_maps"]

BINS = 20


def draw_bins(one: FieldSet, results: dict[str, Any], path: Path) -> Path:
    """Mean 95 % interval and its coverage in bins of the true value, a panel a method, and the share missing."""
    figure = _figure(3.2 * (len(results) + 1), 3.4)
    panels = figure.subplots(1, len(results) + 1)
    known = np.isfinite(one.truth)
    low_end, high_end = (float(q) for q in np.quantile(one.truth[known], [0.001, 0.999]))
    edges = np.linspace(low_end, high_end, BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    place = np.clip(np.searchsorted(edges, one.truth) - 1, 0, BINS - 1)
    for panel, (name, result) in zip(panels, results.items()):
        wide = result.at(0.95)
        low, high, share = (np.full(BINS, np.nan) for _ in range(3))
        for k in range(BINS):
            cells = one.score & (place == k)
            if cells.any():
                lower, upper, truth = wide.lower_array[cells], wide.upper_array[cells], one.truth[cells]
                share[k] = np.mean((lower <= truth) & (truth <= upper))
                fine = np.isfinite(upper - lower)
                low[k], high[k] = (lower[fine].mean(), upper[fine].mean()) if fine.any() else (np.nan, np.nan)
        panel.vlines(middle, low, high, color="#0072B2", linewidth=3)
        panel.plot(middle, middle, color="black", linewidth=0.8)
        panel.set(title=name, xlabel=f"true value ({one.units})")
        other = panel.twinx()
        other.plot(middle, share, "o-", color="#D55E00", markersize=3, linewidth=0.8)
        other.axhline(0.95, color="#D55E00", linewidth=0.6, linestyle="--")
        other.set_ylim(0, 1.05)
    missing = [
        float(np.mean(~one.mask[known & (place == k)])) if (known & (place == k)).any() else np.nan for k in range(BINS)
    ]
    panels[-1].bar(middle, missing, width=np.diff(edges) * 0.9, color="#999999")
    panels[-1].set(title="share missing", xlabel=f"true value ({one.units})", ylim=(0, 1))
    panels[0].set_ylabel("mean 95 % interval (bars), coverage (dots)")
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=110)
    return path


def draw_maps(one: FieldSet, result: Any, path: Path) -> Path:
    """One slice: truth, data with gaps, estimate, interval width, probability of being observed."""
    middle = tuple(slice(None) if k < 2 else n // 2 for k, n in enumerate(one.truth.shape))
    shown = {
        "truth": one.truth[middle],
        "data with gaps": np.where(one.mask, one.truth, np.nan)[middle],
        "estimate": result.estimate_array[middle],
        "width of the 90 % interval": np.where(one.mask, np.nan, result.width_array)[middle],
    }
    probability = result.source.probabilities
    if probability is not None:
        shown["probability of being observed"] = probability[middle]
    figure = _figure(3.4 * len(shown), 3.0)
    low, high = np.nanmin(shown["truth"]), np.nanmax(shown["truth"])
    for panel, (name, values) in zip(figure.subplots(1, len(shown)), shown.items()):
        limits = {"vmin": low, "vmax": high} if name in ("truth", "data with gaps", "estimate") else {}
        picture = panel.imshow(values, origin="lower", aspect="auto", cmap="viridis", **limits)
        panel.set(title=name, xlabel=one.axes[1])
        figure.colorbar(picture, ax=panel, shrink=0.8)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=110)
    return path


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
