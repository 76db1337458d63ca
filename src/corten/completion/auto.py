"""The automatic completion of random splits: the stack with the Tucker completion of the paper as a member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corten.completion.protocol import Prepared
from corten.completion.riemannian import TuckerCompletion
from corten.data.axes import Axis

MIN_STACK_ENTRIES = 1000  # training entries; with fewer, the weights of a mix are noise and it is slower than needed
MAX_STACK_SIZE = 400_000  # entries of the tensor; with more, a Gaussian process takes longer than everything else


@dataclass(frozen=True)
class MixedCompletion:
    """Tucker completion with an automatic ridge, mixed with the members of the stack where sizes allow it.

    Settings and weights come from the entries in the mask of `prepare`, the training entries of a split, as the
    theorem requires. Few training entries and large tensors have the Tucker completion alone.
    """

    engine: object = "auto"

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> Prepared:
        """Choose the settings and the weights from the entries in `mask`."""
        tucker = TuckerCompletion(ridge="auto", engine=self.engine)
        if np.count_nonzero(mask) < MIN_STACK_ENTRIES or mask.size > MAX_STACK_SIZE:
            return tucker.prepare(values, mask, axes, seed)
        # Here, because the members import much that other completions do not need.
        from corten.completion.stack import StackedCompletion, default_members

        return StackedCompletion({**default_members(), "Tucker": tucker}).prepare(values, mask, axes, seed)
