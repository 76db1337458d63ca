"""The parts of the simulation study: which table or figure of the paper each stands for, and the cells it needs.

Parts share cells: the intervals of one mask feed `coverage`, `landscape`, `estimation`, `methods`, `scores` and
`theory`, and are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from studies.cells import Cell
from studies.peers import has_gcp
from studies.presets import Preset
from studies.readings import READINGS

__all__ = ["MODELS", "PARTS", "Part", "part_named"]

MODELS = ("bernoulli", "ising")
START_NOISES = (0.0, 0.1, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Part:
    """One part: its name, the paper's label, what it shows, and its cells at a preset."""

    name: str
    label: str
    shows: str
    cells: Callable[[Preset], list[Cell]]


def part_named(name: str) -> Part:
    """A part by its name.

    Example:
        >>> part_named("methods").label
        'tab:conformal_compare_method'
    """
    if name not in PARTS:
        raise ValueError(f"part is {name!r}; allowed are {', '.join(PARTS)}")
    return PARTS[name]


def _repeated(
    experiment: str, preset: Preset, sizes: Iterable[int], ranks: Iterable[int], draws: bool = False, **more: Any
) -> list[Cell]:
    """Cells over models, sizes, ranks, B* and repetitions; only Ising cells carry the chain's settings.

    draws: on several B*. Those after the first are repeated where the paper has its tables (rank 3), once elsewhere.
    """
    cells = []
    for model in MODELS:
        chain = {"burn_in": preset.burn_in, "thin": preset.thin} if model == "ising" else {}
        for d in sizes:
            for rank in ranks:
                again = preset.draw_repetitions if rank == 3 else 1
                for draw in range(preset.draws if draws else 1):
                    extra = {**more, **_conformal_extras(rank, draw)} if experiment == "conformal" else more
                    for repetition in range(again if draw else preset.repetitions):
                        cells.append(
                            Cell.of(experiment, repetition, d=d, rank=rank, model=model, draw=draw, **chain, **extra)
                        )
    return cells


def _conformal_extras(rank: int, draw: int) -> dict[str, Any]:
    return {"scores": rank == 3, "automatic": rank == 3 and draw == 0}


def _three(preset: Preset) -> int:
    """Rank 3, where the paper has its tables; the smallest rank of a preset without it."""
    return 3 if 3 in preset.ranks else preset.ranks[0]


def _selection(preset: Preset) -> list[Cell]:
    """A search ends after some rises of P-AIC, not where the paper's P-AIC goes wrong (Ising, smallest size, r <= 5):
    that must be able to show. Once per setting of the smallest size the likelihood is also minimised to its end.
    """
    cells = _repeated("ranks", preset, preset.sizes, preset.ranks)
    first = preset.sizes[0]
    return [
        Cell.of(
            cell.experiment,
            cell.repetition,
            converged=cell["d"] == first and cell.repetition == 0,
            patience=0 if cell["d"] == first and cell["model"] == "ising" and cell["rank"] <= 5 else preset.patience,
            **dict(cell.parameters),
        )
        for cell in cells
    ]


def _coverage(preset: Preset) -> list[Cell]:
    ranks = (3, 9) if 3 in preset.ranks else preset.ranks
    size, rank = preset.sizes[0], _three(preset)
    many = [Cell.of("reading", 0, d=size, rank=rank, reading=name, parameters=preset.readings) for name in READINGS]
    return _repeated("conformal", preset, preset.sizes, ranks, draws=True) + many


def _landscape(preset: Preset) -> list[Cell]:
    return _repeated("conformal", preset, preset.landscape_sizes, preset.landscape, draws=True)


def _estimation(preset: Preset) -> list[Cell]:
    starts = _repeated("start", preset, preset.sizes, (_three(preset),), noises=START_NOISES)
    return _landscape(preset) + starts


def _methods(preset: Preset) -> list[Cell]:
    sizes = [d for d in preset.sizes if d <= 60]
    rank = (_three(preset),)
    cells = _repeated("conformal", preset, sizes, rank, draws=True) + _repeated(
        "tucker", preset, sizes, rank, draws=True
    )
    return cells + (_repeated("gcp", preset, sizes, rank) if has_gcp() else [])


def _scores(preset: Preset) -> list[Cell]:
    return _repeated("conformal", preset, preset.sizes, (_three(preset),), draws=True)


def _misspecified(preset: Preset) -> list[Cell]:
    return _repeated("misspecified", preset, preset.sizes, (_three(preset),), working=preset.working)


def _timing(preset: Preset) -> list[Cell]:
    return _repeated("timing", preset, preset.timing_sizes, (_three(preset),), dense_iterations=400, gcp_iterations=100)


PARTS = {
    part.name: part
    for part in (
        Part("setup", "fig:simulation-setup", "the four tensors of the simulation, drawn", lambda preset: []),
        Part(
            "coverage",
            "fig:sim-conformal-coverage, fig:sim-coverage-additional-result",
            "mis-coverage, coverage and half-width: unweighted, oracle, the paper's estimator, ours",
            _coverage,
        ),
        Part(
            "methods",
            "tab:conformal_compare_method",
            "against generalized CP and binary Tucker, with a paired test",
            _methods,
        ),
        Part(
            "scores", "tab:ncs-compare, fig:simulation-C90-width", "absolute, normalized and two-sided scores", _scores
        ),
        Part(
            "selection", "tab:Model-Selection", "the rank that P-AIC, P-BIC and held-out likelihood choose", _selection
        ),
        Part(
            "landscape", "fig:sim-conformal-coverage-rnd", "coverage of 90 % and 95 % intervals against r/d", _landscape
        ),
        Part(
            "estimation",
            "fig:estimation-error, fig:conv_robust",
            "relative error of B against r/d, and robustness to the start",
            _estimation,
        ),
        Part("misspecified", "fig:tc_misspecified_sim", "completion of the wrong rank", _misspecified),
        Part(
            "theory",
            "thm:error-bound-Bernoulli, lemma:coverage-lower-bound",
            "error and weight error against sqrt(r* d_bar / d*), and the shortfall they predict",
            _landscape,
        ),
        Part("timing", "fig:timing_experiment", "seconds per iteration and to the same likelihood", _timing),
    )
}
