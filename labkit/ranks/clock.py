"""Counts the CPU time of ranks that are threads, so that a test's time limit counts it too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from labkit.suite.limits import clocks_elsewhere

_finished_seconds = 0.0
_began: list[float] = []
"""What the other threads of this process had used when the run began that is under way, if any."""


def ranks_cpu_seconds() -> float:
    """The CPU seconds that ranks of this process have used so far: what a test's time limit must count too."""
    return _finished_seconds + sum(_other_threads_seconds() - seconds for seconds in _began[:1])


def _other_threads_seconds() -> float:
    return time.process_time() - time.thread_time()


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Have time limits count what other threads than this one use: it waits for them."""
    global _finished_seconds
    _began.append(_other_threads_seconds())
    try:
        yield
    finally:
        _finished_seconds = ranks_cpu_seconds()
        _began.pop()


clocks_elsewhere.append(ranks_cpu_seconds)
