"""The answer's side: loads an answer, calls it, and measures it, at the word of the suite's side.

Everything here shares its process with the answer, so nothing here knows an expected value or decides anything.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from labkit.meters.arrays import only_what_stays
from labkit.suite.limits import not_interrupted, stop_when_told, time_limit
from labstaff.judge import framing, messages, remote_machine
from labstaff.judge.loading import NotRun, load_answer
from labstaff.judge.messages import Described, Message
from labstaff.judge.packing import pack
from labstaff.judge.tracking import Arrays
from labstaff.judge.unpacking import unpacker_of

MOST_CAUSES = 10
METERS = {
    "measure_arrays": "labkit.meters.arrays",
    "kept_by_forward": "labkit.meters.saved",
    "measure_peak": "labkit.meters.tensors",
}
"""Meters that a suite may have called on a function of the answer, where that function is."""

unpack = unpacker_of(messages.FromSuite)


def serve(channel: socket.socket) -> None:
    """Say that all doors are shut; then answer requests until the suite's side hangs up."""
    stop_when_told()
    server = Server(channel)
    server.say(messages.Ready())
    with contextlib.suppress(EOFError):
        while True:
            server.answer(server.receive())


class NearIterator:
    """An iterator of the suite's: each `next` asks for one element."""

    def __init__(self, server: Server, number: int) -> None:
        self._ask = lambda: server.ask(lambda: messages.Next(number, server.arrays.changes()))

    def __iter__(self) -> NearIterator:
        return self

    def __next__(self) -> Any:
        there, value = self._ask()
        if not there:
            raise StopIteration
        return value


class Server:
    """One answer, loaded, and the objects it has given out."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.objects: list[Any] = []
        self.graphs: dict[int, tuple[list[Any], list[Any]]] = {}
        self.n_graphs = 0
        self.module = types.ModuleType("answer")
        self.own: set[int] = set()
        self.arrays = Arrays(keep=False)
        self.machines = remote_machine.connect(self.operate)
        self.deeds: dict[type, Callable[[Any], Message]] = {
            messages.Load: self.load,
            messages.Call: self.call,
            messages.Backward: self.backward,
            messages.Release: self.release,
        }

    # the channel

    def receive(self) -> Any:
        """The next request, its values made."""
        self.arrays = self.machines.crossed = Arrays(keep=False)
        return unpack(*framing.receive(self.channel), self._decode, self.arrays)

    def say(self, message: Message) -> None:
        """Send a message."""
        framing.send(self.channel, *pack(message, self._encode))

    def answer(self, request: Message) -> None:
        """Do what `request` asks for, and say how it went."""
        seconds = getattr(request, "seconds", None)
        limit = time_limit(seconds) if seconds else contextlib.nullcontext()
        try:
            with limit:
                reply = self.deeds[type(request)](request)
            packed = pack(reply, self._encode)
            del reply
        except BaseException as error:  # whatever an answer raises is news for the suite, SystemExit included
            _let_go(error)
            packed = pack(messages.Raised(described(error), []))
        del request
        framing.send(self.channel, *packed)

    def ask(self, asking: Callable[[], Message]) -> Any:
        """Have the suite's side do something with one of its own objects."""
        with only_what_stays():
            with not_interrupted():
                self.say(asking())
                head, buffers = framing.receive(self.channel)
            buffers = memoryview(bytearray(buffers))  # what is given counts, and lies where meters see it
            given = unpack(head, buffers, self._decode, self.arrays)
            del buffers
            if isinstance(given, messages.Refused):
                raise remote_machine.error_of(given.kind, given.said)
            self.arrays.take_over(given.changes)
            value = given.value
            del given
        return value

    def operate(self, operation: str, name: str, args: Any, kwargs: Any) -> Any:
        """Have the suite's side do something with a simulated machine."""
        with only_what_stays():
            with not_interrupted():
                self.say(messages.Operate(operation, name, args, kwargs, self.machines.released()))
                received = framing.receive(self.channel)
            given = unpack(*received, self._decode)
        if isinstance(given, messages.Refused):
            raise remote_machine.error_of(given.kind, given.said)
        return given.value

    def _encode(self, x: Any) -> dict | None:
        tree = self.machines.encode(x)
        if tree is None and (
            isinstance(x, types.FunctionType | type | types.MethodType | types.GeneratorType) or _is_of(x, self.own)
        ):
            if isinstance(x, type) and x.__module__ in ("builtins", "numpy"):
                return None
            self.objects.append(x)
            return {"$": "far", "number": len(self.objects) - 1, "kind": type(x).__name__[:80]}
        return tree

    def _decode(self, tree: dict[str, Any]) -> Any:
        kind, number = tree["$"], tree["number"]
        if kind == "far":
            return self.objects[number]
        if kind == "iterator":
            return NearIterator(self, number)
        if kind == "function":
            return lambda *args: self.ask(lambda: messages.CallBack(number, list(args), self.arrays.changes()))
        return self.machines.decode(tree)

    # what can be asked for

    def load(self, asked: messages.Load) -> messages.Loaded:
        """Run an answer's files in one namespace, and the suite's own programs beside them."""
        self.module = types.ModuleType(asked.module)
        sys.modules[asked.module] = self.module
        try:
            load_answer(self.module, asked.file, asked.text)
        except NotRun as error:
            return messages.Loaded({}, {}, said=str(error))
        except BaseException as error:
            return messages.Loaded({}, {}, raised=described(error))
        self.own = {id(each) for each in list(vars(self.module).values()) if isinstance(each, type)}
        tasks = {task: self._give_out(vars(self.module)[task]) for task in asked.tasks if task in vars(self.module)}
        return messages.Loaded(tasks, self._load_programs(asked))

    def _load_programs(self, asked: messages.Load) -> dict[str, int]:
        programs = types.ModuleType("programs")
        for task in asked.tasks:
            if task not in self.module.__dict__:
                setattr(self.module, task, Missing(f"{self.module.__name__}.py defines no {task}"))
        exec(compile(asked.programs, asked.suite, "exec", dont_inherit=True), programs.__dict__)
        return {
            key: self._give_out(value)
            for key, value in list(vars(programs).items())
            if isinstance(value, types.FunctionType) and value.__globals__ is programs.__dict__
        }

    def _give_out(self, thing: Any) -> int:
        self.objects.append(thing)
        return len(self.objects) - 1

    def call(self, asked: messages.Call) -> messages.Returned:
        """Call an object given out before, one of its methods, or a meter with it.

        Beside the result: what of the arguments was changed in place, and the graph to go back through.
        """
        target, args, kwargs = self.objects[asked.number], asked.args, asked.kwargs
        function = getattr(target, asked.method) if asked.method else target
        metered = asked.meter
        if metered:
            args, function = [function, *args], getattr(importlib.import_module(METERS[metered]), metered)
        enabled = asked.grad
        asked.args = asked.kwargs = None
        with _autograd(enabled):
            result = function(*args, **kwargs)
        graph = None
        if "torch" in sys.modules and not metered:
            graph = self._graph(result, [*args, *kwargs.values()])
        own = self.machines.known_as(result)
        return messages.Returned(result, self.arrays.changes(), graph, self.machines.released(), own)

    def backward(self, asked: messages.Backward) -> messages.Returned:
        """The gradients of a call's arguments, for the gradients of its results."""
        import torch

        inputs, outputs = self.graphs[asked.graph]
        pairs = [(out, grad) for out, grad in zip(outputs, asked.grads, strict=True) if grad is not None]
        grads: list[Any] = [None for _ in inputs]
        if pairs:
            grads = list(
                torch.autograd.grad(
                    [out for out, _ in pairs], inputs, [grad for _, grad in pairs], allow_unused=True, retain_graph=True
                )
            )
        return messages.Returned(grads, [], None, [])

    def release(self, asked: messages.Release) -> messages.Returned:
        """Forget graphs that nobody will go back through."""
        for graph in asked.graphs:
            self.graphs.pop(graph, None)
        return messages.Returned(None, [], None, [])

    def _graph(self, result: Any, args: list[Any]) -> int | None:
        import torch

        inputs = [x for x in _tensors(torch, args) if x.requires_grad]
        outputs = [x for x in _tensors(torch, result) if x.requires_grad] if inputs else []
        if not outputs:
            return None
        self.n_graphs += 1
        self.graphs[self.n_graphs] = (inputs, outputs)
        return self.n_graphs


class Missing:
    """Stands for a task that the answer does not define."""

    def __init__(self, reason: str) -> None:
        self.__reason = reason

    def __call__(self, *_args: object, **_kwargs: object) -> Any:
        """Raise what it was made with."""
        raise NameError(self.__reason)

    def __getattr__(self, name: str) -> Any:
        raise NameError(self.__reason)


def described(error: BaseException) -> Described:
    """An exception as plain data."""
    places: list[tuple[str, int, str]] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        places.append((str(code.co_filename)[:200], int(entry.tb_lineno or 0), str(code.co_name)[:200]))
        entry = entry.tb_next
    try:
        said = str.__str__(str(error))[:2000]
        said.encode()
    except BaseException:
        said = ""
    kinds = [f"{kind.__module__}:{kind.__name__}"[:200] for kind in type(error).__mro__[:8]]
    return Described(kinds, said, places[-40:])


def _let_go(error: BaseException) -> None:
    """Free what the frames of an error hold: when there is no memory left, telling of it needs some."""
    seen: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if seen is None:
            return
        entry = seen.__traceback__
        while entry is not None:
            with contextlib.suppress(RuntimeError):  # one that still runs
                entry.tb_frame.clear()
            entry = entry.tb_next
        seen = seen.__context__


@contextlib.contextmanager
def _autograd(enabled: bool) -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.set_grad_enabled(enabled):
        yield


def _tensors(torch: Any, value: Any) -> list[Any]:
    """The tensors in `value`, in the order in which they cross."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [x for each in value.values() for x in _tensors(torch, each)]
    if isinstance(value, list | tuple):
        return [x for each in value for x in _tensors(torch, each)]
    return []


def _is_of(x: Any, own: set[int]) -> bool:
    return any(id(kind) in own for kind in type(x).__mro__)
