"""Ctrl-C ends the program within a second, without a traceback and without partial output."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

__all__ = ["end_at_once", "watch_for_interrupt"]

GRACE = 0.5  # seconds that the program has to tidy up by itself
STOPPED = 130  # what shells expect of a program ended by Ctrl-C


def watch_for_interrupt() -> None:
    """Make sure that an interrupt ends the program.

    Python hears a signal only between steps of the main thread, which may be inside a long compiled call, and waits at
    exit for threads that fill rounds. So a thread of its own listens as well, and ends the program after the grace.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "set_wakeup_fd"):
        return
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(heard,), name="corten-interrupt", daemon=True).start()


def _listen(heard: int) -> None:
    while signal.SIGINT not in os.read(heard, 1):
        pass
    time.sleep(GRACE)
    end_at_once()


def end_at_once() -> NoReturn:
    """Remove what is being written and leave, waiting for nobody."""
    whole = sys.modules.get("corten.io.whole")
    if whole is not None:
        whole.discard_unfinished()
    print("corten: stopped; nothing partial was left", file=sys.stderr, flush=True)
    os._exit(STOPPED)
