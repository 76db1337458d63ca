"""`complete` and `complete_table`: the whole method in one call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from corten import options
from corten.calibration.gaps import GapCalibration
from corten.calibration.task import Progress
from corten.checkpoint import Checkpoint
from corten.completer import ConformalCompleter
from corten.data.axes import AxisKind
from corten.data.covariates import Covariates
from corten.data.coverage import check_coverage
from corten.data.missing_values import MissingValue
from corten.data.observed import DomainLike, TensorLike
from corten.data.transform import Transform
from corten.engine.lazy import behind
from corten.engine.memory import available
from corten.io import from_table
from corten.results.intervals import Intervals
from corten.results.progress import as_progress

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def complete(
    x: TensorLike | xr.Dataset,
    coverage: float = 0.9,
    *,
    completion: options.CompletionOption = "auto",
    propensity: options.PropensityOption = "auto",
    calibration: options.CalibrationOption = "auto",
    score: options.ScoreOption = "auto",
    weights: options.WeightsName = "exact",
    seed: int = 0,
    engine: options.EngineOption = "auto",
    transform: str | Transform | None = None,
    climatology: str | None = None,
    bounds: options.Bounds = None,
    where: DomainLike = None,
    covariates: Covariates | None = None,
    periodic: Sequence[str | int] = (),
    axis_kinds: Mapping[str | int, AxisKind] | None = None,
    missing_value: MissingValue = None,
    fill_never_observed: bool = False,
    progress: Progress | bool | None = None,
    checkpoint: Checkpoint | None = None,
) -> Intervals:
    """Estimate the missing entries of a tensor, with a prediction interval for each.

    Parameters
    ----------
    x : array with NaN, masked array, pandas.DataFrame, xarray.DataArray, xarray.Dataset or ObservedTensor
        The tensor, with two or more axes; missing entries are NaN or masked. A DataFrame (or a polars or pyarrow table,
        whose first column labels the rows if it has dates or text) is a wide table, such as times in rows and stations
        in columns; for a long one see `complete_table`. Every variable of a Dataset with gaps is filled by itself.
    coverage : float, default 0.9
        Nominal coverage: the probability that an interval contains the value. `Intervals.at` gives others without a new
        fit.
    completion : str, completion or function, default "auto"
        The method that estimates missing entries.

        - "auto": the stack where gaps are calibrated by pseudo-gaps, else the stack with "tucker" as a member; "tucker"
          alone for very large tensors, or fewer than 12 training entries.
        - "tucker", "tensor-train": low-rank completions, for tensors whose axes have no order or long-range structure.
        - "smooth", "gaussian-process": for fields that vary slowly along ordered axes.
        - "stack": several methods, combined with weights learned from hidden entries.
        - an object with ``prepare(values, mask, axes, seed)``, or a function from an array with NaN to a full array.
    propensity : str or propensity model, default "auto"
        The model of the probability of being observed, which gives the weights of the calibration entries.

        - "auto": the simplest of the models below that no richer one clearly beats, by held-out loss.
        - "constant" (also "uniform"): the same probability everywhere. Use it if entries are missing at random.
        - "additive": one effect per position of each axis.
        - "bernoulli": independent entries with a low-rank parameter.
        - "ising": as "bernoulli", and neighbours depend on each other.
        - an object with ``fit(training_mask, train_share)``.
    calibration : str or calibration, default "auto"
        Which observed entries are hidden to measure the error of the completion.

        - "auto": "gaps" where many missing entries lie deeper inside gaps than random hiding reaches, else "random".
        - "random": a random share, once. This is the method of the paper, with its guarantee.
        - "cross": every observed entry is hidden once, in folds. Use it where few entries are observed.
        - "gaps": pseudo-gaps, shaped like the real gaps. Check such a fit with `Fitted.audit`.
        - an object with ``calibrate(task)``, such as ``corten.GapCalibration(rounds=48)``.
    score : str or score, default "auto"
        How the error of a calibration entry is measured.

        - "auto": with pseudo-gaps "signed" where it clearly improves the CRPS of hidden entries, else "absolute".
        - "absolute": the absolute error. Intervals are symmetric and equally wide.
        - "adaptive": the absolute error over a learned scale. Use it where the noise differs between entries.
        - "signed": the signed error. Lower and upper bounds are calibrated apart; use it where errors are skewed.
        - "normalized": the absolute error over the uncertainty that the low-rank model gives to an entry.
        - an object with ``score``, ``tails`` and ``invert``.
    weights : {"exact", "approximate"}, default "exact"
        "exact" recomputes the weights of an Ising model for every missing entry; "approximate" uses the same weights
        for all of them, as the paper does, and is faster. Without an Ising model both are equal.
    seed : int, default 0
        Seed of every random choice. The same seed and data give the same bits.
    engine : str, int, distributed.Client or engine, default "auto"
        What runs passes over the tensor: "auto" or "threads" (all cores), a number of threads, "jax", "gpu" (JAX, and
        an error without a GPU), "dask", or the client of a Dask cluster. It changes the speed, not the result beyond
        rounding.
    transform : str or transform, optional
        Change of variable before the fit, undone exactly in estimates and bounds: "log" or "box-cox" for positive
        skewed values, "standardise" or "standardise:AXIS" for slices of different size, or an object with
        ``fit(values, mask, axes)``. Default: none.
    climatology : str, optional
        Name of an axis (days, years). The mean over it is removed before the fit and added again. Default: none.
    bounds : (float or None, float or None), optional
        Smallest and largest possible value of the data, in its unit, such as ``(0, None)``. Estimates and intervals
        stay inside. Default: no bounds.
    where : boolean array or xarray.DataArray, optional
        The domain: True where an entry could be observed. Entries outside (land in a field of the sea) are not filled.
        Default: everywhere.
    covariates : mapping from str to array, or xarray.Dataset, optional
        Other arrays by name that help to explain x: elevation, a climatology, a model field, another variable.
        DataArrays are matched to x by axis names; other arrays broadcast to its shape as in NumPy. Their missing values
        are filled. A linear trend in them is removed before the fit and added again, and the learned correction uses
        them; one that does not lower the error of hidden entries is left out. Default: none.
    periodic : sequence of str or int, default ()
        Axes whose last position is next to the first (hour of the day), by name or position. A longitude in degrees
        that covers the full circle is recognised.
    axis_kinds : mapping from axis to {"ordered", "unordered"}, optional
        Whether neighbouring positions of an axis are alike ("ordered": time, latitude) or have no order ("unordered":
        stations). Default: text labels are unordered, other labels ordered; the kind of an axis without labels is
        found from the values and recorded in the summary.
    missing_value : float or sequence of float, optional
        Numbers that stand for a missing value, such as ``-9999`` or ``[-9999, 1e20]``.
    fill_never_observed : bool, default False
        A position that is observed at no time is not filled if it looks like land: a mask among the coordinates marks
        it, the variable is one of the sea (or of land), or it lies in a region with a sharp edge, as that of a coast.
        The summary says what was skipped; True fills it too. With `where` nothing else is left out.
    progress : bool or function of (str, float), optional
        True prints predicted time and memory, then every stage, to standard error. A function is called with the name
        of a stage and the share of it that is done; if it has an attribute ``predicted``, that is called once before
        the fit with the predicted seconds and bytes.
    checkpoint : Checkpoint, optional
        Folder that keeps finished rounds, so that an interrupted fit can be resumed.

    Returns
    -------
    Intervals
        Estimate, lower and upper bound, in the type, shape and labels of x. For a Dask-backed DataArray that does not
        fit in memory the `LazyIntervals` of `complete_lazily`; for a Dataset a `DatasetIntervals`, a mapping from each
        variable to its `Intervals`.

    Raises
    ------
    ValueError, TypeError
        If x or an option cannot be used; the message says what is allowed.
    MemoryError
        If the fit needs more memory than there is. The need is predicted before the fit starts.

    Warns
    -----
    UserWarning
        Before the fit, if the calibration entries are too few for finite intervals at this coverage.

    Notes
    -----
    The intervals cover a new noisy observation, on average over the missing entries, not the noiseless field. The
    method is Algorithm CTC of the paper; calibration by pseudo-gaps is not covered by its theorem.

    Examples
    --------
    >>> import numpy as np, corten
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(20, 1, 1)) * rng.normal(size=(1, 20, 1)) * rng.normal(size=(1, 1, 20))
    >>> x[rng.random(x.shape) < 0.4] = np.nan
    >>> result = corten.complete(x, coverage=0.9, calibration="random", completion="tucker")
    >>> bool(np.isfinite(result.estimate).all())
    True
    """
    check_coverage(coverage)
    if hasattr(x, "data_vars"):
        given = {name: one for name, one in locals().items() if name not in ("x", "coverage")}
        import_module("corten.xarray")  # gives Datasets their accessor, which calls this function
        return cast(Intervals, cast("xr.Dataset", x).corten.complete(coverage, **given))
    completer = ConformalCompleter(
        completion, propensity, calibration, score, weights,
        seed=seed, engine=engine, transform=transform, climatology=climatology, bounds=bounds,
    )  # fmt: skip
    if behind(x) is not x and GapCalibration().peak_bytes(behind(x).size, 0) > available():
        from corten.large.dask_arrays import complete_lazily, refuse_in_tiles

        refuse_in_tiles(completer, checkpoint)
        lazy: object = complete_lazily(
            cast("xr.DataArray", x), coverage, score=score, seed=seed, bounds=bounds, periodic=periodic,
            where=cast("xr.DataArray | None", where), axis_kinds=axis_kinds, missing_value=missing_value,
            progress=as_progress(progress),
        )  # fmt: skip
        return cast(Intervals, lazy)  # not one, but the names that most users need are the same
    fitted = completer.fit(
        x,
        where=where,
        covariates=covariates,
        periodic=periodic,
        axis_kinds=axis_kinds,
        missing_value=missing_value,
        fill_never_observed=fill_never_observed,
        progress=progress,
        checkpoint=checkpoint,
        coverage=coverage,
    )
    return fitted.intervals(coverage)


def complete_table(
    frame: pd.DataFrame,
    coverage: float = 0.9,
    *,
    value: str | None = None,
    coordinates: Sequence[str] | None = None,
    fold: Mapping[str, tuple[str, str]] | None = None,
    axis_kinds: Mapping[str, AxisKind] | None = None,
    missing_value: MissingValue = None,
    completer: ConformalCompleter | None = None,
) -> pd.DataFrame:
    """Estimate the missing values of a long table, with a prediction interval for each.

    Parameters
    ----------
    frame, value, coordinates, fold, axis_kinds, missing_value
        The table and how it is read as a tensor: as for `corten.io.from_table`.
    coverage : float, default 0.9
        Nominal coverage, between 0 and 1.
    completer : ConformalCompleter, optional
        Options other than the defaults.

    Returns
    -------
    pandas.DataFrame
        The table with the columns estimate, lower, upper and flag. Rows for entries that had none are added at the end.

    Warns
    -----
    UserWarning
        If rows have the same coordinates: their mean is used, and all of them get its interval.

    Examples
    --------
    >>> import pandas as pd, corten
    >>> entries = [(x, t) for x in range(8) for t in range(9)]
    >>> frame = pd.DataFrame(entries, columns=["x", "t"])
    >>> frame["value"] = [x + 0.5 * t if (x * 7 + t * 5) % 4 else None for x, t in entries]
    >>> filled = corten.complete_table(frame, completer=corten.ConformalCompleter("smooth", "uniform", "random"))
    >>> list(filled.columns)
    ['x', 't', 'value', 'estimate', 'lower', 'upper', 'flag']
    """
    check_coverage(coverage)
    table = from_table(frame, value, coordinates, axis_kinds=axis_kinds, fold=fold, missing_value=missing_value)
    if table.duplicates:
        warnings.warn(
            f"{table.duplicates} row(s) have the coordinates of another row, and their mean is used: add a column that "
            f"tells them apart to the coordinates ({', '.join(table.coordinates)}), or drop them",
            stacklevel=2,
        )
    kinds: dict[str | int, AxisKind] = {
        name: kind for name, kind in (axis_kinds or {}).items() if name in table.data.dims
    }
    fitted = (completer or ConformalCompleter()).fit(table.data, where=table.where, axis_kinds=kinds)
    filled: pd.DataFrame = table.to_frame(fitted.intervals(coverage))
    return filled
