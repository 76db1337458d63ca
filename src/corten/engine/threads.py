"""Who runs the boxes: a pool of threads over kernels that release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

__all__ = ["default_threads", "in_order", "one_library_thread"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_threads() -> int:
    """Threads to use where nobody said: CORTEN_THREADS, or the cores this process may run on."""
    asked = os.environ.get("CORTEN_THREADS", "")
    if asked:
        if not asked.isdigit() or int(asked) < 1:
            raise ValueError(f"CORTEN_THREADS is {asked!r}; give a whole number of at least 1")
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@lru_cache(maxsize=8)
def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=f"corten-{name}")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None, pool: str = "passes"
) -> Iterator[Result]:
    """Results of `work` in the order of `items`, a few ahead of the reader, so that memory stays bounded.

    Work that itself waits for passes needs a pool of another name, or both would wait for the same threads.
    """
    threads = threads or default_threads()
    if threads == 1:
        yield from map(work, items)
        return
    workers = _pool(threads, pool)
    waiting: list[Future[Result]] = []
    try:
        for item in items:
            waiting.append(workers.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    finally:
        # After an error nobody works on: what is running ends before the caller cleans up.
        wait([future for future in waiting if not future.cancel()])


class _OneThread:
    """Keeps the libraries' own pools (BLAS, OpenMP) on one thread while a fit runs.

    Over small matrices they fight ours, and on a busy machine their spinning threads cost a hundredfold.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        from threadpoolctl import threadpool_limits

        with self._lock:
            self._users += 1
            if self._users == 1:
                self._limits = threadpool_limits(limits=1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limits.restore_original_limits()


one_library_thread = _OneThread()


def _forget_threads() -> None:
    """A forked process has none of its parent's threads: it makes pools and locks of its own."""
    _pool.cache_clear()
    one_library_thread.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
