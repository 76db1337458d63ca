"""Low-rank completion by the truncated nuclear norm of all unfoldings, with ranks that rise from one.

The problem is that of Chen, Yang and Sun (2020, LRTC-TNN): the sum over the unfoldings of the singular values beyond
the leading ones is minimised by the alternating direction method of multipliers, with the observed entries kept.
Singular values beyond the rank are reduced by a threshold, the leading ones are not.

Here the rank of every unfolding begins at one and rises while the threshold falls. With the full rank from the
beginning, a leading component that the data do not need keeps the start values of the largest gap in every iteration.
The estimate there is wrong, and pseudo-gaps, which that component does not fill, do not show it. With rank one the
start is forgotten, and each later component is added to what the observed entries have determined. How far the ranks
rise is chosen on a pseudo-gap: one run shows the errors of all numbers of iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

import numpy as np

from corten.completion.axes_kinds import Standardised, along, axis_kinds, pseudo_gap, standardise
from corten.completion.protocol import Fill
from corten.data.axes import Axis
from corten.data.choices import Choice

__all__ = ["PreparedUnfoldings", "UnfoldingCompletion"]

ITERATIONS = (15, 30, 45, 60, 75, 90)  # the candidates
ORIGINS = ("mean", "lowest")
RANK_SHARE_PER_ITERATION = 0.4 / 90  # of the smaller side of an unfolding
FIRST_THRESHOLD = 0.5  # in norms of the observed values
THRESHOLD_DECREASE = 1.066  # factor in every iteration
HIDDEN_SHARE = 1 / 3  # of the observed entries at most, to compare settings
MAX_DENSE_SIZE = 512  # smaller sides up to this have a full eigendecomposition
MAX_COMPONENTS = 128  # of larger ones, followed from iteration to iteration


@dataclass
class _Unfolding:
    """One unfolding of a tensor; `basis` follows its leading singular vectors if its smaller side is long."""

    axis: int
    rows: bool  # whether the axis is the smaller side
    size: int  # of the smaller side
    basis: np.ndarray | None = None

    def threshold(self, array: np.ndarray, tau: float, rank: int) -> np.ndarray:
        """The array with the singular values beyond `rank` of the unfolding reduced by `tau`."""
        k = self.axis
        matrix = array if self.rows else np.moveaxis(array, k, 0).reshape(array.shape[k], -1)
        squares, vectors = self._leading(matrix)
        values = np.sqrt(np.maximum(squares, 0))
        kept = np.divide(np.maximum(values - tau, 0), values, out=np.zeros_like(values), where=values > 0)
        kept[:rank] = 1
        vectors = vectors[:, kept > 0]
        projection = ((vectors * kept[kept > 0]) @ vectors.T).astype(array.dtype)
        if self.rows:
            return along(projection, array, k)
        rest = [n for j, n in enumerate(array.shape) if j != k]
        return np.moveaxis((matrix @ projection).reshape(array.shape[k], *rest), 0, k)

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
    known: np.ndarray, mask: np.ndarray, iterations: int, visit: Callable[[int, np.ndarray], None] | None = None
) -> np.ndarray:
    """The estimate of every entry after `iterations`; `visit` sees the number and the estimate of each candidate.

    `known` has standard deviation one where `mask` is True.
    """
    known = np.where(mask, known, 0).astype(np.float32)
    norm = float(np.linalg.norm(known))
    parts = _unfoldings(mask.shape)
    filled = np.where(mask, known, np.float32(known.sum(dtype=np.float64) / max(np.count_nonzero(mask), 1)))
    multipliers = [np.zeros_like(filled) for _ in parts]  # divided by the penalty parameter
    tau = FIRST_THRESHOLD * norm
    estimate = filled
    for number in range(1, iterations + 1):
        shown = number == iterations or (visit is not None and number in ITERATIONS)
        estimate = np.zeros_like(filled)
        total = np.zeros_like(filled)
        for part, multiplier in zip(parts, multipliers):
            rank = max(1, ceil((number - 1) * RANK_SHARE_PER_ITERATION * part.size - 1e-9))
            low = part.threshold(filled - multiplier, tau, rank)
            if shown:
                estimate += low
            multiplier += low
            total += multiplier
        filled = np.where(mask, known, total / np.float32(len(parts)))
        for multiplier in multipliers:
            multiplier -= filled
            multiplier /= np.float32(THRESHOLD_DECREASE)
        tau /= THRESHOLD_DECREASE
        if shown:
            estimate /= np.float32(len(parts))
            if visit is not None:
                visit(number, estimate)
    return estimate


def _centred(values: np.ndarray, mask: np.ndarray, kinds: Sequence[str], origin: str) -> Standardised:
    """The observed values relative to the origin, with standard deviation one."""
    if origin == "mean":
        return standardise(values, mask, kinds)
    one = standardise(values, mask, ("ordered",) * mask.ndim)
    lowest = float(one.values[mask].min()) if mask.any() else 0.0
    return Standardised(np.where(mask, one.values - lowest, 0), one.centre + lowest * one.scale, one.scale)


def _errors(
    values: np.ndarray,
    known: np.ndarray,
    hidden: np.ndarray,
    *,
    kinds: Sequence[str],
    origin: str,
    numbers: Sequence[int],
) -> dict[int, float]:
    """The mean absolute error at the hidden entries after each of the numbers of iterations, all in one run."""
    data = _centred(values, known, kinds, origin)
    scale, centre = (np.broadcast_to(part, hidden.shape)[hidden] for part in (data.scale, data.centre))
    truth, errors = values[hidden], {}

    def visit(number: int, estimate: np.ndarray) -> None:
        if number in numbers:
            errors[number] = float(np.abs(estimate[hidden] * scale + centre - truth).mean())

    minimise(data.values, known, max(numbers), visit)
    return errors


@dataclass(frozen=True)
class PreparedUnfoldings:
    """The completion with its origin and number of iterations."""

    kinds: tuple[str, ...]
    origin: str
    iterations: int
    choices: tuple[Choice, ...] = field(default=(), repr=False)

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill from the entries where `mask` is True."""
        data = _centred(values, mask, self.kinds, self.origin)
        return Fill(data.undo(minimise(data.values, mask, self.iterations).astype(np.float64)))


@dataclass(frozen=True)
class UnfoldingCompletion:
    """Fill with the tensor whose unfoldings all have small singular values beyond the leading ones.

    Parameters
    ----------
    origin : {"auto", "mean", "lowest"}
        What is subtracted first: the mean of every position of the unordered axes, or the lowest observed value, which
        suits counts and concentrations (positions are then multiples of each other). Default "auto": the smaller error
        in a pseudo-gap.
    iterations : int or "auto"
        The number of iterations: more allow higher ranks. Default "auto": 15 to 90 by the error in a pseudo-gap.

    Notes
    -----
    Chen, Yang and Sun (2020), A nonconvex low-rank tensor completion model for spatiotemporal traffic data imputation,
    Transportation Research Part C 117, 102673, with ranks that rise from one.
    """

    origin: str = "auto"
    iterations: int | str = "auto"

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedUnfoldings:
        """Choose what is "auto" on entries in `mask` that a moved copy of the gaps hides."""
        kinds = axis_kinds(axes, mask.shape)
        origins = ORIGINS if self.origin == "auto" else (self.origin,)
        numbers = ITERATIONS if self.iterations == "auto" else (int(self.iterations),)
        hidden = pseudo_gap(mask, kinds, np.random.default_rng((seed, 0x7A)), HIDDEN_SHARE)
        known = mask & ~hidden
        if len(origins) * len(numbers) == 1 or not hidden.any() or not known.any():
            return PreparedUnfoldings(kinds, origins[0], numbers[len(numbers) // 2])
        errors = {
            (origin, number): error
            for origin in origins
            for number, error in _errors(values, known, hidden, kinds=kinds, origin=origin, numbers=numbers).items()
        }
        origin, number = min(errors, key=lambda one: errors[one])
        choice = Choice(
            "ranks of the unfoldings",
            f"up to {ceil((number - 1) * RANK_SHARE_PER_ITERATION * 100)} % of their smaller side, origin: {origin}",
            f"lowest mean absolute error on {np.count_nonzero(hidden):,} entries hidden in a pseudo-gap",
            tuple({"origin": at, "iterations": n, "error": error} for (at, n), error in errors.items()),
            code="ranks_by_pseudo_gap",
            values={"origin": origin, "iterations": number, "error": errors[origin, number]},
        )
        return replace(PreparedUnfoldings(kinds, origin, number), choices=(choice,))
