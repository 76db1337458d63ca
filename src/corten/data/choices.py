"""The record of every setting: its value, the reason, and the candidates it was taken from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from corten.data.printable import printable


@dataclass(frozen=True)
class Choice:
    """One setting that was chosen, kept so that summary, report and saved file can show it.

    Parameters
    ----------
    what, taken, because : str
        The name of the setting, its value, and the reason as a sentence for people.
    candidates : tuple of dict
        What was compared, one mapping per candidate.
    code : str
        A short, stable identifier of the outcome. Programs compare codes, never sentences; "" where none is needed.
    values : mapping
        The numbers and texts behind the sentence, by name.

    Examples
    --------
    >>> Choice("propensity rank", "3", "smallest P-AIC", code="rank_by_p_aic", values={"rank": 3}).values["rank"]
    3
    """

    what: str
    taken: str
    because: str
    candidates: tuple[dict[str, object], ...] = ()
    code: str = ""
    values: Mapping[str, object] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return printable(f"{self.what}: {self.taken} ({self.because})")
