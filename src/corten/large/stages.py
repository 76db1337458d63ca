"""The first look at a tensor in files: training entries are drawn, masks go to scratch files, entries are counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from corten.calibration.split import TrainingDraw
from corten.data.blocks import Tell, blocks
from corten.data.observed import largest_size, refuse_extreme
from corten.engine.memory import file_tensor, let_go
from corten.io.lazy import LazyTensor


@dataclass
class Scratch:
    """Tensors in files: spins of the full mask, of the training mask, and one number per entry.

    The number is the centred and scaled value during the completion, then the sketch cell of a calibration score.
    """

    observed: np.ndarray
    train: np.ndarray
    numbers: np.ndarray

    @staticmethod
    def of(shape: tuple[int, ...]) -> Scratch:
        return Scratch(file_tensor(shape, np.int8), file_tensor(shape, np.int8), file_tensor(shape, np.float32))

    @property
    def cells(self) -> np.ndarray:
        return self.numbers.view(np.int32)


@dataclass
class Counts:
    """Numbers of entries of each kind, mean and spread of the training set, and which slices have observed entries."""

    train: int = 0
    hidden: int = 0
    missing: int = 0
    outside: int = 0
    mean: float = 0.0
    squares: float = 0.0
    has_observed: list[np.ndarray] = field(default_factory=list)

    @property
    def spread(self) -> float:
        return float(np.sqrt(self.squares / self.train)) or 1.0

    def add(self, start: int, spins: np.ndarray, trained: np.ndarray) -> None:
        """Add a block: what its entries are, and the values of those that train."""
        mask = spins == 1
        self.hidden += int(np.count_nonzero(mask)) - trained.size
        self.missing += int(np.count_nonzero(spins == -1))
        self.outside += int(np.count_nonzero(spins == 0))
        for k, known in enumerate(self.has_observed):
            part = known if k else known[start : start + len(mask)]
            part |= mask.any(axis=tuple(j for j in range(mask.ndim) if j != k))
        if trained.size:  # mean and squared deviations of two samples together (Chan)
            count, mean = trained.size, float(trained.mean())
            difference, whole = mean - self.mean, self.train + count
            self.squares += float(np.square(trained - mean).sum()) + difference**2 * self.train * count / whole
            self.mean += difference * count / whole
            self.train = whole


def look(lazy: LazyTensor, scratch: Scratch, *, block: int, train_share: float, seed: int, tell: Tell) -> Counts:
    """Read everything once: draw the training entries, masks to scratch, and count."""
    draw, largest = TrainingDraw(train_share, seed), 0.0
    counts = Counts(has_observed=[np.zeros(n, bool) for n in lazy.shape])
    for one in blocks(lazy, block, tell):
        planes, spins = slice(one.start, one.stop), one.spins
        largest = max(largest, largest_size(one.values))
        if largest > 1:  # small values may be followed by larger ones; too large ones cannot be squared
            refuse_extreme(largest)
        train = np.stack([draw.of(plane == 1) for plane in spins])
        counts.add(one.start, spins, one.values[train].astype(np.float64))
        for kept, found in ((scratch.observed, spins), (scratch.train, train)):
            kept[planes] = found
            let_go(kept[planes])
    refuse_extreme(largest)
    return counts
