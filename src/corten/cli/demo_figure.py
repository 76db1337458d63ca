"""Figure of the demo: a map with gaps, its estimate, the half-widths of the intervals and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corten import __version__
from corten.data.plain import plain
from corten.data.printable import unit_sign
from corten.io.whole import whole_file
from corten.report.drawing import brief_dates

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

INK, BAND, TRUTH, DOTS = "#1f2d3d", "#56b4e9", "#d55e00", "#1f2d3d"
GAP = "#e3e3e3"


def draw(result: Intervals, truth: np.ndarray, measured: np.ndarray, path: Path) -> None:
    """Write a PNG: data, estimate, half-width and error of one time, and one place in time with its band.

    `truth` is the noiseless field, `measured` a noisy measurement of every entry. The file stores seed and settings.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    observed = result.observed
    slot = int(np.argmax(observed.missing.sum(axis=(0, 1))[1:-1])) + 1  # the cloudiest, with a time on either side
    place = _place(observed.mask, result.width_array)
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 4, height_ratios=(1.0, 1.15))
    what, units = observed.attrs.get("long_name", observed.name), unit_sign(observed.attrs.get("units"))
    figure.suptitle(
        f"Gaps filled, with {result.coverage:.0%} intervals: simulated {what}, {observed.axes[2].label(slot)}, "
        f"in {units}",
        color=INK, fontsize=13, fontweight="bold",
    )  # fmt: skip
    half = np.where(observed.missing, result.width_array / 2, np.nan)[..., slot]
    error = np.where(observed.missing, np.abs(result.estimate_array - measured), np.nan)[..., slot]
    shown = {"vmin": float(np.nanmin(truth[..., slot])), "vmax": float(np.nanmax(truth[..., slot]))}
    spread = {"vmin": 0.0, "vmax": float(np.quantile(half[np.isfinite(half)], 0.97))}
    panels: list[tuple[str, np.ndarray, str, dict[str, float]]] = [
        ("data, gaps and land in grey", observed.values[..., slot], "viridis", shown),
        ("estimate", result.estimate_array[..., slot], "viridis", shown),
        ("half-width of the interval", half, "cividis", spread),
        ("|estimate - new measurement|", error, "cividis", spread),
    ]
    maps = [figure.add_subplot(grid[0, number]) for number in range(4)]
    for number, (axes, (title, array, colours, limits)) in enumerate(zip(maps, panels)):
        image = _map(axes, observed.axes, array, title, colours, limits)
        axes.plot(*_lonlat(observed.axes, *place), "o", mfc="none", mec=TRUTH, ms=8, mew=2)
        if number % 2:
            beside = maps[number - 1 : number + 1]
            bar = figure.colorbar(
                image, ax=beside, location="bottom", shrink=0.7, aspect=40, extend="max" if number == 3 else "neither"
            )
            bar.outline.set_visible(False)  # type: ignore[operator]
            bar.ax.tick_params(labelsize=8, colors=INK, length=2)
    _series(figure.add_subplot(grid[1, :]), result, truth, measured, place)
    settings = result.source.settings()
    about = {
        "Software": f"corten {__version__}", "Source": f"corten demo --seed {settings['seed']}",
        "corten": json.dumps(plain(settings)),
    }  # fmt: skip
    with whole_file(path, overwrite=True) as temporary:
        figure.savefig(temporary, dpi=110, pil_kwargs={"optimize": True}, metadata=about)


def _place(mask: np.ndarray, width: np.ndarray) -> tuple[int, int]:
    """The grid cell with the widest intervals among those observed at many times, the first and the last too."""
    share = mask.mean(axis=2)
    shown = (share > 0.3) & (share < 0.75) & mask[..., 0] & mask[..., -1]
    width = np.nan_to_num(width)
    mean = np.where(np.isfinite(width), width, 0.0).mean(axis=2)
    row, column = np.unravel_index(int(np.argmax(np.where(shown, mean, -1 + share))), share.shape)
    return int(row), int(column)


def _lonlat(axes: Any, row: int, column: int) -> tuple[list[float], list[float]]:
    return [float(axes[1].coordinates[column])], [float(axes[0].coordinates[row])]


def _map(axes: Any, labels: Any, values: np.ndarray, title: str, colours: str, limits: dict[str, float]) -> Any:
    lat, lon = labels[0].coordinates, labels[1].coordinates
    axes.set_facecolor(GAP)
    image = axes.pcolormesh(lon, lat, values, cmap=colours, shading="nearest", rasterized=True, **limits)
    # A degree of longitude is shorter than one of latitude, by the cosine of the latitude.
    axes.set_aspect(1.0 / np.cos(np.radians(float(np.mean(lat)))))
    axes.set_title(title, fontsize=10, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}°{'W' if value < 0 else 'E'}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}°N")
    axes.set_xticks(_ticks(lon, 3))
    axes.set_yticks(_ticks(lat, 2))
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def _ticks(coordinate: np.ndarray, count: int) -> list[float]:
    """Round numbers inside the range of a coordinate."""
    low, high = float(np.min(coordinate)), float(np.max(coordinate))
    inner = np.linspace(low, high, 2 * count + 1)[1::2]
    return sorted({float(one) for one in np.round(inner / 5) * 5 if low <= one <= high})


def _series(axes: Any, result: Intervals, truth: np.ndarray, measured: np.ndarray, place: tuple[int, int]) -> None:
    observed = result.observed
    times = observed.axes[2].coordinates
    hours = np.arange(truth.shape[2]) if times is None else times
    lower, upper = result.lower_array[place], result.upper_array[place]
    finite = np.isfinite(lower) & np.isfinite(upper)
    axes.fill_between(
        hours, lower, upper, where=finite, color=BAND, alpha=0.45, lw=0, label=f"{result.coverage:.0%} interval"
    )
    axes.plot(hours, result.estimate_array[place], color="#0072b2", lw=1.8, label="estimate")
    axes.plot(hours, truth[place], color=TRUTH, lw=1.4, ls="--", label="noiseless field (hidden)")
    known = observed.mask[place]
    axes.plot(hours[known], observed.values[place][known], "o", color=DOTS, ms=4, label="observed")
    axes.plot(
        hours[~known], measured[place][~known], "o", mfc="white", mec=DOTS, ms=4, label="new measurement (hidden)"
    )
    (lon,), (lat,) = _lonlat(observed.axes, *place)
    axes.set_title(f"the circled place, {lat:.0f}°N {abs(lon):.0f}°W", fontsize=10, color=INK)
    axes.set_ylabel(unit_sign(observed.attrs.get("units")), fontsize=9, color=INK)
    axes.set_xlim(hours[0], hours[-1])
    brief_dates(axes, hours)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.legend(fontsize=8, frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
