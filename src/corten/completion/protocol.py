"""What a completion is: it chooses its settings once, then fills as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from corten.choices import Choice

__all__ = ["Completion", "Fill", "Prepared"]


@dataclass(frozen=True)
class Fill:
    """A filled tensor and what its maker knows about it.

    members: what was mixed, by name (empty for one method); leverage: computes the relative uncertainty of
    every entry, where the method knows it; warm: handed to the next fill.
    """

    estimate: np.ndarray
    members: dict[str, np.ndarray] = field(default_factory=dict)
    leverage: Callable[[], np.ndarray] | None = None
    warm: object | None = None


@runtime_checkable
class Prepared(Protocol):
    """A completion whose settings are chosen."""

    @property
    def choices(self) -> tuple[Choice, ...]: ...

    def fill(self, values: np.ndarray, mask: np.ndarray, warm: object | None = None) -> Fill:
        """Fill the tensor from the entries where `mask` is True; `values` elsewhere are not read."""
        ...

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> Prepared:
        """Learn from hidden entries how to mix members; a method with one member returns itself."""
        ...

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """The members mixed as learned; asked only of a method whose fills have members."""
        ...


@runtime_checkable
class Completion(Protocol):
    """Fills a tensor. `prepare` may look only at entries where `mask` is True."""

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> Prepared: ...
