"""A fitted completer: everything the intervals need, and the arrays they came from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from corten.calibration.task import Outcome, Round
from corten.completion.protocol import Prepared
from corten.conformal.calibrated import Calibrated
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.observed import ObservedTensor
from corten.propensity import FittedPropensity
from corten.results.intervals import Intervals
from corten.results.settings import circumstances

if TYPE_CHECKING:
    from corten.evidence.audit import Audit
    from corten.evidence.weight_report import WeightEvidence

__all__ = ["Fitted"]

MIN_EFFECTIVE_SIZE = 50.0  # below this an interval rests on a handful of entries
FINITE_WARNED, FINITE_MENTIONED = 0.9, 0.99  # highest finite coverages below which it is warned of, or mentioned
WARNED_OF = ("pseudo_gaps_too_short", "integers_rounded")
"""Codes of choices whose sentence the user must read."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `ConformalCompleter.fit` gives back: intervals of any coverage, and the evidence behind them.

    estimate: the filled values, in the data's variable; calibrated: scores of the calibration entries and their
    weights, which answer intervals (None where nothing was missing); propensity: the fitted model of the missingness;
    completion: the prepared completion; calibration: how entries were hidden; rounds: which entries trained and which
    were hidden; residuals: truth minus estimate of the calibration entries, in the variable that was modelled (merged
    splits: the data's); limits: the bounds of the data; completer: what was asked for (None where it could not be
    saved).
    """

    observed: ObservedTensor
    estimate: np.ndarray = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    calibrated: Calibrated | None = field(default=None, repr=False)
    propensity: FittedPropensity | None = None
    completion: Prepared | Any = field(default=None, repr=False)
    calibration: Any = None
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    residuals: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    choices: tuple[Choice, ...] = field(default=(), repr=False)
    limits: tuple[float, float] | None = None
    seconds: float = 0.0
    completer: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, observed: ObservedTensor, outcome: Outcome, limits: tuple[float, float] | None, **about: Any) -> Fitted:
        """A fit from what a calibration returned; `about` are fields that describe it."""
        estimate = outcome.calibrated.data_estimate()
        return cls(
            observed=observed,
            estimate=estimate if limits is None else np.clip(estimate, *limits),
            calibrated=outcome.calibrated,
            propensity=outcome.propensity,
            completion=outcome.completion,
            rounds=outcome.rounds,
            residuals=outcome.residuals,
            limits=limits,
            **about,
        )

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
    def scores(self) -> np.ndarray:
        """Scores of the calibration entries."""
        return self.calibrated.scores if self.calibrated is not None else np.empty(0)

    @cached_property
    def log_weights(self) -> np.ndarray:
        """Log-weights of the calibration entries, in the order of `scores`; only differences matter."""
        return self.calibrated.log_weights if self.calibrated is not None else np.empty(0)

    @property
    def beyond(self) -> np.ndarray | None:
        """True at missing entries deeper inside gaps than calibration tested; None where that is not defined."""
        return self.calibrated.beyond if self.calibrated is not None else None

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
        where = self.missing_entries if entries is None else entries
        full = np.array(self.estimate, np.float64, order="C")
        lower = upper = full.reshape(-1)[where]
        if self.calibrated is not None:
            pair = self.calibrated.intervals(where, coverage)
            lower, upper = (self.calibrated.to_data(where, np.asarray(bound[0], np.float64)) for bound in pair)
        if self.limits is not None:
            lower, upper = np.clip(lower, *self.limits), np.clip(upper, *self.limits)
        if entries is not None:
            return lower, upper
        arrays = full, full.copy()
        for array, bound in zip(arrays, (lower, upper)):
            array.reshape(-1)[where] = bound
        return arrays

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
        if self.highest_finite_coverage < FINITE_MENTIONED:
            facts["highest_finite_coverage"] = round(self.highest_finite_coverage, 4)
        return facts

    @cached_property
    def highest_finite_coverage(self) -> float:
        """The highest coverage at which 99 % of the intervals are finite.

        Each missing entry competes with the calibration entries by its weight; neighbours' factors are left out.
        """
        if self.calibrated is None or not len(self.missing_entries) or not len(self.entries):
            return 1.0
        known = self.log_weights
        asked = self.calibrated.weights.log_weight(self.missing_entries).astype(np.float64)
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
        if size >= MIN_EFFECTIVE_SIZE and self.highest_finite_coverage >= FINITE_WARNED:
            return said
        highest = self.highest_finite_coverage
        tried = any(choice.code == "no_candidate_with_enough_weight" for choice in self.choices)
        none = " No propensity model that was tried has a larger one." if tried else ""
        remedy = (
            "hide more often: calibration=corten.GapCalibration(rounds=48)"
            if self.beyond is not None
            else "use calibration='gaps', whose intervals are finite inside gaps and can be checked by an audit, or a "
            "simpler propensity model (propensity='constant')"
        )
        return [
            *said,
            f"Intervals rest on few entries, and 99% of them are finite only up to a coverage of {highest:.3g}: the "
            f"effective sample size is {size:.0f} of {count} calibration entries.{none} Ask for no more than that "
            f"coverage, or {remedy}."
        ]

    def audit(self, rounds: int = 20, **options: Any) -> Audit:
        """Hide observed entries again, fit without them and count how often intervals cover; see `corten.evidence`."""
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
        from corten.results.saving import save

        return save(self, path, overwrite=overwrite)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.observed.shape))
        return f"<Fitted {shape}: {self.observed.n_missing} missing, {len(self.scores)} calibration entries>"

    def _repr_html_(self) -> str:
        return self.intervals(0.9)._repr_html_()
