"""`complete_lazily`: a Dask-backed DataArray is calibrated now and filled in tiles when its result is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from corten.calibration.task import Progress
from corten.completer import ConformalCompleter
from corten.conformal.scores import Score, as_score
from corten.data.axes import is_dataarray
from corten.data.choices import Choice
from corten.data.coverage import check_coverages
from corten.data.missing_values import MissingValue, blank_declared
from corten.engine.lazy import is_lazy
from corten.engine.memory import USABLE_SHARE, available, in_words, read_size
from corten.engine.threads import default_threads, one_library_thread, one_thread
from corten.io.dataset import described
from corten.io.lazy import ArraySource, LazyTensor
from corten.io.names import companion
from corten.io.provenance import about_result
from corten.large.gaps import TiledField, calibrate
from corten.large.needs import TileNeeds
from corten.large.tasks import TileRunner
from corten.large.tiles import Box, Coarse, Tile, cell_sums, tile_sides, tiles_of
from corten.large.writing import Output, TileArrays
from corten.options import ScoreName, check_bounds
from corten.results.settings import circumstances, describe

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

    from corten.checkpoint import Checkpoint
    from corten.data.axes import AxisKind


@dataclass(frozen=True, eq=False)
class LazyIntervals:
    """Estimate and prediction interval of every missing entry as Dask-backed arrays; tiles are filled when computed.

    Returned by `complete_lazily`, and by `corten.complete` for a Dask-backed DataArray that does not fit in memory.

    Parameters
    ----------
    dataset : xarray.Dataset
        The estimate under the name of the input, beside it its bounds and flags, as `complete_to_zarr` writes them.
    variable : str
        Name of the estimate.
    coverages : tuple of float
        Nominal coverages; the first is the main one.
    choices : tuple of Choice
        Every automatic setting, with its value and the reason.

    Examples
    --------
    >>> result = corten.complete_lazily(dataset["sst"])              # doctest: +SKIP
    >>> result.to_dataset().to_zarr("filled.zarr")                   # doctest: +SKIP
    """

    dataset: xr.Dataset = field(repr=False)
    variable: str
    coverages: tuple[float, ...]
    choices: tuple[Choice, ...] = field(repr=False)

    @property
    def coverage(self) -> float:
        """The main nominal coverage."""
        return self.coverages[0]

    @property
    def estimate(self) -> xr.DataArray:
        """The filled tensor; observed entries keep their value."""
        return self.dataset[self.variable]

    @property
    def lower(self) -> xr.DataArray:
        """Lower bounds at the main coverage."""
        return self.dataset[companion(self.variable, "lower")]

    @property
    def upper(self) -> xr.DataArray:
        """Upper bounds at the main coverage."""
        return self.dataset[companion(self.variable, "upper")]

    @property
    def flag(self) -> xr.DataArray:
        """How each entry got its value, as `Intervals.flag`."""
        return self.dataset[companion(self.variable, "flag")]

    def to_dataset(self) -> xr.Dataset:
        """The estimate, bounds and flags as a Dask-backed Dataset."""
        return self.dataset


def complete_lazily(
    x: xr.DataArray,
    coverage: float | Sequence[float] = 0.9,
    *,
    score: ScoreName | Score = "auto",
    seed: int = 0,
    bounds: tuple[float | None, float | None] | None = None,
    where: ArraySource | None = None,
    periodic: Sequence[str | int] = (),
    axis_kinds: Mapping[str | int, AxisKind] | None = None,
    missing_value: MissingValue = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> LazyIntervals:
    """Fill a Dask-backed DataArray in tiles; the result is Dask-backed too, and x is never loaded as a whole.

    The calibration, pseudo-gaps in a sample of tiles, runs now, in threads of this process. A tile is filled when
    something computes it, by the scheduler that Dask then uses: threads, or the workers of a cluster.

    Parameters
    ----------
    x : xarray.DataArray
        The tensor, with two or more axes and a Dask array inside, as ``xarray.open_zarr`` gives it. Missing entries are
        NaN.
    coverage : float or sequence of float, default 0.9
        Nominal coverage; of several the first is the main one.
    score, seed, bounds, where, periodic, axis_kinds, missing_value
        As for `complete`. Places that are never observed, such as land, are filled unless ``where`` leaves them out.
    memory : int or str, optional
        Memory of one process that fills tiles, in bytes or as "2 GB"; it decides the size of the tiles. Default: 60 %
        of the free memory here, or of the memory of the smallest worker of the current Dask client.
    progress : callable, optional
        Called with a stage and the share of it that is done.

    Returns
    -------
    LazyIntervals
        Estimate, bounds and flags as Dask-backed arrays. Their chunks are the tiles.

    Raises
    ------
    TypeError
        If x is not a Dask-backed DataArray.
    MemoryError
        If the memory is too small for a tile.
    ValueError
        If there are too few observed entries, no missing one, or an infinite value.

    Examples
    --------
    >>> import corten, xarray
    >>> sst = xarray.open_zarr("sst.zarr")["sst"]                            # doctest: +SKIP
    >>> corten.complete_lazily(sst).to_dataset().to_zarr("filled.zarr")      # doctest: +SKIP
    """
    if not is_dataarray(x) or not is_lazy(x.data):
        raise TypeError(f"x is a {type(x).__name__} without a Dask array: use corten.complete, or x.chunk()")
    coverages, tell = check_coverages(coverage), progress or (lambda stage, share: None)
    limits = check_bounds(bounds)
    lazy = LazyTensor.of(x, where, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value)
    output = Output.of(lazy, coverages, limits)
    limit, threads = _room(memory)
    with one_library_thread:
        tell("reading", 0.0)
        data, has_observed = _field(x, where, lazy, TileNeeds.of(lazy.axes, limit, threads=threads).entries)
        model = calibrate(
            data, as_score(score), seed=seed, runner=TileRunner(threads), tell=lambda share: tell("completion", share)
        )
    variables = _lazy_variables(data, TileArrays(model, output.flagged(lazy.axes, has_observed)))
    options = {
        "score": describe(score), "bounds": str(bounds), "seed": seed, "memory": in_words(limit),
        "missing_value": describe(missing_value),
    } | circumstances(lazy.axes, x.size - int(data.counts.sum()))  # fmt: skip
    about = about_result(lazy, None, coverage=coverages[0], choices=model.choices, warnings=(), settings=options)
    attrs = described(lazy.attrs, lazy.name, coverages)
    import xarray as xr

    found = xr.Dataset({name: (x.dims, variables[name], own) for name, own in attrs.items()}, x.coords, about)
    return LazyIntervals(found, output.main, coverages, model.choices)


def refuse_in_tiles(completer: ConformalCompleter, checkpoint: Checkpoint | None = None) -> None:
    """A ValueError if an option of a completion in memory is not supported in tiles."""
    plain = ConformalCompleter()
    allowed = {"completion": ("auto", "stack"), "calibration": ("auto", "gaps")}
    for name in ("completion", "propensity", "calibration", "weights", "transform", "climatology"):
        given = getattr(completer, name)
        if given != getattr(plain, name) and given not in allowed.get(name, ()):
            raise ValueError(
                f"{name} is {given!r}: x is a Dask array that does not fit in memory, and tiles are filled with "
                "pseudo-gaps and the stack: leave it out, or complete a part that fits"
            )
    if checkpoint is not None:
        raise ValueError("checkpoint: tiles of a Dask array that does not fit in memory are not kept; leave it out")


def _room(memory: int | str | None) -> tuple[int, int]:
    """Bytes and threads of one process that fills tiles: this one, or the smallest worker of the current client."""
    workers: list[Mapping[str, Any]] = []
    try:
        from distributed import get_client

        workers = list(get_client().scheduler_info(n_workers=-1)["workers"].values())
    except (ImportError, ValueError):
        pass
    free = [one["memory_limit"] for one in workers if one.get("memory_limit")]
    limit = int(USABLE_SHARE * min([available(), *free])) if memory is None else read_size(memory)
    return limit, max((one["nthreads"] for one in workers), default=default_threads())


def _field(
    x: xr.DataArray, where: ArraySource | None, lazy: LazyTensor, entries: int
) -> tuple[TiledField, list[np.ndarray]]:
    """The tensor as Dask arrays in tiles, and for each axis which positions have observed entries; one pass."""
    import dask
    import dask.array as da

    values = x.data.astype(lazy.dtype).map_blocks(_checked, lazy.codes, lazy.source, dtype=lazy.dtype)
    spins = da.where(da.isnan(values), np.int8(-1), np.int8(1))
    if where is not None:
        inside = _domain(where, x)
        values, spins = da.where(inside, values, lazy.dtype.type(np.nan)), da.where(inside, spins, np.int8(0))
    tiles, coarse = tiles_of(lazy.axes, tile_sides(lazy.axes, entries)), Coarse.of(lazy.axes)
    looks = [dask.delayed(_look)(values[t.core], spins[t.core], t.core, coarse.factors) for t in tiles]
    has_observed = [np.zeros(n, bool) for n in lazy.shape]
    counts = []
    for tile, (sums, observed, missing, some) in zip(tiles, dask.compute(*looks)):
        coarse.add_sums(*sums)
        counts.append((observed, missing))
        for k, part in enumerate(tile.core):
            has_observed[k][part] |= some[k]
    observed, missing = np.sum(counts, axis=0)
    if not observed or not missing:
        what = (
            "observed entry: there is nothing to learn from" if missing else "missing entry: there is nothing to fill"
        )
        raise ValueError(f"{lazy.source} has no {what}")
    return TiledField(
        lazy.axes, values, spins=spins, tiles=tuple(tiles), coarse=coarse, counts=np.array(counts)
    ), has_observed


def _domain(where: ArraySource, x: xr.DataArray) -> da.Array:
    """The domain as a Dask array of the shape and chunks of x."""
    import dask.array as da
    import xarray as xr

    # Labels were compared before: without them nothing is aligned again.
    given = xr.DataArray(where.data, dims=where.dims) if is_dataarray(where) else np.asarray(where)
    flags = given if is_dataarray(given) else xr.DataArray(np.broadcast_to(given, x.shape), dims=x.dims)
    flags = flags if flags.dtype == bool else flags.fillna(0) != 0
    whole = xr.broadcast(flags, xr.DataArray(x.data, dims=x.dims))[0].transpose(*x.dims).data
    return whole if is_lazy(whole) else da.from_array(whole, chunks=x.data.chunks, name=False)


def _checked(values: np.ndarray, codes: Sequence[float], source: str) -> np.ndarray:
    """Values with NaN for the numbers that stand for missing ones."""
    values = np.array(values)
    blank_declared(values, codes)
    if np.isinf(values).any():
        raise ValueError(f"{source} has an infinite value: only finite numbers and NaN are allowed")
    return values


def _look(
    values: np.ndarray, spins: np.ndarray, core: Box, factors: Sequence[int]
) -> tuple[tuple, int, int, list[np.ndarray]]:
    """Sums in coarse cells, numbers of observed and missing entries, and which slices have observed ones."""
    mask = spins == 1
    sums = cell_sums([part.start for part in core], values, mask, factors)
    some = [mask.any(axis=tuple(j for j in range(mask.ndim) if j != k)) for k in range(mask.ndim)]
    return sums, int(np.count_nonzero(mask)), int(np.count_nonzero(spins == -1)), some


def _lazy_variables(data: TiledField, arrays: TileArrays) -> dict[str, da.Array]:
    """Each variable as a Dask array with one chunk per tile; all variables of a tile come from one task."""
    import dask
    import dask.array as da

    own = uuid4().hex  # a name instead of a hash of the whole model
    model = dask.delayed(arrays, name=f"corten-model-{own}", traverse=False)
    grid = [len({tile.core[k].start for tile in data.tiles}) for k in range(len(data.axes))]
    filled = {
        index: dask.delayed(_fill, pure=False)(model, tile, data.values[tile.padded], data.spins[tile.padded])
        for index, tile in zip(np.ndindex(*grid), data.tiles)
    }
    found = {}
    for name, dtype in arrays.output.dtypes.items():
        blocks = np.empty(grid, object)
        for (index, task), tile in zip(filled.items(), data.tiles):
            shape = tuple(part.stop - part.start for part in tile.core)
            blocks[index] = da.from_delayed(task[name], shape, dtype)
        found[name] = da.block(blocks.tolist())
    return found


def _fill(arrays: TileArrays, tile: Tile, values: np.ndarray, spins: np.ndarray) -> dict[str, np.ndarray]:
    """All arrays of one tile."""
    with one_library_thread, one_thread():
        return arrays.of(tile, values, spins)[0]
