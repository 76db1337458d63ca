"""Calibration on pseudo-gaps: observed entries are hidden under moved copies of the gaps and under simulated gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from corten.calibration.gap_rounds import peak_of_rounds, run_rounds, threads_that_fit
from corten.calibration.gap_scale import Local, learn_locally, reach
from corten.calibration.hiding import draw_masks
from corten.calibration.task import Outcome, Plan, Round, Task
from corten.completion.axes_kinds import axis_kinds, edges_of, move_gap
from corten.completion.protocol import Fill
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.propensity import FittedPropensity, IsingPropensity

__all__ = ["GapCalibration", "hide", "split_of"]

SEED_STREAM = 0x6A95
MAX_ATTEMPTS = 40  # moved copies tried in a round until enough entries are hidden
MIN_HIDDEN_SHARE = 0.1  # of the missing entries, or of the observed ones if they are fewer
SECONDS_OF_SETTINGS = 7.5  # of one core: covariance, model of the mask and learned scale, measured
SECONDS_PER_ENTRY_AND_FILL, SECONDS_PER_MISSING = 3.5e-6, 1.2e-5  # of one core, measured
FILLS_OF_SETTINGS = 3  # completions besides the rounds
MODEL_OF_MASK = IsingPropensity(max_rank=5)  # simulates gaps and is audited, but gives no weights: low ranks suffice


@dataclass(frozen=True)
class GapCalibration:
    """Hide observed entries in pseudo-gaps, several times, so that they lie as deep inside gaps as the missing entries.

    A pseudo-gap is a copy of the gaps, shifted and reflected along ordered axes and permuted along unordered ones, or a
    gap simulated from an Ising model of the mask. The final estimate uses all observed entries.

    Parameters
    ----------
    rounds : int, default 24
        The number of rounds; each completes the tensor once.
    drawn : float, default 1/3
        The share of rounds with simulated gaps. They reduce the influence of moved copies that happen to be deeper than
        the gaps.

    Raises
    ------
    ValueError
        If a parameter is outside its range; in a fit, if there are fewer than two observed entries.

    Notes
    -----
    The theorem of the paper does not apply to pseudo-gaps. Check the coverage with an audit (`Fitted.audit`).

    Examples
    --------
    >>> GapCalibration().rounds
    24
    """

    rounds: int = 24
    drawn: float = 1 / 3
    pooled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}: give at least 1 (24 or more is recommended)")
        if not 0.0 <= self.drawn <= 1.0:
            raise ValueError(f"drawn is {self.drawn}: give a share of the rounds between 0 and 1")

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        """Draw the rounds."""
        mask = np.asarray(observed.mask, dtype=bool)
        domain = np.ones(mask.shape, bool) if observed.domain is None else np.asarray(observed.domain, bool)
        gap = domain & ~mask
        usable = mask & domain
        if usable.sum() < 2:
            raise ValueError(f"{int(usable.sum())} observed entries are too few: pseudo-gaps need at least two")
        kinds = axis_kinds(observed.axes, mask.shape)
        rng = np.random.default_rng((seed, SEED_STREAM))
        least = MIN_HIDDEN_SHARE * min(int(gap.sum()), int(usable.sum()))
        count = round(self.drawn * self.rounds)
        propensity = _model_of_mask(observed) if count else None
        shapes = [~mask for mask in draw_masks(propensity, observed, count, seed)] if propensity is not None else []
        edges = edges_of(gap, kinds)
        rounds = []
        for number in range(self.rounds):
            simulated = shapes[number] if number < len(shapes) else None
            # Every second copy stays at the edges of the data that the gap touches: shifted ones are easier to fill.
            kept = edges if number % 2 else ()
            hidden = hide(simulated, gap=gap, usable=usable, kinds=kinds, least=least, rng=rng, kept=kept)
            rounds.append(Round(usable & ~hidden, hidden, None))
        share = np.mean([r.hidden.sum() for r in rounds]) / usable.sum()
        choice = Choice(
            "pseudo-gaps",
            f"{self.rounds} rounds hiding {share:.0%} of the observed entries",
            "copies of the gaps, moved along ordered axes and permuted along unordered axes"
            + (f"; {len(shapes)} rounds with gaps drawn from an Ising model of the mask" if shapes else ""),
            code="pseudo_gaps",
            values={"rounds": self.rounds, "drawn_rounds": len(shapes), "hidden_share": float(share)},
        )
        return Plan(tuple(rounds), (choice,), propensity)

    def peak_bytes(self, entries: int, missing: int) -> int:
        """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input."""
        return peak_of_rounds(entries, threads_that_fit(entries, self.rounds))

    def seconds(self, entries: int, missing: int, cores: int = 1) -> float:
        """Seconds that a fit with the default completion takes, about.

        Parameters
        ----------
        entries, missing : int
            Numbers of entries of the tensor and of missing entries.
        cores : int, default 1
            Idle cores; rounds run side by side on them.

        Returns
        -------
        float
            Seconds, roughly. The constants were fitted to a few runs on a busy AMD EPYC processor.

        Examples
        --------
        >>> round(GapCalibration().seconds(552_000, 237_000, cores=2))
        31
        """
        fills = SECONDS_PER_ENTRY_AND_FILL * (self.rounds + FILLS_OF_SETTINGS) * entries
        return (SECONDS_OF_SETTINGS + fills + SECONDS_PER_MISSING * missing) / min(cores, self.rounds)

    def calibrate(self, task: Task) -> Outcome:
        """Complete every round, learn the scale of errors from the hidden entries, and pool all rounds."""
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
        scores = task.score.score(run.truth, run.estimate, local.learned.hidden)
        split = split_of(local, task.score, scores, run.entries, changed, run.final)
        split = replace(split, change=change, propensity=propensity)
        assert split.beyond is not None
        depths = reach(int(np.count_nonzero(split.beyond)), observed.n_missing)
        task.tell("calibration", 1.0)
        choices = (*plan.choices, *run.choices, *propensity.choices, depths)
        return Outcome(
            calibrated=split,
            completion=run.prepared,
            propensity=propensity,
            rounds=plan.rounds,
            residuals=run.truth - run.estimate,
            choices=choices,
        )


def split_of(
    local: Local, score: Score, scores: np.ndarray, entries: np.ndarray, changed: ObservedTensor, fill: Fill
) -> CalibratedSplit:
    """The calibrated split for the missing entries of `changed`, the data in the modelled variable."""
    at = local.at_missing(changed, fill, entries)
    return CalibratedSplit(
        scored=CalibratedScores(score, scores, entries, at.weights),
        estimate=np.ascontiguousarray(fill.estimate),
        scale=at.scale,
        beyond=at.beyond,
        local=replace(local, by_depth=at.by_depth),
    )


def _model_of_mask(observed: ObservedTensor) -> FittedPropensity:
    """The Ising model of the mask that masks for the first rounds are drawn from."""
    return MODEL_OF_MASK.fit(
        np.asarray(observed.mask, bool),
        1.0,
        domain=observed.domain,
        axis_names=[axis.name for axis in observed.axes],
        periodic=[axis.periodic for axis in observed.axes],
    )


def hide(
    simulated: np.ndarray | None,
    gap: np.ndarray,
    usable: np.ndarray,
    kinds: Sequence[str],
    least: float,
    rng: np.random.Generator,
    kept: Sequence[int],
) -> np.ndarray:
    """The entries to hide: under a simulated gap or a moved one, at least `least` entries and not all."""
    best = np.zeros_like(usable)
    if simulated is not None:
        hidden = simulated & usable
        if max(least, 1) <= hidden.sum() < usable.sum():
            return hidden
    for attempt in range(MAX_ATTEMPTS):
        # A copy at an edge may hide everything or nothing; then one that is moved freely serves.
        hidden = move_gap(gap, kinds, rng, kept if attempt < MAX_ATTEMPTS // 2 else ()) & usable
        if best.sum() < hidden.sum() < usable.sum():
            best = hidden
        if best.sum() >= max(least, 1):
            return best
    return best if best.any() else _tenth(usable, rng)


def _tenth(usable: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random tenth of the observed entries, used if no moved gap covers any of them."""
    entries = np.flatnonzero(usable)
    hidden = np.zeros(usable.size, bool)
    hidden[rng.choice(entries, max(1, min(entries.size // 10, entries.size - 1)), replace=False)] = True
    return hidden.reshape(usable.shape)
