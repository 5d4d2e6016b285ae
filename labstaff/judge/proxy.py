"""What a suite finds in place of an answer's functions, classes and objects: calling one calls the real one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from labkit.suite import limits, wall_clock
from labkit.suite.finder import Answer, AnswerMissing, TaskMissing, not_defined
from labkit.suite.limits import seconds_for_another
from labkit.testing import programs
from labstaff.judge import messages
from labstaff.judge.client import AnswerError, Remote, RemoteAnswer
from labstaff.judge.sandbox import Sandbox

if TYPE_CHECKING:
    import pytest


class Proxy(Remote):
    """Looks like a function, class or object of an answer's. Calling it calls the real one."""

    def __init__(self, far: RemoteAnswer, name: str, number: Callable[[], int | None], method: str = "") -> None:
        self.__dict__.update(_far=far, __name__=name, _number=number, _method=method)

    def number_now(self) -> int:
        """See `Remote`. Raises AnswerError when what it stood for went with an earlier process."""
        far: RemoteAnswer = self.__dict__["_far"]
        far.start()
        number = self.__dict__["_number"]()
        if number is None:
            raise AnswerError(far.problem or f"{self.__dict__['__name__']} went with the answer's process")
        return number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the real one returns."""
        return _call(self, self.__dict__["_method"], args, kwargs)

    def __measure__(self, meter: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What `meter` measures of a call, taken where the answer is."""
        return _call(self, self.__dict__["_method"], args, kwargs, meter)

    def __within__(self, mib: float, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the real one returns in a process that can hold so much more than its arguments: see `outside`."""
        from labstaff.judge.outside import called_within

        return called_within(self.__dict__["_far"], mib, self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        here = self.__dict__
        return Proxy(here["_far"], f"{here['__name__']}.{name}", here["_number"], name)

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


class Promised(Proxy):
    """Stands for what an answer's file defines under a name, whichever process it is in; what it lacks raises so."""

    def __init__(self, far: RemoteAnswer, name: str, table: str, method: str = "") -> None:
        shown = f"{name}.{method}" if method else name
        super().__init__(far, shown, lambda: getattr(far.loaded, table).get(name), method)
        self.__dict__.update(_defined=name, _table=table)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        here = self.__dict__
        return Promised(here["_far"], here["_defined"], here["_table"], name)

    def number_now(self) -> int:
        """See `Remote`. Raises AnswerMissing when the file cannot be used, and TaskMissing when it lacks this."""
        far: RemoteAnswer = self.__dict__["_far"]
        if far.unusable:
            raise AnswerMissing(far.unusable)
        far.start()
        if far.problem:  # its file could be used, and cannot under the limits of now
            raise AnswerError(far.problem)
        number = self.__dict__["_number"]()
        if number is None:
            raise TaskMissing(not_defined(far.answer.lab.module, self.__dict__["_defined"]))
        return number


class RemoteLoader(Loader):
    """Fills a lab's module with stand-ins for what is in the answer's process."""

    def __init__(self, far: RemoteAnswer) -> None:
        self.far = far

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        for task in self.far.answer.lab.tasks:
            setattr(module, task.name, Promised(self.far, task.name, "tasks"))


def client_loader(
    config: pytest.Config,
    sandbox: Sandbox,
    by_suite: dict[Path, RemoteAnswer] | None = None,
    *,
    at_once: bool = True,
) -> Callable[[Answer], Loader]:
    """For `AnswerFinder`: every answer in a process of its own in `sandbox`, and its suite's programs with it.

    Args:
        by_suite: is given the answers, by the file of their suite.
        at_once: start an answer's process when its suite is collected; otherwise `RemoteAnswer.begin` does.
    """
    by_suite = {} if by_suite is None else by_suite

    def load(answer: Answer) -> Loader:
        if answer.lab.suite_file not in by_suite:
            far = by_suite[answer.lab.suite_file] = RemoteAnswer(sandbox, answer, given_out)
            limits.clocks_elsewhere.append(far.cpu_seconds)
            wall_clock.queues_elsewhere.append(far.queued_seconds)
            if at_once:
                far.begin(answer)
        return RemoteLoader(by_suite[answer.lab.suite_file])

    def elsewhere(function: FunctionType) -> Any:
        far = by_suite[Path(inspect.unwrap(function).__code__.co_filename)]
        return Promised(far, function.__name__, "programs")

    def end() -> None:
        programs.elsewhere = None
        for far in by_suite.values():
            limits.clocks_elsewhere.remove(far.cpu_seconds)
            wall_clock.queues_elsewhere.remove(far.queued_seconds)
            far.end()

    programs.elsewhere = elsewhere
    config.add_cleanup(end)
    return load


def given_out(far: RemoteAnswer, kind: str, number: int) -> Proxy:
    """Stands for an object that a call has given out; void when the process ends."""
    start = far.n_starts
    return Proxy(far, kind, lambda: number if start == far.n_starts and far.cell is not None else None)


def _call(thing: Proxy, method: str, args: Sequence[Any], kwargs: dict[str, Any], meter: str = "") -> Any:
    far: RemoteAnswer = thing.__dict__["_far"]
    number = thing.number_now()
    torch = sys.modules.get("torch")
    grad = bool(torch is not None and torch.is_grad_enabled())
    if far.dropped:
        far.request(messages.Release([far.dropped.pop() for _ in range(len(far.dropped))]))
    try:
        reply = far.request(messages.Call(number, method, list(args), kwargs, grad, meter, seconds_for_another()))
    finally:
        far.near.clear()
    if not isinstance(reply, messages.Returned):
        far.end()
        raise AnswerError("what came back cannot be used")
    if reply.graph is None or torch is None:
        return reply.result
    from labstaff.judge.autograd import link

    inputs = _tensors(torch, [*args, *kwargs.values()])
    return link(far, reply.graph, [x for x in inputs if x.requires_grad], reply.result)


def _tensors(torch: Any, values: Any) -> list[Any]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        return [x for each in values.values() for x in _tensors(torch, each)]
    if isinstance(values, list | tuple):
        return [x for each in values for x in _tensors(torch, each)]
    return []
