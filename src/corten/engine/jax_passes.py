"""Passes over a mask or over data on JAX devices: what `MaskPass` and `ResidualPass` are for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from corten.engine.arithmetic import PRODUCT
from corten.engine.jax_slab import Formula
from corten.engine.jax_parts import Part, fits, gathered, has_fused_kernel, parts_of, vector_of
from corten.engine.jax_slab import Packing, eta_of_slab, likelihood_pass, residual_pass_of, soft_values, weight_sums
from corten.engine.passes import AnyMaskPass, FrameLike, Model, check_spins, flattened, pack, size_of, unpack
from corten.engine.residuals import AnyResidualPass

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


class DeviceMaskPass(AnyMaskPass):
    """Passes over one mask of spins, as `MaskPass`, on JAX devices."""

    def __init__(
        self, spins: np.ndarray, model: Model, train_share: float, devices: tuple[Any, ...], fused: bool | None = None
    ) -> None:
        check_spins(spins, train_share)
        self.spins, self.model, self.train_share, self.passes = spins, model, float(train_share), 0
        terms = np.asarray(model.terms, np.float64).reshape(-1, 3)
        offsets = model.offsets if model.coupling_kind else ()
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
        self._tiles: list[Any] | None = None
        wanted = fused is not False and fits(self.formula, spins.shape) and model.shift == 0.0
        self._can_fuse = wanted and all(has_fused_kernel(p.device) for p in self.parts)
        self._fuse_after = 0 if fused else FUSE_AFTER // max(1, spins.size)

    def loss_and_contractions(
        self, frame: FrameLike, soft: DeviceSoftSpins | None = None
    ) -> tuple[float, list[np.ndarray]]:
        """The pseudo-likelihood loss (eq. low-rank-MPLE) and its gradient contracted with the frame. One pass."""
        self.passes += 1
        cores, right = flattened(frame.left), flattened(frame.right)
        if soft is None and self._can_fuse and self.passes > self._fuse_after and cores[1].shape[0] <= MAX_FUSED_RANK:
            total, sums = self._fused(cores, right)
            return total + self._observed_constant(), unpack(sums, frame)
        found = []
        for k, part in enumerate(self.parts):
            tau, base = (soft.held[k], soft.cores) if soft is not None else (None, None)
            found.append(self._call(likelihood_pass, part, (self._spins[k], tau), cores, right, base))
        total, sums = gathered(found, [self.cut.slabs] * len(found), [self.cut.planes] * len(found), self.parts, cores)
        return total + self._observed_constant(), unpack(sums, frame)

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """eta slab by slab: (start, stop, planes start:stop). One pass; the next slab is computed while one is read."""
        self.passes += 1
        packed = flattened(cores)

        def slabs() -> Iterator[tuple[int, int, Any]]:
            for part, spins in zip(self.parts, self._spins):
                vector, packing = self._vector(part, packed)
                static = {"formula": self.formula, "cut": self.cut, "packing": packing}
                for at in range(0, part.stop - part.start, self.cut.height):
                    stop = min(part.start + at + self.cut.height, part.stop)
                    yield part.start + at, stop, eta_of_slab(spins, vector, np.int32(at), **static)

        for (start, stop, eta), _ in pairwise(chain(slabs(), [(0, 0, None)])):
            yield start, stop, np.asarray(eta)[: stop - start]

    def soft_spins(self, frame: FrameLike) -> DeviceSoftSpins:
        """Expected spins of entries not in training, as `MaskPass.soft_spins`; they stay on the devices."""
        self.passes += 1
        cores = pack(frame.left)
        own = []
        for part, spins in zip(self.parts, self._spins):
            own.append(self._call(soft_values, part, (spins,), cores)[: part.stop - part.start])

        def plane(i: int) -> np.ndarray:
            k = next(k for k, part in enumerate(self.parts) if part.start <= i < part.stop)
            return np.asarray(own[k][i - self.parts[k].start])

        return DeviceSoftSpins(tuple(own), tuple(p.place(x, plane) for p, x in zip(self.parts, own)), cores)

    def effective_size(self, cores: Sequence[np.ndarray]) -> float:
        """Effective sample size of the weights exp(-eta) on the training entries, without moving eta. One pass."""
        self.passes += 1
        packed = flattened(cores)
        found = [self._call(weight_sums, part, (spins,), packed) for part, spins in zip(self.parts, self._spins)]
        return size_of(row for sums in found for row in zip(*map(np.asarray, sums)))

    def _compile_ahead(self) -> None:
        """Begin to compile what a fit of a usual rank runs: the mask takes seconds to arrive, and so do programs."""
        shape = self.spins.shape
        cores = np.zeros((shape[0], 1)), np.zeros((1, prod(shape[1:-1]), 1)), np.zeros((1, shape[-1]))
        thins = self.train_share < 1 and self.model.coupling_kind == PRODUCT
        for part in self.parts:
            place, held_shape = SingleDeviceSharding(part.device), (len(part.index), *shape[1:])
            held = jax.ShapeDtypeStruct(held_shape, np.int8, sharding=place)
            self._call(likelihood_pass.ahead, part, (held, None), cores, cores)
            if thins:
                self._call(likelihood_pass.ahead, part, (held, held), cores, cores, cores)
                self._call(soft_values.ahead, part, (held,), cores)
                self._call(weight_sums.ahead, part, (held,), cores)

    def _fused(self, cores: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> tuple[float, list[np.ndarray]]:
        """The same by the fused kernel, whose copy of the spins is laid out tile by tile at the first pass."""
        from corten.engine.jax_fused import Tiling, fused_pass, tiled

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
        """All small arrays that a program reads as one vector, and their places in it."""
        numbers = {
            "terms": self._terms,
            "share": np.array([self.train_share]),
            "shift": np.array([self.model.shift]),
            "count": np.array([part.stop - part.start]),
        }
        return vector_of(part, cores, right, base, numbers, padded)

    def _call(self, program: Callable, part: Part, arrays: tuple[Any, ...], *cores: Any) -> Any:
        """A program on arrays of one part and on cores: of the left gauge, the right gauge, and of soft spins."""
        vector, packing = self._vector(part, *cores)
        return program(*arrays, vector, formula=self.formula, cut=self.cut, packing=packing)

    def _training_entries(self) -> int:
        count = 0
        for part, spins in zip(self.parts, self._spins):
            mine = spins[part.halo : part.halo + part.stop - part.start] == 1
            count += int(np.asarray(jnp.sum(mine, axis=tuple(range(1, mine.ndim))), np.int64).sum())
        return count


class DeviceResidualPass(AnyResidualPass):
    """Passes over `values` (float or int8) where `mask` (bool or int8) is not zero, as `ResidualPass`."""

    def __init__(self, values: np.ndarray, mask: np.ndarray, devices: tuple[Any, ...]) -> None:
        self.values, self.mask, self.shape, self.passes = values, mask, values.shape, 0
        self.cut, self.parts = parts_of(values.shape, devices, 0, False)
        kind = values.dtype if values.dtype == np.int8 else np.float32

        def place(part: Part, array: np.ndarray, dtype: Any) -> Any:
            return part.place(np.asarray(array[part.start : part.stop], dtype), lambda i: np.asarray(array[i], dtype))

        self._values = [place(part, values, kind) for part in self.parts]
        self._mask = self._values if mask is values else [place(part, mask, mask.dtype) for part in self.parts]

    def _run(self, frame: FrameLike, subtract: bool) -> tuple[float, list[np.ndarray]]:
        self.passes += 1
        cores, right = flattened(frame.left), flattened(frame.right)
        found = []
        for k, part in enumerate(self.parts):
            vector, packing = vector_of(part, cores, right)
            settings = {"cut": self.cut, "packing": packing, "subtract": subtract}
            found.append(residual_pass_of(self._values[k], self._mask[k], vector, **settings))
        total, sums = gathered(found, [self.cut.slabs] * len(found), [self.cut.planes] * len(found), self.parts, cores)
        return total, unpack(sums, frame)
