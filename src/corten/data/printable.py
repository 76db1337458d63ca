"""Text from a file, made safe to show: a label must not steer the terminal it is printed on."""

from __future__ import annotations

import re

__all__ = ["printable"]

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text with characters that could steer a terminal or turn a line around made visible.

    Example:
        >>> printable("a" + chr(27) + "[2J")
        'a\\\\x1b[2J'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
