"""Marks the functions of a suite that run in the submission's process: a meter around several calls, a backward pass.

Values are compared in the suite's own process; some things must be asked where the submission is. A *probe* is a
function of the suite that uses the submission in ways that plain data cannot express. It takes and returns plain data
and compares nothing. In an ordinary run it is just called. Where the submission is in another process, the function is
sent there, with what it names and nothing else; of labkit it may name meters, ranks, the simulated memory and the
records of serving. All of these but the simulated memory are sent along, so that a submission cannot replace them.
What has a state is new in each call of a probe, which is given a list of calls of its methods (see
`labkit.testing.sessions`).

    @probe
    def measured_call(task, *args): ...
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

F = TypeVar("F", bound=Callable)

worker_runner: Callable[[FunctionType], Callable] | None = None
"""Wraps a probe so that it runs in the worker; None when nothing is graded."""


def probe(function: F) -> F:
    """Mark a function of a suite as a probe."""
    if worker_runner is None or not isinstance(function, FunctionType):
        return function
    return worker_runner(function)  # type: ignore[return-value]
