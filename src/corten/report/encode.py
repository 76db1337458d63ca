"""Arrays and text for the page: compressed, exact to 1/65,000 of the range, and safe inside a script element."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence

import numpy as np

from corten.data.plain import plain

ABSENT = 65535  # code of an entry without a finite value: outside the domain, or an infinite width
_TOP = ABSENT - 1
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&'\u2028\u2029"}


def pack_levels(values: np.ndarray) -> dict[str, float | str]:
    """Quantise to 65,535 even levels, difference along the flat order, deflate: `{low, step, data}`."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    finite = np.isfinite(flat)
    low = float(flat[finite].min()) if finite.any() else 0.0
    high = float(flat[finite].max()) if finite.any() else 0.0
    # Divided before the difference, so that a range near the largest float does not overflow.
    step = high / _TOP - low / _TOP
    codes = np.full(flat.size, ABSENT, np.uint16)
    codes[finite] = np.rint(np.clip(flat[finite] / step - low / step, 0, _TOP)).astype(np.uint16) if step > 0.0 else 0
    moves = np.diff(codes, prepend=np.uint16(0))
    planes = np.concatenate([(moves >> 8).astype(np.uint8), (moves & 255).astype(np.uint8)])
    return {"low": low, "step": step, "data": pack_bytes(planes)}


def pack_bytes(values: np.ndarray) -> str:
    """Bytes, deflated (zlib) and written as base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, np.uint8).tobytes(), 6)).decode("ascii")


def safe_json(content: object) -> str:
    """JSON for a script element, without `<`, so that no label can end the element."""
    text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES).encode("utf-8", "replace").decode("utf-8")


def strides_for(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Steps along each axis that leave at most `most` entries; the longest axis is thinned first."""
    steps = [1] * len(shape)

    def left(k: int) -> int:
        return -(-shape[k] // steps[k])

    while np.prod([left(k) for k in range(len(shape))], dtype=float) > most:
        longest = max(range(len(shape)), key=left)
        steps[longest] += 1
    return tuple(steps)


def coarse(array: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Every stride-th entry along each axis."""
    return array[tuple(slice(None, None, step) for step in strides)]
