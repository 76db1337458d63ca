"""The stack: several completions mixed with weights that were learned where the truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.optimize

from corten.completion.axes_kinds import axis_kinds, pseudo_gap
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.completion.protocol import Completion, Fill, Prepared, on_axes
from corten.completion.smooth import SmoothCompletion
from corten.completion.unfoldings import UnfoldingCompletion
from corten.data.choices import Choice

__all__ = ["PreparedStack", "StackedCompletion", "default_members", "simplex_weights"]

ROUNDS = 2
HIDDEN_SHARE = 0.15  # of the observed entries at most, in a round
BEYOND = 0.5
"""Members may leave the observed range by this share of it, no further: none can explode."""


def default_members() -> dict[str, Completion]:
    """A smoother, a Gaussian process, which starts from it, and a low-rank model."""
    return {
        "pyramid": SmoothCompletion(),
        "Gaussian process": GaussianProcessCompletion(),
        "low rank": UnfoldingCompletion(),
    }


def simplex_weights(members: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Non-negative weights with sum one and the least squared error; `members` is (entries, members)."""
    count = members.shape[1]
    errors = members - truth[:, None]
    gram = errors.T @ errors
    size = float(np.trace(gram)) / count
    if count == 1 or not size > 0:
        return np.full(count, 1 / count)
    # A small ridge makes alike members share their weight instead of tossing for it.
    gram = gram / size + 1e-3 * np.eye(count)
    # min w'Gw on the simplex is a non-negative least squares problem with a heavy row for the sum.
    root = np.linalg.cholesky(gram).T
    heavy = 1e3 * np.ones((1, count))
    weights, _ = scipy.optimize.nnls(np.vstack([root, heavy]), np.concatenate([np.zeros(count), [1e3]]))
    return weights / weights.sum()


@dataclass(frozen=True)
class PreparedStack:
    """Prepared members and the weights of their mix."""

    members: dict[str, Prepared] = field(repr=False)
    weights: dict[str, float]
    learned: str = ""

    @property
    def choices(self) -> tuple[Choice, ...]:
        mix = ", ".join(f"{name} {weight:.2f}" for name, weight in self.weights.items())
        own = tuple(choice for member in self.members.values() for choice in member.choices)
        return (Choice("mix of completions", mix, self.learned or "nothing was hidden: equal weights"), *own)

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        known = values[mask]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
        slack = BEYOND * (high - low)
        filled: dict[str, np.ndarray] = {}
        for name, member in self.members.items():
            if filled and hasattr(member, "fill_from"):
                start = sum(filled.values()) / len(filled)
                estimate = member.fill_from(values, mask, start).estimate
            else:
                estimate = member.fill(values, mask).estimate
            filled[name] = np.clip(np.nan_to_num(estimate, nan=(low + high) / 2), low - slack, high + slack)
        return Fill(self.mix(filled), filled)

    def on_axes(self, axes: Sequence[Any]) -> PreparedStack:
        """The stack with its members on other axes."""
        return replace(self, members={name: on_axes(member, axes) for name, member in self.members.items()})

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """The weighted mean of the members, of full arrays or of values at some entries."""
        return np.asarray(sum(weight * members[name] for name, weight in self.weights.items()))

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedStack:
        names = list(self.members)
        weights = simplex_weights(np.stack([members[name] for name in names], axis=1), truth)
        learned = f"least squares on {len(truth)} hidden entries"
        return replace(self, weights=dict(zip(names, weights.tolist())), learned=learned)


@dataclass(frozen=True)
class StackedCompletion:
    """Combine several completions, with weights learned from their errors at hidden entries.

    Parameters
    ----------
    members : mapping from str to completion, optional
        The completions by name. Default: a kernel pyramid ("smooth"), a Gaussian process and a low-rank model.

    Examples
    --------
    >>> stack = StackedCompletion({"smooth": SmoothCompletion(), "process": GaussianProcessCompletion()})
    """

    members: Mapping[str, Completion] | None = None

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> PreparedStack:
        members = default_members() if self.members is None else dict(self.members)
        prepared = {name: member.prepare(values, mask, axes, seed) for name, member in members.items()}
        stack = PreparedStack(prepared, dict.fromkeys(prepared, 1 / len(prepared)))
        return _learn_mix(stack, values, mask, axis_kinds(axes, mask.shape), seed)


def _learn_mix(
    stack: PreparedStack, values: np.ndarray, mask: np.ndarray, kinds: Sequence[str], seed: int
) -> PreparedStack:
    """First weights, used where no entries are hidden later to learn them with `combine`."""
    rng = np.random.default_rng((seed, 0x57AC))
    pooled: dict[str, list[np.ndarray]] = {name: [] for name in stack.members}
    truth = []
    for _ in range(ROUNDS if len(stack.members) > 1 else 0):
        hidden = pseudo_gap(mask, kinds, rng, HIDDEN_SHARE)
        if not hidden.any() or hidden.sum() == mask.sum():
            continue
        for name, estimate in stack.fill(values, mask & ~hidden).members.items():
            pooled[name].append(estimate[hidden])
        truth.append(values[hidden])
    if not truth:
        return stack
    return stack.combine({name: np.concatenate(parts) for name, parts in pooled.items()}, np.concatenate(truth))
