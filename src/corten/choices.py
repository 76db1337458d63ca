"""The record of every automatic choice: what was asked, what was taken, and on which evidence."""

from __future__ import annotations

from dataclasses import dataclass

from corten.printable import printable

__all__ = ["Choice"]


@dataclass(frozen=True)
class Choice:
    """One automatic choice, kept so that summary, report and saved file can show it.

    Example:
        >>> Choice("propensity rank", "3", "smallest P-AIC").taken
        '3'
    """

    what: str
    taken: str
    because: str
    candidates: tuple[dict[str, object], ...] = ()

    def __str__(self) -> str:
        return printable(f"{self.what}: {self.taken} ({self.because})")
