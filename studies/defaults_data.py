"""Data of the study of the defaults: fields with known truth, and which of their entries are observed.

Every draw is a function of its class and its number alone. A *low-rank* signal is a sum of two outer products of
standard normal vectors; a *smooth* one is white noise under a Gaussian filter whose width is an eighth of each axis.
Both are scaled to standard deviation 1. Measurements add normal noise: standard deviation 0.3 to low-rank signals, 0.1
to smooth ones, none where a class says so. Intervals are compared with measurements at the missing entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from studies.cells import seed_of

__all__ = ["CLASSES", "Case", "Draw"]

LOW_RANK_NOISE, SMOOTH_NOISE = 0.3, 0.1
DEMO_SHAPE, DEMO_NOISE = (24, 36, 24), 1.0
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Draw:
    """Measurements of every entry, which of them are observed, and the input that a user would give.

    log_odds: of being observed, where they are known (for the oracle's weights). given: options that a user names.
    """

    measured: np.ndarray
    mask: np.ndarray
    x: Any
    log_odds: np.ndarray | None = None
    given: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A class of data: its name on the command line, its row in the table, its kind and how it is drawn."""

    name: str
    title: str
    kind: str  # which bounds apply: random, rows, few, patch, field, paper, paper told
    make: Callable[[np.random.Generator, int], Draw]

    def draw(self, number: int) -> Draw:
        """One draw; the same for the same number on every machine."""
        return self.make(np.random.default_rng([seed_of("defaults", self.name), number]), number)


def low_rank(shape: Shape, rng: np.random.Generator, rank: int = 2) -> np.ndarray:
    """A sum of `rank` outer products of normal vectors, standard deviation 1."""
    signal = np.zeros(shape)
    for _ in range(rank):
        signal += reduce(np.multiply.outer, [rng.standard_normal(n) for n in shape])
    return signal / signal.std()


def smooth(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """White noise under a Gaussian filter whose width is an eighth of each axis, standard deviation 1."""
    # drawn on a larger grid, so that the edges are like the inside
    margins = [n // 2 for n in shape]
    wide = rng.standard_normal([n + 2 * m for n, m in zip(shape, margins)])
    inside = tuple(slice(m, m + n) for n, m in zip(shape, margins))
    signal = gaussian_filter(wide, [n / 8 for n in shape])[inside]
    return np.asarray((signal - signal.mean()) / signal.std())


def observed_as(measured: np.ndarray, mask: np.ndarray, **more: Any) -> Draw:
    """A draw that is given to corten as a plain array with NaN."""
    return Draw(measured, mask, np.where(mask, measured, np.nan), **more)


def at_random(name: str, shape: Shape, missing: float, noise: float = LOW_RANK_NOISE, rank: int = 2) -> Case:
    """Every entry is missing with the same chance."""

    def make(rng: np.random.Generator, number: int) -> Draw:
        measured = low_rank(shape, rng, rank) + noise * rng.standard_normal(shape)
        return observed_as(measured, rng.random(shape) >= missing)

    exact = "" if noise else f", exact rank {rank}"
    return Case(name, f"{_sizes(shape)}{exact}, {100 * missing:g} % missing at random", "random", make)


def by_row(name: str, shape: Shape) -> Case:
    """The log-odds of being observed differ by row (normal, mean 0.8, sd 1.2), and the noise is large where they are
    low: standard deviation 0.15 (1 + exp(-log-odds)).
    """

    def make(rng: np.random.Generator, number: int) -> Draw:
        rows = 0.8 + 1.2 * rng.standard_normal((shape[0],) + (1,) * (len(shape) - 1))
        odds = np.broadcast_to(rows, shape)
        measured = low_rank(shape, rng) + 0.15 * (1 + np.exp(-odds)) * rng.standard_normal(shape)
        return observed_as(measured, rng.random(shape) < 1 / (1 + np.exp(-odds)), log_odds=odds)

    return Case(name, f"{_sizes(shape)}, chance of missing and noise differ by row", "rows", make)


def few(name: str, shape: Shape, observed: int = 30) -> Case:
    """A fixed small number of entries is observed, at random places."""

    def make(rng: np.random.Generator, number: int) -> Draw:
        measured = low_rank(shape, rng) + LOW_RANK_NOISE * rng.standard_normal(shape)
        mask = np.zeros(shape, bool)
        mask.flat[rng.permutation(mask.size)[:observed]] = True
        return observed_as(measured, mask)

    return Case(name, f"{observed} observed of {_sizes(shape)}", "few", make)


def patch(name: str, shape: Shape, signal: Callable[..., np.ndarray], noise: float, edge: bool) -> Case:
    """One box is missing, a third of each axis long: away from all edges, or touching one of them."""

    def make(rng: np.random.Generator, number: int) -> Draw:
        measured = signal(shape, rng) + noise * rng.standard_normal(shape)
        sizes = [max(2, n // 3) for n in shape]
        starts = [int(rng.integers(n // 8, n - size - n // 8 + 1)) for n, size in zip(shape, sizes)]
        if edge:
            axis = int(rng.integers(len(shape)))
            starts[axis] = int(rng.choice([0, shape[axis] - sizes[axis]]))
        mask = np.ones(shape, bool)
        mask[tuple(slice(a, a + size) for a, size in zip(starts, sizes))] = False
        return observed_as(measured, mask)

    kind = "low rank" if signal is low_rank else "smooth"
    return Case(name, f"{_sizes(shape)} {kind}, one patch {'at an edge' if edge else 'inside'}", "patch", make)


def quick_start(rng: np.random.Generator, number: int) -> Draw:
    """The data of docs/quick-start.md with another seed; truth and data are without noise."""
    from corten import simulate

    field = simulate.tec_like((16, 20, 16), number, missing=0.25)
    return Draw(field.truth, field.mask, field.to_dataset()["tec"])


def demo(rng: np.random.Generator, number: int) -> Draw:
    """A simulated day of TEC with one ocean at the edge of the map, with its seed."""
    from corten import simulate

    field = simulate.tec_like(DEMO_SHAPE, number)
    measured = field.truth + DEMO_NOISE * np.random.default_rng([number, 1]).standard_normal(DEMO_SHAPE)
    x = field.to_dataset()["tec"].copy(data=np.where(field.mask, measured, np.nan))
    return Draw(measured, field.mask, x, given={"seed": number})


def paper(name: str, model: str, told: bool, d: int = 40) -> Case:
    """The paper's simulation with noise that is large where data are missing; block rank 3 of the parameter.

    told: the kind of missingness is given (the coupling of the Ising model with its strength), not chosen.
    """

    def make(rng: np.random.Generator, number: int) -> Draw:
        from corten import BernoulliPropensity, IsingPropensity, simulate

        one = simulate.paper_setting(d, 3, "ising" if model == "Ising" else "bernoulli", "adversarial", seed=number)
        known = IsingPropensity(1 / 15) if model == "Ising" else BernoulliPropensity()
        return observed_as(one.data, one.mask, given={"propensity": known} if told else {})

    title = f"the paper's {model} setting, {d}^3, adversarial noise, {'model told' if told else 'nothing set'}"
    return Case(name, title, "paper told" if told else "paper", make)


def _sizes(shape: Shape) -> str:
    return f"{shape[0]}^{len(shape)}" if len(shape) > 2 and len(set(shape)) == 1 else " x ".join(map(str, shape))


CLASSES: dict[str, Case] = {
    case.name: case
    for case in (
        at_random("random-14x12x16", (14, 12, 16), 0.35),
        at_random("random-40x60", (40, 60), 0.1),
        at_random("random-8x9x10x7-10", (8, 9, 10, 7), 0.1),
        at_random("random-8x9x10x7-50", (8, 9, 10, 7), 0.5),
        at_random("random-15", (15, 15, 15), 0.1),
        at_random("random-100", (100, 100, 100), 1e-4),
        at_random("exact-rank-one", (12, 11, 9, 8, 5), 0.4, noise=0.0, rank=1),
        by_row("rows-40x60", (40, 60)),
        by_row("rows-15", (15, 15, 15)),
        few("few-20x20", (20, 20)),
        few("few-6", (6, 6, 6)),
        few("few-10x12", (10, 12)),
        *(
            patch(f"patch-{name}-{'edge' if edge else 'inside'}", shape, signal, noise, edge)
            for name, shape, signal, noise in (
                ("low-rank-40x60", (40, 60), low_rank, LOW_RANK_NOISE),
                ("smooth-40x60", (40, 60), smooth, SMOOTH_NOISE),
                ("smooth-24x30", (24, 30), smooth, SMOOTH_NOISE),
                ("smooth-14x16x12", (14, 16, 12), smooth, SMOOTH_NOISE),
            )
            for edge in (False, True)
        ),
        Case("quick-start", "data of the quick start", "field", quick_start),
        Case("demo", "a simulated day of TEC, one ocean at the edge", "field", demo),
        paper("paper-bernoulli", "Bernoulli", told=False),
        paper("paper-bernoulli-told", "Bernoulli", told=True),
        paper("paper-ising", "Ising", told=False),
        paper("paper-ising-told", "Ising", told=True),
    )
}
