"""Runs a fitted pipeline again on fewer entries: same settings, same odds, nothing chosen anew.

A split is drawn anew. Pseudo-gaps keep the calibration that the fit has: how widely a scale learned from them opens
an interval is a matter of the very fit, and another one, learned from fewer, says nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corten.calibration.hiding import Hiding
from corten.completion.protocol import Prepared
from corten.conformal.calibrated import Calibrated
from corten.conformal.scale import TableScale
from corten.conformal.weights import PooledWeights
from corten.observed import ObservedTensor
from corten.options import as_calibration
from corten.propensity import FittedPropensity
from corten.results.fitted import Fitted, Trace
from corten.transform import as_transform

__all__ = ["as_if_missing", "bounds_at", "rerun"]


LOADED = (
    "this fit does not know its method (a file keeps the answers; a calibration of your own without refit is not known "
    "here): fit again to audit it"
)


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
    calibration, _ = as_calibration(completer.calibration).choose(fitted.observed, completer.seed)
    law = fitted.propensity
    assert law is not None
    known = {one.name: getattr(law, one.name) for one in fields(FittedPropensity)}
    table = _Table(**known, table=np.asarray(own_log_odds + hiding.log_kept, np.float32))
    return replace(
        completer,
        completion=_Settled(fitted.completion),
        propensity=_Given(table),
        calibration=_alike(calibration, inner_rounds, hiding.hidden.sum() / fitted.observed.n_observed),
        seed=seed,
    ).fit(left)


def as_if_missing(fitted: Fitted, hiding: Hiding) -> Fitted | None:
    """The intervals that a fit with pseudo-gaps gives to the hidden entries, had they been missing.

    One transform and one fill without them; their scale from models that never saw their blocks; cutoffs from the
    scores of all other entries. Entries that are missing by nature get no meaningful interval here. None where no
    score is left.
    """
    if fitted.local is None or fitted.calibrated is None or not hasattr(fitted.completion, "fill"):
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
    scale[entries], table[entries] = fitted.local.hidden_again(entries, values, left.mask, fill)
    others = ~hiding.hidden.reshape(-1)[fitted.entries]
    if not others.any():
        return None
    weights = PooledWeights(fitted.entries[others], fitted.log_weights[others], table)
    calibrated = Calibrated(fitted.calibrated.score, fitted.scores[others], fitted.entries[others], weights)
    trace = Trace(fitted.options, fitted.choices, 0.0, fitted.completer, undo, fitted.limits)
    assert fitted.propensity is not None
    return Fitted.settled(
        left, fill.estimate, fitted.propensity, fitted.completion, fitted.rounds, calibrated, calibrated.scores,
        TableScale(scale), fitted.residuals[others], trace,
    )  # fmt: skip


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
