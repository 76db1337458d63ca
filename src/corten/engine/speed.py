"""How fast this processor is: predicted seconds of a fit are those of one processor, multiplied by this."""

from __future__ import annotations

from functools import cache
from time import thread_time

import numpy as np
import scipy.fft

from corten.engine.threads import one_library_thread

REFERENCE_SECONDS = 0.0200  # of `_work` on the processor on which the constants of predictions were measured
REPEATS = 5  # the fastest counts: others were interrupted


@cache
def relative_seconds() -> float:
    """CPU seconds of a short piece of work on this processor, over those of the processor of the predictions."""
    field = np.random.default_rng(0).standard_normal((48, 64, 64), dtype=np.float32)
    rows = np.random.default_rng(1).standard_normal((64, 64), dtype=np.float32)
    with one_library_thread:
        return min(_seconds(field, rows) for _ in range(REPEATS)) / REFERENCE_SECONDS


def _seconds(field: np.ndarray, rows: np.ndarray) -> float:
    """CPU seconds of what a fit does most: products along axes, cosine transforms, sums of arrays, sorting."""
    began = thread_time()
    found = (field.reshape(-1, 64) @ rows).reshape(field.shape)
    found = scipy.fft.dctn(found, axes=(0, 1), norm="ortho")
    found = np.exp(-np.abs(found)) * field + found
    np.sort(found.ravel()[:50_000])
    return thread_time() - began
