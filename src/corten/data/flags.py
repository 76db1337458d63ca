"""How an entry of a result got its value: the codes of `result.flag`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FLAG_MEANINGS = (
    "observed", "filled", "filled_with_infinite_interval", "forecast", "outside_the_domain", "filled_beyond_tested",
    "filled_never_observed",
)  # fmt: skip
OBSERVED, FILLED, INFINITE, FORECAST, OUTSIDE, BEYOND, NEVER = range(7)


def flags(spins: np.ndarray, marks: Sequence[tuple[int, np.ndarray | None]]) -> np.ndarray:
    """The code of every entry: of missing ones that of the last mark that holds, where one does.

    spins: 1 observed, -1 missing, 0 outside the domain; marks: codes, each with flat indices, with a boolean array that
    broadcasts to the shape, or with None.

    Examples
    --------
    >>> flags(np.array([1, -1, -1, 0]), [(INFINITE, np.array([2])), (BEYOND, None)]).tolist()
    [0, 1, 2, 4]
    """
    flag = np.full(spins.shape, FILLED, np.int8)
    for code, where in marks:
        if where is not None and where.dtype == bool:
            flag[np.broadcast_to(where, flag.shape)] = code
        elif where is not None:
            flag.reshape(-1)[where] = code
    flag[spins == 1] = OBSERVED
    flag[spins == 0] = OUTSIDE
    return flag
