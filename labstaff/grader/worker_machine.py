"""Worker side of the simulated machine: stand-ins whose every operation the suite's side carries out.

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
COUNTERS = ("loaded", "stored", "traffic", "in_use", "high_water", "host_read", "sram_bytes", "sealed")
ON_MACHINE = ("load", "store", "new", "hbm", "allocate", "loaded_from", "stored_to")
VIEWS = ("T", "mT")
METHODS = (
    *("all", "any", "argmax", "argmin", "astype", "copy", "cumsum", "diagonal", "dot", "fill", "max", "mean", "min"),
    *("prod", "reshape", "squeeze", "sum", "swapaxes", "transpose"),
)
ON_TILE = ("__getitem__", "__setitem__", "__bool__", "__float__", "__int__", "__index__", "__complex__")
_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
ON_HBM = (
    *("__getitem__", "__setitem__", "__iter__", "__bool__", "__float__", "__neg__", "__pos__", "__abs__", "__invert__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "numpy"),
    *(f"__{side}{name}__" for name in _BINARY for side in ("", "r")),
)


class SRAMOverflow(MemoryError):
    """More bytes were alive in SRAM than it holds."""


SRAMOverflow.__module__ = MODULE

_ask: Callable[..., Any]
_dropped: list[int] = []
_own: dict[int, tuple[int, np.ndarray]] = {}  # by id: arrays of the submission's own that a machine has moved


def install(ask: Callable[..., Any]) -> None:
    """Take the place of the course's module; `ask(operation, ...)` has the suite's side carry out an operation."""
    global _ask
    _ask = ask
    sys.modules[MODULE] = sys.modules[__name__]


def dropped() -> list[int]:
    """The numbers of what was freed since this was asked last."""
    gone = list(_dropped)
    del _dropped[: len(gone)]
    return gone


def describe(x: Any) -> list[Any] | None:
    """What stands for a machine's thing."""
    return ["machine", object.__getattribute__(x, "_number")] if isinstance(x, _Thing) else None


def known_as(x: Any) -> int | None:
    """The number of an array that a machine has moved."""
    known = _own.get(id(x))
    return known[0] if known else None


def made(description: Any) -> Any:
    """The stand-in for a thing of the suite's."""
    kind, (number, shape, dtype) = description
    if kind == "machine":
        return Machine._of(number)
    return (Tile if kind == "tile" else HBMArray)(number, shape, dtype)


class _Thing:
    __slots__ = ("__weakref__", "_number")
    _number: int

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            _dropped.append(self._number)


class Machine(_Thing):
    """See `labkit.simulated_memory.Machine`."""

    __slots__ = ()

    def __init__(self, sram_bytes: int, sealed: bool = False) -> None:
        if hasattr(self, "_number"):
            raise TypeError("a machine is set up once: its counters go on counting")
        self._number = _ask("machine", sram_bytes, sealed)

    @classmethod
    def _of(cls, number: int) -> Machine:
        machine = object.__new__(cls)
        machine._number = number
        return machine

    def __getattr__(self, name: str) -> Any:
        if name in COUNTERS:
            return _ask("get", self, name)
        if name in ON_MACHINE:
            return partial(_ask, "call", self, name)
        raise AttributeError(f"a machine has no {name!r}")

    def load(self, hbm: Any, index: Any) -> Any:
        """Copy `hbm[index]` into a new tile."""
        if isinstance(hbm, np.ndarray) and not self.sealed:
            return _ask("load own", self, *_known(hbm), index, hbm[index])
        return _ask("call", self, "load", hbm, index)

    def store(self, hbm: Any, index: Any, tile: Any) -> None:
        """Write `tile` to `hbm[index]`."""
        if isinstance(hbm, np.ndarray) and not self.sealed:
            hbm[index] = _ask("store own", self, *_known(hbm), index, tile)
        else:
            _ask("call", self, "store", hbm, index, tile)

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """Make room in HBM, not initialised."""
        return _ask("call", self, "allocate", shape, np.dtype(dtype))

    def new(self, shape: Any, fill: Any, dtype: Any) -> Any:
        """Make a tile with every element equal to `fill`."""
        return _ask("call", self, "new", shape, fill, np.dtype(dtype))


class _Shaped(_Thing):
    __slots__ = ("dtype", "shape")

    def __init__(self, number: int, shape: list[int], dtype: Any) -> None:
        self._number, self.shape, self.dtype = number, tuple(shape), np.dtype(dtype)

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
        return self.numpy() if dtype is None else self.numpy().astype(dtype)  # type: ignore[attr-defined]

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        return -self  # type: ignore[operator]


class Tile(_Shaped, np.lib.mixins.NDArrayOperatorsMixin):
    """See `labkit.simulated_memory.Tile`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in VIEWS:
            return _ask("get", self, name)
        if name in METHODS:
            return partial(_ask, "call", self, name)
        raise AttributeError(f"a tile has no {name!r}: its values stay in SRAM until they are stored")

    def __iter__(self) -> Iterator[Tile]:
        return (self[row] for row in range(len(self)))  # type: ignore[index]

    def __copy__(self) -> Tile:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Tile:
        return self.copy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.__float__()  # type: ignore[attr-defined]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _ask("ufunc", ufunc.__name__, method, *inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _ask("function", func.__name__, *args, **kwargs)


def _forwarded(name: str) -> Callable[..., Any]:
    return lambda self, *args: _ask("call", self, name, *args)


for _kind, _names in ((HBMArray, ON_HBM), (Tile, ON_TILE)):
    for _name in _names:
        setattr(_kind, _name, _forwarded(_name))


def _known(array: np.ndarray) -> tuple[int, list[int], np.dtype]:
    number, _ = _own.setdefault(id(array), (len(_own), array))
    return number, list(array.shape), array.dtype
