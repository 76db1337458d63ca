"""Calibrated scores: intervals for any entries and any coverage; the scores are sorted once.

`Calibrated` is the protocol of what a calibration returns: a split, merged splits, or one of them with another kind of
coverage (see `shaped.py`). `CalibratedScores` is one list of scores with its weights, used by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from corten.conformal.diagnostics import effective_sample_size
from corten.conformal.quantile import NeighbourFactor, Tail, WeightedScores, as_levels
from corten.conformal.scores import Score, as_score
from corten.conformal.weights import Weights
from corten.data.arrays import Entries, Flags, Floats, Numbers

if TYPE_CHECKING:
    from corten.conformal.split import CalibratedSplit

NEIGHBOUR_CHUNK_ENTRIES = 1 << 20  # test entries whose neighbour tables exist at once

Factor = TypeVar("Factor")  # changes of neighbours: as factors or, for a sketch, as sums
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)


@runtime_checkable
class Calibrated(Protocol):
    """What a calibration returns: intervals of any coverage for any entries, and the calibration scores."""

    @property
    def entries(self) -> Entries: ...  # flat, in the order of `scores`; an entry may occur in several rounds
    @property
    def scores(self) -> Numbers: ...
    @property
    def log_weights(self) -> Floats: ...  # in the order of `scores`, up to an additive constant
    @property
    def score(self) -> Score: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def lists(self) -> Sequence[CalibratedSplit]: ...  # one for each split; empty for other coverage
    @property
    def round_numbers(self) -> Entries: ...  # the round or split that hid each calibration entry
    @property
    def beyond(self) -> Flags | None: ...  # True at missing entries that calibration did not test; None if undefined
    def effective_sample_size(self) -> float: ...

    def intervals(self, entries: Entries, coverage: float | Sequence[float]) -> tuple[Numbers, Numbers]:
        """Lower and upper bounds, (levels, entries), in the modelled variable; `to_data` transforms them back."""
        ...

    def to_data(self, entries: Entries, values: Floats) -> Floats:
        """Values of some entries in the variable of the data."""
        ...

    def for_file(self, method: bool) -> Calibrated:
        """What a saved fit keeps; `method`: whether it can keep the completion."""
        ...


def tails_of(score: Score) -> list[Tail]:
    """The tails that a score uses."""
    tails = score.tails(0.5)
    used: list[Tail] = [tail for tail in ("lower", "upper") if getattr(tails, tail) is not None]
    return used


class ScoreList(Protocol[Taken]):
    """The scores of one tail, all of them or a sketch, and the changes of neighbours that it takes."""

    def cutoffs(self, log_weights: Numbers, levels: Sequence[float], factor: Taken, /) -> Numbers: ...


class WeightsOfTests(Protocol[Given]):
    """Weights of test entries, with changes of neighbours as a list of scores takes them."""

    def log_weight(self, entries: Entries, /) -> Numbers: ...
    def neighbour_factor(self, entries: Entries, /) -> Given: ...


class ScoreLists(Generic[Factor]):
    """Intervals from the scores of each tail, all of them (`WeightedScores`) or a sketch (`ScoreSketch`).

    weights: of test entries, with changes of neighbours as the lists take them; chunk: test entries whose neighbour
    tables exist at once.
    """

    def __init__(
        self,
        score: Score,
        lists: Mapping[Tail, ScoreList[Factor]],
        weights: WeightsOfTests[Factor],
        chunk: int | None = None,
    ) -> None:
        self.score, self._lists, self.weights = score, lists, weights
        self.chunk = chunk or NEIGHBOUR_CHUNK_ENTRIES

    def intervals(
        self, entries: Entries, estimate: ArrayLike, scale: ArrayLike, coverage: float | Sequence[float]
    ) -> tuple[Numbers, Numbers]:
        """Lower and upper bounds, (levels, entries); one estimate and scale per entry."""
        levels, flat = as_levels(coverage), np.asarray(entries).ravel()
        middle = np.broadcast_to(np.asarray(estimate), flat.shape)
        scales = np.broadcast_to(np.asarray(scale), flat.shape)
        lower, upper = np.empty((2, levels.size, flat.size))
        needed = [self.score.tails(level) for level in levels.tolist()]
        wanted = {tail: [getattr(one, tail) for one in needed] for tail in self._lists}
        if any(level is None for both in wanted.values() for level in both):
            raise ValueError(f"score {self.score.name!r} must use the same tails at every coverage.")
        for start in range(0, flat.size, self.chunk):
            part = slice(start, min(start + self.chunk, flat.size))
            logs, factor = self.weights.log_weight(flat[part]), self.weights.neighbour_factor(flat[part])
            cut = {tail: one.cutoffs(logs, wanted[tail], factor) for tail, one in self._lists.items()}
            found = self.score.invert(middle[part], scales[part], cut.get("lower"), cut.get("upper"))
            lower[:, part], upper[:, part] = found
        return lower, upper


class CalibratedScores(ScoreLists[NeighbourFactor | None]):
    """One list of calibration scores with its weights, sorted once.

    score: the score, or its name; scores: those of the calibration `entries`, flat indices; weights: of calibration and
    test entries, whose neighbour positions refer to the order of `entries`.

    >>> from corten.conformal.weights import UniformWeights
    >>> calibrated = CalibratedScores("absolute", np.arange(1.0, 10.0), np.arange(9), UniformWeights())
    >>> calibrated.intervals(np.array([20]), estimate=[100.0], scale=[0.5], coverage=0.8)
    (array([[96.]]), array([[104.]]))
    """

    weights: Weights

    def __init__(self, score: str | Score, scores: ArrayLike, entries: Entries, weights: Weights) -> None:
        logs = weights.of_calibration(np.asarray(entries))
        used = as_score(score)
        super().__init__(used, {tail: WeightedScores(scores, logs, tail) for tail in tails_of(used)}, weights)
        self.entries = np.asarray(entries)
        self.scores = np.asarray(scores)
        self._log_weights = np.asarray(logs, dtype=np.float64)

    def effective_sample_size(self) -> float:
        """Effective sample size of the calibration weights, (sum w)^2 / sum w^2."""
        return effective_sample_size(self._log_weights)
