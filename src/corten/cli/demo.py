"""`corten demo`: the whole job on a simulated day of ionosphere whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corten.cli.terminal import Json, Overwrite, Quiet, Seed, Terminal

__all__ = ["demo"]

SHAPE = (24, 36, 24)
NOISE = 1.0
"""Standard deviation of a measurement in TECU, about what receivers reach."""
COVERAGE = 0.9


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("demo-output"),
    overwrite: Overwrite = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fill a simulated day of TEC maps, compare with its truth, write a NetCDF file and a figure.

    TEC is the total electron content of the ionosphere; receivers stand on land, so the oceans are gaps.
    """
    terminal = Terminal(quiet, json)
    targets = {name: output / f"{name}.{suffix}" for name, suffix in (("filled", "nc"), ("demo", "png"))}
    _refuse(output, list(targets.values()), overwrite)
    import numpy as np

    from corten.functions import complete
    from corten.simulate import tec_like

    field = tec_like(SHAPE, seed)
    # A measurement of every entry; the method sees those under the mask, intervals are held against the others.
    measured = field.truth + NOISE * np.random.default_rng([seed, 1]).standard_normal(SHAPE)
    data = field.to_dataset()["tec"].copy(data=np.where(field.mask, measured, np.nan))
    missing = 1 - float(field.mask.mean())
    sizes = " x ".join(map(str, SHAPE))
    terminal.say(
        f"A simulated day of TEC maps (lat x lon x time: {sizes}), {missing:.0%} of it missing, noise {NOISE:g} TECU."
    )
    with terminal.progress() as move:
        result = complete(data, COVERAGE, seed=seed, progress=move)
    from corten.cli.demo_figure import draw
    from corten.cli.evaluate import measure

    facts = measure(measured, result.estimate, [result])
    row = facts["levels"][0]
    field_error = float(np.abs(field.truth - result.estimate_array)[~field.mask].mean())
    facts["mean_absolute_error_of_the_field"] = field_error
    output.mkdir(parents=True, exist_ok=True)
    result.to_netcdf(targets["filled"], overwrite=True)
    draw(result, field.truth, measured, targets["demo"])
    summary = result.summary()
    terminal.say(summary)
    terminal.say(
        f"Against what was never shown: {row['covered']:.1%} of the measurements at missing entries lie in their "
        f"{COVERAGE:.0%} interval; the estimate is off the noiseless field by {field_error:.2f} TECU on average.",
        style="bold",
    )
    terminal.say(f"wrote {targets['filled']} (estimate, lower, upper, flag) and {targets['demo']} (the figure)")
    terminal.answer(
        {"evaluation": facts, "summary": summary.to_dict(), "output": [str(path) for path in targets.values()]}
    )


def _refuse(folder: Path, targets: list[Path], overwrite: bool) -> None:
    """Say no to files that exist before any work is done."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give a folder (--output)")
    taken = [str(path) for path in targets if path.exists()]
    if taken and not overwrite:
        raise FileExistsError(f"{', '.join(taken)} exists: choose another folder (--output) or allow --overwrite")
