"""The suite's side: functions and objects that look like an answer's own, while the answer lives in another process."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from labkit.suite.finder import Absent, Answer
from labkit.suite.limits import TookTooLong, time_limit
from labkit.testing import programs
from labkit.testing.compare import changed_elsewhere
from labkit.testing.programs import program_text
from labstaff.judge import codec, policy
from labstaff.judge.sandbox import Cell, Sandbox

if TYPE_CHECKING:
    import pytest

MOST_STARTS = 40
"""How often the process of one answer is started again after it died or hung, before the rest of its tests fail."""

LOAD_SECONDS = float(os.environ.get("ATTENTION_LABS_TEST_SECONDS", "10"))

KNOWN_ERRORS = {f"builtins:{name}": kind for name, kind in vars(builtins).items() if isinstance(kind, type)} | {
    f"builtins:{name}": None for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException")
}
COURSE_ERRORS = {"labkit.simulated_memory:SRAMOverflow", "torch:OutOfMemoryError"}


class AnswerError(Exception):
    """An exception of an answer's whose kind has no meaning here, or the end of its process."""


class FarAnswer:
    """One answer in its process: started when first needed, and again after it died."""

    def __init__(self, sandbox: Sandbox, answer: Answer) -> None:
        self.sandbox = sandbox
        self.answer = answer
        self.cell: Cell | None = None
        self.n_starts = 0
        self.loaded: dict[str, Any] = {}
        self.near: dict[int, Any] = {}
        self.dropped: list[int] = []
        self.problem = self._forbidden() or ""

    # starting

    def start(self) -> None:
        """Have a process with the answer in it, unless there is one or there is no point."""
        if self.cell is not None or self.problem:
            return
        if self.n_starts == MOST_STARTS:
            raise AnswerError(f"its process ended {MOST_STARTS} times: the rest is not judged")
        self.n_starts += 1
        self.cell = self.sandbox.cell()
        try:
            with time_limit(LOAD_SECONDS):
                self.loaded = self.request(
                    "load",
                    module=self.answer.lab.module,
                    sources=[(self.answer.file.name, _text(self.answer.file))],
                    programs=program_text(self.answer.lab.suite_file),
                    suite=self.answer.lab.suite_file.name,
                    tasks=[task.name for task in self.answer.lab.tasks],
                )
        except TookTooLong as error:
            self.problem = f"importing {self.answer.file.name} never ended: {error}"
        except AnswerError as error:
            self.problem = f"importing {self.answer.file.name} failed: {error}"
        else:
            if self.loaded["problem"]:
                self.problem = _load_problem(self.loaded["problem"])

    def end(self) -> None:
        """End the process; handles to what was in it are void."""
        if self.cell is not None:
            self.cell.close()
        self.cell = None
        self.dropped.clear()

    def _forbidden(self) -> str | None:
        file = self.answer.file
        try:
            found = policy.breaches(ast.parse(_text(file)), frozenset({self.answer.lab.module}))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None  # the process that loads it says what is wrong
        if not found:
            return None
        line, what = found[0]
        more = f" (and {len(found) - 1} more places)" if len(found) > 1 else ""
        return f"{file.name} {what} in line {line}: a graded answer may not{more}"

    # talking

    def request(self, deed: str, **arguments: Any) -> Any:
        """Have the other side do something; its result, or the exception it raised."""
        cell = self.cell
        if cell is None:
            raise AnswerError("its process has ended")
        try:
            crossed = codec.Arrays(keep=True)
            codec.send(cell.channel, codec.pack({"do": deed, "with": arguments}, self._encode, crossed))
            while True:
                reply = codec.unpack(codec.receive(cell.channel), self._decode)
                if not isinstance(reply, dict):
                    raise codec.CodecError("a reply is a dict")
                if "ask" not in reply:
                    break
                changed_elsewhere.extend(array for array, _, _ in crossed.named(reply["changed"]))
                favour = self._favour(reply)
                changes = crossed.changes()
                codec.send(cell.channel, codec.pack(changes))
                codec.send(cell.channel, codec.pack(favour, self._encode, crossed))
            if deed == "call" and "ok" in reply:
                changed_elsewhere.extend(array for array, _, _ in crossed.named(reply["ok"]["changed"]))
        except codec.CodecError as error:
            self.end()
            raise AnswerError(f"what came back cannot be used: {error}") from None
        except (KeyError, TypeError, IndexError) as error:
            self.end()
            raise AnswerError(f"what came back cannot be used: {type(error).__name__}") from None
        except (EOFError, OSError):
            self.end()
            raise AnswerError(f"its process ended in the middle of a call{cell.last_words()}") from None
        except BaseException:  # a time limit: the other side still works on the call, and would answer the next one
            self.end()
            raise
        if "error" in reply:
            raise self._error(reply["error"])
        return reply.get("ok")

    def _favour(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What the answer may ask of the suite's objects: an iterator's next element, a function's result."""
        thing = self.near.get(asked.get("number"))  # type: ignore[arg-type]
        if asked["ask"] == "next" and isinstance(thing, Iterator):
            try:
                return {"ok": (True, next(thing))}
            except StopIteration:
                return {"ok": (False, None)}
            except Exception as error:
                return {"error": f"{type(error).__name__}: {error}"}
        if asked["ask"] == "call" and callable(thing):
            try:
                return {"ok": thing(*asked["args"])}
            except Exception as error:
                return {"error": f"{type(error).__name__}: {error}"}
        raise codec.CodecError("it asks for what it was not given")

    def _encode(self, x: Any) -> dict | None:
        if isinstance(x, FarThing):
            return {"$": "far", "number": x._number_now(), "kind": ""}
        if isinstance(x, Iterator) or (callable(x) and not isinstance(x, type)):
            self.near[id(x)] = x
            return {"$": "iterator" if isinstance(x, Iterator) else "function", "number": id(x)}
        return None

    def _decode(self, tree: dict[str, Any], _items: list[Any]) -> Any:
        if tree.get("$") != "far" or type(tree.get("number")) is not int:
            raise codec.CodecError(f"unknown kind {tree.get('$')!r}")
        number, start = tree["number"], self.n_starts
        return FarThing(self, str(tree.get("kind"))[:80], lambda: number if start == self.n_starts else None)

    def _error(self, told: Any) -> Exception:
        if not isinstance(told, dict):
            raise codec.CodecError("an error is a dict")
        kinds, said = [str(kind) for kind in told["kinds"]], str(told["said"])
        for name in kinds:
            kind = self._kind(name)
            if kind is not None:
                break
        else:
            kind = type(kinds[0].split(":")[-1], (AnswerError,), {})
        error = kind(said)
        error.__dict__["far_places"] = self._places(told["places"])
        return error

    def _kind(self, name: str) -> type[Exception] | None:
        kind = KNOWN_ERRORS.get(name)
        if name in COURSE_ERRORS:
            module, _, attribute = name.partition(":")
            kind = getattr(sys.modules.get(module), attribute, None)
        if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, UnicodeError):
            return None
        return None if kind is Exception else kind

    def _places(self, told: Any) -> list[tuple[str, int, str]]:
        files = {file.name: str(file) for file in (self.answer.file, self.answer.lab.suite_file)}
        return [(files.get(str(file), str(file)), int(line), str(function)) for file, line, function in told]


class FarThing:
    """Looks like a function, class or object of an answer's. Calling it calls the real one."""

    def __init__(self, far: FarAnswer, name: str, number: Callable[[], int | None], method: str = "") -> None:
        self.__dict__.update(_far=far, __name__=name, _number=number, _method=method)

    def _number_now(self) -> int:
        far: FarAnswer = self.__dict__["_far"]
        far.start()
        number = self.__dict__["_number"]()
        if number is None:
            raise AnswerError(f"{self.__dict__['__name__']} went with the answer's process")
        return number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the real one returns."""
        return _call(self, self.__dict__["_method"], args, kwargs)

    def __measure__(self, meter: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What `meter` measures of a call, taken where the answer is."""
        return _call(self, self.__dict__["_method"], args, kwargs, meter)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        here = self.__dict__
        return FarThing(here["_far"], f"{here['__name__']}.{name}", here["_number"], name)

    def __len__(self) -> int:
        return _call(self, "__len__", (), {})

    def __enter__(self) -> Any:
        return _call(self, "__enter__", (), {})

    def __exit__(self, *_error: object) -> Any:
        return _call(self, "__exit__", (None, None, None), {})

    def __contains__(self, item: Any) -> Any:
        return _call(self, "__contains__", (item,), {})

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return _call(self, "__next__", (), {})

    def __bool__(self) -> bool:
        return True


def _call(thing: FarThing, method: str, args: Sequence[Any], kwargs: dict[str, Any], meter: str = "") -> Any:
    far: FarAnswer = thing.__dict__["_far"]
    number = thing._number_now()
    torch = sys.modules.get("torch")
    grad = bool(torch is not None and torch.is_grad_enabled())
    if far.dropped:
        far.request("release", graphs=[far.dropped.pop() for _ in range(len(far.dropped))])
    asked = {"number": number, "method": method, "args": list(args), "kwargs": kwargs, "grad": grad, "meter": meter}
    try:
        reply = far.request("call", **asked)
    finally:
        far.near.clear()
    result = reply["result"]
    if reply["graph"] is not None and torch is not None:
        from labstaff.judge.autograd import link

        inputs = _tensors(torch, [*args, *kwargs.values()])
        return link(far, reply["graph"], [x for x in inputs if x.requires_grad], result)
    return result


class FarLoader(Loader):
    """Fills a lab's module with stand-ins for what is in the answer's process."""

    def __init__(self, far: FarAnswer) -> None:
        self.far = far

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        for task in self.far.answer.lab.tasks:
            setattr(module, task.name, _stand_in(self.far, task.name, "tasks"))


def client_loader(config: pytest.Config, sandbox: Sandbox) -> Callable[[Answer], Loader]:
    """For `AnswerFinder`: every answer in a process of its own in `sandbox`, and its suite's programs with it."""
    by_suite: dict[Path, FarAnswer] = {}

    def load(answer: Answer) -> Loader:
        far = by_suite.setdefault(answer.lab.suite_file, FarAnswer(sandbox, answer))
        return FarLoader(far)

    def elsewhere(function: FunctionType) -> Any:
        return _stand_in(by_suite[Path(inspect.unwrap(function).__code__.co_filename)], function.__name__, "programs")

    programs.elsewhere = elsewhere
    config.add_cleanup(lambda: setattr(programs, "elsewhere", None))
    return load


def _stand_in(far: FarAnswer, name: str, table: str) -> Any:
    try:
        far.start()
    except Exception as error:
        return Absent(f"{far.answer.file.name} cannot be loaded: {error}")
    if far.problem:
        return Absent(far.problem)
    if name not in far.loaded[table]:
        return Absent(f"{far.answer.lab.module}.py defines no {name}: was it renamed or deleted?")
    return FarThing(far, name, lambda: far.loaded[table].get(name))


def _load_problem(told: dict[str, Any]) -> str:
    name = str(told.get("file"))
    if "syntax" in told:
        line, said, code = told["syntax"]
        return f"{name} has a syntax error in line {line}: {said}" + (f": {code}" if code else "")
    error = told["raised"]
    places = [place for place in error["places"] if place[0] == name]
    where = f" (line {places[-1][1]})" if places else ""
    said = str(error["said"]).splitlines()
    kind = str(error["kinds"][0]).split(":")[-1]
    return f"importing {name} failed: {kind}{': ' + said[0] if said else ''}{where}"


def _tensors(torch: Any, values: Any) -> list[Any]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        return [x for each in values.values() for x in _tensors(torch, each)]
    if isinstance(values, list | tuple):
        return [x for each in values for x in _tensors(torch, each)]
    return []


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def forget(far: FarAnswer, graph: int, holder: Any) -> None:
    """Have the other side forget `graph` when `holder` is gone."""
    weakref.finalize(holder, far.dropped.append, graph).atexit = False
