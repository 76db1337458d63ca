"""What a cell can compute: rows of numbers from its seeds alone. `EXPERIMENTS` is the list the runner knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from corten import TuckerCompletion
from corten.engine import as_engine
from corten.lowrank import TensorTrain, check_rank
from corten.propensity import IsingPropensity, Recipe
from corten.propensity.estimation import estimate
from corten.propensity.fitted import spins_of
from corten.propensity.selection import choose_rank
from studies.cells import Cell, seed_of
from studies.conformal_cell import SplitFill, conformal, measure, settings_of
from studies.draws import TRAIN_SHARE, mask_of, parameter_of, training_of
from studies.estimators import ENGINE, RANKS, Law, coupling_of, model_of, ours, plain, relative_error
from studies.peers import gcp, tucker
from studies.readings import readings
from studies.timing import timing

__all__ = ["EXPERIMENTS", "run_cell"]

Row = dict[str, Any]


def run_cell(cell: Cell, folder: Path | None = None) -> list[Row]:
    """All rows of a cell. folder: where chains of masks are kept; without it they are drawn anew."""
    if cell.experiment not in EXPERIMENTS:
        raise ValueError(f"experiment is {cell.experiment!r}; known are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[cell.experiment](cell, folder)


def ranks(cell: Cell, folder: Path | None) -> list[Row]:
    """The rank each criterion takes: P-AIC and P-BIC on the paper's fits, held-out loss on ours.

    patience: after how many rises of P-AIC in a row the paper's fits end; 0: never.
    """
    spins = spins_of(training_of(cell, mask_of(cell, folder)))
    model, engine = model_of(cell["model"], spins.shape), as_engine(ENGINE)
    search = partial(choose_rank, engine, spins, model=model, train_share=TRAIN_SHARE, ranks=RANKS)
    _, tried = search(recipe=Recipe.paper(), criterion="p-aic", patience=cell["patience"] or None)
    held, _ = search(recipe=Recipe(), criterion="held-out")
    rows = [
        {"criterion": "P-AIC", "chosen": _smallest(tried, 2.0)},
        {"criterion": "P-BIC", "chosen": _smallest(tried, log(spins.size))},
        {"criterion": "held-out", "chosen": float(np.max(held.rank))},
    ]
    if cell["converged"]:
        # the same criterion where the descent is run to the end of the likelihood instead of stopped by a small step
        further = replace(Recipe.paper(), step="barzilai-borwein", max_passes=300)
        try:
            _, tried = search(recipe=further, criterion="p-aic", patience=None)
        except np.linalg.LinAlgError:
            return rows  # without a ridge B may grow past what floats hold: there is no end of the likelihood
        rows.append({"criterion": "P-AIC, converged", "chosen": _smallest(tried, 2.0)})
    return rows


def _smallest(tried: list[Any], price: float) -> float:
    return float(min(tried, key=lambda c: 2 * c.estimate.loss + price * c.estimate.dimension).rank)


def start(cell: Cell, folder: Path | None) -> list[Row]:
    """Error before and after the descent for starts of the mask plus noise of several sizes (fig:conv_robust)."""
    parameter = parameter_of(cell)
    train = training_of(cell, mask_of(cell, folder))
    spins, rank = spins_of(train), cell["rank"]
    passes = as_engine(ENGINE).mask_pass(spins, model_of(cell["model"], spins.shape), TRAIN_SHARE)
    rows: list[Row] = []
    for noise in cell["noises"]:
        rng = np.random.default_rng(seed_of("start", cell.repetition, noise))
        noisy = spins + noise * rng.standard_normal(spins.shape)
        first = TensorTrain.from_dense(noisy, check_rank(spins.shape, rank))
        before = float(np.linalg.norm(first.to_dense() - parameter) / np.linalg.norm(parameter))
        simple = estimate(passes, first, recipe=Recipe.paper()).train.to_dense()
        better = IsingPropensity(coupling_of(cell["model"]), rank=rank, start=first).fit(
            train, TRAIN_SHARE, engine=ENGINE
        )
        error = float(np.linalg.norm(simple - parameter) / np.linalg.norm(parameter))
        rows.append({"noise_sd": noise, "method": "plain", "start_error": before, "relative_error": error})
        rows.append(
            {
                "noise_sd": noise,
                "method": "default",
                "start_error": before,
                "relative_error": relative_error(better, parameter),
            }
        )
    return rows


def misspecified(cell: Cell, folder: Path | None) -> list[Row]:
    """Coverage and width where the completion has the wrong rank: truth of rank 5, working ranks around it."""
    parameter, mask = parameter_of(cell), mask_of(cell, folder)
    found: list[Law] = []
    rows: list[Row] = []
    for setting in settings_of(cell, parameter, mask, signal_rank=5, rank=1):
        if not found:
            train = setting.plan.rounds[0].train
            found = [plain(train, cell["model"]), ours(train, cell["model"])]
        for working in cell["working"]:
            completion = TuckerCompletion(rank=working, engine=ENGINE)
            run = SplitFill.of(setting.plan, completion, setting.observed, seed_of("completion", cell.repetition))
            rows.extend({"working_rank": working, **measure(replace(setting, run=run), law)} for law in found)
    return rows


def _peer(fit: Callable[[np.ndarray, Cell], Law]) -> Callable[[Cell, Path | None], list[Row]]:
    def run(cell: Cell, folder: Path | None) -> list[Row]:
        parameter, mask = parameter_of(cell), mask_of(cell, folder)
        law: Law | None = None
        rows: list[Row] = []
        for setting in settings_of(cell, parameter, mask):
            law = law or fit(setting.plan.rounds[0].train, cell)
            row = measure(setting, law)
            rows.append(
                {
                    **row,
                    "relative_error": relative_error(law.fitted, parameter),
                    "chosen_rank": law.rank,
                    "seconds": law.seconds,
                }
            )
        return rows

    return run


EXPERIMENTS: dict[str, Callable[[Cell, Path | None], list[Row]]] = {
    "conformal": conformal,
    "ranks": ranks,
    "start": start,
    "misspecified": misspecified,
    "tucker": _peer(lambda train, cell: tucker(train)),
    "gcp": _peer(lambda train, cell: gcp(train, seed_of("gcp", cell.repetition))),
    "reading": readings,
    "timing": timing,
}
