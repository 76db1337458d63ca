"""Passes over a mask or over data on a cluster: what `MaskPass` and `ResidualPass` are for threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from corten.engine.arithmetic import PRODUCT
from corten.engine.cluster_blocks import MaskBlock, Part, ResidualBlock, SoftRecipe, local_frame, parts_of, rows_of
from corten.engine.cluster_placement import Blocks, planes_in, warn_of_chunks
from corten.engine.passes import FrameLike, Model, PlainFrame, check_spins, size_of, whole

if TYPE_CHECKING:
    from corten.engine.cluster import Cluster

_softs = count()


class ClusterMaskPass:
    """Passes over one mask of spins, as `MaskPass`, on the workers of a cluster."""

    def __init__(self, cluster: Cluster, spins: Any, model: Model, train_share: float) -> None:
        check_spins(spins, train_share)
        self.spins, self.model, self.train_share, self.passes = spins, model, float(train_share), 0
        workers = cluster.workers()
        radius = int(np.abs(np.asarray(model.offsets)[:, 0]).max(initial=0)) if model.coupling_kind else 0
        # Expected spins of the planes next to a block need their own neighbours too.
        halo = radius * (2 if train_share < 1 and model.coupling_kind == PRODUCT else 1)
        shares = list(workers.values())
        self.parts = parts_of(planes_in(spins, "the mask"), shares, radius, halo, bool(model.periodic[0]))
        warn_of_chunks(spins, self.parts, "the mask")
        make = partial(MaskBlock, model=model, train_share=self.train_share, inside=cluster.inside)
        self.blocks = Blocks(cluster, self.parts, [spins], make, workers)

    def loss_and_contractions(self, frame: FrameLike, soft: SoftRecipe | None = None) -> tuple[float, list[np.ndarray]]:
        """The pseudo-likelihood loss (eq. low-rank-MPLE) and its gradient contracted with the frame. One pass."""
        self.passes += 1
        given = []
        for part in self.parts:
            recipe = None if soft is None else SoftRecipe(soft.number, local_frame(soft.frame, part.held))
            given.append((local_frame(frame, part.held), recipe))
        return added(self.blocks.ask("loss_and_contractions", given), self.parts, frame)

    def log_odds(self, cores: Sequence[np.ndarray]) -> np.ndarray:
        """eta of every entry as one float32 array here, with neighbours read from these spins."""
        return whole(self.spins.shape, self.log_odds_slabs(cores))

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """eta block by block: (start, stop, planes start:stop). One pass."""
        self.passes += 1
        found = self.blocks.ask("log_odds", [(rows_of(cores, part.held),) for part in self.parts])
        for part, eta in zip(self.parts, found):
            yield part.start, part.stop, eta

    def effective_size(self, cores: Sequence[np.ndarray]) -> float:
        """Effective sample size of the weights exp(-eta) on the training entries, without moving eta. One pass."""
        self.passes += 1
        found = self.blocks.ask("weight_sums", [(rows_of(cores, part.held),) for part in self.parts])
        return size_of(found)

    def soft_spins(self, frame: FrameLike) -> SoftRecipe:
        """Expected spins of entries not in training, as `MaskPass.soft_spins`; workers compute and keep them."""
        self.passes += 1
        return SoftRecipe(next(_softs), PlainFrame(tuple(frame.left), tuple(frame.right)))


class ClusterResidualPass:
    """Passes over `values` (float32 or int8) where `mask` (bool or int8) is not zero, as `ResidualPass`."""

    def __init__(self, cluster: Cluster, values: Any, mask: Any) -> None:
        self.values, self.mask, self.shape, self.passes = values, mask, values.shape, 0
        workers = cluster.workers()
        self.parts = parts_of(planes_in(values, "the data"), list(workers.values()), 0, 0, False)
        warn_of_chunks(values, self.parts, "the data")
        make = partial(ResidualBlock, inside=cluster.inside)
        self.blocks = Blocks(cluster, self.parts, [values, None if mask is values else mask], make, workers)

    def loss_and_contractions(self, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        """Half the squared error on the observed entries and the contractions of its gradient. One pass."""
        return self._run("loss_and_contractions", frame)

    def contractions_of_data(self, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        """Half the data's sum of squares and their contractions with a frame, missing entries as zero. One pass."""
        return self._run("contractions_of_data", frame)

    def _run(self, method: str, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        self.passes += 1
        found = self.blocks.ask(method, [(local_frame(frame, part.held),) for part in self.parts])
        return added(found, self.parts, frame)


def added(
    found: Sequence[tuple[float, list[np.ndarray]]], parts: Sequence[Part], frame: FrameLike
) -> tuple[float, list[np.ndarray]]:
    """Losses and contractions of blocks as those of the whole, in the order of the blocks."""
    total, first = 0.0, np.zeros(frame.left[0].shape)
    others = [np.zeros(np.shape(part)) for part in found[0][1][1:]]
    for part, (loss, contractions) in zip(parts, found):
        total += loss
        # A plane may be held twice where a short periodic axis closes: it gets both shares.
        np.add.at(first[0], part.held, contractions[0][0])
        for have, more in zip(others, contractions[1:]):
            have += more
    return total, [first, *others]
