"""Tucker completion by expectation-maximisation: fill, truncate to low multilinear rank, fill again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from corten.choices import Choice
from corten.completion.axes_kinds import along, axis_kinds, standardise
from corten.completion.protocol import Fill
from corten.completion.smooth import PreparedSmooth, SmoothCompletion

__all__ = ["EMTuckerCompletion", "PreparedEMTucker"]

CANDIDATES = (3, 6, 12)


def truncate(array: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    """Project onto the leading directions of every mode (sequentially truncated HOSVD)."""
    core = array
    bases: list[np.ndarray | None] = []
    for k, rank in enumerate(ranks):
        if rank >= core.shape[k]:
            bases.append(None)
            continue
        unfolded = np.moveaxis(core, k, 0).reshape(core.shape[k], -1)
        _, vectors = np.linalg.eigh((unfolded @ unfolded.T).astype(np.float64))
        basis = np.ascontiguousarray(vectors[:, ::-1][:, :rank].astype(array.dtype))
        bases.append(basis)
        core = along(basis.T, core, k)
    for k, factor in enumerate(bases):
        if factor is not None:
            core = along(factor, core, k)
    return core


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
            estimate = truncate(np.where(mask, known, estimate), self.ranks)
        return Fill(data.undo(estimate.astype(np.float64)))


@dataclass(frozen=True)
class EMTuckerCompletion:
    """Fill by a low multilinear rank near another estimate: unobserved fibres keep that start.

    `rank` is the largest rank along any mode; "auto" takes the one that best predicts a tenth of the entries.
    """

    rank: int | str = "auto"
    iterations: int = 10

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Any], seed: int) -> PreparedEMTucker:
        kinds = axis_kinds(axes, mask.shape)
        pyramid = SmoothCompletion().prepare(values, mask, axes, seed)
        tried = {
            rank: PreparedEMTucker(kinds, tuple(min(rank, n) for n in mask.shape), self.iterations, pyramid)
            for rank in (CANDIDATES if self.rank == "auto" else (int(self.rank),))
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
