"""Calls of an object's methods as a list of data: whatever has a state is new for each list."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from typing import Any

Call = tuple[str, tuple[Any, ...], bool]
"""A method, its arguments, and whether the call is known to raise an exception, which is passed over."""


def run_calls(thing: Any, calls: Iterable[Call]) -> Any:
    """Make the calls, in order; what the last one returns. Each has arguments of its own.

    Raises:
        Exception: what a call raised that is not known to raise one.
    """
    found = None
    for name, args, refused in calls:
        with contextlib.suppress(Exception) if refused else contextlib.nullcontext():
            found = getattr(thing, name)(*copy.deepcopy(args))
    return found


class CallLog:
    """Stands for an object, and keeps what each call of a method gave.

    `record` holds (method, result, refusal) for each call. The refusal is the message of a RuntimeError, and None for a
    call that returned. A call that raises anything else is not in the record.
    """

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.record: list[tuple[str, Any, str | None]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                result = getattr(self.thing, name)(*args)
            except RuntimeError as error:
                if type(error) is RuntimeError:
                    self.record.append((name, None, str(error)))
                raise
            self.note(name, result)
            return result

        return call

    def note(self, name: str, result: Any) -> None:
        """Add a call that was made without this."""
        self.record.append((name, as_it_is(result), None))


def as_it_is(x: Any) -> Any:
    """A copy of plain data: what is done later to `x` does not change it."""
    if isinstance(x, dict):
        return {key: as_it_is(value) for key, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(as_it_is, x))
    return x.clone() if hasattr(x, "clone") else x
