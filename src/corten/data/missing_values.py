"""Numbers that stand for a missing value: declared ones, and suspected ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import numpy as np

from corten.data.choices import Choice

MissingValue = float | Sequence[float] | None
MIN_REPEATS = 3  # entries with a suspected value
MIN_OTHERS, MIN_DISTINCT = 20, 10  # other entries, and different values of them
MIN_DISTANCE_USUAL, MIN_DISTANCE = 1.0, 5.0  # to the other values, in ranges of them: of a usual code, of any number
MAX_SUSPECTS = 6
EXACT_BELOW = 1e9  # larger codes are compared in single precision, in which many files hold them
USUAL = {255, 32767, 65535, 2147483647, 4294967295, -32767, -32768, -2147483647, -2147483648}
TO_DECLARE = "missing_value={code!r}"


def codes_of(missing_value: MissingValue) -> tuple[float, ...]:
    """The declared numbers as a tuple; text and booleans are refused."""
    if missing_value is None:
        return ()
    many = isinstance(missing_value, Sequence | np.ndarray | set) and not isinstance(missing_value, str)
    given: Sequence[float] = missing_value if many else (missing_value,)  # type: ignore[assignment]  # checked below
    for one in given:
        if isinstance(one, bool | np.bool_) or not isinstance(one, Real):
            raise TypeError(f"missing_value is {missing_value!r}: give numbers, such as -9999 or [-9999, 1e20]")
    return tuple(float(one) for one in given)


def declared_by(attrs: Mapping[str, object]) -> tuple[float, ...]:
    """Missing values in the attributes of a DataArray (present if the file was not decoded)."""
    given = [np.ravel(np.asarray(attrs[key])) for key in ("_FillValue", "missing_value") if key in attrs]
    return tuple(float(one) for values in given if values.dtype.kind in "iuf" for one in values)


def blank_declared(values: np.ndarray, codes: Sequence[float]) -> tuple[Choice, ...]:
    """Set the entries of a float array that equal a code to NaN, in place; records their number."""
    choices = []
    for code in codes:
        if math.isnan(code):
            continue
        found = values == values.dtype.type(code)
        if EXACT_BELOW < abs(code) < math.inf:
            found |= np.isclose(values, code, rtol=1e-6, atol=0.0)
        count = int(np.count_nonzero(found))
        values[found] = np.nan
        choices.append(Choice("missing value", f"{code:.10g}", f"declared; {count:,} entries have it"))
    return tuple(choices)


def suspects(values: np.ndarray) -> list[tuple[float, int]]:
    """Repeated extreme values far outside all others, each with its count; NaN is ignored."""
    flat = np.ravel(values)
    lows, highs = _from_the_end(flat, np.min, np.greater, np.inf), _from_the_end(flat, np.max, np.less, -np.inf)
    size = int(np.count_nonzero(~np.isnan(flat)))
    found: list[tuple[float, int]] = []
    for below in range(len(lows)):
        for above in range(len(highs)):
            ends = lows[:below] + highs[:above]
            (low, _), (high, _) = lows[below], highs[above]
            if low >= high or size - sum(count for _, count in ends) < MIN_OTHERS:
                continue
            far = [end for end in ends if end[1] >= MIN_REPEATS and _is_far(end[0], low, high)]
            nearest = [end for end in lows[below - 1 : below] + highs[above - 1 : above] if end[1] >= MIN_REPEATS]
            if len(far) > len(found) and set(nearest) <= set(far):
                found = far
    if not all(_usual(code) for code, _ in found):
        codes = [code for code, _ in found]
        if not _varied(flat[~(np.isnan(flat) | np.isin(flat, codes))]):
            found = [(code, count) for code, count in found if _usual(code)]
    return found


def _from_the_end(
    flat: np.ndarray, extreme: Callable[..., float], inside: np.ufunc, beyond: float
) -> list[tuple[float, int]]:
    """The outermost values of one side with their counts, up to the second that is not repeated."""
    found: list[tuple[float, int]] = []
    within: np.ndarray = ~np.isnan(flat)
    while len(found) <= MAX_SUSPECTS and within.any() and sum(count < MIN_REPEATS for _, count in found) < 2:
        end = extreme(flat, where=within, initial=beyond)
        found.append((float(end), int(np.count_nonzero(flat == end))))
        within = inside(flat, end)
    return found


def report_suspects(values: np.ndarray, part: str = "") -> tuple[Choice, ...]:
    """Warn of suspected missing values and record them; the values are not changed.

    part: says that these are not all values, such as " (in 9 of 100 planes)".
    """
    found = suspects(values)
    if not found:
        return ()
    others = values[~np.isnan(values) & ~np.isin(values, [code for code, _ in found])]
    inside = f"{others.min():.6g} to {others.max():.6g}"
    choices = []
    for code, count in found:
        reason = f"{count:,} entries{part} are exactly {code:.10g}, far outside all others ({inside}), and are "
        reason += "used as data."
        reason += f" If {code:.10g} stands for missing, declare it: {TO_DECLARE.format(code=code)}."
        warnings.warn(reason, UserWarning, stacklevel=5)
        choices.append(Choice("missing value", "suspected", reason))
    return tuple(choices)


def _is_far(code: float, low: float, high: float) -> bool:
    """Whether a value is far outside the others, low to high; a usual code of another sign always is."""
    if _usual(code) and (code < 0 <= low or high <= 0 < code):
        return True
    return max(low - code, code - high) > (MIN_DISTANCE_USUAL if _usual(code) else MIN_DISTANCE) * (high - low)


def _usual(code: float) -> bool:
    """Whether data centres use the code: only nines (-99.9 too), limits of integer types, and numbers above 1e10."""
    whole, tenths = f"{abs(code):.10g}", f"{abs(code):.6g}"  # in single precision -99.9 is -99.9000015
    nines = (set(whole) == {"9"} and len(whole) > 1) or (set(tenths) == {"9", "."} and len(tenths) > 3)
    return nines or abs(code) >= 1e10 or code in USUAL


def _varied(others: np.ndarray) -> bool:
    """Whether the other values are measurements and not a few classes."""
    return len(np.unique(others[:: max(1, others.size // 10_000)])) >= MIN_DISTINCT
