"""Calls what parses a student's text in a child process with limits: a crafted text can take hours, or all memory."""

from __future__ import annotations

import functools
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any, ParamSpec, TypeVar, cast

from labkit.labs.catalog import ROOT

CPU_SECONDS = 10.0
"""For one call, what it imports first included."""
WAIT_SECONDS = 300.0
"""By the clock, however many other programs share the machine."""
MEMORY_BYTES = 2 << 30

P = ParamSpec("P")
T = TypeVar("T")

_one_call = threading.Lock()


class TooMuch(Exception):
    """A call needed more time or memory than it may have; the message is part of a sentence: "it takes …"."""


def bounded(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function(*args, **kwargs)` returns or raises, computed in a child process that lives on for the next call.

    The function is named by its module; arguments and result are pickled. No student's code runs in the child.

    Raises:
        TooMuch: it took more than `CPU_SECONDS` or `MEMORY_BYTES`; the child is gone, and the next call gets another.
    """
    with _one_call:
        process, channel = _child()
        try:
            channel.send((function, args, kwargs, CPU_SECONDS))
            if not channel.poll(WAIT_SECONDS):
                raise EOFError
            result, error = channel.recv()
        except (EOFError, OSError):
            _child.cache_clear()
            channel.close()
            process.kill()
            process.wait()
            raise TooMuch(f"it takes more than {CPU_SECONDS:g} s of CPU time, or crashes its reader") from None
    if isinstance(error, MemoryError):
        raise TooMuch(f"it takes more than {MEMORY_BYTES >> 30} GiB of memory")
    if error is not None:
        raise error
    return cast(T, result)


@functools.cache
def _child() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # Ctrl-C is for the parent, with which this ends
        )
    return process, ours


def main(descriptor: int) -> None:
    """In the child: calls until the parent hangs up."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with Connection(descriptor) as channel:
        while True:
            try:
                function, args, kwargs, cpu_seconds = channel.recv()
            except EOFError:
                return
            channel.send(_called(function, args, kwargs, cpu_seconds))


def _called(function: Callable[..., Any], args: Any, kwargs: Any, cpu_seconds: float) -> tuple[Any, Exception | None]:
    """The result, and the exception."""
    # SIGPROF, which nothing here handles, ends the process, also within one call of a library.
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
