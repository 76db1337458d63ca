"""The flow for several splits that are merged: each is the paper's split of its own, settings are chosen once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.calibration.rounds import Plan
from corten.choices import Choice
from corten.completion.protocol import Fill
from corten.conformal.calibrated import Calibrated
from corten.conformal.folds import MergedSplits, SplitList
from corten.conformal.scale import LeverageScale, UnitScale
from corten.conformal.scores import Score
from corten.fitted import Fitted, Trace, weights_of
from corten.lowrank import TensorTrain
from corten.observed import ObservedTensor
from corten.propensity import BernoulliPropensity, FittedPropensity, IsingPropensity

if TYPE_CHECKING:
    from corten.completion.protocol import Completion

__all__ = ["fit_merged"]


def fit_merged(
    observed: ObservedTensor,
    changed: ObservedTensor,
    plan: Plan,
    completion: Completion,
    model: Any,
    score: Score,
    weights: str,
    trace: Trace,
    engine: Any,
    tell: Callable[[str, float], None],
) -> Fitted:
    """Complete, model the missingness and calibrate in every split, then merge.

    Ranks and the like are chosen in the first split, from its training entries, and kept. Fills start cold: one
    that starts from a fill which saw the entries now hidden would know them. The estimate is the mean of the
    splits'.
    """
    values, seed = changed.values, int(trace.settings["seed"])
    prepared = completion.prepare(values, plan.rounds[0].train, observed.axes, seed)
    law: FittedPropensity | None = None
    first: FittedPropensity | None = None
    splits: list[SplitList] = []
    residuals: list[np.ndarray] = []
    for number, one in enumerate(plan.rounds):
        tell("completion", number / len(plan.rounds))
        fill = prepared.fill(values, one.train)
        settled = model if law is None else _settled(model, law)
        law = settled.fit(
            one.train, one.train_share or 1.0, domain=observed.domain,
            axis_names=[axis.name for axis in observed.axes],
            periodic=[axis.periodic for axis in observed.axes], engine=engine,
        )  # fmt: skip
        assert law is not None
        first = law if first is None else first
        entries = np.flatnonzero(one.hidden)
        truth = values.reshape(-1)[entries].astype(np.float64)
        middle = fill.estimate.reshape(-1)[entries].astype(np.float64)
        scale = _scale(score, fill)
        scores = np.asarray(score.score(truth, middle, scale.at(entries)))
        calibrated = Calibrated(score, scores, entries, weights_of(law, observed, entries, weights))
        splits.append(SplitList(calibrated, scores, fill.estimate, scale))
        residuals.append(truth - middle)
    tell("completion", 1.0)
    assert first is not None
    estimate = np.mean([one.estimate for one in splits], axis=0)
    choice = Choice("calibration", f"{len(splits)} splits merged", "asked for: the mean of their p-values decides")
    trace = replace(trace, choices=(*trace.choices, choice, *prepared.choices, *first.choices))
    scores = np.concatenate([one.scores for one in splits])
    return Fitted.settled(
        observed, estimate, first, prepared, plan.rounds, MergedSplits(splits), scores, UnitScale(),
        np.concatenate(residuals), trace,
    )  # fmt: skip


def _settled(model: Any, law: FittedPropensity) -> Any:
    """The same model with what the first split chose, starting from its answer."""
    if isinstance(model, IsingPropensity) and isinstance(law.parameter, TensorTrain) and law.rank is not None:
        return replace(model, coupling=law.coupling, rank=law.rank, start=law.parameter)
    if isinstance(model, BernoulliPropensity) and law.rank is not None:
        return replace(model, rank=law.rank)
    return model


def _scale(score: Score, fill: Fill) -> LeverageScale | UnitScale:
    if not score.needs_leverage:
        return UnitScale()
    if fill.leverage is None:
        raise ValueError(f"score {score.name!r} needs a completion that knows its leverage; use score='absolute'")
    return LeverageScale(fill.leverage())
