"""How far an audit of gap-shaped calibration is from the truth, on simulated TEC-like fields.

    python benchmarks/gap_audit.py 24 6 200     (fields, rounds of the audit, first seed)

Every field is fitted by three recipes: gaps like the real ones (the default), and, broken on purpose, single entries,
as if gaps had no depth, and the rims of gaps, as if nothing lay deep inside. Three audits look at each: the fit's own
calibration with hidden entries brought to the depths of the missing ones (the default), the same with all hidden
entries alike, and one that calibrates anew inside every round with one pseudo-gap. An audit that says more than is
covered is too kind, one that says less too strict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

import corten
from corten import ObservedTensor, simulate
from corten.calibration.task import Plan, Round
from corten.completion.axes_kinds import axis_kinds, move_gap
from corten.conformal.depth import depth
from corten.evidence import metrics
from corten.evidence.audit_table import Audit

SHAPE = (16, 20, 16)
LEVELS = (0.8, 0.9)


@dataclass(frozen=True)
class Scattered(corten.GapCalibration):
    """A broken recipe: its pseudo-gaps are single entries, a tenth of the observed ones at random."""

    rounds: int = 4

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        rng, seen = np.random.default_rng(seed), np.asarray(observed.mask)
        hidden = [seen & (rng.random(seen.shape) < 0.1) for _ in range(self.rounds)]
        return Plan(tuple(Round(seen & ~one, one, None) for one in hidden))


@dataclass(frozen=True)
class Rims(corten.GapCalibration):
    """A broken recipe: of moved copies of the real gaps, only entries beside an observed one are hidden."""

    rounds: int = 8

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        rng, seen = np.random.default_rng(seed), np.asarray(observed.mask)
        kinds = axis_kinds(observed.axes, seen.shape)
        rounds = []
        for _ in range(self.rounds):
            copy = move_gap(~seen, kinds, rng=rng) & seen
            rim = copy & (depth(seen & ~copy, observed.axes, np.ones(seen.ndim)) <= 1)
            rounds.append(Round(seen & ~rim, rim, None))
        return Plan(tuple(rounds))


RECIPES = {"like the real gaps": corten.GapCalibration(), "single entries": Scattered(), "rims of gaps": Rims()}


def audits(fitted: corten.Fitted, rounds: int) -> dict[str, Audit]:
    """Three audits of one fit."""
    own = fitted.audit(rounds=rounds, levels=LEVELS)
    return {
        "own, by depth": own,
        "own, all alike": replace(own, log_weights=np.zeros_like(own.log_weights)),
        "anew": fitted.audit(rounds=rounds, levels=LEVELS, inner_rounds=1),
    }


def measured(recipe: str, seed: int, rounds: int) -> Iterator[tuple[str, float, float, float, float]]:
    """Audit, level, coverage, what was audited and its standard error."""
    field = simulate.tec_like(SHAPE, seed=seed)
    fitted = corten.ConformalCompleter(completion="smooth", calibration=RECIPES[recipe]).fit(field.observed)
    for name, audit in audits(fitted, rounds).items():
        for level in LEVELS:
            true = metrics.coverage(field.truth, fitted.intervals(level))
            yield name, level, true, audit.coverage(level), audit.standard_error(level)


def main(fields: int = 24, rounds: int = 6, first: int = 200) -> None:
    print("| recipe | field | audit | level | covered | audited | off by |")
    print("|---|---|---|---|---|---|---|")
    off: dict[tuple[str, str, float], list[float]] = {}
    truth: dict[tuple[str, str, float], list[float]] = {}
    for recipe, seed in product(RECIPES, range(first, first + fields)):
        for name, level, true, said, error in measured(recipe, seed, rounds):
            off.setdefault((recipe, name, level), []).append(100 * (said - true))
            truth.setdefault((recipe, name, level), []).append(100 * true)
            numbers = f"{100 * true:.1f} % | {100 * said:.1f} +- {100 * error:.1f} % | {100 * (said - true):+.1f}"
            print(f"| {recipe} | {seed} | {name} | {level:.0%} | {numbers} |", flush=True)
    print("\n| recipe | audit | level | covered | mean error | root mean square | too kind, most | too strict, most |")
    print("|---|---|---|---|---|---|---|---|")
    for (recipe, name, level), points in off.items():
        worst = f"{max(0.0, max(points)):.1f} | {max(0.0, -min(points)):.1f}"
        error = np.std(points, ddof=1) / np.sqrt(len(points)) if len(points) > 1 else np.nan
        size = np.sqrt(np.mean(np.square(points)))
        mean = f"{np.mean(truth[recipe, name, level]):.1f} % | {np.mean(points):+.1f} +- {error:.1f}"
        print(f"| {recipe} | {name} | {level:.0%} | {mean} | {size:.1f} | {worst} |")


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:4]))
