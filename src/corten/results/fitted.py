"""A fitted completer: everything the intervals need, and the arrays they came from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from corten.calibration.local import Local, learn_locally
from corten.calibration.rounds import Plan, Round
from corten.calibration.run import Run
from corten.choices import Choice
from corten.completion.protocol import Fill
from corten.conformal.calibrated import Calibrated
from corten.conformal.scale import LeverageScale, UnitScale
from corten.conformal.scores import Score
from corten.conformal.training_scale import training_scale
from corten.conformal.weights import ExactIsingWeights, OddsWeights, Weights
from corten.lowrank import TensorTrain
from corten.observed import ObservedTensor
from corten.options import circumstances
from corten.propensity import FittedPropensity
from corten.results.intervals import Intervals, check_coverage

if TYPE_CHECKING:
    from corten.evidence.audit import Audit
    from corten.evidence.weight_report import WeightEvidence

__all__ = ["Fitted", "Trace"]

FEW = 50.0  # below this effective size an interval rests on a handful of entries
BEARS_LEAST, BEARS_ALL = 0.9, 0.99  # bearing less is warned of; bearing more needs no mention
WARNED_OF = ("pseudo_gaps_too_short", "integers_rounded")
"""Codes of choices whose sentence the user must read."""


@dataclass(frozen=True)
class Trace:
    """How a fit came about: settings, choices, and when it began."""

    settings: dict[str, Any]
    choices: tuple[Choice, ...] = ()
    began: float = 0.0
    completer: Any = None
    undo: Any = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `ConformalCompleter.fit` gives back: intervals of any coverage, and the evidence behind them.

    completion: the fill the estimate comes from; propensity: the fitted law of the missingness; rounds: which entries
    trained and which were hidden; entries, scores: the hidden entries (flat) and how wrong their estimate was;
    log_weights: what each counts; residuals: truth minus estimate of the hidden entries, in the variable that was
    modelled (`undo` maps it back; merged splits have maps of their own, and residuals in the data's variable);
    completer: what was asked for (None where it could not be saved); local: how pseudo-gaps were calibrated (an audit
    asks it; None for splits, and for a fit that was loaded).
    """

    observed: ObservedTensor
    estimate: np.ndarray = field(repr=False)
    propensity: FittedPropensity | None
    completion: Any = field(repr=False)
    rounds: tuple[Round, ...] = field(repr=False)
    calibrated: Calibrated | None = field(repr=False)
    scores: np.ndarray = field(repr=False)
    scale: Any = field(repr=False)
    choices: tuple[Choice, ...] = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    seconds: float = 0.0
    residuals: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    completer: Any = field(default=None, repr=False)
    middle: np.ndarray | None = field(default=None, repr=False)
    undo: Any = field(default=None, repr=False)
    limits: tuple[float, float] | None = None
    local: Local | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        observed: ObservedTensor,
        changed: ObservedTensor,
        plan: Plan,
        run: Run,
        law: FittedPropensity,
        score: Score,
        weights: str,
        trace: Trace,
    ) -> Fitted:
        """Turn a run's residuals and the law of the missingness into calibrated scores.

        changed: what was observed in the variable that was modelled (after a transform).
        """
        entries = run.entries
        how: Weights
        local = None
        if plan.refit:
            local = learn_locally(run, changed, int(trace.settings["seed"]))
            scale, at_hidden, how = local.scale, local.at_hidden, local.weights
            trace = replace(trace, choices=(*trace.choices, local.choice))
        else:
            scale = scale_of(score, run.final, law, changed.values, plan.rounds[0].train)
            at_hidden, how = scale.at(entries), weights_of(law, observed, entries, weights)
        scores = score.score(run.truth, run.estimate, at_hidden)
        calibrated = Calibrated(score, scores, entries, how)
        settled = cls.settled(
            observed, run.final.estimate, law, run.prepared, plan.rounds, calibrated, scores, scale,
            run.truth - run.estimate, trace,
        )  # fmt: skip
        return replace(settled, local=local)

    @classmethod
    def settled(
        cls,
        observed: ObservedTensor,
        made: np.ndarray,
        law: FittedPropensity,
        prepared: Any,
        rounds: tuple[Round, ...],
        calibrated: Any,
        scores: np.ndarray,
        scale: Any,
        residuals: np.ndarray,
        trace: Trace,
    ) -> Fitted:
        """Put a fit together; `made` is the estimate in the variable that was modelled."""
        made = np.ascontiguousarray(made)  # entries are flat indices in C order, whatever order a completion chose
        estimate, middle = made, None
        if trace.undo is not None:
            estimate, middle = trace.undo.backward(made), made
        if trace.limits is not None:
            middle = made
            estimate = np.clip(estimate, *trace.limits)
        return cls(
            observed, estimate, law, prepared, rounds, calibrated, scores, scale,
            trace.choices, trace.settings, perf_counter() - trace.began, residuals, trace.completer,
            middle, trace.undo, trace.limits,
        )  # fmt: skip

    @classmethod
    def nothing_to_fill(cls, observed: ObservedTensor, settings: dict[str, Any]) -> Fitted:
        """A tensor without gaps: every interval has zero width."""
        return cls(observed, np.array(observed.values), None, None, (), None, np.empty(0), UnitScale(), (), settings)

    @overload
    def intervals(
        self, coverage: float = 0.9, *, odds_error: float = 1.0, groups: Any = None, joint: Any = None
    ) -> Intervals: ...
    @overload
    def intervals(
        self, coverage: Sequence[float], *, odds_error: float = 1.0, groups: Any = None, joint: Any = None
    ) -> list[Intervals]: ...
    def intervals(
        self, coverage: float | Sequence[float] = 0.9, *, odds_error: float = 1.0, groups: Any = None, joint: Any = None
    ) -> Intervals | list[Intervals]:
        """Intervals of one coverage, or a list of them for several; nothing is fitted again.

        odds_error: keep the coverage for any odds within this factor of the fitted ones; groups: cover within each
        slice of an axis, or within labels of one's own; joint: hold each slice of an axis whole.
        """
        source = self
        if odds_error != 1.0 or groups is not None or joint is not None:
            from corten.results.predictive import reshaped

            source = reshaped(self, odds_error, groups, joint)
        if isinstance(coverage, list | tuple | np.ndarray):
            return [Intervals(source, check_coverage(c)) for c in coverage]
        return Intervals(source, check_coverage(coverage))

    @cached_property
    def entries(self) -> np.ndarray:
        """Flat indices of the calibration entries, in the order of `scores`."""
        return self.calibrated.entries if self.calibrated is not None else np.empty(0, np.intp)

    @cached_property
    def log_weights(self) -> np.ndarray:
        """Log-weights of the calibration entries, in the order of `scores`; only differences matter."""
        return self.calibrated.weights.log_weight(self.entries) if self.calibrated is not None else np.empty(0)

    @cached_property
    def missing_entries(self) -> np.ndarray:
        """Flat indices of the filled entries."""
        return np.flatnonzero(self.observed.missing)

    @cached_property
    def probabilities(self) -> np.ndarray | None:
        """Probability of each entry being observed, given all others; None where nothing was fitted."""
        return self.propensity.probability(self.observed.mask) if self.propensity is not None else None

    def bounds(self, coverage: float, entries: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds: full arrays, valid at the missing entries, or those of some flat `entries` only.

        The only place where bounds are computed, with the transform undone and the limits of the data applied.
        """
        full = np.array(self.estimate if self.middle is None else self.middle, np.float64, order="C")
        where = self.missing_entries if entries is None else entries
        middle = full.reshape(-1)[where]
        ends = (middle, middle)
        if self.calibrated is not None:
            low, high = self.calibrated.intervals(where, middle, self.scale.at(where), coverage)
            ends = (low[0], high[0])
        found = [self._in_data_units(full, where, end) for end in ends]
        return (found[0], found[1]) if entries is None else (found[0].reshape(-1)[where], found[1].reshape(-1)[where])

    def _in_data_units(self, full: np.ndarray, entries: np.ndarray, values: np.ndarray) -> np.ndarray:
        """A full array in the variable of the data, with `values` of the modelled variable at some flat entries."""
        full = full.copy()
        full.reshape(-1)[entries] = values
        if self.undo is not None:
            full = self.undo.backward(full)
        return full if self.limits is None else np.clip(full, *self.limits)

    def propensity_array(self) -> np.ndarray | None:
        return self.probabilities

    def facts(self, coverage: float) -> dict[str, Any]:
        """Numbers for the summary."""
        if self.calibrated is None:
            return {}
        facts = {
            "calibration_entries": len(self.scores),
            "effective_sample_size": self.calibrated.effective_sample_size(),
            "seconds": round(self.seconds, 2),
        }
        if self.bearable < BEARS_ALL:
            facts["highest_finite_coverage"] = round(self.bearable, 4)
        return facts

    @cached_property
    def bearable(self) -> float:
        """The highest coverage at which 99 % of the intervals are finite: what the weights can bear.

        Each missing entry competes with the calibration entries by its weight; neighbours' factors are left out.
        """
        weights = getattr(self.calibrated, "weights", None)
        if self.calibrated is None or weights is None or not len(self.missing_entries) or not len(self.entries):
            return 1.0
        known, asked = self.log_weights, weights.log_weight(self.missing_entries).astype(np.float64)
        top = float(known.max(initial=-np.inf))
        if not np.isfinite(top):
            return 0.0
        total = top + np.log(np.exp(known - top).sum())
        share = 1.0 / (1.0 + np.exp(np.clip(asked - total, -700, 700)))
        finite = float(np.quantile(share, 0.01))
        # A score with two tails needs (1 + c) / 2 of the weight.
        return finite if self.calibrated.score.tails(0.5).lower is None else max(0.0, 2 * finite - 1)

    def warnings(self) -> list[str]:
        """What the user must know, in whole sentences."""
        if self.calibrated is None:
            return []
        said = [choice.because for choice in self.choices if choice.code in WARNED_OF]
        size, count = self.calibrated.effective_sample_size(), len(self.scores)
        if size >= FEW and self.bearable >= BEARS_LEAST:
            return said
        tried = any(choice.code == "no_candidate_with_enough_weight" for choice in self.choices)
        none = ", and no model of the missingness that was tried has weights worth more" if tried else ""
        return [
            *said,
            f"The weights of the {count} calibration entries are worth {size:.0f} equal ones{none}: intervals rest on "
            f"few entries, and only up to a coverage of {self.bearable:.3g} are 99% of them finite. Ask for no more "
            "than that"
            + (
                ", or hide more often: calibration=corten.GapShaped(rounds=48)."
                if self.rounds and self.rounds[0].train_share is None
                else ", or use calibration='gaps', whose intervals are finite inside gaps and are checked by an audit, "
                "or a weaker model of the missingness (propensity='bernoulli')."
            )
        ]

    def audit(self, rounds: int = 20, **options: Any) -> Audit:
        """Hide observed entries again, run without them, count how often intervals hold; see `evidence.audit`."""
        from corten.evidence.audit import audit

        return audit(self, rounds, **options)

    @property
    def weights(self) -> WeightEvidence:
        """What stands behind the weights: `fitted.weights.report()`."""
        from corten.evidence.weight_report import WeightEvidence

        return WeightEvidence(self)

    def settings(self) -> dict[str, Any]:
        """Seed, options, what the axes mean, and versions: what it takes to run this again."""
        return self.options | circumstances(self.observed.axes, int(np.count_nonzero(~self.observed.inside)))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write this fit to one file, without pickle; `corten.load` gives it back with the same bits."""
        from corten.saving import save

        return save(self, path, overwrite=overwrite)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.observed.shape))
        return f"<Fitted {shape}: {self.observed.n_missing} missing, {len(self.scores)} calibration entries>"

    def _repr_html_(self) -> str:
        return self.intervals(0.9)._repr_html_()


def scale_of(score: Score, fill: Fill, law: FittedPropensity, values: np.ndarray, train: np.ndarray) -> Any:
    """The scale a score asks for; whatever it is learned from, it is training entries only."""
    if getattr(score, "learns_scale", False):
        entries = np.flatnonzero(train)
        errors = values.reshape(-1)[entries] - fill.estimate.reshape(-1)[entries]
        parameter = law.parameter.to_dense() if isinstance(law.parameter, TensorTrain) else law.parameter
        return training_scale(errors, entries, np.broadcast_to(parameter, train.shape), train.shape)
    if not score.needs_leverage:
        return UnitScale()
    if fill.leverage is None:
        raise ValueError(
            f"score {score.name!r} needs a completion that knows its leverage (Tucker, tensor train, CP); "
            "use score='absolute'"
        )
    return LeverageScale(fill.leverage())


def weights_of(law: FittedPropensity, observed: ObservedTensor, entries: np.ndarray, how: str) -> Weights:
    """Odds of being missing, neighbours read from the full mask; exact where they matter and it is asked for."""
    odds = law.log_weights(observed.mask)
    if how == "approximate" or law.independent:
        return OddsWeights(odds)
    return ExactIsingWeights(odds, shape=observed.shape, calibration=entries, neighbours=law.neighbours, pair=law.pair)
