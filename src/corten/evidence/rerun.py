"""Repeats a fit without some entries, with the same settings and odds.

A split is drawn again. With pseudo-gaps the calibration of the fit is kept: the learned scale belongs to that fit, and
a scale learned from fewer entries would say nothing about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.calibration.hiding import Hiding
from corten.calibration.renewal import Settled
from corten.calibration.task import changed_by, trend_of
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import TableScale
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.data.arrays import Entries, Numbers
from corten.data.observed import ObservedTensor
from corten.data.transform import as_transform
from corten.propensity import FittedPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted


NO_METHOD = (
    "this fit cannot be audited, because its method is unknown (a file does not keep code of your own, and a "
    "calibration of your own cannot be repeated): fit again to audit it"
)
MAX_DIFFERENCE = 1e-3  # between two fits, in standard deviations of the estimate; other machines differ by less


def with_method(fitted: Fitted) -> Fitted:
    """The fit itself or, if it was loaded, the same fit computed again from its data, options and seed.

    A file does not keep a completion with code of the user.
    """
    if hasattr(fitted.completion, "fill") or fitted.completer is None:
        return fitted
    again: Fitted = fitted.completer.fit(fitted.observed)
    apart = float(np.nanmax(np.abs(again.estimate - fitted.estimate), initial=0.0))
    if apart > MAX_DIFFERENCE * float(np.nanstd(fitted.estimate)):
        raise ValueError(
            f"fitting again gave estimates that differ from the saved ones by up to {apart:.3g}, so the audit would be "
            f"of another fit; the fit was saved by corten {fitted.settings().get('corten')}, perhaps on other hardware"
        )
    return again


@dataclass(frozen=True)
class _TablePropensity(FittedPropensity):
    """A propensity model with a table of log-odds: those of the first fit, corrected for the hiding.

    Hidden entries were observed in the first fit, so exact weights use the neighbours of the first mask.
    """

    table: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def independent(self) -> bool:
        return True

    def log_odds(self, mask: np.ndarray) -> np.ndarray:
        return self.table


@dataclass(frozen=True, eq=False)
class _Given:
    """A propensity model that is not fitted again."""

    fitted: FittedPropensity

    def fit(self, training_mask: np.ndarray, train_share: float = 0.7, **options: Any) -> FittedPropensity:
        return self.fitted


def rerun(fitted: Fitted, hiding: Hiding, own_log_odds: Numbers, inner_rounds: int, seed: int) -> Fitted:
    """The fit without the hidden entries: ranks, scales and the propensity model stay, splits are drawn again.

    The hiding keeps a calibration entry s with probability k_s, so its weight is divided by k_s.
    """
    completer = fitted.completer
    if completer is None or not hasattr(fitted.completion, "fill"):
        raise ValueError(NO_METHOD)
    left = _without(fitted.observed, hiding)
    assert fitted.propensity is not None
    known = {one.name: getattr(fitted.propensity, one.name) for one in fields(FittedPropensity)}
    table = _TablePropensity(**known, table=np.asarray(own_log_odds + hiding.log_kept, np.float32))
    return replace(
        completer,
        completion=Settled(fitted.completion),
        propensity=_Given(table),
        calibration=_same_training(fitted.calibration, inner_rounds, hiding.hidden.sum() / fitted.observed.n_observed),
        seed=seed,
    ).fit(left)


def as_if_missing(fitted: Fitted, hiding: Hiding) -> Fitted | None:
    """A fit with pseudo-gaps that treats the hidden entries as missing; None if no score is left.

    The transform and the fill are computed without the hidden entries, their scale comes from models trained without
    their blocks, and cutoffs from the scores of all other entries. The intervals are meaningful at the hidden entries
    only.
    """
    known = fitted.calibrated
    if not isinstance(known, CalibratedSplit) or known.local is None or not hasattr(fitted.completion, "fill"):
        raise ValueError(NO_METHOD)
    left = _without(fitted.observed, hiding)
    completer, values = fitted.completer, left.values
    # Learned again: the first transform was learned from the hidden entries too.
    transform = as_transform(completer.transform, completer.climatology)
    undo = changed_by(transform, left, left.mask, int(fitted.options["seed"]), trend_of(known.change))
    if undo is not None:
        values = undo.forward(left.values).astype(left.values.dtype)
    fill = fitted.completion.fill(values, left.mask)
    entries = np.flatnonzero(hiding.hidden)
    scale, table = np.ones(values.size), np.zeros(values.size)
    scale[entries], table[entries] = known.local.hidden_again(entries, values, left.mask, fill)
    others = ~hiding.hidden.reshape(-1)[fitted.entries]
    if not others.any():
        return None
    weights = PooledWeights(fitted.entries[others], fitted.log_weights[others], table)
    scored = CalibratedScores(known.score, fitted.scores[others], fitted.entries[others], weights)
    split = CalibratedSplit(scored, np.ascontiguousarray(fill.estimate), TableScale(scale), undo, fitted.propensity)
    estimate = split.data_estimate()
    return replace(
        fitted,
        observed=left,
        estimate=estimate if fitted.limits is None else np.clip(estimate, *fitted.limits),
        calibrated=split,
        residuals=fitted.residuals[others],
    )


def _without(observed: ObservedTensor, hiding: Hiding) -> ObservedTensor:
    values = np.array(observed.values)
    values[hiding.hidden] = np.nan
    return replace(observed, values=values, mask=np.asarray(observed.mask & ~hiding.hidden))


def _same_training(calibration: Any, rounds: int, hidden_share: float) -> Any:
    """The same calibration with fewer rounds of pseudo-gaps, or with as many training entries as the first fit had.

    With fewer training entries all errors would be larger and more alike, and the audit would miss wrong weights.
    """
    names = {one.name for one in fields(calibration)} if is_dataclass(calibration) else set()
    if "rounds" in names:
        return replace(calibration, rounds=rounds)  # type: ignore[type-var]
    if "train_share" in names:
        return replace(calibration, train_share=min(0.9, calibration.train_share / (1.0 - hidden_share)))
    return calibration


def bounds_at(fitted: Fitted, entries: Entries, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of some missing entries at several levels, (levels, entries)."""
    lower, upper = zip(*(fitted.bounds(level, entries) for level in levels))
    return np.stack(lower), np.stack(upper)
