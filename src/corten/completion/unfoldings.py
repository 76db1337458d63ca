"""Low-rank completion by the truncated nuclear norm of all unfoldings, with ranks that rise from one.

The problem is that of Chen, Yang and Sun (2020, LRTC-TNN): the sum over the unfoldings of the singular values beyond
the leading ones is minimised by the alternating direction method of multipliers, with the observed entries kept.
Singular values beyond the rank are reduced by a threshold, the leading ones are not.

Here the rank of every unfolding begins at one and rises while the threshold falls. With the full rank from the
beginning, a leading component that the data do not need keeps the start values of the largest gap in every iteration.
The estimate there is wrong, and pseudo-gaps, which that component does not fill, do not show it. With rank one the
start is forgotten, and each later component is added to what the observed entries have determined. How far the ranks
rise is chosen on a pseudo-gap: one run shows the errors of all numbers of iterations.

Iterations start from the kernel pyramid. A start from the mean needs twice as many, and positions where all
stations are missing keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from corten.completion.axes_kinds import Standardised, along, axis_kinds, has_stations, pseudo_gap, standardise
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion, pyramid
from corten.completion.variable import is_skewed
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.engine.arrays import Array, Arrays, HostArrays

ITERATIONS = (8, 15, 22, 30, 38, 45)  # the candidates
ORIGINS = ("mean", "lowest")
POWER = 2 / 3  # of the distance from the lowest value: it makes counts nearly symmetric (Anscombe)
RANK_SHARE_PER_ITERATION = 0.4 / 45  # of the smaller side of an unfolding
FIRST_THRESHOLD = 0.5  # in norms of the observed values
THRESHOLD_DECREASE = 1.136  # factor in every iteration
UNFOLDING_HIDDEN_SHARE = 1 / 3  # of the observed entries at most, to compare settings
GAPS_OF_STATIONS = 4  # of stations: which of them one gap hides decides between origins that are as good
MAX_DENSE_SIZE = 512  # smaller sides up to this have a full eigendecomposition
MAX_COMPONENTS = 128  # of larger ones, followed from iteration to iteration
SIDES = ("scale", "centre")  # of a standardised variable, which may differ between slices
_State = tuple[Array, tuple[Array, ...], Array]  # filled tensors, multipliers of each unfolding, threshold


@dataclass
class _Unfolding:
    """One unfolding of a tensor; `basis` follows its leading singular vectors if its smaller side is long."""

    axis: int
    rows: bool  # whether the axis is the smaller side
    size: int  # of the smaller side
    basis: np.ndarray | None = None

    def rank(self, iteration: int) -> int:
        """The rank in an iteration, counted from one."""
        return max(1, ceil((iteration - 1) * RANK_SHARE_PER_ITERATION * self.size - 1e-9))

    def of_rounds(self, arrays: Arrays, array: Array, tau: Array, rank: int | Array) -> np.ndarray:
        """`threshold` for each round."""
        each = [self.threshold(one, float(own), int(rank)) for one, own in zip(arrays.get(array), tau.ravel())]
        return each[0][None] if len(each) == 1 else np.stack(each)

    def threshold(self, array: np.ndarray, tau: float, rank: int) -> np.ndarray:
        """The array with the singular values beyond `rank` of the unfolding reduced by `tau`."""
        k = self.axis
        matrix = array if self.rows else np.moveaxis(array, k, 0).reshape(array.shape[k], -1)
        squares, vectors = self._leading(matrix)
        values = np.sqrt(np.maximum(squares, 0))
        kept = np.divide(np.maximum(values - tau, 0), values, out=np.zeros_like(values), where=values > 0)
        kept[:rank] = 1
        vectors, kept = vectors[:, kept > 0], kept[kept > 0]
        # Two thin products where they are fewer operations than one square product.
        factors = [vectors * kept, vectors.T] if 2 * len(kept) < self.size else [(vectors * kept) @ vectors.T]
        factors = [one.astype(array.dtype) for one in factors]
        for factor in reversed(factors):
            matrix = along(factor, matrix, k) if self.rows else matrix @ factor.T
        if self.rows:
            return matrix
        rest = [n for j, n in enumerate(array.shape) if j != k]
        return np.moveaxis(matrix.reshape(array.shape[k], *rest), 0, k)

    def _leading(self, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Squared singular values, descending, and the singular vectors of the smaller side."""
        if self.size <= MAX_DENSE_SIZE:
            squares, vectors = np.linalg.eigh(self._gram(matrix))
            return squares[::-1], vectors[:, ::-1]
        flat = np.moveaxis(matrix, self.axis, 0).reshape(self.size, -1) if self.rows else matrix.T
        if self.basis is None:
            # The first products are with columns of the matrix itself, evenly spaced: no random numbers are needed.
            at = np.linspace(0, flat.shape[1] - 1, MAX_COMPONENTS).astype(np.intp)
            self.basis = np.linalg.qr(flat[:, at])[0]
        image = flat @ (flat.T @ self.basis)
        self.basis, _ = np.linalg.qr(image)
        inner = self.basis.T @ flat
        squares, turned = np.linalg.eigh(inner @ inner.T)
        return squares[::-1], self.basis @ turned[:, ::-1]

    def _gram(self, matrix: np.ndarray) -> np.ndarray:
        if not self.rows:
            return np.asarray(matrix.T @ matrix)
        if self.axis == matrix.ndim - 1:
            flat = matrix.reshape(-1, self.size)
            return np.asarray(flat.T @ flat)
        flat = np.moveaxis(matrix, self.axis, 0).reshape(self.size, -1)
        return np.asarray(flat @ flat.T)


def _unfoldings(shape: tuple[int, ...]) -> list[_Unfolding]:
    """The different unfoldings: a matrix has one."""
    axes = [k for k, n in enumerate(shape) if n > 1] or [0]
    axes = axes[:1] if len(axes) == 2 else axes
    total = prod(shape)
    return [_Unfolding(k, shape[k] <= total // shape[k], min(shape[k], total // shape[k])) for k in axes]


def minimise(
    arrays: Arrays,
    known: Array,
    kept: Array,
    start: Array,
    *,
    iterations: int,
    visit: Callable[[int, Array], None] | None = None,
    visited: Sequence[int] = (),
) -> Array:
    """The estimates of every entry after `iterations`, for a batch of rounds, on the host or on a device.

    `known` has standard deviation one where `kept` is one and is zero elsewhere; there `start` are the first estimates.
    `visit` gets the estimates after the numbers of iterations in `visited`.
    """
    parts = _unfoldings(kept.shape[1:])
    on_host = isinstance(arrays, HostArrays)
    plan: Sequence[_Unfolding | _Dense] = parts if on_host else tuple(_Dense(part.axis, part.rows) for part in parts)
    filled = arrays.xp.where(kept > 0, known, start)
    tau = FIRST_THRESHOLD * arrays.xp.sqrt(arrays.inner(known, known))
    multipliers = tuple(arrays.xp.zeros_like(known) for _ in parts)  # divided by the penalty parameter
    state, estimate = (filled, multipliers, tau), filled
    for number in range(1, iterations + 1):
        # A device always computes the estimate: one program serves.
        shown = not on_host or number == iterations or number in visited
        step = arrays.compiled(_step, parts=plan, shown=shown)
        ranks = np.array([part.rank(number) for part in parts], np.int32)
        state, estimate = step(known, kept, state, ranks)
        if visit is not None and number in visited:
            visit(number, estimate)
    return estimate


def _step(
    arrays: Arrays,
    known: Array,
    kept: Array,
    state: _State,
    ranks: Array,
    *,
    parts: Sequence[_Unfolding | _Dense],
    shown: bool,
) -> tuple[_State, Array]:
    """One iteration: its state, and the estimate if it is shown."""
    filled, multipliers, tau = state
    estimate = arrays.xp.zeros_like(filled) if shown else filled
    added = []
    for number, (part, multiplier) in enumerate(zip(parts, multipliers)):
        low = part.of_rounds(arrays, filled - multiplier, tau, ranks[number])
        if shown:
            estimate += low
        multiplier += low
        added.append(multiplier)
    filled, following = arrays.with_means(added, known=known, kept=kept, decrease=THRESHOLD_DECREASE)
    if shown:
        estimate /= np.float32(len(parts))
    return (filled, following, tau / np.float32(THRESHOLD_DECREASE)), estimate


class _Dense(NamedTuple):
    """One unfolding with a short smaller side, for programs of a device: no shape depends on the data."""

    axis: int
    rows: bool

    def of_rounds(self, arrays: Arrays, array: Array, tau: Array, rank: int | Array) -> Array:
        """As `_Unfolding.of_rounds`."""
        xp, axis = arrays.xp, self.axis + 1
        moved = xp.moveaxis(array, axis, 1)
        flat = moved.reshape(*moved.shape[:2], -1)
        turned = flat.swapaxes(1, 2)
        squares, vectors = arrays.eigh(arrays.matmul(flat, turned) if self.rows else arrays.matmul(turned, flat))
        values = xp.sqrt(xp.maximum(squares, 0))
        shrunk = xp.where(values > 0, xp.maximum(values - tau.reshape(-1, 1), 0) / xp.where(values > 0, values, 1), 0)
        # Eigenvalues ascend: the leading ones are the last.
        leading = xp.arange(values.shape[1]) >= values.shape[1] - rank
        weight = xp.where(leading, 1, shrunk).astype(vectors.dtype)
        projection = arrays.matmul(vectors * weight[:, None, :], vectors.swapaxes(1, 2))
        if self.rows:
            return arrays.along(projection, array, axis)
        return xp.moveaxis(arrays.matmul(flat, projection).reshape(moved.shape), 1, axis)


def _centred(values: np.ndarray, mask: np.ndarray, kinds: Sequence[str], origin: str) -> Standardised:
    """The observed values relative to the origin, with standard deviation one."""
    if origin == "mean":
        return standardise(values, mask, kinds)
    if origin == "power":
        base = float(values[mask].min()) if mask.any() else 0.0
        one = _centred(np.where(mask, values - base, 0) ** POWER, mask, kinds, "lowest")
        return _Powers(one.values, one.centre, one.scale, base)
    one = standardise(values, mask, ("ordered",) * mask.ndim)
    lowest = float(one.values[mask].min()) if mask.any() else 0.0
    return Standardised(np.where(mask, one.values - lowest, 0), one.centre + lowest * one.scale, one.scale)


@dataclass(frozen=True)
class _Powers(Standardised):
    """Powers of the distances from `base`, standardised."""

    base: float

    def undo(self, array: np.ndarray) -> np.ndarray:
        """The array in the variable of the data: never below the base."""
        return self.base + np.maximum(super().undo(array), 0) ** (1 / POWER)


def relative(data: Standardised, estimate: np.ndarray) -> np.ndarray:
    """An estimate in the variable of `data`: the inverse of `undo`."""
    if isinstance(data, _Powers):
        estimate = np.maximum(estimate - data.base, 0) ** POWER
    return np.asarray((estimate - data.centre) / data.scale, np.float32)


def _given(data: Standardised, mask: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `minimise` takes of one round: values, weights and first estimates."""
    known = np.where(mask, data.values, 0).astype(np.float32)
    return known[None], mask[None], relative(data, start)[None]


def held_out_errors(
    arrays: Arrays,
    values: np.ndarray,
    known: np.ndarray,
    hidden: np.ndarray,
    smooth: PreparedSmooth,
    *,
    kinds: Sequence[str],
    origins: Sequence[str],
    numbers: Sequence[int],
) -> dict[tuple[str, int], float]:
    """Mean absolute errors of hidden entries by origin and number of iterations; a device runs all origins at once."""
    first = standardise(values, known, kinds)
    with arrays.running():
        given = (arrays.put(one.astype(np.float32)[None]) for one in (first.values, known))
        start = first.undo(arrays.get(pyramid(arrays, smooth, *given))[0].astype(np.float64))
    at, truth = np.flatnonzero(hidden), values[hidden]
    errors: dict[tuple[str, int], float] = {}
    for group in [[one] for one in origins] if isinstance(arrays, HostArrays) else [origins]:
        data = [_centred(values, known, kinds, origin) for origin in group]
        at_hidden = [
            replace(one, **{side: np.broadcast_to(getattr(one, side), hidden.shape)[hidden] for side in SIDES})
            for one in data
        ]

        def visit(number: int, estimates: Array, group: Sequence[str] = group, own: list = at_hidden) -> None:
            for origin, one, estimate in zip(group, own, estimates):
                part = arrays.get(estimate.reshape(-1)[at]).astype(np.float64)
                errors[origin, number] = float(np.abs(one.undo(part) - truth).mean())

        with arrays.running():
            both = arrays.put(np.stack([one.values.astype(np.float32) for one in data]))
            kept = arrays.put(np.broadcast_to(known, both.shape)).astype(np.float32)
            begun = arrays.put(np.stack([relative(one, start) for one in data]))
            minimise(arrays, both, kept=kept, start=begun, iterations=max(numbers), visit=visit, visited=numbers)
    return errors


@dataclass(frozen=True)
class PreparedUnfoldings:
    """The completion with its origin and number of iterations, and the pyramid that they start from."""

    kinds: tuple[str, ...]
    origin: str
    iterations: int
    pyramid: PreparedSmooth = field(repr=False)
    choices: tuple[Choice, ...] = field(default=(), repr=False)

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill from the entries where `mask` is True."""
        return self.fill_from(values, mask, self.pyramid.fill(values, mask).estimate)

    def on_axes(self, axes: Sequence[Axis]) -> PreparedUnfoldings:
        """The same ranks, with a pyramid of the same widths on other axes."""
        return replace(self, pyramid=self.pyramid.on_axes(axes))

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, with the iterations started from another estimate made of the same entries."""
        data = _centred(values, mask, self.kinds, self.origin)
        found = minimise(HostArrays(), *_given(data, mask, start), iterations=self.iterations)[0]
        return Fill(data.undo(np.asarray(found, np.float64)))


@dataclass(frozen=True)
class UnfoldingCompletion:
    """Fill with the tensor whose unfoldings all have small singular values beyond the leading ones.

    Parameters
    ----------
    origin : {"auto", "mean", "lowest", "power"}
        What is subtracted first: the mean of every position of the unordered axes, or the lowest observed value, which
        suits counts and concentrations (positions are then multiples of each other); "power" is the distance from it
        to the power 2/3. Default "auto": the smallest error in a pseudo-gap; the power is tried for skewed values.
    iterations : int or "auto"
        The number of iterations: more allow higher ranks. Default "auto": 8 to 45 by the error in a pseudo-gap.

    Notes
    -----
    Chen, Yang and Sun (2020), A nonconvex low-rank tensor completion model for spatiotemporal traffic data imputation,
    Transportation Research Part C 117, 102673, with ranks that rise from one.
    """

    origin: str = "auto"
    iterations: int | str = "auto"

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedUnfoldings:
        """Choose what is "auto" on entries in `mask` that a pseudo-gap hides."""
        return self.prepare_on(HostArrays(), values, mask=mask, axes=axes, seed=seed)

    def prepare_on(
        self, arrays: Arrays, values: np.ndarray, *, mask: np.ndarray, axes: Sequence[Axis], seed: int
    ) -> PreparedUnfoldings:
        """`prepare`, with settings compared on a device if `arrays` are those of one."""
        kinds = axis_kinds(axes, mask.shape)
        skewed = ("power",) if self.origin == "auto" and is_skewed(values[mask]) else ()
        origins = (*ORIGINS, *skewed) if self.origin == "auto" else (self.origin,)
        numbers = ITERATIONS if self.iterations == "auto" else (int(self.iterations),)
        rng = np.random.default_rng((seed, 0x7A))
        number_of_gaps = GAPS_OF_STATIONS if has_stations(kinds, mask.shape) else 1
        gaps = [pseudo_gap(mask, kinds, rng, UNFOLDING_HIDDEN_SHARE) for _ in range(number_of_gaps)]
        gaps = [hidden for hidden in gaps if hidden.any() and (mask & ~hidden).any()]
        smooth = SmoothCompletion().prepare(values, mask, axes, seed)
        if len(origins) * len(numbers) == 1 or not gaps:
            return PreparedUnfoldings(kinds, origins[0], numbers[len(numbers) // 2], smooth)
        tried: dict[str, Any] = {"kinds": kinds, "origins": origins, "numbers": numbers}
        each = [held_out_errors(arrays, values, mask & ~hidden, hidden, smooth, **tried) for hidden in gaps]
        count = sum(np.count_nonzero(hidden) for hidden in gaps)
        errors = {
            one: sum(own[one] * np.count_nonzero(hidden) for own, hidden in zip(each, gaps)) / count for one in each[0]
        }
        origin, number = min(errors, key=lambda one: errors[one])
        choice = Choice(
            "ranks of the unfoldings",
            f"up to {ceil((number - 1) * RANK_SHARE_PER_ITERATION * 100)} % of their smaller side, origin: {origin}",
            f"lowest mean absolute error on {count:,} entries hidden in {'a pseudo-gap' if len(gaps) == 1 else 'gaps'}",
            tuple({"origin": at, "iterations": n, "error": error} for (at, n), error in errors.items()),
            code="ranks_by_pseudo_gap",
            values={"origin": origin, "iterations": number, "error": errors[origin, number]},
        )
        return PreparedUnfoldings(kinds, origin, number, smooth, (choice,))
