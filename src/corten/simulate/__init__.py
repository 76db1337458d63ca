"""Simulated tensors, noise and masks with a known truth, to test a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from corten.data.arrays import Flags, Floats
from corten.simulate import fields, masks
from corten.simulate.fields import TecLike, block_parameter, noise, tec_like, tucker_signal
from corten.simulate.gibbs import bernoulli, ising
from corten.simulate.sea import sea_like

__all__ = [
    "PaperSetting", "TecLike", "bernoulli", "block_parameter", "ising", "masks", "noise", "paper_setting", "sea_like",
    "tec_like", "tucker_signal",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class PaperSetting:
    """One draw of the paper's simulation: parameter, mask, signal and data; `observed` is the input of a method."""

    parameter: Floats
    mask: Flags
    truth_signal: Floats
    data: Floats

    @property
    def observed(self) -> Floats:
        """The data with NaN where the mask says missing."""
        return np.where(self.mask, self.data, np.nan)


def paper_setting(
    d: int | tuple[int, ...],
    rank: int,
    model: Literal["bernoulli", "ising"] = "ising",
    noise: Literal["constant", "adversarial"] = "adversarial",
    seed: int = 0,
    sweeps: int = 200,
) -> PaperSetting:
    """Draw a setting of the paper's simulation, of shape d or d x d x d: block rank `rank`, signal of rank 3.

    Examples
    --------
    >>> paper_setting(12, rank=3, model="bernoulli").observed.shape
    (12, 12, 12)
    """
    if model not in ("bernoulli", "ising"):
        raise ValueError(f'model is {model!r}; give "bernoulli" or "ising".')
    shape = (d, d, d) if isinstance(d, int) else d
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(4)]
    parameter = block_parameter(shape, rank, seeds[0])
    signal = tucker_signal(shape, min(3, *shape), seeds[1])
    data = signal + fields.noise(parameter, noise, signal, seed=seeds[2])
    if model == "ising":
        mask = ising(parameter, sweeps=sweeps, seed=seeds[3])
    else:
        mask = bernoulli(parameter, seed=seeds[3])
    return PaperSetting(parameter, mask, signal, data)
