"""`corten simulate`: data with gaps whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from corten.cli.options import with_options
from corten.cli.terminal import Overwrite, Seed, Terminal, argument, option
from corten.io.dataset import write_netcdf
from corten.io.files import suffix_of
from corten.io.whole import refuse_taken, whole_file
from corten.io.writers import write_arrays, write_table

if TYPE_CHECKING:
    import xarray as xr

SUFFIXES = (".nc", ".npz", ".csv", ".csv.gz", ".parquet")


@with_options
def simulate(
    terminal: Terminal,
    out: Annotated[Path, argument("FILE", "Where to write: .nc .npz .csv .parquet.")],
    kind: Annotated[
        str,
        option("NAME", "paper (block model, low-rank signal), tec (a day of TEC), sea (temperature under clouds)."),
    ] = "paper",
    shape: Annotated[
        str | None, option("LENGTHS", "Lengths of the axes: 40x40x40 (tec 32x48x48, sea 24x36x30).", show_default=False)
    ] = None,
    rank: Annotated[int, option("N", "paper: rank of the missingness parameter.", min=1)] = 3,
    model: Annotated[str, option("NAME", "paper: missingness, ising or bernoulli.")] = "ising",
    noise: Annotated[
        str, option("NAME", "paper: constant or adversarial (large where entries go missing).")
    ] = "adversarial",
    missing: Annotated[float, option("SHARE", "tec, sea: the share of missing entries.")] = 0.43,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Make data with gaps whose truth is known.

    The file has the observed data ([bold]values[/bold], [bold]tec[/bold] or [bold]sst[/bold]) and the
    [bold]truth[/bold]. The truth of sst is without noise; [bold]measured[/bold] has it.

    Example: [bold]corten simulate sim.nc --shape 40x40x40 --model ising --seed 1[/bold]
    """
    if suffix_of(out) not in SUFFIXES:
        raise ValueError(f"{out} has no known suffix; use one of {', '.join(SUFFIXES)}")
    refuse_taken(out, overwrite)
    if kind == "tec":
        from corten.simulate import tec_like

        dataset = tec_like(_lengths(shape or "32x48x48"), seed, missing).to_dataset()
    elif kind == "sea":
        from corten.simulate import sea_like

        dataset = sea_like(_lengths(shape or "24x36x30"), seed, missing)
        dataset["mask"] = ~dataset["sst"].isnull()
    elif kind == "paper":
        dataset = paper(_lengths(shape or "40x40x40"), rank, model, noise, seed)
    else:
        raise ValueError(f"kind is {kind!r}: allowed are paper, tec and sea")
    name = {"tec": "tec", "sea": "sst"}.get(kind, "value")
    _write(dataset, out, name, overwrite)
    share = 1 - float(dataset["mask"].mean())
    sizes = " x ".join(str(length) for length in dataset["mask"].shape)
    terminal.say(f"wrote {out}: {name} and truth, {sizes}, {share:.1%} missing")
    # A table does not say which columns are coordinates: the truth would be taken for one.
    axes = "" if suffix_of(out) in (".nc", ".npz") else f" --axes {','.join(map(str, dataset['mask'].dims))}"
    terminal.say(f"next: corten complete {out} --variable {name}{axes} --output filled{out.suffix}")
    terminal.answer({"output": str(out), "variable": name, "shape": dataset["mask"].shape, "missing": share})


def paper(shape: tuple[int, ...], rank: int, model: str, noise: str, seed: int) -> xr.Dataset:
    """The paper's simulation in any shape, as a Dataset."""
    import xarray as xr

    from corten.simulate import paper_setting
    from corten.simulate.fields import recipe

    drawn = paper_setting(shape, rank, model, noise, seed)  # type: ignore[arg-type]
    dims = [f"axis_{k}" for k in range(len(shape))]
    arrays = {
        "value": (drawn.observed, "what was observed"),
        "truth": (drawn.data, "signal and noise of every entry"),
        "signal": (drawn.truth_signal, "the noiseless signal"),
        "parameter": (drawn.parameter, "parameter of the missingness"),
        "mask": (drawn.mask, "entry is observed"),
    }
    made = recipe(kind="paper", shape=shape, rank=rank, model=model, noise=noise, seed=seed)
    about = {"source": "simulated by corten simulate"} | {f"corten_{key}": one for key, one in made.items()}
    return xr.Dataset({key: (dims, one, {"long_name": text}) for key, (one, text) in arrays.items()}, attrs=about)


def _lengths(shape: str) -> tuple[int, ...]:
    parts = shape.lower().split("x")
    if len(parts) < 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"shape is {shape!r}: give two or more lengths, such as 40x40x40")
    return tuple(int(part) for part in parts)


def _write(dataset: xr.Dataset, out: Path, name: str, overwrite: bool) -> None:
    """Write the data and the truth; all formats but .csv also store arguments, seed and versions."""
    suffix = suffix_of(out)
    if suffix == ".nc":
        write_netcdf(dataset, out, overwrite=overwrite)
        return
    settings = {key.removeprefix("corten_"): one for key, one in dataset.attrs.items() if key != "source"}
    about = json.dumps({"settings": settings})  # where results keep it too
    with whole_file(out, overwrite) as temporary:
        if suffix == ".npz":
            arrays = {str(key): one.values for key, one in dataset.variables.items()}
            write_arrays(temporary, suffix, arrays | {"about": np.array(about)})
            return
        frame = dataset[[name, "truth"]].to_dataframe().reset_index()
        frame.attrs["corten"] = about
        write_table(frame, temporary, suffix)
