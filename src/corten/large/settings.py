"""Settings left on "auto", chosen from a part of the tensor that fits in memory; and never observed land left out."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from corten.calibration.auto import share_deeper
from corten.calibration.gaps import GapCalibration
from corten.calibration.split import SplitCalibration
from corten.calibration.task import fit_propensity
from corten.completion.riemannian import PreparedLowRank, TensorTrainCompletion, TuckerCompletion
from corten.completion.stack import StackedCompletion
from corten.data.axes import Axis, cut_axes
from corten.data.choices import Choice
from corten.data.missing_values import report_suspects
from corten.data.never_observed import land_among, masks_of, may_have_land, times_of
from corten.engine.memory import let_go
from corten.io.lazy import LazyTensor
from corten.large.stages import Scratch
from corten.lowrank import feasible_rank, feasible_tucker_rank
from corten.options import CalibrationOption, CompletionOption, as_completion
from corten.propensity import AutoPropensity, PropensityModel

LowRank: TypeAlias = TuckerCompletion | TensorTrainCompletion

DEPTH_ENTRIES = 2_000_000  # entries from which the depth of the gaps is measured


@dataclass(frozen=True)
class Part:
    """A part of the tensor with the attributes of `ObservedTensor` that choosing settings needs."""

    mask: np.ndarray
    missing: np.ndarray
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Way:
    """How a tensor is completed from disk: in tiles with pseudo-gaps, or whole with a random split.

    tiles: None if the depth of the gaps decides.
    """

    tiles: bool | None
    split: SplitCalibration
    completion: LowRank


def way_of(calibration: CalibrationOption, completion: CompletionOption) -> Way:
    """The way that two options ask for; what needs the whole tensor in memory is refused."""
    stacked = isinstance(completion, StackedCompletion) or completion == "stack"
    either = isinstance(completion, str) and completion == "auto"
    low_rank = TuckerCompletion() if stacked or either else as_completion(completion, gaps=False, mixed=False)
    if not isinstance(low_rank, TuckerCompletion | TensorTrainCompletion):
        raise ValueError(
            f"completion is {completion!r}: out-of-core mode supports 'auto', 'stack', 'tucker' and 'tensor-train'; "
            "complete parts that fit in memory, or give more memory"
        )
    if isinstance(calibration, SplitCalibration) or calibration == "random":
        if stacked:
            raise ValueError("completion is 'stack': out-of-core mode fills tiles with it; take calibration='gaps'")
        return Way(False, calibration if isinstance(calibration, SplitCalibration) else SplitCalibration(), low_rank)
    if isinstance(calibration, GapCalibration) or calibration == "gaps":
        if not (stacked or either):
            raise ValueError(
                f"completion is {completion!r}: out-of-core mode fills tiles with 'stack' if calibration is 'gaps'"
            )
        return Way(True, SplitCalibration(), low_rank)
    if calibration == "auto":
        return Way(None if either else stacked, SplitCalibration(), low_rank)
    raise ValueError(
        f"calibration is {calibration!r}: out-of-core mode supports 'auto', 'random' and 'gaps'; complete parts that "
        "fit in memory, or give more memory"
    )


def prepared(completion: LowRank, lazy: LazyTensor, *, scratch: Scratch, planes: int, seed: int) -> PreparedLowRank:
    """The completion with its rank chosen: on planes spread over the tensor where it was left open."""
    if not isinstance(completion.rank, str):
        stand_in = np.broadcast_to(np.float32(0), lazy.shape)
        return completion.prepare(stand_in, stand_in, lazy.axes, seed)
    which, values = _spread(lazy, planes)
    train = np.concatenate([scratch.train[i : i + 1] == 1 for i in which])
    chosen = completion.prepare(values, train, lazy.axes, seed)
    feasible = feasible_tucker_rank if isinstance(completion, TuckerCompletion) else feasible_rank
    return replace(chosen, rank=feasible(lazy.shape, chosen.rank), choices=_on_part(chosen.choices, len(which), lazy))


def report_codes(lazy: LazyTensor, planes: int) -> tuple[Choice, ...]:
    """Warn of numbers that may stand for a missing value, as far as planes spread over the tensor show them."""
    which, values = _spread(lazy, planes)
    return report_suspects(values, f" (in {len(which)} of {lazy.shape[0]} planes)")


def _spread(lazy: LazyTensor, planes: int) -> tuple[list[int], np.ndarray]:
    """Planes spread over the tensor, and their values."""
    which = np.unique(np.linspace(0, lazy.shape[0] - 1, planes).astype(int)).tolist()
    return which, np.concatenate([lazy.read(i, i + 1)[0] for i in which])


def settled(
    model: PropensityModel, lazy: LazyTensor, *, scratch: Scratch, planes: int, train_share: float
) -> tuple[PropensityModel, tuple[Choice, ...]]:
    """The propensity model with its open settings chosen on one block, and these settings."""
    if not isinstance(model, AutoPropensity) and not _open(model):
        return model, ()
    start = (lazy.shape[0] - planes) // 2
    box = (slice(start, start + planes), *(slice(0, n) for n in lazy.shape[1:]))
    part = np.array(scratch.train[box])
    fitted = fit_propensity(model, part, train_share=train_share, axes=cut_axes(lazy.axes, box))
    choices = _on_part(fitted.choices, planes, lazy)
    if isinstance(model, AutoPropensity):
        return model.settled(fitted), choices
    known = {one.name for one in fields(model)} & {"rank", "coupling", "link"}  # type: ignore[arg-type]  # a dataclass
    return replace(model, **{name: getattr(fitted, name) for name in known}), choices  # type: ignore[type-var]


def deeper(lazy: LazyTensor, scratch: Scratch, train_share: float, seed: int) -> tuple[str, float]:
    """The share of missing entries deeper inside gaps than a random split would test, and in which direction."""
    box = middle_box(lazy.shape, DEPTH_ENTRIES)
    spins = np.array(scratch.observed[box])
    let_go(scratch.observed[box])
    axes = cut_axes(lazy.axes, box)
    shares = share_deeper(Part(spins == 1, spins == -1, axes), SplitCalibration(train_share), seed)
    return max(shares.items(), key=lambda item: item[1], default=("anywhere", 0.0))


def without_land(
    lazy: LazyTensor, planes: int, *, fill: bool = False
) -> tuple[LazyTensor, tuple[Choice, ...], np.ndarray | None]:
    """The tensor without never observed land (or sea), as in memory, the record of it, and places that have a flag.

    The pass over the data, in blocks of `planes`, is made only if a mask, the name of the variable or a map could say
    what is land. A given domain is kept as it is.
    """
    along = times_of(lazy.axes)
    suggests = bool(lazy.masks) or bool(masks_of(lazy)) or may_have_land(lazy)
    if fill or lazy.has_domain or not suggests or not 0 < len(along) < len(lazy.shape):
        return lazy, (), None
    seen = np.zeros([1 if k in along else n for k, n in enumerate(lazy.shape)], np.int64)
    for start in range(0, lazy.shape[0], planes):
        stop = min(start + planes, lazy.shape[0])
        part = seen if 0 in along else seen[start:stop]
        part += np.isfinite(lazy.read(start, stop)[0]).sum(axis=along, keepdims=True)
    outside, never, choice = land_among(lazy, seen, along, lazy.masks)
    return lazy if outside is None else lazy.within(~outside), () if choice is None else (choice,), never


def middle_box(shape: tuple[int, ...], entries: int) -> tuple[slice, ...]:
    """The middle of a tensor, about `entries` of it, as near to a cube as the shape allows."""
    sides, left = {}, entries
    for rank, k in enumerate(sorted(range(len(shape)), key=lambda k: shape[k])):
        sides[k] = min(shape[k], max(1, round(left ** (1 / (len(shape) - rank)))))
        left //= sides[k]
    starts = [(n - sides[k]) // 2 for k, n in enumerate(shape)]
    return tuple(slice(a, a + sides[k]) for k, a in enumerate(starts))


def _open(model: PropensityModel) -> bool:
    """Whether a setting of the propensity model is open."""
    parts = [getattr(model, name, None) for name in ("coupling", "link")]
    waiting = [getattr(part, word, False) for part in parts for word in ("is_auto", "is_learned")]
    return isinstance(getattr(model, "rank", None), str) or any(waiting)


def _on_part(choices: tuple[Choice, ...], planes: int, lazy: LazyTensor) -> tuple[Choice, ...]:
    if planes == lazy.shape[0]:
        return choices
    where = f" (on {planes} of {lazy.shape[0]} planes)"
    return tuple(replace(one, because=one.because + where) for one in choices)
