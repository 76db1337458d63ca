"""Plain values for JSON, and sentences that summaries, files and reports share."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

NOTHING = "Nothing was missing: no entry was filled, and every interval has width 0."
FOOTNOTE = "The intervals cover a new noisy observation, on average over the missing entries, not the noiseless field."


def percent(part: int, whole: int) -> str:
    """A share with one decimal; a small one is not rounded to zero.

    >>> percent(1, 8), percent(1, 8000)
    ('12.5%', 'less than 0.1%')
    """
    share = part / whole
    return "less than 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def calibration_entries(count: int) -> str:
    """What to write after their number.

    >>> calibration_entries(1), calibration_entries(2)
    ('calibration entry', 'calibration entries')
    """
    return f"calibration {'entry' if count == 1 else 'entries'}"


def plain(value: object) -> Json:
    """A value as JSON types: NumPy scalars, arrays and tuples are converted; infinities and NaN become text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return str(value)
