"""The check of a nominal coverage, shared by everything that takes one."""

from __future__ import annotations

import numpy as np


def check_coverage(coverage: object) -> float:
    """A nominal coverage as a float; an error unless it is strictly between 0 and 1."""
    if isinstance(coverage, bool | str | bytes) or not np.isscalar(coverage) or isinstance(coverage, complex):
        raise TypeError(f"coverage is {coverage!r}: give a number between 0 and 1, such as 0.9")
    level = float(coverage)  # type: ignore[arg-type]
    if not 0.0 < level < 1.0:
        hint = f"; {level:g} percent is coverage={level / 100:g}" if 1.0 < level < 100.0 else ""
        raise ValueError(f"coverage is {level:g}: give a number strictly between 0 and 1, such as 0.9{hint}")
    return level


def check_coverages(coverage: object) -> tuple[float, ...]:
    """One or several nominal coverages, each checked."""
    return tuple(check_coverage(one) for one in (coverage if isinstance(coverage, list | tuple) else [coverage]))
