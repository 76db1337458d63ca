"""`complete_to_zarr`: a tensor in files is filled with a random split or in tiles, and written to Zarr in parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from corten import options
from corten.calibration.auto import MAX_DEEPER_SHARE
from corten.calibration.gap_scale import reach
from corten.calibration.task import Progress
from corten.completer import ConformalCompleter
from corten.conformal.scores import Score, as_score
from corten.data.choices import Choice
from corten.data.coverage import check_coverages
from corten.data.missing_values import MissingValue
from corten.data.plain import calibration_entries
from corten.engine import Engine, Threads, as_engine
from corten.engine.memory import USABLE_SHARE, available, in_words, limited, read_size, refuse_full_disk
from corten.engine.threads import default_threads, one_library_thread
from corten.io.chunked import ChunkedStore, chunk_shape, write_in_chunks
from corten.io.dataset import described
from corten.io.files import suffix_of
from corten.io.lazy import ArraySource, LazyTensor, open_lazily
from corten.io.names import refuse_names
from corten.io.provenance import about_result, file_attrs, with_references
from corten.io.whole import refuse_inputs, refuse_taken
from corten.large import settings
from corten.large.gaps import TiledField, calibrate
from corten.large.needs import Needs, TileNeeds
from corten.large.split import BlockIntervals, Split
from corten.large.stages import Scratch, look
from corten.large.tasks import TileRunner
from corten.large.tiles import tile_sides
from corten.large.writing import Output, TileArrays, Widths, put_tile, sum_of
from corten.propensity import PropensityModel
from corten.results.fitted import MIN_EFFECTIVE_SIZE
from corten.results.settings import circumstances, describe
from corten.results.summary import Summary

if TYPE_CHECKING:
    import xarray as xr

Needed = TypeVar("Needed", Needs, TileNeeds)


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
    settings: dict[str, str | int] = field(repr=False)
    _summary: Summary = field(repr=False)

    def summary(self, full: bool = False) -> Summary:
        """Counts, widths of the intervals and warnings; with `full` every number and every setting with its reason."""
        return replace(self._summary, full=full)

    def open(self) -> xr.Dataset:
        """The store as an xarray Dataset, nothing loaded."""
        import xarray as xr

        return xr.open_zarr(self.path, chunks=None, consolidated=True)


def complete_to_zarr(
    x: str | os.PathLike[str] | ArraySource,
    output: str | os.PathLike[str],
    coverage: float | Sequence[float] = 0.9,
    *,
    variable: str | None = None,
    completion: options.CompletionOption = "auto",
    propensity: options.PropensityOption = "auto",
    calibration: options.CalibrationOption = "auto",
    score: options.ScoreOption = "auto",
    weights: options.WeightsName = "exact",
    seed: int = 0,
    engine: options.EngineOption = "auto",
    bounds: options.Bounds = None,
    where: str | ArraySource | None = None,
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
        Tiles run in threads, "gpu" completes them on the device, and a Dask client on its workers, which must see the
        folder of the output; a lost worker costs its tiles only. Without tiles, threads read the mask from disk, and a
        GPU or a cluster takes all of it at once, which must fit in memory.
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
    coverages = check_coverages(coverage)
    ConformalCompleter(  # checks them
        completion, propensity, calibration, score, weights, seed=seed, engine=engine, bounds=bounds
    )
    limits, way = options.check_bounds(bounds), settings.way_of(calibration, completion)
    target = Path(output)
    if suffix_of(target) != ".zarr":
        raise ValueError(f"{target}: out-of-core mode writes Zarr; give a name that ends in .zarr")
    refuse_taken(target, overwrite, store=True)
    if isinstance(x, str | os.PathLike):
        refuse_inputs([target], [Path(x)])
    limit = int(USABLE_SHARE * available()) if memory is None else read_size(memory)
    backend = as_engine(engine)
    threads = getattr(backend, "count", None) or default_threads()
    with (
        open_lazily(
            x, where, variable=variable, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value
        ) as lazy,
        one_library_thread,
        TileRunner.of(backend, threads, target.parent.resolve()) as runner,
        limited(limit, runner.folder or target.parent.resolve(), named=runner.folder is not None),
    ):
        arrays = 1 + 2 * len(coverages)
        needs = Needs.of(lazy, limit, arrays=arrays, threads=threads)
        refuse_full_disk(needs.disk, target.parent)

        def said(found: Needed) -> Needed:
            """Say what is needed; without tiles some engines need the whole mask."""
            if isinstance(found, Needs) and not isinstance(backend, Threads):
                found = found.with_mask_at_once(lazy, limit, backend.label)
            if say is not None:
                say(f"{lazy.source}: {found.in_words()}")
            return found

        if way.tiles is False:
            needs = said(needs)
        made = Output.of(lazy, coverages, limits)
        refuse_names(target, "Zarr", lazy.labels)
        about = _described(lazy, coverages)
        # The store is created first: a folder that cannot be written is refused before hours of work.
        dims = [str(axis.dim) for axis in lazy.axes]
        with write_in_chunks(target, dims, about.drop_vars([*made.dtypes]), overwrite=overwrite) as store:
            lazy, left_out, never = settings.without_land(lazy, needs.planes, fill=fill_never_observed)
            run = _Run(
                lazy, needs, train_share=way.split.train_share, seed=seed, tell=progress or (lambda stage, share: None),
                choices=left_out,
            )  # fmt: skip
            run.look()
            made = made.flagged(lazy.axes, run.counts.has_observed, never)
            if run.in_tiles(way):
                item = lazy.dtype.itemsize
                some = {"threads": runner.threads, "missing": run.counts.missing, "item": item, "arrays": arrays}
                sizes = said(TileNeeds.of(lazy.axes, limit, **some))
                done = run.fill_tiles(store, as_score(score), output=made, needs=sizes, runner=runner)
            else:
                run.needs = needs if way.tiles is False else said(needs)
                model = options.as_propensity(propensity)
                done = run.fill_split(
                    store, way.completion, model=model, score=as_score(score), output=made, weights=weights,
                    engine=backend,
                )  # fmt: skip
            recorded: dict[str, str | int] = {
                "completion": describe(completion), "propensity": describe(propensity),
                "calibration": describe(calibration), "score": describe(score), "weights": weights,
                "bounds": str(bounds), "seed": seed, "engine": backend.label, "memory": in_words(limit),
                "variable": lazy.name or "none", "missing_value": describe(missing_value),
            }  # fmt: skip
            recorded |= circumstances(lazy.axes, run.counts.outside)
            summary = run.summary(coverages[0], done, round(perf_counter() - began, 2))
            for name in store.arrays:
                store.describe(file_attrs(about[name].attrs), name)
            told = about_result(
                lazy, lazy.like, coverage=coverages[0], choices=summary.choices, warnings=summary.warnings,
                settings=recorded,
            )  # fmt: skip
            store.describe(file_attrs(told))
            lazy.refuse_changed()
    return FilledStore(
        target, made.main, coverages=coverages, choices=summary.choices, settings=recorded, _summary=summary
    )


_Done = tuple[Widths, int, float]  # widths of the intervals, calibration entries, their effective sample size


@dataclass
class _Run:
    """One out-of-core completion: its scratch files, counts of entries, settings and warnings."""

    lazy: LazyTensor
    needs: Needs
    train_share: float
    seed: int
    tell: Progress
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    def look(self) -> None:
        """Read everything once: count entries, and draw the training set."""
        lazy, self.scratch = self.lazy, Scratch.of(self.lazy.shape)
        self.counts = look(
            lazy, self.scratch, block=self.needs.block, train_share=self.train_share, seed=self.seed,
            tell=lambda share: self.tell("reading", share / 2),
        )  # fmt: skip
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
        if way.tiles:
            self.choices += (Choice("calibration", "gaps", "as given"),)
            return True
        where, share = settings.deeper(self.lazy, self.scratch, self.train_share, self.seed)
        deep, far = share > MAX_DEEPER_SHARE, f"{share:.0%} of the missing entries lie further from training"
        if way.tiles is None:
            because = f"{far} entries ({where}) than a split tests"
            self.choices += (Choice("calibration", "gaps" if deep else "random", because),)
            return deep
        self.choices += (Choice("calibration", "random", "as given"),)
        if deep:
            self.warnings = (
                f"Intervals deep inside gaps may under-cover: {far} entries ({where}) than 99% of the calibration "
                "entries. Use calibration='gaps'.",
            )
        return False

    def fill_tiles(
        self, store: ChunkedStore, score: Score, *, output: Output, needs: TileNeeds, runner: TileRunner
    ) -> _Done:
        """Complete a coarse field and tiles, calibrate on pseudo-gaps in some tiles, and write all tiles."""
        lazy, spins = self.lazy, self.scratch.observed
        self.choices += (Choice("work from disk", needs.in_words(), "predicted before starting"),)
        tiled = TiledField.of(
            lazy, spins, block=self.needs.block, tile_entries=needs.entries,
            tell=lambda share: self.tell("reading", (1 + share) / 2),
        )  # fmt: skip
        model = calibrate(
            tiled, score, seed=self.seed, runner=runner, tell=lambda share: self.tell("completion", share)
        )
        store.add(lazy.shape, tile_sides(lazy.axes, needs.entries), output.dtypes)
        put = partial(put_tile, data=tiled, arrays=TileArrays(model, output), store=store)
        widths = sum_of(runner.run(put, tiled.tiles, lambda share: self.tell("writing", share)))
        self.choices += model.choices
        if widths.beyond:
            self.warnings += (reach(widths.beyond, self.counts.missing).because,)
        return widths, model.scored.scores.size, model.scored.effective_sample_size()

    def fill_split(
        self, store: ChunkedStore, completion: settings.LowRank, *, model: PropensityModel, score: Score,
        output: Output, weights: str, engine: Engine,
    ) -> _Done:  # fmt: skip
        """Complete from the training entries, model the missingness, score, and write block by block."""
        store.add(self.lazy.shape, chunk_shape(self.lazy.shape, self.needs.planes), output.dtypes)
        split = Split(
            self.lazy, self.scratch, counts=self.counts, needs=self.needs, train_share=self.train_share, tell=self.tell
        )
        estimate, of_completion = split.complete(completion, self.seed)
        propensity, of_propensity = split.model_missingness(model, engine)
        intervals = BlockIntervals(self.scratch, estimate, propensity, score, weights)
        sketches = split.score(intervals)
        widths = split.write(intervals, sketches, output, store)
        self.choices += (
            Choice("work from disk", self.needs.in_words(), "predicted before starting"),
            Choice("cutoffs", "sketch", "scores rounded up to a grid: at most 0.8 % wider than the exact ones"),
            *of_completion,
            *of_propensity,
        )
        return widths, self.counts.hidden, next(iter(sketches.values())).effective_sample_size()

    def summary(self, coverage: float, done: _Done, seconds: float) -> Summary:
        counts, lazy, (widths, entries, size) = self.counts, self.lazy, done
        units = lazy.attrs.get("units")
        if size < MIN_EFFECTIVE_SIZE:
            self.warnings += (
                f"Many intervals may be infinite: the effective sample size is {size:.0f} of {entries} "
                f"{calibration_entries(entries)}.",
            )
        return Summary(
            name=lazy.name, units=None if units is None else str(units),
            axes=tuple((a.name, a.length) for a in lazy.axes), coverage=coverage,
            observed=counts.train + counts.hidden, missing=counts.missing, outside=counts.outside,
            forecast=widths.forecast, infinite=widths.infinite, finite_share=1 - widths.infinite / counts.missing,
            mean_width=widths.mean, median_width=widths.median,
            facts={"calibration_entries": entries, "effective_sample_size": size, "seconds": seconds},
            choices=self.choices, warnings=self.warnings, beyond_tested=widths.beyond,
        )  # fmt: skip


def _described(lazy: LazyTensor, coverages: Sequence[float]) -> xr.Dataset:
    """The store without its numbers: attributes of every variable, coordinates, and what they refer to."""
    import xarray as xr

    attrs = described(lazy.attrs, lazy.name, coverages)
    empty = xr.Dataset({name: ((), 0.0, own) for name, own in attrs.items()}, coords=lazy.coords)
    return with_references(empty, lazy.like)
