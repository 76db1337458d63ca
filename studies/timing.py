"""Seconds per iteration, and to the same likelihood, of five ways to fit the same model (fig:timing_experiment)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from corten.engine import as_engine
from corten.engine.threads import one_library_thread
from corten.lowrank import Armijo, BarzilaiBorwein, FixedStep, Progress, Stop, TensorTrain, descend
from corten.lowrank.line_search import StepRule
from corten.propensity.fitted import spins_of
from studies.cells import Cell
from studies.draws import STRENGTH, TRAIN_SHARE, mask_of, training_of
from studies.estimators import ENGINE, model_of
from studies.peers import bernoulli_loss, gcp_run, has_gcp, projected_gradient

__all__ = ["dense_loss", "timing"]

SLACK = 1e-5  # of the target: the float32 loss of a pass rounds at about a hundredth of this
Row = dict[str, Any]


def dense_loss(parameter: np.ndarray, spins: np.ndarray, model: str) -> tuple[float, np.ndarray]:
    """Loss and gradient of the whole tensor by shifted copies.

    Eqs. low-rank-MPLE and vanilla-gradient, product coupling xy/15.
    """
    strength = STRENGTH if model == "ising" else 0.0
    eta = parameter.copy()
    pull = np.zeros_like(parameter)
    for axis in range(parameter.ndim if strength else 0):
        for ahead in (False, True):
            pull[_part(axis, ahead, parameter.ndim)] += (parameter * spins)[_part(axis, not ahead, parameter.ndim)]
    eta += 2 * strength * parameter * pull
    loss, slope = bernoulli_loss(spins, eta)
    gradient = slope * (1 + 2 * strength * pull)
    if strength:
        weighted = slope * parameter
        for axis in range(parameter.ndim):
            for ahead in (False, True):
                here, there = _part(axis, ahead, parameter.ndim), _part(axis, not ahead, parameter.ndim)
                gradient[here] += 2 * strength * spins[here] * weighted[there]
    return float(loss.sum()), gradient


def timing(cell: Cell, folder: Path | None) -> list[Row]:
    """Rows of one cell.

    A method each. The target is the loss at which the paper's own stopping rule ends the fixed step.
    """
    mask = mask_of(cell, folder)
    train = training_of(cell, mask)
    spins, rank, model = spins_of(train), cell["rank"], cell["model"]
    passes = as_engine(ENGINE).mask_pass(spins, model_of(model, spins.shape), TRAIN_SHARE)
    first = TensorTrain.from_dense(spins + 0.1 * np.random.default_rng(0).standard_normal(spins.shape), rank)

    def objective(point: Any) -> tuple[float, Any]:
        frame = point.frame()
        loss, contractions = passes.loss_and_contractions(frame)
        return loss, frame.project(contractions)

    def descent(name: str, step: StepRule, stop: Callable[[Progress], str | None]) -> tuple[Row, float]:
        began = perf_counter()
        with one_library_thread:
            done = descend(objective, first, step=step, stop=stop)
        spent = perf_counter() - began
        reached = done.stopped_because == "reached the target" or name == "RGrad"
        return _row(name, spent, done.iterations, spent if reached else float("nan")), done.value

    descend(objective, first, step=FixedStep(0.1), stop=Stop(evaluations=2))  # compile before the clock runs
    fixed, loss = descent("RGrad", FixedStep(0.1), Stop(relative_change=1e-3, evaluations=2000))
    target = loss * (1 + SLACK)

    def until(progress: Progress) -> str | None:
        return "reached the target" if progress.values[-1] <= target else Stop(evaluations=1000)(progress)

    rows = [fixed, descent("RGrad-adaptive", Armijo(first_step=4.0, noise=1e-7), until)[0]]
    rows.append(descent("corten", BarzilaiBorwein(first_step=4.0, noise=1e-7), until)[0])
    signs = spins.astype(np.float64)
    with one_library_thread:
        losses, seconds = projected_gradient(
            lambda point: dense_loss(point, signs, model),
            first.to_dense(),
            rank,
            lambda loss: loss <= target,
            iterations=cell["dense_iterations"],
        )
    reached = seconds[-1] if losses[-1] <= target else float("nan")
    rows.append(_row("projected gradient, dense TT-SVD", seconds[-1], len(losses) - 1, reached))
    if has_gcp():
        matched = max(1, round(first.dimension / (sum(train.shape) - 2)))
        with one_library_thread:
            rows.append(_gcp_row(train, matched, cell["gcp_iterations"], target if model == "bernoulli" else -np.inf))
    return rows


def _gcp_row(train: np.ndarray, rank: int, iterations: int, target: float) -> Row:
    """Generalized CP. It knows no neighbours, so under the Ising model its likelihood is another one."""
    gcp_run(train, rank, seed=0, iterations=1)  # load the library before the clock runs
    moments: list[float] = []

    def watch(loss: float) -> None:
        if loss <= target and not moments:
            moments.append(perf_counter())

    began = perf_counter()
    _, _, done = gcp_run(train, rank, seed=0, iterations=iterations, watch=watch)
    spent = perf_counter() - began
    return _row("GCP", spent, done, moments[0] - began if moments else float("nan"))


def _row(method: str, spent: float, iterations: int, to_target: float) -> Row:
    each = spent / max(iterations, 1)
    return {
        "method": method,
        "seconds_per_iteration": each,
        "iterations": float(iterations),
        "seconds_to_target": to_target,
    }


def _part(axis: int, ahead: bool, order: int) -> tuple[slice, ...]:
    index = [slice(None)] * order
    index[axis] = slice(1, None) if ahead else slice(None, -1)
    return tuple(index)
