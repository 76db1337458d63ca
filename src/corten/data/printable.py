"""Text from a file, made safe to print on a terminal; units as people write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar

spelling: ContextVar[Callable[[str], str]] = ContextVar("spelling", default=str)
"""How messages write settings: as keywords of Python, or as options while a command runs (`cli/spelling.py`)."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

UNIT_SIGNS = {
    **dict.fromkeys(("degree_celsius", "degrees_celsius", "celsius", "degc", "deg_c"), "°C"),
    "kelvin": "K", "percent": "%", "1": "",
}  # fmt: skip


def printable(text: str) -> str:
    """Text with visible codes instead of control characters and characters that reverse a line."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), spelling.get()(text))


def unit_sign(units: str | None) -> str:
    """The unit as people write it.

    Examples
    --------
    >>> unit_sign("degree_Celsius"), unit_sign("TECU"), unit_sign(None)
    ('°C', 'TECU', '')
    """
    return "" if units is None else UNIT_SIGNS.get(units.lower(), units)
