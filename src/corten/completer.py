"""The flow, readable in one screen: observe, plan rounds, complete, model the missingness, calibrate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from corten.calibration.task import Task
from corten.checkpoint import Checkpoint
from corten.conformal.scores import Score, as_score
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.missing_values import MissingValue
from corten.data.observed import ObservedTensor
from corten.data.transform import as_transform
from corten.engine import as_engine, check_engine
from corten.engine.memory import in_words, refuse_beyond
from corten.engine.threads import one_library_thread
from corten.options import as_calibration, as_completion, as_propensity, check_bounds, stays_here
from corten.results.fitted import Fitted
from corten.results.intervals import Intervals
from corten.results.settings import describe

__all__ = ["ConformalCompleter", "complete", "complete_table"]

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class ConformalCompleter:
    """Fills the gaps of a tensor and gives every filled entry an interval (Algorithm CTC, written over rounds).

    completion: what fills: "auto", "tucker", "tensor-train", "smooth", "gaussian-process", "stack", a
    completion object or any function from an array with NaN to a full array.
    propensity: the model of the probability of being observed: "auto" (chosen by held-out loss), "constant",
    "additive", "bernoulli", "ising" or an object.
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
        missing_value: MissingValue = None,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Fitted:
        """Fit everything once; the answer gives intervals of any coverage.

        where: the domain, True where a cell could be observed; periodic, axis_kinds: what the labels do not
        say; missing_value: numbers that stand for a missing value, such as -9999 or [-9999, 1e20]; progress: called
        with a stage and the share of it that is done; checkpoint: keeps rounds that are done.
        """
        observed = ObservedTensor.of(x, where, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value)
        return self._fit(observed, progress, checkpoint)

    def _fit(
        self,
        observed: ObservedTensor,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
        coverage: float | None = None,
    ) -> Fitted:
        """Fit what was observed; coverage: what will be asked for, where it is known beforehand."""
        began = perf_counter()
        if observed.complete:
            return Fitted(observed, np.array(observed.values), self._settings(describe(self.engine)))
        # An engine that cannot be had is found out before any work is done.
        settings = self._settings(as_engine(self.engine).label)
        calibration, chosen = as_calibration(self.calibration).choose(observed, self.seed)
        needed = calibration.peak_bytes(observed.values.size, observed.n_missing)
        why = "predicted before starting, from the number of entries and rounds"
        memory = Choice("peak memory", f"about {in_words(needed)}", why)
        refuse_beyond(
            needed,
            f"completing {observed.values.size:,} entries",
            "work from disk (corten.complete_to_zarr, or corten complete to .zarr), complete a part of the tensor, or "
            "ask for calibration='random'",
        )
        completion = as_completion(self.completion, calibration.pooled, self.engine)
        here = stays_here(completion, self.engine)
        task = Task(
            observed=observed,
            completion=completion if checkpoint is None else checkpoint.keeping(completion),
            propensity=None if self._is_auto(self.propensity) else as_propensity(self.propensity),
            score=as_score(self.score),
            weights=self.weights,
            transform=as_transform(self.transform, self.climatology),
            seed=self.seed,
            engine=self.engine,
            coverage=coverage,
            tell=progress or (lambda stage, share: None),
        )
        with one_library_thread:
            outcome = calibration.calibrate(task)
        return Fitted.of(
            observed,
            outcome,
            check_bounds(self.bounds),
            options=settings,
            calibration=calibration,
            choices=(*observed.choices, *chosen, memory, *here, *outcome.choices),
            seconds=perf_counter() - began,
            completer=self,
        )

    @staticmethod
    def _is_auto(option: Any) -> bool:
        return isinstance(option, str) and option == "auto"

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
    missing_value: MissingValue = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> Intervals:
    """Fill a tensor with gaps and give every filled entry an interval of the asked coverage: the whole method.

    x: an array with NaN, a masked array or an xarray.DataArray of two or more modes; the answer has the same
    kind, shape and labels. All options are those of `ConformalCompleter` and its `fit`. Warns before the fit where the
    number of calibration entries is too small for a finite interval of this coverage, and names the highest coverage
    that is possible.

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
    observed = ObservedTensor.of(x, where, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value)
    return completer._fit(observed, progress, checkpoint, coverage).intervals(coverage)


def complete_table(
    frame: Any,
    coverage: float = 0.9,
    *,
    value: str | None = None,
    coordinates: Sequence[str] | None = None,
    fold: Mapping[str, tuple[str, str]] | None = None,
    axis_kinds: Mapping[str, str] | None = None,
    missing_value: MissingValue = None,
    completer: ConformalCompleter | None = None,
) -> Any:
    """Fill a long table (a pandas DataFrame, one row per cell) and give it back with estimate, lower, upper and flag.

    value: the column to fill; coordinates: the columns that are axes; fold: `{"time": ("day", "slot")}` folds a
    datetime axis for the fit and unfolds it again; missing_value: numbers that stand for a missing value; completer:
    options other than the defaults. Rows for cells that had none are added at the end; rows that share a cell are
    averaged.

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
    table = from_table(frame, value, coordinates, axis_kinds=axis_kinds, fold=fold, missing_value=missing_value)
    kinds: dict[str | int, str] = {name: kind for name, kind in (axis_kinds or {}).items() if name in table.data.dims}
    fitted = (completer or ConformalCompleter()).fit(table.data, where=table.where, axis_kinds=kinds)
    return table.to_frame(fitted.intervals(coverage))
