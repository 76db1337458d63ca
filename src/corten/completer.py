"""The flow, readable in one screen: observe, plan rounds, complete, model the missingness, calibrate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from corten.calibration.rounds import Plan
from corten.calibration.run import run_rounds
from corten.checkpoint import Checkpoint
from corten.choices import Choice
from corten.conformal.scores import Score, as_score
from corten.engine import as_engine, check_engine
from corten.engine.memory import in_words, refuse_beyond
from corten.engine.threads import one_library_thread
from corten.fitted import Fitted, Trace
from corten.merged import fit_merged
from corten.observed import ObservedTensor
from corten.options import as_calibration, as_completion, as_propensity, check_bounds, describe, stays_here
from corten.result import Intervals, check_coverage
from corten.transform import FittedTransform, as_transform

__all__ = ["ConformalCompleter", "complete", "complete_table"]

Progress = Callable[[str, float], None]
# Bytes at the peak, fitting, asking and writing included, measured at a million entries (tests/test_peak_memory.py).
SPLIT_BYTES = 165  # of an entry
ASKING_BYTES, MISSING_BYTES, ASKED_AT_ONCE = 70, 275, 1 << 20  # of an entry and of a missing one, asked for intervals
MERGED_BYTES = 70  # of an entry, for every split that is merged and once more
GAP_BYTES = 200  # of an entry, for every round of pseudo-gaps


def predicted_bytes(plan: Plan, entries: int, missing: int) -> int:
    """What a fit, its intervals and a file of them will take at the peak, beside the program and the input."""
    if plan.refit:
        return GAP_BYTES * len(plan.rounds) * entries
    if plan.merge:
        return MERGED_BYTES * (1 + len(plan.rounds)) * entries
    return max(SPLIT_BYTES * entries, ASKING_BYTES * entries + MISSING_BYTES * min(missing, ASKED_AT_ONCE))


@dataclass(frozen=True)
class ConformalCompleter:
    """Fills the gaps of a tensor and gives every filled entry an interval (Algorithm CTC, written over rounds).

    completion: what fills: "auto", "tucker", "tensor-train", "smooth", "gaussian-process", "stack", a
    completion object or any function from an array with NaN to a full array.
    propensity: the law of the missingness: "auto", "ising", "bernoulli", "uniform" or an object.
    calibration: which observed entries are hidden: "auto", "random", "gaps" or an object.
    score: "absolute", "adaptive", "signed" (two-sided), "normalized" or an object with score() and invert().
    weights: "exact" Ising weights, or "approximate" (the paper's, the same for every missing entry).
    transform: "log", "box-cox", "standardise", "standardise:AXIS" or an object, undone exactly; climatology: an axis
    (days, years) whose mean at every cell is removed first and put back; bounds: (0, None) keeps estimates and
    intervals non-negative.
    seed: same seed, same bits. engine: "auto", "threads", a number of threads, "jax", "gpu", a
    `distributed.Client` (its workers), "dask", or an engine.

    Example:
        >>> completer = ConformalCompleter(completion="tucker", calibration="random", seed=1)
        >>> fitted = completer.fit(x)                        # doctest: +SKIP
        >>> fitted.intervals(0.9).summary()                  # doctest: +SKIP
    """

    completion: Any = "auto"
    propensity: Any = "auto"
    calibration: Any = "auto"
    score: str | Score = "absolute"
    weights: str = "exact"
    seed: int = 0
    engine: Any = "auto"
    transform: Any = None
    climatology: str | None = None
    bounds: tuple[float | None, float | None] | None = None

    def __post_init__(self) -> None:
        as_score(self.score)
        as_transform(self.transform, self.climatology)
        check_bounds(self.bounds)
        check_engine(self.engine)
        as_completion(self.completion, gaps=False)
        as_propensity(self.propensity)
        as_calibration(self.calibration)
        if self.weights not in ("exact", "approximate"):
            raise ValueError(f'weights is {self.weights!r}; give "exact" or "approximate"')
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed is {self.seed!r}; give a whole number of at least 0")

    def fit(
        self,
        x: Any,
        *,
        where: Any = None,
        periodic: Sequence[str | int] = (),
        axis_kinds: Mapping[str | int, str] | None = None,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Fitted:
        """Fit everything once; the answer gives intervals of any coverage.

        where: the domain, True where a cell could be observed; periodic, axis_kinds: what the labels do not
        say; progress: called with a stage and the share of it that is done; checkpoint: keeps rounds that are done.
        """
        began, tell = perf_counter(), progress or (lambda stage, share: None)
        observed = ObservedTensor.of(x, where, periodic=periodic, axis_kinds=axis_kinds)
        if observed.complete:
            return Fitted.nothing_to_fill(observed, self._settings(describe(self.engine)))
        # An engine that cannot be had is found out before any work is done.
        settings = self._settings(as_engine(self.engine).label)
        with one_library_thread:
            return self._fit(observed, settings, tell, began, checkpoint)

    def _fit(
        self, observed: ObservedTensor, settings: dict[str, Any], tell: Progress, began: float,
        checkpoint: Checkpoint | None,
    ) -> Fitted:  # fmt: skip
        calibration, choices = as_calibration(self.calibration).choose(observed, self.seed)
        choices = (*observed.choices, *choices)
        plan = calibration.plan(observed, self.seed)
        needed = predicted_bytes(plan, observed.values.size, observed.n_missing)
        why = "predicted before starting, from the number of entries and rounds"
        choices = (*choices, Choice("peak memory", f"about {in_words(needed)}", why))
        refuse_beyond(
            needed,
            f"completing {observed.values.size:,} entries",
            "work from disk (corten.complete_to_zarr, or corten complete to .zarr), complete a part of the tensor, or "
            "ask for calibration='random'",
        )
        completion = as_completion(self.completion, plan.refit, self.engine)
        choices = (*choices, *stays_here(completion, self.engine))
        if checkpoint is not None:
            completion = checkpoint.keeping(completion)
        if plan.merge:
            trace = Trace(settings, (*choices, *plan.choices), began, self, None, check_bounds(self.bounds))
            model, score = as_propensity(self.propensity), as_score(self.score)
            change = partial(self._change, observed)
            return fit_merged(observed, change, plan, completion, model, score, self.weights, trace, self.engine, tell)
        changed, undo = self._change(observed, observed.mask if plan.refit else plan.rounds[0].train)
        again = None if undo is None or not plan.refit else partial(self._seen, observed, undo)
        run = run_rounds(plan, completion, changed, self.seed, tell, again)
        tell("missingness", 0.0)
        law = as_propensity(self.propensity, gaps=plan.refit).fit(
            plan.rounds[0].train if not plan.refit else observed.mask,
            plan.rounds[0].train_share or 1.0 if not plan.refit else 1.0,
            domain=observed.domain,
            axis_names=[axis.name for axis in observed.axes],
            periodic=[axis.periodic for axis in observed.axes],
            engine=self.engine,
        )
        tell("calibration", 0.0)
        trace = Trace(settings, (*choices, *plan.choices, *run.choices, *law.choices), began, self)
        trace = replace(trace, undo=undo, limits=check_bounds(self.bounds))
        fitted = Fitted.of(observed, changed, plan, run, law, as_score(self.score), self.weights, trace)
        tell("calibration", 1.0)
        return fitted

    def _seen(self, observed: ObservedTensor, whole: FittedTransform, train: np.ndarray) -> np.ndarray:
        """The values in the variable that a round learns from its training entries.

        Where these do not differ, no unit can be learned from them: that of `whole`, the map of all entries, is taken,
        or the errors of the round would be counted in another unit than those of the others.
        """
        changed, own = self._change(observed, train)
        values = changed.values
        if own is None or not train.any() or np.ptp(values[train]) > 0.0:
            return values
        ends = [np.full(values.shape, end(observed.values[observed.mask]), np.float64) for end in (np.min, np.max)]
        wanted, found = (one.forward(ends[1]) - one.forward(ends[0]) for one in (whole, own))
        return np.asarray(values * np.divide(wanted, found, out=np.ones(values.shape), where=found > 0), values.dtype)

    def _change(self, observed: ObservedTensor, train: np.ndarray) -> tuple[ObservedTensor, FittedTransform | None]:
        """What was observed in the variable that is modelled; the map is learned from the entries of `train` only."""
        change = as_transform(self.transform, self.climatology)
        if change is None:
            return observed, None
        undo = change.fit(observed.values, train, observed.axes)
        values = undo.forward(observed.values).astype(observed.values.dtype)
        if not np.isfinite(values[observed.mask]).all():
            raise ValueError(f"transform {describe(self.transform)} made values that are not finite of observed ones")
        return replace(observed, values=np.where(observed.mask, values, np.nan)), undo

    def _settings(self, engine: str) -> dict[str, Any]:
        return {
            "completion": describe(self.completion),
            "propensity": describe(self.propensity),
            "calibration": describe(self.calibration),
            "score": describe(self.score),
            "weights": self.weights,
            "transform": describe(self.transform) if self.transform is not None else "none",
            "climatology": self.climatology or "none",
            "bounds": str(self.bounds),
            "seed": self.seed,
            "engine": engine,
        }


def complete(
    x: Any,
    coverage: float = 0.9,
    *,
    completion: Any = "auto",
    propensity: Any = "auto",
    calibration: Any = "auto",
    score: str | Score = "absolute",
    weights: str = "exact",
    seed: int = 0,
    engine: Any = "auto",
    transform: Any = None,
    climatology: str | None = None,
    bounds: tuple[float | None, float | None] | None = None,
    where: Any = None,
    periodic: Sequence[str | int] = (),
    axis_kinds: Mapping[str | int, str] | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Intervals:
    """Fill a tensor with gaps and give every filled entry an interval of the asked coverage: the whole method.

    x: an array with NaN, a masked array or an xarray.DataArray of two or more modes; the answer has the same
    kind, shape and labels. All options are those of `ConformalCompleter` and its `fit`.

    Example:
        >>> import numpy as np, corten
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(20, 1, 1)) * rng.normal(size=(1, 20, 1)) * rng.normal(size=(1, 1, 20))
        >>> x[rng.random(x.shape) < 0.4] = np.nan
        >>> result = corten.complete(x, coverage=0.9, calibration="random", completion="tucker")
        >>> bool(np.isfinite(result.estimate).all())
        True
    """
    check_coverage(coverage)
    completer = ConformalCompleter(
        completion, propensity, calibration, score, weights, seed, engine, transform, climatology, bounds
    )
    fitted = completer.fit(
        x, where=where, periodic=periodic, axis_kinds=axis_kinds, progress=progress, checkpoint=checkpoint
    )
    return fitted.intervals(coverage)


def complete_table(
    frame: Any,
    coverage: float = 0.9,
    *,
    value: str | None = None,
    coordinates: Sequence[str] | None = None,
    fold: Mapping[str, tuple[str, str]] | None = None,
    axis_kinds: Mapping[str, str] | None = None,
    completer: ConformalCompleter | None = None,
) -> Any:
    """Fill a long table (a pandas DataFrame, one row per cell) and give it back with estimate, lower, upper and flag.

    value: the column to fill; coordinates: the columns that are axes; fold: `{"time": ("day", "slot")}` folds a
    datetime axis for the fit and unfolds it again; completer: options other than the defaults. Rows for cells that had
    none are added at the end; rows that share a cell are averaged.

    Example:
        >>> import pandas as pd, corten
        >>> cells = [(x, t) for x in range(8) for t in range(9)]
        >>> frame = pd.DataFrame(cells, columns=["x", "t"])
        >>> frame["value"] = [x + 0.5 * t if (x * 7 + t * 5) % 4 else None for x, t in cells]
        >>> filled = corten.complete_table(frame, completer=corten.ConformalCompleter("smooth", "uniform", "random"))
        >>> list(filled.columns)
        ['x', 't', 'value', 'estimate', 'lower', 'upper', 'flag']
    """
    from corten.io import from_table

    check_coverage(coverage)
    table = from_table(frame, value, coordinates, axis_kinds=axis_kinds, fold=fold)
    kinds: dict[str | int, str] = {name: kind for name, kind in (axis_kinds or {}).items() if name in table.data.dims}
    fitted = (completer or ConformalCompleter()).fit(table.data, where=table.where, axis_kinds=kinds)
    return table.to_frame(fitted.intervals(coverage))
