"""A fit used every day: fill new data with it, and move it along an axis."""

from __future__ import annotations

import warnings
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from corten.calibration.gap_scale import reach
from corten.calibration.gaps import ROUNDS
from corten.calibration.renewal import Settled, fill_gaps, fill_split, renew
from corten.calibration.task import Progress, Task
from corten.completion.protocol import Prepared, on_axes
from corten.conformal.scores import Absolute, Signed
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.data.matching import fresh_slices, joined, matching, moving_axis
from corten.data.missing_values import MissingValue
from corten.data.observed import DomainLike, ObservedTensor, TensorLike
from corten.data.transform import as_transform
from corten.engine.threads import one_library_thread
from corten.results.groups import refuse_carried
from corten.results.saving import SavedCompletion

if TYPE_CHECKING:
    from corten.results.fitted import Fitted
    from corten.results.intervals import Intervals

RENEWED = ("filled_by_a_fit", "renewed", "slices_not_tested")  # codes of the records of this module


def fill(
    fitted: Fitted,
    x: TensorLike,
    coverage: float = 0.9,
    *,
    where: DomainLike = None,
    missing_value: MissingValue = None,
    rounds: int = 0,
) -> Intervals:
    """Fill new data with the settings, mix, learned scale and calibration of this fit.

    Nothing is chosen or fitted again, which takes a small share of the time of a fit. The coverage holds if errors
    of the new data are like those of the fit; check it with `verify`.

    Parameters
    ----------
    x : array with NaN, masked array, xarray.DataArray or ObservedTensor
        New data on the same axes, in the same unit. Along one ordered axis (the time, if there is one) the
        positions may be others, with the same step, and more or fewer.
    where : boolean array or xarray.DataArray, optional
        The domain of the new data. Default: that of the fit; everywhere if that varies along an axis whose
        positions are others.
    coverage, missing_value
        As for `corten.complete`.
    rounds : int, default 0
        Rounds of pseudo-gaps in the slices that the fit does not have, after ``calibration="gaps"``. They measure
        how large errors are there, relative to the scale of the fit, and the scale is multiplied by that ratio. Use
        2 or more if the noise may have changed; each takes as long as a fill.

    Returns
    -------
    Intervals
        ``result.source`` is a fit that gives other coverages. It is a ValueError if axes, unit or grid differ from
        those of the fit, or the fit cannot fill new data (merged splits; a loaded fit with a completion of your
        own), and a UserWarning if the new values lie outside the range of those of the fit.
    """
    began = perf_counter()
    split, completion = _usable(fitted)
    if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer) or rounds < 0:
        raise ValueError(f"rounds is {rounds!r}; give a whole number of rounds, 0 for none")
    if rounds and (split.local is None or not isinstance(split.score, Absolute | Signed)):
        raise ValueError("rounds in new data need a fit with calibration='gaps' and a score of corten: give rounds=0")
    fit = fitted.observed
    new = matching(fit, x, where=where, missing_value=missing_value)
    _warn_of_range(fit, new)
    base = replace(
        fitted, observed=new, propensity=None, rounds=(), carried=True, choices=(*new.choices, *_of_method(fitted))
    )
    if new.complete:
        made_whole = replace(base, estimate=np.array(new.values), calibrated=None, residuals=np.empty(0), choices=())
        return made_whole.intervals(coverage)
    ratio, seed = 1.0, int(fitted.options["seed"])
    with one_library_thread:
        if split.local is not None:
            fresh = fresh_slices(fit, new) if rounds else np.zeros(new.shape, bool)
            made, ratio = fill_gaps(split, completion, observed=new, fresh=fresh, count=int(rounds), seed=seed)
        else:
            refuse_carried(fitted, "fill")
            share = fitted.rounds[0].train_share if fitted.rounds else None
            made = fill_split(split, completion, observed=new, train_share=share or 1.0, seed=seed)
    because = "nothing was chosen again (fitted.fill)"
    if ratio != 1.0:
        because += f"; the scale of errors in new slices is multiplied by {ratio:.3g}, from pseudo-gaps there"
    note = Choice("settings", "of an earlier fit", because, code="filled_by_a_fit", values={"ratio_of_errors": ratio})
    return _with(base, made, (note,), began).intervals(coverage)


def update(
    fitted: Fitted,
    x: TensorLike,
    *,
    axis: str | int | None = None,
    window: int | None = None,
    half_life: float | None = None,
    where: DomainLike = None,
    missing_value: MissingValue = None,
    progress: Progress | None = None,
) -> Fitted:
    """Append new slices, or replace revised ones, and calibrate again with the settings of this fit.

    Pseudo-gaps are scored in the new slices only. Scores of older slices are kept with a smaller weight until the
    slice leaves the window.

    Parameters
    ----------
    x : array with NaN, masked array, xarray.DataArray or ObservedTensor
        New slices along one ordered axis; slices with a coordinate that the fit has replace those of the fit,
        and change nothing if they are the same. Without coordinates all are appended.
    axis : str or int, optional
        The axis along which slices are added. Default: the time, or the only axis that can grow.
    window : int, optional
        How many of the last slices are kept. Default: as many as the fit has.
    half_life : float, optional
        Age in slices at which a score has half the weight of one of the last slice. Default: half the window.
    where, missing_value
        As for `fill`.
    progress : function of (str, float), optional
        Called with the name of a stage and the share of it that is done.

    Returns
    -------
    Fitted
        The fit of the window. This fit is not changed. It is a ValueError if the slices do not fit the axes of the
        fit, or the fit was not calibrated with pseudo-gaps.
    """
    began = perf_counter()
    split, completion = _usable(fitted)
    refuse_carried(fitted, "update")
    if split.local is None:
        raise ValueError("only a fit with calibration='gaps' can be updated: fit the new data, or use that calibration")
    if fitted.completer is None:
        raise ValueError("this fit was loaded and has a transform or score of your own, which a file does not keep")
    fit = fitted.observed
    new = matching(fit, x, where=where, missing_value=missing_value, least=1)
    along = moving_axis(fit, new, axis)
    length = fit.shape[along] if window is None else window
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 2:
        raise ValueError(f"window is {window!r}; give a whole number of slices, 2 or more")
    decay = length / 2 if half_life is None else float(half_life)
    if not decay > 0:
        raise ValueError(f"half_life is {half_life!r}; give a positive number of slices")
    _warn_of_range(fit, new)
    moved = joined(fit, new, along, length)
    completer = fitted.completer
    task = Task(
        observed=moved.observed,
        completion=Settled(completion),
        propensity=None,
        score=split.score,
        transform=as_transform(completer.transform, completer.climatology),
        seed=int(fitted.options["seed"]),
        tell=progress or (lambda stage, share: None),
    )
    rounds = int(getattr(fitted.calibration, "rounds", None) or ROUNDS)
    with one_library_thread:
        made = renew(split, fitted.residuals, task=task, window=moved, axis=along, rounds=rounds, half_life=decay)
    name = fit.axes[along].name
    because = (
        f"{len(made.rounds)} rounds of pseudo-gaps in {int(moved.fresh.sum())} new of {len(moved.fresh)} slices along "
        f"{name}; a score loses half its weight in {decay:g} slices"
    )
    base = replace(
        fitted, observed=moved.observed, propensity=None, rounds=made.rounds, residuals=made.residuals,
        completion=on_axes(completion, moved.observed.axes), choices=_of_method(fitted),
    )  # fmt: skip
    if not moved.fresh.any():
        because = f"no slice is new; a score loses half its weight in {decay:g} slices along {name}"
    note = Choice("calibration", "renewed", because, code="renewed", values={"rounds": len(made.rounds)})
    return _with(base, made.calibrated, (note,), began)


def _usable(fitted: Fitted) -> tuple[CalibratedSplit, Prepared]:
    """The calibration and the completion of a fit that can be used for new data."""
    if fitted.calibrated is None:
        raise ValueError("nothing was missing in the data of this fit, so that nothing was fitted: fit the new data")
    if not isinstance(fitted.calibrated, CalibratedSplit):
        raise ValueError("merged splits cannot fill new data: fit with calibration='gaps' or calibration='random'")
    if fitted.completion is None or isinstance(fitted.completion, SavedCompletion):
        raise ValueError("this fit was loaded, and a file does not keep a completion of your own: fit again")
    if fitted.observed.covariates:
        raise ValueError(
            f"the fit uses covariates ({', '.join(fitted.observed.covariates)}), which new data would need too: fit "
            "the new data with their covariates (corten.complete)"
        )
    return fitted.calibrated, fitted.completion


def _of_method(fitted: Fitted) -> tuple[Choice, ...]:
    """The settings of a fit without what was found in its data, and without the memory that it took."""
    return tuple(one for one in fitted.choices if one not in fitted.observed.choices and one.what != "peak memory")


def _with(base: Fitted, split: CalibratedSplit, notes: tuple[Choice, ...], began: float) -> Fitted:
    """A fit with another calibration, its estimate and its settings."""
    estimate = split.data_estimate()
    kept = [one for one in base.choices if not one.code.startswith("pseudo_gaps") and one.code not in RENEWED]
    if split.beyond is not None:
        notes = (*notes, reach(int(np.count_nonzero(split.beyond)), base.observed.n_missing))
    return replace(
        base,
        estimate=estimate if base.limits is None else np.clip(estimate, *base.limits),
        calibrated=split,
        choices=(*kept, *notes),
        seconds=perf_counter() - began,
    )


def _warn_of_range(fit: ObservedTensor, new: ObservedTensor) -> None:
    """Warn of values that suggest another unit."""
    low, high = (float(end(fit.values[fit.mask])) for end in (np.min, np.max))
    middle = float(np.median(new.values[new.mask]))
    if not low <= middle <= high:
        warnings.warn(
            f"Intervals may not cover: the median of the new data is {middle:.4g}, and the values of the fit are "
            f"between {low:.4g} and {high:.4g}. Are the new data in another unit?",
            UserWarning,
            stacklevel=3,
        )
