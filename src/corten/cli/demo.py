"""`corten demo`: the whole job on a simulated month of sea surface temperature whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from corten.cli.options import with_options
from corten.cli.terminal import Overwrite, Seed, Terminal, option

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
    _refuse(output, list(targets.values()), overwrite)
    with terminal.progress() as move:
        import numpy as np

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
        from corten.cli.demo_figure import draw
        from corten.cli.evaluate import measure

        move("writing", 0.0)
        facts = measure(measured, result.estimate, [result])
        row = facts["levels"][0]
        output.mkdir(parents=True, exist_ok=True)
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


def _refuse(folder: Path, targets: list[Path], overwrite: bool) -> None:
    """Say no to files that exist before any work is done."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give a folder (--output)")
    taken = [str(path) for path in targets if path.exists()]
    if taken and not overwrite:
        names = ", ".join(taken)
        raise FileExistsError(f"{names}: already there; choose another folder (--output) or allow --overwrite")
