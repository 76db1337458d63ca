"""Out-of-core completion: read, complete, model the missingness, score and write, block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.calibration.gap_scale import reach
from corten.completer import ConformalCompleter
from corten.completion.riemannian import descend_on
from corten.conformal.scores import Score, as_score
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.missing_values import MissingValue
from corten.engine import Threads, as_engine
from corten.engine.memory import USABLE_SHARE, available, in_words, limited, read_size, refuse_full_disk
from corten.engine.threads import default_threads, in_order, one_library_thread
from corten.io.chunked import ChunkedStore, chunk_shape, write_in_chunks
from corten.io.files import suffix_of
from corten.io.lazy import LazyTensor, open_lazily
from corten.io.names import companion, level_names, refuse_clash, refuse_names, variable_name
from corten.io.whole import refuse_inputs, refuse_taken
from corten.large import settings, stages
from corten.large.gaps import TiledField, calibrate
from corten.large.needs import Needs, TileNeeds
from corten.large.stages import Counts, Estimate, Scratch, forecasts
from corten.large.tasks import TileRunner
from corten.large.tiles import tile_sides
from corten.large.writing import Output, TileArrays, TileWriting, Widths, Writing, sum_of
from corten.lowrank import TensorTrain
from corten.options import ScoreName, WeightsName, as_propensity, check_bounds
from corten.propensity.fitted import FittedPropensity
from corten.results.fitted import MIN_EFFECTIVE_SIZE
from corten.results.settings import circumstances, describe
from corten.results.summary import Summary

if TYPE_CHECKING:
    import xarray as xr

Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class FilledStore:
    """A tensor filled on disk; `open()` gives its estimate, bounds and flags lazily.

    The store holds the estimate under the name of the input, `variable`, and beside it say sst_lower, sst_upper and
    sst_flag.
    """

    path: Path
    variable: str
    coverages: tuple[float, ...]
    choices: tuple[Choice, ...] = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    _summary: Summary = field(repr=False)

    def summary(self) -> Summary:
        """Counts, widths of the intervals, automatic settings and warnings."""
        return self._summary

    def open(self) -> Any:
        """The store as an xarray Dataset, nothing loaded."""
        import xarray as xr

        return xr.open_zarr(self.path, chunks=None, consolidated=True)


def complete_to_zarr(
    x: Any,
    output: str | os.PathLike[str],
    coverage: float | Sequence[float] = 0.9,
    *,
    variable: str | None = None,
    completion: Any = "auto",
    propensity: Any = "auto",
    calibration: Any = "auto",
    score: ScoreName | Score = "auto",
    weights: WeightsName = "exact",
    seed: int = 0,
    engine: Any = "auto",
    bounds: tuple[float | None, float | None] | None = None,
    where: Any = None,
    fill_never_observed: bool = False,
    periodic: Sequence[str | int] = (),
    axis_kinds: Mapping[str | int, str] | None = None,
    missing_value: MissingValue = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> FilledStore:
    """Fill a tensor larger than memory and write estimate, bounds and flags to a compressed Zarr store.

    If the gaps are deep, as under clouds, the tensor is filled in tiles: a coarse field of the whole is completed
    first, tiles with a margin are completed from what is left, and pseudo-gaps in a sample of tiles calibrate the
    intervals. Otherwise the calibration set is a random share of the observed entries and the completion Tucker or
    tensor train; intervals are then at most 0.8 % wider than in memory, because scores are rounded up to a grid.
    Settings on "auto" are chosen on a part that fits in memory.

    Parameters
    ----------
    x : path or array
        A .zarr, .nc or .npy file, a lazily loaded DataArray, a Zarr or HDF5 array or a memory map. It is read in
        blocks of planes of its first axis.
    output : path
        The store to write, a name that ends in .zarr. It appears when it is complete.
    coverage : float or sequence of float, default 0.9
        Nominal coverage; of several the first is the main one.
    variable : str, optional
        Variable of the file; needed if it has several.
    completion : {"auto", "stack", "tucker", "tensor-train"} or object, default "auto"
        What fills the gaps: the stack in tiles, Tucker or tensor train with a random split.
    propensity, score, weights, seed, bounds, periodic, axis_kinds, missing_value
        As for `complete`.
    calibration : {"auto", "random", "gaps"} or SplitCalibration, default "auto"
        A random split, or pseudo-gaps in tiles; "auto" takes pseudo-gaps if the missing entries lie deep inside gaps.
    engine : default "auto"
        Tiles run in threads, or on the workers of a Dask client, which must see the folder of the output; a lost worker
        costs its tiles only. Without tiles, threads read the mask from disk, and a GPU or a cluster takes all of it at
        once, which must fit in memory.
    where : array or str, optional
        The domain: nonzero where an entry could be observed; a name is a variable of the same file, ``"!land"`` one
        that is zero there.
    fill_never_observed : bool, default False
        Fill places without any observation too where a mask of the file or the name of the variable suggests land. By
        default they are found by one more pass over the data, and left out.
    memory : int or str, optional
        Memory limit in bytes or as "2 GB". Default: 60 % of the free memory.
    overwrite : bool, default False
        Whether a store that corten wrote may be replaced.
    progress : callable, optional
        Called with a stage and the share of it that is done.
    say : callable, optional
        Called once, before the work, with the predicted memory and disk in words; in tiles after the data were read
        once, with the processor time too.

    Returns
    -------
    FilledStore
        Path, settings and summary of the store; ``open()`` loads it lazily. The estimate has the name of the input
        ("value" without one), the others are beside it as ``sst_lower``, ``sst_upper`` and ``sst_flag``.

    Raises
    ------
    MemoryError
        If one plane, or one chunk of the input, does not fit in the memory limit.
    ValueError
        If an option is not supported out of core, or the data have no gap.

    Examples
    --------
    >>> import corten
    >>> filled = corten.complete_to_zarr("sst.zarr", "filled.zarr", memory="2 GB")   # doctest: +SKIP
    >>> filled.open()["sst"]                                                         # doctest: +SKIP
    """
    began = perf_counter()
    coverages = tuple(check_coverage(c) for c in (coverage if isinstance(coverage, list | tuple) else [coverage]))
    ConformalCompleter(completion, propensity, calibration, score, weights, seed, engine, bounds=bounds)  # checks them
    scoring, model, limits = as_score(score), as_propensity(propensity), check_bounds(bounds)
    way = settings.way_of(calibration, completion)
    target = Path(output)
    if suffix_of(target) != ".zarr":
        raise ValueError(f"{target}: out-of-core mode writes Zarr; give a name that ends in .zarr")
    refuse_taken(target, overwrite, store=True)
    if isinstance(x, str | os.PathLike):
        refuse_inputs([target], [Path(x)])
    limit = int(USABLE_SHARE * available()) if memory is None else read_size(memory)
    engine = as_engine(engine)
    threads = getattr(engine, "count", None) or default_threads()
    with (
        open_lazily(
            x, where, variable=variable, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value
        ) as lazy,
        one_library_thread,
        TileRunner.of(engine, threads, target.parent.resolve()) as runner,
        limited(limit, runner.folder or target.parent.resolve(), named=runner.folder is not None),
    ):
        needs = Needs.of(lazy, limit, 1 + 2 * len(coverages), threads)
        if not isinstance(engine, Threads) and not way.may_tile:
            needs = needs.with_mask_at_once(lazy, limit, engine.label)
        refuse_full_disk(needs.disk, target.parent)
        tell_needs = say or (lambda text: None)
        if not way.may_tile:
            tell_needs(f"{lazy.source}: {needs.in_words()}")
        dims = [str(axis.dim) for axis in lazy.axes]
        labels = [*dims, *map(str, () if lazy.coords is None else lazy.coords)]
        main = variable_name(lazy.name)
        names = level_names(coverages, main)
        refuse_clash(labels, main)
        refuse_names(target, "Zarr", labels)
        numbers = (main, *(bound for pair in names for bound in pair))
        dtypes = dict.fromkeys(numbers, lazy.dtype) | {companion(main, "flag"): np.dtype(np.int8)}
        about = _described(lazy, coverages)
        # The store is created first: a folder that cannot be written is refused before hours of work.
        with write_in_chunks(target, dims, about.drop_vars([*dtypes]), overwrite=overwrite) as store:
            lazy, left_out, never = settings.without_land(lazy, needs.planes, fill=fill_never_observed)
            run = _Run(lazy, needs, way.split.train_share, seed, progress or (lambda stage, share: None))
            run.choices += left_out
            run.look()
            made = Output(main, names, limits, forecasts(lazy.axes, run.counts.has_observed), never)
            if run.in_tiles(way):
                sizes = TileNeeds.of(
                    lazy.axes, limit, runner.threads, run.counts.missing, lazy.dtype.itemsize, 1 + 2 * len(coverages)
                )
                tell_needs(f"{lazy.source}: {sizes.in_words()}")
                widths, scored, size = run.fill_tiles(store, dtypes, scoring, coverages, made, sizes, runner)
            else:
                if not isinstance(engine, Threads) and way.may_tile:
                    run.needs = needs.with_mask_at_once(lazy, limit, engine.label)
                if way.may_tile:
                    tell_needs(f"{lazy.source}: {run.needs.in_words()}")
                store.add(lazy.shape, chunk_shape(lazy.shape, run.needs.planes), dtypes)
                estimate, fitted = run.complete(way.completion, scoring), run.model_missingness(model, engine)
                widths, scored, size = run.fill_blocks(
                    store, estimate, fitted, scoring, coverages, made, exact=weights == "exact"
                )
            options = {
                "completion": describe(completion), "propensity": describe(propensity),
                "calibration": describe(calibration), "score": describe(score), "weights": weights,
                "bounds": str(bounds), "seed": seed, "engine": engine.label, "memory": in_words(limit),
                "variable": lazy.name or "none", "missing_value": describe(missing_value),
            } | circumstances(lazy.axes, run.counts.outside)  # fmt: skip
            facts = {
                "calibration_entries": scored, "effective_sample_size": size,
                "seconds": round(perf_counter() - began, 2),
            }  # fmt: skip
            summary = run.summary(coverages[0], widths, facts)
            _describe(store, lazy, about, summary, options)
            lazy.refuse_changed()
    return FilledStore(target, main, coverages, summary.choices, options, summary)


Done = tuple[Widths, int, float]  # widths of the intervals, calibration entries, their effective sample size


@dataclass
class _Run:
    """One out-of-core completion: its scratch files, counts of entries, settings and warnings."""

    lazy: LazyTensor
    needs: Needs
    train_share: float
    seed: int
    tell: Progress

    def __post_init__(self) -> None:
        self.scratch = Scratch.of(self.lazy.shape)
        self.counts = Counts()
        self.warnings: tuple[str, ...] = ()
        self.choices: tuple[Choice, ...] = ()

    def look(self) -> None:
        """Read everything once: count entries, and draw the training set."""
        lazy, block = self.lazy, self.needs.block
        self.counts = stages.look(
            lazy, self.scratch, block, self.train_share, self.seed, lambda share: self.tell("reading", share / 2)
        )
        if not self.counts.train or not self.counts.hidden:
            raise ValueError(
                f"{lazy.source} has {self.counts.train + self.counts.hidden} observed entries, which cannot be split "
                "into a training set and a calibration set"
            )
        if not self.counts.missing:
            raise ValueError(f"{lazy.source} has no missing entry: there is nothing to fill")
        self.choices += settings.report_codes(lazy, self.needs.part)

    def in_tiles(self, way: settings.Way) -> bool:
        """Whether the tensor is filled in tiles, with pseudo-gaps: as asked, or because the gaps are deep."""
        if not way.open:
            self.choices += (Choice("calibration", "gaps" if way.tiles else "random", "as given"),)
            if not way.tiles:
                self.warnings = settings.warn_of_depth(self.lazy, self.scratch, self.train_share, self.seed)
            return way.tiles
        where, share = settings.deeper(self.lazy, self.scratch, self.train_share, self.seed)
        deep = share > settings.MAX_DEEPER_SHARE
        because = f"{share:.0%} of the missing entries lie further from training entries ({where}) than a split tests"
        self.choices += (Choice("calibration", "gaps" if deep else "random", because),)
        return deep

    def fill_tiles(
        self, store: ChunkedStore, dtypes: Mapping[str, np.dtype], score: Score, coverages: Sequence[float],
        output: Output, needs: TileNeeds, runner: TileRunner,
    ) -> Done:  # fmt: skip
        """Complete a coarse field and tiles, calibrate on pseudo-gaps in some tiles, and write all tiles."""
        lazy, spins = self.lazy, self.scratch.observed
        self.choices += (Choice("work from disk", needs.in_words(), "predicted before starting"),)
        tiled = TiledField.of(
            lazy, spins, self.needs.block, needs.entries, lambda share: self.tell("reading", (1 + share) / 2)
        )
        model = calibrate(tiled, score, self.seed, runner, lambda share: self.tell("completion", share))
        store.add(lazy.shape, tile_sides(lazy.axes, needs.entries), dtypes)
        put = TileWriting(tiled, TileArrays(model, coverages, output), store).put
        widths = sum_of(runner.run(put, tiled.tiles, lambda share: self.tell("writing", share)))
        self.choices += model.choices
        if widths.beyond:
            self.warnings += (reach(widths.beyond, self.counts.missing).because,)
        return widths, model.scored.scores.size, model.scored.effective_sample_size()

    def complete(self, filler: Any, score: Score) -> Estimate:
        """Complete the whole tensor from its training entries."""
        lazy, counts = self.lazy, self.counts
        stages.scale(lazy, self.scratch, self.needs, counts, lambda share: self.tell("reading", (1 + share) / 2))
        self.tell("completion", 0.0)
        self.choices += (
            Choice("work from disk", self.needs.in_words(), "predicted before starting"),
            Choice("cutoffs", "sketch", "scores rounded up to a grid: at most 0.8 % wider than the exact ones"),
        )
        ready = settings.prepared(filler, self.lazy, self.scratch, self.needs.part, self.seed)
        point, _ = descend_on(ready, self.scratch.numbers, self.scratch.train, self.counts.train)
        self.choices += ready.choices
        self.tell("completion", 1.0)
        found = Estimate(point, self.counts.mean, self.counts.spread, self.lazy.dtype)
        return found.with_leverage() if score.needs_leverage else found

    def model_missingness(self, model: Any, engine: Any) -> FittedPropensity:
        """Fit the propensity model to the training mask."""
        self.tell("missingness", 0.0)
        stages.as_spins(self.scratch)
        planes, axes = self.needs.part, self.lazy.axes
        chosen, choices = settings.settled(model, self.lazy, self.scratch, planes, self.train_share)
        fitted: FittedPropensity = chosen.fit(
            self.scratch.train, self.train_share, axis_names=[axis.name for axis in axes],
            periodic=[axis.periodic for axis in axes], engine=engine,
        )  # fmt: skip
        if not isinstance(fitted.parameter, TensorTrain):
            raise ValueError("propensity: in out-of-core mode a known parameter must be a TensorTrain, not an array")
        self.choices += (*choices, *fitted.choices)
        self.tell("missingness", 1.0)
        return fitted

    def fill_blocks(
        self, store: ChunkedStore, estimate: Estimate, fitted: FittedPropensity, score: Score,
        coverages: Sequence[float], output: Output, *, exact: bool,
    ) -> Done:  # fmt: skip
        """Score the calibration set, and write estimate, bounds and flags block by block."""
        lazy, needs = self.lazy, self.needs
        sketches = stages.score(
            lazy, self.scratch, needs, estimate, fitted, score, lambda share: self.tell("calibration", share)
        )
        exact = exact and not fitted.independent
        writing = Writing(self.scratch, estimate, fitted, score, sketches, coverages, exact, output, store)
        todo = stages.pieces(lazy, needs, lambda share: self.tell("writing", share))
        widths = sum_of(in_order(writing.run, todo, needs.workers))
        return widths, self.counts.hidden, next(iter(sketches.values())).effective_sample_size()

    def summary(self, coverage: float, widths: Widths, facts: dict[str, Any]) -> Summary:
        counts, lazy = self.counts, self.lazy
        units = lazy.attrs.get("units")
        effective_size = facts["effective_sample_size"]
        if effective_size < MIN_EFFECTIVE_SIZE:
            self.warnings += (
                f"Many intervals may be infinite: the effective sample size is {effective_size:.0f} of "
                f"{facts['calibration_entries']} calibration entries.",
            )
        return Summary(
            name=lazy.name, units=None if units is None else str(units),
            axes=tuple((a.name, a.length) for a in lazy.axes), coverage=coverage,
            observed=counts.train + counts.hidden, missing=counts.missing, outside=counts.outside,
            forecast=widths.forecast, infinite=widths.infinite, finite_share=1 - widths.infinite / counts.missing,
            mean_width=widths.mean, median_width=widths.median, facts=facts, choices=self.choices,
            warnings=self.warnings, beyond_tested=widths.beyond,
        )  # fmt: skip


def _described(lazy: LazyTensor, coverages: Sequence[float]) -> xr.Dataset:
    """The store without its numbers: attributes of every variable, coordinates, and what they refer to."""
    import xarray as xr

    from corten.io.dataset import described
    from corten.io.provenance import with_references

    attrs = described(lazy.attrs, lazy.name, coverages)
    empty = xr.Dataset({name: ((), 0.0, own) for name, own in attrs.items()}, coords=lazy.coords)
    return with_references(empty, lazy.like)


def _describe(
    store: ChunkedStore, lazy: LazyTensor, about: xr.Dataset, summary: Summary, options: dict[str, Any]
) -> None:
    """Attributes of the variables and of the store, as a result in memory has them."""
    from corten.io.dataset import quantity_of
    from corten.io.provenance import file_attrs, global_attrs

    for name in store.arrays:
        store.describe(file_attrs(about[name].attrs), name)
    history = {"history": lazy.attrs["history"]} if "history" in lazy.attrs else {}
    before = history | ({} if lazy.like is None else dict(lazy.like.attrs))
    quantity = quantity_of(lazy.attrs, lazy.name)
    found = global_attrs(quantity, before, summary.coverage, summary.choices, summary.warnings, options)
    store.describe(file_attrs(found))
