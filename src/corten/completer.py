"""The completer: resolves the options, runs one calibration and returns the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter

import numpy as np

from corten import options
from corten.calibration.auto import choose_calibration
from corten.calibration.task import Progress, Task
from corten.checkpoint import Checkpoint
from corten.completion.trend import fill_covariates
from corten.conformal.scores import as_score
from corten.data.axes import AxisKind
from corten.data.covariates import Covariates
from corten.data.missing_values import MissingValue
from corten.data.never_observed import skip_never_observed
from corten.data.observed import DomainLike, ObservedTensor, TensorLike
from corten.data.transform import Transform, as_transform
from corten.engine import as_engine, check_engine
from corten.engine.threads import one_library_thread
from corten.results.fitted import Fitted
from corten.results.progress import as_progress
from corten.results.settings import describe


@dataclass(frozen=True)
class ConformalCompleter:
    """Options of a completion with intervals; `fit` applies them to a tensor.

    Use it instead of `corten.complete` to fit once and ask for several coverages, to audit a fit, to save it, or to
    apply the same options to many tensors. The method is Algorithm CTC of the paper.

    Parameters
    ----------
    completion, propensity, calibration, score, weights, seed, engine, transform, climatology, bounds
        As for `corten.complete`, which says when to change each of them.

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
        x: TensorLike,
        *,
        where: DomainLike = None,
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
        x, where, covariates, periodic, axis_kinds, missing_value, fill_never_observed, progress, checkpoint
            As for `corten.complete`.
        coverage : float, optional
            Nominal coverage of the intervals to come. If given, the fit warns before it starts where the calibration
            entries are too few for finite intervals.

        Returns
        -------
        Fitted
            Gives intervals of any coverage without fitting again.
        """
        began = perf_counter()
        tell = as_progress(progress)
        tell("reading", 0.0)
        observed = ObservedTensor.of(
            x, where, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value, covariates=covariates
        )
        observed = fill_covariates(skip_never_observed(observed, fill=fill_never_observed))
        settings = {one.name: describe(getattr(self, one.name)) for one in fields(self)} | {"seed": self.seed}
        if observed.complete:
            return Fitted(observed, np.array(observed.values), settings)
        # An engine that is not available is reported before any work is done.
        settings["engine"] = as_engine(self.engine).label
        tell("planning", 0.0)
        given = options.as_calibration(self.calibration)
        calibration, chosen = (given, ()) if given else choose_calibration(observed, self.seed, coverage)
        memory = options.check_needs(calibration, observed, engine=self.engine, tell=tell)
        mixed = not as_score(self.score).needs_leverage and not options.on_cluster(self.engine)
        completion = options.as_completion(self.completion, gaps=calibration.pooled, engine=self.engine, mixed=mixed)
        task = Task(
            observed=observed,
            completion=completion if checkpoint is None else checkpoint.keeping(completion),
            propensity=None if self.propensity == "auto" else options.as_propensity(self.propensity),
            score=as_score(self.score),
            transform=as_transform(self.transform, self.climatology),
            weights=self.weights, seed=self.seed, engine=self.engine, coverage=coverage, tell=tell,
        )  # fmt: skip
        with one_library_thread:
            outcome = calibration.calibrate(task)
        outcome = outcome if checkpoint is None else checkpoint.release(outcome)
        found = (*observed.choices, *chosen, memory, *options.unused_workers(completion, self.engine))
        estimate, limits = outcome.calibrated.data_estimate(), options.check_bounds(self.bounds)
        return Fitted(
            observed, estimate if limits is None else np.clip(estimate, *limits), settings,
            calibrated=outcome.calibrated, propensity=outcome.propensity, completion=outcome.completion,
            calibration=calibration, rounds=outcome.rounds, residuals=outcome.residuals,
            choices=(*found, *outcome.trend, *outcome.choices), limits=limits, seconds=perf_counter() - began,
            completer=self,
        )  # fmt: skip
