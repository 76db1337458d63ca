"""The numbers of the figures: widths, weights and coverage of one result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.conformal.depth import depth
from corten.conformal.diagnostics import effective_sample_size, largest_share
from corten.evidence.audit_table import Audit
from corten.evidence.score_log import ScoreLog

if TYPE_CHECKING:
    from corten.results.intervals import Intervals

LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
MAX_CURVE_ENTRIES = 4000  # missing entries, for the share of infinite intervals to about one percentage point
MAX_PAST_ROWS = 400  # slices drawn, the last ones
MAX_DEPTH_ENTRIES = 2e7  # of a tensor, above which depths are not computed

Row = dict[str, Any]


def widths_by_depth(result: Intervals) -> list[Row]:
    """Widths of filled entries by distance to the nearest observed one along ordered axes; [] without such axes."""
    observed = result.observed
    unordered = all(axis.kind == "unordered" for axis in observed.axes)
    if observed.complete or unordered or observed.mask.size > MAX_DEPTH_ENTRIES:
        return []
    missing = observed.missing
    width = result.width_array[missing]
    far = depth(observed.mask, observed.axes, np.ones(len(observed.shape)))[missing]
    rows = []
    low, high = 0.0, 1.0
    while low < far.max():
        inside = (far > low) & (far <= high)
        if inside.any():
            rows.append(
                {"label": f"{high:g}" if high == 1 else f"{low:g} to {high:g}", "at": high, **_spread(width[inside])}
            )
        low, high = high, 2.0 * high
    return rows


def widths_by_propensity(result: Intervals, bins: int = 12) -> list[Row]:
    """Widths of the filled entries by the probability of being observed, in bins of equal count; [] without a model."""
    chance = result.source.probabilities
    if chance is None or result.observed.complete:
        return []
    missing = result.observed.missing
    width, p = result.width_array[missing], np.asarray(chance)[missing].astype(float)
    edges = np.unique(np.quantile(p, np.linspace(0, 1, bins + 1)))
    place = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, max(len(edges) - 2, 0))
    rows = []
    for b in range(max(len(edges) - 1, 1)):
        inside = place == b
        if inside.any():
            low, high = float(p[inside].min()), float(p[inside].max())
            label = f"{_chance(low)} to {_chance(high)}" if high > low else _chance(low)
            middle = float(np.median(p[inside]))
            rows.append({"label": label, "at": middle, "tick": _chance(middle), **_spread(width[inside])})
    return rows


def _chance(probability: float) -> str:
    """A probability with two digits; small ones are not told apart."""
    return "< 0.001" if probability < 0.001 else f"{probability:.2g}"


def _spread(width: np.ndarray) -> Row:
    """Count, share of infinite widths, and the tenth, half and nine tenths quantiles of the finite ones."""
    finite = width[np.isfinite(width)].astype(float)
    low, middle, high = np.quantile(finite, (0.1, 0.5, 0.9)) if finite.size else (None, None, None)
    share = 1.0 - finite.size / width.size
    return {"count": int(width.size), "low": low, "median": middle, "high": high, "infinite_share": share}


def widths_by_coverage(result: Intervals, levels: Sequence[float] = LEVELS) -> list[Row]:
    """Median finite width and share of infinite intervals at several coverages, for a sample of the missing entries."""
    where = np.flatnonzero(result.observed.missing)
    if not where.size:
        return []
    levels = sorted({*levels, result.coverage})
    if where.size > MAX_CURVE_ENTRIES:
        where = np.sort(np.random.default_rng(0).choice(where, MAX_CURVE_ENTRIES, replace=False))
    rows = []
    for level in levels:
        width = result.widths_at(where, level).astype(np.float64)
        finite = width[np.isfinite(width)]
        share = 1.0 - finite.size / width.size
        median = float(np.median(finite)) if finite.size else None
        rows.append({"coverage": float(level), "median": median, "infinite_share": share})
    return rows


def weight_concentration(result: Intervals, points: int = 60) -> Row | None:
    """Share of the weight of the calibration entries with the largest weights, and the effective sample size."""
    logs = np.asarray(result.source.log_weights, float)
    if not logs.size or not np.isfinite(logs.max()):
        return None
    share = np.sort(np.exp(logs - logs.max()))[::-1]
    share = np.cumsum(share) / share.sum()
    at = np.unique(np.rint(np.geomspace(1, logs.size, points)).astype(int))
    return {
        "count": int(logs.size),
        "effective": effective_sample_size(logs),
        "largest": largest_share(logs),
        "entries": at,
        "share": share[at - 1],
    }


def hidden_rows(result: Intervals, levels: Sequence[float] = LEVELS) -> list[Row]:
    """Coverage of the entries that calibration hid, and where most rounds lie, at several levels; [] if unknown."""
    found = {float(level): result.source.hidden_coverage(level) for level in sorted({*levels, result.coverage})}
    return [{"level": level, **vars(one)} for level, one in found.items() if one is not None]


def audit_rows(audit: Audit | None, by: str = "all", level: float | None = None) -> list[Row]:
    """Rows of an audit, all or by groups such as "depth", at every level or the nearest one; [] without an audit."""
    if audit is None:
        return []
    rows: list[Row] = [
        {"group": row.group, "level": row.level, "coverage": row.coverage,
         "standard_error": row.standard_error if np.isfinite(row.standard_error) else 0.0}
        for row in audit.rows if row.by == by
    ]  # fmt: skip
    if level is not None and rows:
        nearest = min((row["level"] for row in rows), key=lambda one: abs(one - level))
        rows = [row for row in rows if row["level"] == nearest]
    return sorted(rows, key=lambda row: row["level"])


def past_coverage(scores: ScoreLog | None) -> Row | None:
    """Coverage over time of intervals whose values arrived later, from a `ScoreLog`; None without one."""
    if scores is None or not scores.entries:
        return None
    rows = scores.over_time()[-MAX_PAST_ROWS:]
    keys = ("slice", "entries", "nominal", "coverage", "standard_error", "interval_score")
    finite = [{key: None if row[key] != row[key] else row[key] for key in keys} for row in rows]
    worst = [{key: row[key] for key in ("block", "entries", "nominal", "coverage")} for row in scores.by_block()]
    return {"axis": scores.grid.axis, "rows": finite, "blocks": worst, "summary": str(scores).splitlines()[:2]}
