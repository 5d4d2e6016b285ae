"""What the suite's side and the answer's side of the judge say to each other: every message, with its fields.

Fields named in `VALUES` hold Python values in memory and trees of plain data on the wire: see `values`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct


class Message(Struct, tag=True, array_like=True):
    """Anything that crosses."""

    VALUES: ClassVar[tuple[str, ...]] = ()


# from the suite to the answer


class Load(Message):
    """Run an answer's text, and the programs of its suite beside it."""

    module: str
    file: str
    text: str
    suite: str
    programs: str
    tasks: list[str]


class Call(Message):
    """Call an object given out before, or its method, or a meter with it.

    `grad`: with autograd on; `seconds`: of CPU time that it may take by itself.
    """

    VALUES: ClassVar[tuple[str, ...]] = ("args", "kwargs")
    number: int
    method: str
    args: Any
    kwargs: Any
    grad: bool
    meter: str
    seconds: float | None = None


class Backward(Message):
    """Go back through the graph of an earlier call, from the gradients of its results."""

    VALUES: ClassVar[tuple[str, ...]] = ("grads",)
    graph: int
    grads: Any
    seconds: float | None = None


class Release(Message):
    """Forget graphs that nobody will go back through."""

    graphs: list[int]


class Given(Message):
    """The reply to what the answer asked for. `changes`: what the suite has changed of the arrays that crossed."""

    VALUES: ClassVar[tuple[str, ...]] = ("changes", "value")
    value: Any
    changes: Any


class Refused(Message):
    """What the answer asked for raised an exception: of which kind, and what it said."""

    kind: str
    said: str


# from the answer to the suite


class Ready(Message):
    """The first word of a cell that has shut all doors behind itself."""


class Described(Message):
    """An exception: its kinds, the nearest first, what it says, and the lines it passed through."""

    kinds: list[str]
    said: str
    places: list[tuple[str, int, str]]


class Loaded(Message):
    """What a loaded answer offers: the numbers of its tasks and of the programs; or why it does not.

    `said` stands for a text that is not run: no Python, or beyond what an answer may use.
    """

    tasks: dict[str, int]
    programs: dict[str, int]
    said: str = ""
    raised: Described | None = None


class Returned(Message):
    """The result of a call, what it changed of its arguments, and the number of its graph."""

    VALUES: ClassVar[tuple[str, ...]] = ("result", "changes")
    result: Any
    changes: Any
    graph: int | None
    released: list[int]
    own: int | None = None
    """The number under which machines know the result, if it is an array that they have moved."""


class Raised(Message):
    """A request ended in an exception."""

    error: Described
    released: list[int]


class Next(Message):
    """Asks for the next element of an iterator of the suite's: (whether there is one, the element)."""

    VALUES: ClassVar[tuple[str, ...]] = ("changes",)
    number: int
    changes: Any


class CallBack(Message):
    """Asks for a call of a function of the suite's."""

    VALUES: ClassVar[tuple[str, ...]] = ("args", "changes")
    number: int
    args: Any
    changes: Any


class Operate(Message):
    """Asks for an operation of the simulated machine: see `machines`. `released` are tiles that are gone."""

    VALUES: ClassVar[tuple[str, ...]] = ("args", "kwargs")
    operation: str
    name: str
    args: Any
    kwargs: Any
    released: list[int]


FromSuite = Load | Call | Backward | Release | Given | Refused
FromAnswer = Ready | Loaded | Returned | Raised | Next | CallBack | Operate
