"""What a completion is: it chooses its settings once, then fills as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from corten.data.choices import Choice

__all__ = ["Completion", "Fill", "Prepared", "PreparedMix"]


@dataclass(frozen=True)
class Fill:
    """A filled tensor and what its maker knows about it.

    members: what was mixed, by name (empty for one method); leverage: computes the relative uncertainty of
    every entry, where the method knows it.
    """

    estimate: np.ndarray
    members: dict[str, np.ndarray] = field(default_factory=dict)
    leverage: Callable[[], np.ndarray] | None = None


@runtime_checkable
class Prepared(Protocol):
    """A completion whose settings are chosen."""

    @property
    def choices(self) -> tuple[Choice, ...]: ...

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill the tensor from the entries where `mask` is True; `values` elsewhere are not read."""
        ...


@runtime_checkable
class PreparedMix(Prepared, Protocol):
    """A prepared completion whose fills have members, and that learns how to mix them."""

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedMix:
        """Learn the mix from the members' values at hidden entries and their truth."""
        ...

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """The members mixed as learned: full arrays, or values at some entries."""
        ...


@runtime_checkable
class Completion(Protocol):
    """Fills a tensor. `prepare` may look only at entries where `mask` is True."""

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> Prepared: ...
