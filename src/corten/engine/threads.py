"""Threads that share the work of passes and rounds, over kernels that release the lock of the interpreter."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from threading import Lock, Semaphore
from typing import Any, TypeVar

MIN_ENTRIES_FOR_THREADS = 30_000  # a pass over fewer takes less than a millisecond
MAX_THREADS_BESIDE_DEVICE = 8  # more wait for the lock of the interpreter: a fit on a device takes longer with 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_threads() -> int:
    """Threads to use by default: CORTEN_THREADS, or the cores this process may run on, few `beside_device`."""
    given = os.environ.get("CORTEN_THREADS", "")
    if given:
        if not given.isdigit() or int(given) < 1:
            raise ValueError(f"CORTEN_THREADS is {given!r}; give a whole number of at least 1")
        return int(given)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(cores, MAX_THREADS_BESIDE_DEVICE) if beside_device.users else cores


def threads_for(entries: int) -> int | None:
    """One thread where handing out the work would take longer than a pass over so few entries; else the default."""
    return 1 if entries < MIN_ENTRIES_FOR_THREADS else None


@lru_cache(maxsize=8)
def _helpers(count: int) -> tuple[ThreadPoolExecutor, Semaphore]:
    """Threads beside the calling one, and how many of them are idle."""
    return ThreadPoolExecutor(count, thread_name_prefix="corten"), Semaphore(count)


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Iterator[Result]:
    """Results of `work` in the order of `items`, a few ahead of the reader, so that memory stays bounded.

    The calling thread works too, on what no idle thread has taken. So `work` may call this function itself: all levels
    share the same few threads. Each further thread would keep freed memory of its own.
    """
    threads = threads or default_threads()
    if threads == 1:
        yield from map(work, items)
        return
    helpers, idle = _helpers(max(threads, default_threads()) - 1)
    places = Semaphore(threads - 1)  # the helpers may be more than were asked for
    waiting: deque[Future[Result]] = deque()
    left: deque[tuple[Item, Future[Result]]] = deque()  # not begun
    helping: list[Future[None]] = []

    def one_more() -> bool:
        """Do the next of what is left; False if there is nothing."""
        try:
            item, future = left.popleft()
        except IndexError:
            return False
        try:
            future.set_result(work(item))
        except BaseException as problem:
            future.set_exception(problem)
            if isinstance(problem, KeyboardInterrupt):
                raise
        return True

    def help_out() -> None:
        try:
            while one_more():
                pass
        finally:
            places.release()
            idle.release()

    def first() -> Result:
        while not waiting[0].done() and one_more():
            pass
        return waiting.popleft().result()

    try:
        for item in items:
            future: Future[Result] = Future()
            waiting.append(future)
            left.append((item, future))
            if len(waiting) > 1 and places.acquire(blocking=False):
                if idle.acquire(blocking=False):
                    helping.append(helpers.submit(help_out))
                else:
                    places.release()
            if len(waiting) > 2 * threads:
                yield first()
        while waiting:
            yield first()
    finally:
        # After an error no task starts: what is running ends before the caller cleans up.
        left.clear()
        wait(helping)


def side_by_side(*work: Callable[[], Any], at_least: int = 1) -> list[Any]:
    """The results of functions that leave cores idle, at once where there are threads for it."""
    threads = max(at_least, min(len(work), default_threads()))
    return list(in_order(lambda begin: begin(), work, threads))


class Shared:
    """A context that several threads may be in at once: the first of them enters what `make` gives, the last leaves."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._make = make
        self.forget()

    def forget(self) -> None:
        """Count from zero, in a process that was forked."""
        self._lock = Lock()
        self._entered = ExitStack()
        self.users = 0

    def __enter__(self) -> None:
        with self._lock:
            self.users += 1
            if self.users == 1:
                self._entered.enter_context(self._make())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.users -= 1
            if self.users == 0:
                self._entered.close()


def _limited_pools() -> AbstractContextManager[object]:
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1)


one_library_thread = Shared(_limited_pools)
"""Keeps the libraries' own pools (BLAS, OpenMP) on one thread while a fit runs.

With small matrices they compete with the threads here; on a busy machine this costs a factor of a hundred.
"""
beside_device = Shared()
"""Around a fit whose rounds run on a device: what is left for the host are short tasks, and few threads do them."""


def _forget_threads() -> None:
    """A forked process has none of its parent's threads: it makes pools and locks of its own."""
    _helpers.cache_clear()
    one_library_thread.forget()
    beside_device.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
