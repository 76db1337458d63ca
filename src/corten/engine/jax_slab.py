"""The passes as XLA programs: planes with a halo in, sums as large as the cores out.

A program takes all small arrays as one vector and gives all small results as one vector: a pass is one transfer each
way. A scan goes through the slabs; sums over slabs keep their rounding error, so that float32 is enough. The log-odds
are differentiated by JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, update_wrapper
from math import prod
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr

from corten.engine.arithmetic import LOGIT, PROBIT, PRODUCT, SIGMOID

Array = jax.Array
Vector = TypeVar("Vector", np.ndarray, jax.Array)
Result = TypeVar("Result")
Held = np.ndarray | np.integer | jax.Array | jax.ShapeDtypeStruct | None  # an array, or its shape while compiling
EXACT = lax.Precision.HIGHEST
LARGE_PLANE_ENTRIES = 1 << 16
COMPILER_THREADS = 4


class Program(Generic[Result]):
    """A function compiled for each set of shapes, devices and settings.

    Matrix products are not tried out while compiling: that takes seconds a program and saves little here.
    """

    def __init__(self, function: Callable[..., Result], settings: tuple[str, ...]) -> None:
        self._compiled = jax.jit(function, static_argnames=settings, compiler_options={"xla_gpu_autotune_level": 0})
        self._ahead: dict[Hashable, Future[Callable[..., Result]]] = {}
        update_wrapper(self, function)

    def ahead(self, *arrays: Held, **settings: Hashable) -> None:
        """Begin to compile for arrays like these (or `jax.ShapeDtypeStruct`); a call waits for it."""
        key = _key(arrays, settings)
        if key not in self._ahead:
            self._ahead[key] = _compilers().submit(lambda: self._compiled.lower(*arrays, **settings).compile())

    def __call__(self, *arrays: Held, **settings: Hashable) -> Result:
        begun = self._ahead.get(_key(arrays, settings)) if self._ahead else None
        return self._compiled(*arrays, **settings) if begun is None else begun.result()(*arrays)


def program(*settings: str) -> Callable[[Callable[..., Result]], Program[Result]]:
    """Decorate a function of arrays and of these settings."""
    return lambda function: Program(function, settings)


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COMPILER_THREADS, thread_name_prefix="corten-compile")


def _key(arrays: tuple[Held, ...], settings: dict[str, Hashable]) -> Hashable:
    def like(array: Held) -> Hashable:
        sharding = getattr(array, "sharding", None)
        devices = frozenset(sharding.device_set) if sharding is not None else None
        return None if array is None else (array.shape, str(array.dtype), devices)

    return tuple(map(like, arrays)), tuple(sorted(settings.items()))


def bucket(rank: int, rows: int, columns: int) -> int:
    """The size a bond is padded to: one for all usual ranks, so that a search over them compiles each program once.

    Planes large enough for the arithmetic to matter have a size for small ranks too.
    """
    return 8 if rank <= 8 and rows * columns >= LARGE_PLANE_ENTRIES else -(-rank // 16) * 16


@dataclass(frozen=True)
class Formula:
    """What of a model shapes the compiled code. Coefficients are arguments: another strength compiles nothing."""

    kind: int
    powers: tuple[tuple[int, int], ...]
    link: int
    offsets: tuple[tuple[int, ...], ...]
    periodic: tuple[bool, ...]
    whole: bool  # train share one, which has its own safe form

    @property
    def radius(self) -> int:
        return max((abs(o[0]) for o in self.offsets), default=0)

    def neighbour(self, block: Array, offset: Sequence[int]) -> Array:
        """Entry i of the planes inside the radius is the block's entry i + offset; zero outside the tensor."""
        start = self.radius + offset[0]
        out = lax.slice_in_dim(block, start, start + block.shape[0] - 2 * self.radius, axis=0)
        for axis, step in enumerate(offset[1:], 1):
            if self.periodic[axis]:
                out = jnp.roll(out, -step, axis)
            elif abs(step) >= out.shape[axis]:
                out = jnp.zeros_like(out)
            elif step:
                edges = [(-step, step, 0) if k == axis else (0, 0, 0) for k in range(out.ndim)]
                out = lax.pad(out, jnp.zeros((), out.dtype), edges)
        return out

    def around(self, block: Array) -> Array:
        """Sums over the neighbourhood, on the planes inside the radius."""
        return sum(self.neighbour(block, o) for o in self.offsets) + jnp.zeros_like(self.centre(block))

    def centre(self, block: Array) -> Array:
        """The planes inside the radius."""
        return lax.slice_in_dim(block, self.radius, block.shape[0] - self.radius, axis=0)

    def pair(self, terms: Array, x: Array, y: Array) -> Array:
        """g(x, y)."""
        if self.kind == SIGMOID:
            return terms[0] * (jax.nn.sigmoid(x * y) - 0.5)
        return sum((terms[t] * x**a * y**b for t, (a, b) in enumerate(self.powers)), jnp.zeros_like(x))

    def log_odds(self, cores: dict[str, Array], b: Array, codes: Array, soft: tuple[Array, Array] | None) -> Array:
        """eta = 2 sum g W + 2 h(B) on the planes inside the radius; `soft`: expected spins and the B they came from."""
        terms, here, w = cores["terms"], self.centre(b), spins_of(codes)
        eta = cores["shift"][0] * jnp.ones_like(here)
        if self.link == LOGIT:
            eta = eta + here
        elif self.link == PROBIT:
            eta = eta + log_ndtr(here) - log_ndtr(-here)
        if self.kind != PRODUCT:
            near = [(self.neighbour(b, o), self.neighbour(w, o)) for o in self.offsets]
            return eta + 2.0 * sum(self.pair(terms, here, y) * v for y, v in near)
        if soft is None:
            return eta + 2.0 * terms[0] * here * self.around(b * w)
        expected, b0 = soft
        own = terms[0] * self.centre(b0 * w) * self.around(b * b0 * (1.0 - expected * expected) * jnp.abs(w))
        return eta + 2.0 * terms[0] * here * (self.around(b * expected) - own)

    def likelihood(self, codes: Array, eta: Array, q: Array) -> tuple[Array, Array]:
        """V of eq. vanilla-gradient and the loss of each entry without -log q; see `ising_rows.likelihood_row`."""
        observed, active = codes > 0, jnp.abs(codes) == 1
        toward = jnp.where(observed, eta, -eta) if self.whole else eta
        t = jnp.exp(-jnp.abs(toward))
        up, missing = 1.0 + t, jnp.where(toward >= 0, t, 1.0)
        linear = jnp.maximum(-toward, 0.0)
        if self.whole:
            v, loss = jnp.where(observed, -missing, missing) / up, jnp.log1p(t) + linear
        else:
            inverse = 1.0 / (up * jnp.where(observed, 1.0, (1.0 - q) * (up - missing) + missing))
            v = jnp.where(observed, -missing, q * t) * inverse
            loss = jnp.log(up * up * inverse) + jnp.where(observed, linear, 0.0)
        return jnp.where(active, v, 0.0), jnp.where(active, loss, 0.0)


def spins_of(codes: Array) -> Array:
    """The spins +1, -1 or 0 of codes of -2..2."""
    return jnp.sign(codes).astype(jnp.float32)


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

    @property
    def starts(self) -> Array:
        return jnp.arange(self.slabs) * self.height


@dataclass(frozen=True)
class Packing:
    """Named float32 arrays laid end to end in one vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def pack(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """One vector of arrays, each in the corner of its place; zeros fill up what they leave."""
        vector = np.zeros(sum(prod(shape) for shape in self.shapes), np.float32)
        for name, place in self.unpack(vector).items():
            place[tuple(slice(0, length) for length in arrays[name].shape)] = arrays[name]
        return vector

    def unpack(self, vector: Vector) -> dict[str, Vector]:
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


def contract(gradient: Array, left: Array, first: Array, cores: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Contributions of some planes of a gradient to the contractions with the three cores."""
    flat = gradient.reshape(left.shape[0], left.shape[1], -1)
    dots = jnp.einsum("prn,bn->prb", flat, cores["right_last"], precision=EXACT)
    return (
        jnp.einsum("prb,arb->pa", dots, cores["right_middle"], precision=EXACT),
        jnp.einsum("pa,prb->arb", first, dots, precision=EXACT),
        jnp.einsum("prb,prn->bn", left, flat, precision=EXACT),
    )


def _own_planes(cut: Cut, at: Array, cores: dict[str, Array]) -> Array:
    """True for the slab's planes that exist, False for those that only pad its last slab."""
    return (at + jnp.arange(cut.height) < cores["count"][0]).reshape(-1, *(1 for _ in cut.inner))


def _over_slabs(cut: Cut, slab: Callable[[Array], tuple[Array, ...]], cores: dict[str, Array]) -> Array:
    """Run `slab(start) -> (loss, first, middle, last)` over all slabs; everything found, as one vector."""
    zeros = [jnp.zeros_like(cores[name]) for name in ("middle", "middle", "last", "last")]

    def step(carry: tuple[Array, ...], at: Array) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
        loss, first, middle, last = slab(at)
        return (*two_sum(carry[0], carry[1], middle), *two_sum(carry[2], carry[3], last)), (loss, first)

    sums, (losses, firsts) = lax.scan(step, tuple(zeros), cut.starts)
    return jnp.concatenate([x.reshape(-1) for x in (losses, firsts, *sums)])


@program("formula", "cut", "packing")
def likelihood_pass(
    spins: Array, soft: Array | None, vector: Array, formula: Formula, cut: Cut, packing: Packing
) -> Array:
    """Losses of slabs and contractions of one device's planes; `soft` as in `likelihood.likelihood_box`."""
    cores = packing.unpack(vector)
    own = slice(cut.halo, cut.halo + cut.height)

    def slab(at: Array) -> tuple[Array, Array, Array, Array]:
        def planes(array: Array) -> Array:
            return lax.dynamic_slice_in_dim(array, at, cut.height + 2 * cut.halo)

        codes, first = planes(spins), planes(cores["first"])
        left, b = evaluate(first, cores["middle"], cores["last"], cut.inner)
        expected = None
        if soft is not None:
            _, b0 = evaluate(planes(cores["first0"]), cores["middle0"], cores["last0"], cut.inner)
            w = spins_of(codes)
            expected = jnp.where(w < 0, planes(soft).astype(jnp.float32) * jnp.float32(1 / 127), w), b0
        mine = _own_planes(cut, at, cores)

        eta, pull_back = jax.vjp(lambda b: formula.log_odds(cores, b, codes, expected), b)
        v, losses = formula.likelihood(formula.centre(codes), eta, cores["share"][0])
        gradient = jnp.where(mine, pull_back(v)[0][own], 0.0)
        loss = jnp.sum(jnp.where(mine, formula.centre(losses), 0.0))
        return loss, *contract(gradient, left[own], first[own], cores)

    return _over_slabs(cut, slab, cores)


@program("cut", "packing", "subtract")
def residual_pass_of(values: Array, mask: Array, vector: Array, cut: Cut, packing: Packing, subtract: bool) -> Array:
    """Half the squared residual on observed entries and its contractions; planes of padding have no mask."""
    cores = packing.unpack(vector)

    def slab(at: Array) -> tuple[Array, Array, Array, Array]:
        first, x, observed = (lax.dynamic_slice_in_dim(a, at, cut.height) for a in (cores["first"], values, mask))
        left, b = evaluate(first, cores["middle"], cores["last"], cut.inner)
        residual = jnp.where(observed != 0, x.astype(jnp.float32) - (b if subtract else 0.0), 0.0)
        return 0.5 * jnp.sum(residual * residual), *contract(residual, left, first, cores)

    return _over_slabs(cut, slab, cores)


def _eta(spins: Array, vector: Array, at: Array, formula: Formula, cut: Cut, packing: Packing) -> Array:
    """eta of the slab that starts at plane `at`."""
    cores = packing.unpack(vector)
    start, tall = at + cut.halo - formula.radius, cut.height + 2 * formula.radius
    first, codes = (lax.dynamic_slice_in_dim(a, start, tall) for a in (cores["first"], spins))
    return formula.log_odds(cores, evaluate(first, cores["middle"], cores["last"], cut.inner)[1], codes, None)


eta_of_slab = program("formula", "cut", "packing")(_eta)


@program("formula", "cut", "packing")
def soft_values(spins: Array, vector: Array, formula: Formula, cut: Cut, packing: Packing) -> Array:
    """Expected spins of entries not in training, in 1/127, of every plane a device owns: see `MaskPass.soft_spins`."""

    def slab(at: Array) -> Array:
        eta = _eta(spins, vector, at, formula, cut, packing) + jnp.log1p(-packing.unpack(vector)["share"][0])
        return jnp.rint(127 * jnp.tanh(0.5 * eta)).astype(jnp.int8)

    return lax.map(slab, cut.starts).reshape(cut.planes, *cut.inner)


@program("formula", "cut", "packing")
def weight_sums(spins: Array, vector: Array, formula: Formula, cut: Cut, packing: Packing) -> tuple[Array, ...]:
    """Of each slab's training entries: the largest log-weight -eta, and sums of weights and squares relative to it."""
    cores = packing.unpack(vector)

    def slab(at: Array) -> tuple[Array, Array, Array]:
        eta = _eta(spins, vector, at, formula, cut, packing)
        codes = lax.dynamic_slice_in_dim(spins, at + cut.halo, cut.height)
        training = (codes > 0) & _own_planes(cut, at, cores)
        top = jnp.max(jnp.where(training, -eta, -jnp.inf))
        weight = jnp.where(training, jnp.exp(-eta - top), 0.0)
        return top, jnp.sum(weight), jnp.sum(weight * weight)

    return lax.map(slab, cut.starts)
