"""A user's own function as a completion: array with NaN in, full array out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corten.completion.protocol import Fill
from corten.data.choices import Choice

__all__ = ["CallableCompletion"]


@dataclass(frozen=True)
class CallableCompletion:
    """Wraps `function(array with NaN) -> full array`; its answer is checked, its input is a copy."""

    function: Callable[[np.ndarray], Any]
    choices: tuple[Choice, ...] = ()

    def prepare(
        self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int
    ) -> CallableCompletion:
        return self

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        given = np.where(mask, values, np.nan)
        answer = np.asarray(self.function(given))
        if answer.shape != values.shape:
            raise ValueError(
                f"completion {name!r} returned shape {answer.shape}; it must be the input's, {values.shape}"
            )
        if answer.dtype.kind not in "fiu":
            raise TypeError(f"completion {name!r} returned dtype {answer.dtype}; it must return real numbers")
        bad = int(np.count_nonzero(~np.isfinite(answer)))
        if bad:
            raise ValueError(
                f"completion {name!r} left {bad} entries that are not finite; it must fill every entry"
            )
        return Fill(answer.astype(np.result_type(values.dtype, np.float32), order="C", copy=True))
