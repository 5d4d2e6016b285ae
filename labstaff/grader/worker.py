"""Worker side: loads a submission, then calls what the suite asks for, until the suite hangs up.

Everything here shares its process with the submission, so nothing here knows an expected value or decides anything.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
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


def serve(channel: socket.socket) -> None:
    """Source requests until the suite's side hangs up."""
    worker = Worker(channel)
    worker.say(wire.Returned(None))  # ready: limits and filter are in force
    with contextlib.suppress(EOFError):
        while True:
            worker.answer(*wire.receive(channel))


class Worker:
    """One submission, and the objects that it has given out."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        worker_machine.install(self.ask)
        self.module = types.ModuleType("submission")
        self.given_out: list[Any] = []
        self.held: tuple[Any, ...] = ()
        self.reader = wire.Reader([], self.find)

    def say(self, message: wire.FromWorker) -> None:
        """Send a message."""
        wire.send(self.channel, *self.packed(message))

    def packed(self, message: wire.FromWorker) -> tuple[bytes, list[memoryview]]:
        """A message as it is sent."""
        message.dropped = worker_machine.dropped()
        return wire.for_suite(message, self.describe)

    def answer(self, head: memoryview, buffers: memoryview) -> None:
        """Do what a request asks for, and report its result or its exception."""
        try:
            (action, *arguments), self.reader = wire.from_suite(head, buffers, self.find)
            packed = getattr(self, action)(*arguments)
        except BaseException as error:  # SystemExit too: whatever a submission raises is reported
            packed = self.packed(described(error))
        self.reader = wire.Reader([], self.find)
        wire.send(self.channel, *packed)

    def load(self, lab: Lab, name: str, source: bytes) -> Any:
        """Run the submission's file, as the import finder does in an ordinary run."""
        file = Path(os.getcwd(), name)
        file.write_bytes(source)
        self.module = sys.modules[lab.module] = types.ModuleType(lab.module)
        SourceLoader(Source(lab, file)).exec_module(self.module)
        return self.packed(wire.Returned(None))

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
            arguments = [[number, array] for number, array in self.reader.arrays.items()] if look else None
            return self.packed(wire.Returned(result, arguments, worker_machine.known_as(result)))

    def limit(self, n_bytes: int) -> Any:
        """Limit this process's memory; the suite's side asks the kernel whether that was done."""
        limit_memory(n_bytes)
        return self.packed(wire.Returned(None))

    def preload(self, modules: list[str]) -> Any:
        """Import modules before the submission is loaded, whose memory is measured from here on."""
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        give_memory_back()
        return self.packed(wire.Returned(None))

    def hold(self, *call: Any) -> Any:
        """Keep a call whose arguments have arrived, until the memory limit is set."""
        self.held = call
        give_memory_back()
        return self.packed(wire.Returned(None))

    def go(self) -> Any:
        """Make the call that is held."""
        call, self.held = self.held, ()
        return self.call(*call)

    def ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Have the suite's side carry out an operation of the simulated machine, or call a method of its own."""
        with _uninterrupted():
            self.say(wire.Ask(operation, (args, kwargs)))
            (succeeded, value), _ = wire.from_suite(*wire.receive(self.channel), self.find)
        if not succeeded:
            raise value
        return value

    def describe(self, x: Any) -> list[Any] | None:
        """What stands for an object that cannot cross: a machine's thing, or a handle with the name of its class."""
        if (described := worker_machine.describe(x)) is not None:
            return described
        self.given_out.append(x)
        return ["handle", [len(self.given_out) - 1, type(x).__name__[:80]]]

    def find(self, description: Any) -> Any:
        """The object that a stand-in of the suite's stands for: something given out, or a name of the module's."""
        kind, content = description
        if kind == "callback":
            return lambda *args: self.ask("callback", content, *args)
        if kind != "real":
            return worker_machine.made(description)
        number, path = content
        thing = self.module if number is None else self.given_out[number]
        return operator.attrgetter(path)(thing) if path else thing


def described(error: BaseException) -> wire.Raised:
    """An exception as plain data; the frames that it passed through are freed."""
    with contextlib.suppress(Exception):
        traceback.clear_frames(error.__traceback__)
    places: list[tuple[str, int, str]] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        places.append((str(code.co_filename)[:200], int(entry.tb_lineno or 0), str(code.co_name)[:200]))
        entry = entry.tb_next
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


@contextlib.contextmanager
def _autograd(enabled: bool) -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.set_grad_enabled(enabled):
        yield
