"""`corten evaluate`: how often intervals in a file cover a truth, and how wide they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corten.commands.terminal import Json, Terminal

if TYPE_CHECKING:
    import numpy as np

    from corten.metrics import IntervalsLike

__all__ = ["evaluate"]

FILLED = (1, 2, 3)
_FURTHER = re.compile(r"^lower_(\d+(?:_\d+)?)$")


@dataclass(frozen=True)
class StoredLevel:
    """Intervals of one coverage as a file keeps them: enough for `corten.metrics`."""

    lower: Any
    upper: Any
    missing: np.ndarray
    coverage: float

    def at(self, coverage: float) -> IntervalsLike:
        raise ValueError(f"the file holds coverage {self.coverage:g} only; save the fit (--save) to ask for others")


def evaluate(
    result: Annotated[
        Path,
        typer.Argument(help="What corten complete wrote (.nc .zarr .npz .csv ... or a saved fit).", show_default=False),
    ],
    truth: Annotated[Path, typer.Argument(help="A file with the truth, in any readable format.", show_default=False)],
    variable: Annotated[
        str | None, typer.Option(help="Which variable is the truth; 'truth' if there is one and nothing is said.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Which coverage a .npy result has, as it cannot say; others know their own.")
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(help="For tables: the columns that are places, as lat,lon,time; all before the estimate."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare intervals with a truth: coverage, width, infinite share, interval score, error.

    Only entries that were filled and whose truth is known count. A saved fit is asked for the levels 0.80 to 0.99 too.

    Example: [bold]corten evaluate filled.nc sim.nc --variable truth[/bold]
    """
    estimate, levels = _stored(result, coverage, None if axes is None else axes.split(","))
    known = _truth(truth, variable, estimate)
    facts = measure(known, estimate, levels)
    facts |= {"result": str(result), "truth": str(truth)}
    terminal = Terminal(as_json=json)
    terminal.say(_table(facts))
    terminal.say(
        f"{facts['entries']:,} filled entries with a known truth; mean absolute error "
        f"{facts['mean_absolute_error']:.4g}; mis-coverage {facts['miscoverage_percent']:.2f} % on average "
        f"over {facts['miscoverage_levels']} level(s)"
    )
    terminal.answer(facts)


def measure(truth: Any, estimate: Any, levels: Sequence[IntervalsLike]) -> dict[str, Any]:
    """All measures at every level, as plain numbers; a level that can answer others is asked for the paper's."""
    import numpy as np

    from corten import metrics

    x, middle = np.asarray(truth, np.float64), np.asarray(estimate, np.float64)
    use = np.asarray(levels[0].missing, bool) & ~np.isnan(x)
    if not use.any():
        raise ValueError("no filled entry has a known truth: is this the truth of the same data?")
    rows = []
    for one in levels:
        hits = metrics.covered(x[use], np.asarray(one.lower)[use], np.asarray(one.upper)[use])
        rows.append(
            {
                "asked": float(one.coverage),
                "covered": metrics.coverage(x, one),
                "standard_error": metrics.standard_error(hits),
                "mean_finite_width": metrics.width(one),
                "infinite_share": metrics.infinite_share(one),
                "interval_score": metrics.interval_score(x, one),
            }
        )
    gaps = [100 * abs(row["asked"] - row["covered"]) for row in rows]
    asks = not isinstance(levels[0], StoredLevel)
    error = np.abs(x - middle)[use]
    return {
        "entries": int(np.count_nonzero(use)),
        "mean_absolute_error": float(error.mean()),
        "root_mean_square_error": float(np.sqrt((error**2).mean())),
        "levels": rows,
        "miscoverage_percent": metrics.miscoverage(x, levels[0]) if asks else float(np.mean(gaps)),
        "miscoverage_levels": 20 if asks else len(rows),
    }


def _stored(path: Path, coverage: float | None, places: list[str] | None) -> tuple[Any, list[Any]]:
    """The estimate and the intervals of every level that a file holds."""
    from corten.io.files import existing, suffix_of

    suffix = suffix_of(existing(path))
    if suffix == ".npy":
        return _stacked(path, coverage)
    if suffix in (".csv", ".csv.gz", ".parquet"):
        return _columns(path, coverage, places)
    if suffix in (".nc", ".nc4", ".cdf", ".zarr", ".h5", ".hdf5", ".npz", ".mat"):
        return _variables(path)
    from corten.saving import load

    result = load(path).intervals(0.9)
    return result.estimate, [result]


def _variables(path: Path) -> tuple[Any, list[Any]]:
    import numpy as np

    from corten import io
    from corten.io.formats import _opened

    with _opened(path, 2**40) as (store, _):
        names = list(store)
        mains = {"estimate", "lower", "upper", "flag"}
        if not mains <= set(names):
            raise ValueError(
                f"{path} is not a result of corten complete: it has {', '.join(names)}, not {', '.join(sorted(mains))}"
            )
        single = float(np.ravel(store["coverage"].load())[0]) if "coverage" in store else None
    read = {name: io.read(path, name, careful=True).data for name in names if name in mains or _is_bound(name)}
    main = single if single is not None else float(read["lower"].attrs["coverage"])
    missing = np.isin(np.asarray(read["flag"]), FILLED)
    levels = [StoredLevel(read["lower"], read["upper"], missing, main)]
    levels += [
        StoredLevel(read[name], read[name.replace("lower", "upper")], missing, _percent(name))
        for name in names
        if _FURTHER.match(name)
    ]
    return read["estimate"], levels


def _columns(path: Path, coverage: float | None, places: list[str] | None) -> tuple[Any, list[Any]]:
    """A long table: places, estimate, lower, upper, flag; it cannot say its main coverage."""
    import numpy as np

    from corten import io
    from corten.io.formats import _frame

    names = [str(name) for name in _frame(path).columns]
    if not {"estimate", "lower", "upper", "flag"} <= set(names):
        raise ValueError(f"{path} is not a result of corten complete: its columns are {', '.join(names)}")
    first = names.index("estimate")
    read = {
        name: io.read(path, name, axes=places or names[:first], careful=True).data
        for name in names[first:]
        if name in ("estimate", "lower", "upper", "flag") or _is_bound(name)
    }
    missing = np.isin(np.asarray(read["flag"]), FILLED)
    levels = [StoredLevel(read["lower"], read["upper"], missing, _asked(path, coverage))]
    levels += [
        StoredLevel(read[name], read[name.replace("lower", "upper")], missing, _percent(name))
        for name in read
        if _FURTHER.match(name)
    ]
    return read["estimate"], levels


def _stacked(path: Path, coverage: float | None) -> tuple[Any, list[Any]]:
    import numpy as np

    from corten import io

    stack = np.asarray(io.read(path).data)
    if stack.ndim < 3 or stack.shape[0] < 3:
        raise ValueError(f"{path} is not a result of corten complete: its shape is {stack.shape}")
    estimate, lower, upper = stack[:3]
    # An observed entry has zero width; a filled one that has it too is covered by exact equality alone.
    return estimate, [StoredLevel(lower, upper, lower != upper, _asked(path, coverage))]


def _asked(path: Path, coverage: float | None) -> float:
    from corten.result import check_coverage

    if coverage is None:
        raise ValueError(f"{path} cannot say its coverage: give it, such as --coverage 0.9 (.nc and .npz can)")
    return check_coverage(coverage)


def _truth(path: Path, variable: str | None, estimate: Any) -> Any:
    """The truth at the places of the estimate; places it does not know are left out."""
    import numpy as np

    from corten import io
    from corten.io.files import suffix_of
    from corten.labels import is_dataarray

    labelled = is_dataarray(estimate)
    axes = [str(dim) for dim in estimate.dims] if labelled else None
    table = suffix_of(path) in (".csv", ".csv.gz", ".parquet")
    try:
        named = axes if table or suffix_of(path) == ".npz" else None
        data = io.read(path, variable or "truth", axes=named, careful=True).data
    except ValueError:
        if variable is not None:
            raise
        data = io.read(path, axes=axes if table else None, careful=True).data
    if labelled and is_dataarray(data) and set(data.dims) == set(estimate.dims):
        data = data.transpose(*estimate.dims).reindex_like(estimate)
    if np.shape(data) != np.shape(estimate):
        raise ValueError(f"{path} has shape {np.shape(data)}, the result {np.shape(estimate)}: they must agree")
    return np.asarray(data)


def _is_bound(name: str) -> bool:
    return _FURTHER.match(name.replace("upper", "lower")) is not None


def _percent(name: str) -> float:
    return round(float(name.removeprefix("lower_").replace("_", ".")) / 100, 12)


def _table(facts: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="intervals against the truth", title_justify="left")
    for column in ("asked", "covered", "mean finite width", "infinite", "interval score"):
        table.add_column(column, justify="right")
    for row in facts["levels"]:
        table.add_row(
            f"{row['asked']:.4g}",
            f"{row['covered']:.2%} ± {row['standard_error']:.2%}",
            f"{row['mean_finite_width']:.4g}",
            f"{row['infinite_share']:.2%}",
            f"{row['interval_score']:.4g}",
        )
    return table
