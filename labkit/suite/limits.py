"""Stops code that runs too long, by name: an endless loop must not end a whole run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

REPEAT_SECONDS = 1.0


class TookTooLong(BaseException):
    """Raised inside the code that ran too long. Not an `Exception`, so that `except Exception` cannot swallow it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"still running after {seconds:g} s")
        self.seconds = seconds


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the body after `seconds`, and again every second while the body goes on.

    Python runs signal handlers between bytecodes of the main thread: a loop is stopped, one long NumPy call only
    when it returns. Outside the main thread, or where there is no SIGALRM (Windows), the body runs without a limit.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise TookTooLong(seconds)

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
