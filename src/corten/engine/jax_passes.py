"""Passes over a mask or over data on JAX devices: what `MaskPass` and `ResidualPass` are for threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from corten.engine.arithmetic import PRODUCT
from corten.engine.jax_formulas import Formula
from corten.engine.jax_parts import Part, fits, gathered, has_fused_kernel, parts_of, vector_of
from corten.engine.jax_slab import Packing, eta_of_slab, likelihood_pass, residual_pass_of, soft_values, weight_sums
from corten.engine.passes import FrameLike, Model, SoftSpins, check_spins, flattened, pack, size_of, unpack, whole

FUSE_AFTER = 300_000_000_000  # entries passed over by array operations before the fused kernel is compiled
MAX_FUSED_RANK = 5  # beyond it a tile's factors no longer fit into registers


@dataclass(frozen=True)
class DeviceSoftSpins:
    """Expected spins (int8, in 1/127) where they were computed, and the cores they were computed from."""

    own: tuple[Any, ...] = field(repr=False)
    held: tuple[Any, ...] = field(repr=False)
    cores: tuple[np.ndarray, np.ndarray, np.ndarray] = field(repr=False)

    @property
    def values(self) -> np.ndarray:
        """The expected spins as one array on the host."""
        return np.concatenate([np.asarray(part) for part in self.own])


class DeviceMaskPass:
    """Passes over one mask of spins, as `MaskPass`, on JAX devices."""

    def __init__(
        self, spins: np.ndarray, model: Model, train_share: float, devices: tuple[Any, ...], fused: bool | None = None
    ) -> None:
        check_spins(spins, train_share)
        self.spins, self.model, self.train_share, self.passes = spins, model, float(train_share), 0
        terms = np.asarray(model.terms, np.float64).reshape(-1, 3)
        offsets = (
            np.asarray(model.offsets).reshape(-1, spins.ndim) if model.coupling_kind else np.zeros((0, spins.ndim))
        )
        self._terms = terms[:, 0] if len(terms) else np.zeros(1)
        self.formula = Formula(
            model.coupling_kind, tuple((int(a), int(b)) for _, a, b in terms), model.link_kind,
            tuple(tuple(int(step) for step in o) for o in offsets), tuple(bool(p) for p in model.periodic),
            self.train_share == 1.0,
        )  # fmt: skip
        self.cut, self.parts = parts_of(spins.shape, devices, 2 * self.formula.radius, bool(model.periodic[0]))
        if devices[0].platform == "gpu":
            self._compile_ahead()
        self._spins = [p.place(np.asarray(spins[p.start : p.stop]), lambda i: np.asarray(spins[i])) for p in self.parts]
        self._uploaded: tuple[SoftSpins, DeviceSoftSpins] | None = None
        self._constant: float | None = None
        self._tiles: list[Any] | None = None
        wanted = fused is not False and fits(self.formula, spins.shape) and model.shift == 0.0
        self._can_fuse = wanted and all(has_fused_kernel(p.device) for p in self.parts)
        self._fuse_after = 0 if fused else FUSE_AFTER // max(1, spins.size)

    def loss_and_contractions(
        self, frame: FrameLike, soft: SoftSpins | DeviceSoftSpins | None = None
    ) -> tuple[float, list[np.ndarray]]:
        """The pseudo-likelihood loss (eq. low-rank-MPLE) and its gradient contracted with the frame. One pass."""
        self.passes += 1
        held = self._held(soft)
        cores, right = flattened(frame.left), flattened(frame.right)
        if held is None and self._can_fuse and self.passes > self._fuse_after and cores[1].shape[0] <= MAX_FUSED_RANK:
            total, sums = self._fused(cores, right)
            return total + self._observed_constant(), unpack(sums, frame)
        found = []
        for k, part in enumerate(self.parts):
            vector, packing = self._vector(part, cores, right, held.cores if held is not None else None)
            tau = held.held[k] if held is not None else None
            found.append(likelihood_pass(self._spins[k], tau, vector, **self._static(packing)))
        total, sums = gathered(found, [self.cut.slabs] * len(found), [self.cut.planes] * len(found), self.parts, cores)
        return total + self._observed_constant(), unpack(sums, frame)

    def log_odds(self, cores: Sequence[np.ndarray]) -> np.ndarray:
        """eta of every entry as one float32 array, with neighbours read from these spins."""
        return whole(self.spins.shape, self.log_odds_slabs(cores))

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """eta slab by slab: (start, stop, planes start:stop). One pass; the next slab is computed while one is read."""
        self.passes += 1
        packed = flattened(cores)
        ahead: tuple[int, int, Any] | None = None
        for k, part in enumerate(self.parts):
            vector, packing = self._vector(part, packed)
            for at in range(0, part.stop - part.start, self.cut.height):
                eta = eta_of_slab(self._spins[k], vector, np.int32(at), **self._static(packing))
                now = part.start + at, min(part.start + at + self.cut.height, part.stop), eta
                if ahead is not None:
                    yield _read(ahead)
                ahead = now
        if ahead is not None:
            yield _read(ahead)

    def soft_spins(self, frame: FrameLike) -> DeviceSoftSpins:
        """Expected spins of entries not in training, as `MaskPass.soft_spins`; they stay on the devices."""
        self.passes += 1
        cores = pack(frame.left)
        own = []
        for k, part in enumerate(self.parts):
            vector, packing = self._vector(part, cores)
            values = soft_values(self._spins[k], vector, **self._static(packing))
            own.append(values[: part.stop - part.start])
        return self._with_halo(own, cores)

    def effective_size(self, cores: Sequence[np.ndarray]) -> float:
        """Effective sample size of the weights exp(-eta) on the training entries, without moving eta. One pass."""
        self.passes += 1
        packed, found = flattened(cores), []
        for k, part in enumerate(self.parts):
            vector, packing = self._vector(part, packed)
            found.append(weight_sums(self._spins[k], vector, **self._static(packing)))
        return size_of(row for sums in found for row in zip(*map(np.asarray, sums)))

    def _compile_ahead(self) -> None:
        """Begin to compile what a fit of a usual rank runs: the mask takes seconds to arrive, and so do programs."""
        shape = self.spins.shape
        cores = np.zeros((shape[0], 1)), np.zeros((1, prod(shape[1:-1]), 1)), np.zeros((1, shape[-1]))
        thins = self.train_share < 1 and self.model.coupling_kind == PRODUCT
        for part in self.parts:
            held = jax.ShapeDtypeStruct(
                (len(part.index), *shape[1:]), np.int8, sharding=SingleDeviceSharding(part.device)
            )
            vector, packing = self._vector(part, cores, cores)
            likelihood_pass.ahead(held, None, vector, **self._static(packing))
            if thins:
                vector, packing = self._vector(part, cores, cores, cores)
                likelihood_pass.ahead(held, held, vector, **self._static(packing))
                vector, packing = self._vector(part, cores)
                for run in (soft_values, weight_sums):
                    run.ahead(held, vector, **self._static(packing))

    def _fused(self, cores: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> tuple[float, list[np.ndarray]]:
        """The same by the fused kernel, whose copy of the spins is laid out tile by tile at the first pass."""
        from corten.engine.jax_fused import fused_pass
        from corten.engine.jax_tiles import Tiling, tiled

        shape, periodic = self.spins.shape, self.formula.periodic
        tilings = [Tiling(p.stop - p.start, shape[1], shape[2], periodic) for p in self.parts]
        if self._tiles is None:
            self._tiles = [tiled(x, tiling) for x, tiling in zip(self._spins, tilings)]
        found = []
        for part, tiling, tiles in zip(self.parts, tilings, self._tiles):
            vector, packing = self._vector(part, cores, right, padded=False)
            found.append(fused_pass(*tiles, vector, self.formula, tiling, packing, cores[1].shape[0]))
        counts, planes = [t.count for t in tilings], [t.planes for t in tilings]
        return gathered(found, counts, planes, self.parts, cores, padded=False)

    def _vector(
        self, part: Part, cores: Sequence[np.ndarray], right: Any = None, base: Any = None, padded: bool = True
    ) -> tuple[np.ndarray, Packing]:
        """Everything small a program reads, as one vector, and where in it things stand."""
        numbers = {
            "terms": self._terms,
            "share": np.array([self.train_share]),
            "shift": np.array([self.model.shift]),
            "count": np.array([part.stop - part.start]),
        }
        return vector_of(part, cores, right, base, numbers, padded)

    def _static(self, packing: Any) -> dict[str, Any]:
        return {"formula": self.formula, "cut": self.cut, "packing": packing}

    def _held(self, soft: SoftSpins | DeviceSoftSpins | None) -> DeviceSoftSpins | None:
        if soft is None or isinstance(soft, DeviceSoftSpins):
            return soft
        if self._uploaded is None or self._uploaded[0] is not soft:
            self._uploaded = soft, self._with_halo([soft.values[p.start : p.stop] for p in self.parts], soft.cores)
        return self._uploaded[1]

    def _with_halo(self, own: list[Any], cores: tuple[np.ndarray, np.ndarray, np.ndarray]) -> DeviceSoftSpins:
        def plane(i: int) -> np.ndarray:
            k = next(k for k, part in enumerate(self.parts) if part.start <= i < part.stop)
            return np.asarray(own[k][i - self.parts[k].start])

        return DeviceSoftSpins(tuple(own), tuple(p.place(x, plane) for p, x in zip(self.parts, own)), cores)

    def _observed_constant(self) -> float:
        """-log q for every training term: constant in the parameter, kept so that the loss is the paper's."""
        if self.train_share == 1.0:
            return 0.0
        if self._constant is None:
            count = 0
            for part, spins in zip(self.parts, self._spins):
                mine = spins[part.halo : part.halo + part.stop - part.start] == 1
                count += int(np.asarray(jnp.sum(mine, axis=tuple(range(1, mine.ndim))), np.int64).sum())
            self._constant = -count * float(np.log(self.train_share))
        return self._constant


def _read(slab: tuple[int, int, Any]) -> tuple[int, int, np.ndarray]:
    start, stop, eta = slab
    return start, stop, np.asarray(eta)[: stop - start]


class DeviceResidualPass:
    """Passes over `values` (float or int8) where `mask` (bool or int8) is not zero, as `ResidualPass`."""

    def __init__(self, values: np.ndarray, mask: np.ndarray, devices: tuple[Any, ...]) -> None:
        self.values, self.mask, self.shape, self.passes = values, mask, values.shape, 0
        self.cut, self.parts = parts_of(values.shape, devices, 0, False)
        kind = values.dtype if values.dtype == np.int8 else np.float32

        def place(part: Part, array: np.ndarray, dtype: Any) -> Any:
            return part.place(np.asarray(array[part.start : part.stop], dtype), lambda i: np.asarray(array[i], dtype))

        self._values = [place(part, values, kind) for part in self.parts]
        self._mask = self._values if mask is values else [place(part, mask, mask.dtype) for part in self.parts]

    def loss_and_contractions(self, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        """Half the squared error on the observed entries and the contractions of its gradient. One pass."""
        loss, contractions = self._run(frame, True)
        return loss, [-c for c in contractions]

    def contractions_of_data(self, frame: FrameLike) -> tuple[float, list[np.ndarray]]:
        """Half the data's sum of squares and their contractions with a frame, missing entries as zero. One pass."""
        return self._run(frame, False)

    def _run(self, frame: FrameLike, subtract: bool) -> tuple[float, list[np.ndarray]]:
        self.passes += 1
        cores, right = flattened(frame.left), flattened(frame.right)
        found = []
        for k, part in enumerate(self.parts):
            vector, packing = vector_of(part, cores, right)
            found.append(
                residual_pass_of(
                    self._values[k], self._mask[k], vector, cut=self.cut, packing=packing, subtract=subtract
                )
            )
        total, sums = gathered(found, [self.cut.slabs] * len(found), [self.cut.planes] * len(found), self.parts, cores)
        return total, unpack(sums, frame)
