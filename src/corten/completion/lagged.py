"""Predictions of an entry from observed entries nearby in time, with a correlation for every pair of positions and lag.

The Gaussian process of the stack multiplies a covariance in time by one of the positions: it has no position that
changes before another, none with faster changes, and no season in which correlations differ. Here they are averages of
products of observed entries, made positive definite by their spectrum: in parts of the axis, with half the weight, and
over the whole axis. An entry is predicted from few others, those with the largest correlations on each side.
Correlations are settings, chosen once; means and spreads are those of the training entries at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from corten.completion.axes_kinds import axis_kinds
from corten.completion.variable import is_skewed, roots_of, squares_of
from corten.data.axes import Axis
from corten.engine.threads import in_order

MAX_LAG = 24  # steps to the entries that predict
AT_LAG_ZERO, ON_A_SIDE = 8, 8  # entries that predict, of the same step and on each side
MAX_CANDIDATES = 300  # of each, the most correlated, of which the first observed ones predict
MIN_STEPS, MAX_POSITIONS = 1000, 100  # with fewer steps correlations are uncertain, with more positions too large
STEPS_PER_PART, MAX_PARTS = 1400, 24  # averages over a part reach half a part to both sides
SHARE_OF_PART = 0.5  # weight of the correlations of the part, the others are those of the whole axis
PRIOR_ENTRIES, PRIOR_PAIRS = 300, 100  # with which means and spreads of more entries, and no correlation, count
MAX_MISSING = 1_000_000  # each takes about 50 microseconds
NOISE, MIN_POWER = 0.01, 0.01  # relative to the variance of a position, and to a spectrum without correlations
MAX_DIFFERENCE = 5.0  # from the estimate, in spreads of the data
ENTRIES_AT_ONCE = 500


@dataclass(frozen=True)
class LaggedCorrelations:
    """Correlations of positions at lags in steps of an ordered axis, for each part of that axis.

    axis: the ordered one of two axes, with `length` positions; roots: whether they are those of square roots. mean,
    spread: of all steps, by position; matrix: (parts, lags, positions, positions), the correlation of the first
    position with the second that many steps later, from -2 MAX_LAG on. Data of another length are one part.
    """

    axis: int
    length: int
    roots: bool
    mean: np.ndarray = field(repr=False)
    spread: np.ndarray = field(repr=False)
    matrix: np.ndarray = field(repr=False)

    @staticmethod
    def of(values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis]) -> LaggedCorrelations | None:
        """Those of the entries in `mask`; None unless there are many steps of few unordered positions."""
        kinds = axis_kinds(axes, mask.shape)
        if mask.ndim != 2 or kinds.count("unordered") != 1:
            return None
        axis = 1 - kinds.index("unordered")
        length, positions = mask.shape[axis], mask.shape[1 - axis]
        counts = mask.sum(axis=axis)
        if length < MIN_STEPS or not 1 < positions <= MAX_POSITIONS or np.median(counts) < MIN_STEPS // 2:
            return None
        if counts.min() < 2 or mask.size - counts.sum() > MAX_MISSING:
            return None
        known = values[mask]
        roots = bool(known.min() >= 0) and is_skewed(known)
        data, kept = (np.moveaxis(one, axis, 0) for one in (roots_of(values) if roots else values, mask))
        data = np.where(kept, data, 0).astype(np.float64)
        mean, spread = _moments(data, kept, np.zeros(positions), np.ones(positions), prior=0)
        common = _correlations((data - mean) / spread, kept)
        parts = int(np.clip(length // STEPS_PER_PART, 1, MAX_PARTS))
        found = []
        for inside in _parts(length, parts):
            own = _moments(data[inside], kept[inside], mean, spread, prior=PRIOR_ENTRIES)
            there = _correlations((data[inside] - own[0]) / own[1], kept[inside]) if parts > 1 else common
            found.append(SHARE_OF_PART * there + (1 - SHARE_OF_PART) * common)
        return LaggedCorrelations(axis, length, roots, mean=mean, spread=spread, matrix=np.stack(found))

    @cached_property
    def candidates(self) -> tuple[tuple[np.ndarray, np.ndarray, int], ...]:
        """Positions and lags, the most correlated first, (positions, candidates), and how many of them predict."""
        usual, groups = self.matrix.mean(axis=0), []
        for first, last, count in ((0, 0, AT_LAG_ZERO), (1, MAX_LAG, ON_A_SIDE), (-MAX_LAG, -1, ON_A_SIDE)):
            lags = np.arange(first, last + 1)
            alike = np.moveaxis(usual[2 * MAX_LAG + lags], 1, 0).reshape(usual.shape[1], -1)
            order = np.argsort(-alike, axis=1, kind="stable")[:, :MAX_CANDIDATES]
            groups.append((order % usual.shape[1], lags[order // usual.shape[1]], count))
        return tuple(groups)

    def columns(
        self, entries: np.ndarray, values: np.ndarray, *, train: np.ndarray, middle: np.ndarray, spread: float
    ) -> list[np.ndarray]:
        """Features of the flat `entries`: the prediction relative to the estimate `middle`, its variance, its weights.

        The sum of the absolute weights is small where few entries predict.
        """
        index = np.unravel_index(entries, train.shape)
        step, place = index[self.axis], index[1 - self.axis]
        data, kept = (np.moveaxis(one, self.axis, 0) for one in (roots_of(values) if self.roots else values, train))
        near = _Nearby.of(self, data, kept)
        features = np.empty((3, len(entries)), np.float32)

        def fill(start: int) -> None:
            part = slice(start, start + ENTRIES_AT_ONCE)
            predicted, variance, size = near.predict(self.candidates, step[part], place[part])
            predicted = squares_of(predicted) if self.roots else predicted
            apart = np.clip((predicted - middle[part]) / spread, -MAX_DIFFERENCE, MAX_DIFFERENCE)
            features[:, part] = apart, variance, size

        for _ in in_order(fill, range(0, len(entries), ENTRIES_AT_ONCE)):
            pass
        return list(features)


@dataclass(frozen=True)
class _Nearby:
    """Data with their training entries, and their means, spreads and correlations in each part of the axis."""

    data: np.ndarray
    kept: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    matrix: np.ndarray

    @staticmethod
    def of(lagged: LaggedCorrelations, data: np.ndarray, kept: np.ndarray) -> _Nearby:
        """Means and spreads from the training entries: those with hidden ones would contain a part of their errors."""
        matrix = lagged.matrix if len(data) == lagged.length else lagged.matrix.mean(axis=0, keepdims=True)
        usual = _moments(data, kept, lagged.mean, lagged.spread, prior=PRIOR_ENTRIES)
        parts = _parts(len(data), len(matrix))
        own = [_moments(data[inside], kept[inside], *usual, prior=PRIOR_ENTRIES) for inside in parts]
        mean, spread = map(np.stack, zip(*own))
        return _Nearby(data, kept, mean, spread=spread, matrix=matrix)

    def predict(
        self, candidates: tuple[tuple[np.ndarray, np.ndarray, int], ...], step: np.ndarray, place: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The conditional mean and relative variance of the entries, and the sums of their absolute weights."""
        data, kept = self.data, self.kept
        chosen = []
        for position, lag, count in candidates:
            there, at = position[place], step[:, None] + lag[place]
            inside = (at >= 0) & (at < len(data)) & kept[np.clip(at, 0, len(data) - 1), there]
            first = np.argsort(~inside, axis=1, kind="stable")[:, :count]
            chosen.append([np.take_along_axis(one, first, 1) for one in (there, lag[place], inside)])
        near, lag, observed = (np.hstack(one) for one in zip(*chosen))
        part = step * len(self.mean) // len(data)
        at = np.clip(step[:, None] + lag, 0, len(data) - 1)
        height = (data[at, near] - self.mean[part[:, None], near]) / self.spread[part[:, None], near]
        height = np.where(observed, height, 0.0)
        # An entry that is not observed has no correlation with others and the height zero: it has no weight.
        between = 2 * MAX_LAG + lag[:, None, :] - lag[:, :, None]
        alike = self.matrix[part[:, None, None], between, near[:, :, None], near[:, None, :]]
        alike *= observed[:, :, None] & observed[:, None, :]
        diagonal = np.arange(alike.shape[1])
        alike[:, diagonal, diagonal] = 1 + NOISE
        wanted = self.matrix[part[:, None], 2 * MAX_LAG + lag, place[:, None], near] * observed
        weights = np.linalg.solve(alike, wanted[:, :, None])[:, :, 0]
        mean = self.mean[part, place] + self.spread[part, place] * (weights * height).sum(axis=1)
        return mean, 1 - (weights * wanted).sum(axis=1), np.abs(weights).sum(axis=1)


def _parts(length: int, parts: int) -> list[slice]:
    """Parts of an axis, each with half a part on both sides."""
    ends = [[(2 * number + side) * length // (2 * parts) for side in (-1, 3)] for number in range(parts)]
    return [slice(max(0, first), last) for first, last in ends]


def _moments(
    data: np.ndarray, kept: np.ndarray, mean: np.ndarray, spread: np.ndarray, prior: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the columns where `kept`, with `prior` entries of given ones."""
    count = kept.sum(axis=0) + prior
    own = (np.where(kept, data, 0).sum(axis=0) + prior * mean) / count
    square = (np.where(kept, (data - own) ** 2, 0).sum(axis=0) + prior * spread**2) / count
    return own, np.sqrt(np.where(square > 0, square, 1.0))


def _correlations(heights: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The correlations of all columns at lags from -2 MAX_LAG to 2 MAX_LAG, (lags, columns, columns).

    Averages of products over the pairs that are observed are no correlations of one process: their spectrum has
    negative eigenvalues, which are raised. They are tapered first, as averages at long lags are uncertain.
    """
    most, columns = 2 * MAX_LAG, heights.shape[1]
    known, counted = np.where(kept, heights, 0).astype(np.float32), kept.astype(np.float32)
    lags = np.arange(-most, most + 1)
    size = 1 << (2 * most).bit_length()
    tapered = np.zeros((size, columns, columns), np.float32)
    for lag in range(most + 1):
        pairs = counted[: len(kept) - lag].T @ counted[lag:]
        average = known[: len(kept) - lag].T @ known[lag:] / np.maximum(pairs, 1)
        average *= pairs / (pairs + PRIOR_PAIRS)
        average *= np.cos(np.pi * lag / (2 * (most + 1))) ** 2
        tapered[lag], tapered[-lag] = average, average.T
    tapered[0] = (tapered[0] + tapered[0].T) / 2
    power, vectors = np.linalg.eigh(np.fft.rfft(tapered, axis=0))
    raised = (vectors * np.maximum(power, MIN_POWER)[:, None, :]) @ np.conj(np.swapaxes(vectors, 1, 2))
    found = np.fft.irfft(raised, n=size, axis=0)[lags % size]
    deviation = np.sqrt(np.diagonal(found[most]))
    return np.asarray(found / np.outer(deviation, deviation), np.float32)
