"""The slab pass as XLA programs: planes with a halo in, sums as large as the cores out.

A program takes all small arrays as one vector and gives all small results as one vector: a pass is one transfer each
way. A scan goes through the slabs; sums over slabs keep their rounding error, so that float32 is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, update_wrapper
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from corten.engine.jax_formulas import Formula, Shift, likelihood, log_odds, pair_sums, sign_of, soft_spin

Array = jax.Array
EXACT = lax.Precision.HIGHEST
LARGE_PLANE_ENTRIES = 1 << 16
COMPILER_THREADS = 4


class Program:
    """A function compiled for each set of shapes, devices and settings.

    Matrix products are not tried out while compiling: that takes seconds a program and saves little here.
    """

    def __init__(self, function: Callable[..., Any], settings: tuple[str, ...]) -> None:
        self._compiled = jax.jit(function, static_argnames=settings, compiler_options={"xla_gpu_autotune_level": 0})
        self._ahead: dict[Hashable, Future[Any]] = {}
        update_wrapper(self, function)

    def ahead(self, *arrays: Any, **settings: Any) -> None:
        """Begin to compile for arrays like these (or `jax.ShapeDtypeStruct`); a call waits for it."""
        key = _key(arrays, settings)
        if key not in self._ahead:
            self._ahead[key] = _compilers().submit(lambda: self._compiled.lower(*arrays, **settings).compile())

    def __call__(self, *arrays: Any, **settings: Any) -> Any:
        begun = self._ahead.get(_key(arrays, settings)) if self._ahead else None
        return self._compiled(*arrays, **settings) if begun is None else begun.result()(*arrays)


def program(*settings: str) -> Callable[[Callable[..., Any]], Program]:
    """Decorate a function of arrays and of these settings."""
    return lambda function: Program(function, settings)


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COMPILER_THREADS, thread_name_prefix="corten-compile")


def _key(arrays: tuple[Any, ...], settings: dict[str, Any]) -> Hashable:
    def like(array: Any) -> Hashable:
        if array is None:
            return None
        sharding = getattr(array, "sharding", None)
        return array.shape, str(array.dtype), frozenset(sharding.device_set) if sharding is not None else None

    return tuple(map(like, arrays)), tuple(sorted(settings.items(), key=lambda item: item[0]))


def bucket(rank: int, rows: int, columns: int) -> int:
    """The size a bond is padded to: one for all usual ranks, so that a search over them compiles each program once.

    Planes large enough for the arithmetic to matter have a size for small ranks too.
    """
    return 8 if rank <= 8 and rows * columns >= LARGE_PLANE_ENTRIES else -(-rank // 16) * 16


@dataclass(frozen=True)
class Cut:
    """The planes of one device: `slabs` slabs of `height` planes, `halo` more on either side."""

    slabs: int
    height: int
    halo: int
    inner: tuple[int, ...]

    @property
    def planes(self) -> int:
        return self.slabs * self.height


@dataclass(frozen=True)
class Packing:
    """Named float32 arrays laid end to end in one vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def pack(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """One vector of arrays, each in the corner of its place; zeros fill up what they leave."""
        vector = np.zeros(sum(prod(shape) for shape in self.shapes), np.float32)
        for name, place in self.unpack(vector).items():
            array = arrays[name]
            place[tuple(slice(0, length) for length in array.shape)] = array
        return vector

    def unpack(self, vector: Any) -> dict[str, Any]:
        """The arrays by name; views where the vector is NumPy's."""
        out, at = {}, 0
        for name, shape in zip(self.names, self.shapes):
            out[name] = vector[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
        return out


def two_sum(total: Array, lost: Array, more: Array) -> tuple[Array, Array]:
    """Add with the rounding error kept (Knuth): total + lost is the sum to about twice float32's precision."""
    new = total + more
    part = new - total
    return new, lost + ((total - (new - part)) + (more - part))


def evaluate(first: Array, middle: Array, last: Array, inner: Sequence[int]) -> tuple[Array, Array]:
    """Coefficients of rows in the last core, (planes, rows, bond), and the tensor's planes."""
    left = jnp.einsum("pa,arb->prb", first, middle, precision=EXACT)
    block = jnp.einsum("prb,bn->prn", left, last, precision=EXACT)
    return left, block.reshape(first.shape[0], *inner)


def contract(
    gradient: Array, left: Array, first: Array, right_middle: Array, right_last: Array
) -> tuple[Array, Array, Array]:
    """Contributions of some planes of a gradient to the contractions with the three cores."""
    flat = gradient.reshape(left.shape[0], left.shape[1], -1)
    dots = jnp.einsum("prn,bn->prb", flat, right_last, precision=EXACT)
    return (
        jnp.einsum("prb,arb->pa", dots, right_middle, precision=EXACT),
        jnp.einsum("pa,prb->arb", first, dots, precision=EXACT),
        jnp.einsum("prb,prn->bn", left, flat, precision=EXACT),
    )


def _owned(cut: Cut, at: Array, cores: dict[str, Array]) -> Array:
    """1 for the slab's planes that exist, 0 for those that only pad its last slab."""
    return (at + jnp.arange(cut.height) < cores["count"][0]).astype(jnp.float32)


def _over_slabs(cut: Cut, slab: Any, cores: dict[str, Array]) -> Array:
    """Run `slab(start) -> (loss, first, middle, last)` over all slabs; everything found, as one vector."""
    zeros = [jnp.zeros_like(cores[name]) for name in ("middle", "middle", "last", "last")]

    def step(carry: Any, at: Array) -> Any:
        loss, first, middle, last = slab(at)
        return (*two_sum(carry[0], carry[1], middle), *two_sum(carry[2], carry[3], last)), (loss, first)

    sums, (losses, firsts) = lax.scan(step, tuple(zeros), jnp.arange(cut.slabs) * cut.height)
    return jnp.concatenate([x.reshape(-1) for x in (losses, firsts, *sums)])


def fields(formula: Formula, cores: dict[str, Array], block: dict[str, Array], shift: Shift) -> tuple[Array, Array]:
    """eta and its derivative in B_i, on the planes inside `shift`'s margin."""
    terms, b, w = cores["terms"], block["b"], block["w"]
    here = shift.centre(b)
    if not formula.factorises:
        field, slope = pair_sums(formula, terms, shift, b, w)
        eta, slope = log_odds(formula, terms, here, field, slope)
        return eta + cores["shift"][0], slope
    if "expected" not in block:
        field = shift.total(b * w)
    else:
        expected, b0 = block["expected"], block["b0"]
        more = shift.total(b * b0 * (1.0 - expected * expected) * jnp.abs(w))
        field = shift.total(b * expected) - terms[0] * shift.centre(b0) * shift.centre(w) * more
    eta, slope = log_odds(formula, terms, here, field, None)
    return eta + cores["shift"][0], slope


def gradient(
    formula: Formula, cores: dict[str, Array], block: dict[str, Array], v: Array, slope: Array, shift: Shift
) -> Array:
    """G = V (2 sum W g_x + 2 h') + 2 W sum V g_x: both roles of B_i, on the planes a slab owns."""
    terms, b, around = cores["terms"], shift.centre(block["b"]), shift.centre(block["w"])
    w = shift.centre(around)
    if not formula.offsets:
        sums = jnp.zeros_like(w)
    elif not formula.factorises:
        sums = 2.0 * w * pair_sums(formula, terms, shift, b, v)[1]
    elif "expected" not in block:
        sums = 2.0 * terms[0] * w * shift.total(v * b)
    else:
        b0, expected = shift.centre(block["b0"]), shift.centre(shift.centre(block["expected"]))
        t = v * b
        cavity = terms[0] * shift.centre(b0) * (1.0 - expected * expected) * shift.total(t * b0 * around)
        sums = 2.0 * terms[0] * jnp.abs(w) * (expected * shift.total(t) - cavity)
    return shift.centre(v) * shift.centre(slope) + sums


@program("formula", "cut", "packing")
def likelihood_pass(
    spins: Array, soft: Array | None, vector: Array, formula: Formula, cut: Cut, packing: Packing
) -> Array:
    """Losses of slabs and contractions of one device's planes; `soft` as in `likelihood.likelihood_box`."""
    cores = packing.unpack(vector)
    shift = Shift(formula.offsets, formula.periodic, formula.radius)

    def slab(at: Array) -> tuple[Array, Array, Array, Array]:
        tall = cut.height + 2 * cut.halo
        code = lax.dynamic_slice_in_dim(spins, at, tall)
        first = lax.dynamic_slice_in_dim(cores["first"], at, tall)
        left, b = evaluate(first, cores["middle"], cores["last"], cut.inner)
        block = {"b": b, "w": sign_of(code)}
        if soft is not None:
            first0 = lax.dynamic_slice_in_dim(cores["first0"], at, tall)
            block["b0"] = evaluate(first0, cores["middle0"], cores["last0"], cut.inner)[1]
            block["expected"] = soft_spin(block["w"], lax.dynamic_slice_in_dim(soft, at, tall))
        eta, slope = fields(formula, cores, block, shift)
        v, loss = likelihood(shift.centre(code), eta, cores["share"][0], formula.whole)
        own = _owned(cut, at, cores).reshape(-1, *(1 for _ in cut.inner))
        g = gradient(formula, cores, block, v, slope, shift) * own
        mine = slice(cut.halo, cut.halo + cut.height)
        parts = contract(g, left[mine], first[mine], cores["right_middle"], cores["right_last"])
        return jnp.sum(shift.centre(loss) * own), *parts

    return _over_slabs(cut, slab, cores)


@program("cut", "packing", "subtract")
def residual_pass_of(values: Array, mask: Array, vector: Array, cut: Cut, packing: Packing, subtract: bool) -> Array:
    """Half the squared residual on observed entries and its contractions; planes of padding have no mask."""
    cores = packing.unpack(vector)

    def slab(at: Array) -> tuple[Array, Array, Array, Array]:
        first = lax.dynamic_slice_in_dim(cores["first"], at, cut.height)
        left, b = evaluate(first, cores["middle"], cores["last"], cut.inner)
        x = lax.dynamic_slice_in_dim(values, at, cut.height).astype(jnp.float32)
        residual = jnp.where(lax.dynamic_slice_in_dim(mask, at, cut.height) != 0, x - b if subtract else x, 0.0)
        parts = contract(residual, left, first, cores["right_middle"], cores["right_last"])
        return 0.5 * jnp.sum(residual * residual), *parts

    return _over_slabs(cut, slab, cores)


def _eta(spins: Array, vector: Array, at: Array, formula: Formula, cut: Cut, packing: Packing) -> Array:
    """eta of the slab that starts at plane `at`."""
    cores = packing.unpack(vector)
    radius = formula.radius
    start, tall = at + cut.halo - radius, cut.height + 2 * radius
    first = lax.dynamic_slice_in_dim(cores["first"], start, tall)
    _, b = evaluate(first, cores["middle"], cores["last"], cut.inner)
    block = {"b": b, "w": sign_of(lax.dynamic_slice_in_dim(spins, start, tall))}
    return fields(formula, cores, block, Shift(formula.offsets, formula.periodic, radius))[0]


eta_of_slab = program("formula", "cut", "packing")(_eta)


@program("formula", "cut", "packing")
def soft_values(spins: Array, vector: Array, formula: Formula, cut: Cut, packing: Packing) -> Array:
    """Expected spins of entries not in training, in 1/127, of every plane a device owns: see `MaskPass.soft_spins`."""

    def slab(at: Array) -> Array:
        eta = _eta(spins, vector, at, formula, cut, packing)
        shift = jnp.log1p(-packing.unpack(vector)["share"][0])
        return jnp.rint(127 * jnp.tanh(0.5 * (eta + shift))).astype(jnp.int8)

    return lax.map(slab, jnp.arange(cut.slabs) * cut.height).reshape(cut.planes, *cut.inner)


@program("formula", "cut", "packing")
def weight_sums(
    spins: Array, vector: Array, formula: Formula, cut: Cut, packing: Packing
) -> tuple[Array, Array, Array]:
    """Of each slab's training entries: the largest log-weight -eta, and sums of weights and squares relative to it."""
    cores = packing.unpack(vector)

    def slab(at: Array) -> tuple[Array, Array, Array]:
        eta = _eta(spins, vector, at, formula, cut, packing)
        own = _owned(cut, at, cores).reshape(-1, *(1 for _ in cut.inner))
        training = (lax.dynamic_slice_in_dim(spins, at + cut.halo, cut.height) > 0) & (own > 0)
        top = jnp.max(jnp.where(training, -eta, -jnp.inf))
        weight = jnp.where(training, jnp.exp(-eta - top), 0.0)
        return top, jnp.sum(weight), jnp.sum(weight * weight)

    return lax.map(slab, jnp.arange(cut.slabs) * cut.height)
