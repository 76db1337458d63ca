"""One calibrated split: scores of calibration entries with the estimate, the scale and the transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import Scale
from corten.conformal.scores import Score
from corten.data.arrays import Entries, Flags, Floats, Numbers

if TYPE_CHECKING:
    from corten.calibration.gap_scale import Local
    from corten.conformal.weights import Weights
    from corten.data.transform import FittedTransform
    from corten.propensity import FittedPropensity


@dataclass(frozen=True, eq=False)
class CalibratedSplit:
    """One list of calibrated scores, with the estimate of every entry and the scale in the modelled variable.

    A random split has one; the rounds of pseudo-gaps are pooled into one.
    """

    scored: CalibratedScores
    estimate: Numbers
    scale: Scale
    change: FittedTransform | None = None  # the transform to the modelled variable
    propensity: FittedPropensity | None = None
    beyond: Flags | None = None  # True at missing entries beyond what calibration tested, if applicable
    local: Local | None = field(default=None, repr=False)  # of pseudo-gaps, for an audit and for new data
    round_sizes: tuple[int, ...] = ()  # numbers of calibration entries of the rounds, in order; empty for one round

    @property
    def lists(self) -> tuple[CalibratedSplit, ...]:
        """The lists of scores: this one."""
        return (self,)

    @property
    def score(self) -> Score:
        return self.scored.score

    @property
    def scores(self) -> Numbers:
        return self.scored.scores

    @property
    def entries(self) -> Entries:
        return self.scored.entries

    @property
    def weights(self) -> Weights:
        return self.scored.weights

    @cached_property
    def log_weights(self) -> Floats:
        return np.asarray(self.weights.of_calibration(self.entries))

    @property
    def round_numbers(self) -> Entries:
        """The round that hid each calibration entry."""
        sizes = self.round_sizes or (self.entries.size,)
        return np.repeat(np.arange(len(sizes)), sizes)

    def effective_sample_size(self) -> float:
        return self.scored.effective_sample_size()

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> tuple[Numbers, Numbers]:
        """Lower and upper bounds, (levels, entries), in the modelled variable."""
        middle = self.estimate.reshape(-1)[entries].astype(np.float64)
        return self.scored.intervals(entries, middle, self.scale.at(entries), coverage)

    def data_estimate(self) -> np.ndarray:
        """The estimate of every entry in the variable of the data."""
        return np.asarray(self.estimate if self.change is None else self.change.backward(self.estimate))

    def possible_range(self, entries: Entries) -> tuple[ArrayLike, ArrayLike]:
        """The lowest and the highest value that `intervals` can return: the modelled variable is unbounded."""
        return -np.inf, np.inf

    def mapped(self, change: Callable[[CalibratedScores], CalibratedScores]) -> CalibratedSplit:
        """The same split with the list of scores changed."""
        return replace(self, scored=change(self.scored))

    def with_scores(self, score: Score, scores: ArrayLike) -> CalibratedSplit:
        """The same entries and weights with another score: `scores` belong to `entries`."""
        return replace(self, scored=CalibratedScores(score, scores, self.entries, self.weights))

    def for_file(self, method: bool) -> CalibratedSplit:
        """What a saved fit keeps; `method`: whether it can keep the completion."""
        return self if method else replace(self, local=None)

    def to_model(self, entries: Entries, values: Floats) -> Floats:
        """Values of some entries in the modelled variable; values below the range of the transform become -inf."""
        if self.change is None:
            return values
        found = self._at(self.change.forward, entries, values)
        return np.where(np.isnan(found), -np.inf, found)

    def to_data(self, entries: Entries, values: Floats) -> Floats:
        """Values of some entries in the variable of the data."""
        return values if self.change is None else self._at(self.change.backward, entries, values)

    def _at(self, change: Callable[[np.ndarray], np.ndarray], entries: Entries, values: Floats) -> Floats:
        """A function of full arrays applied to the values of some entries."""
        full = np.full(self.estimate.shape, np.nan)
        full.reshape(-1)[entries] = values
        with np.errstate(all="ignore"):
            return np.asarray(change(full), np.float64).reshape(-1)[entries]
