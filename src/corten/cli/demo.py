"""`corten demo`: the whole job on a simulated month of sea surface temperature whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from corten import __version__
from corten.cli.options import with_options
from corten.cli.terminal import Overwrite, Seed, Terminal, option
from corten.data.plain import plain
from corten.io.whole import refuse_taken, whole_file

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

SHAPE = (20, 28, 20)
COVERAGE = 0.9


@with_options
def demo(
    terminal: Terminal,
    output: Annotated[Path, option("FOLDER", "The folder to write to.", "--output", "-o")] = Path("demo-output"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
) -> None:
    """Fill simulated maps of the sea surface under clouds, compare with their truth, write a file and a figure.

    Takes about 15 seconds; the first run also compiles, for about 20 seconds.
    """
    targets = {name: output / f"{name}.{suffix}" for name, suffix in (("filled", "nc"), ("demo", "png"))}
    if output.is_file():
        raise FileExistsError(f"{output} is a file: give a folder (--output)")
    output.mkdir(parents=True, exist_ok=True)
    for target in targets.values():
        refuse_taken(target, overwrite)
    with terminal.progress() as move:
        from corten.functions import complete
        from corten.simulate import sea_like

        days = sea_like(SHAPE, seed)
        # The fit has the measurements under a clear sky; the intervals are compared with the others.
        measured, land = days["measured"].values, days["land"].values != 0
        cloudy = float(np.isnan(days["sst"].values[~land]).mean())
        terminal.say(
            f"Simulated daily maps of the sea surface, {' x '.join(map(str, SHAPE))} (lat x lon x day):\n"
            f"{cloudy:.0%} of the sea lies under clouds, {land.mean():.0%} of the map is land."
        )
        result = complete(days["sst"].assign_coords(land=days["land"]), COVERAGE, seed=seed, progress=move)
        from corten.cli.evaluate import measure

        move("writing", 0.0)
        facts = measure(measured, result.estimate, [result])
        row = facts["levels"][0]
        result.to_netcdf(targets["filled"], overwrite=True)
        draw(result, days["truth"].values, measured, targets["demo"])
    summary = result.summary()
    terminal.say(summary)
    terminal.say(
        f"Compared with measurements under the clouds, which the fit did not have:\n{row['covered']:.1%} lie in their "
        f"{COVERAGE:.0%} interval, and the mean absolute error is {facts['mean_absolute_error']:.2f} °C.",
        style="bold",
    )
    terminal.say(f"wrote {targets['filled']} (estimate, bounds, flag) and {targets['demo']} (figure)")
    terminal.answer(
        {"evaluation": facts, "summary": summary.to_dict(), "output": [str(path) for path in targets.values()]}
    )


def draw(result: Intervals, truth: np.ndarray, measured: np.ndarray, path: Path) -> None:
    """Write a PNG of the cloudiest time, and of one place in time: noiseless field, late measurements, intervals."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    observed = result.observed
    lat, lon, time = observed.axes
    slot = int(np.argmax(observed.missing.sum(axis=(0, 1))[1:-1])) + 1  # with a time on either side
    row, column = _place(observed.mask, result.width_array)
    figure = Figure(figsize=(14, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"Gaps filled, with {result.coverage:.0%} intervals: simulated data, {time.label(slot)}")
    grid = figure.add_gridspec(2, 4)
    titles = ("data, gaps hatched", "estimate", "width of the interval", "error of the estimate")
    maps = [figure.add_subplot(grid[0, k]) for k in range(4)]
    for ax, show in zip(maps, ("data", "estimate", "width")):
        result.plot.slice(show, ax, **{time.name: slot})
    error = np.where(observed.missing, np.abs(result.estimate_array - measured), np.nan)[..., slot]
    mesh = maps[3].pcolormesh(error, cmap="magma_r", vmin=0.0, vmax=float(np.nanquantile(error, 0.98)), rasterized=True)
    figure.colorbar(mesh, ax=maps[3], extend="max", label="absolute error (°C)")
    for name in ("aspect", "xlim", "ylim", "xticks", "yticks", "xlabel"):  # those of the other maps
        maps[3].set(**{name: getattr(maps[0], f"get_{name}")()})
    for name in ("xticklabels", "yticklabels"):
        maps[3].set(**{name: [label.get_text() for label in getattr(maps[0], f"get_{name}")()]})
    maps[3].set_facecolor("#e4dfd8")
    for ax, words in zip(maps, titles):
        ax.plot(column + 0.5, row + 0.5, "o", mfc="none", mec="#d55e00", ms=8, mew=2)
        ax.set(title=words, ylabel=lat.name if ax is maps[0] else "")
    ax = result.plot.series(time.name, figure.add_subplot(grid[1, :]), **{lat.name: row, lon.name: column})
    times = np.arange(time.length) if time.coordinates is None else time.coordinates
    ax.plot(times, truth[row, column], "--", color="#0072b2", label="noiseless field (hidden)")
    late = np.where(observed.mask, np.nan, measured)[row, column]
    ax.plot(times, late, "o", mfc="white", mec="#1d1b19", ms=5, label="new measurement (hidden)")
    ax.set(title=f"the circled place: {ax.get_title()}", xlabel="")
    ax.legend(frameon=False, fontsize="small", ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    ax.autoscale(axis="y")
    settings = result.source.settings()
    about = {
        "Software": f"corten {__version__}", "Source": f"corten demo --seed {settings['seed']}",
        "corten": json.dumps(plain(settings)),
    }  # fmt: skip
    with whole_file(path, overwrite=True) as temporary:
        figure.savefig(temporary, dpi=90, pil_kwargs={"optimize": True}, metadata=about)


def _place(mask: np.ndarray, width: np.ndarray) -> tuple[int, int]:
    """The grid cell with the widest intervals among those observed at many times, the first and the last too."""
    share = mask.mean(axis=2)
    shown = (share > 0.3) & (share < 0.75) & mask[..., 0] & mask[..., -1]
    mean = np.where(np.isfinite(width), width, 0.0).mean(axis=2)
    row, column = np.unravel_index(int(np.argmax(np.where(shown, mean, -1 + share))), share.shape)
    return int(row), int(column)
