"""Low-rank completion by Riemannian descent on the observed entries (eq. tensor-completion-problem)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from corten.completion.protocol import Fill
from corten.data.choices import Choice
from corten.engine import Engine, as_engine
from corten.engine.threads import one_library_thread
from corten.lowrank import (
    BarzilaiBorwein,
    MaxEvaluations,
    TensorTrain,
    Tucker,
    ValueChange,
    check_rank,
    check_tucker_rank,
    descend,
    feasible_rank,
    feasible_tucker_rank,
)
from corten.lowrank.power import spectral_start

__all__ = ["PreparedLowRank", "TensorTrainCompletion", "TuckerCompletion", "descend_on"]

CRITERIA = ("held-out", "aic", "bic")
HELD_SHARE = 0.1
PATIENCE = 2
MAX_RANK = 20


@dataclass(frozen=True)
class TuckerCompletion:
    """Fill with the tensor of low Tucker rank that fits the observed entries best: the paper's completion.

    rank: an integer (every mode), one per mode, or "auto"; criterion: "held-out", "aic" or "bic", how "auto"
    compares ranks; ridge: pulls what the data do not determine towards the mean.

    Example:
        >>> x = np.fromfunction(lambda i, j, k: (i + 1.0) * (j + 2) * (k + 3), (6, 7, 8))
        >>> mask = np.random.default_rng(0).random(x.shape) < 0.6
        >>> fill = TuckerCompletion(rank=2).prepare(x, mask, (), seed=0).fill(x, mask)
        >>> bool(np.abs(fill.estimate - x).max() < 0.01 * x.max())
        True
    """

    rank: int | tuple[int, ...] | str = "auto"
    criterion: str = "held-out"
    ridge: float = 1e-3
    engine: Any = "auto"

    def __post_init__(self) -> None:
        _check_options(self.rank, self.criterion, self.ridge)

    def prepare(
        self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int
    ) -> PreparedLowRank:
        """Choose the rank, if it was left open, from the entries in `mask`."""
        return _prepare(self, "Tucker", values, mask, seed)


@dataclass(frozen=True)
class TensorTrainCompletion:
    """Fill with the tensor of low tensor-train rank that fits best; options as for `TuckerCompletion`."""

    rank: int | tuple[int, ...] | str = "auto"
    criterion: str = "held-out"
    ridge: float = 1e-3
    engine: Any = "auto"

    def __post_init__(self) -> None:
        _check_options(self.rank, self.criterion, self.ridge)

    def prepare(
        self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int
    ) -> PreparedLowRank:
        """Choose the rank, if it was left open, from the entries in `mask`."""
        return _prepare(self, "tensor-train", values, mask, seed)


@dataclass(frozen=True)
class PreparedLowRank:
    """A low-rank completion whose rank is chosen."""

    structure: str
    rank: tuple[int, ...]
    ridge: float
    engine: Engine
    seed: int
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Descend from a spectral start."""
        point, centre, scale, _ = _fit(self, values, mask)
        estimate = np.empty(values.shape, np.result_type(values.dtype, np.float32))
        step = max(1, 4_000_000 // max(1, point.size // point.shape[0]))
        for a in range(0, point.shape[0], step):
            estimate[a : a + step] = centre + scale * point.slab(a, min(a + step, point.shape[0]))

        def leverage() -> np.ndarray:
            return np.sqrt(np.maximum(point.leverage(), 0.0))

        return Fill(estimate, leverage=leverage)


def _fit(
    prepared: PreparedLowRank, values: np.ndarray, mask: np.ndarray
) -> tuple[TensorTrain | Tucker, float, float, float]:
    """The point, centre and scale of the data it lives on, and half the squared error left on the observed entries."""
    found = values[mask].astype(np.float64)
    centre = float(found.mean())
    scale = float(found.std()) or 1.0
    scaled = np.zeros(values.shape, np.float32)
    scaled[mask] = (found - centre) / scale
    point, error = descend_on(prepared, scaled, mask, found.size)
    return point, centre, scale, error


def descend_on(
    prepared: PreparedLowRank, scaled: np.ndarray, mask: np.ndarray, count: int
) -> tuple[TensorTrain | Tucker, float]:
    """The point that fits `count` centred and scaled values where `mask` is set, and half the squared error left.

    Both arrays may live in files: they are only walked through.
    """
    with one_library_thread:
        passes = prepared.engine.residual_pass(scaled, mask)
        guess = _random(prepared.structure, scaled.shape, prepared.rank, prepared.seed)
        start: TensorTrain | Tucker
        start = spectral_start(lambda f: passes.contractions_of_data(f)[1], guess, iterations=6)
        start = start * (scaled.size / count)

        def objective(point: TensorTrain | Tucker) -> tuple[float, Any]:
            frame: Any = point.frame()
            loss, contractions = passes.loss_and_contractions(getattr(frame, "tt", frame))
            gradient = frame.project(contractions) + frame.radial() * prepared.ridge
            return loss + 0.5 * prepared.ridge * point.norm() ** 2, gradient

        step = BarzilaiBorwein(first_step=1.0, noise=1e-7)
        done = descend(objective, start, step=step, stop=ValueChange(1e-5, 3) | MaxEvaluations(300))
    error = done.value - 0.5 * prepared.ridge * done.point.norm() ** 2
    return done.point, max(error, 1e-12 * count)


def _prepare(
    config: TuckerCompletion | TensorTrainCompletion,
    structure: str,
    values: np.ndarray,
    mask: np.ndarray,
    seed: int,
) -> PreparedLowRank:
    feasible: Callable = feasible_tucker_rank if structure == "Tucker" else feasible_rank
    check: Callable = check_tucker_rank if structure == "Tucker" else check_rank
    engine = as_engine(config.engine)
    if not isinstance(config.rank, str):
        return PreparedLowRank(structure, check(values.shape, config.rank), config.ridge, engine, seed)
    base = PreparedLowRank(structure, (), config.ridge, engine, seed)
    held = mask & (np.random.default_rng([seed, 5]).random(mask.shape) < HELD_SHARE)
    if config.criterion != "held-out" or not held.any() or not (mask & ~held).any():
        held = np.zeros_like(mask)
    used = mask & ~held
    rows: list[dict[str, object]] = []
    best: tuple[float, tuple[int, ...]] | None = None
    rises, last, ranks = 0, np.inf, ()
    constant = values[used].min() == values[used].max()  # every rank leaves nothing of it
    for rank in range(1, 2 if constant else MAX_RANK + 1):
        if feasible(values.shape, rank) == ranks:
            break
        ranks = feasible(values.shape, rank)
        score = _score(replace(base, rank=ranks), config.criterion, values, used, held)
        rows.append({"rank": "x".join(map(str, ranks)), config.criterion: score})
        if best is None or score < best[0]:
            best = score, ranks
        rises = rises + 1 if score >= last else 0
        last = score
        if rises >= PATIENCE:
            break
    assert best is not None
    words = {
        "held-out": "smallest error on held-out training entries",
        "aic": "smallest AIC",
        "bic": "smallest BIC",
    }
    choice = Choice(f"{structure} rank", str(best[1]), words[config.criterion], tuple(rows))
    return replace(base, rank=best[1], choices=(choice,))


def _score(
    prepared: PreparedLowRank, criterion: str, values: np.ndarray, used: np.ndarray, held: np.ndarray
) -> float:
    point, centre, scale, error = _fit(prepared, values, used)
    if criterion == "held-out" and held.any():
        where = np.flatnonzero(held)
        residual = values.reshape(-1)[where] - (centre + scale * point.at_flat(where))
        return float(np.sqrt(np.mean(residual.astype(np.float64) ** 2)))
    count = int(np.count_nonzero(used))
    price = 2.0 if criterion != "bic" else log(count)
    return count * log(2 * error / count) + price * point.dimension


def _random(structure: str, shape: tuple[int, ...], rank: tuple[int, ...], seed: int) -> TensorTrain | Tucker:
    return (
        Tucker.random(shape, rank, seed) if structure == "Tucker" else TensorTrain.random(shape, rank, seed)
    )


def _check_options(rank: object, criterion: str, ridge: float) -> None:
    if isinstance(rank, str) and rank != "auto":
        raise ValueError(f'rank is {rank!r}; give an integer, one per mode, or "auto"')
    if criterion not in CRITERIA:
        raise ValueError(f"criterion is {criterion!r}; allowed are {', '.join(map(repr, CRITERIA))}")
    if not 0 <= ridge < np.inf:
        raise ValueError(f"ridge is {ridge}; give a number of at least 0")
