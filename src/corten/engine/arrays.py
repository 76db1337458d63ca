"""Arrays of the host (NumPy) and of a device (JAX), for code that is written once for both.

Such code takes `Arrays`, calls `xp` for what NumPy and JAX spell alike, and the methods here for the rest. It may
use `a += b`: NumPy adds in place, JAX makes a new array. All arrays have a leading axis of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar, Union

import numpy as np
from scipy import ndimage

from corten.engine import one_pass
from corten.engine.lapack import cholesky, inverse_from_cholesky, symmetric_product

if TYPE_CHECKING:
    import jax

Array = Union[np.ndarray, "jax.Array"]
"""An array of the host or of a device; code written for both uses only what both have."""
Inverses = list[Array] | Array


class Iterating(Protocol):
    """The state of an iteration; `going`: whether a round has not converged."""

    @property
    def going(self) -> Array: ...


System = TypeVar("System")
State = TypeVar("State")
Iterate = TypeVar("Iterate", bound=Iterating)
Result = TypeVar("Result")
Step = Callable[["Arrays", System, Iterate], Iterate]
"""One step of an iteration; it works on the arrays of the host or of a device."""


class Arrays:
    """The methods, for NumPy; `xp` is the namespace."""

    xp: ModuleType = np
    label = "host"

    def put(self, array: Array) -> Array:
        """The array where it is computed with."""
        return np.asarray(array)

    def get(self, array: Array) -> np.ndarray:
        """The array on the host."""
        return np.asarray(array)

    def along(self, matrix: Array, array: Array, axis: int) -> Array:
        """Products of a matrix, or of one matrix for each round, with every fibre of `array` along `axis`."""
        shape = array.shape
        if matrix.ndim == 3:
            return np.stack([self.along(m, a[None], axis)[0] for m, a in zip(matrix, array)])
        if axis == array.ndim - 1:
            return np.asarray(array @ matrix.T)
        before = int(np.prod(shape[:axis], dtype=np.intp))
        product = np.matmul(matrix, array.reshape(before, shape[axis], -1))
        return product.reshape(*shape[:axis], matrix.shape[0], *shape[axis + 1 :])

    def matmul(self, a: Array, b: Array) -> Array:
        """Products of two matrices for each round."""
        return np.matmul(a, b)

    def inner(self, a: Array, b: Array) -> Array:
        """The inner product of two arrays for each round, with axes of length one to multiply arrays with."""
        each = [np.vdot(one, other) for one, other in zip(a, b)]
        return np.array(each, a.dtype).reshape(-1, *(1,) * (a.ndim - 1))

    def sum_of_squares(self, values: Array, weights: Array) -> Array:
        """Sums of weights * values^2 for each round, as `inner`; `weights` may be those of all rounds."""
        return (weights * values * values).sum(axis=tuple(range(1, values.ndim)), keepdims=True)

    def next_direction(self, direction: Array, residual: Array, shrink: Array, factor: Array) -> Array:
        """factor * direction + shrink * residual, in place on the host."""
        return factor * direction + shrink * residual

    def with_ratio(self, image: Array, ratio: Array, direction: Array) -> tuple[Array, Array]:
        """image + ratio * direction, in place on the host, and its inner products with the direction."""
        image += ratio * direction
        return image, self.inner(direction, image)

    def advanced(
        self, mean: Array, residual: Array, *, direction: Array, image: Array, step: Array
    ) -> tuple[Array, Array]:
        """mean + step * direction and residual - step * image, in place on the host."""
        return mean + step * direction, residual - step * image

    def with_means(
        self, multipliers: Sequence[Array], *, known: Array, kept: Array, decrease: float
    ) -> tuple[Array, tuple[Array, ...]]:
        """The known values, where there are none the mean of the arrays; and the arrays less that, over `decrease`.

        The arrays are changed in place on the host.
        """
        mean = sum(multipliers[1:], multipliers[0]) / np.float32(len(multipliers))
        filled = self.xp.where(kept > 0, known, mean)
        return filled, tuple((one - filled) / np.float32(decrease) for one in multipliers)

    def at(self, array: Array, entries: Array) -> Array:
        """The numbers of each round at its flat indices `entries`, (rounds, entries)."""
        return np.stack([one.reshape(-1)[own] for one, own in zip(array, entries)])

    def running_max(self, array: Array) -> Array:
        """The largest number so far along the last axis."""
        return np.maximum.accumulate(array, axis=-1)

    def moving_average(self, array: Array, width: int, axis: int, periodic: bool) -> Array:
        """Averages over an odd width along an axis: with zeros beyond the ends, or around a periodic axis."""
        return np.asarray(ndimage.uniform_filter1d(array, width, axis=axis, mode="wrap" if periodic else "constant"))

    def add_at(self, array: Array, index: Array, values: Array) -> Array:
        """The array with values added at flat indices, the same for each round."""
        changed = self.get(array)
        place: tuple[slice | np.ndarray, ...] = (slice(None), *np.unravel_index(index, array.shape[1:]))
        changed[place] += values
        return changed

    def inverse_of_positive(self, matrix: Array) -> Array:
        """The inverse of a symmetric positive definite matrix (its lower triangle); `times` multiplies with it."""
        inverse = self.get(matrix)
        if not cholesky(inverse):
            raise np.linalg.LinAlgError("the matrix of the modes is not positive definite")
        inverse_from_cholesky(inverse)
        return inverse

    def padded_inverse(self, matrix: Array, size: int) -> Array:
        """The inverse of a positive definite matrix of the host or of a device, on a device with zeros up to a size."""
        return self.inverse_of_positive(matrix)

    def together(self, inverses: list[Array]) -> Inverses:
        """Inverses of all rounds."""
        return inverses

    def times(self, inverses: Inverses, vectors: Array) -> Array:
        """Products of the inverses with one vector for each round, in double precision."""
        return np.stack([symmetric_product(inverse, vector) for inverse, vector in zip(inverses, vectors)])

    def repeated(self, step: Step[System, Iterate], times: int) -> Callable[[System, Iterate], Iterate]:
        """`step(self, system, state) -> state`, as a function that takes so many steps; states have a field `going`."""

        def run(system: System, state: Iterate) -> Iterate:
            for _ in range(times):
                if not state.going.any():
                    break
                state = step(self, system, state)
            return state

        return run

    def loop(self, times: int, body: Callable[[int, State], State], start: State) -> State:
        """`body(number, state)` for the numbers from zero, inside a program."""
        for number in range(times):
            start = body(number, start)
        return start

    def eigh(self, matrices: Array) -> tuple[Array, Array]:
        """Eigenvalues, ascending, and eigenvectors of a symmetric matrix for each round."""
        return self.xp.linalg.eigh(matrices)

    def compiled(self, function: Callable[..., Result], **settings: Hashable) -> Callable[..., Result]:
        """`function(arrays, ..., **settings)` as a function of its other arguments, compiled on a device."""
        return partial(function, self, **settings)

    def running(self) -> AbstractContextManager[None]:
        """A context in which arrays are made where they are computed with, and may have double precision."""
        return nullcontext()


class HostArrays(Arrays):
    """NumPy, and compiled functions that pass over memory once."""

    def sum_of_squares(self, values: Array, weights: Array) -> Array:
        each = [one_pass.sum_of_squares(*pair) for pair in zip(_flat(values), _flat(weights, len(values)))]
        return np.array(each, values.dtype).reshape(-1, *(1,) * (values.ndim - 1))

    def next_direction(self, direction: Array, residual: Array, shrink: Array, factor: Array) -> Array:
        direction = np.ascontiguousarray(direction)
        for own in zip(_flat(direction), _flat(residual), _flat(shrink, len(direction)), factor.ravel()):
            one_pass.next_direction(*own)
        return direction

    def with_ratio(self, image: Array, ratio: Array, direction: Array) -> tuple[Array, Array]:
        image = np.ascontiguousarray(image)
        each = [one_pass.add_ratio(*own) for own in zip(_flat(image), _flat(ratio, len(image)), _flat(direction))]
        return image, np.array(each, image.dtype).reshape(-1, *(1,) * (image.ndim - 1))

    def advanced(
        self, mean: Array, residual: Array, *, direction: Array, image: Array, step: Array
    ) -> tuple[Array, Array]:
        mean, residual = np.ascontiguousarray(mean), np.ascontiguousarray(residual)
        for own in zip(*map(_flat, (mean, residual, direction, image)), step.ravel()):
            one_pass.advance(*own)
        return mean, residual

    def with_means(
        self, multipliers: Sequence[Array], *, known: Array, kept: Array, decrease: float
    ) -> tuple[Array, tuple[Array, ...]]:
        changed, filled = tuple(map(np.ascontiguousarray, multipliers)), np.empty(known.shape, known.dtype)
        factors = (filled.dtype.type(1 / part) for part in (len(changed), decrease))
        flat = (tuple(one.reshape(-1) for one in changed), filled.reshape(-1), known.reshape(-1))
        one_pass.set_means(*flat, np.asarray(kept, bool).reshape(-1), *factors)
        return filled, changed


def _flat(array: Array, rounds: int = 1) -> list[Array]:
    """The numbers of each round, the same ones for all rounds if there is one array for them."""
    flat = [one.reshape(-1) for one in array]
    return flat * rounds if len(flat) == 1 else flat


class DeviceArrays(Arrays):
    """JAX on one device. Products of single precision are exact to single precision, not to that of tensor cores."""

    def __init__(self, device: jax.Device) -> None:
        import jax
        import jax.numpy as jnp

        self.jax, self.xp, self.device = jax, jnp, device
        self.label = str(device.device_kind)

    def put(self, array: Array) -> Array:
        return self.jax.device_put(array, self.device)

    def along(self, matrix: Array, array: Array, axis: int) -> Array:
        letters = "abcdefghijklmnop"[: array.ndim]
        at = letters[axis]
        own = f"{letters[0]}z{at}" if matrix.ndim == 3 else f"z{at}"
        out = letters.replace(at, "z")
        return self.xp.einsum(f"{own},{letters}->{out}", matrix, array, precision="highest")

    def matmul(self, a: Array, b: Array) -> Array:
        return self.xp.matmul(a, b, precision="highest")

    def inner(self, a: Array, b: Array) -> Array:
        return (a * b).sum(axis=tuple(range(1, a.ndim)), keepdims=True)

    def at(self, array: Array, entries: Array) -> Array:
        return self.xp.take_along_axis(array.reshape(len(array), -1), entries, axis=1)

    def running_max(self, array: Array) -> Array:
        lax = self.jax.lax
        return lax.cummax(array, axis=array.ndim - 1)

    def moving_average(self, array: Array, width: int, axis: int, periodic: bool) -> Array:
        place = self.xp.arange(array.shape[axis])
        apart = abs(place[:, None] - place)
        counted = (apart <= width // 2).astype(array.dtype)
        if periodic:
            counted += (apart > 0) & (len(place) - apart <= width // 2)
        return self.along(counted / width, array, axis)

    def add_at(self, array: Array, index: Array, values: Array) -> Array:
        flat = self.xp.reshape(array, (len(array), -1))
        return flat.at[:, index].add(values.astype(array.dtype)).reshape(array.shape)

    def inverse_of_positive(self, matrix: Array) -> Array:
        factor = self.xp.linalg.cholesky(matrix)
        return self.jax.scipy.linalg.cho_solve((factor, True), self.xp.eye(len(matrix), dtype=matrix.dtype))

    def padded_inverse(self, matrix: Array, size: int) -> Array:
        count = len(matrix)
        if isinstance(matrix, np.ndarray):
            padded = np.eye(size)
            padded[:count, :count] = matrix
            matrix = self.put(padded)
        else:
            matrix = self.xp.eye(size, dtype=matrix.dtype).at[:count, :count].set(matrix)
        return self.compiled(_inverse_of_first)(matrix, count)

    def together(self, inverses: list[Array]) -> Inverses:
        return self.xp.stack(inverses)

    def times(self, inverses: Inverses, vectors: Array) -> Array:
        stacked = self.xp.asarray(inverses)
        return self.xp.einsum("bij,bj->bi", stacked, vectors.astype(stacked.dtype), precision="highest")

    def repeated(self, step: Step[System, Iterate], times: int) -> Callable[[System, Iterate], Iterate]:
        return self.compiled(_steps, step=step, times=times)

    def loop(self, times: int, body: Callable[[int, State], State], start: State) -> State:
        return self.jax.lax.fori_loop(0, times, body, start)

    def compiled(self, function: Callable[..., Result], **settings: Hashable) -> Callable[..., Result]:
        return _compiled(self, function, tuple(sorted(settings.items())))

    @contextmanager
    def running(self) -> Iterator[None]:
        # A context, not the flag of the process; older versions of JAX have it in another place.
        owner: ModuleType = self.jax if hasattr(self.jax, "enable_x64") else import_module("jax.experimental")
        with owner.enable_x64(True), self.jax.default_device(self.device):
            yield

    def memory(self) -> int | None:
        """Bytes of the device that this process may use, None where it does not say."""
        found = self.device.memory_stats() or {}
        return found.get("bytes_limit")

    def __hash__(self) -> int:
        return hash(self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceArrays) and other.device == self.device


def _inverse_of_first(arrays: DeviceArrays, matrix: Array, count: int) -> Array:
    """The inverse of the first rows and columns, with zeros in the others, in which the matrix is the identity."""
    used = arrays.xp.arange(len(matrix)) < count
    return arrays.xp.where(used[:, None] & used, arrays.inverse_of_positive(matrix), 0)


def _steps(arrays: DeviceArrays, system: System, state: Iterate, *, step: Step[System, Iterate], times: int) -> Iterate:
    # A loop in the program: one step is compiled.
    return arrays.jax.lax.fori_loop(0, times, lambda _, now: step(arrays, system, now), state)


@cache
def _compiled(
    arrays: DeviceArrays, function: Callable[..., Result], settings: tuple[tuple[str, Hashable], ...]
) -> Callable[..., Result]:
    own = partial(function, arrays, **dict(settings))
    jitted: Callable[..., Result] = arrays.jax.jit(own, compiler_options=_compiler_options())
    return jitted


@cache
def _compiler_options() -> dict[str, int | bool]:
    """Options of the compiler: matrix products by the vendor's library, as it chooses.

    Trying out kernels for every product takes seconds a program, and generated ones that were not tried out are slow.
    """
    import jax

    options: dict[str, int | bool] = {"xla_gpu_autotune_level": 0}
    more = {**options, "xla_gpu_enable_triton_gemm": False}
    try:
        jax.jit(lambda x: x, compiler_options=more)(0.0)
    except jax.errors.JaxRuntimeError:  # a version without this option
        return options
    return more


def device_arrays(engine: object) -> DeviceArrays | None:
    """Arrays on the first device of an engine that runs on JAX, None for other engines."""
    devices = getattr(engine, "devices", None)
    if not devices or not hasattr(devices[0], "device_kind"):
        return None
    return DeviceArrays(devices[0])
