"""Ctrl-C and termination signals end the program within a second: no traceback, no partial output."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

GRACE_SECONDS = 0.5  # for a normal exit
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_heard: list[int] = []  # signals received; the exit code is 128 plus the first
_ending = threading.Lock()


def watch_for_interrupt() -> None:
    """Make sure that Ctrl-C, `kill`, a closed terminal or a batch system ends the program.

    Python handles a signal only between bytecodes of the main thread, which may be inside a long compiled call, and
    waits at exit for threads that fill rounds. So another thread listens too, and ends the program after a grace time.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "set_wakeup_fd"):
        return
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup
            signal.signal(number, _interrupt)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_listen_no_more)
    threading.Thread(target=_listen, args=(heard,), name="corten-interrupt", daemon=True).start()


def _listen_no_more() -> None:
    """In a forked process: default signal handling, no message to the parent's listener."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _: object) -> None:
    if not _heard:  # a second signal must not disturb the exit
        _heard.append(number)
        raise KeyboardInterrupt


def _listen(heard: int) -> None:
    number = 0
    while number not in SIGNALS:
        (number,) = os.read(heard, 1)
    time.sleep(GRACE_SECONDS)
    _heard.append(number)
    end_at_once()


def is_told_to_end() -> bool:
    """Whether a termination signal has arrived."""
    return bool(_heard)


def is_ending() -> bool:
    """Whether the program is ending: errors caused by that are not reported."""
    return _ending.locked()


def _end_workers() -> None:
    multiprocessing = sys.modules.get("multiprocessing")
    workers = [] if multiprocessing is None else [one.pid for one in multiprocessing.active_children()]
    # On Linux also processes that are being started, and those that read files.
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            workers += map(int, listed.read_text().split())
    for pid in workers:
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def end_at_once() -> NoReturn:
    """Remove unfinished files, end worker processes and exit without waiting for threads."""
    _ending.acquire()  # a second caller waits here until the program has ended
    _end_workers()
    whole = sys.modules.get("corten.io.whole")
    if whole is not None:
        whole.discard_unfinished()
    print("corten: stopped; nothing partial was left", file=sys.stderr, flush=True)
    os._exit(128 + (_heard or [signal.SIGINT])[0])
