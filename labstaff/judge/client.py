"""The suite's side: one answer in its process, asked by messages, started when first needed and after it died."""

from __future__ import annotations

import builtins
import contextlib
import functools
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit.suite.finder import IMPORT_SECONDS, Answer, import_problem
from labkit.suite.limits import TookTooLong, exceeded_by_another, not_repeated, time_limit
from labkit.suite.verdict import ProcessEnded
from labkit.testing.compare import changed_elsewhere
from labkit.testing.programs import program_text
from labstaff.judge import framing, messages
from labstaff.judge.framing import CodecError
from labstaff.judge.imports import imported_modules
from labstaff.judge.machines import Machines
from labstaff.judge.messages import Message
from labstaff.judge.packing import pack
from labstaff.judge.sandbox import Cell, Sandbox
from labstaff.judge.tracking import Arrays
from labstaff.judge.unpacking import unpacker_of

MOST_STARTS = 40
"""How often the process of one answer is started again after it died or hung, before the rest of its tests fail."""

STOP_SECONDS = 20.0
"""How long an answer may take to stop when its time is over, before its process is ended: one call into a library."""

TOOK_TOO_LONG = f"{TookTooLong.__module__}:{TookTooLong.__name__}"
SUITE_BYTES = 1 << 30
"""What a suite's own process may hold over what it held when the first answer was loaded: see `bound_suite`."""

KNOWN_ERRORS = {f"builtins:{name}": kind for name, kind in vars(builtins).items() if isinstance(kind, type)} | {
    f"builtins:{name}": None for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException")
}
COURSE_ERRORS = {"labkit.simulated_memory:SRAMOverflow", "torch:OutOfMemoryError"}

unpack = unpacker_of(messages.FromAnswer)


class AnswerError(Exception):
    """An exception of an answer's whose kind has no meaning here, or the end of its process."""


class AnswerEnded(AnswerError, ProcessEnded):
    """The end of an answer's process in the middle of a call."""


class RemoteAnswer:
    """One answer in its process.

    Args:
        sandbox: where its processes come from.
        answer: the file.
        stand_in: makes what stands here for an object that a call has given out, from (this, its kind, its number).
    """

    def __init__(self, sandbox: Sandbox, answer: Answer, stand_in: Callable[[RemoteAnswer, str, int], Remote]) -> None:
        self.stand_in = stand_in
        self.sandbox = sandbox
        self.answer = answer
        self.cell: Cell | None = None
        self.cells: list[Cell] = []
        self.n_starts = 0
        self.loaded = messages.Loaded({}, {})
        self.near: dict[int, Any] = {}
        self.machines = Machines()
        self.dropped: list[int] = []
        self.bound_bytes: int | None = None
        """What the process may hold over its start and what crosses; None for the usual, generous bound."""
        self.problem = ""
        """Why there is no process: of this start, and of the first one, which all tests are told."""
        self.unusable = ""

    # starting

    def begin(self, answer: Answer) -> None:
        """Judge `answer`, from here on: have it started by itself, outside any test's time.

        Raises:
            BoxBroken: no process can be had.
        """
        self.answer = answer
        try:
            self.start()
        except Exception as error:
            self.problem = f"{answer.file.name} cannot be loaded: {error}"
        self.unusable = self.problem

    def start(self) -> None:
        """Have a process with the answer in it, unless there is one or there is no point.

        Raises:
            BoxBroken: no process can be had.
            AnswerError: too many of them have ended.
        """
        if self.cell is not None or self.problem:
            return
        if self.n_starts == MOST_STARTS:
            raise AnswerError(f"its process ended {MOST_STARTS} times: the rest is not judged")
        self.n_starts += 1
        self.machines = Machines()
        file, suite = self.answer.file, self.answer.lab.suite_file
        name = file.name
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            self.problem = f"{name} is not UTF-8 text: {error.reason} at byte {error.start}"
            return
        except OSError as error:
            self.problem = f"{name} cannot be read: {error.strerror}"
            return
        bound_suite()
        modules = imported_modules(text) if self.bound_bytes is not None else []
        self.cell = self.sandbox.cell(memory_bytes=self.bound_bytes, modules=modules)
        self.cells.append(self.cell)
        load = messages.Load(
            module=self.answer.lab.module,
            file=name,
            text=text,
            suite=suite.name,
            programs=programs_of(suite),
            tasks=[task.name for task in self.answer.lab.tasks],
        )
        try:
            with time_limit(IMPORT_SECONDS) as limit:
                loaded = self.request(load)
        except TookTooLong as error:
            if error.limit is not limit:  # the time of a test that has had the answer started again
                raise
            self.problem = f"importing {name} took too long: {error}"
        except AnswerError as error:
            self.problem = f"importing {name} failed: {error}"
        else:
            if not isinstance(loaded, messages.Loaded):
                self.problem = f"importing {name} failed: what came back cannot be used"
                self.end()
                return
            self.loaded = loaded
            self.problem = _load_problem(name, text, loaded)

    def end(self) -> None:
        """End the process; handles to what was in it are void."""
        cell = self.cell
        if cell is not None:
            self._forget(cell)
            cell.end()

    def cpu_seconds(self) -> float:
        """The CPU time of all its processes so far."""
        return sum(cell.cpu_seconds for cell in self.cells)

    def queued_seconds(self) -> float:
        """For how long all its processes have waited for a processor so far."""
        return sum(cell.queued_seconds for cell in self.cells)

    def _forget(self, cell: Cell) -> None:
        self.cell = None
        self.dropped.clear()

    # talking

    def request(self, message: Message, seconds: float | None = None) -> Any:
        """Have the other side do something; its reply.

        Raises:
            Exception: what it raised there, as far as that kind is known here, and `AnswerError` otherwise.
            BoxBroken: the process ended through no fault of the answer's.
            TimeoutError: no reply within `seconds`; the process is ended.
        """
        cell = self.cell
        if cell is None:
            raise AnswerError("its process has ended")
        try:
            crossed = self.machines.crossed = Arrays(keep=True)
            framing.send(cell.channel, *pack(message, self.encode, crossed))
            while True:
                reply = unpack(*framing.receive(cell.channel, seconds), self._decode)
                if isinstance(reply, messages.Returned | messages.Raised | messages.Loaded):
                    break
                self._do_favour(cell, reply, crossed)
            if isinstance(reply, messages.Returned) and isinstance(message, messages.Call):
                changed_elsewhere.extend(array for array, _, _ in crossed.named(reply.changes))
        except CodecError as error:
            self.end()
            raise AnswerError(f"what came back cannot be used: {error}") from None
        except TimeoutError:
            self.end()
            raise
        except (EOFError, OSError):
            self._forget(cell)
            raise AnswerEnded(f"its process ended: {cell.last_words()}") from None
        except TookTooLong as error:
            with not_repeated():
                error.__dict__["far_places"] = self._where_it_stops(cell, message)
            raise
        except BaseException:  # the other side still works on the call, and would answer the next one
            self.end()
            raise
        if isinstance(reply, messages.Loaded):
            return reply
        if isinstance(reply, messages.Returned) and reply.own is not None:
            self.machines.rebind(reply.own, reply.result)
        self.machines.release(reply.released)
        if isinstance(reply, messages.Raised):
            raise self._error(reply.error)
        return reply

    def _where_it_stops(self, cell: Cell, message: Message) -> list[tuple[str, int, str]]:
        """Have the other side give up what it was asked for, and where that was; it is ended where it does not.

        What waits uses no CPU time, and so does not stop by itself. It goes on in the same process, as it would here.
        """
        if getattr(message, "seconds", None) is not None:
            with contextlib.suppress(CodecError, MemoryError, EOFError, OSError):  # TimeoutError is one
                cell.stop_what_runs()
                reply = unpack(*framing.receive(cell.channel, STOP_SECONDS), self._decode)
                if isinstance(reply, messages.Raised) and reply.error.kinds[:1] == [TOOK_TOO_LONG]:
                    self.machines.release(reply.released)
                    return self._far_places(reply.error)
        self.end()
        return []

    def _do_favour(self, cell: Cell, asked: Message, crossed: Arrays) -> None:
        """What the answer may ask of the suite: an iterator's next element, a function's result, a machine's work."""
        reply: Message
        changes: list[Any] = []
        try:
            if isinstance(asked, messages.Operate):
                value = self.machines.operate(asked.operation, asked.name, asked.args, asked.kwargs, asked.released)
            elif isinstance(asked, messages.Next | messages.CallBack):
                changed_elsewhere.extend(array for array, _, _ in crossed.named(asked.changes))
                value = self._near_value(asked)
                changes = crossed.changes()
            else:
                raise CodecError("a reply that nobody waits for")
            reply = messages.Given(value, changes)
        except CodecError:
            raise
        except Exception as error:
            reply = messages.Refused(type(error).__name__, str(error)[:2000])
        try:
            framing.send(
                cell.channel, *pack(reply, self.encode, None if isinstance(asked, messages.Operate) else crossed)
            )
        except CodecError as error:
            framing.send(cell.channel, *pack(messages.Refused("RuntimeError", str(error))))

    def _near_value(self, asked: messages.Next | messages.CallBack) -> Any:
        thing = self.near.get(asked.number)
        if isinstance(asked, messages.CallBack) and callable(thing) and isinstance(asked.args, list):
            return thing(*asked.args)
        if isinstance(asked, messages.Next) and isinstance(thing, Iterator):
            for value in thing:
                return (True, value)
            return (False, None)
        raise CodecError("it asks for what it was not given")

    def encode(self, x: Any) -> dict | None:
        """What stands for `x` on the wire, where it is no plain data."""
        if isinstance(x, Remote):
            return {"$": "far", "number": x.number_now(), "kind": ""}
        if (tree := self.machines.encode(x)) is not None:
            return tree
        if isinstance(x, Iterator) or (callable(x) and not isinstance(x, type)):
            self.near[id(x)] = x
            return {"$": "iterator" if isinstance(x, Iterator) else "function", "number": id(x)}
        return None

    def _decode(self, tree: dict[str, Any]) -> Any:
        if tree["$"] == "machine":
            return self.machines.decode(tree)
        if tree["$"] != "far" or type(tree["number"]) is not int:
            raise CodecError(f"unknown kind {str(tree['$'])[:80]!r}")
        return self.stand_in(self, str(tree["kind"])[:80], tree["number"])

    def _error(self, told: messages.Described) -> BaseException:
        error = exceeded_by_another() if told.kinds[:1] == [TOOK_TOO_LONG] else self._exception(told)
        error.__dict__["far_places"] = self._far_places(told)
        return error

    def _far_places(self, told: messages.Described) -> list[tuple[str, int, str]]:
        files = {file.name: str(file) for file in (self.answer.file, self.answer.lab.suite_file)}
        return [(files[file], line, function) for file, line, function in told.places if file in files]

    def _exception(self, told: messages.Described) -> Exception:
        kind = next((found for name in told.kinds if (found := _known(name)) is not None), None)
        if kind is None:
            name = (told.kinds or ["Exception"])[0].split(":")[-1]
            kind = type(name.replace("\0", "") or "Exception", (AnswerError,), {})
        try:
            return kind(told.said)
        except Exception:
            return AnswerError(told.said)


class Remote:
    """Something of an answer's; `proxy` has what looks like it."""

    def number_now(self) -> int:
        """Its number in the process that lives now."""
        raise NotImplementedError


@functools.cache
def programs_of(suite: Path) -> str:
    """See `program_text`: the suite of a process that judges does not change while it lives."""
    return program_text(suite)


_bounded = False


def bound_suite() -> None:
    """Bound what this process may hold, so that nothing an answer sends can take the machine along.

    What comes over the wire is bounded before it is made; this is the wall behind it, and the kernel keeps it.
    """
    global _bounded
    if _bounded or not sys.platform.startswith("linux"):
        return
    _bounded = True
    from labstaff.judge.confine import data_bytes

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data_bytes() + SUITE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _known(name: str) -> type[Exception] | None:
    kind = KNOWN_ERRORS.get(name)
    if name in COURSE_ERRORS:
        module, _, attribute = name.partition(":")
        kind = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, UnicodeError | ExceptionGroup):
        return None
    return None if kind is Exception else kind


def _load_problem(file: str, text: str, told: messages.Loaded) -> str:
    if told.said:
        return f"{file} {told.said}"
    if told.raised is None:
        return ""
    lines = [line for place, line, _ in told.raised.places if place == file]
    codes = text.splitlines()[lines[-1] - 1 : lines[-1]] if lines else []
    kind = (told.raised.kinds or ["Exception"])[0].split(":")[-1]
    return import_problem(file, kind, told.raised.said, lines[-1] if lines else None, "".join(codes).strip())
