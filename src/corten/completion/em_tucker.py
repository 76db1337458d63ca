"""Tucker completion by expectation-maximisation: fill, truncate to low multilinear rank, fill again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse.linalg

from corten.completion.axes_kinds import along, axis_kinds, standardise
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.data.axes import Axis
from corten.data.choices import Choice

__all__ = ["EMTuckerCompletion", "PreparedEMTucker"]

CANDIDATE_RANKS = (2, 4, 8, 16)
HELD_OUT_SHARE = 0.1  # of the entries, to compare ranks
TOLERANCE = 1e-3  # root mean square change of the missing entries, in standard deviations, that ends the iterations
MAX_DENSE_SIZE = 512  # up to this size all eigenvalues of a Gram matrix cost less than the leading ones by Lanczos


def shrink(array: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    """The array projected on the leading directions of every axis, with shrunk singular values.

    A sequentially truncated HOSVD, shortest axis first, so that no Gram matrix is as large as the longest axis. Along
    each axis the singular value s becomes s (1 - (s_next / s)^2), with s_next the first one left out. A component of
    noise only, or of the start values in a gap only, is as small as those left out and vanishes. Without shrinkage it
    would remain in every iteration, and the largest gap would keep its start values.
    """
    core = array
    bases: dict[int, np.ndarray] = {}
    for k in sorted(range(array.ndim), key=lambda axis: array.shape[axis]):
        if ranks[k] >= core.shape[k]:
            continue
        unfolded = np.moveaxis(core, k, 0).reshape(core.shape[k], -1)
        squares, vectors = _leading(unfolded, ranks[k] + 1)
        next_square = squares[ranks[k]] if len(squares) > ranks[k] else 0.0
        squares, vectors = squares[: ranks[k]], vectors[:, : ranks[k]]
        kept = np.divide(squares - next_square, squares, out=np.zeros_like(squares), where=squares > 0)
        bases[k] = vectors.astype(array.dtype)
        core = along((kept[:, None] * vectors.T).astype(array.dtype), core, k)
    for k, basis in bases.items():
        core = along(basis, core, k)
    return core


def _leading(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest squared singular values, descending, and their left singular vectors, by the smaller Gram matrix."""
    wide = matrix.shape[0] <= matrix.shape[1]
    small = matrix if wide else matrix.T
    count = min(count, small.shape[0])
    if small.shape[0] <= MAX_DENSE_SIZE:
        squares, vectors = np.linalg.eigh((small @ small.T).astype(np.float64))
    else:
        vectors, values, _ = scipy.sparse.linalg.svds(small, k=count, v0=np.ones(small.shape[0], small.dtype))
        squares = values.astype(np.float64) ** 2
    order = np.argsort(squares)[::-1][:count]
    squares, vectors = np.maximum(squares[order], 0), vectors[:, order]
    if wide:
        return squares, vectors
    with np.errstate(divide="ignore"):
        inverse = np.where(squares > 1e-12 * squares.max(initial=0), 1 / np.sqrt(squares), 0.0)
    return squares, (matrix @ vectors) * inverse


@dataclass(frozen=True)
class PreparedEMTucker:
    """The completion with its multilinear ranks."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    iterations: int
    pyramid: PreparedSmooth = field(repr=False)
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        """Fill, starting from the kernel pyramid."""
        return self.fill_from(values, mask, self.pyramid.fill(values, mask).estimate)

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, starting from another estimate computed from the same entries."""
        data = standardise(values, mask, self.kinds)
        known = data.values.astype(np.float32)
        estimate = ((start - data.centre) / data.scale).astype(np.float32)
        for _ in range(self.iterations):
            before, estimate = estimate, shrink(np.where(mask, known, estimate), self.ranks)
            if float(np.sum((estimate - before)[~mask] ** 2)) <= TOLERANCE**2 * np.count_nonzero(~mask):
                break
        return Fill(data.undo(estimate.astype(np.float64)))


@dataclass(frozen=True)
class EMTuckerCompletion:
    """Fill with low multilinear rank by expectation-maximisation.

    Parameters
    ----------
    rank : int or "auto"
        The largest rank along any axis. Default "auto": 2, 4, 8 or 16, up to half the longest axis, with the smallest
        error on a held-out tenth of the entries.
    iterations : int, default 100
        The largest number of iterations; they end earlier when the missing entries no longer change.
    """

    rank: int | str = "auto"
    iterations: int = 100

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> PreparedEMTucker:
        """Choose the rank, if it is "auto", from the entries in `mask`."""
        kinds = axis_kinds(axes, mask.shape)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        # With more than half the longest axis little is left out, and the start would hardly change.
        ranks = [rank for rank in CANDIDATE_RANKS if 2 * rank <= max(mask.shape)] or [1]
        tried = {
            rank: PreparedEMTucker(kinds, tuple(min(rank, n) for n in mask.shape), self.iterations, pyramid)
            for rank in (ranks if self.rank == "auto" else (int(self.rank),))
        }
        if len(tried) == 1:
            return next(iter(tried.values()))
        hidden = mask & (np.random.default_rng((seed, 0xE3)).random(mask.shape) < HELD_OUT_SHARE)
        if not hidden.any() or not (mask & ~hidden).any():
            return tried[min(tried)]
        start = pyramid.fill(values, mask & ~hidden).estimate
        errors = {
            rank: float(np.abs(one.fill_from(values, mask & ~hidden, start).estimate - values)[hidden].mean())
            for rank, one in tried.items()
        }
        best = min(errors, key=lambda rank: errors[rank])
        choice = Choice(
            "Tucker rank by EM",
            str(best),
            "smallest mean absolute error on a held-out random tenth of the entries",
            tuple({"rank": rank, "error": error} for rank, error in errors.items()),
            code="rank_by_held_out_error",
            values={"rank": best, "error": errors[best]},
        )
        return replace(tried[best], choices=(choice,))
