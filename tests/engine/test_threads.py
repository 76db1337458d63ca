"""The number of threads."""

import os

from corten.engine.threads import MAX_THREADS_BESIDE_DEVICE, beside_device, default_threads


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
