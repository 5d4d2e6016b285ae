"""Suite side of the simulated machine: the real objects, whose operations a worker may ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.simulated_memory import HBMArray, Machine, Tile
from labkit.simulated_memory._tiles import _FUNCTIONS
from labstaff.grader import worker_machine as names
from labstaff.grader.wire import WireError

MOST_BYTES = 128 << 20
"""What the machines of one worker may hold in HBM, and in SRAM."""
FUNCTIONS = {function.__name__: function for function in (*_FUNCTIONS, np.einsum)}
UFUNC_METHODS = frozenset(("__call__", "reduce", "accumulate", "outer", "reduceat", "at"))
MAY_GET = {Machine: names.COUNTERS, Tile: names.VIEWS}
MAY_CALL = {
    Machine: names.ON_MACHINE,
    Tile: (*names.METHODS, *names.ON_TILE),
    HBMArray: names.ON_HBM,
}


class Machines:
    """What one worker holds numbers of, and the operations that it may ask for."""

    def __init__(self) -> None:
        self.things: dict[int, Any] = {}
        self.own: dict[int, np.ndarray] = {}
        self._n_given = 0
        self._operations: dict[str, Callable[..., Any]] = {
            "machine": lambda *args: self._give(Machine(*args)),
            "get": self._get,
            "call": self._call,
            "ufunc": self._ufunc,
            "function": self._function,
            "load own": self._load_own,
            "store own": self._store_own,
        }

    def carry_out(self, operation: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """(True, result) of an operation, or (False, the exception that it raised)."""
        if operation not in self._operations:
            raise WireError(f"no operation is called {operation!r}")
        try:
            return True, self._operations[operation](*args, **kwargs)
        except WireError:
            raise
        except Exception as error:
            return False, error

    def forget(self, numbers: list[int]) -> None:
        """Free what the worker has dropped."""
        for number in numbers:
            self.things.pop(number, None)

    def describe(self, x: Any) -> list[Any] | None:
        """What stands for a machine's thing on the way to the worker."""
        if isinstance(x, Tile | HBMArray):
            return ["tile" if isinstance(x, Tile) else "hbm", [self._give(x), list(x.shape) or [], x.dtype.str]]
        return ["machine", [self._give(x), None, None]] if isinstance(x, Machine) else None

    def found(self, description: Any) -> Any:
        """The thing that a number of the worker's stands for."""
        kind, number = description
        known = self.things if kind == "machine" else {}
        if type(number) is not int or number not in known:
            raise WireError("a number that was not given out")
        return known[number]

    def moved(self, number: Any, array: Any) -> Any:
        """An array of the submission's own that machines have moved: the one in their books, with its content now."""
        known = self.own.get(number) if type(number) is int else None
        if known is None or type(array) is not np.ndarray or (known.shape, known.dtype) != (array.shape, array.dtype):
            raise WireError("an array that was not moved")
        known[...] = array
        return known

    def _give(self, thing: Any) -> int:
        self._n_given += 1
        self.things[self._n_given] = thing
        return self._n_given

    def _get(self, thing: Any, name: str) -> Any:
        _require(name, MAY_GET, thing)
        return getattr(thing, name)

    def _call(self, thing: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        _require(name, MAY_CALL, thing)
        if name in ("allocate", "new"):
            self._require_room(math.prod(np.atleast_1d(args[0]).tolist()) * np.dtype(args[-1]).itemsize)
        elif name == "hbm":
            self._require_room(np.asarray(args[0]).nbytes)
        return getattr(thing, name)(*args, **kwargs)

    def _ufunc(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        ufunc = getattr(np, name, None)
        if not isinstance(ufunc, np.ufunc) or method not in UFUNC_METHODS:
            raise TypeError(f"{name} is not one of NumPy's own ufuncs: SRAM knows only those")
        return getattr(ufunc, method)(*args, **kwargs)

    def _function(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in FUNCTIONS:
            raise TypeError(f"np.{name} is not offered in SRAM: write it with simpler calls")
        return FUNCTIONS[name](*args, **kwargs)

    def _load_own(self, machine: Any, number: int, shape: Any, dtype: Any, index: Any, content: Any) -> Any:
        array = self._mirror(number, shape, dtype)
        array[index] = content
        return _machine(machine).load(array, index)

    def _store_own(self, machine: Any, number: int, shape: Any, dtype: Any, index: Any, tile: Any) -> Any:
        array = self._mirror(number, shape, dtype)
        _machine(machine).store(array, index, tile)
        return np.array(array[index])

    def _mirror(self, number: int, shape: Any, dtype: Any) -> np.ndarray:
        """The array here that stands for one of the submission's own in the books of its machines."""
        if type(number) is not int:
            raise WireError("an array has a number")
        if number not in self.own:
            self._require_room(math.prod(shape) * dtype.itemsize)
            self.own[number] = np.zeros(shape, dtype)
        return self.own[number]

    def _require_room(self, n_bytes: int) -> None:
        arrays = {id(thing): thing.nbytes for thing in self.things.values() if isinstance(thing, HBMArray)}
        machines = {id(thing): thing.in_use for thing in self.things.values() if isinstance(thing, Machine)}
        in_use = sum(array.nbytes for array in self.own.values()) + sum((*arrays.values(), *machines.values()))
        if in_use + n_bytes > MOST_BYTES:
            raise MemoryError(f"{n_bytes:,} B more: the machines of a graded submission hold {MOST_BYTES:,} B")


def _machine(thing: Any) -> Machine:
    if not isinstance(thing, Machine):
        raise WireError("an operation on something else")
    return thing


def _require(name: Any, allowed: dict[type, tuple[str, ...]], thing: Any) -> None:
    if name not in allowed.get(type(thing), ()):
        raise WireError(f"no operation is called {str(name)[:80]!r}")
