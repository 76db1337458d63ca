"""`corten evaluate`: empirical coverage and width of the intervals in a file, against a truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from corten import io
from corten.cli.options import with_options
from corten.cli.stored import read_result
from corten.cli.terminal import Terminal, argument, option
from corten.data.axes import is_dataarray
from corten.data.observed import LikeInput
from corten.io.files import suffix_of
from corten.io.formats import ArrayData, contents
from corten.io.registry import TABLES

if TYPE_CHECKING:
    from rich.table import Table

    from corten.evidence.verification import Given
    from corten.results.intervals import Intervals

Facts = dict[str, Any]  # measures by name, and a list of them for each coverage


@with_options
def evaluate(
    terminal: Terminal,
    result: Annotated[Path, argument("RESULT", "What corten complete wrote (.nc .zarr .npz .csv ... or a saved fit).")],
    truth: Annotated[Path, argument("TRUTH", "A file with the truth, in any readable format.")],
    variable: Annotated[
        str | None, option("NAME", "Variable with the truth. Default: 'truth', or the only one.", "--variable", "-v")
    ] = None,
    coverage: Annotated[
        float | None, option("NUMBER", "Nominal coverage of a .npy result; other formats store it.")
    ] = None,
    axes: Annotated[
        str | None,
        option("NAMES", "For tables: the coordinate columns, as lat,lon,time. Default: all before the estimate."),
    ] = None,
) -> None:
    """Compare intervals with a truth: coverage, width, infinite share, interval score, error.

    Only filled entries with a known truth count. For a saved fit coverages from 0.80 to 0.99 are computed too.

    Example: [bold]corten evaluate filled.nc sim.nc --variable truth[/bold]
    """
    facts = compare(result, truth, variable=variable, coverage=coverage, axes=None if axes is None else axes.split(","))
    terminal.say(_table(facts))
    terminal.say(
        f"{facts['entries']:,} filled entries with a known truth; mean absolute error "
        f"{facts['mean_absolute_error']:.4g}; mis-coverage {facts['miscoverage_percent']:.2f} % on average "
        f"over {facts['miscoverage_levels']} level(s)"
    )
    terminal.answer(facts)


def compare(
    result: Path, truth: Path, *, variable: str | None = None, coverage: float | None = None,
    axes: list[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """All measures of a file of results against a file with the truth."""
    estimate, levels = read_result(result, coverage, axes, variable)
    known = _truth(truth, variable, estimate, result)
    try:
        facts = measure(known, estimate, levels)
    except ValueError as problem:
        raise ValueError(f"{result} and {truth}: {problem}") from None
    return facts | {"result": str(result), "truth": str(truth)}


def measure(truth: ArrayLike, estimate: ArrayLike, levels: Sequence[Given | Intervals]) -> Facts:
    """All measures at every level, as plain numbers; for a fit the mis-coverage is that of the paper's levels."""
    from corten.evidence import metrics
    from corten.evidence.verification import Given

    x, middle = np.asarray(truth, np.float64), np.asarray(estimate, np.float64)
    use = np.asarray(levels[0].missing, bool) & ~np.isnan(x)
    if not use.any():
        raise ValueError("no filled entry has a known truth: is this the truth of the same data?")
    rows = []
    for one in levels:
        hits = metrics.covered(x[use], np.asarray(one.lower)[use], np.asarray(one.upper)[use])
        rows.append(
            {
                "nominal": float(one.coverage),
                "covered": metrics.coverage(x, one),
                "standard_error": metrics.standard_error(hits),
                "mean_finite_width": metrics.width(one),
                "infinite_share": metrics.infinite_share(one),
                "interval_score": metrics.interval_score(x, one),
            }
        )
    gaps = [100 * abs(row["nominal"] - row["covered"]) for row in rows]
    first = levels[0]
    error = np.abs(x - middle)[use]
    return {
        "entries": int(np.count_nonzero(use)),
        "mean_absolute_error": float(error.mean()),
        "root_mean_square_error": float(np.sqrt((error**2).mean())),
        "levels": rows,
        "miscoverage_percent": float(np.mean(gaps)) if isinstance(first, Given) else metrics.miscoverage(x, first),
        "miscoverage_levels": len(rows) if isinstance(first, Given) else 20,
    }


def _truth(path: Path, variable: str | None, estimate: LikeInput, result: Path) -> np.ndarray:
    """The truth on the grid of the estimate; NaN where it is not known."""
    axes = [str(dim) for dim in estimate.dims] if is_dataarray(estimate) else None
    table = suffix_of(path) in TABLES
    if table and variable is None and axes and axes[-1] not in contents(path, careful=True):
        return _aligned(io.read(path, layout="wide", axes=axes, careful=True).data, estimate, path, result)
    try:
        named = axes if table or suffix_of(path) == ".npz" else None
        data = io.read(path, variable or "truth", axes=named, careful=True).data
    except ValueError:
        if variable is not None:
            raise
        data = io.read(path, axes=axes if table else None, careful=True).data
    return _aligned(data, estimate, path, result)


def _aligned(data: ArrayData, estimate: LikeInput, path: Path, result: Path) -> np.ndarray:
    """The truth in the order of the labels of the estimate, as an array."""
    if np.asarray(data).dtype.kind not in "biuf":
        raise ValueError(f"{path}: the truth has dtype {np.asarray(data).dtype}: numbers are expected")
    if is_dataarray(estimate) and is_dataarray(data) and set(data.dims) == set(estimate.dims):
        try:
            data = data.transpose(*estimate.dims).reindex_like(estimate)
        except Exception as problem:  # labels that repeat, or cannot be compared
            raise ValueError(f"{path} cannot be aligned with {result}: {problem}") from None
    if np.shape(data) != np.shape(estimate):
        raise ValueError(f"{path} has shape {np.shape(data)}, {result} {np.shape(estimate)}: they must agree")
    return np.asarray(data)


def _table(facts: Facts) -> Table:
    from rich.table import Table

    table = Table(title="intervals against the truth", title_justify="left")
    for column in ("nominal", "covered", "mean finite width", "infinite", "interval score"):
        table.add_column(column, justify="right")
    for row in facts["levels"]:
        table.add_row(
            f"{row['nominal']:.4g}",
            f"{row['covered']:.2%} ± {row['standard_error']:.2%}",
            f"{row['mean_finite_width']:.4g}",
            f"{row['infinite_share']:.2%}",
            f"{row['interval_score']:.4g}",
        )
    return table
