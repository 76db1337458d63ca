"""The automatic completion of random splits: the stack with the Tucker completion of the paper as a member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corten.completion.protocol import Prepared
from corten.completion.riemannian import TuckerCompletion
from corten.data.axes import Axis

MIN_STACK_ENTRIES = 1000  # training entries; with fewer, weights are learned on all of them, in folds
MIN_FOLDED_ENTRIES, FOLDS = 12, 5
MAX_STACK_SIZE = 400_000  # entries of the tensor; with more, a Gaussian process takes longer than everything else
MAX_FOLDED_SIZE = 100_000  # every fold is a fill of the whole tensor


@dataclass(frozen=True)
class MixedCompletion:
    """Tucker completion with an automatic ridge, mixed with the members of the stack where sizes allow it.

    Settings and weights come from the entries in the mask of `prepare`, the training entries of a split, as the
    theorem requires. The mean with effects of positions is a member too. Of fewer than a thousand training entries the
    mix is used where it is better than Tucker completion by a standard error of squared errors on held-out training
    entries. Very few training entries and large tensors have the Tucker completion alone.
    """

    engine: object = "auto"

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> Prepared:
        """Choose the settings and the weights from the entries in `mask`."""
        tucker = TuckerCompletion(ridge="auto", engine=self.engine)
        count = int(np.count_nonzero(mask))
        few = count < MIN_STACK_ENTRIES
        if mask.size > (MAX_FOLDED_SIZE if few else MAX_STACK_SIZE) or count < MIN_FOLDED_ENTRIES:
            return tucker.prepare(values, mask, axes, seed)
        # Here, because the members import much that other completions do not need.
        from corten.completion.effects import EffectsCompletion
        from corten.completion.stack import StackedCompletion, default_members

        members = {**default_members(), "effects": EffectsCompletion(), "Tucker": tucker}
        if not few:
            return StackedCompletion(members).prepare(values, mask, axes, seed)
        stack = StackedCompletion(members).prepare_members(values, mask, axes, seed)
        entries = np.flatnonzero(mask)
        fold = np.random.default_rng((seed, 0xF01D)).permutation(count) % FOLDS
        found = {name: np.empty(count) for name in members}
        for number in range(FOLDS):
            hidden = entries[fold == number]
            kept = mask.copy()
            kept.flat[hidden] = False
            for name, estimate in stack.fill(values, kept).members.items():
                found[name][fold == number] = estimate.flat[hidden]
        truth = values.reshape(-1)[entries].astype(np.float64)
        mixed = stack.combine(found, truth)
        gain = (found["Tucker"] - truth) ** 2 - (mixed.mix(found) - truth) ** 2
        if gain.mean() > gain.std() / np.sqrt(count):
            return mixed
        return tucker.prepare(values, mask, axes, seed) if stack.roots else stack.members["Tucker"]
