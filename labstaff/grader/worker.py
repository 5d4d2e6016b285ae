"""Worker side: loads a submission, then calls what the suite asks for, until the suite hangs up.

Everything here shares its process with the submission, so nothing here knows an expected value or decides anything.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.labs.manifest import Lab
from labkit.suite.finder import Source, SourceLoader
from labkit.suite.limits import TookTooLong
from labstaff.grader import wire
from labstaff.grader.confine import confine, give_memory_back

_module = types.ModuleType("submission")


def serve(channel: socket.socket) -> None:
    """Answer requests until the suite's side hangs up."""
    worker = Worker(channel)
    wire.send(channel, wire.READY, *wire.for_suite(wire.Returned()))
    with contextlib.suppress(EOFError):
        while True:
            worker.answer(*wire.receive(channel))


class Worker:
    """One submission at the end of a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.arrays: list[Any] = []

    def answer(self, number: bytes, head: memoryview, buffers: list[memoryview]) -> None:
        """Do what a request asks for, and report its result or its exception."""
        try:
            (action, *arguments), self.arrays = wire.from_suite(head, buffers)
            wire.send(self.channel, number, *getattr(self, action)(*arguments))
        except BaseException as error:  # SystemExit too: whatever a submission raises is reported
            wire.send(self.channel, number, *wire.for_suite(described(error)))
        self.arrays = []

    def load(self, lab: Lab, name: str, source: bytes, mapped_bytes: int, data_bytes: int) -> Any:
        """Run the submission's file, as the import finder does in an ordinary run; this process is confined first."""
        global _module
        file = Path(os.getcwd(), name)
        file.write_bytes(source)
        file.parent.chmod(0o555)
        confine(mapped_bytes, data_bytes)
        wire.hide_own_modules()
        _module = sys.modules[lab.module] = types.ModuleType(lab.module)
        SourceLoader(Source(lab, file)).exec_module(_module)
        return wire.for_suite(wire.Returned())

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        seconds: float | None,
        grad: bool,
        with_arguments: bool,
    ) -> Any:
        """The packed result of a call, and on demand the arrays among its arguments as they are after it."""
        with cpu_limit(seconds), _autograd(grad):
            result = function(*args, **kwargs)
            del args, kwargs
            return wire.for_suite(wire.Returned(result, self.arrays if with_arguments else None))

    def preload(self, modules: Sequence[str], exact: bool) -> Any:
        """Import modules before the submission is loaded: what they take is not the submission's memory.

        Args:
            exact: only memory that is in use shall count from now on.
        """
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        if exact:
            give_memory_back()
        return wire.for_suite(wire.Returned())


def defined(name: str) -> Any:
    """What the submission defines by this name."""
    return getattr(_module, name)


def described(error: BaseException) -> wire.Raised:
    """An exception as plain data; the frames that it passed through are freed."""
    with contextlib.suppress(Exception):
        traceback.clear_frames(error.__traceback__)
    passed = traceback.walk_tb(error.__traceback__)
    places = [(str(f.f_code.co_filename)[:200], line or 0, str(f.f_code.co_name)[:200]) for f, line in passed]
    try:
        message = str.__str__(str(error))[: wire.MAX_TEXT]
        message.encode()
    except BaseException:
        message = ""
    kinds = [f"{kind.__module__}:{kind.__name__}"[:200] for kind in type(error).__mro__[: wire.MAX_KINDS]]
    return wire.Raised(kinds, message, places[-wire.MAX_PLACES :])


@contextlib.contextmanager
def cpu_limit(seconds: float | None) -> Iterator[None]:
    """Raise TookTooLong in the body after so many CPU seconds and each second after, and on a SIGPROF from outside."""

    def stop(*_: object) -> None:
        raise TookTooLong(seconds or 0.0)

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds or 0.0, 1.0 if seconds else 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)


def _autograd(enabled: bool) -> contextlib.AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    return torch.set_grad_enabled(enabled) if torch else contextlib.nullcontext()
