"""The limits of a test, and what stops it: a limit of CPU time, and one by the clock for a test that only waits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType

WALL_SECONDS = 20.0
"""After so long by the clock a test is stopped if it only waits, for what never comes.

Without a GPU, no suite's test waits for another program but `ptxas`, for a fraction of a second.
"""
WAITING_SHARE = 1 / 30
"""A test that has used less CPU time than this share of the time by the clock is one that waits. The clock stops no
other: that ends when its CPU time does, however many programs share the machine."""
MAX_TEST_SECONDS = float(os.environ.get("ATTENTION_LABS_TEST_SECONDS", "inf"))
"""No test and no import may take more CPU seconds: for tests of the limits themselves."""
REPEAT_SECONDS = 1.0

worker_clocks: list[Callable[[], float]] = []
"""Clocks of CPU seconds that other processes spend for the body, which count as its own."""


class Limit(StrEnum):
    """What is limited, and the unit of the limit."""

    CPU_TIME = "s of CPU time"
    CLOCK = "s by the clock"
    MEMORY = "MiB of memory"
    SLOW_TESTS = "tests of a task that take too long"
    PROCESS_ENDS = "ends of the submission's process"


@dataclass(frozen=True)
class Exceeded:
    """A limit that was exceeded: how much is allowed, in the limit's unit, and how much was used, where it is known.

    Where the clock has stopped what only waits, what was used is CPU time in s: next to nothing.
    """

    limit: Limit
    allowed: float
    used: float | None = None


class NotBegun(BaseException):
    """Raised instead of a test that is left out, since a limit was exceeded before it."""

    def __init__(self, exceeded: Exceeded) -> None:
        super().__init__(exceeded)
        self.exceeded = exceeded


class TookTooLong(BaseException):
    """Raised inside the code that ran too long. Not an `Exception`, so that `except Exception` cannot swallow it."""

    def __init__(self, seconds: float, *, cpu_seconds: float | None = None) -> None:
        limit = Limit.CPU_TIME if cpu_seconds is None else Limit.CLOCK
        super().__init__(f"still running after {seconds:g} {limit}")
        self.exceeded = Exceeded(limit, seconds, None if cpu_seconds is None else round(cpu_seconds, 1))


class _Limit:
    """The limit of the body that runs now."""

    def __init__(self, cpu_seconds: float, wall_seconds: float) -> None:
        self.cpu_seconds, self.wall_seconds = cpu_seconds, wall_seconds
        self.cpu_began, self.began = cpu_seconds_now(), time.monotonic()
        self.fired = self.finished = False

    def cpu_seconds_left(self) -> float:
        return self.cpu_seconds - (cpu_seconds_now() - self.cpu_began)

    def exceeded(self, signum: int, _frame: FrameType | None) -> None:
        if self.finished:
            return
        error = TookTooLong(self.cpu_seconds)
        if signum == signal.SIGALRM:
            seconds, used = time.monotonic() - self.began, cpu_seconds_now() - self.cpu_began
            if used >= seconds * WAITING_SHARE and not self.fired:
                return
            error = TookTooLong(round(min(seconds, self.wall_seconds), 1), cpu_seconds=used)
        self.fired = True
        raise error


_limit: _Limit | None = None


@contextlib.contextmanager
def time_limit(cpu_seconds: float, wall_seconds: float = WALL_SECONDS) -> Iterator[None]:
    """Raise `TookTooLong` in the body when this process has used `cpu_seconds`, and again each second after that.

    It is raised as well where the body only waits, after `wall_seconds` by the clock. Inside another limit the body has
    none of its own. Python runs signal handlers between bytecodes of the main thread: a loop is stopped, one long NumPy
    call only when it returns. Outside the main thread, or where there are no such signals (Windows), there is no limit.
    """
    global _limit
    if _limit or not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit = _limit = _Limit(cpu_seconds, wall_seconds)
    previous = {number: signal.signal(number, limit.exceeded) for number in (signal.SIGPROF, signal.SIGALRM)}
    _set_timers(cpu_seconds, wall_seconds)
    try:
        try:
            yield
        finally:  # a signal may still come here, and raise: the clean-up has a block of its own
            limit.finished = True
    finally:
        _set_timers(0, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
        _limit = None


def stop_clocks() -> Callable[[], None]:
    """Suspend the limit until the returned function is called: somebody is using a debugger."""
    limit = _limit
    if limit is None:
        return lambda: None
    cpu_left, wall_left = (signal.getitimer(timer)[0] for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL))
    cpu_stopped, stopped = cpu_seconds_now(), time.monotonic()
    _set_timers(0, 0)

    def resume() -> None:
        limit.cpu_began += cpu_seconds_now() - cpu_stopped
        limit.began += time.monotonic() - stopped
        if _limit is limit:
            _set_timers(cpu_left, wall_left)

    return resume


@contextlib.contextmanager
def not_repeated() -> Iterator[None]:
    """Raise nothing in the body, which cleans up after an exceeded limit; after it the limit works as usual."""
    _set_timers(0, 0)
    try:
        yield
    finally:
        if _limit:
            _set_timers(REPEAT_SECONDS, REPEAT_SECONDS)


def worker_seconds_left() -> float | None:
    """CPU seconds that a helper process of the body may use; None if nothing limits the body.

    A little less than is left, so that it stops first and can say where it was.
    """
    if _limit is None:
        return None
    left = _limit.cpu_seconds_left()
    return max(left - max(0.05, left / 20), 0.01)


def worker_took_too_long() -> TookTooLong:
    """The exception to raise when a helper process has used up its `worker_seconds_left`."""
    return TookTooLong(_limit.cpu_seconds if _limit else 0.0)


def cpu_seconds_now() -> float:
    """The CPU seconds that limits count: those of this process and of `worker_clocks`."""
    return time.process_time() + sum(clock() for clock in worker_clocks)


def cpu_seconds_of(pid: int) -> float:
    """The CPU seconds that process `pid` has used so far; 0 if /proc does not show them."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _set_timers(cpu_seconds: float, wall_seconds: float) -> None:
    """Set when the signals come; 0 for never."""
    for timer, seconds in ((signal.ITIMER_PROF, cpu_seconds), (signal.ITIMER_REAL, wall_seconds)):
        signal.setitimer(timer, seconds, REPEAT_SECONDS if seconds else 0)
