"""The sandbox's side: loads an answer, calls it, and measures it, at the word of the suite's side.

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
from labstaff.judge import codec
from labstaff.judge.guards import guarded, guarded_builtins

Place = tuple[str, int, str]
MEASURES = {
    "measure_arrays": "labkit.meters.arrays",
    "kept_by_forward": "labkit.meters.saved",
    "measure_peak": "labkit.meters.tensors",
}
"""Meters that the suite may have called on an answer's function, where that function is."""


def serve(channel: socket.socket) -> None:
    """Answer requests until the suite's side hangs up."""
    far = Far(channel)
    with contextlib.suppress(EOFError):
        while True:
            far.answer(far.receive())


class NearIterator:
    """An iterator of the suite's: each `next` asks for one element."""

    def __init__(self, far: Far, number: int) -> None:
        self._ask = lambda: far.ask("next", number, [])

    def __iter__(self) -> NearIterator:
        return self

    def __next__(self) -> Any:
        there, value = self._ask()
        if not there:
            raise StopIteration
        return value


class Far:
    """One answer, loaded, and the objects it has given out."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.objects: list[Any] = []
        self.graphs: dict[int, tuple[list[Any], list[Any]]] = {}
        self.module = types.ModuleType("answer")
        self.programs = types.ModuleType("programs")
        self.own: set[int] = set()
        self.arrays = codec.Arrays(keep=False)
        self.deeds: dict[str, Callable[..., Any]] = {
            "load": self.load,
            "call": self.call,
            "backward": self.backward,
            "release": self.release,
        }

    # the channel

    def receive(self) -> Any:
        """The next message, decoded."""
        self.arrays = codec.Arrays(keep=False)
        return codec.unpack(codec.receive(self.channel), self._decode, self.arrays)

    def answer(self, request: dict[str, Any]) -> None:
        """Do what `request` asks for, and say how it went."""
        try:
            reply = {"ok": self.deeds[request["do"]](**request["with"])}
            body = codec.pack(reply, self._encode)
        except BaseException as error:  # whatever an answer raises is news for the suite, SystemExit included
            body = codec.pack({"error": describe(error)}, self._encode)
        codec.send(self.channel, body)

    def ask(self, what: str, number: int, args: list[Any]) -> Any:
        """Have the suite's side do something with one of its own objects."""
        with only_what_stays():
            asked = {"ask": what, "number": number, "args": args, "changed": self.arrays.changes()}
            codec.send(self.channel, codec.pack(asked, self._encode))
            self.arrays.take_over(codec.unpack(codec.receive(self.channel)))
            reply = codec.unpack(codec.receive(self.channel), self._decode, self.arrays)
            del asked
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["ok"]

    def _encode(self, x: Any) -> dict | None:
        if isinstance(x, types.FunctionType | type | types.MethodType | types.GeneratorType) or _is_of(x, self.own):
            self.objects.append(x)
            return {"$": "far", "number": len(self.objects) - 1, "kind": type(x).__name__[:80]}
        return None

    def _decode(self, tree: dict[str, Any], items: list[Any]) -> Any:
        if tree["$"] == "far":
            return self.objects[tree["number"]]
        number = tree["number"]
        if tree["$"] == "iterator":
            return NearIterator(self, number)
        return lambda *args: self.ask("call", number, list(args))

    # what can be asked for

    def load(
        self, module: str, sources: list[tuple[str, str]], programs: str, suite: str, tasks: list[str]
    ) -> dict[str, Any]:
        """Run an answer's files in one namespace, and the programs of its suite beside them."""
        self.module = types.ModuleType(module)
        sys.modules[module] = self.module
        namespace = self.module.__dict__
        namespace["__builtins__"] = guarded_builtins(module)
        problem: dict[str, Any] | None = None
        for name, text in sources:
            try:
                exec(compile(guarded(text), name, "exec", dont_inherit=True), namespace)
            except SyntaxError as error:
                problem = {"syntax": [error.lineno or 0, str(error.msg), (error.text or "").strip()[:200]]}
            except BaseException as error:
                problem = {"raised": describe(error)}
            if problem:
                problem["file"] = name
                break
        self.own = {id(each) for each in list(namespace.values()) if isinstance(each, type)}
        found = {}
        for task in tasks:
            if task in namespace:
                self.objects.append(namespace[task])
                found[task] = len(self.objects) - 1
        result: dict[str, Any] = {"problem": problem, "tasks": found, "programs": {}}
        if not problem:
            result["programs"] = self._load_programs(suite, programs, tasks)
        return result

    def _load_programs(self, suite: str, text: str, tasks: list[str]) -> dict[str, int]:
        self.programs = types.ModuleType("programs")
        for task in tasks:
            if task not in self.module.__dict__:
                setattr(self.module, task, Missing(f"{self.module.__name__}.py defines no {task}"))
        exec(compile(text, suite, "exec", dont_inherit=True), self.programs.__dict__)
        public = {key: value for key, value in vars(self.programs).items() if isinstance(value, types.FunctionType)}
        numbers = {}
        for key, value in public.items():
            if value.__globals__ is self.programs.__dict__:
                self.objects.append(value)
                numbers[key] = len(self.objects) - 1
        return numbers

    def call(
        self, number: int, method: str, args: list[Any], kwargs: dict[str, Any], grad: bool, meter: str
    ) -> dict[str, Any]:
        """Call an object given out before, one of its methods, or a meter with it.

        Beside the result: what of the arguments was changed in place, and the graph to go back through.
        """
        target = self.objects[number]
        function = getattr(target, method) if method else target
        if meter:
            args, function = [function, *args], getattr(importlib.import_module(MEASURES[meter]), meter)
        with _autograd(grad):
            result = function(*args, **kwargs)
        reply = {"result": result, "changed": self.arrays.changes(), "graph": None}
        if "torch" in sys.modules and not meter:
            reply["graph"] = self._graph(result, [*args, *kwargs.values()])
        return reply

    def backward(self, graph: int, grads: list[Any]) -> list[Any]:
        """The gradients of a call's arguments, for `grads` of its results."""
        import torch

        inputs, outputs = self.graphs[graph]
        pairs = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
        if not pairs:
            return [None for _ in inputs]
        return list(
            torch.autograd.grad(
                [out for out, _ in pairs], inputs, [grad for _, grad in pairs], allow_unused=True, retain_graph=True
            )
        )

    def release(self, graphs: list[int]) -> None:
        """Forget graphs that nobody will go back through."""
        for graph in graphs:
            self.graphs.pop(graph, None)

    def _graph(self, result: Any, args: list[Any]) -> int | None:
        import torch

        inputs = [x for x in _tensors(torch, args) if x.requires_grad]
        outputs = [x for x in _tensors(torch, result) if x.requires_grad] if inputs else []
        if not outputs:
            return None
        number = len(self.graphs) and max(self.graphs) + 1
        self.graphs[number] = (inputs, outputs)
        return number


class Missing:
    """Stands for a task that the answer does not define."""

    def __init__(self, reason: str) -> None:
        self.__reason = reason

    def __call__(self, *_args: object, **_kwargs: object) -> Any:
        """Raise what it was made with."""
        raise NameError(self.__reason)

    def __getattr__(self, name: str) -> Any:
        raise NameError(self.__reason)


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: its kinds, what it says, and the lines it passed through."""
    places: list[Place] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        places.append((code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    try:
        said = str(error)[:2000]
    except BaseException:
        said = ""
    kinds = [f"{kind.__module__}:{kind.__name__}"[:200] for kind in type(error).__mro__[:8]]
    return {"kinds": kinds, "said": said, "places": places[-40:], "places_cut": len(places) > 40}


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
