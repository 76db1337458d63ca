"""Compare values that arrived late with the intervals that were given for them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corten.conformal.local_scale import block_of
from corten.data.axes import Axis, is_dataarray, position
from corten.data.coverage import check_coverage
from corten.data.matching import on_grid
from corten.data.missing_values import MissingValue, blank_declared, codes_of
from corten.data.observed import LikeInput, TensorLike
from corten.data.wide import is_frame
from corten.evidence.metrics import covered, interval_scores
from corten.evidence.score_log import SUMS, Grid, ScoreLog, SliceScores
from corten.io.whole import locked, refuse_taken

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

BLOCKS_PER_AXIS = 3
SINGLE_DIGITS = 7  # of a number in single precision: the same grid in double precision has the same log


@dataclass(frozen=True, eq=False)
class Given:
    """Intervals as they were given: plain arrays, the axes, and the labelled estimate that late data align with."""

    estimate: LikeInput
    lower: np.ndarray
    upper: np.ndarray
    missing: np.ndarray
    axes: tuple[Axis, ...]
    coverage: float
    units: str = ""

    @staticmethod
    def of(result: Intervals) -> Given:
        """The intervals of a result."""
        observed = result.observed
        return Given(
            result.estimate, result.lower_array, upper=result.upper_array, missing=observed.missing,
            axes=observed.axes, coverage=result.coverage, units=str(observed.attrs.get("units", "")),
        )  # fmt: skip


def verify(
    result: Given | Intervals,
    late: TensorLike,
    log: str | os.PathLike[str] | None = None,
    *,
    axis: str | int | None = None,
    target: float | None = None,
    label: str = "",
    missing_value: MissingValue = None,
) -> ScoreLog:
    """Compare values that arrived late with these intervals, and keep a log of the scores.

    Parameters
    ----------
    late : array with NaN, masked array or xarray.DataArray
        Values of entries that were filled; NaN where none arrived. A DataArray may have some of the slices only.
    log : str or path, optional
        A file that keeps the scores of all verifications. It is written whole or not at all. An entry that it has
        is not counted again, so that the same late data can be given twice.
    axis : str or int, optional
        The axis along which slices are counted. Default: the time, else the last ordered axis.
    target : float, optional
        The nominal coverage over a long time, if `coverage` is an adaptive level (`ScoreLog.adaptive`).
    label : str, optional
        Name of these data. Needed with a log if the slices have no coordinates.
    missing_value
        As for `corten.complete`, in the late data.

    Returns
    -------
    ScoreLog
        All scores of the log and the new ones. It is a ValueError if late data or log are of another grid or unit.
    """
    given = result if isinstance(result, Given) else Given.of(result)
    check_coverage(given.coverage)
    if target is not None:
        check_coverage(target)
    along = _axis(given.axes, axis)
    names = _names(given.axes[along], label, log is not None)
    grid = _grid(given.axes, along)
    truth = _aligned(given, late, missing_value)
    parts = [np.moveaxis(one, along, 0).reshape(len(names), -1) for one in
             (truth, np.asarray(given.estimate, np.float64), given.lower, given.upper, given.missing)]  # fmt: skip
    if log is None:
        return _added(ScoreLog(grid), names, parts, given.coverage, target)
    refuse_taken(Path(log), overwrite=True)
    # Locked from reading to writing: of two programs with the same late data only one counts them.
    with locked(log):
        known = ScoreLog.read(log) if Path(log).exists() else ScoreLog(grid)
        if known.grid != grid:
            raise ValueError(
                f"{log} is the log of other data (slices of {known.grid.shape} along {known.grid.axis}; these are "
                f"{grid.shape} along {grid.axis}, or have other coordinates): use a log of its own for each grid"
            )
        done = _added(known, names, parts, given.coverage, target)
        if done.added:
            done.write(log)
    return done


def _added(
    known: ScoreLog, names: Sequence[str], parts: Sequence[np.ndarray], coverage: float, target: float | None
) -> ScoreLog:
    """The log with the scores of entries that it has not counted; parts: truth, estimate, bounds, missing by slice."""
    block = block_of(np.arange(parts[0].shape[1]), known.grid.shape or (1,), BLOCKS_PER_AXIS)
    block = np.unique(block, return_inverse=True)[1]
    found = []
    for name, value, *others, missing in zip(names, *parts):
        which = missing.astype(bool) & np.isfinite(value) & ~known.counted(name, coverage if target is None else target)
        if not which.any():
            continue
        value, middle, lower, upper = (one[which].astype(np.float64) for one in (value, *others))
        infinite = ~np.isfinite(upper - lower)
        with np.errstate(invalid="ignore"):
            score = np.where(infinite, 0.0, interval_scores(value, lower, upper, coverage))
        each = {"entries": None, "covered": covered(value, lower, upper), "score": score,
                "error": np.abs(value - middle), "infinite": infinite}  # fmt: skip
        number = len(known.grid.blocks)
        sums = np.array([np.bincount(block[which], each[key], number) for key in SUMS], np.float64)
        found.append(SliceScores(0, name, float(coverage), target, which, sums=sums))
    return known.with_new(found)


def _axis(axes: Sequence[Axis], axis: str | int | None) -> int:
    """The axis along which slices are counted: a time, else the last ordered one, else the last."""
    if axis is not None:
        return position(axis, [one.name for one in axes], "axis")
    times = [k for k, one in enumerate(axes) if one.is_time]
    ordered = [k for k, one in enumerate(axes) if one.kind == "ordered" and not one.periodic]
    return (times or ordered or [len(axes) - 1])[-1]


def _names(axis: Axis, label: str, logged: bool) -> list[str]:
    """The name of every slice; it must say which data it belongs to."""
    if axis.coordinates is None and logged and not label:
        raise ValueError(
            f"axis {axis.name!r} has no coordinates, so that a log cannot tell one day from the next: give label=, "
            "such as the date of these data"
        )
    return [f"{label} {axis.label(k)}".strip() for k in range(axis.length)]


def _grid(axes: Sequence[Axis], along: int) -> Grid:
    """The grid of one slice, with a digest of its coordinates and the names of its blocks."""
    others = [one for k, one in enumerate(axes) if k != along]
    digest = sha256()
    for one in others:
        digest.update(f"{one.name} {one.length} ".encode())
        digest.update(" ".join(_short(one.label(k), SINGLE_DIGITS) for k in range(one.length)).encode())
    names = [""]
    for one in others:
        names = [f"{before}, {name}".removeprefix(", ") for before in names for name in _ranges(one)]
    return Grid(axes[along].name, tuple(one.length for one in others), digest.hexdigest()[:16], tuple(names))


def _ranges(axis: Axis) -> list[str]:
    """The names of the blocks along one axis: first to last label."""
    count = min(BLOCKS_PER_AXIS, axis.length)
    number = (np.arange(axis.length) * count) // axis.length
    ends = [np.flatnonzero(number == b)[[0, -1]] for b in range(count)]
    names = [(_short(axis.label(a)), _short(axis.label(b))) for a, b in ends]
    return [f"{axis.name} {a} to {b}" if a != b else f"{axis.name} {a}" for a, b in names]


def _short(label: str, digits: int = 4) -> str:
    """A number with a few digits; other labels as they are."""
    try:
        return f"{float(label):.{digits}g}"
    except ValueError:
        return label


def _aligned(given: Given, late: TensorLike, missing_value: MissingValue) -> np.ndarray:
    """Late values on the grid of the intervals, NaN where none arrived."""
    estimate = given.estimate
    if is_dataarray(late):
        if not is_dataarray(estimate):
            raise ValueError("the late data have labels and the intervals have none: give late.to_numpy()")
        names, wanted = sorted(map(str, late.dims)), sorted(map(str, estimate.dims))
        if names != wanted:
            raise ValueError(f"the late data have the axes {', '.join(names)}, the intervals {', '.join(wanted)}")
        units = str(late.attrs.get("units", ""))
        if units and given.units and units != given.units:
            raise ValueError(f"the late data are in {units}, the intervals in {given.units}: convert them")
        for dim in estimate.dims:
            if dim in late.coords and dim in estimate.coords:
                positions = _shared(late.coords[dim].values, estimate.coords[dim].values, dim)
                late = late.assign_coords({dim: late.coords[dim].copy(data=positions)})
            elif late.sizes[dim] != estimate.sizes[dim]:
                raise ValueError(f"the late data have length {late.sizes[dim]} along {dim!r}, the intervals "
                                 f"{estimate.sizes[dim]}, and no coordinates to align them by")  # fmt: skip
        late = late.transpose(*estimate.dims).reindex_like(estimate)
    if is_frame(late) and is_frame(estimate):
        for axis, own, other in zip(given.axes, late.axes, estimate.axes):
            _shared(own.values, other.values, axis.name)
        late = late.reindex_like(estimate)
    late = getattr(late, "values", late)
    filled = np.ma.filled(np.ma.asarray(late).astype(np.float64), np.nan)
    values = np.array(filled, np.float64)
    if values.shape != np.shape(estimate):
        raise ValueError(f"the late data have shape {values.shape}, the intervals {np.shape(estimate)}")
    blank_declared(values, codes_of(missing_value))
    return values


def _shared(own: np.ndarray, wanted: np.ndarray, name: Hashable) -> np.ndarray:
    """Positions of late data along one axis, as the intervals write them; some are in common, and none is repeated."""
    own = on_grid(own, wanted)
    if not np.isin(own, wanted).any():
        raise ValueError(f"the late data have no position in common with the intervals along {name!r}")
    if len(set(own.tolist())) < len(own):
        raise ValueError(f"the late data repeat positions along {name!r}: keep one slice of each")
    return own
