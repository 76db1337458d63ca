"""The experiment behind most tables.

One mask, all laws of the missingness, both noises, and how their intervals covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corten import ObservedTensor, SplitCalibration, TuckerCompletion
from corten.calibration.task import Plan
from corten.completion.protocol import Fill
from corten.conformal import (
    CalibratedScores,
    ExactIsingWeights,
    LeverageScale,
    OddsWeights,
    Scale,
    UnitScale,
    Weights,
    as_score,
)
from studies.cells import Cell, seed_of
from studies.draws import TRAIN_SHARE, data_of, mask_of, parameter_of, split_seed
from studies.estimators import ENGINE, Law, laws, relative_error, weight_error

__all__ = ["LEVELS", "NOISES", "Setting", "conformal", "measure", "settings_of"]

NOISES = ("constant", "adversarial")
LEVELS = tuple(round(0.80 + 0.01 * k, 2) for k in range(20))  # the set Q of eq. coverage-l1-loss
Row = dict[str, Any]


@dataclass(frozen=True)
class SplitFill:
    """A fill from the training entries of a split, and what it says of the calibration entries."""

    entries: np.ndarray
    truth: np.ndarray
    estimate: np.ndarray
    final: Fill

    @staticmethod
    def of(plan: Plan, completion: TuckerCompletion, observed: ObservedTensor, seed: int) -> SplitFill:
        """Complete from the training entries of the first round."""
        one, values = plan.rounds[0], observed.values
        fill = completion.prepare(values, one.train, observed.axes, seed).fill(values, one.train)
        entries = np.flatnonzero(one.hidden)
        truth, estimate = (np.ravel(a)[entries].astype(np.float64) for a in (values, fill.estimate))
        return SplitFill(entries, truth, estimate, fill)


@dataclass(frozen=True)
class Setting:
    """Data of one noise, split and completed: what every law is measured on."""

    noise: str
    observed: ObservedTensor
    plan: Plan
    run: SplitFill
    truth: np.ndarray


def settings_of(
    cell: Cell, parameter: np.ndarray, mask: np.ndarray, signal_rank: int = 3, rank: int = 3
) -> Iterator[Setting]:
    """Both noise regimes under the cell's mask, completed at a Tucker rank; the split is the same in both."""
    for noise in NOISES:
        data = data_of(cell, parameter, noise, signal_rank)
        observed = ObservedTensor.of(np.where(mask, data, np.nan))
        plan = SplitCalibration(TRAIN_SHARE).plan(observed, split_seed(cell))
        run = SplitFill.of(
            plan, TuckerCompletion(rank=rank, engine=ENGINE), observed, seed_of("completion", cell.repetition)
        )
        yield Setting(noise, observed, plan, run, data)


def measure(setting: Setting, law: Law, score: str = "absolute") -> Row:
    """Coverage at the paper's levels, half-widths and the worth of the weights, over all missing entries."""
    kind, run, shape = as_score(score), setting.run, setting.truth.shape
    odds = law.fitted.log_weights(setting.observed.mask)
    weights: Weights = OddsWeights(odds)
    if law.weights == "exact" and not law.fitted.independent:
        near, pair = law.fitted.neighbours, law.fitted.pair
        weights = ExactIsingWeights(odds, shape=shape, calibration=run.entries, neighbours=near, pair=pair)
    leverage = run.final.leverage if kind.needs_leverage else None
    scale: Scale = LeverageScale(leverage()) if leverage is not None else UnitScale()
    scores = kind.score(run.truth.astype(float), run.estimate.astype(float), scale.at(run.entries))
    calibrated = CalibratedScores(kind, scores, run.entries, weights)
    where = np.flatnonzero(~setting.observed.mask)
    truth = setting.truth.reshape(-1)[where]
    estimate = run.final.estimate.reshape(-1)[where]
    lower, upper = calibrated.intervals(where, estimate, scale.at(where), LEVELS)
    reached = ((lower <= truth) & (truth <= upper)).mean(axis=1)
    width = upper[LEVELS.index(0.9)] - lower[LEVELS.index(0.9)]
    finite = np.isfinite(width)
    return {
        "noise": setting.noise,
        "method": law.name,
        "score": score,
        "miscoverage": 100 * float(np.abs(reached - np.array(LEVELS)).mean()),
        "coverage90": 100 * float(reached[LEVELS.index(0.9)]),
        "coverage95": 100 * float(reached[LEVELS.index(0.95)]),
        "half_width90": 0.5 * float(width[finite].mean()) if finite.any() else float("nan"),
        "infinite90": 100 * float(1 - finite.mean()),
        "effective_size": calibrated.effective_sample_size(),
    }


def conformal(cell: Cell, folder: Path | None) -> list[Row]:
    """Rows of one cell: a law, a noise, a score each."""
    parameter, mask = parameter_of(cell), mask_of(cell, folder)
    rows: list[Row] = []
    found: list[Law] | None = None
    for setting in settings_of(cell, parameter, mask):
        if found is None:
            found = laws(cell, parameter, setting.plan.rounds[0].train)
            facts = {law.name: _facts(cell, law, found[1], parameter, setting) for law in found}
        for law in found:
            scores = (
                ("absolute", "normalized", "signed")
                if law.name in ("plain", "default") and cell.get("scores")
                else ("absolute",)
            )
            rows.extend({**measure(setting, law, score), **facts[law.name]} for score in scores)
    return rows


def _facts(cell: Cell, law: Law, oracle: Law, parameter: np.ndarray, setting: Setting) -> Row:
    """What does not depend on the data: error of B, chosen rank, error of the weights, seconds."""
    fitted = law.name not in ("unweighted", "oracle")
    mask = setting.observed.mask
    delta = weight_error(
        law.fitted.log_weights(mask),
        oracle.fitted.log_weights(mask),
        np.flatnonzero(setting.plan.rounds[0].hidden),
        np.flatnonzero(~mask),
        seed_of("delta", cell.repetition),
    )
    return {
        "relative_error": relative_error(law.fitted, parameter) if fitted else float("nan"),
        "chosen_rank": law.rank,
        "weight_error": delta,
        "seconds": law.seconds,
    }
