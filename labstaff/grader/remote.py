"""Suite side: the functions that a suite finds instead of a submission's; a call runs the real one in the worker."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import secrets
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest

import labkit.meters
import labkit.ranks
import labkit.serving
from labkit.suite import finder, limits
from labkit.suite.finder import Source, Unusable
from labkit.suite.limits import (
    Exceeded,
    Limit,
    NotBegun,
    TookTooLong,
    not_repeated,
    worker_seconds_left,
    worker_took_too_long,
)
from labkit.suite.messages import ProcessEnded
from labkit.testing import probes
from labkit.testing.memory_limit import SLACK_BYTES, NeedsMoreMemory, needs_more
from labkit.testing.unchanged import must_return_arguments
from labstaff.grader import wire, worker
from labstaff.grader.confine import MEMORY_BYTES
from labstaff.grader.imports import imported_modules
from labstaff.grader.sandbox import Worker, Workers

MAX_STARTS = 40
"""How often a submission's worker is started again before the rest of its tests fail."""
LOAD_SECONDS = 120.0
"""How long loading a file may take by the clock: behind the limit that the worker itself sets to an import."""
STOP_SECONDS = 20.0
"""How long a call that is told to stop may take to stop: one call into a library."""
PLOTS = "matplotlib.pyplot"
"""Imported before a submission that names it: its import needs a folder to write in."""
FORGED = "the submission wrote to the suite itself, past the worker: a reply that nobody had asked for"
TOOK_TOO_LONG = f"{TookTooLong.__module__}:{TookTooLong.__name__}"
FINDER_ERRORS = (finder.Unusable, finder.TaskMissing, finder.ImportNeedsMemory)
KNOWN = {f"builtins:{name}": kind for name, kind in vars(builtins).items() if isinstance(kind, type)}
KNOWN |= {f"{finder.__name__}:{kind.__name__}": kind for kind in FINDER_ERRORS}
MEASURING = (labkit.meters, labkit.ranks, labkit.serving)
"""What is sent with each probe that names it, and not found in the worker."""
COURSE_ERRORS = {"labkit.simulated_memory": "SRAMOverflow", "torch": "OutOfMemoryError"}


class SubmissionError(Exception):
    """An exception whose class has no meaning here, or the end of the worker."""


class WorkerEnded(ProcessEnded, SubmissionError):
    """The worker ended in the middle of a call."""


class ForgedReply(pytest.exit.Exception):  # type: ignore[name-defined]
    """Ends the run. No code does this by accident: what was tested so far need not be true either."""


class SubmissionProcess:
    """One submission in its worker, which is started when needed and again after it has died."""

    def __init__(self, sandbox: Workers, source: Source) -> None:
        self.sandbox, self.source = sandbox, source
        self.worker: Worker | None = None
        self.n_starts = 0
        self.unusable = ""
        self._cpu_seconds = 0.0

    def cpu_seconds(self) -> float:
        """The CPU time of all its workers so far."""
        return self._cpu_seconds + (self.worker.cpu_seconds if self.worker else 0.0)

    def start(self) -> None:
        """Have a worker with the submission loaded. A test's clock stands still meanwhile: an import has its own limit.

        Raises:
            Unusable: loading it has failed, now or before.
            NotBegun: its worker has ended too often.
        """
        if self.worker is not None:
            return
        with contextlib.ExitStack() as stack:
            stack.callback(limits.stop_clocks())
            source = self._new_worker()
            try:
                modules = [PLOTS] if b"matplotlib" in source else []
                self._load(source, modules, MEMORY_BYTES)
            except SubmissionError as error:
                self.unusable = f"importing {self.source.file.name} failed: {error}"
                raise Unusable(self.unusable) from None

    def end(self) -> int | None:
        """End the worker; its exit status, None where it had ended before."""
        worker, self.worker = self.worker, None
        if worker is None:
            return None
        status = worker.end()
        self._cpu_seconds += worker.cpu_seconds
        return status

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a call returns: plain data, and an `Opaque` for everything else.

        Args:
            function: a `RemoteFunction`, or a function of the suite's that is to run there.

        Raises:
            Exception: what it raised, where that class is known here, and SubmissionError otherwise.
        """
        self.start()
        return self._request(_call(function, args, kwargs))

    def call_within(self, task: str, mib: float, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """As `call`, in a fresh worker that may allocate so many MiB for the call of a task.

        Raises:
            NeedsMoreMemory: it needs more.
        """
        self.end()
        try:
            call = _call(function, args, kwargs)
            room = sum(map(len, call.buffers)) + SLACK_BYTES + int(mib * 2**20)
            with contextlib.ExitStack() as stack:
                stack.callback(limits.stop_clocks())
                source = self._new_worker()
                modules = imported_modules(source.decode("utf-8-sig", "replace"))
                self._load(source, modules, room, exact=True)
            return self._request(call)
        except Exception as error:
            if _is_want_of_memory(error):
                raise NeedsMoreMemory(needs_more(task, mib, args), mib) from None
            raise
        finally:
            self.end()

    def _new_worker(self) -> bytes:
        """Start a worker; the submission's text."""
        file = self.source.file
        try:
            source = file.read_bytes()
        except OSError as error:
            self.unusable = f"{file.name} cannot be read: {error.strerror}"
        if self.unusable:
            raise Unusable(self.unusable)
        if self.n_starts == MAX_STARTS:
            raise NotBegun(Exceeded(Limit.PROCESS_ENDS, MAX_STARTS))
        self.n_starts += 1
        self.worker = self.sandbox.worker()
        return source

    def _load(self, source: bytes, modules: Sequence[str], room: int, *, exact: bool = False) -> None:
        """Have the worker import `modules`, and load the submission with so many bytes of memory beyond them.

        Args:
            exact: only memory that is in use shall count.
        """
        assert self.worker is not None
        self._request(wire.for_worker(("preload", modules, exact)), LOAD_SECONDS)
        bounds = [n_bytes + room for n_bytes in self.worker.memory_bytes]
        submission = self.source.lab, self.source.file.name, source
        self._request(wire.for_worker(("load", *submission, *bounds)), LOAD_SECONDS)

    def _request(self, request: wire.Pickled, seconds: float | None = None) -> Any:
        worker, number = self.worker, secrets.token_bytes(len(wire.READY))
        assert worker is not None
        try:
            wire.require_silence(worker.channel)
            wire.send(worker.channel, number, request.head, request.buffers)
            reply = wire.from_worker(*wire.receive(worker.channel, number, seconds)[1:])
            if isinstance(reply, wire.Returned) and reply.arguments is not None:
                _change(request.arrays, reply.arguments)
        except wire.NotAsked:
            self.end()
            raise ForgedReply(FORGED) from None
        except wire.WireError as error:
            self.end()
            raise SubmissionError(f"what came back cannot be used: {error}") from None
        except TimeoutError:
            self.end()
            raise SubmissionError(f"it was not done after {seconds:g} s") from None
        except (EOFError, OSError):
            raise WorkerEnded(self.end()) from None
        except TookTooLong as error:
            with not_repeated():
                error.__dict__["worker_frames"] = self._where_it_stops(worker, number)
            raise
        except BaseException:  # the worker still works on the call, and would answer the next one
            self.end()
            raise
        if isinstance(reply, wire.Raised):
            raise self._exception(reply)
        return reply.result

    def _where_it_stops(self, worker: Worker, number: bytes) -> list[tuple[str, int, str]]:
        """Have the call stop that waits for something, and where that was; the worker is ended if it does not."""
        with contextlib.suppress(wire.WireError, wire.NotAsked, EOFError, OSError):  # TimeoutError is one
            worker.stop_call()
            reply = wire.from_worker(*wire.receive(worker.channel, number, STOP_SECONDS)[1:])
            if isinstance(reply, wire.Raised) and reply.kinds[:1] == [TOOK_TOO_LONG]:
                return self._places(reply)
        self.end()
        return []

    def _exception(self, raised: wire.Raised) -> BaseException:
        error = worker_took_too_long() if raised.kinds[:1] == [TOOK_TOO_LONG] else _of_its_kind(raised)
        error.__dict__["worker_frames"] = self._places(raised)
        return error

    def _places(self, raised: wire.Raised) -> list[tuple[str, int, str]]:
        files = {file.name: str(file) for file in (self.source.file, *self.source.lab.suite_files)}
        return [(files[Path(f).name], line, name) for f, line, name in raised.places if Path(f).name in files]


class RemoteFunction:
    """Looks like a function or a class of a submission; calling it calls the real one, in the worker.

    Args:
        made: what the worker finds the real one by, as `__reduce__` gives it; by default, a task's by its name.
    """

    def __init__(self, remote: SubmissionProcess, name: str, made: tuple[Any, ...] = ()) -> None:
        self.__dict__.update(_remote=remote, __name__=name.rpartition(".")[2], __qualname__=name)
        self.__dict__["_made"] = made or (worker.defined, (name,))

    def __reduce__(self) -> Any:
        return self.__dict__["_made"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the real one returns."""
        return self.__dict__["_remote"].call(self, args, kwargs)

    def __memory_limit__(self, task: str, mib: float, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the real one returns in a fresh worker that may allocate so many MiB for the call.

        Raises:
            NeedsMoreMemory: it needs more.
        """
        return self.__dict__["_remote"].call_within(task, mib, self, args, kwargs)


class RemoteProbe:
    """A function of the suite's that runs in the worker; inside another probe it is the function itself."""

    def __init__(self, remote: SubmissionProcess, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self._remote, self._function = remote, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What it returns there."""
        return self._remote.call(self._function, args, kwargs)

    def __memory_limit__(self, task: str, mib: float, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `RemoteFunction.__memory_limit__`."""
        return self._remote.call_within(task, mib, self._function, args, kwargs)

    def __reduce__(self) -> Any:
        return wire.identity, (self._function,)


class RemoteLoader(Loader):
    """Fills a lab's module with remote functions."""

    def __init__(self, remote: SubmissionProcess) -> None:
        self.remote = remote

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        for task in self.remote.source.lab.tasks:
            setattr(module, task.name, RemoteFunction(self.remote, task.name))


def remote_loader(config: pytest.Config, sandbox: Workers) -> Callable[[Source], Loader]:
    """For the import finder: every submission in a worker of `sandbox`, and its suite's probes with it.

    A probe is sent with its meters at each call: what a submission makes of the meters in its worker changes nothing.
    """
    by_suite: dict[Path, SubmissionProcess] = {}

    def load(source: Source) -> Loader:
        suite = source.lab.suite_file.parent
        if suite not in by_suite:
            by_suite[suite] = SubmissionProcess(sandbox, source)
            limits.worker_clocks.append(by_suite[suite].cpu_seconds)
        return RemoteLoader(by_suite[suite])

    def run_there(function: FunctionType) -> RemoteProbe:
        folder = Path(inspect.unwrap(function).__code__.co_filename).parent
        for name in (function.__module__, f"{function.__module__.rpartition('.')[0]}.probes"):
            if name in sys.modules:
                cloudpickle.register_pickle_by_value(sys.modules[name])
        return RemoteProbe(by_suite[folder], function)

    def end() -> None:
        probes.worker_runner = None
        for remote in by_suite.values():
            limits.worker_clocks.remove(remote.cpu_seconds)
            remote.end()

    for package in MEASURING:
        cloudpickle.register_pickle_by_value(package)
    probes.worker_runner = run_there
    config.add_cleanup(end)
    return load


def _call(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> wire.Pickled:
    """A call as the worker makes it: with the limits and settings that hold here."""
    torch = sys.modules.get("torch")
    grad = bool(torch is not None and torch.is_grad_enabled())
    settings = worker_seconds_left(), grad, must_return_arguments()
    return wire.for_worker(("call", function, tuple(args), kwargs, *settings))


def _is_want_of_memory(error: Exception) -> bool:
    if isinstance(error, WorkerEnded):  # by a signal: it died of a failed allocation
        return error.status is not None and error.status < 0
    return isinstance(error, finder.ImportNeedsMemory) or (
        isinstance(error, MemoryError | RuntimeError | OSError) and finder.needs_memory(error)
    )


def _of_its_kind(raised: wire.Raised) -> Exception:
    """An exception of the nearest class that is known here, and otherwise of a new one with the same name."""
    kind = next((found for name in raised.kinds if (found := _known(name)) is not None), None)
    if kind is None:
        name = (raised.kinds or ["Exception"])[0].split(":")[-1]
        kind = type(name.replace("\0", "") or "Exception", (SubmissionError,), {})
    if issubclass(kind, KeyError):  # its text is the key as Python writes it: it would be written twice
        kind = type(kind.__name__, (kind,), {"__str__": lambda self: self.args[0]})
    try:
        return kind(raised.message)
    except Exception:
        return SubmissionError(raised.message)


def _known(name: str) -> Any:
    if name in KNOWN:
        kind = KNOWN[name]
        usable = issubclass(kind, Exception) and not issubclass(kind, UnicodeError | ExceptionGroup)
        return kind if usable and kind is not Exception else None
    module, _, kind_name = name.partition(":")
    if COURSE_ERRORS.get(module) == kind_name and module in sys.modules:
        return getattr(sys.modules[module], kind_name)
    return None


def _change(arrays: list[Any], values: Any) -> None:
    """Have arguments hold what the submission has made of them, as in a run in one process."""
    if not isinstance(values, list) or len(values) != len(arrays):
        raise wire.WireError("other arguments came back than were sent")
    for array, value in zip(arrays, values, strict=True):
        of_one_kind = isinstance(array, np.ndarray) == isinstance(value, np.ndarray) and hasattr(value, "shape")
        if not of_one_kind or array.shape != value.shape or array.dtype != value.dtype:
            raise wire.WireError("an argument has become something else")
        if isinstance(array, np.ndarray):
            if array.flags.writeable:
                array[...] = value
        elif array.device.type == value.device.type == "cpu" and not array.equal(value):
            array.detach().copy_(value.detach())  # an expanded tensor could not be written to, but is equal
