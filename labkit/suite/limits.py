"""Stops code that runs too long, by name: an endless loop must not end a whole run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from labkit.suite.wall_clock import wall_seconds_now

SLOWEST_RIGHT_SECONDS = 11.0
"""What the slowest known right answer needs for one test, in CPU time: FlashAttention in tiles of 16 × 16."""
WALL_SECONDS = 60.0
"""How long a body may take by the clock: for one that sleeps, or waits for what never comes. See `wall_clock`."""
REPEAT_SECONDS = 1.0
LEAST_SECONDS = 0.01

clocks_elsewhere: list[Callable[[], float]] = []
"""Clocks of CPU seconds that other processes spend for the body, which count as its own."""


class TookTooLong(BaseException):
    """Raised inside the code that ran too long. Not an `Exception`, so that `except Exception` cannot swallow it."""

    def __init__(self, seconds: float, *, waited: bool = False) -> None:
        unit = "s by the clock" if waited else "s of CPU time"
        super().__init__(f"still running after {seconds:g} {unit}")
        self.seconds = seconds
        self.waited = waited
        self.why_less = ""
        self.limit: object = None
        """What `time_limit` gave its body, so that the limit that was exceeded can be told from another."""


@dataclass
class _Limit:
    """What one `time_limit` allows, and when it began."""

    cpu_seconds: float
    wall_seconds: float
    cpu_began: float = field(default_factory=lambda: cpu_seconds_now())
    wall_began: float = field(default_factory=wall_seconds_now)

    def seconds_left(self) -> float:
        """The least time on the wall before it can be exceeded; not above 0 when it is."""
        cpu_left = self.cpu_seconds - (cpu_seconds_now() - self.cpu_began)
        return min(cpu_left, self.wall_seconds - (wall_seconds_now() - self.wall_began))

    def error(self) -> TookTooLong:
        waited = cpu_seconds_now() - self.cpu_began < self.cpu_seconds
        error = TookTooLong(self.wall_seconds if waited else self.cpu_seconds, waited=waited)
        error.limit = self
        return error

    def cpu_error(self) -> TookTooLong:
        """As `error`, told by a process elsewhere that has watched its own CPU time."""
        error = TookTooLong(self.cpu_seconds)
        error.limit = self
        return error

    def cpu_seconds_left(self) -> float:
        return self.cpu_seconds - (cpu_seconds_now() - self.cpu_began)


_active: list[_Limit] = []
_held, _is_due = 0, False
"""How many bodies may not be interrupted now, and whether the alarm has gone off in them."""


@contextlib.contextmanager
def time_limit(cpu_seconds: float, wall_seconds: float = WALL_SECONDS) -> Iterator[object]:
    """Raise `TookTooLong` in the body when it has used `cpu_seconds`, and again every second while the body goes on.

    Counted is the CPU time of the thread that runs the body, and of `clocks_elsewhere`: neither other programs on a
    busy machine nor the number of cores that a library keeps warm decide about an answer. `wall_seconds` bound what
    takes no CPU time. Limits may be nested; each goes on counting while one inside it runs and after that has ended.

    Python runs signal handlers between bytecodes of the main thread: a loop is stopped, one long NumPy call only
    when it returns. Outside the main thread, or where there is no SIGALRM (Windows), the body runs without a limit.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield None
        return
    limit = _Limit(cpu_seconds, wall_seconds)
    previous = signal.signal(signal.SIGALRM, _look)
    _active.append(limit)
    _wait_for_next()
    try:
        yield limit
    finally:
        _active.remove(limit)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if _active:
            _wait_for_next()


@contextlib.contextmanager
def clock_stopped() -> Iterator[None]:
    """Let no limit count what happens in the body: somebody sits at a debugger's prompt."""
    resume = stop_clocks()
    try:
        yield
    finally:
        resume()


def stop_clocks() -> Callable[[], None]:
    """`clock_stopped` in two steps: no limit counts until the function that is returned is called."""
    if not _active:
        return lambda: None
    signal.setitimer(signal.ITIMER_REAL, 0)
    stopped = list(_active)
    cpu_began, wall_began = cpu_seconds_now(), wall_seconds_now()

    def resume() -> None:
        cpu_seconds, wall_seconds = cpu_seconds_now() - cpu_began, wall_seconds_now() - wall_began
        for limit in stopped:
            limit.cpu_began += cpu_seconds
            limit.wall_began += wall_seconds
        if _active:
            _wait_for_next()

    return resume


@contextlib.contextmanager
def not_interrupted() -> Iterator[None]:
    """Raise what becomes due in the body, which takes no time of its own, at its end: half a message is none."""
    global _held, _is_due
    _held += 1
    try:
        yield
    finally:
        _held -= 1
    if _is_due and not _held:
        _is_due = False
        _look(signal.SIGALRM, None)


@contextlib.contextmanager
def not_repeated() -> Iterator[None]:
    """Raise in the body, which tidies up after a limit that was exceeded, none again; from its end on as usual."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if _active:
            signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)


def stop_when_told() -> None:
    """Take SIGUSR1 for word that the time of what runs now is over; where no limit is active, it says nothing."""
    signal.signal(signal.SIGUSR1, _told)


def _told(signum: int, frame: FrameType | None) -> None:
    for limit in _active:
        limit.wall_seconds = 0.0
    if _active:
        _look(signum, frame)


def seconds_for_another() -> float | None:
    """CPU seconds that a process which works for the body may take by itself; None where nothing limits the body.

    A little less than is left, so that it stops first and can say where it was.
    """
    if not _active:
        return None
    left = min(limit.cpu_seconds_left() for limit in _active)
    return max(left - max(0.05, left / 20), LEAST_SECONDS)


def exceeded_by_another() -> TookTooLong:
    """What to raise when a process that was given `seconds_for_another` has taken them."""
    if not _active:
        return TookTooLong(0.0)
    return min(_active, key=_Limit.cpu_seconds_left).cpu_error()


def cpu_seconds_of(pid: int, *, alone: bool = False) -> float:
    """The CPU seconds that process `pid` and all its descendants have used so far; 0 where /proc does not tell.

    Args:
        alone: it can have none, so that nobody has to look for them.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        children: list[str] = []
        for thread in () if alone else os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as file:
                children += file.read().split()
    except (OSError, ValueError):
        return 0.0
    of_its_own_and_ended_children = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return of_its_own_and_ended_children + sum(cpu_seconds_of(int(child)) for child in children)


def _look(_signum: int, _frame: FrameType | None) -> None:
    """The alarm has gone off: raise the outermost limit that is exceeded, or set the alarm again."""
    global _is_due
    if _held:
        _is_due = True
        return
    for limit in _active:
        if limit.seconds_left() <= 0:
            signal.setitimer(signal.ITIMER_REAL, REPEAT_SECONDS)
            raise limit.error()
    _wait_for_next()


def _wait_for_next() -> None:
    """Set the alarm for when the first limit can be exceeded: a body that ends in time is never disturbed."""
    left = min(limit.seconds_left() for limit in _active)
    signal.setitimer(signal.ITIMER_REAL, max(left, LEAST_SECONDS))


def cpu_seconds_now() -> float:
    """The CPU seconds that limits count: of this thread, and of `clocks_elsewhere`."""
    return time.thread_time() + sum(clock() for clock in clocks_elsewhere)
