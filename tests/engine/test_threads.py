"""Threads: their number, and how nested calls share them."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, get_ident

import pytest

from corten.engine.threads import MAX_THREADS_BESIDE_DEVICE, beside_device, default_threads, in_order, one_thread


def test_few_threads_beside_a_device(monkeypatch):
    monkeypatch.delenv("CORTEN_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert default_threads() == 64
    with beside_device:
        with beside_device:
            assert default_threads() == MAX_THREADS_BESIDE_DEVICE
        assert default_threads() == MAX_THREADS_BESIDE_DEVICE
        monkeypatch.setenv("CORTEN_THREADS", "12")
        assert default_threads() == 12  # what the user asks for
    monkeypatch.delenv("CORTEN_THREADS")
    assert default_threads() == 64


@pytest.mark.parametrize("first", [True, False])
def test_a_thread_that_waits_for_an_item_works_inside_it(first, monkeypatch):
    monkeypatch.setenv("CORTEN_THREADS", "2")
    both, long_one_began = Barrier(2), Event()

    def meet(number):
        both.wait(timeout=60)  # only two threads at once pass
        return number

    def outer(long):
        if long:
            long_one_began.set()
            return sum(in_order(meet, range(4)))
        long_one_began.wait(timeout=60)
        return 0

    assert list(in_order(outer, [first, not first])) == [6 * first, 6 * (not first)]


def test_no_item_starts_after_an_error_and_running_ones_end(monkeypatch):
    monkeypatch.setenv("CORTEN_THREADS", "3")
    failed, done = Event(), []

    def work(number):
        if number == 0:
            failed.set()
            raise ValueError("the first")
        failed.wait(timeout=60)
        done.append(number)

    with pytest.raises(ValueError, match="the first"):
        list(in_order(work, range(100)))
    ended = list(done)
    assert len(ended) < 10
    assert list(in_order(lambda one: one, range(5))) == [0, 1, 2, 3, 4]
    assert done == ended


def test_a_task_beside_others_uses_one_thread(monkeypatch):
    monkeypatch.delenv("CORTEN_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
    with one_thread():
        assert default_threads() == 1
        assert list(in_order(lambda _: get_ident(), range(8))) == [get_ident()] * 8
        # Threads that help with work of this block are in it too, other threads of the process are not.
        assert list(in_order(lambda _: default_threads(), range(8), 3)) == [1] * 8
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(default_threads).result() == 4
        monkeypatch.setenv("CORTEN_THREADS", "3")
        assert default_threads() == 3  # what the user asks for
    monkeypatch.delenv("CORTEN_THREADS")
    assert default_threads() == 4
