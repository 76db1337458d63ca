"""The flow for data larger than memory, in one screen: look, complete, model the missingness, score, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from corten.completion.riemannian import descend_on
from corten.conformal.scores import Score, as_score
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.flags import FLAG_MEANINGS
from corten.engine import Threads, as_engine
from corten.engine.memory import ROOM, available, in_words, limited, read_size
from corten.engine.threads import default_threads, one_library_thread
from corten.io.chunked import ChunkedStore, chunk_shape, write_in_chunks
from corten.io.files import suffix_of
from corten.io.lazy import LazyTensor, open_lazily
from corten.io.names import level_names, refuse_clash, refuse_for_zarr
from corten.io.whole import refuse_inputs, refuse_taken
from corten.large import settings, stages
from corten.large.needs import Needs
from corten.large.stages import Counts, Estimate, Scratch
from corten.large.writing import Widths, Writing, write
from corten.lowrank import TensorTrain
from corten.options import as_propensity, check_bounds
from corten.propensity.fitted import FittedPropensity
from corten.results.fitted import MIN_EFFECTIVE_SIZE
from corten.results.settings import circumstances, describe
from corten.results.summary import Summary

__all__ = ["FilledStore", "complete_to_zarr"]

Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class FilledStore:
    """A tensor filled on disk: `path` holds estimate, lower, upper and flag; `open()` loads them lazily."""

    path: Path
    coverages: tuple[float, ...]
    choices: tuple[Choice, ...] = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    _summary: Summary = field(repr=False)

    def summary(self) -> Summary:
        """What was filled, how wide the intervals are, what was chosen and why, and what to beware of."""
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
    score: str | Score = "absolute",
    weights: str = "exact",
    seed: int = 0,
    engine: Any = "auto",
    bounds: tuple[float | None, float | None] | None = None,
    where: Any = None,
    periodic: Sequence[str | int] = (),
    axis_kinds: Mapping[str | int, str] | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> FilledStore:
    """Fill a tensor larger than memory and write estimate, lower, upper and flag to a compressed Zarr store.

    x: the path of a .zarr, .nc or .npy file, a lazily loaded DataArray, a Zarr or HDF5 array or a memory map; it is
    read in runs of planes of its first axis. output: the store, written under another name until it is whole.
    coverage: one or several (the first is the main one). variable: which one of the file. memory: the most to use,
    such as "2 GB"; by default 60 % of what is free. say: is told beforehand what it will take. All other options as
    for `complete`: the split is always random, the completion Tucker or tensor train, settings on "auto" are chosen
    on a part that fits, and cutoffs come from a sketch that is at most 0.8 % wider than the exact ones. engine: threads
    read the mask from disk; a GPU or a cluster takes all of it at once, which must fit beside the rest.

    Example:
        >>> import corten
        >>> filled = corten.complete_to_zarr("sst.zarr", "filled.zarr", memory="2 GB")   # doctest: +SKIP
        >>> filled.open().estimate                                                       # doctest: +SKIP
    """
    began = perf_counter()
    coverages = tuple(check_coverage(c) for c in (coverage if isinstance(coverage, list | tuple) else [coverage]))
    how, model, limits = as_score(score), as_propensity(propensity), check_bounds(bounds)
    filler, split = settings.check_completion(completion), settings.check_calibration(calibration)
    if weights not in ("exact", "approximate"):
        raise ValueError(f'weights is {weights!r}; give "exact" or "approximate"')
    target = Path(output)
    if suffix_of(target) != ".zarr":
        raise ValueError(f"{target}: what does not fit in memory is written to Zarr; give a name that ends in .zarr")
    refuse_taken(target, overwrite, store=True)
    if isinstance(x, str | os.PathLike):
        refuse_inputs([target], [Path(x)])
    limit = int(ROOM * available()) if memory is None else read_size(memory)
    names = level_names(coverages)
    with (
        open_lazily(x, where, variable=variable, periodic=periodic, axis_kinds=axis_kinds) as lazy,
        one_library_thread,
        limited(limit, target.parent.resolve()),
    ):
        runner = as_engine(engine)
        threads = getattr(runner, "count", None) or default_threads()
        needs = Needs.of(lazy, limit, 1 + 2 * len(coverages), threads)
        if not isinstance(runner, Threads):
            needs = needs.with_mask_at_once(lazy, limit, runner.label)
        needs.refuse_small_disk(target.parent)
        if say is not None:
            say(f"{lazy.source}: {needs.in_words()}")
        dims = [str(axis.dim) for axis in lazy.axes]
        labels = [*dims, *map(str, () if lazy.coords is None else lazy.coords)]
        refuse_clash(labels)
        refuse_for_zarr(target, labels)
        numbers = ("estimate", *(end for pair in names for end in pair))
        dtypes = dict.fromkeys(numbers, lazy.dtype) | {"flag": np.dtype(np.int8)}
        chunks = chunk_shape(lazy.shape, needs.planes)
        # The store is begun first: a folder that cannot be written is found out before hours of work.
        with write_in_chunks(target, dims, lazy.coords, lazy.shape, chunks, dtypes, overwrite=overwrite) as store:
            run = _Run(lazy, needs, split.train_share, seed, progress or (lambda stage, share: None))
            run.look()
            estimate = run.complete(filler, how)
            law = run.model_missingness(model, engine)
            sketches = stages.score(
                lazy, run.scratch, needs, estimate, law, how, lambda share: run.tell("calibration", share)
            )
            writing = Writing(
                run.scratch, estimate, law, how, sketches, coverages, names,
                weights == "exact" and not law.independent, limits, run.beyond(), store,
            )  # fmt: skip
            widths = write(lazy, needs, writing, lambda share: run.tell("writing", share))
            options = {
                "completion": describe(completion), "propensity": describe(propensity),
                "calibration": describe(split), "score": describe(score), "weights": weights, "bounds": str(bounds),
                "seed": seed, "engine": runner.label, "memory": in_words(limit), "variable": lazy.name or "none",
            } | circumstances(lazy.axes, run.counts.outside)  # fmt: skip
            size = next(iter(sketches.values())).effective_sample_size()
            facts = {
                "calibration_entries": run.counts.hidden, "effective_sample_size": size,
                "seconds": round(perf_counter() - began, 2),
            }  # fmt: skip
            summary = run.summary(coverages[0], widths, facts)
            _describe(store, lazy, names, coverages, summary, options)
            lazy.refuse_changed()
    return FilledStore(target, coverages, summary.choices, options, summary)


@dataclass
class _Run:
    """One completion from disk: its scratch files, what is known of the data, and the choices made."""

    lazy: LazyTensor
    needs: Needs
    train_share: float
    seed: int
    tell: Progress

    def __post_init__(self) -> None:
        self.scratch = Scratch.of(self.lazy.shape)
        self.counts = Counts()
        self.warnings: tuple[str, ...] = ()
        self.choices: tuple[Choice, ...] = (
            Choice("calibration", "random", "the tensor does not fit in memory"),
            Choice("cutoffs", "sketch", "scores rounded up to a grid: at most 0.8 % wider than the exact ones"),
            Choice("work from disk", self.needs.in_words(), "predicted before starting"),
        )

    def look(self) -> None:
        lazy, block = self.lazy, self.needs.block
        self.counts = stages.look(
            lazy, self.scratch, block, self.train_share, self.seed, lambda share: self.tell("reading", share / 2)
        )
        if not self.counts.train or not self.counts.hidden:
            raise ValueError(
                f"{lazy.source} has {self.counts.train + self.counts.hidden} observed entries, which cannot be split "
                "into training and calibration entries"
            )
        if not self.counts.missing:
            raise ValueError(f"{lazy.source} has no missing entry: there is nothing to fill")
        stages.scale(lazy, self.scratch, self.needs, self.counts, lambda share: self.tell("reading", (1 + share) / 2))

    def complete(self, filler: Any, how: Score) -> Estimate:
        self.tell("completion", 0.0)
        ready = settings.prepared(filler, self.lazy, self.scratch, self.needs.part, self.seed)
        point, _ = descend_on(ready, self.scratch.numbers, self.scratch.train, self.counts.train)
        self.choices += ready.choices
        self.tell("completion", 1.0)
        found = Estimate(point, self.counts.mean, self.counts.spread, self.lazy.dtype)
        return found.with_leverage() if how.needs_leverage else found

    def model_missingness(self, model: Any, engine: Any) -> FittedPropensity:
        self.tell("missingness", 0.0)
        stages.as_spins(self.scratch)
        planes, axes = self.needs.part, self.lazy.axes
        self.warnings = settings.warn_of_depth(self.lazy, self.scratch, self.train_share, self.seed)
        chosen, choices = settings.settled(model, self.lazy, self.scratch, planes, self.train_share)
        law: FittedPropensity = chosen.fit(
            self.scratch.train, self.train_share, axis_names=[axis.name for axis in axes],
            periodic=[axis.periodic for axis in axes], engine=engine,
        )  # fmt: skip
        if not isinstance(law.parameter, TensorTrain):
            raise ValueError("propensity: from disk a known parameter must be a TensorTrain, not an array")
        self.choices += (*choices, *law.choices)
        self.tell("missingness", 1.0)
        return law

    def beyond(self) -> list[np.ndarray]:
        """For each axis, slices before the first or after the last observed one of an ordered time axis."""
        found = []
        for axis, seen in zip(self.lazy.axes, self.counts.seen):
            there = np.flatnonzero(seen)
            index = np.arange(axis.length)
            timed = axis.is_time and axis.kind == "ordered" and not axis.periodic
            found.append(timed & ((index < there[0]) | (index > there[-1])))
        return found

    def summary(self, coverage: float, widths: Widths, facts: dict[str, Any]) -> Summary:
        counts, lazy = self.counts, self.lazy
        units = lazy.attrs.get("units")
        worth = facts["effective_sample_size"]
        if worth < MIN_EFFECTIVE_SIZE:
            self.warnings += (
                f"The weights of the {counts.hidden} calibration entries are worth {worth:.0f} equal ones: intervals "
                "rest on few entries and many may be infinite.",
            )
        return Summary(
            lazy.name, None if units is None else str(units), tuple((a.name, a.length) for a in lazy.axes), coverage,
            counts.train + counts.hidden, counts.missing, counts.outside, widths.forecast, widths.infinite,
            1 - widths.infinite / counts.missing, widths.mean, widths.median, facts, self.choices, self.warnings,
        )  # fmt: skip


def _describe(
    store: ChunkedStore, lazy: LazyTensor, names: Sequence[tuple[str, str]], coverages: Sequence[float],
    summary: Summary, options: dict[str, Any],
) -> None:  # fmt: skip
    """Attributes of the variables and of the store, as a result in memory has them."""
    from corten.io.dataset import own_attrs, store_attrs

    quantity = str(lazy.attrs.get("long_name") or lazy.name or "value")
    store.describe("estimate", own_attrs(lazy.attrs) | {"long_name": f"{quantity}, gaps filled"})
    units = {"units": str(lazy.attrs["units"])} if "units" in lazy.attrs else {}
    for pair, one in zip(names, coverages):
        for name, kind in zip(pair, ("lower end", "upper end")):
            about = f"{kind} of the {one:.4g} interval of {quantity}"
            store.describe(name, {"long_name": about, "coverage": one} | units)
    store.describe("flag", {
        "long_name": "how each entry came to its value", "flag_values": list(range(len(FLAG_MEANINGS))),
        "flag_meanings": " ".join(FLAG_MEANINGS),
    })  # fmt: skip
    before = lazy.attrs.get("history")
    store.group.attrs.update(store_attrs(quantity, before, summary, summary.warnings, options))
