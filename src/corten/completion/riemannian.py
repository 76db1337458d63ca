"""Low-rank completion by Riemannian descent on the observed entries (equation tensor-completion-problem)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from typing import ClassVar

import numpy as np

from corten.completion.protocol import Fill
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine import as_engine
from corten.engine.threads import one_library_thread
from corten.lowrank import BarzilaiBorwein, Stop, TensorTrain, Tucker, descend, spectral_start
from corten.lowrank.points import TangentFrame, TangentVector
from corten.lowrank.tucker import STRUCTURES

FIT_CRITERIA = ("held-out", "aic", "bic")
TRAINING_HELD_OUT = 0.1  # of the training entries
PATIENCE = 2  # rises of the criterion in a row that end the search for a rank
MAX_RANK = 20
COMPLETION_RIDGE = 1e-3
RIDGES = (COMPLETION_RIDGE, 0.03, 0.1, 0.3)
SEARCH_RIDGE = 0.03  # of the search for a rank if the ridge is "auto": the default ridge is slow for few data
MEAN_ONLY = np.inf  # the ridge with which the estimate is the mean
MIN_HELD_OUT_ENTRIES = 150  # if a tenth of the training entries is less, a ridge is chosen on all of them, in folds
RIDGE_FOLDS = 5
RIDGE_SEARCH_TOLERANCE, SEARCH_EVALUATIONS = 1e-4, 100  # of the fits with which a ridge is chosen
MIN_GAIN_OVER_MEAN = 0.02  # relative decrease of the error for which the mean alone is given up
ESTIMATE_CHUNK_ENTRIES = 4_000_000  # entries of the estimate computed at once


@dataclass(frozen=True)
class _LowRankCompletion:
    """The options of both completions; `structure` says which tensors are of low rank."""

    rank: int | tuple[int, ...] | str = "auto"
    criterion: str = "held-out"
    ridge: float | str = COMPLETION_RIDGE
    engine: object = "auto"
    structure: ClassVar[str]

    def __post_init__(self) -> None:
        if isinstance(self.rank, str) and self.rank != "auto":
            raise ValueError(f'rank is {self.rank!r}; give an integer, one for each axis, or "auto"')
        if self.criterion not in FIT_CRITERIA:
            raise ValueError(f"criterion is {self.criterion!r}; allowed are {', '.join(map(repr, FIT_CRITERIA))}")
        if isinstance(self.ridge, str):
            if self.ridge != "auto":
                raise ValueError(f'ridge is {self.ridge!r}; give a number of at least 0 or "auto"')
            if not isinstance(self.rank, str) or self.criterion != "held-out":
                with_rank = 'give rank="auto", criterion="held-out"'
                raise ValueError(f'ridge is "auto", which is chosen with the rank: {with_rank}')
        elif not 0 <= self.ridge < np.inf:
            raise ValueError(f"ridge is {self.ridge}; give a number of at least 0")

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedLowRank:
        """Choose the rank and the ridge, where they are "auto", from the entries in `mask`."""
        structure, kind = self.structure, STRUCTURES[self.structure.lower()]
        engine = as_engine(self.engine)
        if not isinstance(self.rank, str):
            return PreparedLowRank(structure, kind.check(values.shape, self.rank), float(self.ridge), engine, seed)
        auto = isinstance(self.ridge, str)
        base = PreparedLowRank(structure, (), SEARCH_RIDGE if auto else float(self.ridge), engine, seed)
        sets = _held_sets(mask, seed, criterion=self.criterion, ridge_open=auto)
        rows: list[dict[str, object]] = []
        scored: dict[tuple[tuple[int, ...], float], float] = {}

        def score(ranks: tuple[int, ...], ridge: float) -> float:
            if (ranks, ridge) not in scored:
                one = replace(base, rank=ranks, ridge=ridge)
                if auto:
                    one = replace(one, tolerance=RIDGE_SEARCH_TOLERANCE, max_evaluations=SEARCH_EVALUATIONS)
                found = [_score(one, self.criterion, values=values, used=mask & ~held, held=held) for held in sets]
                scored[ranks, ridge] = found[0] if len(found) == 1 else _root_mean_square(found, sets)
                row: dict[str, object] = {"rank": "x".join(map(str, ranks))}
                rows.append(row | ({"ridge": ridge} if auto else {}) | {self.criterion: scored[ranks, ridge]})
            return scored[ranks, ridge]

        rises, last = 0, np.inf
        tried: list[tuple[int, ...]] = []
        used = mask & ~sets[0]
        constant = values[used].min() == values[used].max()  # every rank fits exactly
        for rank in range(1, 2 if constant else MAX_RANK + 1):
            ranks = kind.feasible(values.shape, rank)
            if tried and ranks == tried[-1]:
                break
            tried.append(ranks)
            now = score(ranks, base.ridge)
            rises = rises + 1 if now >= last else 0
            last = now
            if rises >= PATIENCE:
                break
        if auto and not constant:
            _try_ridges(score, scored, tried)
        best, ridge = min(scored, key=lambda key: scored[key])
        flat = tried[0], MEAN_ONLY
        if flat in scored and scored[best, ridge] > (1 - MIN_GAIN_OVER_MEAN) * scored[flat]:
            best, ridge = flat
        name = {"held-out": "error on held-out training entries", "aic": "AIC", "bic": "BIC"}[self.criterion]
        because = f"lowest {name} among the candidates"
        mean_only = ridge == MEAN_ONLY
        by = "mean_only" if mean_only else f"by_{self.criterion.replace('-', '_')}"
        found = {"rank": best, "ridge": ridge, self.criterion: scored[best, ridge]}
        taken = "mean only" if mean_only else str(best)
        choices = [Choice(f"{structure} rank", taken, because, tuple(rows), code=f"rank_{by}", values=found)]
        if auto:
            taken = "mean only" if mean_only else f"{ridge:g}"
            choices.append(Choice("ridge", taken, because, code=f"ridge_{by}", values={"ridge": ridge}))
        return replace(base, rank=best, ridge=ridge, choices=tuple(choices))


@dataclass(frozen=True)
class TuckerCompletion(_LowRankCompletion):
    """Fill with the tensor of low Tucker rank that fits the observed entries best: the completion of the paper.

    Parameters
    ----------
    rank : int, tuple of int or "auto"
        The Tucker rank: one for all axes, one for each, or (default) chosen by `criterion`, at most 20.
    criterion : str
        How ranks are compared: "held-out" (default; error on a tenth of the training entries), "aic" or "bic".
    ridge : float or "auto"
        Shrinks what the data do not determine towards the mean. Default 0.001. "auto" needs rank "auto" and the
        held-out criterion: 0.001, 0.03, 0.1, 0.3 or the mean alone, by the error on held-out training entries (the mean
        alone unless the error is 2 % smaller).
    engine : str, int or Engine
        What runs the passes over the data.

    Raises
    ------
    ValueError
        If an option has a value that is not allowed, or the rank does not suit the shape.

    Notes
    -----
    Equation (tensor-completion-problem) of the paper.

    Examples
    --------
    >>> x = np.fromfunction(lambda i, j, k: (i + 1.0) * (j + 2) * (k + 3), (6, 7, 8))
    >>> mask = np.random.default_rng(0).random(x.shape) < 0.6
    >>> fill = TuckerCompletion(rank=2).prepare(x, mask, (), seed=0).fill(x, mask)
    >>> bool(np.abs(fill.estimate - x).max() < 0.01 * x.max())
    True
    """

    structure: ClassVar[str] = "Tucker"


@dataclass(frozen=True)
class TensorTrainCompletion(_LowRankCompletion):
    """Fill with the tensor of low tensor-train rank that fits the observed entries best.

    Parameters
    ----------
    rank, criterion, ridge, engine
        As for `TuckerCompletion`, with tensor-train ranks (one for each bond between axes).

    Examples
    --------
    >>> x = np.fromfunction(lambda i, j, k: (i + 1.0) * (j + 2) * (k + 3), (6, 7, 8))
    >>> mask = np.random.default_rng(0).random(x.shape) < 0.6
    >>> fill = TensorTrainCompletion(rank=2).prepare(x, mask, (), seed=0).fill(x, mask)
    >>> bool(np.abs(fill.estimate - x).max() < 0.01 * x.max())
    True
    """

    structure: ClassVar[str] = "tensor-train"


@dataclass(frozen=True)
class PreparedLowRank:
    """A low-rank completion with its rank and ridge."""

    structure: str
    rank: tuple[int, ...]
    ridge: float
    engine: object
    seed: int
    choices: tuple[Choice, ...] = ()
    tolerance: float = 1e-5
    max_evaluations: int = 300

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill by Riemannian descent from a spectral start."""
        point, centre, scale, _ = _fit(self, values, mask)
        found = LowRankEstimate(point, centre, scale, np.result_type(values.dtype, np.float32))
        estimate = np.empty(values.shape, found.dtype)
        step = max(1, ESTIMATE_CHUNK_ENTRIES // max(1, point.size // point.shape[0]))
        for a in range(0, point.shape[0], step):
            estimate[a : a + step] = found.planes(a, min(a + step, point.shape[0]))
        return Fill(estimate, leverage=found.leverage)


@dataclass(frozen=True)
class LowRankEstimate:
    """A completed tensor in the unit of the data, computed for the planes that are asked for."""

    point: TensorTrain | Tucker
    centre: float
    spread: float
    dtype: np.dtype

    def planes(self, start: int, stop: int) -> np.ndarray:
        """The estimate of planes start:stop of the first axis."""
        return (self.centre + self.spread * self.point.slab(start, stop)).astype(self.dtype)

    def leverage(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The leverage of planes start:stop: the norm of every unit tensor projected on the tangent space."""
        return np.sqrt(np.maximum(self.point.leverage(start, stop), 0.0))


def _fit(
    prepared: PreparedLowRank, values: np.ndarray, mask: np.ndarray
) -> tuple[TensorTrain | Tucker, float, float, float]:
    """The point, the centre and scale of the data, and half the squared error on the observed entries."""
    found = values[mask].astype(np.float64)
    if found.min() == found.max():
        return _flat(prepared.structure, values.shape), float(found[0]), 0.0, 1e-12 * found.size
    centre = float(found.mean())
    scale = float(found.std()) or 1.0
    scaled = np.zeros(values.shape, np.float32)
    scaled[mask] = (found - centre) / scale
    point, error = descend_on(prepared, scaled, mask, found.size)
    return point, centre, scale, error


def descend_on(
    prepared: PreparedLowRank, scaled: np.ndarray, mask: np.ndarray, count: int
) -> tuple[TensorTrain | Tucker, float]:
    """The point that fits the `count` standardised values where `mask` is set, and half the squared error.

    Both arrays may be in files; they are read in passes.
    """
    if prepared.ridge == MEAN_ONLY:
        return _flat(prepared.structure, scaled.shape), 0.5 * count
    with one_library_thread:
        passes = as_engine(prepared.engine).residual_pass(scaled, mask)
        random = STRUCTURES[prepared.structure.lower()].random(scaled.shape, prepared.rank, prepared.seed)
        start: TensorTrain | Tucker
        start = spectral_start(lambda f: passes.contractions_of_data(f)[1], random, iterations=6)
        start = start * (scaled.size / count)

        def objective(point: TensorTrain | Tucker) -> tuple[float, TangentVector[TensorTrain | Tucker]]:
            frame: TangentFrame[TensorTrain | Tucker] = point.frame()
            loss, contractions = passes.loss_and_contractions(frame.tt)
            gradient = frame.project(contractions) + frame.radial() * prepared.ridge
            return loss + 0.5 * prepared.ridge * point.norm() ** 2, gradient

        step = BarzilaiBorwein(first_step=1.0, noise=1e-7)
        stop = Stop(value_change=prepared.tolerance, patience=3, evaluations=prepared.max_evaluations)
        done = descend(objective, start, step=step, stop=stop)
    error = done.value - 0.5 * prepared.ridge * done.point.norm() ** 2
    return done.point, max(error, 1e-12 * count)


def _try_ridges(score: Callable, scored: Mapping, ranks: Sequence[tuple[int, ...]]) -> None:
    """Score other ridges at the best rank, neighbouring ranks with the best ridge, and the mean alone."""
    at, _ = min(scored, key=lambda key: scored[key])
    middle = RIDGES.index(SEARCH_RIDGE)
    for ridges in (RIDGES[middle::-1], RIDGES[middle:]):
        for one, other in pairwise(ridges):
            if score(at, other) > score(at, one):
                break
    _, ridge = min(scored, key=lambda key: scored[key])
    place = list(ranks).index(at)
    for step in (1, -1):
        k = place + step
        while 0 <= k < len(ranks) and score(ranks[k], ridge) < score(ranks[k - step], ridge):
            k += step
    score(ranks[0], MEAN_ONLY)


def _held_sets(mask: np.ndarray, seed: int, criterion: str, ridge_open: bool) -> list[np.ndarray]:
    """The sets of training entries to hold out: a random tenth or, if that is few and the ridge open, five folds."""
    if criterion == "held-out":
        number = np.random.default_rng([seed, 5]).random(mask.shape)
        few = ridge_open and TRAINING_HELD_OUT * np.count_nonzero(mask) < MIN_HELD_OUT_ENTRIES
        folds = [(k / RIDGE_FOLDS, (k + 1) / RIDGE_FOLDS) for k in range(RIDGE_FOLDS)]
        cuts = folds if few else [(0.0, TRAINING_HELD_OUT)]
        held = [mask & (number >= low) & (number < high) for low, high in cuts]
        kept = [one for one in held if one.any() and (mask & ~one).any()]
        if kept:
            return kept
    return [np.zeros_like(mask)]


def _root_mean_square(errors: Sequence[float], sets: Sequence[np.ndarray]) -> float:
    """The root mean square error of all entries of the held-out sets, from those of the sets."""
    return float(np.sqrt(np.average(np.square(errors), weights=[np.count_nonzero(held) for held in sets])))


def _score(prepared: PreparedLowRank, criterion: str, values: np.ndarray, used: np.ndarray, held: np.ndarray) -> float:
    """The criterion of a fit to the `used` entries, or its error on the `held` ones."""
    point, centre, scale, error = _fit(prepared, values, used)
    if criterion == "held-out" and held.any():
        entries = np.flatnonzero(held)
        residual = values.reshape(-1)[entries] - (centre + scale * point.at_flat(entries))
        return float(np.sqrt(np.mean(residual.astype(np.float64) ** 2)))
    count = int(np.count_nonzero(used))
    per_parameter = 2.0 if criterion != "bic" else log(count)
    return count * log(2 * error / count) + per_parameter * point.dimension


def _flat(structure: str, shape: tuple[int, ...]) -> TensorTrain | Tucker:
    """The point of the mean alone: a constant too small to change an estimate, so that its leverage is defined."""
    if structure == "Tucker":
        return Tucker(np.full((1,) * len(shape), 1e-30), tuple(np.ones((d, 1)) for d in shape))
    return TensorTrain(tuple(np.full((1, d, 1), 1e-30 if k == 0 else 1.0) for k, d in enumerate(shape)))
