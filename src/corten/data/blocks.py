"""A tensor as a source of blocks, planes of its first axis, that are read one after the other; in memory it is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

Tell = Callable[[float], None]  # hears the share that is done


class Block(NamedTuple):
    """Planes of a tensor, from plane `start` on: values, NaN where missing, and the domain, None for everywhere."""

    start: int
    values: np.ndarray
    inside: np.ndarray | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.values)

    @property
    def spins(self) -> np.ndarray:
        """What each entry is: 1 observed, -1 missing, 0 outside the domain."""
        spins = np.where(np.isnan(self.values), np.int8(-1), np.int8(1))
        if self.inside is not None:
            spins[~self.inside] = 0
        return spins


class Source(Protocol):
    """A tensor that is read in blocks: `ObservedTensor` in memory, `LazyTensor` from a file or a lazy array."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Values of planes start:stop, NaN where missing, and which entries are in the domain (None: all)."""
        ...


def blocks(source: Source, planes: int | None = None, tell: Tell = lambda share: None) -> Iterator[Block]:
    """The tensor in blocks of so many planes; by default in one block."""
    length = source.shape[0]
    step = planes or length
    for start in range(0, length, step):
        yield Block(start, *source.read(start, min(start + step, length)))
        tell(min(1.0, (start + step) / length))


def cut(whole: Iterator[Block], planes: int) -> Iterator[Block]:
    """The same in smaller blocks: what is read at once is more than one thread works on."""
    for start, values, inside in whole:
        for a in range(0, len(values), planes):
            part = slice(a, a + planes)
            yield Block(start + a, values[part], None if inside is None else inside[part])
