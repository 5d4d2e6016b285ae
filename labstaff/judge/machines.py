"""The suite's side of the simulated machine: the machines, arrays and tiles that an answer holds numbers of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.simulated_memory import HBMArray, Machine, Tile
from labkit.simulated_memory._tiles import _FUNCTIONS, _METHODS, _VIEWS
from labstaff.judge.framing import CodecError
from labstaff.judge.tracking import Arrays

MOST_BYTES = 128 << 20
COUNTERS = frozenset(("loaded", "stored", "traffic", "in_use", "high_water", "host_read"))
FUNCTIONS = {function.__name__: function for function in (*_FUNCTIONS, np.einsum)}
UFUNC_METHODS = frozenset(("__call__", "reduce", "accumulate", "outer", "reduceat", "at"))
ON_MACHINE = frozenset(("load", "store", "new", "hbm", "allocate"))


class Own:
    """Stands for an array of the answer's own in the books of a machine that is not sealed."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Machines:
    """What one process of an answer holds numbers of, and the operations that it may ask for."""

    def __init__(self) -> None:
        self.things: dict[int, Any] = {}
        self.machines: list[Machine] = []
        self.own: dict[int, Own] = {}
        self.crossed = Arrays(keep=True)
        self.n_given = 0
        self.n_hbm_bytes = 0
        self.operations: dict[str, Callable[..., Any]] = {
            "machine": self._machine,
            "on machine": self._on_machine,
            "load own": self._load_own,
            "store own": self._store_own,
            "moved": self._moved,
            "counter": self._counter,
            "numpy": lambda name, handle: _is(handle, HBMArray).numpy(),
            "view": lambda name, tile: getattr(_is(tile, Tile), _one_of(name, _VIEWS)),
            "method": lambda name, tile, *args, **kwargs: getattr(_is(tile, Tile), _one_of(name, _METHODS))(
                *args, **kwargs
            ),
            "get": lambda name, tile, index: _is(tile, Tile)[index],
            "set": lambda name, tile, index, value: _is(tile, Tile).__setitem__(index, value),
            "truth": lambda name, tile: bool(_is(tile, Tile)),
            "function": self._function,
        }

    def operate(self, operation: str, name: str, args: Any, kwargs: Any, released: list[int]) -> Any:
        """Carry out one operation, after `released` are gone; exceptions are the answer's."""
        self.release(released)
        if sum(machine.in_use for machine in self.machines) > MOST_BYTES:
            raise MemoryError(f"a judged answer has {MOST_BYTES:,} B in all its SRAMs")
        if not isinstance(args, list) or not isinstance(kwargs, dict) or not all(isinstance(k, str) for k in kwargs):
            raise CodecError("arguments are a list and a dict")
        kind, _, method = operation.partition("ufunc ")
        if not kind and method in UFUNC_METHODS:
            ufunc = getattr(np, name, None)
            if not isinstance(ufunc, np.ufunc):
                raise TypeError(f"{name} is not one of NumPy's own ufuncs: SRAM knows only those")
            return getattr(ufunc, method)(*args, **kwargs)
        if operation not in self.operations:
            raise CodecError(f"no operation is called {operation!r}")
        return self.operations[operation](name, *args, **kwargs)

    def release(self, numbers: list[int]) -> None:
        """Forget what the answer has dropped."""
        for number in numbers:
            thing = self.things.pop(number, None)
            if isinstance(thing, HBMArray):
                self.n_hbm_bytes -= thing.nbytes

    def encode(self, x: Any) -> dict[str, Any] | None:
        """What stands for `x` on the wire, if it is a machine's."""
        if isinstance(x, Tile | HBMArray):
            kind = "tile" if isinstance(x, Tile) else "hbm"
            return {"$": kind, "number": self._give(x), "shape": list(x.shape), "dtype": x.dtype.str}
        if isinstance(x, Machine):
            return {"$": "machine", "number": self._give(x), "sram_bytes": x.sram_bytes, "sealed": x.sealed}
        return None

    def decode(self, tree: dict[str, Any]) -> Any:
        """The thing with a number, which must have been given out."""
        number = tree["number"]
        if type(number) is not int or number not in self.things:
            raise CodecError("a number that was not given out")
        return self.things[number]

    def _give(self, thing: Any) -> int:
        """A new number for each time something goes out: each is released by itself."""
        self.n_given += 1
        self.things[self.n_given] = thing
        if isinstance(thing, HBMArray):
            self.n_hbm_bytes += thing.nbytes
        return self.n_given

    def _machine(self, name: str, *args: Any) -> int:
        self.machines.append(Machine(*args))
        return self._give(self.machines[-1])

    def _on_machine(self, name: str, machine: Any, *args: Any) -> Any:
        _is(machine, Machine)
        if _one_of(name, ON_MACHINE) == "allocate":
            shape, dtype = args
            self._room_for(int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize)
        elif name == "hbm":
            self._room_for(np.asarray(args[0]).nbytes)
        return getattr(machine, name)(*args)

    def _room_for(self, n_bytes: int) -> None:
        if self.n_hbm_bytes + n_bytes > MOST_BYTES:
            raise MemoryError(f"{n_bytes:,} B more in HBM: a judged answer has {MOST_BYTES:,} B there")

    def _load_own(self, name: str, machine: Any, number: int, shape: Any, content: Any) -> Any:
        ledger = _is(machine, Machine)._ledger
        source = np.asarray(_is(content, np.ndarray | np.generic))
        ledger.require(source.nbytes, source.shape, source.dtype, "load")
        tile = ledger.adopt(np.array(source, order="C", subok=False), "load")
        ledger.count(self._own(number, shape), loaded=tile.nbytes)
        return tile

    def _store_own(self, name: str, machine: Any, number: int, shape: Any, part: Any, dtype: Any, tile: Any) -> Any:
        """What is to be written into the answer's own array, at a place of this shape."""
        self._room_for(math.prod(part) * np.dtype(dtype).itemsize)
        target = np.empty(part, dtype)
        ledger = _is(machine, Machine)._ledger
        value = ledger.plain(_is(tile, Tile), "store")
        if target.shape != value.shape:
            raise ValueError(f"store: the tile has shape {value.shape}, the place in HBM has shape {target.shape}")
        target[...] = value
        ledger.count(self._own(number, shape), stored=target.nbytes)
        return target

    def _moved(self, way: str, machine: Any, array: Any) -> int:
        ask = _is(machine, Machine).loaded_from if _one_of(way, COUNTERS) == "loaded" else machine.stored_to
        return ask(self._own(array, ()) if type(array) is int else array)

    def rebind(self, number: int, result: Any) -> None:
        """Know an array of the answer's own, which has come here as `result`, by that in all books."""
        own = self.own.get(number)
        for machine in self.machines_known():
            if (entry := machine._ledger.moved.pop(id(own), None)) is not None:
                entry.hbm = result
                machine._ledger.moved[id(result)] = entry

    def machines_known(self) -> list[Machine]:
        """Those that the answer made, and those that it was given."""
        given = [thing for thing in self.things.values() if isinstance(thing, Machine)]
        return list({id(machine): machine for machine in [*self.machines, *given]}.values())

    def _counter(self, name: str, machine: Any) -> int:
        return getattr(_is(machine, Machine), _one_of(name, COUNTERS))

    def _function(self, name: str, *args: Any, **kwargs: Any) -> Any:
        function = FUNCTIONS.get(name)
        if function is None:
            raise TypeError(f"np.{name} is not offered in SRAM: write it with simpler calls")
        return function(*args, **kwargs)

    def _own(self, number: int, shape: Any) -> Any:
        if number < 0:  # one of the suite's, that has crossed
            return self.crossed.known[-1 - number][0]()
        return self.own.setdefault(number, Own(tuple(shape)))


def _is(thing: Any, kind: Any) -> Any:
    if not isinstance(thing, kind):
        raise CodecError("an operation on something else")
    return thing


def _one_of(name: str, names: frozenset[str]) -> str:
    if name not in names:
        raise CodecError(f"no operation is called {name!r}")
    return name
