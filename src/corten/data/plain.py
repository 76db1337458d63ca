"""What everything that is written shares: values as JSON knows them, and the sentence on what intervals cover."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FOOTNOTE", "NOTHING", "plain"]

NOTHING = "Nothing was missing: there was nothing to fill, and every interval has zero width."
FOOTNOTE = (
    "The intervals cover a new noisy observation, on average over the missing entries, "
    "not the noiseless field."
)


def plain(value: Any) -> Any:
    """Numpy scalars, arrays, tuples and the like as what JSON knows; infinities and NaN as text."""
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
