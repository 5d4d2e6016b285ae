"""An object of a submission, seen from the suite: only calls and what they give cross."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.meters.sessions import Call, as_it_is


class Session:
    """Has the methods of an object. Each call is made on a new one, after all calls before it.

    Args:
        run: a probe that makes the object, makes a list of calls, and returns what the last one gave.
        record: what the first calls gave, where a probe has made them before; see `labkit.meters.sessions.CallLog`.
            Where it ends, or another method is called, the calls are run.
    """

    def __init__(self, run: Callable[[list[Call]], Any], record: Sequence[tuple[str, Any, str | None]] = ()) -> None:
        self._run, self._record = run, record
        self._calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self.call, name)

    def call(self, name: str, *args: Any) -> Any:
        """What the method gives.

        Raises:
            Exception: what it raised.
        """
        number, given = len(self._calls), as_it_is(args)
        self._calls.append((name, given, True))  # until it has returned
        found = self._known(number, name)
        self._calls[number] = name, given, False
        return found

    def _known(self, number: int, name: str) -> Any:
        if number < len(self._record) and self._record[number][0] == name:
            _, result, refusal = self._record[number]
            if refusal is not None:
                raise RuntimeError(refusal)
            return result
        self._record = ()
        *before, (_, args, _) = self._calls
        return self._run([*before, (name, args, False)])
