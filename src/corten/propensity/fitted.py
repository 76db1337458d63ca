"""A fitted missingness model: the odds of every entry, and who pulls on whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from corten.data.choices import Choice
from corten.engine import Engine, MaskPass, Model, as_engine
from corten.engine.lazy import behind, is_lazy, lazy_spins, takes_lazy
from corten.engine.memory import byte_tensor, let_go, parts
from corten.lowrank import TensorTrain
from corten.propensity.coupling import Coupling
from corten.propensity.link import Link
from corten.propensity.neighborhood import Neighborhood

__all__ = ["FittedPropensity", "spins_of"]


@dataclass(frozen=True)
class FittedPropensity:
    """The law of the missingness: log-odds eta_i = 2 sum_j g(B_i, B_j) W_j + 2 h(B_i) that entry i is observed.

    parameter: B, a `TensorTrain` (a plain array if it was given, not fitted); loss: the pseudo-likelihood
    loss of the training mask;
    passes: passes over the mask it took; stopped_because: why the descent ended.
    """

    parameter: TensorTrain | np.ndarray
    coupling: Coupling
    link: Link
    neighborhood: Neighborhood
    domain: np.ndarray | None = None
    train_share: float = 1.0
    loss: float = float("nan")
    passes: int = 0
    stopped_because: str = ""
    history: tuple[float, ...] = ()
    choices: tuple[Choice, ...] = ()
    engine: Any = field(default="auto", repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)

    @property
    def rank(self) -> tuple[int, ...] | None:
        """Tensor-train ranks of the parameter; None if it is a plain array."""
        return self.parameter.rank if isinstance(self.parameter, TensorTrain) else None

    @property
    def independent(self) -> bool:
        """Whether entries go missing independently of their neighbours."""
        return self.coupling.code().kind == 0 or len(self.neighborhood.offsets) == 0

    @cached_property
    def model(self) -> Model:
        """The model as passes see it."""
        code = self.coupling.code()
        around = self.neighborhood
        return Model(code.kind, code.terms, self.link.kind, around.offsets, around.periodic, self.link.shift())

    def log_odds(self, mask: np.ndarray) -> np.ndarray:
        """eta of every entry given the other entries of `mask` (True = observed), float32."""
        engine: Engine = as_engine(self.engine)
        spins = spins_of(mask, self.domain, isinstance(self.parameter, TensorTrain) and takes_lazy(engine))
        if spins.shape != self.shape:
            raise ValueError(f"mask has shape {spins.shape}; the model was fitted to {self.shape}")
        if isinstance(self.parameter, TensorTrain):
            passes: MaskPass = engine.mask_pass(spins, self.model, 1.0)
            return passes.log_odds(self.parameter.cores)
        return _dense_log_odds(self.parameter, spins, self.neighborhood, self.coupling, self.link)

    def log_weights(self, mask: np.ndarray) -> np.ndarray:
        """Log-odds of being missing, -eta: the conformal weights, with neighbours read from the full mask."""
        return -self.log_odds(mask)

    def probability(self, mask: np.ndarray) -> np.ndarray:
        """Full conditional probability of every entry being observed, given all others."""
        eta = self.log_odds(mask)
        small = np.exp(-np.abs(eta))
        return np.where(eta >= 0, 1.0, small) / (1.0 + small)

    def pair(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """g(B_a, B_b) for flat indices a and b."""
        return np.asarray(self.coupling.value(self._at(a), self._at(b)))

    def neighbours(self, flat: np.ndarray) -> np.ndarray:
        """Flat indices of the neighbours of flat indices, -1 where there is none."""
        return self.neighborhood.neighbours(flat, self.shape)

    def _at(self, flat: np.ndarray) -> np.ndarray:
        if isinstance(self.parameter, TensorTrain):
            return self.parameter.at_flat(flat)
        return self.parameter.reshape(-1)[flat]


def spins_of(mask: np.ndarray, domain: np.ndarray | None = None, lazy: bool = False) -> np.ndarray:
    """A boolean mask (True = observed) as int8 spins: +1, -1, and 0 outside the domain.

    Spins themselves (int8, possibly a memory map) pass through uncopied where there is no domain to apply. A Zarr or
    HDF5 array is read plane by plane, in memory where it fits and else to a file; so is a Dask array, unless `lazy`
    leaves it to those who hold its parts.
    """
    mask = behind(mask)
    if lazy and is_lazy(mask):
        return lazy_spins(mask, domain)  # type: ignore[no-any-return]
    if not isinstance(mask, np.ndarray):
        mask = _from_store(mask) if hasattr(mask, "chunks") and hasattr(mask, "dtype") else np.asarray(mask)
    if mask.dtype == np.int8 and mask.ndim > 1:
        _check_codes(mask)
        if domain is None and mask.flags.c_contiguous:
            return mask
        observed = mask > 0
        domain = mask != 0 if domain is None else (mask != 0) & np.asarray(domain, bool)
        mask = observed
    if mask.dtype != bool:
        raise TypeError(f"mask must be boolean (True = observed) or int8 spins, got dtype {mask.dtype}")
    if mask.ndim < 2:
        raise ValueError(f"mask has {mask.ndim} mode(s); at least two are needed")
    spins = byte_tensor(mask.shape)
    for plane in range(mask.shape[0]):
        np.multiply(np.ascontiguousarray(mask[plane]).view(np.int8), np.int8(2), out=spins[plane])
        spins[plane] -= np.int8(1)
        if domain is not None:
            spins[plane][~np.asarray(domain[plane], bool)] = 0
        let_go(spins[plane])
    return spins


def _from_store(stored: Any) -> np.ndarray:
    """A chunked array on disk as bytes of the same meaning, without ever holding it whole in another type."""
    if stored.dtype not in (np.dtype(bool), np.dtype(np.int8)):
        raise TypeError(f"mask must be boolean (True = observed) or int8 spins, got dtype {stored.dtype}")
    out = byte_tensor(stored.shape)
    step = max(1, int(np.max(stored.chunks[0])) if stored.chunks else 1)
    for start in range(0, stored.shape[0], step):
        out[start : start + step] = stored[start : start + step]
        let_go(out[start : start + step])
    return out.view(bool) if stored.dtype == bool else out


def _check_codes(spins: np.ndarray) -> None:
    for _, _, part in parts(spins):
        low, high = int(np.min(part)), int(np.max(part))
        if low < -1 or high > 1:
            raise ValueError(f"mask holds {low if low < -1 else high}; spins are +1 observed, -1 missing, 0 outside")


def _dense_log_odds(
    parameter: np.ndarray, spins: np.ndarray, neighborhood: Neighborhood, coupling: Coupling, link: Link
) -> np.ndarray:
    """The same for a parameter given as an array (an oracle's): one shifted copy per offset."""
    b = np.asarray(parameter, np.float64)
    eta = 2 * np.asarray(link.value(b), np.float64)
    if coupling.code().kind == 0:
        return eta.astype(np.float32)
    for offset in neighborhood.offsets:
        near_b, near_w = b, np.sign(spins).astype(np.float64)
        for axis, shift in enumerate(offset):
            if shift == 0:
                continue
            near_b, near_w = np.roll(near_b, -shift, axis), np.roll(near_w, -shift, axis)
            if not neighborhood.periodic[axis]:
                edge = [slice(None)] * b.ndim
                edge[axis] = slice(-shift, None) if shift > 0 else slice(None, -shift)
                near_w[tuple(edge)] = 0.0
        eta += 2 * np.asarray(coupling.value(b, near_b)) * near_w
    return eta.astype(np.float32)
