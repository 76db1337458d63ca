"""An audit without truth: hide observed entries again, run the pipeline without them, count how often it is right.

What it estimates. The coverage of the intervals at the *missing* entries. Hidden entries follow another law than
missing ones: entry s is missing with chance 1 - p_s, but observed and then hidden with chance p_s h_s. So every
hidden entry counts with the weight (1 - p_s) / (p_s h_s): the odds of a reference model of the missingness over
the chance of the hiding. The reference is fitted anew to the whole mask, or is the pipeline's own model where that
explains the mask better: were it always the pipeline's own, wrong weights would be weighed by themselves, and the
audit could never see them. With pseudo-gaps hidden entries are weighed by their depth instead, and it is the fit's own
calibration that is tried on them: fresh gaps, the same learned scale and scores, less what they know of the hidden
entries.

What it cannot see. Missingness that depends on the values themselves, and a bias of the field inside gaps that no
hidden entry shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corten.calibration.gap_scale import tested_depth
from corten.calibration.hiding import KINDS, Hiding, draw_hidings
from corten.completion.stack import PreparedStack
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.diagnostics import effective_sample_size
from corten.conformal.raking import rake
from corten.data.coverage import check_coverage
from corten.data.observed import ObservedTensor
from corten.engine.threads import in_order, one_library_thread
from corten.evidence.audit_table import Audit, Sample
from corten.evidence.rerun import as_if_missing, bounds_at, rerun, with_method
from corten.lowrank import TensorTrain
from corten.propensity import FittedPropensity, IsingPropensity

if TYPE_CHECKING:
    from corten.results.fitted import Fitted

__all__ = ["Audit", "audit", "reference_law"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
ENOUGH = 200.0
"""Effective number of hidden entries asked of the audit's weights: a standard error of two points at 90 %."""


def audit(
    fitted: Fitted,
    rounds: int = 20,
    inner_rounds: int = 0,
    seed: int = 0,
    *,
    levels: Sequence[float] = LEVELS,
    kinds: Sequence[str] | None = None,
    reference: Any = None,
    progress: Callable[[str, float], None] | None = None,
) -> Audit:
    """Estimate the coverage of a fit at its missing entries, without knowing the truth there.

    rounds: how often about a seventh of the observed entries is hidden; inner_rounds: with pseudo-gaps, 0 tries this
    fit's own calibration, 1 or more calibrates anew inside each round with so many pseudo-gaps; kinds: how to hide, of
    "drawn" (masks drawn from the reference model), "moved" (moved copies of the real gaps) and "random"; reference: a
    model of the missingness (an object with fit(), or a fitted one) to weigh hidden entries by; progress: called with a
    stage and its share.

    Example:
        >>> checked = fitted.audit(rounds=20)                             # doctest: +SKIP
        >>> checked.coverage(0.9), checked.verdict()                      # doctest: +SKIP
    """
    if fitted.calibrated is None or fitted.propensity is None:
        raise ValueError("nothing was missing, so there are no intervals to audit")
    for name, value, least in (("rounds", rounds, 2), ("inner_rounds", inner_rounds, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}")
    began, tell = perf_counter(), progress or (lambda stage, share: None)
    fitted = with_method(fitted)
    assert fitted.calibrated is not None and fitted.propensity is not None
    wanted = tuple(check_coverage(level) for level in levels)
    pooled = fitted.beyond is not None
    tell("reference", 0.0)
    law, because = reference_law(fitted, fitted.propensity if pooled and reference is None else reference)
    odds = np.asarray(law.log_weights(fitted.observed.mask), np.float64)
    if law is not reference and not pooled:
        odds = rake(odds, fitted.observed.mask, fitted.observed.missing)
    own = np.asarray(fitted.propensity.log_odds(fitted.observed.mask), np.float64)
    chosen = tuple(kinds) if kinds is not None else ("moved",) if pooled else KINDS
    samples: list[Sample] = []
    reruns: Iterator[Fitted | None]
    hidings = draw_hidings(fitted.observed, law, rounds, seed, chosen, whole=pooled)
    if pooled and inner_rounds == 0:
        reruns = _as_if_missing(fitted, hidings)
    else:
        first = fitted.options["seed"] + 1 + 1000 * seed
        reruns = (rerun(fitted, one, own, max(1, inner_rounds), first + k) for k, one in enumerate(hidings))
    for number, (again, hiding) in enumerate(zip(reruns, hidings)):
        tell("audit", number / len(hidings))
        if again is None:
            continue
        entries = np.flatnonzero(hiding.hidden)
        lower, upper = bounds_at(again, entries, wanted)
        truth = fitted.observed.values.reshape(-1)[entries].astype(np.float64)
        seen = fitted.observed.mask & ~hiding.hidden
        logs = odds.reshape(-1)[entries] - np.broadcast_to(hiding.log_hidden, odds.shape).reshape(-1)[entries]
        deep = depth(seen, fitted.observed.axes, np.ones(seen.ndim)).reshape(-1)[entries]
        samples.append(Sample(hiding.kind, entries, logs, deep, (lower <= truth) & (truth <= upper), upper - lower))
    if len(samples) < 2:
        raise ValueError("too few entries are observed to hide some and still calibrate: nothing can be audited")
    weighing = _weigh(samples, fitted.observed, pooled)
    notes = weighing.notes if pooled else (because, *weighing.notes)
    tell("audit", 1.0)
    return Audit(
        fitted.observed, wanted, tuple(samples), weighing.logs, law.probability(fitted.observed.mask),
        pooled, fitted.calibrated.effective_sample_size(), notes, perf_counter() - began, weighing.untested,
    )  # fmt: skip


def _as_if_missing(fitted: Fitted, hidings: Sequence[Hiding]) -> Iterator[Fitted | None]:
    """One round after another; a few at once of the stack, as a user's own completion may not bear that."""
    alone = None if isinstance(fitted.completion, PreparedStack) else 1
    with one_library_thread:
        yield from in_order(lambda one: as_if_missing(fitted, one), hidings, alone, pool="rounds")


def reference_law(fitted: Fitted, reference: Any = None) -> tuple[FittedPropensity, str]:
    """The model of the missingness that an audit weighs hidden entries by, and why.

    A fresh Ising model of the whole mask, or the pipeline's own model if its P-AIC is smaller (eq.
    P-AIC-criterion).
    """
    own, observed = fitted.propensity, fitted.observed
    assert own is not None
    if isinstance(reference, FittedPropensity):
        return reference, "Hidden entries are weighed by the model of the missingness that was given."
    model = IsingPropensity() if reference is None else reference
    fresh = model.fit(
        np.asarray(observed.mask), 1.0, domain=observed.domain, axis_names=[axis.name for axis in observed.axes],
        periodic=[axis.periodic for axis in observed.axes], engine=own.engine,
    )  # fmt: skip
    if reference is not None:
        return fresh, "Hidden entries are weighed by the model of the missingness that was given."
    if _aic(own, observed) <= _aic(fresh, observed):
        return own, (
            "Hidden entries are weighed by the pipeline's own model of the missingness: a fresh one explains the mask "
            "no better."
        )
    return fresh, (
        "Hidden entries are weighed by an Ising model fitted to the whole mask: it explains the mask better than the "
        "pipeline's own."
    )


def _aic(law: FittedPropensity, observed: ObservedTensor) -> float:
    eta = np.asarray(law.log_odds(observed.mask), np.float64)[observed.inside]
    spins = np.where(observed.mask[observed.inside], 1.0, -1.0)
    size = law.parameter.dimension if isinstance(law.parameter, TensorTrain) else 0
    return 2.0 * float(np.logaddexp(0.0, -spins * eta).sum()) + 2.0 * size


@dataclass(frozen=True)
class _Weighing:
    logs: NDArray[np.float64]
    notes: tuple[str, ...] = field(default=())
    untested: float = 0.0


def _weigh(samples: Sequence[Sample], observed: ObservedTensor, pooled: bool) -> _Weighing:
    """Log-weights of all hidden entries, one round after another; flattened, and said so, where a few would speak
    for all.

    Under gap-shaped calibration hidden entries are brought to the depths of the missing ones instead: odds and depth
    say the same there, that an entry lies deep inside a gap, and both together count it twice.
    """
    if pooled:
        missing = depth(observed.mask, observed.axes, np.ones(observed.mask.ndim))[observed.missing]
        depths = [one.depth for one in samples]
        by_depth = DepthWeights.of(np.concatenate(depths), missing).at(np.concatenate(depths))
        beyond = float(np.mean(missing > tested_depth(depths)))
        return _Weighing(by_depth, ("Hidden entries are weighted to have the depths of the missing entries.",), beyond)
    notes: list[str] = []
    logs = np.concatenate([one.log_weights for one in samples])
    entries = np.concatenate([one.entries for one in samples])
    need = min(ENOUGH, 0.1 * np.unique(entries).size)
    power = next((p for p in (1.0, 0.75, 0.5, 0.25) if _size(p * logs, entries) >= need), 0.0)
    if power < 1.0:
        notes.append(
            "The odds are so uneven that a handful of entries would speak for all, so they enter to the power "
            f"{power:g}: the audit then says less about the entries least likely to be observed."
        )
    return _Weighing(power * logs, tuple(notes))


def _size(logs: NDArray[np.float64], entries: NDArray[np.intp]) -> float:
    """Effective number of different entries: one that is hidden in many rounds counts once."""
    _, place = np.unique(entries, return_inverse=True)
    weight = np.bincount(place, np.exp(logs - logs.max()))
    with np.errstate(divide="ignore"):
        return effective_sample_size(np.log(weight))
