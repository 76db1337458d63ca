"""Ctrl-C, and being asked to end, end the program within a second: no traceback, no partial output."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

__all__ = ["end_at_once", "is_ending", "is_told_to_end", "watch_for_interrupt"]

GRACE = 0.5  # seconds that the program has to tidy up by itself
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_heard: list[int] = []  # the signals that end the program; shells expect 128 more as its code
_ending = threading.Lock()


def watch_for_interrupt() -> None:
    """Make sure that an interrupt ends the program, and that being told to end (`kill`, a closed terminal, a batch
    system) is an interrupt.

    Python hears a signal only between steps of the main thread, which may be inside a long compiled call, and waits at
    exit for threads that fill rounds. So a thread of its own listens as well, and ends the program after the grace.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "set_wakeup_fd"):
        return
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and means it
            signal.signal(number, _interrupt)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_listen_no_more)
    threading.Thread(target=_listen, args=(heard,), name="corten-interrupt", daemon=True).start()


def _listen_no_more() -> None:
    """A forked process is ended by signals, even inside a compiled call, and does not tell its parent's listener."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _: object) -> None:
    if not _heard:  # once is enough: the second must not disturb the tidying up
        _heard.append(number)
        raise KeyboardInterrupt


def _listen(heard: int) -> None:
    number = 0
    while number not in SIGNALS:
        (number,) = os.read(heard, 1)
    time.sleep(GRACE)
    _heard.append(number)
    end_at_once()


def is_told_to_end() -> bool:
    """Whether a signal has come, wherever in the program it was heard."""
    return bool(_heard)


def is_ending() -> bool:
    """Whether the program is being ended: errors that come of that are no news."""
    return _ending.locked()


def _end_workers() -> None:
    multiprocessing = sys.modules.get("multiprocessing")
    workers = [] if multiprocessing is None else [one.pid for one in multiprocessing.active_children()]
    # Linux also tells of those that are being started, and of files being read apart.
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            workers += map(int, listed.read_text().split())
    for pid in workers:
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def end_at_once() -> NoReturn:
    """Remove what is being written, end worker processes and leave, waiting for nobody."""
    _ending.acquire()  # whoever comes second waits here until the first has ended the program
    _end_workers()
    whole = sys.modules.get("corten.io.whole")
    if whole is not None:
        whole.discard_unfinished()
    print("corten: stopped; nothing partial was left", file=sys.stderr, flush=True)
    os._exit(128 + (_heard or [signal.SIGINT])[0])
