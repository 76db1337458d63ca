"""The completer: resolves the options, runs one calibration and returns the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.calibration.task import Calibration, Progress, Task
from corten.checkpoint import Checkpoint
from corten.completion.protocol import Completion
from corten.conformal.scores import Score, as_score
from corten.data.choices import Choice
from corten.data.missing_values import MissingValue
from corten.data.never_observed import skip_never_observed
from corten.data.observed import ObservedTensor
from corten.data.transform import Transform, as_transform
from corten.engine import as_engine, check_engine
from corten.engine.lazy import takes_lazy
from corten.engine.memory import in_words, refuse_beyond
from corten.engine.threads import one_library_thread
from corten.options import (
    CalibrationName,
    CompletionName,
    EngineName,
    FillFunction,
    PropensityModel,
    PropensityName,
    ScoreName,
    WeightsName,
    as_calibration,
    as_completion,
    as_propensity,
    check_bounds,
    predicted_seconds,
    unused_workers,
)
from corten.results.fitted import Fitted
from corten.results.settings import describe

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from distributed import Client
    from numpy.typing import ArrayLike

    from corten.data.axes import AxisKind
    from corten.engine import Engine

__all__ = ["ConformalCompleter"]


@dataclass(frozen=True)
class ConformalCompleter:
    """Options of a completion with intervals; `fit` applies them to a tensor.

    Use it instead of `corten.complete` to fit once and ask for several coverages, to audit a fit, to save it, or to
    apply the same options to many tensors.

    Parameters
    ----------
    completion : str, completion or function, default "auto"
        The method that estimates missing entries: "auto", "tucker", "tensor-train", "smooth", "gaussian-process",
        "stack", an object with ``prepare``, or a function from an array with NaN to a full array.
    propensity : str or propensity model, default "auto"
        The model of the probability of being observed: "auto", "constant" (or "uniform"), "additive", "bernoulli",
        "ising", or an object with ``fit``.
    calibration : str or calibration, default "auto"
        Which observed entries are hidden to measure errors: "auto", "random", "cross", "gaps", or an object with
        ``calibrate``.
    score : str or score, default "absolute"
        How the error of a calibration entry is measured: "absolute", "adaptive", "signed", "normalized", or an object
        with ``score`` and ``invert``.
    weights : {"exact", "approximate"}, default "exact"
        Weights of the calibration entries under an Ising model.
    seed : int, default 0
        Seed of every random choice. The same seed and data give the same bits.
    engine : str, int, distributed.Client or engine, default "auto"
        What runs passes over the tensor: "auto", "threads", a number of threads, "jax", "gpu", "dask", a client.
    transform : str or transform, optional
        Change of variable before the fit, undone in estimates and bounds: "log", "box-cox", "standardise",
        "standardise:AXIS", or an object with ``fit``.
    climatology : str, optional
        Name of the axis whose mean is removed before the fit and added again.
    bounds : (float or None, float or None), optional
        Smallest and largest possible value of the data, in its unit; estimates and intervals stay inside.

    Raises
    ------
    ValueError, TypeError
        If an option has a value that is not allowed.

    See Also
    --------
    corten.complete : The same options in one call; its page says when to change each of them.

    Notes
    -----
    The method is Algorithm CTC of the paper.

    Examples
    --------
    >>> completer = ConformalCompleter(completion="tucker", calibration="random", seed=1)
    >>> fitted = completer.fit(x)                        # doctest: +SKIP
    >>> print(fitted.intervals(0.9).summary())           # doctest: +SKIP
    """

    completion: CompletionName | Completion | FillFunction = "auto"
    propensity: PropensityName | PropensityModel = "auto"
    calibration: CalibrationName | Calibration = "auto"
    score: ScoreName | Score = "absolute"
    weights: WeightsName = "exact"
    seed: int = 0
    engine: EngineName | int | Engine | Client = "auto"
    transform: str | Transform | None = None
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
        x: ArrayLike | pd.DataFrame | xr.DataArray | ObservedTensor,
        *,
        where: ArrayLike | xr.DataArray | None = None,
        periodic: Sequence[str | int] = (),
        axis_kinds: Mapping[str | int, AxisKind] | None = None,
        missing_value: MissingValue = None,
        fill_never_observed: bool = False,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
        coverage: float | None = None,
    ) -> Fitted:
        """Fit the completion, the propensity model and the calibration to one tensor.

        Parameters
        ----------
        x : array with NaN, masked array, pandas.DataFrame, xarray.DataArray or ObservedTensor
            The tensor, with two or more axes; a DataFrame is a wide table.
        where : boolean array or xarray.DataArray, optional
            The domain: True where an entry could be observed. Default: everywhere.
        periodic : sequence of str or int, default ()
            Axes whose last position is next to the first, by name or position.
        axis_kinds : mapping from axis to {"ordered", "unordered"}, optional
            Whether neighbouring positions of an axis are alike. Default: read from the labels or from the values.
        missing_value : float or sequence of float, optional
            Numbers that stand for a missing value, such as -9999.
        fill_never_observed : bool, default False
            Whether places without any observation are filled even if the variable or a mask suggests that they are
            land. All other such places are always filled.
        progress : function of (str, float), optional
            Called with the name of a stage and the share of it that is done. If it has an attribute ``predicted``, that
            is called once before the fit with the seconds and the bytes that it will take.
        checkpoint : Checkpoint, optional
            Folder that keeps finished rounds, so that an interrupted fit can be resumed.
        coverage : float, optional
            Nominal coverage that will be asked for. If given, the fit warns before it starts where the calibration
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

        Examples
        --------
        >>> fitted = ConformalCompleter().fit(x, missing_value=-9999)       # doctest: +SKIP
        >>> narrow, wide = fitted.intervals([0.8, 0.95])                     # doctest: +SKIP
        """
        began = perf_counter()
        tell = progress or (lambda stage, share: None)
        tell("reading", 0.0)
        observed = ObservedTensor.of(x, where, periodic=periodic, axis_kinds=axis_kinds, missing_value=missing_value)
        observed = skip_never_observed(observed, fill=fill_never_observed)
        if observed.complete:
            return Fitted(observed, np.array(observed.values), self._settings(describe(self.engine)))
        # An engine that is not available is reported before any work is done.
        settings = self._settings(as_engine(self.engine).label)
        tell("planning", 0.0)
        calibration, chosen = as_calibration(self.calibration).choose(observed, self.seed)
        needed = calibration.peak_bytes(observed.values.size, observed.n_missing)
        if hasattr(tell, "predicted"):
            tell.predicted(predicted_seconds(calibration, observed.values.size, observed.n_missing), needed)
        why = "predicted before starting, from the number of entries and rounds"
        memory = Choice("peak memory", f"about {in_words(needed)}", why)
        refuse_beyond(
            needed,
            f"completing {observed.values.size:,} entries",
            "work from disk (corten.complete_to_zarr, or corten complete to .zarr), complete a part of the tensor, or "
            "use calibration='random'",
        )
        mixed = not as_score(self.score).needs_leverage and not takes_lazy(as_engine(self.engine))
        completion = as_completion(self.completion, calibration.pooled, self.engine, mixed)
        task = Task(
            observed=observed,
            completion=completion if checkpoint is None else checkpoint.keeping(completion),
            propensity=None if self.propensity == "auto" else as_propensity(self.propensity),
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
        workers = unused_workers(completion, self.engine)
        return Fitted.of(
            observed,
            outcome,
            check_bounds(self.bounds),
            options=settings,
            calibration=calibration,
            choices=(*observed.choices, *chosen, memory, *workers, *outcome.choices),
            seconds=perf_counter() - began,
            completer=self,
        )

    def _settings(self, engine: str) -> dict[str, Any]:
        """The options as text, with the engine that runs."""
        texts = {one.name: describe(getattr(self, one.name)) for one in fields(self)}
        return texts | {"seed": self.seed, "engine": engine}
