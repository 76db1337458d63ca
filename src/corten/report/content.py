"""The content of the report page: numbers and text, and arrays, which are compressed to 1/65,000 of their range."""

from __future__ import annotations

import base64
import json
import platform
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corten import __all__ as PUBLIC
from corten.data.choices import Choice
from corten.data.flags import FLAG_MEANINGS
from corten.data.never_observed import CODE as NEVER_OBSERVED
from corten.data.plain import NOTHING, calibration_entries, plain
from corten.data.printable import spelling, unit_sign
from corten.evidence.audit_table import Audit, conclusion
from corten.evidence.score_log import ScoreLog
from corten.report import evidence
from corten.report.drawing import COLOURS, colour_map
from corten.report.planes import default_entry, labels, numbers, planes, title, value_range, width_range

if TYPE_CHECKING:
    from corten.results.intervals import Intervals
    from corten.results.summary import Summary

MAX_PAGE_ENTRIES = 1_250_000  # of the tensor in a page: 8 bytes each in base64, under 15 MB without compression
MAX_INFINITE_SHARE = 0.01  # of the intervals, above which the page advises a lower coverage
REPEATED = ("completion", "propensity", "calibration", "score", "weights", "transform", "climatology", "bounds", "seed")
MIN_CANDIDATES = 3  # of a setting, below which an edge of the range means nothing
INTERVAL_OPTIONS = ("groups", "joint", "odds_error")
ABSENT = 65535  # code of an entry without a finite value: outside the domain, or an infinite width
_TOP = ABSENT - 1
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&'\u2028\u2029"}


def page_content(
    result: Intervals, audit: Audit | None = None, *, max_entries: int = MAX_PAGE_ENTRIES, command: str = "",
    scores: ScoreLog | None = None,
) -> dict[str, object]:  # fmt: skip
    """The content of the page, ready for JSON."""
    summary = result.summary()
    observed = result.observed
    curve = evidence.widths_by_coverage(result)
    checked = evidence.audit_rows(audit)
    name, say = summary.name or "value", spelling.get()
    history = np.array(getattr(result.source.propensity, "history", ()), float)  # the loss after each step of its fit
    long_name = observed.attrs.get("long_name")
    return {
        "title": name,
        "about": str(long_name) if long_name and str(long_name) != name else "",
        "shape": " × ".join(f"{length} {axis}" for axis, length in summary.axes),
        "units": unit_sign(summary.units),
        "coverage": result.coverage,
        "headline": _headline(summary),
        "notices": _notices(summary, curve, checked, audit),
        "footnote": summary.footnote,
        "tensor": _tensor(result, max_entries),
        "maps": {use: pack_bytes(np.rint(np.asarray(colour_map(use).colors)[:, :3] * 255)) for use in COLOURS},
        "evidence": {
            "audit": checked,
            "hidden": evidence.hidden_rows(result),
            "past": evidence.past_coverage(scores),
            "audit_by_depth": evidence.audit_rows(audit, "depth", result.coverage),
            "verdict": [] if audit is None else audit.verdict().splitlines(),
            "propensity": evidence.widths_by_propensity(result),
            "depth": evidence.widths_by_depth(result),
            "coverage": curve,
            "weights": evidence.weight_concentration(result),
            "loss": history[np.isfinite(history)],
            "stopped": getattr(result.source.propensity, "stopped_because", ""),
        },
        "choices": [
            {"what": c.what, "taken": c.taken, "because": say(c.because) + edge_remark(c), "candidates": c.candidates}
            for c in summary.choices
        ],
        "numbers": summary.rows(),
        "settings": [[key.replace("_", " "), one] for key, one in result.source.settings().items()]
        + [["python", platform.python_version()]],
        "reproduce": _reproduce(result),
        "command": command,
    }


def _headline(summary: Summary) -> list[dict[str, str]]:
    """The most important numbers."""
    total, facts = summary.observed + summary.missing, summary.facts
    unit = unit_sign(summary.units)
    expected = f"{100 * summary.coverage:.3g} of 100 filled entries should lie in their interval"
    cards = [
        (f"{summary.missing / total:.1%}", "", "missing entries, filled", f"{summary.missing:,} of {total:,} entries"),
        (f"{summary.coverage:.4g}", "", "nominal coverage", expected),
    ]
    if summary.missing:
        width = "none" if summary.median_width is None else f"{summary.median_width:.3g}"
        cards.append((width, unit, "median width", "of the finite intervals, upper − lower"))
        error = facts.get("mean_absolute_error_on_hidden_entries")
        if error is not None:
            other = f"{facts['baseline']}: {facts['mean_absolute_error_of_the_baseline']:.3g}"
            cards.append((f"{error:.3g}", unit, "typical error", f"mean absolute error on hidden entries; {other}"))
        note = f"{summary.infinite:,} are infinite at this coverage" if summary.infinite else "none is infinite"
        cards.append((_percent(summary.finite_share), "", "have a finite interval", note))
    size = facts.get("effective_sample_size")
    if size is not None:
        count = facts.get("calibration_entries")
        of = f"of {count:,} {calibration_entries(count)}" if count else "of the calibration entries"
        cards.append((f"{float(size):,.0f}", "", "effective sample size", of))
    return [dict(zip(("value", "unit", "label", "note"), card)) for card in cards]


def _notices(
    summary: Summary, curve: list[evidence.Row], checked: list[evidence.Row], audit: Audit | None
) -> list[dict[str, str]]:
    """Warnings, advice and the conclusion of the audit, one sentence each."""
    notices = [{"kind": "info" if w == NOTHING else "warn", "text": spelling.get()(w)} for w in summary.warnings]
    if summary.missing and summary.finite_share < 1.0 - MAX_INFINITE_SHARE:
        finite = [row["coverage"] for row in curve if row["infinite_share"] <= MAX_INFINITE_SHARE]
        advice = (
            f" At coverage {max(finite):.3g} or less at least 99 % are finite; "
            f"result.at({max(finite):.3g}) needs no new fit."
            if finite
            else f" At coverage {curve[0]['coverage']:.3g} it still is {curve[0]['infinite_share']:.0%}: "
            "the missing entries are too different from the observed ones."
        )
        text = (
            f"{1 - summary.finite_share:.1%} of the filled entries have an infinite interval: "
            f"the calibration entries do not suffice for coverage {summary.coverage:.4g} there.{advice}"
        )
        notices.append({"kind": "warn", "text": text})
    if audit is not None:
        notices.append(_verdict(min(checked, key=lambda row: abs(row["level"] - summary.coverage)), audit))
    elif summary.missing:
        found = summary.facts.get("coverage_on_hidden_entries")
        if found is None:
            text = "No audit was run: the nominal coverage was not checked."
        else:
            text = (
                f"{found:.1%} of the entries that calibration hid lie in intervals that were computed without them. No "
                "audit was run, which repeats the whole fit and is a stronger test."
            )
        notices.append({"kind": "info", "text": text})
    return notices


def _verdict(row: evidence.Row, audit: Audit) -> dict[str, str]:
    level, coverage, error = row["level"], row["coverage"], row["standard_error"]
    kind, text = conclusion(level, coverage, error=error, rounds=len(audit.samples), tolerance=audit.tolerance)
    found = (
        f"The audit found a coverage of {coverage:.1%} at nominal {level:.4g}, on observed entries that were hidden "
        f"again and weighted like the missing ones (standard error {error:.1%}): "
    )
    return {"kind": kind, "text": " ".join([*audit.untested_line(), found + text])}


def _tensor(result: Intervals, max_entries: int) -> dict[str, object]:
    """The arrays of the slice explorer, thinned if they are too large, and their layout."""
    observed = result.observed
    steps = strides_for(observed.shape, max_entries)
    flag = coarse(result.flag_array, steps)
    estimate = coarse(result.estimate_array, steps).astype(np.float64)
    with np.errstate(invalid="ignore"):
        below = estimate - coarse(result.lower_array, steps)
        above = coarse(result.upper_array, steps) - estimate
    outside = flag == FLAG_MEANINGS.index("outside_the_domain")
    below[outside], above[outside] = 0.0, 0.0
    chance = result.source.probabilities
    start = [place // step for place, step in zip(default_entry(result), steps)]
    axes = [
        {
            "name": axis.name,
            "title": title(axis),
            "labels": labels(axis)[::step],
            "numbers": None if (places := numbers(axis)) is None else places[::step],
            "time": axis.coordinates is not None and axis.coordinates.dtype.kind == "M",
        }
        for axis, step in zip(observed.axes, steps)
    ]
    pictures = [
        vars(one) | {"aspect": one.aspect and one.aspect * steps[one.rows] / steps[one.columns]}
        for one in planes(observed.axes)
    ]
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
        "chance": None if chance is None else pack_bytes(np.rint(255 * coarse(np.nan_to_num(chance), steps))),
        "scales": {"value": value_range(estimate), "width": width_range(result), "chance": (0.0, 1.0)},
    }


def edge_remark(choice: Choice) -> str:
    """A remark where the value of a setting is the smallest or largest of the candidates that were tried."""
    if len(choice.candidates) < MIN_CANDIDATES:
        return ""
    for key in choice.candidates[0]:
        values = [one.get(key) for one in choice.candidates]
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
            continue
        numbers_ = sorted({float(str(one)) for one in values})
        taken = [one for one in numbers_ if choice.taken in (f"{one:g}", f"{one:.3g}")]
        if len(numbers_) >= MIN_CANDIDATES and taken and taken[0] in (numbers_[0], numbers_[-1]):
            which = "smallest" if taken[0] == numbers_[0] else "largest"
            return f". This is the {which} of the values tried ({numbers_[0]:.3g} to {numbers_[-1]:.3g})."
    return ""


def _percent(share: float) -> str:
    """A share in percent; 100 % only if it is exactly 1."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    close = min(share, 1.0 - share)
    if close < 5e-5:
        return "> 99.99%" if share > 0.5 else "< 0.01%"
    return f"{share:.1%}" if close >= 5e-4 else f"{share:.2%}"


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


def _reproduce(result: Intervals) -> str:
    """The call that computes this result again; functions and arrays appear by a name that the reader has to define."""
    name = result.observed.name
    source = "x" if name is None else f"data[{name!r}]"
    if result.source.carried:
        call = f'result = corten.load("fit.corten").fill({source}, coverage={result.coverage:g})'
        return f"import corten\n\n{call}  # the fit that filled these data\n"
    given = result.source.settings()
    arguments = [f"coverage={result.coverage:g}"]
    options = [key for key in REPEATED if str(given.get(key, "none")).lower() != "none"]
    arguments += [
        f"{key}={given[key]!r}" if key == "climatology" else f"{key}={_spelled(given[key])}" for key in options
    ]
    axes = result.observed.axes
    arguments.append("axis_kinds={" + ", ".join(f"{axis.name!r}: {axis.kind!r}" for axis in axes) + "}")
    if any(axis.periodic for axis in axes):
        arguments.append(f"periodic={[axis.name for axis in axes if axis.periodic]}")
    found = any(one.code == NEVER_OBSERVED and one.taken == "skipped" for one in result.choices)
    if result.observed.domain is not None and not found:
        arguments.append("where=where")
    elif any(one.code == NEVER_OBSERVED and one.taken == "filled" for one in result.choices):
        arguments.append("fill_never_observed=True")
    call = "import corten\n\nresult = corten.complete(\n    " + ",\n    ".join([source, *arguments]) + ",\n)\n"
    # Labels are not kept, so they appear by a name that the reader has to define.
    asked = [one for one in result.choices if one.code in INTERVAL_OPTIONS]
    shaped = [f"{one.code}={one.values.get(one.code, 'labels')!r}".replace("'labels'", "labels") for one in asked]
    return call + (f"result = result.source.intervals({result.coverage:g}, {', '.join(shaped)})\n" if shaped else "")


def _spelled(value: object) -> str:
    """An option as Python: names in quotes, corten's own objects by their full name."""
    if not isinstance(value, str) or re.fullmatch(r"[a-z-]+(:.+)?", value):
        return repr(value)
    known = re.sub(r"\b([A-Z]\w*)(?=\()", lambda one: f"corten.{one[0]}" if one[0] in PUBLIC else one[0], value)
    return known.removeprefix("function ")


def pack_levels(values: np.ndarray) -> dict[str, float | str]:
    """Quantise to 65,535 even levels, difference along the flat order, deflate: `{low, step, data}`."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    finite = np.isfinite(flat)
    low = float(flat[finite].min()) if finite.any() else 0.0
    high = float(flat[finite].max()) if finite.any() else 0.0
    # Divided before the difference, so that a range near the largest float does not overflow.
    step = high / _TOP - low / _TOP
    codes = np.full(flat.size, ABSENT, np.uint16)
    codes[finite] = np.rint(np.clip(flat[finite] / step - low / step, 0, _TOP)).astype(np.uint16) if step > 0.0 else 0
    moves = np.diff(codes, prepend=np.uint16(0))
    planes = np.concatenate([(moves >> 8).astype(np.uint8), (moves & 255).astype(np.uint8)])
    return {"low": low, "step": step, "data": pack_bytes(planes)}


def pack_bytes(values: np.ndarray) -> str:
    """Bytes, deflated (zlib) and written as base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, np.uint8).tobytes(), 6)).decode("ascii")


def safe_json(content: object) -> str:
    """JSON for a script element, without `<`, so that no label can end the element."""
    text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES).encode("utf-8", "replace").decode("utf-8")


def strides_for(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Steps along each axis that leave at most `most` entries; the longest axis is thinned first."""
    steps = [1] * len(shape)

    def left(k: int) -> int:
        return -(-shape[k] // steps[k])

    while np.prod([left(k) for k in range(len(shape))], dtype=float) > most:
        longest = max(range(len(shape)), key=left)
        steps[longest] += 1
    return tuple(steps)


def coarse(array: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Every stride-th entry along each axis."""
    return array[tuple(slice(None, None, step) for step in strides)]
