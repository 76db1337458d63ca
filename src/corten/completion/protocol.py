"""The protocols of completions: `prepare` chooses the settings once, `fill` fills any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from corten.data.axes import Axis
from corten.data.choices import Choice

__all__ = ["Completion", "Fill", "Prepared", "PreparedMix", "on_axes"]


@dataclass(frozen=True)
class Fill:
    """A filled tensor.

    Parameters
    ----------
    estimate : array
        The estimate of every entry.
    members : dict of arrays
        The estimates of the members of a stack, by name; empty for a single method.
    leverage : callable, optional
        Returns the leverage of every entry, for methods that have it.
    """

    estimate: np.ndarray
    members: dict[str, np.ndarray] = field(default_factory=dict)
    leverage: Callable[[], np.ndarray] | None = None


@runtime_checkable
class Prepared(Protocol):
    """A completion with chosen settings."""

    @property
    def choices(self) -> tuple[Choice, ...]: ...

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill the tensor from the entries where `mask` is True; other `values` are not read."""
        ...


@runtime_checkable
class PreparedMix(Prepared, Protocol):
    """A prepared stack: its fills have members, and their weights can be learned."""

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedMix:
        """The stack with weights learned from the members' estimates of hidden entries and their truth."""
        ...

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """The weighted mean of the members: full arrays, or values at some entries."""
        ...


@runtime_checkable
class Completion(Protocol):
    """A completion; `prepare` must use only entries where `mask` is True."""

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> Prepared: ...


def on_axes(prepared: Prepared, axes: Sequence[Axis]) -> Prepared:
    """The same settings for data on other axes (a longer time), by the method `on_axes` of a completion that has it.

    Completions whose settings do not depend on positions need no such method.
    """
    moved: Prepared = prepared.on_axes(axes) if hasattr(prepared, "on_axes") else prepared
    return moved
