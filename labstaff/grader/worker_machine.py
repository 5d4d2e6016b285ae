"""Worker side of the simulated machine: objects whose every operation the suite's side carries out.

It takes the place of `labkit.simulated_memory`. Values come here by `HBMArray.numpy` alone, which is counted, by
`store` into an array of the submission's own, and as the one truth value that may steer a program.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

MODULE = "labkit.simulated_memory"
VIEWS = ("T", "mT")
COUNTERS = ("loaded", "stored", "traffic", "in_use", "high_water", "host_read", "sram_bytes")
_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
ON_TILE = (
    *("__getitem__", "__setitem__", "__bool__", "__float__", "__int__", "__index__", "__complex__"),
    "__array_ufunc__",
)
ON_HBM = (
    *("__getitem__", "__setitem__", "__iter__", "__bool__", "__float__", "__array_ufunc__"),
    *("__neg__", "__pos__", "__abs__", "__invert__"),
    *(f"__{side}{name}__" for name in _BINARY for side in ("", "r")),
    *(f"__{name}__" for name in _COMPARED),
)
MAKES = 0
"""The number of what makes machines, and the mirrors of arrays."""
OPERATORS = frozenset((*ON_TILE, *ON_HBM, "__array_function__"))
"""What the suite's side carries out besides public methods."""


class SRAMOverflow(MemoryError):
    """More bytes were alive in SRAM than it holds."""


SRAMOverflow.__module__ = MODULE

_ask: Callable[..., Any]
_dropped: list[int] = []
_mirrors: dict[int, tuple[Kept, np.ndarray]] = {}  # by id: arrays of the submission's own that a machine has moved


def install(ask: Callable[..., Any]) -> None:
    """Take the place of the course's module; `ask(number, name, arguments)` has the suite's side do something."""
    global _ask
    _ask = ask
    sys.modules[MODULE] = sys.modules[__name__]


def dropped() -> list[int]:
    """The numbers of what was freed since this was asked last."""
    gone = list(_dropped)
    del _dropped[: len(gone)]
    return gone


def number_of(x: Any) -> int | None:
    """The number of an object on the suite's side."""
    return object.__getattribute__(x, "_number") if isinstance(x, Kept) else None


class Kept:
    """An object on the suite's side; its methods are called there."""

    __slots__ = ("__weakref__", "_number")

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(_call, self, name)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            _dropped.append(self._number)


def _call(thing: Kept | int, name: str, *args: Any, **kwargs: Any) -> Any:
    return _ask(thing if isinstance(thing, int) else thing._number, name, (args, kwargs))


class Machine(Kept):
    """See `labkit.simulated_memory.Machine`."""

    __slots__ = ("sealed",)

    def __init__(self, sram_bytes: int, sealed: bool = False) -> None:
        if hasattr(self, "_number"):
            raise TypeError("a machine is set up once: its counters go on counting")
        self._number, self.sealed = _call(MAKES, "machine", sram_bytes, sealed), sealed

    def __getattr__(self, name: str) -> Any:
        return _ask(self._number, name) if name in COUNTERS else super().__getattr__(name)

    def load(self, hbm: Any, index: Any) -> Any:
        """Copy `hbm[index]` into a new tile."""
        if isinstance(hbm, np.ndarray) and not self.sealed:
            return _mirror(hbm).load(self, index, hbm[index])
        return _call(self, "load", hbm, index)

    def store(self, hbm: Any, index: Any, tile: Any) -> None:
        """Write `tile` to `hbm[index]`."""
        if isinstance(hbm, np.ndarray) and not self.sealed:
            hbm[index] = _mirror(hbm).store(self, index, tile)
        else:
            _call(self, "store", hbm, index, tile)

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """Make room in HBM, not initialised."""
        return _call(self, "allocate", shape, np.dtype(dtype))

    def new(self, shape: Any, fill: Any, dtype: Any) -> Any:
        """Make a tile with every element equal to `fill`."""
        return _call(self, "new", shape, fill, np.dtype(dtype))


def made_machine(number: int, sealed: bool) -> Machine:
    """The stand-in for a machine of the suite's."""
    machine = object.__new__(Machine)
    machine._number, machine.sealed = number, sealed
    return machine


def _mirror(array: np.ndarray) -> Any:
    if id(array) not in _mirrors:
        _mirrors[id(array)] = Kept(_call(MAKES, "mirror", array.shape, array.dtype)), array
    return _mirrors[id(array)][0]


class _Shaped(Kept):
    __slots__ = ("dtype", "shape")

    def __init__(self, number: int, shape: tuple[int, ...], dtype: str) -> None:
        self._number, self.shape, self.dtype = number, shape, np.dtype(dtype)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


class HBMArray(_Shaped):
    """See `labkit.simulated_memory.HBMArray`."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)


class Tile(_Shaped, np.lib.mixins.NDArrayOperatorsMixin):
    """See `labkit.simulated_memory.Tile`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return _ask(self._number, name) if name in VIEWS else super().__getattr__(name)

    def __iter__(self) -> Iterator[Tile]:
        return (self[row] for row in range(len(self)))  # type: ignore[index]

    def __copy__(self) -> Tile:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Tile:
        return self.copy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.__float__()  # type: ignore[attr-defined]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _call(self, "__array_function__", func, None, args, kwargs)


def _forwarded(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: _call(self, name, *args, **kwargs)


for _kind, _names in ((HBMArray, ON_HBM), (Tile, ON_TILE)):
    for _name in _names:
        setattr(_kind, _name, _forwarded(_name))
