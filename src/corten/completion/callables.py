"""A function of the user as a completion: array with NaN to full array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from corten.completion.protocol import Fill
from corten.data.axes import Axis
from corten.data.choices import Choice


@dataclass(frozen=True)
class CallableCompletion:
    """A completion from `function(array with NaN) -> full array`; it gets a copy, and its result is checked."""

    function: Callable[[np.ndarray], ArrayLike]
    choices: tuple[Choice, ...] = ()

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> CallableCompletion:
        """Return the completion itself; no setting is chosen."""
        return self

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Call the function and check its result."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        given = np.where(mask, values, np.nan)
        answer = np.asarray(self.function(given))
        if answer.shape != values.shape:
            raise ValueError(
                f"completion {name!r} returned shape {answer.shape}; it must return that of its input, {values.shape}"
            )
        if answer.dtype.kind not in "fiu":
            raise TypeError(f"completion {name!r} returned dtype {answer.dtype}; it must return real numbers")
        bad = int(np.count_nonzero(~np.isfinite(answer)))
        if bad:
            raise ValueError(
                f"completion {name!r} returned {bad} entries that are not finite; it must fill every entry"
            )
        return Fill(answer.astype(np.result_type(values.dtype, np.float32), order="C", copy=True))
