"""Calibrated scores: cutoffs and intervals for any entries and any coverage; the scores are sorted once.

`Calibrated` is the protocol of what a calibration returns: a split, merged splits, or one of them with another kind of
coverage (see `shaped.py`). `CalibratedScores` is one list of scores with its weights, used by all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from corten.conformal.diagnostics import effective_sample_size, largest_share
from corten.conformal.quantile import NeighbourFactor, Tail, WeightedScores, as_levels, rounded_up
from corten.conformal.scores import Score, as_score
from corten.conformal.weights import Weights

__all__ = ["Calibrated", "CalibratedScores", "Cutoffs"]

Entries = NDArray[np.intp]
MAX_CHUNK_ENTRIES = 1 << 20  # test entries whose neighbour tables exist at once


class Cutoffs(NamedTuple):
    """Cutoffs of both tails.

    Parameters
    ----------
    lower, upper : array, shape (levels, entries), or None
        The cutoffs of the tail; None for a tail that the score does not use.

    Examples
    --------
    >>> Cutoffs(None, np.array([[8.0]])).upper
    array([[8.]])
    """

    lower: NDArray[np.floating] | None
    upper: NDArray[np.floating] | None


@runtime_checkable
class Calibrated(Protocol):
    """What a calibration returns: intervals of any coverage for any entries, and the calibration scores."""

    @property
    def entries(self) -> Entries:
        """Flat indices of the calibration entries, in the order of `scores`; an entry may occur in several rounds."""
        ...

    @property
    def scores(self) -> NDArray[np.floating]: ...

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """Log-weights of the calibration entries, in the order of `scores`, up to an additive constant."""
        ...

    @property
    def score(self) -> Score: ...

    @property
    def weights(self) -> Weights: ...

    @property
    def lists(self) -> Sequence[Any]:
        """The lists of scores, one for each split; empty for another kind of coverage."""
        ...

    @property
    def round_numbers(self) -> Entries:
        """The round or split that hid each calibration entry."""
        ...

    @property
    def beyond(self) -> NDArray[np.bool_] | None:
        """True at missing entries deeper inside gaps than calibration tested; None if this is not defined."""
        ...

    def effective_sample_size(self) -> float: ...

    def intervals(
        self, entries: Entries, coverage: float | Sequence[float]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Lower and upper bounds, (levels, entries), in the modelled variable; `to_data` transforms them back."""
        ...

    def to_data(self, entries: Entries, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of some entries in the variable of the data."""
        ...

    def for_file(self, method: bool) -> Calibrated:
        """What a saved fit keeps; `method`: whether it can keep the completion."""
        ...


class CalibratedScores:
    """One list of calibration scores with its weights, sorted once.

    Parameters
    ----------
    score : str or Score
        The score, or its name.
    scores : array
        The scores of the calibration entries.
    entries : array of int
        Flat indices of the calibration entries, in the order of `scores`; the neighbour positions of `weights` refer
        to this order.
    weights : Weights
        The weights of calibration and test entries.

    Examples
    --------
    >>> from corten.conformal.weights import UniformWeights
    >>> calibrated = CalibratedScores("absolute", np.arange(1.0, 10.0), np.arange(9), UniformWeights())
    >>> calibrated.cutoffs(np.array([20, 21]), 0.8).upper
    array([[8., 8.]])
    >>> calibrated.intervals(np.array([20]), estimate=[100.0], scale=[0.5], coverage=0.8)
    (array([[96.]]), array([[104.]]))
    """

    def __init__(self, score: str | Score, scores: ArrayLike, entries: Entries, weights: Weights) -> None:
        self.score = as_score(score)
        self.weights = weights
        self.entries = np.asarray(entries)
        self.scores = np.asarray(scores)
        logs = weights.of_calibration(self.entries)
        tails = self.score.tails(0.5)
        self._lists: dict[Tail, WeightedScores] = {}
        if tails.lower is not None:
            self._lists["lower"] = WeightedScores(scores, logs, "lower")
        if tails.upper is not None:
            self._lists["upper"] = WeightedScores(scores, logs, "upper")
        self._log_weights = np.asarray(logs, dtype=np.float64)

    def with_scores(self, score: str | Score, scores: ArrayLike) -> CalibratedScores:
        """The same entries and weights with another score: `scores` belong to `entries`."""
        return CalibratedScores(score, scores, self.entries, self.weights)

    def cutoffs(self, entries: Entries, coverage: float | Sequence[float], dtype: DTypeLike = np.float64) -> Cutoffs:
        """Cutoffs of the tails that the score uses, for test entries; float32 cutoffs are rounded outwards."""
        levels = as_levels(coverage)
        flat = np.asarray(entries).ravel()
        whole: dict[Tail, NDArray[np.floating]] = {
            tail: np.empty((levels.size, flat.size), dtype) for tail in self._lists
        }
        for part, piece in self._pieces(flat, levels, dtype):
            for tail, values in piece.items():
                whole[tail][:, part] = values
        return Cutoffs(whole.get("lower"), whole.get("upper"))

    def intervals(
        self,
        entries: Entries,
        estimate: ArrayLike,
        scale: ArrayLike,
        coverage: float | Sequence[float],
        dtype: DTypeLike = np.float64,
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Lower and upper bounds, (levels, entries), rounded outwards; one estimate and scale per entry."""
        levels = as_levels(coverage)
        flat = np.asarray(entries).ravel()
        middle = np.broadcast_to(np.asarray(estimate), flat.shape)
        scales = np.broadcast_to(np.asarray(scale), flat.shape)
        lower = np.empty((levels.size, flat.size), dtype)
        upper = np.empty((levels.size, flat.size), dtype)
        for part, piece in self._pieces(flat, levels, np.float64):
            low, high = self.score.invert(middle[part], scales[part], piece.get("lower"), piece.get("upper"))
            lower[:, part] = -rounded_up(-low, dtype)
            upper[:, part] = rounded_up(high, dtype)
        return lower, upper

    def effective_sample_size(self) -> float:
        """Effective sample size of the calibration weights, (sum w)^2 / sum w^2."""
        return effective_sample_size(self._log_weights)

    def largest_share(self) -> float:
        """The largest calibration weight divided by the sum of all."""
        return largest_share(self._log_weights)

    def _pieces(
        self, flat: Entries, levels: NDArray[np.float64], dtype: DTypeLike
    ) -> Iterator[tuple[slice, dict[Tail, NDArray[np.floating]]]]:
        """Cutoffs, one chunk of entries at a time, so that neighbour tables of all entries never exist at once."""
        wanted: dict[Tail, list[float]] = {tail: [] for tail in self._lists}
        for level in levels.tolist():
            tails = self.score.tails(level)
            for tail in wanted:
                needed = tails.lower if tail == "lower" else tails.upper
                if needed is None:
                    raise ValueError(f"score {self.score.name!r} must use the same tails at every coverage.")
                wanted[tail].append(needed)
        for start in range(0, flat.size, MAX_CHUNK_ENTRIES):
            part = slice(start, min(start + MAX_CHUNK_ENTRIES, flat.size))
            logs = self.weights.log_weight(flat[part])
            factor: NeighbourFactor | None = self.weights.neighbour_factor(flat[part])
            shape = (levels.size, part.stop - part.start)
            yield (
                part,
                {
                    tail: scores.cutoffs(logs, wanted[tail], factor, out=np.empty(shape, dtype))
                    for tail, scores in self._lists.items()
                },
            )
