"""A learned correction of the stack: boosted trees that predict its error at an entry from what surrounds the entry.

The trees are fitted to the errors of hidden entries by absolute loss, cross-fitted by blocks: an observed entry that is
hidden is corrected by trees that were fitted without its block, a missing entry by the mean of the trees of all blocks,
none of which were fitted to it. The correction is used only if it lowers the absolute error of the hidden entries by
two standard errors, and also far from the entries it was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from corten.completion.neighbours import NeighbourFeatures, parts_of
from corten.completion.protocol import Fill, PreparedMix, on_axes
from corten.conformal.local_scale import COARSE_BLOCKS_PER_AXIS, BlockFolds, block_of, exceeds
from corten.conformal.trees import Trees, fit_trees
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine.threads import in_order

MIN_CORRECTION_ENTRIES = 3000  # with fewer, no correction is tried
MAX_CORRECTION_ENTRIES = 80_000
MAX_SCREEN_ENTRIES, SCREEN_TREES, SCREEN_RATE = 15_000, 40, 0.1
"""Of first fits, which show whether larger ones can lower the error."""
PARTS_OF_AXIS = 3  # of an ordered axis
MIN_CORRECTION_GAIN = 0.01  # of the mean absolute error, in blocks and far away
CORRECTION_FOLDS = 4
TREES, LEARNING_RATE, LEAVES, MIN_LEAF_ENTRIES = 75, 0.2, 31, 40


@dataclass(frozen=True)
class Correction:
    """Trees for each fold of blocks, fitted without that fold, with the features they use.

    observed: the entries that were observed in the fit, some of which the trees were fitted to.
    """

    describe: NeighbourFeatures
    models: Mapping[int, Trees] = field(repr=False)
    fold_of: BlockFolds
    observed: np.ndarray = field(repr=False)

    def predict(self, features: np.ndarray, entries: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """What is added to the estimates of entries with these features.

        Of entries that were observed in the fit it comes from trees fitted without their block: errors in a block are
        alike. Of the others it is the mean of all trees. shape: of later data, if it is not that of the fit.
        """
        fold_of = replace(self.fold_of, shape=shape or self.fold_of.shape)
        moved = fold_of != self.fold_of
        fold, total = fold_of(entries), np.zeros(len(entries))
        own = np.ones(len(entries), bool) if moved else self.observed.reshape(-1)[entries]
        for number, trees in self.models.items():
            weight = np.where(own, fold == number, 1 / len(self.models))
            inside = weight > 0
            if inside.any():
                total[inside] += weight[inside] * self.describe.describe.spread * trees.sum(features[inside])
        return total


@dataclass(frozen=True)
class PreparedCorrected:
    """A prepared stack whose estimates of entries outside the mask are corrected.

    first: the stack whose mix the features are computed from, that of the rounds. Data with other positions along an
    unordered axis are not corrected.
    """

    stack: PreparedMix
    first: PreparedMix
    correction: Correction
    choice: Choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The settings of the stack and of the correction."""
        return (*self.stack.choices, self.choice)

    def on_axes(self, axes: Sequence[Axis]) -> PreparedCorrected:
        """The same stack and correction for data on other axes."""
        stack = cast(PreparedMix, on_axes(self.stack, axes))
        correction = replace(self.correction, describe=self.correction.describe.on_axes(axes))
        return replace(self, stack=stack, correction=correction)

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill from the entries where `mask` is True, and correct the others."""
        fill = self.stack.fill(values, mask)
        entries = np.flatnonzero(~mask)
        describe = self.correction.describe
        if not describe.applies_to(mask.shape):
            return fill
        mixed = self.first.mix(fill.members)

        def predicted(part: slice) -> np.ndarray:
            features = np.hstack(
                [
                    one.at(entries[part], values=values, train=mask, estimate=mixed, members=fill.members)
                    for one in (describe.describe, describe)
                ]
            )
            return self.correction.predict(features, entries[part], mask.shape)

        estimate = np.array(fill.estimate)
        parts, threads = parts_of(len(entries), mask.size)
        for part, change in zip(parts, in_order(predicted, parts, threads)):
            estimate.reshape(-1)[entries[part]] += change
        return Fill(estimate, fill.members)


def learn_correction(
    describe: NeighbourFeatures,
    features: np.ndarray,
    *,
    residuals: np.ndarray,
    entries: np.ndarray,
    observed: np.ndarray,
    seed: int,
) -> tuple[Correction | None, Choice]:
    """The correction learned from the residuals of hidden entries, or None; and the record of the choice.

    observed: the mask of the data, whose hidden entries are at the flat `entries`.
    """
    shape = observed.shape
    if len(entries) < MIN_CORRECTION_ENTRIES:
        return None, _choice(False, f"{len(entries)} hidden entries are fewer than {MIN_CORRECTION_ENTRIES}", 0.0)
    if not describe.correlations and not describe.covariates:
        return None, _choice(False, "it is learned only where an axis is unordered or covariates are given", 0.0)
    fold_of = BlockFolds(shape, seed, CORRECTION_FOLDS)
    fold = fold_of(entries)
    spread = describe.describe.spread
    target = np.asarray(residuals, np.float64) / spread
    rng = np.random.default_rng((seed, 0xC0))
    share = _gain_far_away(features, target, entries, axes=describe.describe.axes, rng=rng, seed=seed)
    if share < MIN_CORRECTION_GAIN:
        because = f"trees fitted to other parts of an ordered axis changed the absolute error by {-share:.1%}"
        return None, _choice(False, f"{because}, less than {MIN_CORRECTION_GAIN:.0%} is not used", share)
    numbers = np.unique(fold).tolist()
    rows = [_some(np.flatnonzero(fold != number), MAX_CORRECTION_ENTRIES, rng) for number in numbers]
    models = in_order(lambda own: _fit(features, target, rows=own, trees=TREES, rate=LEARNING_RATE, seed=seed), rows)
    correction = Correction(describe, dict(zip(numbers, models)), fold_of, observed)
    gain = np.abs(target) - np.abs(target - correction.predict(features, entries) / spread)
    share = float(gain.sum() / max(np.abs(target).sum(), 1e-300))
    used = share >= MIN_CORRECTION_GAIN and exceeds(gain, block_of(entries, shape, COARSE_BLOCKS_PER_AXIS))
    because = (
        f"it changes the mean absolute error of entries hidden in blocks it was not fitted to by {-share:.1%}, "
        f"{'more' if used else 'not more'} than two standard errors and {MIN_CORRECTION_GAIN:.0%}"
    )
    return (correction if used else None), _choice(used, because, share)


def _gain_far_away(
    features: np.ndarray,
    target: np.ndarray,
    entries: np.ndarray,
    *,
    axes: Sequence[Axis],
    rng: np.random.Generator,
    seed: int,
) -> float:
    """The decrease of the absolute error, as a share, in parts of an ordered axis that small trees were not fitted to.

    The smallest over the ordered axes. Errors of a smooth field are alike in neighbouring blocks: trees can learn the
    places of large errors, which are not those of the gap. They gain in neighbouring blocks, but not far away.
    """
    shape = tuple(axis.length for axis in axes)
    index = np.unravel_index(entries, shape)

    def errors_without(rows: Sequence[np.ndarray]) -> np.ndarray:
        """Absolute errors inside a part, before and after a correction that was fitted outside it."""
        out, inside = rows
        trees = _fit(features, target, rows=out, trees=SCREEN_TREES, rate=SCREEN_RATE, seed=seed)
        return np.array([np.abs(one).sum() for one in (target[inside], target[inside] - trees.sum(features[inside]))])

    parts: list[tuple[int, list[np.ndarray]]] = []
    errors: dict[int, np.ndarray] = {}
    for k, axis in enumerate(axes):
        if axis.kind == "unordered" or shape[k] < 2 * PARTS_OF_AXIS:
            continue
        part, errors[k] = index[k] * PARTS_OF_AXIS // shape[k], np.zeros(2)
        for number in range(PARTS_OF_AXIS):
            drawn = [_some(np.flatnonzero(rows), MAX_SCREEN_ENTRIES, rng) for rows in (part != number, part == number)]
            if len(drawn[0]) >= MIN_CORRECTION_ENTRIES // 4 and len(drawn[1]):
                parts.append((k, drawn))
    for (k, _), own in zip(parts, in_order(errors_without, [drawn for _, drawn in parts])):
        errors[k] += own
    shares = (float((before - after) / before) if before > 0 else 0.0 for before, after in errors.values())
    return min(shares, default=0.0)


def _choice(used: bool, because: str, share: float) -> Choice:
    taken = "boosted trees" if used else "none"
    code = "correction_used" if used else "correction_not_used"
    return Choice("correction of the stack", taken, because, code=code, values={"gain": share})


def _some(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _fit(
    features: np.ndarray, target: np.ndarray, *, rows: Sequence[int] | np.ndarray, trees: int, rate: float, seed: int
) -> Trees:
    """Boosted trees by absolute loss."""
    return fit_trees(
        features[rows], target[rows], loss="absolute_error", trees=trees, learning_rate=rate, leaves=LEAVES,
        least=MIN_LEAF_ENTRIES, seed=seed,
    )  # fmt: skip
