"""What stands behind the weights: how many entries carry the intervals, where nothing does, and how wrong odds
may be.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corten.conformal.diagnostics import effective_sample_size, largest_share
from corten.conformal.robust import tolerated_odds_error
from corten.data.coverage import check_coverage
from corten.data.plain import plain
from corten.data.printable import printable
from corten.propensity import FittedPropensity, IsingPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

__all__ = ["ReliabilityBin", "WeightEvidence", "WeightReport", "reliability"]

COVERAGES = (0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
COMPARABLE = np.log(2.0)
"""Two entries are comparable if their odds of being missing differ by less than this (a factor of two)."""
FEW = 10.0
KEPT = 0.9
SAMPLE = 50_000
TILTS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class ReliabilityBin:
    """Entries of like predicted chance to be observed: the mean prediction, the share seen and its standard
    error.
    """

    predicted: float
    seen: float
    standard_error: float
    entries: int


@dataclass(frozen=True)
class WeightReport:
    """The report; `print` shows it, `to_dict()` gives plain numbers. Made by `fitted.weights.report()`.

    slices: per axis, the effective number of calibration entries in each slice; infinite: share of infinite
    intervals per coverage; highest_finite: the highest coverage at which all, and at which 99 %, of the intervals
    are finite; without_overlap: the share of missing entries with fewer than ten calibration entries of like odds;
    reliability: predicted and seen chances of being observed on a part of the mask that the model did not see;
    odds_error: the factor by which odds may be wrong before the interval of `coverage` can lose five points;
    tilts: what that interval covers if the log-odds are that many times as steep as fitted.
    """

    coverage: float
    calibration_entries: int
    effective_sample_size: float
    largest_share: float
    slices: dict[str, NDArray[np.float64]] = field(repr=False)
    infinite: dict[float, float]
    highest_finite: tuple[float, float]
    without_overlap: float
    reliability: tuple[ReliabilityBin, ...] = field(repr=False)
    odds_error: float
    tilts: dict[float, float]

    def warnings(self) -> list[str]:
        """What the numbers warn of, in whole sentences."""
        found = []
        if self.effective_sample_size < 50:
            size = self.effective_sample_size
            found.append(f"The calibration entries are worth {size:.0f} equal ones: few carry all.")
        if self.largest_share > 0.05:
            found.append(f"One calibration entry holds {self.largest_share:.0%} of the weight.")
        if self.infinite.get(self.coverage, 0.0) > 0.01:
            found.append(f"{self.infinite[self.coverage]:.1%} of the {self.coverage:.0%} intervals are infinite.")
        if self.without_overlap > 0.01:
            share = self.without_overlap
            found.append(f"{share:.1%} of the missing entries have hardly any calibration entry of like odds.")
        far = [b for b in self.reliability if abs(b.seen - b.predicted) > 0.05 + 3 * b.standard_error]
        if far:
            bins = f"{len(far)} of {len(self.reliability)} bins"
            found.append(f"The fitted chances of being observed are off by more than five points in {bins}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, text, lists and dictionaries, ready for JSON."""
        return {one.name: plain(asdict(self)[one.name]) for one in fields(self)}

    def lines(self) -> list[tuple[str, str]]:
        """The lines of the table: what, and how much."""
        rows = [
            ("calibration entries", f"{self.calibration_entries:,}"),
            ("effective sample size", f"{self.effective_sample_size:,.0f}"),
            ("largest share of one entry", f"{self.largest_share:.2%}"),
        ]
        for name, sizes in self.slices.items():
            rows.append((f"effective size per slice of {name}", f"{sizes.min():,.0f} to {sizes.max():,.0f}"))
        rows.append(("infinite intervals", ", ".join(f"{c:g}: {s:.1%}" for c, s in self.infinite.items())))
        rows.append(("highest finite coverage", "{:.4f} for all, {:.4f} for 99 %".format(*self.highest_finite)))
        rows.append(("missing entries without comparable ones", f"{self.without_overlap:.1%}"))
        rows.append((f"odds error that costs {self.coverage:.0%} five points", f"factor {self.odds_error:.2f}"))
        steep = ", ".join(f"{k:g}: {v:.1%}" for k, v in self.tilts.items())
        rows.append(("coverage if log-odds are k times as steep", steep))
        pairs = ", ".join(f"{b.predicted:.2f}: {b.seen:.2f}" for b in self.reliability)
        rows.append(("chance of being observed, predicted: seen", pairs or "not known"))
        return rows

    def __str__(self) -> str:
        wide = max(len(left) for left, _ in self.lines())
        body = [f"{left:<{wide}}  {right}" for left, right in self.lines()]
        notes = [f"! {one}" for one in self.warnings()]
        return printable("\n".join(["corten: what the weights can bear", *body, *notes]))

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in self.lines())
        notes = "".join(f"<p>&#9888; {html.escape(one)}</p>" for one in self.warnings())
        return printable(f"<b>corten: what the weights can bear</b><table>{rows}</table>{notes}")


class WeightEvidence:
    """Answers questions about the weights of a fit; `report()` asks them all."""

    def __init__(self, fitted: Fitted) -> None:
        if fitted.calibrated is None:
            raise ValueError("nothing was missing, so there are no weights to report on")
        self.fitted = fitted

    def report(self, coverage: float = 0.9, coverages: Sequence[float] = COVERAGES) -> WeightReport:
        """Everything about the weights in one object.

        Example:
            >>> print(fitted.weights.report())                           # doctest: +SKIP
        """
        level = check_coverage(coverage)
        levels = sorted({level, *(check_coverage(one) for one in coverages)})
        logs = self.fitted.log_weights
        infinite = dict(zip(levels, self._infinite(levels)))
        few = self.overlap.reshape(-1)[self.fitted.missing_entries] < FEW
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
            odds_error=tolerated_odds_error(level, 0.05, infinite[level]),
            tilts=self.tilts(level),
        )

    def slices(self) -> dict[str, NDArray[np.float64]]:
        """Per axis, the effective number of calibration entries in each of its slices."""
        logs, observed = self.fitted.log_weights, self.fitted.observed
        weight = np.exp(logs - logs.max())
        found = {}
        for axis, index in zip(observed.axes, np.unravel_index(self.fitted.entries, observed.shape)):
            total = np.bincount(index, weight, minlength=axis.length)
            square = np.bincount(index, weight**2, minlength=axis.length)
            found[axis.name] = np.divide(total**2, square, out=np.zeros(axis.length), where=square > 0)
        return found

    @cached_property
    def overlap(self) -> NDArray[np.float64]:
        """How many calibration entries have odds within a factor two of each missing entry's; NaN elsewhere."""
        fitted = self.fitted
        assert fitted.calibrated is not None
        have = np.sort(fitted.log_weights)
        want = fitted.calibrated.weights.log_weight(fitted.missing_entries)
        count = np.searchsorted(have, want + COMPARABLE) - np.searchsorted(have, want - COMPARABLE)
        table = np.full(fitted.observed.shape, np.nan)
        table.reshape(-1)[fitted.missing_entries] = count
        return table

    def tilts(self, coverage: float = 0.9, powers: Sequence[float] = TILTS) -> dict[float, float]:
        """What the interval covers if the true log-odds are k times as steep as the fitted ones: a structured
        wrongness.

        Power 1 is the model as fitted; 0 says that missingness does not depend on anything.
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
        """Predicted and seen chances of being observed, on entries whose state the model did not see."""
        fitted = self.fitted
        law, one = fitted.propensity, fitted.rounds[0]
        if law is None:
            return ()
        if one.train_share is not None:
            return reliability(law, fitted.observed.mask, one.train, one.train_share, bins)
        kept = np.random.default_rng(0).random(fitted.observed.shape) < KEPT
        train = np.asarray(fitted.observed.mask & kept)
        again = IsingPropensity(
            coupling=law.coupling, link=law.link, neighborhood=law.neighborhood, rank=law.rank or 2, thinning=False
        ).fit(train, KEPT, domain=law.domain, periodic=law.neighborhood.periodic, engine=law.engine)
        return reliability(again, fitted.observed.mask, train, KEPT, bins)

    def _sample(self) -> NDArray[np.intp]:
        where = self.fitted.missing_entries
        if where.size <= SAMPLE:
            return where
        return np.sort(np.random.default_rng(0).choice(where, SAMPLE, replace=False))

    def _infinite(self, levels: Sequence[float]) -> list[float]:
        where = self._sample()
        calibrated = self.fitted.calibrated
        assert calibrated is not None
        low, high = calibrated.intervals(where, list(levels))
        return [float(share) for share in np.mean(np.isinf(low) | np.isinf(high), axis=1)]

    def _highest_finite(self) -> tuple[float, float]:
        """By bisection over the level, for all and for 99 % of the missing entries."""
        found = []
        for allowed in (0.0, 0.01):
            low, high = 0.0, 1.0
            for _ in range(14):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if self._infinite([middle])[0] <= allowed else (low, middle)
            found.append(low)
        return found[0], found[1]


def reliability(
    law: FittedPropensity, mask: NDArray[np.bool_], train: NDArray[np.bool_], train_share: float, bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """The reliability curve of a model fitted to a thinned mask, on what the thinning hid.

    The model saw `train`: each observed entry with the chance q = `train_share`. Of entries that do not train it
    cannot know which are observed; given the others, entry s then is with chance a = (1 - q) p / (1 - q p). The
    share seen in a bin gives p back as a / (1 - q + q a).
    """
    inside = np.ones(mask.shape, bool) if law.domain is None else np.asarray(law.domain, bool)
    open_ = inside & ~train
    p = np.asarray(law.probability(mask), np.float64)[open_]
    seen = mask[open_]
    if not p.size:
        return ()
    edges = np.unique(np.quantile(p, np.linspace(0, 1, bins + 1)))
    place = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, max(edges.size - 2, 0))
    found = []
    for number in range(max(edges.size - 1, 1)):
        here = place == number
        count = int(np.count_nonzero(here))
        if not count:
            continue
        hidden = float(seen[here].mean())
        asked = (1 - train_share) * p[here] / (1 - train_share * p[here])
        mean = float(asked.mean())
        back = 1 - train_share + train_share * hidden
        error = np.sqrt(max(hidden * (1 - hidden), 0.25 / count) / count) * (1 - train_share) / back**2
        predicted = mean / (1 - train_share + train_share * mean)
        found.append(ReliabilityBin(predicted, hidden / back, float(error), count))
    return tuple(found)
