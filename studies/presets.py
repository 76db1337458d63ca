"""How much of a study to run: smoke (minutes), standard (an hour or two), full (the paper's own size)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRESETS", "Preset", "preset_named"]


@dataclass(frozen=True)
class Preset:
    """Sizes, ranks and repetitions of every part.

    draws: how many B* are drawn per setting, where the paper has one; those after the first get `draw_repetitions`
    each at rank 3, where the paper gives numbers, and one elsewhere; readings: how many B* show the spread of
    unweighted mis-coverage under each reading of the paper; patience: after how many rises of P-AIC in a row the
    paper's rank search ends, 0 for all of 2..15;
    burn_in, thin: of the chain of masks; landscape: ranks of B* against which coverage and error are drawn;
    working: completion ranks of the misspecified part.
    """

    name: str
    repetitions: int
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    landscape_sizes: tuple[int, ...]
    landscape: tuple[int, ...]
    working: tuple[int, ...]
    burn_in: int
    thin: int
    timing_sizes: tuple[int, ...] = (40,)
    draws: int = 1
    draw_repetitions: int = 0
    readings: int = 4
    patience: int = 4


PRESETS = {
    "tiny": Preset("tiny", 2, (12,), (2,), (12,), (2,), (1, 2), 20, 5, timing_sizes=(12,)),
    "smoke": Preset("smoke", 2, (40,), (3, 5), (30, 40), (2, 5, 9), (1, 3, 5, 8), 300, 50),
    "standard": Preset(
        "standard",
        10,
        (40, 60),
        (3, 5, 7, 9),
        (40, 60),
        (2, 3, 5, 9, 15),
        (1, 2, 3, 4, 5, 6, 8, 10, 15),
        1000,
        200,
        (40, 60),
        draws=5,
        draw_repetitions=2,
        readings=60,
    ),
    "full": Preset(
        "full",
        30,
        (40, 60, 80, 100),
        (3, 5, 7, 9),
        (40, 60, 80, 100),
        tuple(range(2, 16)),
        tuple(range(1, 16)),
        10_000,
        1000,
        (40, 60, 80, 100),
        draws=5,
        draw_repetitions=6,
        readings=200,
        patience=0,
    ),
}


def preset_named(name: str) -> Preset:
    """A preset by its name.

    Example:
        >>> preset_named("full").repetitions
        30
    """
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; allowed are smoke, standard, full")
    return PRESETS[name]
