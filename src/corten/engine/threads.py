"""Threads that share the work of passes and rounds, over kernels that release the lock of the interpreter."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Condition, Lock, local
from typing import Any, TypeVar

MIN_ENTRIES_FOR_THREADS = 30_000  # a pass over fewer takes less than a millisecond
MAX_THREADS_BESIDE_DEVICE = 8  # more wait for the lock of the interpreter: a fit on a device takes longer with 16

Item = TypeVar("Item")
Result = TypeVar("Result")


_single_thread: ContextVar[bool] = ContextVar("single_thread", default=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread by default for what is called in this block: for a task of a cluster, beside others on the machine."""
    before = _single_thread.set(True)
    try:
        yield
    finally:
        _single_thread.reset(before)


def default_threads() -> int:
    """Threads to use by default: CORTEN_THREADS, or the cores this process may run on; few `beside_device`.

    In a block of `one_thread` one, if CORTEN_THREADS does not say otherwise.
    """
    given = os.environ.get("CORTEN_THREADS", "")
    if given:
        if not given.isdigit() or int(given) < 1:
            raise ValueError(f"CORTEN_THREADS is {given!r}; give a whole number of at least 1")
        return int(given)
    if _single_thread.get():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(cores, MAX_THREADS_BESIDE_DEVICE) if beside_device.users else cores


def threads_for(entries: int) -> int | None:
    """One thread where handing out the work would take longer than a pass over so few entries; else the default."""
    return 1 if entries < MIN_ENTRIES_FOR_THREADS else None


@dataclass(eq=False)
class _Call:
    """One call of `in_order`: its items that no thread has begun, and those that are being worked on.

    limit: the most threads at once; above: the items, of other calls, inside which this call was made; context: that of
    the caller, in which items are done by any thread.
    """

    work: Callable[[Any], Any]
    limit: int
    above: tuple[Future[Any], ...]
    left: deque[tuple[Any, Future[Any]]] = field(default_factory=deque)
    running: set[Future[Any]] = field(default_factory=set)
    context: Context = field(default_factory=copy_context)

    @property
    def open(self) -> bool:
        """Whether one more thread may begin an item."""
        return bool(self.left) and len(self.running) < self.limit


_inside = local()
"""`items` of a thread: those that it is working on, as `_Call.above`."""


class _Team:
    """The threads beside the calling ones, which work on the items of all calls, those of the newest call first."""

    def __init__(self, count: int) -> None:
        self.count, self.active = count, 0
        self.calls: list[_Call] = []
        self.changed = Condition()  # an item was added, or is done; also the lock of all that is here
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="corten")

    def add(self, call: _Call, item: object) -> Future[Any]:
        """Offer one more item to the threads."""
        future: Future[Any] = Future()
        with self.changed:
            call.left.append((item, future))
            self.changed.notify_all()
            if len(call.left) > 1 and self.active < self.count:
                self.threads.submit(self._help)
                self.active += 1
        return future

    def work_on(self, wanted: Callable[[_Call], bool]) -> bool:
        """Do one item of the newest call that is `wanted`; False if there is none."""
        with self.changed:
            for call in reversed(self.calls):
                if call.open and wanted(call):
                    item, future = call.left.popleft()
                    break
            else:
                return False
            call.running.add(future)
        outside = getattr(_inside, "items", ())
        try:
            _inside.items = (*call.above, future)
            future.set_result(call.context.copy().run(call.work, item))
        except BaseException as problem:
            future.set_exception(problem)
            if isinstance(problem, KeyboardInterrupt):
                raise
        finally:
            _inside.items = outside
            with self.changed:
                call.running.discard(future)
                self.changed.notify_all()
        return True

    def result(self, call: _Call, future: Future[Result]) -> Result:
        """The result of an item of a call. Until it is there the calling thread works on what that result needs.

        That is the rest of the call, then the calls made inside the item. With other items it could wait for a lock
        that it holds itself.
        """
        while not future.done():
            if self.work_on(lambda one: one is call) or self.work_on(lambda one: future in one.above):
                continue
            with self.changed:
                if not future.done() and not any(one.open and future in one.above for one in self.calls):
                    self.changed.wait()
        return future.result()

    def end(self, call: _Call) -> None:
        """Begin no other item, and wait for those that run: what is running ends before the caller cleans up."""
        with self.changed:
            self.calls.remove(call)
            call.left.clear()
            while call.running:
                self.changed.wait()

    def _help(self) -> None:
        while True:
            while self.work_on(lambda call: True):
                pass
            with self.changed:
                if not any(call.open for call in self.calls):
                    self.active -= 1
                    return


@lru_cache(maxsize=8)
def _team(count: int) -> _Team:
    return _Team(count)


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Iterator[Result]:
    """Results of `work` in the order of `items`, a few ahead of the reader, so that memory stays bounded.

    The calling thread works too. So `work` may call this function itself: all levels share the same few threads, and
    none of them is idle while there is an item that it may do. Each further thread would keep freed memory of its own.
    """
    threads = threads or default_threads()
    if threads == 1:
        yield from map(work, items)
        return
    team = _team(max(threads, default_threads()) - 1)
    call = _Call(work, threads, above=getattr(_inside, "items", ()))
    with team.changed:
        team.calls.append(call)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(team.add(call, item))
            if len(waiting) > 2 * threads:
                yield team.result(call, waiting.popleft())
        while waiting:
            yield team.result(call, waiting.popleft())
    finally:
        team.end(call)


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
    _team.cache_clear()
    _inside.items = ()
    one_library_thread.forget()
    beside_device.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
