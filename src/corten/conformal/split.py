"""One calibrated split: scores of hidden entries, the estimate and scale that they belong to, and how to map back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scale import Scale
from corten.conformal.scores import Score

if TYPE_CHECKING:
    from corten.conformal.weights import Weights

__all__ = ["CalibratedSplit", "ChangeOfVariable"]

Entries = NDArray[np.intp]
Floats = NDArray[np.float64]


class ChangeOfVariable(Protocol):
    """A strictly increasing map of every entry and its inverse, over full arrays."""

    def forward(self, values: np.ndarray) -> np.ndarray: ...
    def backward(self, values: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class CalibratedSplit:
    """One list of calibrated scores, with the estimate of every entry and the scale in the variable that was modelled.

    A random split has one; the rounds of pseudo-gaps are pooled into one. change: the map to the modelled variable
    (None: the data's own); propensity: the fitted model behind the weights; beyond: True at missing entries deeper
    inside gaps than calibration tested (None: not applicable); local: how pseudo-gaps were calibrated, which an audit
    uses (None for splits, and for a fit that was loaded).
    """

    scored: CalibratedScores
    estimate: NDArray[np.floating]
    scale: Scale
    change: ChangeOfVariable | None = None
    propensity: Any = None
    beyond: NDArray[np.bool_] | None = None
    local: Any = field(default=None, repr=False)

    @property
    def lists(self) -> tuple[CalibratedSplit, ...]:
        """The lists of scores: this one."""
        return (self,)

    @property
    def score(self) -> Score:
        return self.scored.score

    @property
    def scores(self) -> NDArray[np.floating]:
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
        """The round that hid each calibration entry: entries rise within a round."""
        entries = self.entries
        return np.cumsum(np.diff(entries, prepend=entries[:1]) < 0) if entries.size else entries

    def effective_sample_size(self) -> float:
        return self.scored.effective_sample_size()

    def largest_share(self) -> float:
        return self.scored.largest_share()

    def intervals(
        self, entries: Entries, coverage: float | Sequence[float]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Lower and upper bounds, (levels, entries), in the variable that was modelled."""
        middle = self.estimate.reshape(-1)[entries].astype(np.float64)
        return self.scored.intervals(entries, middle, self.scale.at(entries), coverage)

    def data_estimate(self) -> np.ndarray:
        """The estimate of every entry in the variable of the data."""
        return np.asarray(self.estimate if self.change is None else self.change.backward(self.estimate))

    def possible_range(self, entries: Entries) -> tuple[ArrayLike, ArrayLike]:
        """The least and the largest value that `intervals` can return: nothing limits the modelled variable."""
        return -np.inf, np.inf

    def mapped(self, change: Callable[[CalibratedScores], CalibratedScores]) -> CalibratedSplit:
        """The same with another list of scores, made from this one."""
        return replace(self, scored=change(self.scored))

    def with_scores(self, score: Score, scores: ArrayLike) -> CalibratedSplit:
        """The same entries and weights with another score: `scores` belong to `entries`."""
        return self.mapped(lambda scored: scored.with_scores(score, scores))

    def for_file(self) -> CalibratedSplit:
        """What a saved fit keeps."""
        return replace(self, local=None)

    def to_model(self, entries: Entries, values: Floats) -> Floats:
        """Values of some entries in the variable that was modelled; what lies below its range is -inf there."""
        if self.change is None:
            return values
        found = self._at(self.change.forward, entries, values)
        return np.where(np.isnan(found), -np.inf, found)

    def to_data(self, entries: Entries, values: Floats) -> Floats:
        """Values of some entries in the variable of the data."""
        return values if self.change is None else self._at(self.change.backward, entries, values)

    def _at(self, change: Callable[[np.ndarray], np.ndarray], entries: Entries, values: Floats) -> Floats:
        full = np.full(self.estimate.shape, np.nan)
        full.reshape(-1)[entries] = values
        with np.errstate(all="ignore"):
            return np.asarray(change(full), np.float64).reshape(-1)[entries]
