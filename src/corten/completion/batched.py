"""The members of the stack for many rounds at once, on a device: pyramid, Gaussian process, low rank of unfoldings.

Every array has a leading axis of rounds, and all products are along single axes with small dense matrices. Settings
come from the prepared stack; the host standardises each round. The code runs with NumPy too, which the tests use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from corten.completion.axes_kinds import Standardised
from corten.completion.gaussian_process import GaussianProcessCompletion, PreparedProcess, Units, conditioned
from corten.completion.protocol import Completion, Prepared
from corten.completion.smooth import PreparedSmooth, pyramid
from corten.completion.unfoldings import (
    MAX_DENSE_SIZE,
    POWER,
    PreparedUnfoldings,
    UnfoldingCompletion,
    _centred,
    _unfoldings,
    minimise,
)
from corten.completion.unordered import position_correlations
from corten.data.axes import Axis
from corten.engine.arrays import Array, Arrays

MAX_LENGTH = 4096  # of an axis: products are with dense matrices


def why_not_member(member: object, shape: tuple[int, ...]) -> str | None:
    """The reason why a member cannot run in batches, None if it can."""
    if not isinstance(member, PreparedSmooth | PreparedProcess | PreparedUnfoldings):
        return f"{type(member).__name__} runs on the host only"
    if any(grid.positions is not None for grid in getattr(member, "grids", ())):
        return "an axis has unequal steps"
    if isinstance(member, PreparedProcess) and member.covariance.seasons:
        return "the covariance has a cycle"
    if isinstance(member, PreparedUnfoldings) and not _dense(shape):
        return f"the smaller side of an unfolding is longer than {MAX_DENSE_SIZE}"
    return None


def prepare_member(
    arrays: Arrays | None, member: Completion, *, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int
) -> Prepared:
    """The member with its settings, chosen with the help of a device where there is one."""
    if arrays is not None and (
        isinstance(member, GaussianProcessCompletion)
        or (isinstance(member, UnfoldingCompletion) and _dense(mask.shape))
    ):
        return member.prepare_on(arrays, values, mask=mask, axes=axes, seed=seed)
    return member.prepare(values, mask, axes, seed)


def fill_member(
    arrays: Arrays,
    member: Prepared,
    *,
    values: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    data: Sequence[Standardised],
    known: Array,
    kept: Array,
    start: Array | None,
) -> Array:
    """The estimates of a member for each round, in the standardised variable `known`; `start` or None for its own."""
    if isinstance(member, PreparedSmooth):
        return pyramid(arrays, member, known, kept)
    if isinstance(member, PreparedProcess):
        start = pyramid(arrays, member.pyramid, known, kept) if start is None else start
        units = units_of(member, data, masks)
        start = member.coarse_start(arrays, units, known=known, kept=kept, start=start)
        priors = member.priors(arrays, kept.shape[1:], units)
        return conditioned(arrays, priors, values=known, kept=kept, start=start, iterations=member.iterations)
    assert isinstance(member, PreparedUnfoldings)
    start = pyramid(arrays, member.pyramid, known, kept) if start is None else start
    if member.origin == "mean":
        return minimise(arrays, known, kept=kept, start=start, iterations=member.iterations)
    own = [_centred(v, m, member.kinds, member.origin) for v, m in zip(values, masks)]
    centred = arrays.put(np.stack([one.values.astype(np.float32) for one in own]))

    def put(numbers: Sequence[ArrayLike]) -> Array:
        return arrays.put(np.stack([np.asarray(one, np.float32) for one in numbers]))

    if member.origin == "power":
        # As `undo` of what was centred, then standardised as the others.
        scale, centre = put([o.scale for o in own]), put([o.centre for o in own])
        base = put([(o.base - d.centre) / d.scale for o, d in zip(own, data)])  # type: ignore[attr-defined]
        inverse = put([1 / d.scale for d in data])
        start = (arrays.xp.maximum((start - base) / inverse, 0) ** POWER - centre) / scale
        estimate = minimise(arrays, centred, kept=kept, start=start, iterations=member.iterations)
        return arrays.xp.maximum(estimate * scale + centre, 0) ** (1 / POWER) * inverse + base
    scale = put([o.scale / d.scale for o, d in zip(own, data)])
    shift = put([(o.centre - d.centre) / d.scale for o, d in zip(own, data)])
    return (
        minimise(arrays, centred, kept=kept, start=(start - shift) / scale, iterations=member.iterations) * scale
        + shift
    )


def _dense(shape: tuple[int, ...]) -> bool:
    """Whether no unfolding has a long smaller side."""
    return max(part.size for part in _unfoldings(shape)) <= MAX_DENSE_SIZE


def units_of(member: PreparedProcess, data: Sequence[Standardised], masks: Sequence[np.ndarray]) -> list[Units]:
    """Correlations of positions, estimated from the entries of each round; one for all if no axis is unordered."""
    if "unordered" not in member.kinds:
        return [{}]
    return [
        position_correlations(one.values.astype(np.float64), mask, member.kinds) for one, mask in zip(data, masks)
    ]
