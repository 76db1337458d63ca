"""Tucker completion by expectation-maximisation: fill, truncate to low multilinear rank, fill again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse.linalg

from corten.completion.axes_kinds import along, axis_kinds, standardise
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion
from corten.data.choices import Choice

__all__ = ["EMTuckerCompletion", "PreparedEMTucker"]

CANDIDATES = (2, 4, 8, 16)
SETTLED = 1e-3
"""The iterations end when the missing entries change by less than this share of the field's standard deviation."""
DENSE_LIMIT = 512
"""Up to this size all eigenvalues of a Gram matrix cost less than the leading ones by Lanczos iterations."""


def shrink(array: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    """The leading directions of every axis, each shrunk by the share of it that noise explains.

    A sequentially truncated HOSVD, shortest axis first, so that no Gram matrix is as large as the longest axis. Along
    each axis the singular value s becomes s (1 - (s_next / s)^2), with s_next the first one left out. A component that
    holds only noise, or only the start of a gap, is as weak as those left out and vanishes. Without shrinking it
    returns unchanged in every iteration, and the largest gap keeps its start.
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
    if small.shape[0] <= DENSE_LIMIT:
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
    """The completion with its multilinear ranks chosen."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    iterations: int
    pyramid: PreparedSmooth = field(repr=False)
    choices: tuple[Choice, ...] = ()

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        return self.fill_from(values, mask, self.pyramid.fill(values, mask).estimate)

    def fill_from(self, values: np.ndarray, mask: np.ndarray, start: np.ndarray) -> Fill:
        """Fill, with the iterations started from another estimate made of the same entries."""
        data = standardise(values, mask, self.kinds)
        known = data.values.astype(np.float32)
        estimate = ((start - data.centre) / data.scale).astype(np.float32)
        for _ in range(self.iterations):
            before, estimate = estimate, shrink(np.where(mask, known, estimate), self.ranks)
            if float(np.sum((estimate - before)[~mask] ** 2)) <= SETTLED**2 * np.count_nonzero(~mask):
                break
        return Fill(data.undo(estimate.astype(np.float64)))


@dataclass(frozen=True)
class EMTuckerCompletion:
    """Fill by a low multilinear rank, by iterations that start from another estimate.

    `rank` is the largest rank along any axis; "auto" takes the one that best predicts a tenth of the entries, among
    2, 4, 8 and 16 up to half the longest axis. `iterations` is the largest number of iterations; they end earlier when
    the missing entries no longer change.
    """

    rank: int | str = "auto"
    iterations: int = 100

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> PreparedEMTucker:
        kinds = axis_kinds(axes, mask.shape)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        # Beyond half the longest axis little is left out, and the start would be kept almost whole.
        ranks = [rank for rank in CANDIDATES if 2 * rank <= max(mask.shape)] or [1]
        tried = {
            rank: PreparedEMTucker(kinds, tuple(min(rank, n) for n in mask.shape), self.iterations, pyramid)
            for rank in (ranks if self.rank == "auto" else (int(self.rank),))
        }
        if len(tried) == 1:
            return next(iter(tried.values()))
        hidden = mask & (np.random.default_rng((seed, 0xE3)).random(mask.shape) < 0.1)
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
            "smallest error on a random tenth of the entries",
            tuple({"rank": rank, "error": error} for rank, error in errors.items()),
        )
        return replace(tried[best], choices=(choice,))
