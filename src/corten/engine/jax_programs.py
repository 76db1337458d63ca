"""Compiled programs of arrays and settings, which can be compiled on another thread while a mask is on its way."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, update_wrapper
from typing import Any

import jax

__all__ = ["Program", "program"]

COMPILERS = 4


class Program:
    """A function compiled for each set of shapes, devices and settings it meets.

    Matrix products are not tried out while compiling: that takes seconds a program and saves little here.
    """

    def __init__(self, function: Callable[..., Any], settings: tuple[str, ...]) -> None:
        self._compiled = jax.jit(
            function, static_argnames=settings, compiler_options={"xla_gpu_autotune_level": 0}
        )
        self._ahead: dict[Hashable, Future[Any]] = {}
        update_wrapper(self, function)

    def ahead(self, *arrays: Any, **settings: Any) -> None:
        """Begin to compile for arrays like these (`jax.ShapeDtypeStruct` will do); a call finds it done, or waits."""
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
    return ThreadPoolExecutor(COMPILERS, thread_name_prefix="corten-compile")


def _key(arrays: tuple[Any, ...], settings: dict[str, Any]) -> Hashable:
    def like(array: Any) -> Hashable:
        if array is None:
            return None
        sharding = getattr(array, "sharding", None)
        return array.shape, str(array.dtype), frozenset(sharding.device_set) if sharding is not None else None

    return tuple(map(like, arrays)), tuple(sorted(settings.items(), key=lambda item: item[0]))
