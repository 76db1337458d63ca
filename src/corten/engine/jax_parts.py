"""Which device holds which planes, what it is sent, and how its sums are added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from corten.engine.arithmetic import LOGIT, PRODUCT
from corten.engine.jax_slab import Formula
from corten.engine.jax_slab import Cut, Packing, bucket

SLAB_ENTRIES = {"gpu": 1 << 26, "cpu": 1 << 22}  # a few float32 arrays of a slab exist at a time
HOPPER, MOSAIC_JAX = 9.0, (0, 10)
ADJACENT = frozenset(tuple(s if a == b else 0 for b in range(3)) for a in range(3) for s in (-1, 1))


@dataclass(frozen=True)
class Part:
    """One device's block of planes. index: the planes its arrays hold, halo and padding too; -1 is a plane of zeros."""

    device: Any
    start: int
    stop: int
    index: np.ndarray
    halo: int

    def place(self, body: Any, plane: Callable[[int], np.ndarray]) -> Any:
        """An array of planes on the device: `body` has its own planes, `plane(i)` gives one of the few others."""
        own = jax.device_put(body, self.device)
        nothing = np.zeros(own.shape[1:], own.dtype)

        def others(index: np.ndarray) -> list[Any]:
            planes = [plane(i) if i >= 0 else nothing for i in index]
            return [jax.device_put(np.stack(planes), self.device)] if planes else []

        parts = [*others(self.index[: self.halo]), own, *others(self.index[self.halo + self.stop - self.start :])]
        return jnp.concatenate(parts) if len(parts) > 1 else own

    def rows_of(self, first: np.ndarray) -> np.ndarray:
        """The first core's rows for every plane held."""
        return np.where((self.index >= 0)[:, None], first[np.maximum(self.index, 0)], np.float32(0))


def parts_of(shape: tuple[int, ...], devices: tuple[Any, ...], halo: int, periodic: bool) -> tuple[Any, list[Part]]:
    """The cut of every device, and the planes of each."""
    planes, inner = shape[0], tuple(shape[1:])
    share = -(-planes // len(devices))
    limit = SLAB_ENTRIES.get(devices[0].platform, SLAB_ENTRIES["gpu"]) // max(1, int(np.prod(inner)))
    slabs = -(-share // max(limit, 1))
    cut = Cut(slabs, -(-share // slabs), halo, inner)
    parts = []
    for device, start in zip(devices, range(0, planes, share)):
        stop = min(start + share, planes)
        at = np.arange(start - halo, start + cut.planes + halo)
        known = (at < stop + halo) if periodic else (at >= 0) & (at < min(stop + halo, planes))
        parts.append(Part(device, start, stop, np.where(known, at % planes, -1), halo))
    return cut, parts


def places(part: Part, cores: Sequence[np.ndarray], padded: bool = True) -> tuple[tuple[int, ...], ...]:
    """Shapes of (first, middle, last) on a device: all planes held, both bonds padded to a bucket."""
    _, middle, last = cores
    a, b = middle.shape[0], middle.shape[2]
    if padded:
        a, b = (bucket(bond, middle.shape[1], last.shape[1]) for bond in (a, b))
    return (len(part.index), a), (a, middle.shape[1], b), (b, last.shape[1])


def vector_of(
    part: Part,
    cores: Sequence[np.ndarray],
    right: Sequence[np.ndarray] | None = None,
    base: Sequence[np.ndarray] | None = None,
    numbers: dict[str, np.ndarray] | None = None,
    padded: bool = True,
) -> tuple[np.ndarray, Packing]:
    """Cores (left gauge, right gauge, those of soft spins) and numbers as one vector, and their places in it."""
    arrays, shapes = dict(numbers or {}), {name: array.shape for name, array in (numbers or {}).items()}
    for given, suffix in ((cores, ""), (base, "0")):
        if given is not None:
            names = [name + suffix for name in ("first", "middle", "last")]
            arrays |= dict(zip(names, (part.rows_of(given[0]), *given[1:])))
            shapes |= dict(zip(names, places(part, given, padded)))
    if right is not None:
        arrays |= {"right_middle": right[1], "right_last": right[2]}
        shapes |= dict(zip(("right_middle", "right_last"), places(part, right, padded)[1:]))
    packing = Packing(tuple(shapes), tuple(shapes.values()))
    return packing.pack(arrays), packing


def gathered(
    vectors: list[Any], losses: Sequence[int], planes: Sequence[int], parts: list[Part], cores: Sequence[np.ndarray],
    padded: bool = True,
) -> tuple[float, list[np.ndarray]]:  # fmt: skip
    """Loss and contractions of all devices added in float64, bonds cut back to what `pack` gave.

    A device sends `losses` numbers, then the contractions; sums over slabs are followed by their rounding errors. The
    fused kernel has one slab and sends none.
    """
    a, _, b = cores[1].shape
    total, sums = 0.0, [np.zeros(c.shape) for c in cores]
    for part, vector, count, height in zip(parts, vectors, losses, planes):
        _, wide, tall = places(part, cores, padded)
        first, middle, last = height * wide[0], prod(wide), prod(tall)
        alone = vector.size == count + first + middle + last
        edges = np.cumsum([count, first, middle] if alone else [count, first, middle, middle, last])
        found = np.split(np.asarray(vector).astype(np.float64), edges)
        middles, lasts = found[2:] if alone else (found[2] + found[3], found[4] + found[5])
        total += float(found[0].sum())
        sums[0][part.start : part.stop] = found[1].reshape(height, wide[0])[: part.stop - part.start, :a]
        sums[1] += middles.reshape(wide)[:a, :, :b]
        sums[2] += lasts.reshape(tall)[:b]
    return total, sums


def fits(formula: Formula, shape: tuple[int, ...]) -> bool:
    """Whether the fused kernel computes this model's pass."""
    adjacent = len(formula.offsets) == len(ADJACENT) and set(formula.offsets) == ADJACENT
    return adjacent and formula.kind == PRODUCT and formula.link == LOGIT and len(shape) == 3 and min(shape[1:]) >= 3


def has_fused_kernel(device: Any) -> bool:
    """Whether a device can run the fused kernel: a Hopper GPU or newer, and a new enough JAX."""
    recent = device.platform == "gpu" and float(getattr(device, "compute_capability", 0.0)) >= HOPPER
    if not recent or jax.__version_info__[:2] < MOSAIC_JAX:
        return False
    try:
        from corten.engine import jax_fused  # noqa: F401
    except ImportError:
        return False
    return True
