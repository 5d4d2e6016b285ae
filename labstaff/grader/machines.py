"""Suite side of the simulated machine: the real objects, whose operations a worker may ask for."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.simulated_memory import HBMArray, Machine, Tile
from labstaff.grader import worker_machine
from labstaff.grader.wire import Ask, WireError

MOST_BYTES = 128 << 20
"""What the machines of one worker may hold in HBM, and in SRAM."""


class Kept:
    """The objects that one worker has numbers of, and what it may do with them."""

    def __init__(self) -> None:
        made = SimpleNamespace(
            machine=lambda *args: self._number(Machine(*args)), mirror=lambda *args: self._number(Mirror(*args))
        )
        self._things: dict[int, Any] = {worker_machine.MAKES: made}
        self._n_given = worker_machine.MAKES

    def stand_in(self, x: Any) -> tuple[Any, tuple[Any, ...]] | None:
        """What takes the place of `x` in the worker, as `__reduce__` gives it; None for what may cross itself."""
        if isinstance(x, Tile | HBMArray):
            kind = worker_machine.Tile if isinstance(x, Tile) else worker_machine.HBMArray
            return kind, (self._number(x), x.shape, x.dtype.str)
        return (worker_machine.made_machine, (self._number(x), x.sealed)) if isinstance(x, Machine) else None

    def found(self, number: Any) -> Any:
        """The object with this number.

        Raises:
            WireError: it was not given out, or is not needed any more.
        """
        if type(number) is not int or number not in self._things:
            raise WireError("a number that was not given out")
        return self._things[number]

    def forget(self, numbers: list[int]) -> None:
        """Free what the worker has dropped."""
        for number in numbers:
            self._things.pop(number, None)

    def carry_out(self, ask: Ask) -> tuple[bool, Any]:
        """(True, result) of what the worker asks for, or (False, the exception that it raised)."""
        thing = self.found(ask.number)
        if ask.name.startswith("_") and ask.name not in worker_machine.OPERATORS:
            raise WireError(f"no operation is called {ask.name[:80]!r}")
        try:
            attribute = getattr(thing, ask.name)
            if ask.arguments is None:
                return True, attribute
            args, kwargs = ask.arguments
            self._require_room(ask.name, args)
            return True, attribute(*args, **kwargs)
        except Exception as error:
            return False, error

    def _number(self, thing: Any) -> int:
        self._n_given += 1
        self._things[self._n_given] = thing
        return self._n_given

    def _require_room(self, name: str, args: Any) -> None:
        if name in ("allocate", "new", "mirror"):
            n_bytes = math.prod(np.atleast_1d(args[0]).tolist()) * np.dtype(args[-1]).itemsize
        elif name == "hbm":
            n_bytes = np.asarray(args[0]).nbytes
        else:
            return
        things = {id(thing): thing for thing in self._things.values()}.values()
        held = sum(thing.nbytes for thing in things if isinstance(thing, HBMArray | Mirror))
        held += sum(thing.in_use for thing in things if isinstance(thing, Machine))
        if held + n_bytes > MOST_BYTES:
            raise MemoryError(f"{n_bytes:,} B more: the machines of a graded submission hold {MOST_BYTES:,} B")


class Mirror:
    """An array of the submission's own, in the books of its machines."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self._array = np.zeros(shape, dtype)
        self.nbytes = self._array.nbytes

    def load(self, machine: Machine, index: Any, content: np.ndarray) -> Tile:
        """A tile of what the array holds there."""
        self._array[index] = content
        return machine.load(self._array, index)

    def store(self, machine: Machine, index: Any, tile: Tile) -> np.ndarray:
        """What the array is to hold there from now on."""
        machine.store(self._array, index, tile)
        return np.array(self._array[index])
