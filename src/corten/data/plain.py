"""Plain values for JSON, and sentences that summaries, files and reports share."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FOOTNOTE", "NOTHING", "plain"]

NOTHING = "Nothing was missing: no entry was filled, and every interval has width 0."
FOOTNOTE = (
    "The intervals cover a new noisy observation, on average over the missing entries, "
    "not the noiseless field."
)


def plain(value: Any) -> Any:
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
