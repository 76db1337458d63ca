"""The stack: several completions mixed with weights that were learned where the truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from corten.completion.axes_kinds import Standardised, axis_kinds, pseudo_gap, standardise
from corten.completion.batched import MAX_LENGTH, fill_member, prepare_member, why_not_member
from corten.completion.gaussian_process import GaussianProcessCompletion
from corten.completion.protocol import Completion, Fill, Prepared, on_axes
from corten.completion.smooth import SmoothCompletion
from corten.completion.unfoldings import UnfoldingCompletion
from corten.completion.variable import choose_root, roots_of, squares_of
from corten.completion.weights import WeightsByDifference, simplex_weights
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine import as_engine
from corten.engine.arrays import Array, Arrays, device_arrays
from corten.engine.memory import threads_within
from corten.engine.threads import default_threads, in_order

MIX_ROUNDS = 2
BYTES_OF_FILL = 200  # for each entry, where fills run side by side
MIX_HIDDEN_SHARE = 0.15  # of the observed entries at most, in a round
MAX_SHARE_BEYOND_RANGE = 0.5
"""Members may leave the observed range by this share of it, no further: none diverges."""


def default_members() -> dict[str, Completion]:
    """A smoother, a Gaussian process, which starts from it, and a low-rank model."""
    return {
        "smooth": SmoothCompletion(),
        "Gaussian process": GaussianProcessCompletion(),
        "low rank": UnfoldingCompletion(),
    }


@dataclass(frozen=True)
class PreparedStack:
    """Prepared members and the weights of their mix.

    roots: whether members and mix model the square roots of the values; `variable` records that choice. Estimates are
    in the variable of the data. by_difference: weights that depend on how far the members differ, None if those in
    `weights` are used for all entries.
    """

    members: dict[str, Prepared] = field(repr=False)
    weights: dict[str, float]
    learned: str = ""
    roots: bool = False
    variable: tuple[Choice, ...] = field(default=(), repr=False)
    by_difference: WeightsByDifference | None = field(default=None, repr=False)

    @property
    def choices(self) -> tuple[Choice, ...]:
        shares = ", ".join(f"{name} {weight:.2f}" for name, weight in self.weights.items())
        own = tuple(choice for member in self.members.values() for choice in member.choices)
        why = self.learned or "nothing was hidden: equal weights"
        if self.by_difference is not None:
            far = ", ".join(f"{weight:.2f}" for weight in self.by_difference.weights[-1])
            why += f"; where they differ most {far}"
        return (Choice("weights of the stack", shares, why), *self.variable, *own)

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        values = roots_of(values) if self.roots else values
        known = values[mask]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
        slack = MAX_SHARE_BEYOND_RANGE * (high - low)
        least = max(low - slack, 0.0) if self.roots else low - slack
        filled: dict[str, np.ndarray] = {}
        for name, member in self.members.items():
            if filled and hasattr(member, "fill_from"):
                estimate = member.fill_from(values, mask, next(iter(filled.values()))).estimate
            else:
                estimate = member.fill(values, mask).estimate
            filled[name] = np.clip(np.nan_to_num(estimate, nan=(low + high) / 2), least, high + slack)
        if not self.roots:
            return Fill(self.mix(filled), filled)
        squares = {name: squares_of(one) for name, one in filled.items()}
        # Roots of the squares would be rounded.
        mixed = self.mix(squares) if self.by_difference is not None else squares_of(self._weighted(filled))
        return Fill(mixed, squares)

    def on_axes(self, axes: Sequence[Axis]) -> PreparedStack:
        """The stack with its members on other axes."""
        return replace(self, members={name: on_axes(member, axes) for name, member in self.members.items()})

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        """The weighted mean of the members, of full arrays or of values at some entries."""
        roots = {name: roots_of(one) for name, one in members.items()} if self.roots else members
        if self.by_difference is not None:
            values, compared = ([one[name] for name in self.weights] for one in (members, roots))
            return self.by_difference.mix(values, compared)
        return squares_of(self._weighted(roots)) if self.roots else self._weighted(members)

    def _weighted(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(sum(weight * members[name] for name, weight in self.weights.items()))

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedStack:
        estimates, modelled = self._stacked(members)
        weights = simplex_weights(modelled, roots_of(truth)) if self.roots else simplex_weights(estimates, truth)
        learned = f"least squares{' of square roots' if self.roots else ''} on {len(truth)} hidden entries"
        return replace(self, weights=dict(zip(self.members, weights.tolist())), learned=learned, by_difference=None)

    def combine_by_difference(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedStack:
        """As `combine`, with weights that also depend on how far the members differ at an entry.

        They have the least squared error of the values: of square roots, many small values would determine the weights
        where members differ most, which matter for the large ones.
        """
        stack, (estimates, modelled) = self.combine(members, truth), self._stacked(members)
        common = np.array(list(stack.weights.values()))
        return replace(stack, by_difference=WeightsByDifference.fit(estimates, truth, common, modelled))

    def _stacked(self, members: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Estimates of entries, (entries, members), and the same in the variable of the members."""
        estimates = np.stack([members[name] for name in self.members], axis=1)
        return estimates, roots_of(estimates) if self.roots else estimates


def why_not(prepared: Prepared, shape: tuple[int, ...]) -> str | None:
    """The reason why a completion cannot fill rounds in batches, None if it can."""
    if not isinstance(prepared, PreparedStack):
        return f"{type(prepared).__name__} is not the default stack"
    if prepared.roots:
        return "square roots of the values are modelled"
    if max(shape) > MAX_LENGTH:
        return f"an axis has {max(shape)} positions, more than {MAX_LENGTH}"
    reasons = (why_not_member(member, shape) for member in prepared.members.values())
    return next((reason for reason in reasons if reason), None)


@dataclass(frozen=True)
class BatchedFill:
    """Estimates of the members for a batch of rounds, in standardised variables, where they were computed.

    data: the standardised values of each round with their centre and scale, on the host.
    """

    arrays: Arrays
    stack: PreparedStack
    members: dict[str, Array]
    kept: Array
    known: Array
    data: Sequence[Standardised]

    def mixed(self) -> Array:
        """The mix of the members; weights sum to one, so that standardised members give the standardised mix."""
        weighted = [weight * self.members[name] for name, weight in self.stack.weights.items()]
        return sum(weighted[1:], 0 + weighted[0])

    def only(self, number: int) -> BatchedFill:
        """One round as a batch of its own."""
        here = slice(number, number + 1)
        members = {name: one[here] for name, one in self.members.items()}
        return replace(self, members=members, kept=self.kept[here], known=self.known[here], data=self.data[here])

    def fill(self, number: int) -> Fill:
        """The fill of one round, on the host."""
        one = self.data[number]
        members = {name: one.undo(self.arrays.get(m[number]).astype(np.float64)) for name, m in self.members.items()}
        return Fill(self.stack.mix(members), members)


def fill_rounds(
    arrays: Arrays, stack: PreparedStack, values: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> BatchedFill:
    """Fill many rounds at once, each from the entries where its mask is True."""
    kinds = next(iter(stack.members.values())).kinds  # type: ignore[attr-defined]

    def begun(one: tuple[np.ndarray, np.ndarray]) -> tuple[Standardised, tuple[np.ndarray, np.ndarray]]:
        data = standardise(*one, kinds)
        limits = _limits(*one, data)
        # They are rounded to single precision already; in it many rounds take half the memory.
        return replace(data, values=data.values.astype(np.float32)), limits

    data, limits = zip(*in_order(begun, zip(values, masks)))
    with arrays.running():
        known = arrays.put(np.stack([one.values for one in data]))
        kept = arrays.put(np.stack(masks)).astype(np.float32)
        low, high = (arrays.put(np.stack(side).astype(np.float32)) for side in zip(*limits))
        clip = arrays.compiled(_clipped)
        filled: dict[str, Array] = {}
        for name, member in stack.members.items():
            start = next(iter(filled.values()), None)
            estimate = fill_member(
                arrays, member, values=values, masks=masks, data=data, known=known, kept=kept, start=start
            )
            filled[name] = clip(estimate, low, high)
    return BatchedFill(arrays, stack, members=filled, kept=kept, known=known, data=data)


def fill_on(engine: object, prepared: Prepared, values: np.ndarray, mask: np.ndarray) -> Fill:
    """One fill on the device of an engine; on the host if the engine has none, or the completion cannot run there."""
    arrays = device_arrays(as_engine(engine))
    if arrays is None or not isinstance(prepared, PreparedStack) or why_not(prepared, mask.shape) is not None:
        return prepared.fill(values, mask)
    return fill_rounds(arrays, prepared, [values], [mask]).fill(0)


def _limits(values: np.ndarray, mask: np.ndarray, data: Standardised) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest estimate that a stack allows, in the standardised variable."""
    known = values[mask]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    slack = MAX_SHARE_BEYOND_RANGE * (high - low)
    return (low - slack - data.centre) / data.scale, (high + slack - data.centre) / data.scale


def _clipped(arrays: Arrays, estimate: Array, low: Array, high: Array) -> Array:
    xp = arrays.xp
    return xp.clip(xp.where(xp.isnan(estimate), (low + high) / 2, estimate), low, high)


@dataclass(frozen=True)
class StackedCompletion:
    """Combine several completions, with weights learned from their errors at hidden entries.

    Parameters
    ----------
    members : mapping from str to completion, optional
        The completions by name. Default: a kernel pyramid ("smooth"), a Gaussian process and a low-rank model.
    engine : str, default "auto"
        What chooses settings: "jax" or "gpu" uses a device for those of the default members.

    Notes
    -----
    Members get the square roots of skewed values (none negative) if these lower the error of a pyramid in pseudo-gaps
    by 5 %. Estimates are in the variable of the data.

    Examples
    --------
    >>> stack = StackedCompletion({"smooth": SmoothCompletion(), "process": GaussianProcessCompletion()})
    """

    members: Mapping[str, Completion] | None = None
    engine: object = "auto"

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedStack:
        """Choose the settings of the members, and first weights from pseudo-gaps."""
        arrays = device_arrays(as_engine(self.engine)) if max(mask.shape) <= MAX_LENGTH else None
        stack = self.prepare_members(values, mask, axes, seed)
        threads = threads_within(BYTES_OF_FILL * mask.size, MIX_ROUNDS) if self.members is None else 1
        kinds = axis_kinds(axes, mask.shape)
        return _learn_mix(stack, values, mask, kinds=kinds, seed=seed, arrays=arrays, threads=threads)

    def prepare_members(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedStack:
        """Choose the settings of the members; all have the same weight."""
        members = default_members() if self.members is None else dict(self.members)
        arrays = device_arrays(as_engine(self.engine)) if max(mask.shape) <= MAX_LENGTH else None
        roots, variable = choose_root(values, mask, axes, seed) if len(members) > 1 else (False, ())
        modelled = roots_of(values) if roots else values

        def prepared_member(member: Completion) -> Prepared:
            return prepare_member(arrays, member, values=modelled, mask=mask, axes=axes, seed=seed)

        # Members of a user may not be safe to run in two threads.
        threads = len(members) if arrays is not None else default_threads() if self.members is None else 1
        done = in_order(prepared_member, members.values(), threads)
        prepared = dict(zip(members, done))
        return PreparedStack(prepared, dict.fromkeys(prepared, 1 / len(prepared)), roots=roots, variable=variable)


def _learn_mix(
    stack: PreparedStack,
    values: np.ndarray,
    mask: np.ndarray,
    *,
    kinds: Sequence[str],
    seed: int,
    arrays: Arrays | None,
    threads: int,
) -> PreparedStack:
    """First weights, used where no entries are hidden later to learn them with `combine`."""
    rng = np.random.default_rng((seed, 0x57AC))
    gaps = [pseudo_gap(mask, kinds, rng, MIX_HIDDEN_SHARE) for _ in range(MIX_ROUNDS if len(stack.members) > 1 else 0)]
    gaps = [hidden for hidden in gaps if hidden.any() and hidden.sum() < mask.sum()]
    if not gaps:
        return stack
    batch = None
    if arrays is not None and why_not(stack, mask.shape) is None:
        batch = fill_rounds(arrays, stack, [values] * len(gaps), [mask & ~hidden for hidden in gaps])

    def hidden_values(number: int) -> dict[str, np.ndarray]:
        fill = stack.fill(values, mask & ~gaps[number]) if batch is None else batch.fill(number)
        return {name: one[gaps[number]] for name, one in fill.members.items()}

    found = list(in_order(hidden_values, range(len(gaps)), threads))
    pooled = {name: np.concatenate([one[name] for one in found]) for name in stack.members}
    return stack.combine(pooled, np.concatenate([values[hidden] for hidden in gaps]))
