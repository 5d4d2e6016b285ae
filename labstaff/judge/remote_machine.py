"""The simulated machine as an answer meets it when it is judged: handles, whose every operation the suite carries out.

Arrays in HBM, tiles and books live in the suite's process (`machines`). Here are numbers for them, with shapes and
dtypes; values come here only by `HBMArray.numpy`, which is counted, by `store` into an array of the answer's own, and
as the one truth value that may steer a program. It takes the place of `labkit.simulated_memory`, whose names and words
it has.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from labstaff.judge.tracking import Arrays

COURSE = "labkit.simulated_memory"
PROPERTIES = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "size"))
VIEWS = frozenset(("T", "mT"))
# fmt: off
METHODS = frozenset((
    "all", "any", "argmax", "argmin", "astype", "copy", "cumsum", "diagonal", "dot", "fill", "max", "mean", "min",
    "prod", "reshape", "squeeze", "sum", "swapaxes", "transpose",
))
# fmt: on


class SRAMOverflow(MemoryError):
    """More bytes were alive in SRAM than it holds."""


SRAMOverflow.__module__ = COURSE


class Connection:
    """What this process holds of the suite's machines, and how to ask for operations on them."""

    def __init__(self, operate: Callable[[str, str, Any, Any], Any]) -> None:
        self.operate = operate
        self.gone: list[int] = []
        self.crossed = Arrays(keep=False)
        self.arrays: dict[int, tuple[int, Any]] = {}  # by id: the number of an array of this process's own, and it
        self.watchers: list[list[Machine]] = []

    def ask(self, operation: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of an operation; see `machines`."""
        return self.operate(operation, name, list(args), kwargs)

    def released(self) -> list[int]:
        """The numbers of what is gone since this was asked last."""
        gone, self.gone = self.gone, []
        return gone

    def own(self, array: np.ndarray) -> int:
        """A number for an array here, by which the books know it: below 0 for one of the suite's that has crossed."""
        if id(array) not in self.arrays:
            self.arrays[id(array)] = (len(self.arrays), array)
            for number, (reference, _) in self.crossed.known.items():
                if reference() is array:
                    self.arrays[id(array)] = (-1 - number, array)
        return self.arrays[id(array)][0]

    def known_as(self, result: Any) -> int | None:
        """The number of an array that a machine has moved; None for everything else."""
        known = self.arrays.get(id(result)) if isinstance(result, np.ndarray) else None
        return known[0] if known and known[0] >= 0 else None

    def encode(self, x: Any) -> dict[str, Any] | None:
        """What stands for `x` on the wire, if it is a machine's."""
        if isinstance(x, Machine | HBMArray | Tile):
            return {"$": "machine", "number": object.__getattribute__(x, "_number")}
        return None

    def decode(self, tree: dict[str, Any]) -> Any:
        """What stands for a machine's thing here."""
        kind, number = tree["$"], tree["number"]
        if kind == "machine":
            machine = object.__new__(Machine)
            machine._set_up(number, tree["sram_bytes"], tree["sealed"])
            return machine
        return (HBMArray if kind == "hbm" else Tile)(number, tuple(tree["shape"]), np.dtype(tree["dtype"]))


_connection: Connection


def connect(operate: Callable[[str, str, Any, Any], Any]) -> Connection:
    """Take the place of the course's module; `operate` has the suite carry out an operation."""
    global _connection
    _connection = Connection(operate)
    sys.modules[COURSE] = sys.modules["labkit.hierarchy"] = sys.modules[__name__]
    return _connection


def error_of(kind: str, said: str) -> Exception:
    """An exception that an operation has raised at the suite's side."""
    found = SRAMOverflow if kind == "SRAMOverflow" else getattr(builtins, kind, RuntimeError)
    is_error = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UnicodeError)
    return found(said) if is_error else RuntimeError(said)


class _Numbered:
    """Something that lives in the suite's process; when it is gone here, the suite is told."""

    __slots__ = ("__weakref__", "_number")
    _number: int

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            _connection.gone.append(self._number)


class Machine(_Numbered):
    """See `labkit.simulated_memory.Machine`."""

    __slots__ = ("_sealed", "_sram_bytes")

    def __init__(self, sram_bytes: int, sealed: bool = False) -> None:
        if hasattr(self, "_number"):
            raise TypeError("a machine is set up once: its counters go on counting")
        self._set_up(_connection.ask("machine", "", sram_bytes, sealed), int(sram_bytes), bool(sealed))
        for machines in _connection.watchers:
            machines.append(self)

    def _set_up(self, number: int, sram_bytes: int, sealed: bool) -> None:
        self._number, self._sram_bytes, self._sealed = number, sram_bytes, sealed

    def load(self, hbm: Any, index: Any) -> Any:
        """Copy `hbm[index]` into a new tile."""
        if isinstance(hbm, np.ndarray) and not self._sealed:
            index = _basic(index)
            content = np.ascontiguousarray(hbm[index]).reshape(np.shape(hbm[index]))
            return _connection.ask("load own", "", self, _connection.own(hbm), list(hbm.shape), content)
        return _connection.ask("on machine", "load", self, hbm, index)

    def store(self, hbm: Any, index: Any, tile: Any) -> None:
        """Write `tile` to `hbm[index]`."""
        if isinstance(hbm, np.ndarray) and not self._sealed:
            index = _basic(index)
            if not isinstance(tile, Tile):
                said = (
                    f"the array {tile.shape} of {tile.dtype}" if isinstance(tile, np.ndarray) else type(tile).__name__
                )
                raise TypeError(f"store takes a tile, not {said}: only what lies in SRAM can be stored")
            whole, part = list(hbm.shape), list(np.shape(hbm[index]))
            hbm[index] = _connection.ask("store own", "", self, _connection.own(hbm), whole, part, hbm.dtype, tile)
            return
        _connection.ask("on machine", "store", self, hbm, index, tile)

    def new(self, shape: Any, fill: Any, dtype: Any) -> Any:
        """Make a tile with every element equal to `fill`."""
        return _connection.ask("on machine", "new", self, shape, fill, np.dtype(dtype))

    def hbm(self, array: np.ndarray) -> Any:
        """Put a copy of `array` into HBM and return its handle."""
        return _connection.ask("on machine", "hbm", self, array)

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """Make room in HBM, not initialised."""
        kind = np.dtype(dtype)
        if self._sealed:
            return _connection.ask("on machine", "allocate", self, shape, kind)
        return np.full(shape, np.nan if kind.kind in "fc" else True if kind.kind == "b" else np.iinfo(kind).max, kind)

    def loaded_from(self, hbm: Any) -> int:
        """Bytes loaded from this array so far."""
        return self._moved("loaded", hbm)

    def stored_to(self, hbm: Any) -> int:
        """Bytes stored to this array so far."""
        return self._moved("stored", hbm)

    def _moved(self, way: str, hbm: Any) -> int:
        own = _connection.own(hbm) if isinstance(hbm, np.ndarray) else hbm
        return _connection.ask("moved", way, self, own)

    sram_bytes = property(lambda self: self._sram_bytes)
    sealed = property(lambda self: self._sealed)


def _counter(name: str) -> property:
    return property(lambda self: _connection.ask("counter", name, self))


for _name in ("loaded", "stored", "traffic", "in_use", "high_water", "host_read"):
    setattr(Machine, _name, _counter(_name))


class _Shaped(_Numbered):
    __slots__ = ("dtype", "shape")

    def __init__(self, number: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._number, self.shape, self.dtype = number, shape, dtype

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]


class HBMArray(_Shaped):
    """See `labkit.simulated_memory.HBMArray`."""

    __slots__ = ()
    __hash__ = object.__hash__

    def numpy(self) -> np.ndarray:
        """Return a copy of the content; its bytes are counted in the machine's `host_read`."""
        return _connection.ask("numpy", "", self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        return f"HBMArray(shape={self.shape}, dtype={self.dtype})"

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError(f"{self!r} lies in HBM, where nothing is computed: load it first (machine.load(array, index))")

    __array_ufunc__ = __getitem__ = __setitem__ = __iter__ = __bool__ = __float__ = __reduce_ex__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _refuse
    __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Tile(_Shaped, np.lib.mixins.NDArrayOperatorsMixin):
    """See `labkit.simulated_memory.Tile`."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in VIEWS:
            return _connection.ask("view", name, self)
        if name in METHODS:
            return partial(_connection.ask, "method", name, self)
        raise AttributeError(f"a tile has no {name!r}: its values stay in SRAM until they are stored")

    def __getitem__(self, index: Any) -> Any:
        return _connection.ask("get", "", self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _connection.ask("set", "", self, index, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __bool__(self) -> bool:
        return _connection.ask("truth", "", self)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def __repr__(self) -> str:
        return f"Tile(shape={self.shape}, dtype={self.dtype})"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _connection.ask(f"ufunc {method}", ufunc.__name__, *inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _connection.ask("function", func.__name__, *args, **kwargs)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError(f"a tile {self.shape} stays in SRAM: compute with tiles, and store what HBM shall hold")

    __array__ = __float__ = __int__ = __index__ = __complex__ = __reduce_ex__ = _refuse


@contextlib.contextmanager
def watch_machines() -> Iterator[list[Machine]]:
    """Collect every Machine that is made while the context is open, in order."""
    machines: list[Machine] = []
    _connection.watchers.append(machines)
    try:
        yield machines
    finally:
        _connection.watchers[:] = [others for others in _connection.watchers if others is not machines]


def _basic(index: Any) -> Any:
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, bool | np.bool) or not (
            part is None or part is Ellipsis or isinstance(part, int | np.integer | slice)
        ):
            raise TypeError(f"an index into HBM is made of integers and slices, not a {type(part).__name__}")
    return index
