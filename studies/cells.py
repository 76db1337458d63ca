"""A cell.

One experiment at one setting, one repetition. It knows its own seeds, so it can run anywhere, in any order, again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

__all__ = ["Cell", "seed_of"]


def seed_of(*what: object) -> int:
    """A seed from anything that can be written down: the same on every machine and in every process.

    Example:
        >>> seed_of("mask", 40, 3) == seed_of("mask", 40, 3) != seed_of("mask", 40, 4)
        True
    """
    return int.from_bytes(sha256(json.dumps(what).encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class Cell:
    """What is computed and stored as one piece: an experiment, its parameters and the number of the repetition.

    Parameters are plain values, kept sorted, so equal cells have equal keys.

    Example:
        >>> cell = Cell.of("conformal", 0, d=40, rank=3)
        >>> cell["d"], cell == Cell.of("conformal", 0, rank=3, d=40)
        (40, True)
    """

    experiment: str
    repetition: int
    parameters: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, experiment: str, repetition: int, **parameters: Any) -> Cell:
        """A cell with these parameters."""
        return cls(experiment, repetition, tuple(sorted(parameters.items())))

    def __getitem__(self, name: str) -> Any:
        return dict(self.parameters)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A parameter, or the default where the cell has none of that name."""
        return dict(self.parameters).get(name, default)

    def as_dict(self) -> Mapping[str, Any]:
        """Everything that says what this cell is."""
        return {"experiment": self.experiment, "repetition": self.repetition, **dict(self.parameters)}

    @property
    def key(self) -> str:
        """The name of its file: readable in front, unique behind."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        front = f"d{self.get('d', 0)}-r{self.get('rank', 0)}-{self.get('model', 'none')}-{self.repetition:02d}"
        return f"{front}-{sha256(text.encode()).hexdigest()[:12]}"

    @property
    def cost(self) -> float:
        """Rough work, in units that only matter relative to each other: for the time left."""
        return float(self.get("d", 40)) ** 2.5 * self.get("rank", 3) ** 0.5
