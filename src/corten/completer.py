"""The completer: resolves the options, runs one calibration and returns the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from corten import options
from corten.calibration.auto import choose_calibration
from corten.calibration.task import Outcome, Progress, Task, trend_of
from corten.checkpoint import Checkpoint
from corten.completion.trend import fill_covariates
from corten.conformal.merged import MergedSplits
from corten.conformal.scores import as_score
from corten.data.choices import Choice
from corten.data.covariates import Covariates
from corten.data.missing_values import MissingValue
from corten.data.never_observed import skip_never_observed
from corten.data.observed import ObservedTensor
from corten.data.transform import Transform, as_transform
from corten.engine import as_engine, check_engine
from corten.engine.lazy import takes_lazy
from corten.engine.memory import in_words, refuse_beyond
from corten.engine.threads import one_library_thread
from corten.results.fitted import Fitted
from corten.results.progress import as_progress
from corten.results.settings import describe

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from numpy.typing import ArrayLike

    from corten.data.axes import AxisKind


@dataclass(frozen=True)
class ConformalCompleter:
    """Options of a completion with intervals; `fit` applies them to a tensor.

    Use it instead of `corten.complete` to fit once and ask for several coverages, to audit a fit, to save it, or to
    apply the same options to many tensors. The method is Algorithm CTC of the paper.

    Parameters
    ----------
    completion, propensity, calibration, score, weights, seed, engine, transform, climatology, bounds
        As for `corten.complete`, which says when to change each of them.

    Raises
    ------
    ValueError, TypeError
        If an option has a value that is not allowed.

    Examples
    --------
    >>> completer = ConformalCompleter(completion="tucker", calibration="random", seed=1)
    >>> fitted = completer.fit(x, missing_value=-9999)   # doctest: +SKIP
    >>> print(fitted.intervals(0.9).summary())           # doctest: +SKIP
    """

    completion: options.CompletionOption = "auto"
    propensity: options.PropensityOption = "auto"
    calibration: options.CalibrationOption = "auto"
    score: options.ScoreOption = "auto"
    weights: options.WeightsName = "exact"
    seed: int = 0
    engine: options.EngineOption = "auto"
    transform: str | Transform | None = None
    climatology: str | None = None
    bounds: options.Bounds = None

    def __post_init__(self) -> None:
        as_score(self.score)
        as_transform(self.transform, self.climatology)
        options.check_bounds(self.bounds)
        check_engine(self.engine)
        options.as_completion(self.completion, gaps=False)
        options.as_propensity(self.propensity)
        options.as_calibration(self.calibration)
        if self.weights not in ("exact", "approximate"):
            raise ValueError(f'weights is {self.weights!r}; give "exact" or "approximate"')
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed is {self.seed!r}; give a whole number of at least 0")

    def fit(
        self,
        x: ArrayLike | pd.DataFrame | xr.DataArray | ObservedTensor,
        *,
        where: options.DomainOption = None,
        covariates: Covariates | None = None,
        periodic: Sequence[str | int] = (),
        axis_kinds: Mapping[str | int, AxisKind] | None = None,
        missing_value: MissingValue = None,
        fill_never_observed: bool = False,
        progress: Progress | bool | None = None,
        checkpoint: Checkpoint | None = None,
        coverage: float | None = None,
    ) -> Fitted:
        """Fit the completion, the propensity model and the calibration to one tensor.

        Parameters
        ----------
        x, where, covariates, periodic, axis_kinds, missing_value, fill_never_observed, checkpoint
            As for `corten.complete`.
        progress : bool or function of (str, float), optional
            True prints predicted time and memory, then every stage, to standard error. A function is called with the
            name of a stage and the share of it that is done. If it has an attribute ``predicted``, that
            is called once before the fit with the seconds and the bytes that it will take.
        coverage : float, optional
            Nominal coverage of the intervals to come. If given, the fit warns before it starts where the calibration
            entries are too few for finite intervals.

        Returns
        -------
        Fitted
            Gives intervals of any coverage without fitting again.

        Raises
        ------
        ValueError, TypeError
            If x or its description cannot be used; the message says what to change.
        MemoryError
            If the fit needs more memory than there is. The need is predicted before the fit starts.
        """
        began = perf_counter()
        tell = as_progress(progress)
        tell("reading", 0.0)
        observed = ObservedTensor.of(
            x, where, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value, covariates=covariates
        )
        observed = fill_covariates(skip_never_observed(observed, fill=fill_never_observed))
        if observed.complete:
            return Fitted(observed, np.array(observed.values), self._settings(describe(self.engine)))
        # An engine that is not available is reported before any work is done.
        settings = self._settings(as_engine(self.engine).label)
        tell("planning", 0.0)
        given = options.as_calibration(self.calibration)
        calibration, chosen = (given, ()) if given else choose_calibration(observed, self.seed, coverage)
        needed = options.predicted_bytes(calibration, observed.axes, observed.n_missing)
        if hasattr(tell, "predicted"):
            need_of = getattr(calibration, "device_bytes", None)
            on_device = None if need_of is None else need_of(self.engine, observed.shape)
            tell.predicted(options.predicted_seconds(calibration, observed.axes, observed.n_missing), needed, on_device)
        why = "besides Python and its libraries; predicted before starting, from the number of entries and rounds"
        memory = Choice("peak memory", f"about {in_words(needed)}", why)
        refuse_beyond(
            needed,
            f"completing {observed.values.size:,} entries",
            "work from disk (corten.complete_to_zarr, or corten complete to .zarr), complete a part of the tensor, or "
            "use calibration='random'",
        )
        mixed = not as_score(self.score).needs_leverage and not takes_lazy(as_engine(self.engine))
        completion = options.as_completion(self.completion, calibration.pooled, self.engine, mixed)
        task = Task(
            observed=observed,
            completion=completion if checkpoint is None else checkpoint.keeping(completion),
            propensity=None if self.propensity == "auto" else options.as_propensity(self.propensity),
            score=as_score(self.score),
            weights=self.weights,
            transform=as_transform(self.transform, self.climatology),
            seed=self.seed,
            engine=self.engine,
            coverage=coverage,
            tell=tell,
        )
        with one_library_thread:
            outcome = calibration.calibrate(task)
        if checkpoint is not None:
            outcome = checkpoint.release(outcome)
        workers = options.unused_workers(completion, self.engine)
        return Fitted.of(
            observed,
            outcome,
            options.check_bounds(self.bounds),
            options=settings,
            calibration=calibration,
            choices=(*observed.choices, *chosen, memory, *workers, *_trend(outcome), *outcome.choices),
            seconds=perf_counter() - began,
            completer=self,
        )

    def _settings(self, engine: str) -> dict[str, Any]:
        """The options as text, with the engine that runs."""
        texts = {one.name: describe(getattr(self, one.name)) for one in fields(self)}
        return texts | {"seed": self.seed, "engine": engine}


def _trend(outcome: Outcome) -> tuple[Choice, ...]:
    """The record of the trend in the covariates; of merged splits, that of the first."""
    first = outcome.calibrated.splits[0] if isinstance(outcome.calibrated, MergedSplits) else outcome.calibrated
    trend = trend_of(first.change)
    return () if trend is None else (trend.choice,)
