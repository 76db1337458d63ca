"""Numbers that stand for a missing value: declared ones, and suspected ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from corten.data.choices import Choice

__all__ = ["MissingValue", "blank_declared", "codes_of", "report_suspects", "suspects"]

MissingValue = float | Sequence[float] | None
MIN_REPEATS = 3  # entries with a suspected value
MIN_OTHERS, MIN_DISTINCT = 20, 10  # other entries, and different values of them
MIN_DISTANCE_USUAL, MIN_DISTANCE = 1.0, 5.0  # to the other values, in ranges of them: of a usual code, of any number
MAX_SUSPECTS = 6
EXACT_BELOW = 1e9  # larger codes are compared in single precision, in which many files hold them
USUAL = {32767, 65535, 2147483647, 4294967295, -32767, -32768, -2147483647, -2147483648}
TO_DECLARE = "missing_value={code!r} in Python, --missing-value {code!r} on the command line"


def codes_of(missing_value: MissingValue) -> tuple[float, ...]:
    """The declared numbers as a tuple; text and booleans are refused.

    Examples
    --------
    >>> codes_of(-9999), codes_of([-9999, 1e20]), codes_of(None)
    ((-9999.0,), (-9999.0, 1e+20), ())
    """
    if missing_value is None:
        return ()
    several = isinstance(missing_value, Sequence | np.ndarray | set) and not isinstance(missing_value, str)
    given: Any = missing_value if several else (missing_value,)
    for one in given:
        if isinstance(one, bool | np.bool_) or not isinstance(one, Real):
            raise TypeError(f"missing_value is {missing_value!r}: give numbers, such as -9999 or [-9999, 1e20]")
    return tuple(float(one) for one in given)


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
    """Repeated extreme values far outside all others, each with its count; NaN is ignored.

    Examples
    --------
    >>> x = np.concatenate([np.linspace(10, 30, 50), np.full(7, -9999.0)])
    >>> suspects(x)
    [(-9999.0, 7)]
    """
    rest = np.ravel(values)
    found: list[tuple[float, int]] = []
    while rest.size >= MIN_OTHERS and len(found) < MAX_SUSPECTS:
        extremes = [(one, int(np.count_nonzero(rest == one))) for one in (np.fmin.reduce(rest), np.fmax.reduce(rest))]
        repeated = [(float(one), count) for one, count in extremes if count >= MIN_REPEATS]
        if not repeated:
            break
        others = rest[~(np.isnan(rest) | np.isin(rest, [one for one, _ in repeated]))]
        if others.size < MIN_OTHERS:
            break
        low, high = float(others.min()), float(others.max())
        far = [(one, count) for one, count in repeated if max(low - one, one - high) > _far(one) * (high - low)]
        if not far or not _varied(others):
            break
        found += far
        rest = rest[~np.isin(rest, [one for one, _ in far])]
    return found


def report_suspects(values: np.ndarray) -> tuple[Choice, ...]:
    """Warn of suspected missing values and record them; the values are not changed."""
    found = suspects(values)
    if not found:
        return ()
    others = values[~np.isnan(values) & ~np.isin(values, [code for code, _ in found])]
    inside = f"{others.min():.6g} to {others.max():.6g}"
    choices = []
    for code, count in found:
        reason = f"{count:,} entries are exactly {code:.10g}, far outside all others ({inside}), and are used as data."
        reason += f" If {code:.10g} stands for missing, declare it: {TO_DECLARE.format(code=code)}."
        warnings.warn(reason, UserWarning, stacklevel=5)
        choices.append(Choice("missing value", "suspected", reason))
    return tuple(choices)


def _far(code: float) -> float:
    return MIN_DISTANCE_USUAL if _usual(code) else MIN_DISTANCE


def _usual(code: float) -> bool:
    """Whether data centres use the code: only nines, limits of integer types, and numbers above 1e10."""
    digits = f"{abs(code):.10g}"
    return abs(code) >= 1e10 or code in USUAL or (set(digits) == {"9"} and len(digits) > 1)


def _varied(others: np.ndarray) -> bool:
    """Whether the other values are measurements and not a few classes."""
    return len(np.unique(others[:: max(1, others.size // 10_000)])) >= MIN_DISTINCT
