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
from labstaff.grader import wire, worker_machine
from labstaff.grader.confine import give_memory_back, limit_memory

_module = types.ModuleType("submission")
_given_out: list[Any] = []
"""Objects of the submission's of which the suite has the numbers."""


def serve(channel: socket.socket) -> None:
    """Answer requests until the suite's side hangs up."""
    worker = Worker(channel)
    wire.send(channel, *packed(wire.Returned()))  # ready: limits and filter are in force
    with contextlib.suppress(EOFError):
        while True:
            worker.answer(*wire.receive(channel))


class Worker:
    """One submission at the end of a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.buffers: list[memoryview] = []
        self.arrays: list[Any] = []
        worker_machine.install(self.ask)

    def answer(self, head: memoryview, buffers: list[memoryview]) -> None:
        """Do what a request asks for, and report its result or its exception."""
        self.buffers = buffers
        try:
            (action, *arguments), self.arrays = wire.from_suite(head, buffers)
            wire.send(self.channel, *getattr(self, action)(*arguments))
        except BaseException as error:  # SystemExit too: whatever a submission raises is reported
            wire.send(self.channel, *packed(described(error)))
        self.buffers, self.arrays = [], []

    def load(self, lab: Lab, name: str, source: bytes) -> Any:
        """Run the submission's file, as the import finder does in an ordinary run."""
        global _module
        file = Path(os.getcwd(), name)
        file.write_bytes(source)
        _module = sys.modules[lab.module] = types.ModuleType(lab.module)
        SourceLoader(Source(lab, file)).exec_module(_module)
        return packed(wire.Returned())

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        seconds: float | None,
        grad: bool,
        look: bool,
    ) -> Any:
        """The packed result of a call; with `look`, also the arrays of its arguments as they are after it."""
        with cpu_limit(seconds), _autograd(grad):
            result = function(*args, **kwargs)
            del args, kwargs
            return packed(wire.Returned(result, self.arrays if look else None))

    def preload(self, modules: Sequence[str]) -> Any:
        """Import modules before the submission is loaded: what they take is not the submission's memory."""
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        give_memory_back()
        return packed(wire.Returned())

    def call_within(self, n_bytes: int, submission: tuple[Lab, str, bytes], call: bytes) -> Any:
        """Load the submission and make a call, both within a limit of this process's memory, which the kernel holds."""
        limit_memory(n_bytes)
        self.load(*submission)
        arguments, self.arrays = wire.from_suite(call, self.buffers)
        return self.call(*arguments)

    def ask(self, number: int, name: str, arguments: Any = None) -> Any:
        """Have the suite's side carry out an operation on an object that it keeps."""
        with _uninterrupted():
            wire.send(self.channel, *packed(wire.Ask(number, name, arguments)))
            (succeeded, value), _ = wire.from_suite(*wire.receive(self.channel))
        if not succeeded:
            raise value
        return value


def packed(content: wire.Returned | wire.Raised | wire.Ask) -> tuple[bytes, list[memoryview]]:
    """A message as it is sent."""
    return wire.for_suite(wire.Message(content, worker_machine.dropped()), _describe)


def defined(name: str) -> Any:
    """What the submission defines by this name."""
    return getattr(_module, name)


def given_out(number: int) -> Any:
    """The object that the suite has this number of."""
    return _given_out[number]


def _describe(x: Any) -> list[Any]:
    """What stands for an object that cannot cross: the suite's number of it, or a number here and its class's name."""
    if (number := worker_machine.number_of(x)) is not None:
        return ["kept", number]
    _given_out.append(x)
    return ["handle", len(_given_out) - 1, type(x).__name__[:80]]


def described(error: BaseException) -> wire.Raised:
    """An exception as plain data; the frames that it passed through are freed."""
    with contextlib.suppress(Exception):
        traceback.clear_frames(error.__traceback__)
    passed = traceback.walk_tb(error.__traceback__)
    places = [(str(f.f_code.co_filename)[:200], line or 0, str(f.f_code.co_name)[:200]) for f, line in passed]
    try:
        message = str.__str__(str(error))[:2000]
        message.encode()
    except BaseException:
        message = ""
    kinds = [f"{kind.__module__}:{kind.__name__}"[:200] for kind in type(error).__mro__[:8]]
    return wire.Raised(kinds, message, places[-40:])


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


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let SIGPROF wait until the body has ended: half a message is none."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})


def _autograd(enabled: bool) -> contextlib.AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    return torch.set_grad_enabled(enabled) if torch else contextlib.nullcontext()
