"""Text from a file, made safe to print on a terminal."""

from __future__ import annotations

import re

__all__ = ["printable"]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text with visible codes instead of control characters and characters that reverse a line.

    Examples
    --------
    >>> printable("a" + chr(27) + "[2J")
    'a\\\\x1b[2J'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
