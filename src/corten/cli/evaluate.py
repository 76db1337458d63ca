"""`corten evaluate`: empirical coverage and width of the intervals in a file, against a truth; results read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from corten import io
from corten.cli.options import with_options
from corten.cli.terminal import Terminal, argument, option
from corten.data.axes import axes_of_dataarray, axes_of_names, is_dataarray
from corten.data.coverage import check_coverage
from corten.data.flags import BEYOND, FILLED, FORECAST, INFINITE, NEVER
from corten.data.observed import LikeInput
from corten.io.files import Unchanged, existing, reading, suffix_of
from corten.io.formats import ArrayData, contents, read_columns
from corten.io.names import companion
from corten.io.registry import TABLES, WRITABLE
from corten.io.wide import from_wide

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from corten.evidence.verification import Given
    from corten.results.intervals import Intervals

Facts = dict[str, Any]  # measures by name, and a list of them for each coverage
IS_FILLED = (FILLED, INFINITE, FORECAST, BEYOND, NEVER)
_BESIDE = ("lower", "upper", "flag")
_PART = re.compile(r"flag|(lower|upper)(_\d+(?:_\d+)?)?")  # with the coverage: upper_95


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


def read_result(
    path: Path, coverage: float | None, places: list[str] | None, variable: str | None = None
) -> tuple[LikeInput, Sequence[Given | Intervals]]:
    """The estimate, and a `Given` for every coverage of a file or the `Intervals` of a saved fit.

    coverage, places: for files that do not store them; variable: which one, of a file with the results of several.
    """
    suffix, file = suffix_of(path), Unchanged(existing(path))
    found: Sequence[Given | Intervals]
    if suffix == ".npy":
        found = _levels(path, _stacked(path), coverage)
    elif suffix in WRITABLE:
        found = _levels(path, *_variables(path, coverage, places, variable))
    else:
        found = [_fit(path)]
    file.check(whole=True)
    return found[0].estimate, found


def _fit(path: Path) -> Intervals:
    """The intervals of a saved fit; bounds are computed here, which fails if parts of a forged file do not match."""
    from corten.results.saving import load

    result = load(path).intervals(0.9)
    with reading(path, "a saved fit"):
        _ = result.lower, result.upper
        return result


def _variables(
    path: Path, coverage: float | None, places: list[str] | None, variable: str | None
) -> tuple[Mapping[str, ArrayData], ArrayLike | None]:
    """Estimate, bounds and flags of a file (in NetCDF sst, sst_lower, ..., in a table columns), and the coverage."""
    shapes = contents(path, careful=True)
    names, table = list(shapes), suffix_of(path) in TABLES
    filled = [name for name in names if {companion(name, what) for what in _BESIDE} <= {*names}]
    if {"estimate", *_BESIDE} <= {*names}:
        main, before = "estimate", ""
    elif table and "estimate" not in names and filled:
        return _columns(path, filled), coverage
    elif len(filled) == 1 or variable in filled:
        main = filled[0] if len(filled) == 1 else str(variable)
        before = companion(main, "")
    elif filled:
        raise ValueError(f"{path} has several filled variables, {', '.join(filled)}: say which variable (--variable)")
    else:
        raise ValueError(
            f"{path} is not a result of corten complete: it has {', '.join(names)}, and no variable with a lower and "
            "an upper bound and a flag"
        )
    # A long table keeps the column of values that was filled, beside its coordinates.
    axes = (places or [name for name in names[: names.index(main)] if name != variable]) if table else None
    kept = {"estimate": main} | {what: f"{before}{what}" for what in _parts(names, before)}
    arrays = {what: io.read(path, name, axes=axes, careful=True).data for what, name in kept.items()}
    stored = getattr(arrays["lower"], "attrs", {}).get("coverage", coverage)
    if axes is None and "coverage" in shapes:
        if prod(shapes["coverage"]) != 1:
            raise ValueError(f"{path}: 'coverage' has shape {shapes['coverage']}: one number is expected")
        stored = io.read(path, "coverage", careful=True).data
    return arrays, stored


def _columns(path: Path, mains: list[str]) -> dict[str, xr.DataArray]:
    """The arrays of a wide table: labels of the rows, A, B, ..., then A_lower, A_upper, A_flag, B_lower, ..."""
    frame = read_columns(path, careful=True)
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    first = [name for name in frame.columns[:1] if name not in mains]
    kept = {what: [companion(one, what) for one in mains] for what in _parts(frame.columns, companion(mains[0], ""))}
    absent = [name for columns in kept.values() for name in columns if name not in frame.columns]
    if absent:
        raise ValueError(f"{path} is not a result of corten complete: it has no column {absent[0]!r}")
    return {
        what: from_wide(frame[[*first, *columns]].set_axis([*first, *mains], axis=1), source=str(path)).data
        for what, columns in ({"estimate": mains} | kept).items()
    }


def _parts(names: Iterable[str], before: str) -> list[str]:
    """Which bounds and flags there are, "lower" or "upper_95", from names with something in front."""
    after = [name.removeprefix(before) for name in names if name.startswith(before)]
    return [what for what in after if _PART.fullmatch(what)]


def _stacked(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npy file, which has no flags."""
    stack = np.asarray(io.read(path).data)
    if stack.ndim < 3 or stack.shape[0] < 3 or stack.dtype.kind not in "biuf":
        raise ValueError(
            f"{path} is not a result of corten complete: its shape is {stack.shape}, its dtype {stack.dtype}"
        )
    # An observed entry has zero width; a filled one that has it too is covered by exact equality alone.
    flag = np.where(stack[1] != stack[2], FILLED, 0)
    return {"estimate": stack[0], "lower": stack[1], "upper": stack[2], "flag": flag}


def _levels(path: Path, arrays: Mapping[str, ArrayData], coverage: ArrayLike | None) -> list[Given]:
    """The intervals of every coverage, the main one first."""
    from corten.evidence.verification import Given

    estimate = arrays["estimate"]
    shape = np.shape(estimate)
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if array.dtype.kind not in "biuf" or array.shape != shape:
            raise ValueError(
                f"{path}: {name!r} has dtype {array.dtype} and shape {array.shape}: numbers in the shape of the "
                f"estimate, {shape}, are expected"
            )
    axes = axes_of_dataarray(estimate) if is_dataarray(estimate) else axes_of_names(None, shape)
    units = str(estimate.attrs.get("units", "")) if is_dataarray(estimate) else ""
    missing = np.isin(plain["flag"], IS_FILLED)
    levels = []
    for name in sorted((name for name in plain if name.startswith("lower")), key=lambda name: name != "lower"):
        upper = name.replace("lower", "upper")
        if upper not in plain:
            raise ValueError(f"{path} is not a result of corten complete: it has {name!r} and not {upper!r}")
        percent = name.removeprefix("lower_").replace("_", ".")
        level = _level(path, coverage if name == "lower" else round(float(percent) / 100, 12))
        levels.append(
            Given(estimate, plain[name], upper=plain[upper], missing=missing, axes=axes, coverage=level, units=units)
        )
    return levels


def _level(path: Path, coverage: ArrayLike | None) -> float:
    if coverage is None:
        raise ValueError(f"{path} does not store its coverage: give it, as --coverage 0.9 (.nc .h5 .npz store it)")
    try:
        return check_coverage(np.asarray(coverage, np.float64).item())
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path}: {problem}") from None
