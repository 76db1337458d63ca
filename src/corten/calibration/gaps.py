"""Calibration on pseudo-gaps: observed entries are hidden under moved copies of the gaps and under simulated gaps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import ClassVar

import numpy as np

from corten.calibration.device_rounds import Need
from corten.calibration.gap_rounds import peak_of_rounds, run_rounds, threads_that_fit
from corten.calibration.gap_scale import Local, choose_score, learn_locally, reach, surroundings
from corten.calibration.hiding import draw_masks
from corten.calibration.pseudo_gaps import MIN_HIDDEN_SHARE, even_moves, hide_in_round, with_margin
from corten.calibration.round_entries import MAX_POOLED_ENTRIES, Surroundings
from corten.calibration.task import EngineLike, Outcome, Plan, Round, Task, fit_propensity
from corten.completion.axes_kinds import axis_kinds, edges_of, extents_of, transformed_fast
from corten.completion.few_observed import are_few
from corten.completion.gaussian_process import MIN_HALVED_ENTRIES, MIN_HALVED_LENGTH
from corten.completion.protocol import Fill
from corten.completion.spectral_solver import COARSE_MODES, COARSE_NUMBERS
from corten.completion.stack import StackedCompletion
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.scores import Score
from corten.conformal.split import CalibratedSplit
from corten.data.axes import cut_axes
from corten.data.choices import Choice
from corten.data.observed import ObservedTensor
from corten.engine import as_engine
from corten.engine.arrays import DeviceArrays, device_arrays
from corten.engine.threads import beside_device, side_by_side
from corten.propensity import FittedPropensity, IsingPropensity

GAP_SEED_STREAM = 0x6A95
ROUNDS, FEWER_ROUNDS, MANY_MISSING = 24, {40_000: 16, 400_000: 8}, 1 / 5
"""Where every round hides at least so many entries, and so large a share of the tensor is missing, fewer rounds serve.
With 16 instead of 24, interval scores of TEC, metro stations and NDVI are at most 0.9 % larger, with 8 instead of 12
those of sea surfaces are the same (`benchmarks/real_gaps.py`, `benchmarks/growth.py`)."""
# CPU seconds on an AMD EPYC processor, fitted to the rows that `python -m benchmarks cliffs` measures.
SECONDS_OF_MODES = 0.24  # of a fill: the exact inverse on 1,500 modes, by the cube of their number
SECONDS_PER_FILL, SECONDS_PER_ENTRY_AND_AXIS, SECONDS_PER_PRODUCT = 0.005, 0.23e-6, 4.8e-9  # of a fill besides
FAST_LENGTH = 84  # a fast transform along a long axis costs as much as products with a matrix of this length
SECONDS_OF_FEATURES = 0.12e-6  # of a round, for each entry of the tensor
FILLS_OF_SETTINGS = 3  # completions besides the rounds
SECONDS_OF_LIKELIHOOD, SECONDS_OF_SAMPLES, ENTRIES_OF_SAMPLES = 0.7, 0.6, 3600  # from so many observed entries on all
FILLS_OF_COVARIANCE, ENTRIES_OF_FILL = 1.3, 100_000  # completions of parts by which covariances are compared
SECONDS_OF_MASK, SECONDS_PER_ENTRY_OF_PART, SECONDS_PER_ENTRY_OF_MASK = 0.1, 4.6e-6, 1.6e-6  # the model of the mask
SECONDS_OF_SCALE, SECONDS_PER_HIDDEN, SECONDS_PER_MISSING = 0.25, 7e-6, 0.6e-6  # the learned scale
# With an unordered axis: a correction, which is tried; features of neighbours; a mask that is different in every row.
SECONDS_OF_CORRECTION_PER_HIDDEN, BYTES_OF_CORRECTION_PER_HIDDEN = 13e-6, 2200
SECONDS_OF_NEIGHBOURS, SECONDS_PER_ENTRY_OF_ROWS = 3.1e-6, 16e-6  # of a round, and once, for each entry
SERIAL_SHARE = 0.3  # of the CPU time, on one core while others wait
MAX_ENTRIES_OF_MASK = 75_000  # rank and strength of that model are chosen on so many
MODEL_OF_MASK = IsingPropensity(max_rank=5)  # simulates gaps and is audited, but gives no weights: low ranks suffice


@dataclass(frozen=True)
class GapCalibration:
    """Hide observed entries in pseudo-gaps, several times, so that they lie as deep inside gaps as the missing entries.

    A pseudo-gap is a copy of the gaps, shifted and reflected along ordered axes and permuted along unordered ones, or a
    gap simulated from an Ising model of the mask. The final estimate uses all observed entries.

    Parameters
    ----------
    rounds : int, optional
        The number of rounds; each completes the tensor once. Default: 24. If a fifth of the entries or more is missing,
        16 where a round hides 40,000 entries or more, and 8 where it hides 400,000.
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
    >>> [GapCalibration().rounds_for(entries, 3 * entries // 10) for entries in (10_000, 500_000, 10_000_000)]
    [24, 16, 8]
    """

    rounds: int | None = None
    drawn: float = 1 / 3
    pooled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}: give at least 1 (24 or more is recommended)")
        if not 0.0 <= self.drawn <= 1.0:
            raise ValueError(f"drawn is {self.drawn}: give a share of the rounds between 0 and 1")

    def rounds_for(self, entries: int, missing: int) -> int:
        """The number of rounds for a tensor with so many entries, of which so many are missing."""
        if self.rounds is not None:
            return self.rounds
        if missing < MANY_MISSING * entries:
            return ROUNDS
        hidden = _hidden_in_round(entries, missing)
        return min((rounds for least, rounds in FEWER_ROUNDS.items() if hidden >= least), default=ROUNDS)

    def plan(self, observed: ObservedTensor, seed: int) -> Plan:
        """Draw the rounds."""
        return self._plan_with("auto", observed, seed)

    def _plan_with(self, engine: EngineLike, observed: ObservedTensor, seed: int) -> Plan:
        """Draw the rounds; `engine` fits the model of the mask that gaps are simulated from."""
        mask = np.asarray(observed.mask, dtype=bool)
        domain = np.ones(mask.shape, bool) if observed.domain is None else np.asarray(observed.domain, bool)
        gap = domain & ~mask
        usable = mask & domain
        if usable.sum() < 2:
            raise ValueError(f"{int(usable.sum())} observed entries are too few: pseudo-gaps need at least two")
        kinds = axis_kinds(observed.axes, mask.shape)
        rng = np.random.default_rng((seed, GAP_SEED_STREAM))
        least = MIN_HIDDEN_SHARE * min(int(gap.sum()), int(usable.sum()))
        number_of_rounds = self.rounds_for(int(domain.sum()), int(gap.sum()))
        count = round(self.drawn * number_of_rounds)
        propensity = _model_of_mask(observed, engine) if count else None
        shapes = (
            [~mask for mask in draw_masks(propensity, observed, count=count, seed=seed, engine=engine)]
            if propensity is not None
            else []
        )
        edges = edges_of(gap, kinds)
        # A gap that does not reach from edge to edge is moved as a whole: parts of it at two edges are harder to fill.
        reached = {k: (*ends, gap.shape[k]) for k, ends in extents_of(gap, kinds).items()}
        extents = {k: with_margin(*ends) for k, ends in reached.items() if ends[:2] != (0, ends[2] - 1)}
        rounds = []
        even = even_moves(max(number_of_rounds - len(shapes), 1), mask.ndim, rng)
        for number in range(number_of_rounds):
            simulated = shapes[number] if number < len(shapes) else None
            # A copy stays at the edges of the data that the gap touches: one that is shifted inside is easier to fill.
            # Every second copy of a gap in a corner stays at one of its edges only, as there are few corners.
            kept = edges if number % 2 else edges[number // 2 % len(edges) :][:1] if edges else ()
            hidden = hide_in_round(
                simulated, gap=gap, usable=usable, kinds=kinds, least=least, rng=rng, kept=kept, extents=extents,
                moves=even[number - len(shapes)] if number >= len(shapes) else None,
            )  # fmt: skip
            rounds.append(Round(usable & ~hidden, hidden, None))
        share = np.mean([r.hidden.sum() for r in rounds]) / usable.sum()
        choice = Choice(
            "pseudo-gaps",
            f"{number_of_rounds} rounds hiding {share:.0%} of the observed entries",
            "copies of the gaps, moved along ordered axes and permuted along unordered axes"
            + (f"; {len(shapes)} rounds with gaps drawn from an Ising model of the mask" if shapes else ""),
            code="pseudo_gaps",
            values={"rounds": number_of_rounds, "drawn_rounds": len(shapes), "hidden_share": float(share)},
        )
        return Plan(tuple(rounds), (choice,), propensity)

    def peak_bytes(self, entries: int, missing: int, unordered: int = 0) -> int:
        """Peak memory of a fit, its intervals and a file of them, in bytes, without the program and the input.

        `unordered` is the number of positions of the longest unordered axis, 0 without one: a correction is learned
        from many features then.
        """
        rounds = self.rounds_for(entries, missing)
        correction = BYTES_OF_CORRECTION_PER_HIDDEN * _hidden(entries, missing, rounds) if unordered else 0.0
        threads = threads_that_fit(entries, rounds)
        return peak_of_rounds(entries, threads, missing) + int(correction)

    def device_bytes(self, engine: object, shape: Sequence[int], missing: int = 0) -> int | None:
        """Peak memory of the rounds on the device of an engine.

        Parameters
        ----------
        engine : str or engine
            As the option of a completion: "gpu", "jax" or another one.
        shape : sequence of int
            Lengths of the axes.
        missing : int, default 0
            The number of missing entries.

        Returns
        -------
        int or None
            Bytes, about; None if the engine has no device or not even one round fits.

        Examples
        --------
        >>> GapCalibration().device_bytes("threads", (50, 115, 96)) is None
        True
        """
        arrays = device_arrays(as_engine(engine))
        need = None if arrays is None else Need.of(arrays, shape, self.rounds_for(prod(shape), missing))
        return need.bytes if need is not None and need.at_once else None

    def seconds(
        self, entries: int, missing: int, cores: int = 1, shape: Sequence[int] = (), unordered: int = 0
    ) -> float:
        """Seconds that a fit with the default completion takes, about.

        Parameters
        ----------
        entries, missing : int
            Numbers of entries of the tensor and of missing entries.
        cores : int, default 1
            Idle cores; rounds run side by side on them. The seconds of one core are CPU seconds.
        shape : sequence of int, optional
            Lengths of the axes. Default: three equal ones.
        unordered : int, default 0
            The number of positions of the longest unordered axis, 0 without one. With one a learned correction is
            tried.

        Returns
        -------
        float
            Seconds, about; most fits on an AMD EPYC processor are within 30 % of it.

        Examples
        --------
        >>> round(GapCalibration().seconds(552_000, 237_000, cores=2))
        22
        """
        shape, observed = shape or (round(entries ** (1 / 3)),) * 3, entries - missing
        dense = min(1.0, 2 * observed / max(entries, 1))  # few observed entries need fewer iterations
        rounds = self.rounds_for(entries, missing)
        hidden = _hidden(entries, missing, rounds)
        settings = SECONDS_OF_LIKELIHOOD + SECONDS_OF_SAMPLES * min(1.0, observed / ENTRIES_OF_SAMPLES)
        part = min(entries, ENTRIES_OF_FILL)
        settings += FILLS_OF_COVARIANCE * dense * _seconds_of_fill(part, shape, dense, unordered)
        settings += SECONDS_OF_MASK + SECONDS_PER_ENTRY_OF_PART * min(entries, MAX_ENTRIES_OF_MASK)
        settings += SECONDS_PER_ENTRY_OF_MASK * entries
        fills = (rounds + FILLS_OF_SETTINGS) * _seconds_of_fill(entries, shape, dense, unordered)
        fills += rounds * SECONDS_OF_FEATURES * entries
        scale = SECONDS_OF_SCALE + SECONDS_PER_HIDDEN * hidden + SECONDS_PER_MISSING * missing
        rows = SECONDS_OF_CORRECTION_PER_HIDDEN * hidden
        rows += (rounds * SECONDS_OF_NEIGHBOURS + SECONDS_PER_ENTRY_OF_ROWS) * entries
        rows *= min(1.0, 4 * observed / max(entries, 1)) if unordered else 0.0
        return (settings + fills + scale + rows) * (SERIAL_SHARE + (1 - SERIAL_SHARE) / min(cores, rounds))

    def calibrate(self, task: Task) -> Outcome:
        """Complete every round, learn the scale of errors from the hidden entries, and pool all rounds."""
        device = device_arrays(as_engine(task.engine))
        with nullcontext() if device is None else beside_device:
            return self._calibrate(task, device)

    def _calibrate(self, task: Task, device: DeviceArrays | None) -> Outcome:
        observed = task.observed
        changed, change = task.modelled(observed.mask)
        first = None
        if type(self).plan is not GapCalibration.plan or not isinstance(task.completion, StackedCompletion):
            plan = self.plan(observed, task.seed)
        else:
            # Both leave cores idle: settings are chosen while the rounds are drawn.
            engine = "auto" if device is None else task.engine
            plan, first = side_by_side(
                lambda: self._plan_with(engine, observed, task.seed),
                lambda: task.completion.prepare(changed.values, changed.mask, changed.axes, task.seed),
                at_least=1 if device is None else 2,
            )
        task.warn_of_infinite(plan.rounds)
        run = run_rounds(task, plan.rounds, changed=changed, change=change, first=first)
        task.tell("missingness", 0.0)
        if task.propensity is None and plan.propensity is not None:
            propensity = replace(plan.propensity, engine=task.engine)
        else:
            propensity = task.fit_propensity(task.propensity or MODEL_OF_MASK, observed.mask, 1.0)
        task.tell("calibration", 0.0)
        local, around = side_by_side(
            lambda: learn_locally(run, changed, task.seed),
            run.around or (lambda: surroundings(run.describe, run.first, changed, run.final)),
        )
        truth, estimate, scale = run.truth, run.estimate, local.learned.hidden
        split = split_of(
            local, task.score, scores=task.score.score(truth, estimate, scale), entries=run.entries, changed=changed,
            fill=run.final, around=around, round_sizes=tuple(len(one.entries) for one in run.rounds),
        )  # fmt: skip
        score, shape = choose_score(
            task.score, truth - estimate, learned=local.learned, log_weights=split.log_weights, entries=run.entries,
            shape=changed.shape,
        )  # fmt: skip
        if score is not task.score:
            split = split.with_scores(score, score.score(truth, estimate, scale))
        split = replace(split, change=change, propensity=propensity)
        assert split.beyond is not None
        depths = reach(int(np.count_nonzero(split.beyond)), observed.n_missing)
        task.tell("calibration", 1.0)
        choices = (*plan.choices, *run.choices, *propensity.choices, *shape, depths)
        return Outcome(
            calibrated=split,
            completion=run.prepared,
            propensity=propensity,
            rounds=plan.rounds,
            residuals=truth - estimate,
            choices=choices,
        )


def _hidden_in_round(entries: int, missing: int) -> float:
    """Entries that a copy of the gaps hides, about: its share of the observed entries, at most half of them."""
    observed = entries - missing
    return min(missing * observed / max(entries, 1), observed / 2)


def _hidden(entries: int, missing: int, rounds: int) -> float:
    """Hidden entries that are scored, about."""
    return min(MAX_POOLED_ENTRIES, rounds * _hidden_in_round(entries, missing))


def _seconds_of_fill(entries: int, shape: Sequence[int], dense: float, unordered: int) -> float:
    """CPU seconds of one completion of so many entries of a tensor of this shape, on two grids if axes are halved.

    Stations and years have noise, and few of their modes are solved exactly.
    """
    axes = [n for n in shape if n >= MIN_HALVED_LENGTH] if entries >= MIN_HALVED_ENTRIES else []
    grids = [entries, entries / 2 ** len(axes)] if axes else [entries]
    most = min(COARSE_MODES, prod(min(n, sqrt(COARSE_NUMBERS / n)) for n in shape))
    modes = 0.0 if unordered else sum((min(most, grid / 20) / COARSE_MODES) ** 3 for grid in grids)
    products = sum(FAST_LENGTH if transformed_fast(n) else n for n in shape) * (1 + dense) / 2
    if are_few(round(dense * entries / 2), entries, len(shape)) and not unordered:
        products = modes = 0.0
    each = SECONDS_PER_ENTRY_AND_AXIS * len(shape) + SECONDS_PER_PRODUCT * products
    return SECONDS_PER_FILL + SECONDS_OF_MODES * modes + each * entries


def split_of(
    local: Local,
    score: Score,
    *,
    scores: np.ndarray,
    entries: np.ndarray,
    changed: ObservedTensor,
    fill: Fill,
    around: Surroundings | None = None,
    round_sizes: tuple[int, ...],
) -> CalibratedSplit:
    """The calibrated split for the missing entries of `changed`, the data in the modelled variable."""
    at = local.at_missing(changed, fill, hidden=entries, round_sizes=round_sizes, around=around)
    return CalibratedSplit(
        scored=CalibratedScores(score, scores, entries, at.weights),
        estimate=np.ascontiguousarray(fill.estimate),
        scale=at.scale,
        beyond=at.beyond,
        local=replace(local, by_depth=at.by_depth),
        round_sizes=round_sizes,
    )


def _model_of_mask(observed: ObservedTensor, engine: EngineLike) -> FittedPropensity:
    """The Ising model of the mask that masks for the first rounds are drawn from.

    Rank and strength of a large mask are chosen on a part of it.
    """
    mask, domain, axes = observed.mask, observed.domain, observed.axes
    box, model = mixed_part(mask, MAX_ENTRIES_OF_MASK), MODEL_OF_MASK
    choices: tuple[Choice, ...] = ()
    if mask[box].size < mask.size:
        inside = None if domain is None else domain[box]
        part = fit_propensity(model, mask[box], train_share=1.0, axes=cut_axes(axes, box), domain=inside, engine=engine)
        model, choices = replace(model, coupling=part.coupling, rank=part.rank or "auto"), part.choices
    fitted = fit_propensity(model, mask, train_share=1.0, axes=axes, domain=domain, engine=engine)
    return replace(fitted, choices=(*choices, *fitted.choices))


def mixed_part(mask: np.ndarray, most: int) -> tuple[slice, ...]:
    """A box of at most so many entries, of a few along the diagonal the one with most entries of the rarer kind.

    All of the mask if every such box has entries of one kind only.

    Examples
    --------
    >>> mixed_part(np.repeat([True, False, True], [300, 100, 600]), 500)
    (slice(0, 500, None),)
    """
    lengths = list(mask.shape)
    while np.prod(lengths, dtype=float) > most:
        longest = int(np.argmax(lengths))
        lengths[longest] = (lengths[longest] + 1) // 2
    boxes = [
        tuple(slice(at := (n - m) * number // 4, at + m) for n, m in zip(mask.shape, lengths)) for number in range(5)
    ]
    best = max(boxes, key=lambda box: min(np.count_nonzero(mask[box]), np.count_nonzero(~mask[box])))
    return best if mask[best].any() and not mask[best].all() else (slice(None),) * mask.ndim
