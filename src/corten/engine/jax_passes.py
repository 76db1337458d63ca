"""Passes over a mask or over data on JAX devices: what `MaskPass` and `ResidualPass` are for threads.

Each device holds a block of planes of mode 1 with a halo. A pass sends it one vector and gets one vector back; the host
adds the sums of all devices in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from numpy.typing import DTypeLike

from corten.engine.arithmetic import LOGIT, PRODUCT
from corten.engine.jax_slab import (
    Cut,
    Formula,
    Held,
    Packing,
    Result,
    bucket,
    eta_of_slab,
    likelihood_pass,
    residual_pass_of,
    soft_values,
    weight_sums,
)
from corten.engine.passes import AnyMaskPass, FrameLike, Model, check_spins, flattened, pack, size_of, unpack
from corten.engine.residuals import AnyResidualPass

Devices = tuple[jax.Device, ...]
Cores = Sequence[np.ndarray]  # first, middle and last
SLAB_ENTRIES = {"gpu": 1 << 26, "cpu": 1 << 22}  # a few float32 arrays of a slab exist at a time
FUSE_AFTER = 300_000_000_000  # entries passed over by array operations before the fused kernel is compiled
MAX_FUSED_RANK = 5  # beyond it a tile's factors no longer fit into registers
HOPPER, MOSAIC_JAX = 9.0, (0, 10)
ADJACENT = frozenset(tuple(s if a == b else 0 for b in range(3)) for a in range(3) for s in (-1, 1))


@dataclass(frozen=True)
class Part:
    """One device's block of planes. index: the planes its arrays hold, halo and padding too; -1 is a plane of zeros."""

    device: jax.Device
    start: int
    stop: int
    index: np.ndarray
    halo: int

    @property
    def planes(self) -> int:
        return self.stop - self.start

    def place(self, body: np.ndarray | jax.Array, plane: Callable[[int], np.ndarray]) -> jax.Array:
        """An array of planes on the device: `body` has its own planes, `plane(i)` gives one of the few others."""
        own = jax.device_put(body, self.device)
        nothing = np.zeros(own.shape[1:], own.dtype)

        def others(index: np.ndarray) -> list[jax.Array]:
            planes = [plane(i) if i >= 0 else nothing for i in index]
            return [jax.device_put(np.stack(planes), self.device)] if planes else []

        parts = [*others(self.index[: self.halo]), own, *others(self.index[self.halo + self.planes :])]
        return jnp.concatenate(parts) if len(parts) > 1 else own

    def place_planes(self, array: np.ndarray, dtype: DTypeLike) -> jax.Array:
        """The planes of an array of the host on the device."""
        return self.place(np.asarray(array[self.start : self.stop], dtype), lambda i: np.asarray(array[i], dtype))

    def places(self, cores: Cores, padded: bool) -> tuple[tuple[int, ...], ...]:
        """Shapes of (first, middle, last) on the device: all planes held, both bonds padded to a bucket."""
        a, rows, b = cores[1].shape
        columns = cores[2].shape[1]
        if padded:
            a, b = bucket(a, rows, columns), bucket(b, rows, columns)
        return (len(self.index), a), (a, rows, b), (b, columns)

    def rows_of(self, first: np.ndarray) -> np.ndarray:
        """The first core's rows for every plane held."""
        return np.where((self.index >= 0)[:, None], first[np.maximum(self.index, 0)], np.float32(0))


class _DevicePass:
    """Blocks of planes on devices, and what is sent there and back."""

    def __init__(self, shape: tuple[int, ...], devices: Devices, halo: int = 0, periodic: bool = False) -> None:
        planes, inner = shape[0], tuple(shape[1:])
        share = -(-planes // len(devices))
        limit = SLAB_ENTRIES.get(devices[0].platform, SLAB_ENTRIES["gpu"]) // max(1, prod(inner))
        slabs = -(-share // max(limit, 1))
        self.cut = Cut(slabs, -(-share // slabs), halo, inner)
        self.parts: list[Part] = []
        self.shape, self.passes = shape, 0
        for device, start in zip(devices, range(0, planes, share)):
            stop = min(start + share, planes)
            at = np.arange(start - halo, start + self.cut.planes + halo)
            known = (at < stop + halo) if periodic else (at >= 0) & (at < min(stop + halo, planes))
            self.parts.append(Part(device, start, stop, np.where(known, at % planes, -1), halo))

    def _numbers(self, part: Part) -> dict[str, np.ndarray]:
        return {}

    def _vector(
        self, part: Part, cores: Cores, right: Cores | None = None, base: Cores | None = None, *, padded: bool = True
    ) -> tuple[np.ndarray, Packing]:
        """Cores (left gauge, right gauge, those of soft spins) and numbers as one vector, and their places in it."""
        arrays = self._numbers(part)
        shapes = {name: array.shape for name, array in arrays.items()}
        for given, prefix, suffix in ((cores, "", ""), (right, "right_", ""), (base, "", "0")):
            if given is not None:
                kept = slice(1 if prefix else 0, None)  # the first core of the right gauge is not read
                names = [prefix + name + suffix for name in ("first", "middle", "last")][kept]
                arrays |= dict(zip(names, (part.rows_of(given[0]), *given[1:])[kept]))
                shapes |= dict(zip(names, part.places(given, padded)[kept]))
        packing = Packing(tuple(shapes), tuple(shapes.values()))
        return packing.pack(arrays), packing

    def _added(
        self, found: list[jax.Array], cores: Cores, frame: FrameLike, losses: Sequence[int] | None = None
    ) -> tuple[float, list[np.ndarray]]:
        """Loss and contractions of all devices, added in float64.

        A device sends losses, then the contractions; sums over slabs are followed by their rounding errors. The fused
        kernel, which gives its numbers of `losses`, has one slab, pads nothing and sends no rounding errors.
        """
        a, _, b = cores[1].shape
        fused = losses is not None
        total, sums = 0.0, [np.zeros(core.shape) for core in cores]
        for part, vector, count in zip(self.parts, found, losses or [self.cut.slabs] * len(found)):
            (_, bond), wide, tall = part.places(cores, padded=not fused)
            height = part.planes if fused else self.cut.planes
            sizes = [count, height * bond, *[prod(wide)] * (1 if fused else 2), *[prod(tall)] * (1 if fused else 2)]
            numbers, first, *rest = np.split(np.asarray(vector).astype(np.float64), np.cumsum(sizes)[:-1])
            middle, last = rest if fused else (rest[0] + rest[1], rest[2] + rest[3])
            total += float(numbers.sum())
            sums[0][part.start : part.stop] = first.reshape(height, bond)[: part.planes, :a]
            sums[1] += middle.reshape(wide)[:a, :, :b]
            sums[2] += last.reshape(tall)[:b]
        return total, unpack(sums, frame)


@dataclass(frozen=True)
class DeviceSoftSpins:
    """Expected spins (int8, in 1/127) where they were computed, and the cores they were computed from."""

    own: tuple[jax.Array, ...] = field(repr=False)
    held: tuple[jax.Array, ...] = field(repr=False)
    cores: tuple[np.ndarray, np.ndarray, np.ndarray] = field(repr=False)

    @property
    def values(self) -> np.ndarray:
        """The expected spins as one array on the host."""
        return np.concatenate([np.asarray(part) for part in self.own])


class DeviceMaskPass(_DevicePass, AnyMaskPass):
    """Passes over one mask of spins, as `MaskPass`, on JAX devices."""

    def __init__(
        self, spins: np.ndarray, model: Model, *, train_share: float, devices: Devices, fused: bool | None = None
    ) -> None:
        check_spins(spins, train_share)
        self.spins, self.model, self.train_share = spins, model, float(train_share)
        terms = np.asarray(model.terms, np.float64).reshape(-1, 3)
        offsets = model.offsets if model.coupling_kind else ()
        self.formula = Formula(
            model.coupling_kind, tuple((int(a), int(b)) for _, a, b in terms), model.link_kind,
            tuple(tuple(int(step) for step in o) for o in offsets), tuple(bool(p) for p in model.periodic),
            self.train_share == 1.0,
        )  # fmt: skip
        self._terms = terms[:, 0] if len(terms) else np.zeros(1)
        super().__init__(spins.shape, devices, 2 * self.formula.radius, bool(model.periodic[0]))
        if devices[0].platform == "gpu":
            self._compile_ahead()
        self._spins = [part.place_planes(spins, np.int8) for part in self.parts]
        self._tiles: list[tuple[jax.Array, ...]] | None = None
        wanted = fused is not False and fits(self.formula, spins.shape) and model.shift == 0.0
        self._can_fuse = wanted and all(has_fused_kernel(p.device) for p in self.parts)
        self._fuse_after = 0 if fused else FUSE_AFTER // max(1, spins.size)

    def loss_and_contractions(
        self, frame: FrameLike, soft: DeviceSoftSpins | None = None
    ) -> tuple[float, list[np.ndarray]]:
        """The pseudo-likelihood loss (eq. low-rank-MPLE) and its gradient contracted with the frame. One pass."""
        self.passes += 1
        cores, right = flattened(frame.left), flattened(frame.right)
        counts = None
        if soft is None and self._can_fuse and self.passes > self._fuse_after and cores[1].shape[0] <= MAX_FUSED_RANK:
            found, counts = self._fused(cores, right)
        else:
            base, soft_planes = (None, [None] * len(self.parts)) if soft is None else (soft.cores, soft.held)
            held = zip(self.parts, self._spins, soft_planes)
            found = [self._call(likelihood_pass, part, (spins, tau), cores, right, base) for part, spins, tau in held]
        total, contractions = self._added(found, cores, frame, counts)
        return total + self._observed_constant(), contractions

    def log_odds_slabs(self, cores: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """eta slab by slab: (start, stop, planes start:stop). One pass; the next slab is computed while one is read."""
        self.passes += 1
        packed = flattened(cores)

        def slabs() -> Iterator[tuple[int, int, jax.Array | None]]:
            for part, spins in zip(self.parts, self._spins):
                vector, packing = self._vector(part, packed)
                static = {"formula": self.formula, "cut": self.cut, "packing": packing}
                for at in range(0, part.planes, self.cut.height):
                    stop = min(part.start + at + self.cut.height, part.stop)
                    yield part.start + at, stop, eta_of_slab(spins, vector, np.int32(at), **static)

        for (start, stop, eta), _ in pairwise(chain(slabs(), [(0, 0, None)])):
            yield start, stop, np.asarray(eta)[: stop - start]

    def soft_spins(self, frame: FrameLike) -> DeviceSoftSpins:
        """Expected spins of entries not in training, as `MaskPass.soft_spins`; they stay on the devices."""
        self.passes += 1
        cores, held = pack(frame.left), list(zip(self.parts, self._spins))
        own = [self._call(soft_values, part, (spins,), cores)[: part.planes] for part, spins in held]

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
        """Begin to compile what a fit of a usual rank runs: it saves three seconds of a first fit (H200)."""
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

    def _fused(self, cores: Cores, right: Cores) -> tuple[list[jax.Array], list[int]]:
        """A pass by the fused kernel, whose copy of the spins is laid out tile by tile at the first pass."""
        from corten.engine.jax_fused import Tiling, fused_pass, tiled

        tilings = [Tiling(p.planes, self.shape[1], self.shape[2], self.formula.periodic) for p in self.parts]
        if self._tiles is None:
            self._tiles = [tiled(x, tiling) for x, tiling in zip(self._spins, tilings)]
        found = []
        for part, tiling, tiles in zip(self.parts, tilings, self._tiles):
            vector, packing = self._vector(part, cores, right, padded=False)
            found.append(fused_pass(*tiles, vector, self.formula, tiling, packing, cores[1].shape[0]))
        return found, [tiling.count for tiling in tilings]

    def _numbers(self, part: Part) -> dict[str, np.ndarray]:
        numbers = {"share": self.train_share, "shift": self.model.shift, "count": part.planes}
        return {"terms": self._terms} | {name: np.array([number]) for name, number in numbers.items()}

    def _call(
        self, program: Callable[..., Result], part: Part, held: tuple[Held, ...], cores: Cores, *others: Cores | None
    ) -> Result:
        """A program on arrays of one part and on cores: of the left gauge, the right gauge, and of soft spins."""
        vector, packing = self._vector(part, cores, *others)
        return program(*held, vector, formula=self.formula, cut=self.cut, packing=packing)

    def _training_entries(self) -> int:
        count = 0
        for part, spins in zip(self.parts, self._spins):
            mine = spins[part.halo : part.halo + part.planes] == 1
            count += int(np.asarray(jnp.sum(mine, axis=tuple(range(1, mine.ndim))), np.int64).sum())
        return count


class DeviceResidualPass(_DevicePass, AnyResidualPass):
    """Passes over `values` (float or int8) where `mask` (bool or int8) is not zero, as `ResidualPass`."""

    def __init__(self, values: np.ndarray, mask: np.ndarray, devices: Devices) -> None:
        super().__init__(values.shape, devices)
        kind = values.dtype if values.dtype == np.int8 else np.float32
        self._values = [part.place_planes(values, kind) for part in self.parts]
        same = mask is values
        self._mask = self._values if same else [part.place_planes(mask, mask.dtype) for part in self.parts]

    def run(self, frame: FrameLike, subtract: bool) -> tuple[float, list[np.ndarray]]:
        self.passes += 1
        cores, right = flattened(frame.left), flattened(frame.right)
        found = []
        for part, values, mask in zip(self.parts, self._values, self._mask):
            vector, packing = self._vector(part, cores, right)
            found.append(residual_pass_of(values, mask, vector, cut=self.cut, packing=packing, subtract=subtract))
        return self._added(found, cores, frame)


def fits(formula: Formula, shape: tuple[int, ...]) -> bool:
    """Whether the fused kernel computes this model's pass."""
    adjacent = len(formula.offsets) == len(ADJACENT) and set(formula.offsets) == ADJACENT
    return adjacent and formula.kind == PRODUCT and formula.link == LOGIT and len(shape) == 3 and min(shape[1:]) >= 3


def has_fused_kernel(device: jax.Device) -> bool:
    """Whether a device can run the fused kernel: a Hopper GPU or newer, and a new enough JAX."""
    recent = device.platform == "gpu" and float(getattr(device, "compute_capability", 0.0)) >= HOPPER
    if not recent or jax.__version_info__[:2] < MOSAIC_JAX:
        return False
    try:
        from corten.engine import jax_fused  # noqa: F401
    except ImportError:
        return False
    return True
