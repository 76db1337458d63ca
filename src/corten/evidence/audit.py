"""An audit: hide observed entries again, fit without them, and count how often the intervals cover them.

It estimates the coverage at the *missing* entries without the truth there. Hidden entries are distributed differently:
entry s is missing with probability 1 - p_s, but observed and then hidden with probability p_s h_s. So every hidden
entry has the weight (1 - p_s) / (p_s h_s): the odds of a reference propensity model over the probability of hiding. The
reference is fitted to the whole mask, or is the fit's own model where that explains the mask better. If it were always
the fit's own model, the audit could not detect wrong weights. With pseudo-gaps the hidden entries are weighted by their
depth instead, and the fit's own calibration is tested on them: new gaps, with the same learned scale and scores, except
what was learned from the hidden entries (a scale learned from fewer entries would say nothing about that of the fit).

It cannot detect missingness that depends on the values themselves, nor a bias inside gaps that no hidden entry shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from corten.calibration.gap_scale import tested_depth
from corten.calibration.hiding import HIDING_KINDS, Hiding, draw_hidings
from corten.calibration.renewal import Settled
from corten.calibration.task import Calibration, Progress, changed_by, fit_propensity, trend_of
from corten.completion.protocol import Prepared
from corten.completion.stack import PreparedStack
from corten.conformal.calibrated import CalibratedScores
from corten.conformal.depth import DepthWeights, depth
from corten.conformal.diagnostics import pooled_effective_sample_size
from corten.conformal.raking import rake
from corten.conformal.scale import TableScale
from corten.conformal.split import CalibratedSplit
from corten.conformal.weights import PooledWeights
from corten.data.arrays import Floats, Numbers
from corten.data.coverage import check_coverage
from corten.data.observed import ObservedTensor
from corten.data.transform import as_transform
from corten.engine.threads import in_order, one_library_thread
from corten.evidence.audit_table import Audit, Sample
from corten.lowrank import TensorTrain
from corten.propensity import FittedPropensity, IsingPropensity, PropensityModel

if TYPE_CHECKING:
    from corten.completer import ConformalCompleter
    from corten.results.fitted import Fitted

MIN_AUDIT_EFFECTIVE_SIZE = 200.0  # hidden entries: a standard error of two percentage points at 90 %
MIN_AUDIT_EFFECTIVE_SHARE = 0.1  # of the hidden entries, where that is less
CARRIED = (
    "{}: not defined for data that an earlier fit filled, as the calibration entries lie in the data of that fit; use "
    "fitted.update(x), or fit these data"
)
NO_METHOD = (
    "this fit cannot be audited, because its method is unknown (a file does not keep code of your own, and a "
    "calibration of your own cannot be repeated): fit again to audit it"
)
POWERS = (1.0, 0.75, 0.5, 0.25)  # of the odds, tried in this order until the effective sample size suffices


def audit(
    fitted: Fitted,
    rounds: int = 20,
    inner_rounds: int = 0,
    seed: int = 0,
    *,
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    kinds: Sequence[Literal["drawn", "moved", "random"]] | None = None,
    reference: PropensityModel | FittedPropensity | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Estimate the coverage at the missing entries, without the truth there, by hiding observed entries again.

    Parameters
    ----------
    rounds : int, default 20
        How often about a seventh of the observed entries is hidden. More rounds reduce the standard error and take
        longer.
    inner_rounds : int, default 0
        For pseudo-gaps: 0 tests the fit's own calibration; with 1 or more, every round is calibrated again with
        this number of pseudo-gaps, which is slower.
    seed : int, default 0
        Seed of the hiding.
    levels : sequence of float, default (0.5, 0.8, 0.9, 0.95)
        Nominal coverages to audit.
    kinds : sequence of {"drawn", "moved", "random"}, optional
        How entries are hidden: by masks drawn from the reference model, by moved copies of the real gaps
        (pseudo-gaps), or at random. Default: "moved" for a fit with pseudo-gaps, else all three.
    reference : propensity model, optional
        Model (with ``fit``, or fitted) that weights hidden entries. Default: an Ising model of the whole mask, or
        the fit's own model where that explains the mask as well.
    progress : function of (str, float), optional
        Called with the name of a stage and the share of it that is done.

    Returns
    -------
    Audit
        A ValueError if nothing was missing, too few entries are observed, or the fit was loaded without its method.
    """
    if fitted.carried:
        raise ValueError(CARRIED.format("an audit"))
    if fitted.calibrated is None:
        raise ValueError("nothing was missing, so there are no intervals to audit")
    if fitted.propensity is None:
        raise ValueError("an updated fit has no model of its mask and cannot be audited: fit the data again, or verify")
    for name, value, least in (("rounds", rounds, 2), ("inner_rounds", inner_rounds, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}")
    began, tell = perf_counter(), progress or (lambda stage, share: None)
    _method(fitted)
    assert fitted.calibrated is not None and fitted.propensity is not None
    wanted = tuple(check_coverage(level) for level in levels)
    pooled = fitted.pooled
    tell("reference", 0.0)
    model, because = reference_model(fitted, fitted.propensity if pooled and reference is None else reference)
    odds = np.asarray(model.log_weights(fitted.observed.mask), np.float64)
    if model is not reference and not pooled:
        odds = rake(odds, fitted.observed.mask, fitted.observed.missing)
    own = np.asarray(fitted.propensity.log_odds(fitted.observed.mask), np.float64)
    chosen = tuple(kinds) if kinds is not None else ("moved",) if pooled else HIDING_KINDS
    samples: list[Sample] = []
    reruns: Iterator[Fitted | None]
    hidings = draw_hidings(fitted.observed, model, rounds=rounds, seed=seed, kinds=chosen, whole=pooled)
    if pooled and inner_rounds == 0:
        reruns = _as_if_missing(fitted, hidings)
    else:
        first = int(fitted.options["seed"]) + 1 + 1000 * seed
        fewer = max(1, inner_rounds)
        numbered = enumerate(hidings, first)
        reruns = (rerun(fitted, one, own_log_odds=own, inner_rounds=fewer, seed=k) for k, one in numbered)
    for number, (again, hiding) in enumerate(zip(reruns, hidings)):
        tell("audit", number / len(hidings))
        if again is None:
            continue
        entries = np.flatnonzero(hiding.hidden)
        lower, upper = np.stack([again.bounds(level, entries) for level in wanted], axis=1)  # (levels, entries)
        truth = fitted.observed.values.reshape(-1)[entries].astype(np.float64)
        left = fitted.observed.mask & ~hiding.hidden
        logs = odds.reshape(-1)[entries] - np.broadcast_to(hiding.log_hidden, odds.shape).reshape(-1)[entries]
        deep = depth(left, fitted.observed.axes, np.ones(left.ndim)).reshape(-1)[entries]
        hits = (lower <= truth) & (truth <= upper)
        samples.append(Sample(hiding.kind, entries, log_weights=logs, depth=deep, covered=hits, width=upper - lower))
    if len(samples) < 2:
        raise ValueError("too few entries are observed to hide some and still calibrate: this fit cannot be audited")
    logs, note, untested = _weights(samples, fitted.observed, pooled)
    beyond = fitted.calibrated.beyond
    if beyond is not None:  # the fit knows of more: entries without any so deep near them, or in rare slices
        untested = max(untested, float(np.mean(beyond[fitted.observed.missing])))
    notes = (note,) if pooled else (because, note) if note else (because,)
    tell("audit", 1.0)
    return Audit(
        fitted.observed, wanted, samples=tuple(samples), log_weights=logs, gap_shaped=pooled, notes=notes,
        probability=model.probability(fitted.observed.mask), untested=untested, seconds=perf_counter() - began,
        effective_sample_size=fitted.calibrated.effective_sample_size(),
    )  # fmt: skip


def _as_if_missing(fitted: Fitted, hidings: Sequence[Hiding]) -> Iterator[Fitted | None]:
    """One fit per round; several at once for the stack only, as other completions may not be thread-safe."""
    alone = None if isinstance(fitted.completion, PreparedStack) else 1
    with one_library_thread:
        yield from in_order(lambda one: as_if_missing(fitted, one), hidings, alone)


def reference_model(
    fitted: Fitted, reference: PropensityModel | FittedPropensity | None = None
) -> tuple[FittedPropensity, str]:
    """The propensity model that weights the hidden entries of an audit, and the reason.

    An Ising model fitted to the whole mask, or the fit's own model if its P-AIC is smaller (eq. P-AIC-criterion).
    """
    own, observed = fitted.propensity, fitted.observed
    assert own is not None
    if isinstance(reference, FittedPropensity):
        return reference, "Hidden entries are weighted by the given propensity model."
    model = IsingPropensity() if reference is None else reference
    fresh = fit_propensity(
        model, observed.mask, train_share=1.0, axes=observed.axes, domain=observed.domain, engine=own.engine
    )
    if reference is not None:
        return fresh, "Hidden entries are weighted by the given propensity model."
    if _aic(own, observed) <= _aic(fresh, observed):
        return own, (
            "Hidden entries are weighted by the fit's own propensity model: an Ising model of the whole mask has no "
            "smaller P-AIC."
        )
    return fresh, (
        "Hidden entries are weighted by an Ising model of the whole mask: its P-AIC is smaller than that of the fit's "
        "own propensity model."
    )


def _aic(model: FittedPropensity, observed: ObservedTensor) -> float:
    eta = np.asarray(model.log_odds(observed.mask), np.float64)[observed.inside]
    spins = np.where(observed.mask[observed.inside], 1.0, -1.0)
    size = model.parameter.dimension if isinstance(model.parameter, TensorTrain) else 0
    return 2.0 * float(np.logaddexp(0.0, -spins * eta).sum()) + 2.0 * size


def _weights(samples: Sequence[Sample], observed: ObservedTensor, pooled: bool) -> tuple[Floats, str, float]:
    """Log-weights of all hidden entries, round by round, a note, and the share of missing entries that lie deeper.

    The weights are flattened, and the note says so, if the effective size is low.

    For pseudo-gaps (`pooled`) the hidden entries are weighted to the depths of the missing ones instead of by their
    odds: both measure how deep an entry lies inside a gap, and together they would count it twice.
    """
    if pooled:
        missing = depth(observed.mask, observed.axes, np.ones(observed.mask.ndim))[observed.missing]
        depths = [one.depth for one in samples]
        by_depth = DepthWeights.of(np.concatenate(depths), missing).at(np.concatenate(depths))
        beyond = float(np.mean(missing > tested_depth(depths)))
        return by_depth, "Hidden entries are weighted to have the depths of the missing entries.", beyond
    logs = np.concatenate([one.log_weights for one in samples])
    entries = np.concatenate([one.entries for one in samples])
    need = min(MIN_AUDIT_EFFECTIVE_SIZE, MIN_AUDIT_EFFECTIVE_SHARE * np.unique(entries).size)
    power = next((p for p in POWERS if pooled_effective_sample_size(p * logs, entries) >= need), 0.0)
    flattened = (
        f"The odds enter to the power {power:g}, because otherwise the effective sample size of the hidden entries is "
        "too low; the audit says less about the entries least likely to be observed."
    )
    return power * logs, flattened if power < 1.0 else "", 0.0


@dataclass(frozen=True)
class _TablePropensity(FittedPropensity):
    """A propensity model with a table of log-odds: those of the first fit, corrected for the hiding.

    Hidden entries were observed in the first fit, so exact weights use the neighbours of the first mask.
    """

    table: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def independent(self) -> bool:
        return True

    def log_odds(self, mask: np.ndarray) -> np.ndarray:
        return self.table

    def fit(self, training_mask: np.ndarray, train_share: float = 0.7, **options: object) -> FittedPropensity:
        """Nothing is fitted again."""
        return self


def rerun(fitted: Fitted, hiding: Hiding, *, own_log_odds: Numbers, inner_rounds: int, seed: int) -> Fitted:
    """The fit without the hidden entries: ranks, scales and the propensity model stay, splits are drawn again.

    The hiding keeps a calibration entry s with probability k_s, so its weight is divided by k_s.
    """
    completer, completion = _method(fitted)
    left = _without(fitted.observed, hiding)
    assert fitted.propensity is not None and fitted.calibration is not None
    known = {one.name: getattr(fitted.propensity, one.name) for one in fields(FittedPropensity)}
    table = _TablePropensity(**known, table=np.asarray(own_log_odds + hiding.log_kept, np.float32))
    return replace(
        completer,
        completion=Settled(completion),
        propensity=table,
        calibration=_same_training(fitted.calibration, inner_rounds, hiding.hidden.sum() / fitted.observed.n_observed),
        seed=seed,
    ).fit(left)


def _method(fitted: Fitted) -> tuple[ConformalCompleter, Prepared]:
    """The options and the completion of a fit; a ValueError where a file did not keep them."""
    if fitted.completer is None or not isinstance(fitted.completion, Prepared):
        raise ValueError(NO_METHOD)
    return fitted.completer, fitted.completion


def as_if_missing(fitted: Fitted, hiding: Hiding) -> Fitted | None:
    """A fit with pseudo-gaps that treats the hidden entries as missing; None if no score is left.

    The transform and the fill are computed without the hidden entries, their scale comes from models trained without
    their blocks, and cutoffs from the scores of all other entries. The intervals are meaningful at the hidden entries
    only.
    """
    known = fitted.calibrated
    completer, completion = _method(fitted)
    if not isinstance(known, CalibratedSplit) or known.local is None:
        raise ValueError(NO_METHOD)
    left = _without(fitted.observed, hiding)
    values = left.values
    # Learned again: the first transform was learned from the hidden entries too.
    transform = as_transform(completer.transform, completer.climatology)
    undo = changed_by(transform, left, train=left.mask, seed=int(fitted.options["seed"]), trend=trend_of(known.change))
    if undo is not None:
        values = undo.forward(left.values).astype(left.values.dtype)
    fill = completion.fill(values, left.mask)
    entries = np.flatnonzero(hiding.hidden)
    scale, table = np.ones(values.size), np.zeros(values.size)
    scale[entries], table[entries] = known.local.hidden_again(entries, values, left.mask, fill)
    others = ~hiding.hidden.reshape(-1)[fitted.entries]
    if not others.any():
        return None
    weights = PooledWeights(fitted.entries[others], fitted.log_weights[others], table)
    scored = CalibratedScores(known.score, fitted.scores[others], fitted.entries[others], weights)
    split = CalibratedSplit(scored, np.ascontiguousarray(fill.estimate), TableScale(scale), undo, fitted.propensity)
    estimate = split.data_estimate()
    return replace(
        fitted,
        observed=left,
        estimate=estimate if fitted.limits is None else np.clip(estimate, *fitted.limits),
        calibrated=split,
        residuals=fitted.residuals[others],
    )


def _without(observed: ObservedTensor, hiding: Hiding) -> ObservedTensor:
    values = np.array(observed.values)
    values[hiding.hidden] = np.nan
    return replace(observed, values=values, mask=np.asarray(observed.mask & ~hiding.hidden))


def _same_training(calibration: Calibration, rounds: int, hidden_share: float) -> Calibration:
    """The same calibration with fewer rounds of pseudo-gaps, or with as many training entries as the first fit had.

    With fewer training entries all errors would be larger and more alike, and the audit would miss wrong weights.
    """
    names: set[str] = {one.name for one in fields(calibration)} if is_dataclass(calibration) else set()
    if "rounds" in names:
        return replace(calibration, rounds=rounds)  # type: ignore[type-var]
    if "train_share" in names:
        share = min(0.9, vars(calibration)["train_share"] / (1.0 - hidden_share))
        return replace(calibration, train_share=share)  # type: ignore[type-var]  # it has fields
    return calibration
