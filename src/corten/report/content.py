"""What the page says, as plain numbers and text: everything but the look."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corten import __all__ as PUBLIC
from corten.data.flags import FLAG_MEANINGS
from corten.data.plain import NOTHING
from corten.evidence.audit_table import OFF_RANDOM
from corten.report import evidence
from corten.report.encode import coarse, pack_bytes, pack_levels, strides_for
from corten.report.planes import default_cell, labels, numbers, planes, title

if TYPE_CHECKING:
    from corten.results.intervals import Intervals
    from corten.results.summary import Summary

__all__ = ["MOST_CELLS", "page_content"]

MOST_CELLS = 1_250_000
"""Cells a page carries; eight bytes each, in base64, stay under 15 MB even where nothing compresses."""
RARE = 0.01  # a share of infinite intervals that needs no advice
OPTIONS = ("completion", "propensity", "calibration", "score", "weights", "transform", "climatology", "bounds", "seed")
PROMISES = ("groups", "joint", "odds_error")
MAPS = {"value": ("viridis", 1.0), "width": ("magma_r", 0.8), "chance": ("cividis", 1.0)}
"""Colour maps that the colour-blind read too, and how much of each is used: the end of magma is black."""


def page_content(
    result: Intervals, audit: Any = None, most_cells: int = MOST_CELLS, command: str = ""
) -> dict[str, Any]:
    """Everything the page shows, ready for JSON."""
    summary = result.summary()
    observed = result.observed
    curve = evidence.widths_by_coverage(result)
    checked = evidence.audit_rows(audit)
    name = summary.name or "values"
    long_name = observed.attrs.get("long_name")
    return {
        "title": name,
        "about": str(long_name) if long_name and str(long_name) != name else "",
        "shape": " × ".join(f"{length} {axis}" for axis, length in summary.axes),
        "units": summary.units or "",
        "coverage": result.coverage,
        "headline": _headline(summary),
        "notices": _notices(summary, curve, checked, getattr(audit, "tolerance", OFF_RANDOM)),
        "footnote": summary.footnote,
        "tensor": _tensor(result, most_cells),
        "maps": {use: _colours(*pick) for use, pick in MAPS.items()},
        "evidence": {
            "audit": checked,
            "audit_by_depth": evidence.audit_rows(audit, "depth", result.coverage),
            "verdict": str(audit.verdict()).splitlines() if hasattr(audit, "verdict") else [],
            "propensity": evidence.widths_by_propensity(result),
            "depth": evidence.widths_by_depth(result),
            "coverage": curve,
            "weights": evidence.weight_concentration(result),
            "loss": evidence.loss_history(result),
            "stopped": str(getattr(getattr(result.source, "propensity", None), "stopped_because", "") or ""),
        },
        "choices": [
            {"what": c.what, "taken": c.taken, "because": c.because, "candidates": list(c.candidates)}
            for c in summary.choices
        ],
        "numbers": summary.rows(),
        "settings": [[key.replace("_", " "), value] for key, value in _settings(result).items()],
        "reproduce": _reproduce(result),
        "command": command,
    }


def _headline(summary: Summary) -> list[dict[str, str]]:
    """The few numbers to read first."""
    total = summary.observed + summary.missing
    unit = f" {summary.units}" if summary.units else ""
    cards = [
        {
            "value": f"{summary.missing / total:.1%}",
            "label": "missing, now filled",
            "note": f"{summary.missing:,} of {total:,} entries",
        },
        {
            "value": f"{summary.coverage:.4g}",
            "label": "coverage asked for",
            "note": f"{100 * summary.coverage:.3g} of 100 filled entries should lie in their interval",
        },
    ]
    if summary.missing:
        width = "none" if summary.median_width is None else f"{summary.median_width:.3g}{unit}"
        cards.append({"value": width, "label": "median width", "note": "of the finite intervals, upper − lower"})
        cards.append(
            {
                "value": _percent(summary.finite_share),
                "label": "have a finite interval",
                "note": f"{summary.infinite:,} are infinite: too little is known there"
                if summary.infinite
                else "none is infinite",
            }
        )
    size = summary.facts.get("effective_sample_size")
    if size is not None:
        count = summary.facts.get("calibration_entries")
        of = f"what the weights of {count:,} hidden entries are worth" if count else "equally weighted entries"
        cards.append({"value": f"{float(size):,.0f}", "label": "effective sample size", "note": of})
    return cards


def _notices(
    summary: Summary, curve: list[dict[str, Any]], checked: list[dict[str, Any]], room: float
) -> list[dict[str, str]]:
    """Warnings, advice and good news, in whole sentences."""
    notices = [{"kind": "info" if w == NOTHING else "warn", "text": w} for w in summary.warnings]
    if summary.missing and summary.finite_share < 1.0 - RARE:
        bearable = [row["coverage"] for row in curve if row["infinite_share"] <= RARE]
        advice = (
            f" At coverage {max(bearable):.3g} or less nearly all are finite; "
            f"result.at({max(bearable):.3g}) needs no new fit."
            if bearable
            else f" Even at coverage {curve[0]['coverage']:.3g} it is {curve[0]['infinite_share']:.0%}: "
            "the gaps look too unlike what was observed."
        )
        notices.append(
            {
                "kind": "warn",
                "text": f"{1 - summary.finite_share:.1%} of the filled entries have an infinite interval: "
                f"the data cannot bear coverage {summary.coverage:.4g} there. Use their estimate with care.{advice}",
            }
        )
    if checked:
        notices.append(_verdict(min(checked, key=lambda row: abs(row["level"] - summary.coverage)), room))
    elif summary.missing:
        notices.append(
            {"kind": "info", "text": "No audit was run: the coverage named here was asked for, not checked."}
        )
    return notices


def _verdict(row: dict[str, Any], room: float) -> dict[str, str]:
    found = (
        f"The audit hid observed entries again: {row['coverage']:.1%} of them, "
        f"weighed to stand for the missing ones, lay in their {row['level']:.4g} interval"
    )
    found += f" (standard error {row['standard_error']:.1%})"
    short = row["level"] - row["coverage"]
    if short > max(2 * row["standard_error"], room):
        return {"kind": "warn", "text": f"{found}. That is too few: read the intervals as too narrow."}
    if -short > max(2 * row["standard_error"], room):
        return {"kind": "info", "text": f"{found}. The intervals are wider than they need to be."}
    return {"kind": "good", "text": f"{found}: nothing speaks against these intervals."}


def _tensor(result: Intervals, most_cells: int) -> dict[str, Any]:
    """The arrays of the slice explorer, thinned where they are too many, and how to lay them out."""
    observed = result.observed
    steps = strides_for(observed.shape, most_cells)
    flag = coarse(result.flag_array, steps)
    estimate = coarse(result.estimate_array, steps).astype(np.float64)
    with np.errstate(invalid="ignore"):
        below = estimate - coarse(result.lower_array, steps)
        above = coarse(result.upper_array, steps) - estimate
    outside = flag == FLAG_MEANINGS.index("outside_the_domain")
    below[outside], above[outside] = 0.0, 0.0
    chance = result.source.propensity_array()
    start = [place // step for place, step in zip(default_cell(result), steps)]
    axes = []
    for axis, step in zip(observed.axes, steps):
        places = numbers(axis)
        axes.append(
            {
                "name": axis.name,
                "title": title(axis),
                "labels": labels(axis)[::step],
                "numbers": None if places is None else places[::step],
                "time": axis.coordinates is not None and axis.coordinates.dtype.kind == "M",
            }
        )
    pictures = []
    for plane in planes(observed.axes):
        stretch = steps[plane.rows] / steps[plane.columns]
        aspect = None if plane.aspect is None else plane.aspect * stretch
        pictures.append(
            {"rows": plane.rows, "columns": plane.columns, "aspect": aspect, "up": plane.up, "right": plane.right}
        )
    same = np.array_equal(np.isinf(below), np.isinf(above)) and np.allclose(below, above, rtol=1e-5, atol=0.0)
    return {
        "shape": flag.shape,
        "axes": axes,
        "planes": pictures,
        "start": start,
        "note": _thinned([axis.name for axis in observed.axes], steps),
        "estimate": pack_levels(estimate),
        "below": pack_levels(below),
        "above": None if same else pack_levels(above),
        "flag": pack_bytes(flag.astype(np.uint8)),
        "chance": None if chance is None else pack_bytes(_share_bytes(coarse(np.asarray(chance), steps))),
        "scales": {"value": _value_range(estimate), "width": _width_range(result), "chance": [0.0, 1.0]},
    }


def _share_bytes(chance: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(np.nan_to_num(chance), 0.0, 1.0) * 255).astype(np.uint8)


def _value_range(estimate: np.ndarray) -> list[float]:
    """One colour scale for data and estimate; the outermost half percent saturates."""
    finite = estimate[np.isfinite(estimate)]
    low, high = np.quantile(finite, (0.005, 0.995)) if finite.size else (0.0, 1.0)
    return [float(low), float(high)] if high > low else [float(low) - 0.5, float(low) + 0.5]


def _width_range(result: Intervals) -> list[float]:
    width = result.width_array[result.observed.missing]
    finite = width[np.isfinite(width)]
    high = float(np.quantile(finite, 0.99)) if finite.size else 1.0
    return [0.0, high if high > 0 else 1.0]


def _percent(share: float) -> str:
    """A share that says 100 % only when it is."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    close = min(share, 1.0 - share)
    return (
        f"{share:.1%}"
        if close >= 5e-4
        else f"{share:.2%}"
        if close >= 5e-5
        else "> 99.99%"
        if share > 0.5
        else "< 0.01%"
    )


def _thinned(names: Sequence[str], steps: Sequence[int]) -> str:
    if max(steps) == 1:
        return ""
    parts = [f"every {_ordinal(step)} {name}" for name, step in zip(names, steps) if step > 1]
    return (
        f"To keep this file small the explorer shows {' and '.join(parts)}; "
        "all numbers and charts outside it use the whole tensor."
    )


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _colours(name: str, part: float) -> str:
    """A colour map's 256 colours, three bytes each."""
    from matplotlib import colormaps

    return pack_bytes(np.rint(colormaps[name](np.linspace(0, part, 256))[:, :3] * 255))


def _settings(result: Intervals) -> dict[str, Any]:
    return {**result.source.settings(), "python": platform.python_version()}


def _reproduce(result: Intervals) -> str:
    """The call that makes this result again; functions and arrays appear by a name that the reader has to define."""
    given = result.source.settings()
    words = [f"coverage={result.coverage:g}"]
    options = [key for key in OPTIONS if str(given.get(key, "none")).lower() != "none"]
    words += [f"{key}={given[key]!r}" if key == "climatology" else f"{key}={_spelled(given[key])}" for key in options]
    axes = result.observed.axes
    words.append("axis_kinds={" + ", ".join(f"{axis.name!r}: {axis.kind!r}" for axis in axes) + "}")
    if any(axis.periodic for axis in axes):
        words.append(f"periodic={[axis.name for axis in axes if axis.periodic]}")
    if result.observed.domain is not None:
        words.append("where=where")
    name = result.observed.name
    source = "x" if name is None else f"data[{name!r}]"
    call = "import corten\n\nresult = corten.complete(\n    " + ",\n    ".join([source, *words]) + ",\n)\n"
    # Axes by name, odds errors as they are; of labels of one's own the page knows only that they were given.
    asked = [f"{one.code}={one.values.get(one.code, 'labels')!r}" for one in result.choices if one.code in PROMISES]
    asked = [one.replace("'labels'", "labels") for one in asked]
    return call + (f"result = result.source.intervals({result.coverage:g}, {', '.join(asked)})\n" if asked else "")


def _spelled(value: Any) -> str:
    """An option as Python: names in quotes, corten's own objects by their full name."""
    if not isinstance(value, str) or re.fullmatch(r"[a-z-]+(:.+)?", value):
        return repr(value)
    known = re.sub(r"\b([A-Z]\w*)(?=\()", lambda one: f"corten.{one[0]}" if one[0] in PUBLIC else one[0], value)
    return known.removeprefix("function ")
