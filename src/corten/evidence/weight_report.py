"""Diagnostics of the weights: effective sample size, overlap with the missing entries, and errors in the odds."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from corten.conformal.diagnostics import effective_sample_size, largest_share
from corten.conformal.shaped import tolerated_odds_error
from corten.data.arrays import Flags, Floats
from corten.data.coverage import check_coverage
from corten.data.plain import Json, calibration_entries, plain
from corten.data.printable import printable
from corten.propensity import FittedPropensity, IsingPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

REPORT_COVERAGES = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
MAX_LOG_ODDS_DIFFERENCE = np.log(2.0)  # between two comparable entries: a factor of two in the odds of being missing
MIN_COMPARABLE = 10.0  # calibration entries; a missing entry with fewer has no overlap
MIN_EFFECTIVE_SIZE = 50.0  # entries; a smaller effective sample size is reported
MAX_ENTRY_SHARE = 0.05  # of the weight, for one calibration entry
MAX_AFFECTED_SHARE = 0.01  # of the missing entries, with an infinite interval or without overlap
MAX_PROBABILITY_ERROR = 0.05  # of the propensity model in one bin
COVERAGE_LOSS = 0.05  # nominal minus actual coverage, for the tolerated error of the odds
TRAIN_SHARE = 0.9  # of the mask, for the reliability of a model that was fitted to all of it
MAX_SAMPLED_ENTRIES = 50_000  # missing entries, for the share of infinite intervals
TILTS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class ReliabilityBin:
    """Entries of similar predicted probability: its mean, the share that is observed, and its standard error."""

    predicted: float
    observed: float
    standard_error: float
    entries: int


@dataclass(frozen=True)
class WeightReport:
    """Diagnostics of the weights. Returned by ``fitted.weights.report()``.

    ``print`` shows a table, `to_dict` gives plain numbers.

    Examples
    --------
    >>> report = fitted.weights.report(0.9)                          # doctest: +SKIP
    >>> print(report)                                                # doctest: +SKIP
    >>> report.warnings()                                            # doctest: +SKIP
    """

    coverage: float  #: Nominal coverage that the report is about.
    calibration_entries: int  #: Number of calibration entries.
    effective_sample_size: float  #: (sum w)^2 / sum w^2 of their weights.
    largest_share: float  #: Share of the weight of the entry with the largest weight.
    slices: dict[str, Floats] = field(repr=False)  #: For each axis, the effective sample size of each slice.
    infinite: dict[float, float]  #: Share of infinite intervals at each coverage.
    highest_finite: tuple[float, float]  #: Highest coverage at which all, and 99 %, of the intervals are finite.
    #: Share of the missing entries with fewer than ten calibration entries whose odds are within a factor of two.
    without_overlap: float
    #: Predicted and observed shares of observed entries, on a part of the mask that the model was not fitted to.
    reliability: tuple[ReliabilityBin, ...] = field(repr=False)
    #: Factor by which the odds may be wrong before the coverage can fall by more than five percentage points.
    odds_error: float
    tilts: dict[float, float]  #: Coverage if the true log-odds are a multiple (the key) of the fitted ones.

    def warnings(self) -> list[str]:
        """Warnings, one sentence each."""
        found = []
        if self.effective_sample_size < MIN_EFFECTIVE_SIZE:
            size, count = self.effective_sample_size, self.calibration_entries
            found.append(f"The effective sample size is {size:.0f} of {count:,} {calibration_entries(count)}.")
        if self.largest_share > MAX_ENTRY_SHARE:
            found.append(f"One calibration entry has {self.largest_share:.0%} of the weight.")
        if self.infinite.get(self.coverage, 0.0) > MAX_AFFECTED_SHARE:
            found.append(f"{self.infinite[self.coverage]:.1%} of the {self.coverage:.0%} intervals are infinite.")
        if self.without_overlap > MAX_AFFECTED_SHARE:
            share = f"{self.without_overlap:.1%} of the missing entries"
            found.append(f"{share} have fewer than {MIN_COMPARABLE:.0f} calibration entries with similar odds.")
        allowed = MAX_PROBABILITY_ERROR
        far = [b for b in self.reliability if abs(b.observed - b.predicted) > allowed + 3 * b.standard_error]
        if far:
            bins = f"{len(far)} of {len(self.reliability)} bins"
            found.append(f"The fitted probability of being observed is wrong by more than {allowed:g} in {bins}.")
        return found

    def to_dict(self) -> dict[str, Json]:
        """Plain numbers, text, lists and dictionaries, ready for JSON."""
        return {key: plain(value) for key, value in asdict(self).items()}

    def lines(self) -> list[tuple[str, str]]:
        """The rows of the table: a name and a value, as text."""
        sizes = [(name, f"{one.min():,.0f} to {one.max():,.0f}") for name, one in self.slices.items()]
        pairs = ", ".join(f"{b.predicted:.2f}: {b.observed:.2f}" for b in self.reliability)
        return [
            ("calibration entries", f"{self.calibration_entries:,}"),
            ("effective sample size", f"{self.effective_sample_size:,.0f}"),
            ("largest share of one entry", f"{self.largest_share:.2%}"),
            *((f"effective size per slice of {name}", size) for name, size in sizes),
            ("infinite intervals", ", ".join(f"{c:g}: {s:.1%}" for c, s in self.infinite.items())),
            ("highest coverage with finite intervals", "{:.4f} for all, {:.4f} for 99 %".format(*self.highest_finite)),
            ("missing entries without overlap", f"{self.without_overlap:.1%}"),
            (f"odds error that lowers {self.coverage:.0%} by 5 points", f"factor {self.odds_error:.2f}"),
            ("coverage if log-odds are multiplied by k", ", ".join(f"{k:g}: {v:.1%}" for k, v in self.tilts.items())),
            ("probability of being observed, predicted: found", pairs or "unknown"),
        ]

    def __str__(self) -> str:
        wide = max(len(left) for left, _ in self.lines())
        body = [f"{left:<{wide}}  {right}" for left, right in self.lines()]
        notes = [f"! {one}" for one in self.warnings()]
        return printable("\n".join(["corten: diagnostics of the weights", *body, *notes]))

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in self.lines())
        notes = "".join(f"<p>&#9888; {html.escape(one)}</p>" for one in self.warnings())
        return printable(f"<b>corten: diagnostics of the weights</b><table>{rows}</table>{notes}")


class WeightEvidence:
    """Diagnostics of the weights of a fit. Returned by `Fitted.weights`."""

    def __init__(self, fitted: Fitted) -> None:
        if fitted.calibrated is None:
            raise ValueError("nothing was missing, so there are no weights to report on")
        self.fitted = fitted

    def report(self, coverage: float = 0.9, coverages: Sequence[float] = REPORT_COVERAGES) -> WeightReport:
        """All diagnostics at one nominal coverage; the share of infinite intervals also at other `coverages`."""
        level = check_coverage(coverage)
        levels = sorted({level, *(check_coverage(one) for one in coverages)})
        logs = self.fitted.log_weights
        infinite = dict(zip(levels, self._infinite(levels)))
        few = self.overlap.reshape(-1)[self.fitted.missing_entries] < MIN_COMPARABLE
        return WeightReport(
            coverage=level,
            calibration_entries=logs.size,
            effective_sample_size=effective_sample_size(logs),
            largest_share=largest_share(logs),
            slices=self.slices(),
            infinite=infinite,
            highest_finite=self._highest_finite(),
            without_overlap=float(few.mean()),
            reliability=self.reliability(),
            odds_error=tolerated_odds_error(level, COVERAGE_LOSS, infinite[level]),
            tilts=self.tilts(level),
        )

    def slices(self) -> dict[str, Floats]:
        """For each axis, the effective sample size of the calibration entries in each slice."""
        logs, observed = self.fitted.log_weights, self.fitted.observed
        weight = np.exp(logs - logs.max())
        found = {}
        for axis, index in zip(observed.axes, np.unravel_index(self.fitted.entries, observed.shape)):
            total = np.bincount(index, weight, minlength=axis.length)
            square = np.bincount(index, weight**2, minlength=axis.length)
            found[axis.name] = np.divide(total**2, square, out=np.zeros(axis.length), where=square > 0)
        return found

    @cached_property
    def overlap(self) -> Floats:
        """Number of calibration entries with odds within a factor of two, for each missing entry; NaN elsewhere."""
        fitted = self.fitted
        assert fitted.calibrated is not None
        have = np.sort(fitted.log_weights)
        want = fitted.calibrated.weights.log_weight(fitted.missing_entries)
        below = np.searchsorted(have, want - MAX_LOG_ODDS_DIFFERENCE)
        count = np.searchsorted(have, want + MAX_LOG_ODDS_DIFFERENCE) - below
        table = np.full(fitted.observed.shape, np.nan)
        table.reshape(-1)[fitted.missing_entries] = count
        return table

    def tilts(self, coverage: float = 0.9, powers: Sequence[float] = TILTS) -> dict[float, float]:
        """The coverage, for each k of `powers`, of intervals of this nominal coverage if the true log-odds are k times
        the fitted ones. 1 is the model as fitted; 0 means a constant probability of being observed.
        """
        logs, scores = self.fitted.log_weights, np.abs(self.fitted.scores)
        order = np.argsort(scores)
        weight = np.exp(logs - logs.max())[order]
        cut = int(np.searchsorted(np.cumsum(weight), coverage * weight.sum() * (1 - 1e-12)))
        found = {}
        for power in powers:
            tilted = np.exp(power * (logs - logs.max()))[order]
            found[float(power)] = float(tilted[: cut + 1].sum() / tilted.sum())
        return found

    def reliability(self, bins: int = 10) -> tuple[ReliabilityBin, ...]:
        """Predicted and observed shares of observed entries, on a part of the mask that the model was not fitted to."""
        fitted = self.fitted
        model, one = fitted.propensity, fitted.rounds[0]
        if model is None:
            return ()
        if one.train_share is not None:
            return reliability(model, fitted.observed.mask, one.train, one.train_share, bins)
        kept = np.random.default_rng(0).random(fitted.observed.shape) < TRAIN_SHARE
        train = np.asarray(fitted.observed.mask & kept)
        again = IsingPropensity(
            coupling=model.coupling,
            link=model.link,
            neighborhood=model.neighborhood,
            rank=model.rank or 2,
            thinning=False,
        ).fit(train, TRAIN_SHARE, domain=model.domain, periodic=model.neighborhood.periodic, engine=model.engine)
        return reliability(again, fitted.observed.mask, train, TRAIN_SHARE, bins)

    def _infinite(self, levels: Sequence[float]) -> list[float]:
        """The share of infinite intervals at each level, in a sample of the missing entries."""
        where, calibrated = self.fitted.missing_entries, self.fitted.calibrated
        if where.size > MAX_SAMPLED_ENTRIES:
            where = np.sort(np.random.default_rng(0).choice(where, MAX_SAMPLED_ENTRIES, replace=False))
        assert calibrated is not None
        low, high = calibrated.intervals(where, list(levels))
        return np.mean(np.isinf(low) | np.isinf(high), axis=1).tolist()

    def _highest_finite(self) -> tuple[float, float]:
        """By bisection over the coverage, for all and for 99 % of the missing entries."""
        found = []
        for allowed in (0.0, 0.01):
            low, high = 0.0, 1.0
            for _ in range(14):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if self._infinite([middle])[0] <= allowed else (low, middle)
            found.append(low)
        return found[0], found[1]


def reliability(
    model: FittedPropensity, mask: Flags, train: Flags, train_share: float, bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """The reliability curve of a propensity model fitted to a thinned mask, on the entries outside it.

    mask, train: all observed entries, and those that the model was fitted to; train_share: the probability q with which
    an observed entry is in `train`. An entry outside `train` is observed with probability a = (1 - q) p / (1 - q p),
    given the others. The share found in a bin gives p as a / (1 - q + q a).
    """
    inside = np.ones(mask.shape, bool) if model.domain is None else np.asarray(model.domain, bool)
    outside = inside & ~train
    p = np.asarray(model.probability(mask), np.float64)[outside]
    observed = mask[outside]
    if not p.size:
        return ()
    edges = np.unique(np.quantile(p, np.linspace(0, 1, bins + 1)))
    place = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, max(edges.size - 2, 0))
    found = []
    q = train_share
    for number in np.unique(place):
        here = place == number
        count = int(np.count_nonzero(here))
        hidden = float(observed[here].mean())
        mean = float(((1 - q) * p[here] / (1 - q * p[here])).mean())
        back = 1 - q + q * hidden
        error = np.sqrt(max(hidden * (1 - hidden), 0.25 / count) / count) * (1 - q) / back**2
        found.append(ReliabilityBin(mean / (1 - q + q * mean), hidden / back, float(error), count))
    return tuple(found)
