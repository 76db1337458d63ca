"""Calibration on pseudo-gaps: hide observed entries under moved copies of the real gaps, and under gaps like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from corten.calibration.gap_rounds import run_rounds
from corten.calibration.gap_scale import learn_locally
from corten.calibration.hiding import draw_masks
from corten.calibration.task import Outcome, Plan, Round, Task
from corten.completion.axes_kinds import axis_kinds, edges_of, move_gap
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.propensity import FittedPropensity, IsingPropensity

__all__ = ["GapCalibration"]

STREAM = 0x6A95
ATTEMPTS = 40
LEAST_SHARE = 0.1
"""A round hides at least this share of the gap, or of the observed entries if they are fewer."""
BYTES_PER_ENTRY_AND_ROUND, BYTES_OF_SCALE = 66, 330_000_000  # at the peak, and for the learned scale, measured
MODEL_OF_MASK = IsingPropensity(max_rank=5)
"""Inside gaps the model of the missingness is drawn from and audited, it does not weigh: a modest rank will do."""


@dataclass(frozen=True)
class GapCalibration:
    """Hide observed entries under moved copies of the real gaps and under drawn ones like them, several times.

    The hidden entries then lie as deep inside gaps as the missing ones do. The final estimate uses everything
    observed. No theorem stands behind it: check it by an audit on fresh rounds.

    drawn: the share of rounds that hide under masks drawn from an Ising model fitted to the real mask instead. They
    temper single draws of moved copies that lie deeper than the real gaps.

    Example:
        >>> GapCalibration().rounds
        24
    """

    rounds: int = 24
    drawn: float = 1 / 3
    pooled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}: give at least 1 (24 or more is better)")
        if not 0.0 <= self.drawn <= 1.0:
            raise ValueError(f"drawn is {self.drawn}: give a share of the rounds between 0 and 1")

    def plan(self, observed: Any, seed: int) -> Plan:
        """Draw the rounds; `observed` has `mask`, `domain` (or None) and `axes`."""
        mask = np.asarray(observed.mask, dtype=bool)
        domain = np.ones(mask.shape, bool) if observed.domain is None else np.asarray(observed.domain, bool)
        gap = domain & ~mask
        seen = mask & domain
        if seen.sum() < 2:
            raise ValueError(f"{int(seen.sum())} observed entries: pseudo-gaps need at least two")
        kinds = axis_kinds(observed.axes, mask.shape)
        rng = np.random.default_rng((seed, STREAM))
        least = LEAST_SHARE * min(int(gap.sum()), int(seen.sum()))
        count = round(self.drawn * self.rounds)
        law = _law_of(observed) if count else None
        shapes = [~mask for mask in draw_masks(law, observed, count, seed)] if law is not None else []
        edges = edges_of(gap, kinds)
        rounds = []
        for number in range(self.rounds):
            given = shapes[number] if number < len(shapes) else None
            # Every second copy stays at the edges of the data that the gap lies at: rolled ones are easier to fill.
            hidden = _hide(given, gap, seen, kinds, least, rng, edges if number % 2 else ())
            rounds.append(Round(seen & ~hidden, hidden, None))
        share = np.mean([r.hidden.sum() for r in rounds]) / seen.sum()
        choice = Choice(
            "pseudo-gaps",
            f"{self.rounds} rounds hiding {share:.0%} of the observed entries",
            "copies of the real gaps"
            + (f", {len(shapes)} of them drawn from an Ising model of the mask" if shapes else "")
            + ", moved along ordered axes and permuted along units",
        )
        return Plan(tuple(rounds), (choice,), law)

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Memory that a fit, its intervals and a file of them take at most, beside the program and the input."""
        return BYTES_OF_SCALE + BYTES_PER_ENTRY_AND_ROUND * self.rounds * entries

    def calibrate(self, task: Task) -> Outcome:
        """Complete every round, learn the scale of errors from what the rounds hid, and pool all rounds."""
        observed = task.observed
        plan = self.plan(observed, task.seed)
        task.warn_of_infinite(plan.rounds)
        changed, change = task.modelled(observed.mask)
        run = run_rounds(task, plan.rounds, changed, change)
        task.tell("missingness", 0.0)
        if task.propensity is None and plan.propensity is not None:
            propensity = replace(plan.propensity, engine=task.engine)
        else:
            propensity = task.fit_propensity(task.propensity or MODEL_OF_MASK, observed.mask, 1.0)
        task.tell("calibration", 0.0)
        local = learn_locally(run, changed, task.seed)
        scores = task.score.score(run.truth, run.estimate, local.at_hidden)
        split = CalibratedSplit(
            scored=CalibratedScores(task.score, scores, run.entries, local.weights),
            estimate=np.ascontiguousarray(run.final.estimate),
            scale=local.scale,
            change=change,
            propensity=propensity,
            beyond=local.beyond,
            local=local,
        )
        task.tell("calibration", 1.0)
        choices = (*plan.choices, *run.choices, *propensity.choices, local.choice)
        return Outcome(split, run.prepared, propensity, plan.rounds, run.truth - run.estimate, choices)


def _law_of(observed: Any) -> FittedPropensity:
    """The Ising model of the real mask that masks for the first rounds are drawn from."""
    return MODEL_OF_MASK.fit(
        np.asarray(observed.mask, bool),
        1.0,
        domain=observed.domain,
        axis_names=[axis.name for axis in observed.axes],
        periodic=[axis.periodic for axis in observed.axes],
    )


def _hide(
    given: np.ndarray | None,
    gap: np.ndarray,
    seen: np.ndarray,
    kinds: Sequence[str],
    least: float,
    rng: np.random.Generator,
    kept: Sequence[int] = (),
) -> np.ndarray:
    """Observed entries under a given shape or a moved gap, enough of them and not all."""
    best = np.zeros_like(seen)
    if given is not None:
        asked = given & seen
        if max(least, 1) <= asked.sum() < seen.sum():
            return asked
    for _ in range(ATTEMPTS):
        hidden = move_gap(gap, kinds, rng, kept) & seen
        if best.sum() < hidden.sum() < seen.sum():
            best = hidden
        if best.sum() >= max(least, 1):
            return best
    return best if best.any() else _tenth(seen, rng)


def _tenth(seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A tenth of the observed entries at random: the last resort where no moved gap meets any of them."""
    entries = np.flatnonzero(seen)
    hidden = np.zeros(seen.size, bool)
    hidden[rng.choice(entries, max(1, min(entries.size // 10, entries.size - 1)), replace=False)] = True
    return hidden.reshape(seen.shape)
