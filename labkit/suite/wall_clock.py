"""The clock on the wall as limits count it: it stands still while what is judged waits for a processor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

NANOSECONDS = 1e-9

queues_elsewhere: list[Callable[[], float]] = []
"""Clocks of seconds for which other processes that work for the body have waited for a processor."""


def wall_seconds_now() -> float:
    """Seconds by the clock, less those in which this thread, or a process that works for it, waited for a processor.

    On a busy machine a loop can wait for a processor many times as long as it has one: then the clock says nothing
    of the loop. Where the kernel does not tell (no /proc), it is the clock alone.
    """
    return time.monotonic() - _queued_seconds("/proc/thread-self") - sum(clock() for clock in queues_elsewhere)


def queued_seconds_of(pid: int) -> float:
    """For how long process `pid` and its living descendants have waited for a processor; 0 where /proc does not tell.

    Of each the first thread counts: what it waits for, it waits for once.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            children = file.read().split()
    except OSError:
        return 0.0
    return _queued_seconds(f"/proc/{pid}") + sum(queued_seconds_of(int(child)) for child in children)


def _queued_seconds(folder: str) -> float:
    try:
        with open(os.path.join(folder, "schedstat"), encoding="utf-8") as file:
            _had_one, waited_for_one, _turns = file.read().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_for_one) * NANOSECONDS
