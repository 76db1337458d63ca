"""A fitted completer: intervals of any coverage, and the arrays they are computed from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np

from corten.calibration.task import Calibration, Round
from corten.completion.protocol import Prepared
from corten.conformal.merged import MergedSplits
from corten.conformal.shaped import Grouped, Joint, Robust
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.data.coverage import check_coverage
from corten.data.missing_values import MissingValue
from corten.data.observed import ObservedTensor, TensorLike
from corten.data.plain import calibration_entries
from corten.evidence import audit as audit_module
from corten.evidence import hidden
from corten.evidence.score_log import ScoreLog
from corten.evidence.weight_report import MIN_EFFECTIVE_SIZE, WeightEvidence
from corten.propensity import FittedPropensity
from corten.results import daily, saving
from corten.results.draws import dependence_of
from corten.results.groups import Groups, refuse_carried
from corten.results.intervals import Intervals
from corten.results.predictive import reshaped
from corten.results.saving import SavedCompletion
from corten.results.settings import circumstances
from corten.results.summary import Facts

if TYPE_CHECKING:
    from corten.completer import ConformalCompleter

WARN_FINITE_BELOW, MENTION_FINITE_BELOW = 0.9, 0.99  # highest coverages with finite intervals
# Parts of a fit that the rooms of this package share; `dir` does not list them.
_INTERNAL = {
    "beyond", "bounds", "calibrated", "completion", "dependence", "entries", "facts", "hidden_coverage", "hidden_error",
    "limits", "log_weights", "missing_entries", "options", "pooled", "probabilities", "residuals", "rounds",
    "scores",
}  # fmt: skip
WARNING_CODES = ("pseudo_gaps_too_short", "slices_not_tested", "integers_rounded", "unequal_steps_not_used")
"""Of settings whose reason is shown as a warning."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: intervals of any coverage, and the evidence for them. Returned by `ConformalCompleter.fit`.

    Examples
    --------
    >>> fitted = corten.ConformalCompleter().fit(x)                  # doctest: +SKIP
    >>> narrow, wide = fitted.intervals([0.8, 0.95])                 # doctest: +SKIP
    >>> print(fitted.audit().verdict())                              # doctest: +SKIP
    >>> filled = fitted.fill(tomorrow, coverage=0.9)                 # doctest: +SKIP
    >>> fitted.update(today, window=96).save("tec.corten")           # doctest: +SKIP
    >>> scores = fitted.verify(late, log="scores.jsonl")             # doctest: +SKIP
    """

    observed: ObservedTensor  #: The input.
    estimate: np.ndarray = field(repr=False)  #: The filled values, in the unit of the data.
    options: dict[str, str | int] = field(repr=False)  # as text, and the seed
    # Scores and weights; None if nothing was missing.
    calibrated: CalibratedSplit | MergedSplits | Grouped | Joint | Robust | None = field(default=None, repr=False)
    propensity: FittedPropensity | None = None  #: The fitted propensity model.
    completion: Prepared | SavedCompletion | None = field(default=None, repr=False)  # the description in a loaded fit
    calibration: Calibration | None = None  #: How entries were hidden.
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    # Truth minus estimate of the calibration entries, after the transform (merged splits: before it).
    residuals: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    choices: tuple[Choice, ...] = field(default=(), repr=False)  #: Every automatic setting, with its value and reason.
    limits: tuple[float, float] | None = None  # bounds of the data
    seconds: float = 0.0  #: Wall-clock time of the fit.
    #: The options as given, a ConformalCompleter; None if the fit was loaded and they could not be saved.
    completer: ConformalCompleter | None = field(default=None, repr=False)
    carried: bool = False  #: Whether the calibration is that of earlier data (after `fill`).

    @overload
    def intervals(
        self, coverage: float = ..., *, odds_error: float = ..., groups: Groups | None = ..., joint: Groups | None = ...
    ) -> Intervals: ...
    @overload
    def intervals(
        self,
        coverage: Sequence[float],
        *,
        odds_error: float = ...,
        groups: Groups | None = ...,
        joint: Groups | None = ...,
    ) -> list[Intervals]: ...
    def intervals(
        self,
        coverage: float | Sequence[float] = 0.9,
        *,
        odds_error: float = 1.0,
        groups: Groups | None = None,
        joint: Groups | None = None,
    ) -> Intervals | list[Intervals]:
        """Intervals of one or several coverages; nothing is fitted again.

        Parameters
        ----------
        coverage : float or sequence of float, default 0.9
            Nominal coverage, between 0 and 1.
        odds_error : float, default 1.0
            Factor by which the fitted odds of being missing may be wrong while the coverage still holds. A larger
            factor gives wider intervals; `WeightReport.odds_error` says how much matters.
        groups : str, int, sequence of them or array of labels, optional
            Axes, or one label per entry: the coverage then holds within each slice or label, not only on average.
        joint : str, int, sequence of them or array of labels, optional
            Axes, or one label per entry: all entries of a slice then lie in their intervals together with probability
            `coverage`.

        Returns
        -------
        Intervals or list of Intervals
            A list if several coverages are given.

        Examples
        --------
        >>> monthly = fitted.intervals(0.9, groups="month")          # doctest: +SKIP
        """
        if groups is not None or joint is not None:
            refuse_carried(self, "groups and joint")
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
        """Logarithms of the weights of the calibration entries, up to a constant, in the order of `scores`."""
        return self.calibrated.log_weights if self.calibrated is not None else np.empty(0)

    @property
    def beyond(self) -> np.ndarray | None:
        """True at missing entries beyond what calibration tested; None if there are none or this is not defined."""
        return self.calibrated.beyond if self.calibrated is not None else None

    @property
    def pooled(self) -> bool:
        """Whether the intervals are calibrated on pseudo-gaps, whose rounds are pooled."""
        return any(choice.code.startswith("pseudo_gaps") for choice in self.choices)

    dependence = cached_property(dependence_of)

    @cached_property
    def missing_entries(self) -> np.ndarray:
        """Flat indices of the filled entries."""
        return np.flatnonzero(self.observed.missing)

    @cached_property
    def probabilities(self) -> np.ndarray | None:
        """Probability of each entry being observed, given all others; None without a propensity model."""
        return self.propensity.probability(self.observed.mask) if self.propensity is not None else None

    def bounds(self, coverage: float, entries: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds, with the transform undone and the limits of the data applied.

        Full arrays that are valid at the missing entries, or one value for each of some flat `entries`.
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

    def facts(self, coverage: float) -> Facts:
        """Numbers for the summary, by name."""
        if self.calibrated is None:
            return {}
        facts: Facts = {
            "calibration_entries": len(self.scores),
            "effective_sample_size": self.calibrated.effective_sample_size(),
            "seconds": round(self.seconds, 2),
            "engine": str(self.options.get("engine", "")),
        }
        if self.hidden_error is not None:
            facts["mean_absolute_error_on_hidden_entries"] = self.hidden_error.error
            facts["baseline"] = self.hidden_error.baseline
            facts["mean_absolute_error_of_the_baseline"] = self.hidden_error.baseline_error
        found = self.hidden_coverage(coverage)
        if found is not None:
            facts["coverage_on_hidden_entries"] = found.found
            most = (found.low, found.high)
            facts |= {"coverage_in_most_rounds": most} if found.kind == "rounds" else {"coverage_in_most_folds": most}
        if self.highest_finite_coverage < MENTION_FINITE_BELOW:
            facts["highest_finite_coverage"] = round(self.highest_finite_coverage, 4)
        return facts

    hidden_error = cached_property(hidden.hidden_error)
    hidden_coverage = hidden.hidden_coverage

    @cached_property
    def highest_finite_coverage(self) -> float:
        """The highest coverage at which 99 % of the intervals are finite; neighbours are ignored."""
        if self.calibrated is None or not len(self.missing_entries) or not len(self.entries):
            return 1.0
        logs = self.log_weights
        own = self.calibrated.weights.log_weight(self.missing_entries).astype(np.float64)
        top = float(logs.max(initial=-np.inf))
        if not np.isfinite(top):
            return 0.0
        total = top + np.log(np.exp(logs - top).sum())
        share = 1.0 / (1.0 + np.exp(np.clip(own - total, -700, 700)))
        finite = float(np.quantile(share, 0.01))
        # A score with two tails needs (1 + c) / 2 of the weight.
        return finite if self.calibrated.score.tails(0.5).lower is None else max(0.0, 2 * finite - 1)

    def warnings(self) -> list[str]:
        """Warnings for the user, one sentence each."""
        if self.calibrated is None:
            return []
        reasons = [choice.because for choice in self.choices if choice.code in WARNING_CODES]
        size, count = self.calibrated.effective_sample_size(), len(self.scores)
        if size >= MIN_EFFECTIVE_SIZE and self.highest_finite_coverage >= WARN_FINITE_BELOW:
            return reasons
        highest = self.highest_finite_coverage
        tried = any(choice.code == "no_candidate_with_enough_weight" for choice in self.choices)
        none = " No propensity model that was tried has a larger one." if tried else ""
        if self.pooled:
            remedy = "hide more often (calibration=corten.GapCalibration(rounds=48))"
        elif size < 0.99 * count:  # unequal weights, which a constant model has not
            remedy = (
                "use calibration='gaps', whose intervals are finite inside gaps and can be checked by an audit, or a "
                "simpler propensity model (propensity='constant')"
            )
        else:
            remedy = "give more observed entries"
        spread = 100 * np.sqrt(0.9 * (1 - 0.9) / (size + 2))  # of a beta distribution
        return [
            *reasons,
            f"The coverage of 90% intervals varies between data sets like these by {spread:.0f} points (one standard "
            f"deviation), and 99% of the intervals are finite only up to a coverage of {highest:.3g}: the effective "
            f"sample size is {size:.0f} of {count} {calibration_entries(count)}.{none} For a higher coverage or a more "
            f"certain one {remedy}.",
        ]

    audit = audit_module.audit

    @property
    def weights(self) -> WeightEvidence:
        """Diagnostics of the weights: ``fitted.weights.report()``."""
        return WeightEvidence(self)

    def settings(self) -> dict[str, str | int]:
        """Options, seed, kinds of the axes and versions, so that the fit can be run again."""
        return self.options | circumstances(self.observed.axes, int(np.count_nonzero(~self.observed.inside)))

    fill = daily.fill
    update = daily.update

    def verify(
        self,
        late: TensorLike,
        log: str | os.PathLike[str] | None = None,
        *,
        coverage: float = 0.9,
        axis: str | int | None = None,
        target: float | None = None,
        label: str = "",
        missing_value: MissingValue = None,
    ) -> ScoreLog:
        """Compare values that arrived late with the intervals of this fit, and keep a log of the scores.

        Parameters
        ----------
        coverage : float, default 0.9
            Nominal coverage of the intervals that were given.
        late, log, axis, target, label, missing_value
            As for `Intervals.verify`.

        Returns
        -------
        ScoreLog
            As for `Intervals.verify`.
        """
        return self.intervals(coverage).verify(
            late, log, axis=axis, target=target, label=label, missing_value=missing_value
        )

    save = saving.save

    def __dir__(self) -> list[str]:
        """Names for users, without what the rooms of the package share."""
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.observed.shape))
        count = len(self.scores)
        return f"<Fitted {shape}: {self.observed.n_missing} missing, {count} {calibration_entries(count)}>"

    def _repr_html_(self) -> str:
        return self.intervals(0.9)._repr_html_()
