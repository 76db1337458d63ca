"""The flow for several splits that are merged: each is the paper's split of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.calibration.rounds import Plan
from corten.choices import Choice
from corten.completion.protocol import Prepared
from corten.conformal.calibrated import Calibrated
from corten.conformal.folds import MergedSplits, SplitList
from corten.conformal.scale import UnitScale
from corten.conformal.scores import Score
from corten.observed import ObservedTensor
from corten.propensity import FittedPropensity
from corten.results.fitted import Fitted, Trace, scale_of, weights_of
from corten.transform import FittedTransform

if TYPE_CHECKING:
    from corten.completion.protocol import Completion

__all__ = ["fit_merged"]

Change = Callable[[np.ndarray], tuple[ObservedTensor, FittedTransform | None]]


def fit_merged(
    observed: ObservedTensor,
    change: Change,
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

    Everything that is chosen or learned (ranks, transforms, the law of the missingness) comes from the split's own
    training entries, and every fill starts cold: what another split learned was learned from entries hidden here,
    and would favour them over the missing ones. `change` learns the variable to model from training entries. The
    estimate is the mean of the splits', in the data's own variable, as are the residuals.
    """
    seed = int(trace.settings["seed"])
    splits: list[SplitList] = []
    residuals: list[np.ndarray] = []
    prepared: list[Prepared] = []
    laws: list[FittedPropensity] = []
    for number, one in enumerate(plan.rounds):
        tell("completion", number / len(plan.rounds))
        changed, undo = change(one.train)
        prepared.append(completion.prepare(changed.values, one.train, observed.axes, seed))
        fill = prepared[-1].fill(changed.values, one.train)
        law = model.fit(
            one.train, one.train_share or 1.0, domain=observed.domain,
            axis_names=[axis.name for axis in observed.axes],
            periodic=[axis.periodic for axis in observed.axes], engine=engine,
        )  # fmt: skip
        laws.append(law)
        entries = np.flatnonzero(one.hidden)
        truth = changed.values.reshape(-1)[entries].astype(np.float64)
        middle = fill.estimate.reshape(-1)[entries].astype(np.float64)
        scale = scale_of(score, fill, law, changed.values, one.train)
        scores = np.asarray(score.score(truth, middle, scale.at(entries)))
        calibrated = Calibrated(score, scores, entries, weights_of(law, observed, entries, weights))
        splits.append(SplitList(calibrated, fill.estimate, scale, undo, law))
        own = splits[-1].own(entries, middle)
        residuals.append(observed.values.reshape(-1)[entries].astype(np.float64) - own)
    tell("completion", 1.0)
    estimate = np.mean([one.estimate if one.change is None else one.change.backward(one.estimate) for one in splits], 0)
    because = "asked for: the mean of their p-values decides"
    choice = Choice(
        "calibration", f"{len(splits)} splits merged", because, code="merged_splits", values={"splits": len(splits)}
    )
    chosen = _agreed([(*one.choices, *law.choices) for one, law in zip(prepared, laws)])
    trace = replace(trace, choices=(*trace.choices, choice, *chosen))
    scores = np.concatenate([one.scores for one in splits])
    return Fitted.settled(
        observed, estimate, laws[0], prepared[0], plan.rounds, MergedSplits(splits), scores, UnitScale(),
        np.concatenate(residuals), trace,
    )  # fmt: skip


def _agreed(chosen: Sequence[Sequence[Choice]]) -> list[Choice]:
    """The first split's choices; where others took something else, all that was taken, in the order of the splits."""
    agreed = []
    for one in chosen[0]:
        taken = [other.taken for choices in chosen for other in choices if other.what == one.what]
        if len(set(map(str, taken))) > 1:
            because = f"in the first split: {one.because}; each split chose from its own training entries"
            one = replace(one, taken=", ".join(map(str, taken)), because=because)
        agreed.append(one)
    return agreed
