"""How far an audit of gap-shaped calibration is from the truth, on simulated TEC-like fields.

    python benchmarks/gap_audit.py 12 3 100     (fields, rounds of the audit, first seed)

The same hidden entries are weighed twice: brought to the depths of the missing ones, and all alike. Every field is
fitted by two recipes: moved copies of the real gaps, and, broken on purpose, single entries, as if gaps had no depth.
An audit that says more than is covered is too kind, one that says less too strict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

import corten
from corten import metrics, simulate
from corten.audit_table import Audit
from corten.calibration.rounds import Plan, Round
from corten.conformal.depth import depth, depth_log_weights
from corten.observed import ObservedTensor

SHAPE = (16, 20, 16)
LEVELS = (0.8, 0.9)


@dataclass(frozen=True)
class Scattered:
    """A broken recipe: its pseudo-gaps are single entries, a tenth of the observed ones at random."""

    rounds: int = 4

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        rng, seen = np.random.default_rng(seed), np.asarray(observed.mask)
        hidden = [seen & (rng.random(seen.shape) < 0.1) for _ in range(self.rounds)]
        return Plan(tuple(Round(seen & ~one, one, None) for one in hidden), refit=True)


RECIPES = {"moved gaps": corten.GapShaped(8), "single entries": Scattered()}


def weighed(audit: Audit) -> dict[str, Audit]:
    """The audit with its hidden entries weighed by depth, and all alike."""
    missing = depth(audit.observed.mask, audit.observed.axes, np.ones(3))[audit.observed.missing]
    by_depth, _ = depth_log_weights(np.concatenate([one.depth for one in audit.samples]), missing)
    return {
        "depth": replace(audit, log_weights=by_depth),
        "alike": replace(audit, log_weights=np.zeros_like(by_depth)),
    }


def measured(recipe: str, seed: int, rounds: int) -> Iterator[tuple[str, float, float, float, float]]:
    """Weights, level, coverage, what was audited and its standard error."""
    field = simulate.tec_like(SHAPE, seed=seed)
    fitted = corten.ConformalCompleter(completion="smooth", calibration=RECIPES[recipe]).fit(field.observed)
    for name, audit in weighed(fitted.audit(rounds=rounds, levels=LEVELS)).items():
        for level in LEVELS:
            true = metrics.coverage(field.truth, fitted.intervals(level))
            yield name, level, true, audit.coverage(level), audit.standard_error(level)


def main(fields: int = 12, rounds: int = 3, first: int = 100) -> None:
    print("| recipe | field | weights | level | covered | audited | off by |")
    print("|---|---|---|---|---|---|---|")
    off: dict[tuple[str, str, float], list[float]] = {}
    for recipe, seed in product(RECIPES, range(first, first + fields)):
        for name, level, true, said, error in measured(recipe, seed, rounds):
            off.setdefault((recipe, name, level), []).append(100 * (said - true))
            numbers = f"{100 * true:.1f} % | {100 * said:.1f} +- {100 * error:.1f} % | {100 * (said - true):+.1f}"
            print(f"| {recipe} | {seed} | {name} | {level:.0%} | {numbers} |", flush=True)
    print("\n| recipe | weights | level | mean | root mean square | too kind by at most | too strict by at most |")
    print("|---|---|---|---|---|---|---|")
    for (recipe, name, level), points in off.items():
        worst = f"{max(0.0, max(points)):.1f} | {max(0.0, -min(points)):.1f}"
        error = np.std(points, ddof=1) / np.sqrt(len(points)) if len(points) > 1 else np.nan
        size = np.sqrt(np.mean(np.square(points)))
        print(f"| {recipe} | {name} | {level:.0%} | {np.mean(points):+.1f} +- {error:.1f} | {size:.1f} | {worst} |")


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:4]))
