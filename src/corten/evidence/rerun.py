"""Runs a fitted pipeline again on fewer entries: same settings, same odds, nothing chosen anew.

A split is drawn anew. Pseudo-gaps keep the calibration that the fit has: how widely a scale learned from them opens
an interval is a matter of the very fit, and another one, learned from fewer, says nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corten.calibration.hiding import Hiding
from corten.completion.protocol import Prepared
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import TableScale
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.data.observed import ObservedTensor
from corten.data.transform import as_transform
from corten.propensity import FittedPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

__all__ = ["as_if_missing", "bounds_at", "rerun", "with_method"]


LOADED = (
    "this fit does not know its method (a file keeps the answers and not code of your own; a calibration of your own "
    "without refit is not known here): fit again to audit it"
)
SAME = 1e-3  # of the spread of the estimate: other machines and engines differ by less


def with_method(fitted: Fitted) -> Fitted:
    """The fit itself, or, of one that was loaded, the same fit made again from its data, options and seed.

    What a saved fit leaves out (the prepared completion, the learned scale) comes back by fitting again.
    """
    if hasattr(fitted.completion, "fill") or fitted.completer is None:
        return fitted
    again: Fitted = fitted.completer.fit(fitted.observed)
    apart = float(np.nanmax(np.abs(again.estimate - fitted.estimate), initial=0.0))
    if apart > SAME * float(np.nanstd(fitted.estimate)):
        raise ValueError(
            f"fitting again gave estimates that differ from the saved ones by up to {apart:.3g}, so an audit would not "
            f"be one of the saved fit: it was made by corten {fitted.settings().get('corten')} or on other hardware"
        )
    return again


@dataclass(frozen=True, eq=False)
class _Settled:
    """A completion whose settings were chosen before; fills start cold, as a warm start would remember what is
    hidden now.
    """

    prepared: Prepared

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> Prepared:
        return self.prepared


@dataclass(frozen=True)
class _Table(FittedPropensity):
    """A law that answers from a table: the odds the first fit gave to every entry, corrected for what was hidden
    on purpose.

    The entries hidden now were observed then, so the neighbours of the first mask are those of exact weights.
    """

    table: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def independent(self) -> bool:
        return True

    def log_odds(self, mask: np.ndarray) -> np.ndarray:
        return self.table


@dataclass(frozen=True, eq=False)
class _Given:
    """A model of the missingness that is not fitted again."""

    law: FittedPropensity

    def fit(self, training_mask: np.ndarray, train_share: float = 0.7, **options: Any) -> FittedPropensity:
        return self.law


def rerun(fitted: Fitted, hiding: Hiding, own_log_odds: NDArray[np.floating], inner_rounds: int, seed: int) -> Fitted:
    """Fit again without the hidden entries: ranks, scales and the law of the missingness stay, splits are drawn
    anew.

    A calibration entry s is kept by the hiding with a chance k_s, so its weight is divided by k_s: what is left
    stands for the missing entries as well as the whole did.
    """
    completer = fitted.completer
    if completer is None or not hasattr(fitted.completion, "fill"):
        raise ValueError(LOADED)
    left = _without(fitted.observed, hiding)
    law = fitted.propensity
    assert law is not None
    known = {one.name: getattr(law, one.name) for one in fields(FittedPropensity)}
    table = _Table(**known, table=np.asarray(own_log_odds + hiding.log_kept, np.float32))
    return replace(
        completer,
        completion=_Settled(fitted.completion),
        propensity=_Given(table),
        calibration=_alike(fitted.calibration, inner_rounds, hiding.hidden.sum() / fitted.observed.n_observed),
        seed=seed,
    ).fit(left)


def as_if_missing(fitted: Fitted, hiding: Hiding) -> Fitted | None:
    """The intervals that a fit with pseudo-gaps gives to the hidden entries, had they been missing.

    One transform and one fill without them; their scale from models that never saw their blocks; cutoffs from the
    scores of all other entries. Entries that are missing by nature get no meaningful interval here. None where no
    score is left.
    """
    known = fitted.calibrated
    if not isinstance(known, CalibratedSplit) or known.local is None or not hasattr(fitted.completion, "fill"):
        raise ValueError(LOADED)
    left = _without(fitted.observed, hiding)
    change, undo, values = as_transform(fitted.completer.transform, fitted.completer.climatology), None, left.values
    if change is not None:
        # Learned anew: what is usual at a cell, say, was learned from the entries that are hidden now.
        undo = change.fit(left.values, left.mask, left.axes)
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
    made = np.ascontiguousarray(fill.estimate)
    split = CalibratedSplit(scored, made, TableScale(scale), undo, fitted.propensity)
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


def _alike(calibration: Any, rounds: int, hidden_share: float) -> Any:
    """The same calibration with fewer pooled rounds, or with as many training entries as the first fit had.

    With fewer of them every error would be larger and the errors of easy and hard entries more alike: an audit of
    wrong weights would look too kind.
    """
    names = {one.name for one in fields(calibration)} if is_dataclass(calibration) else set()
    if "rounds" in names:
        return replace(calibration, rounds=rounds)  # type: ignore[type-var]
    if "train_share" in names:
        return replace(calibration, train_share=min(0.9, calibration.train_share / (1.0 - hidden_share)))
    return calibration


def bounds_at(fitted: Fitted, entries: NDArray[np.intp], levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the intervals of some missing entries at several levels, (levels, entries)."""
    ends = [fitted.bounds(level, entries) for level in levels]
    return np.stack([pair[0] for pair in ends]), np.stack([pair[1] for pair in ends])
