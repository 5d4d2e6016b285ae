"""A simulated two-level memory: HBM without limit, an SRAM of M bytes, and every byte between them counted.

The model is the one of FlashAttention's analysis (Dao et al. 2022, section 3.2, after Aggarwal and Vitter 1988; before
them the red-blue pebble game of Hong and Kung 1981): arithmetic happens in SRAM only and costs nothing, what counts is
what crosses the border.

    machine = Machine(sram_bytes=64 * 1024)
    Q = machine.hbm(q)                        # an opaque array in HBM: no arithmetic, no indexing
    tile = machine.load(Q, np.s_[0:16])       # counted in machine.loaded, charged to SRAM
    tile *= 0.125                             # NumPy's arithmetic; results are tiles, charged while they live
    machine.store(O, np.s_[0:16], tile)       # counted in machine.stored

SRAM holds the buffers that some tile still refers to, temporaries of an expression included. A view shares its buffer
and is free. Dropping the last reference (`del`, a new value for the name, the return of a function) gives the bytes
back at once. What a NumPy call needs inside itself is not charged, so only calls without large hidden buffers exist.
"""

import contextlib
import math
import weakref
from collections.abc import Iterator
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

Index = Any
Scalar = int | float | complex | np.generic


class SRAMOverflow(MemoryError):
    """More bytes were alive in SRAM than it holds."""


class _Frozen(type):
    """The kind of classes that stay as they are: their counts are judged, and live beside the code that is."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f"{cls.__name__} stays as it is: {name} cannot be set")

    def __delattr__(cls, name: str) -> None:
        raise TypeError(f"{cls.__name__} stays as it is: {name} cannot be deleted")


class Machine(metaclass=_Frozen):
    """An SRAM of `sram_bytes` bytes, and counters of the bytes moved between it and HBM.

    Arrays in HBM are plain ndarrays or the opaque handles that `hbm` makes. A sealed machine deals in handles only, so
    nothing can be computed from what was not loaded; `allocate` then returns a handle, otherwise an ndarray.

    Counters (read-only): `loaded`, `stored`, `traffic` = loaded + stored, `in_use` and `high_water` of SRAM, and
    `host_read`, what was read out of handles past the machine; all in bytes.

    Raises ValueError if `sram_bytes` is not a positive integer, TypeError if it is set up a second time.
    """

    __slots__ = ("__weakref__", "_ledger")

    def __init__(self, sram_bytes: int, sealed: bool = False) -> None:
        if isinstance(sram_bytes, bool) or not isinstance(sram_bytes, int | np.integer) or sram_bytes <= 0:
            raise ValueError(f"sram_bytes must be a positive integer, got {sram_bytes!r}")
        if hasattr(self, "_ledger"):
            raise TypeError("a machine is set up once: its counters go on counting")
        self._ledger = _Ledger(int(sram_bytes), sealed)
        for machines in _ledger_watchers:
            machines.append(self)

    def load(self, hbm: "HBMArray | np.ndarray", index: Index) -> "Tile":
        """Copy `hbm[index]` into a new tile; its bytes are counted in `loaded`.

        `index` is basic indexing: integers, slices, `...`, None, or a tuple of them; slices are cut at the edge.
        Raises SRAMOverflow when it does not fit, TypeError for anything that does not lie in HBM.
        """
        ledger = self._ledger
        source = ledger.content(hbm)[_basic(index)]
        ledger.require(source.nbytes, source.shape, source.dtype, "load")
        tile = ledger.adopt(np.array(source, order="C", subok=False), "load")
        ledger.count(hbm, loaded=tile.nbytes)
        return tile

    def store(self, hbm: "HBMArray | np.ndarray", index: Index, tile: "Tile") -> None:
        """Write `tile` to `hbm[index]`; the bytes written there are counted in `stored`.

        Raises TypeError if `tile` is not a tile of this machine, ValueError if its shape is not that of `hbm[index]`.
        """
        content, index = self._ledger.content(hbm), _basic(index)
        target = content[index]
        if not isinstance(tile, Tile):
            raise TypeError(f"store takes a tile, not {_describe(tile)}: only what lies in SRAM can be stored")
        value = self._ledger.plain(tile, "store")
        if target.shape != value.shape:
            raise ValueError(f"store: the tile has shape {value.shape}, the place in HBM has shape {target.shape}")
        content[index] = value
        self._ledger.count(hbm, stored=target.nbytes)

    def new(self, shape: int | tuple[int, ...], fill: Scalar, dtype: npt.DTypeLike) -> "Tile":
        """Make a tile with every element equal to `fill`. Nothing moves; the tile is charged to SRAM."""
        if not isinstance(fill, _NUMBERS):
            raise TypeError(f"new: fill must be a number, not {_describe(fill)}")
        kind = np.dtype(dtype)
        sizes = shape if isinstance(shape, tuple) else (shape,)
        self._ledger.require(math.prod(sizes) * kind.itemsize, sizes, kind, "new")
        return self._ledger.adopt(np.full(shape, fill, kind), "new")

    def hbm(self, array: np.ndarray) -> "HBMArray":
        """Put a copy of `array` into HBM and return its handle. Nothing is counted: it was there from the start."""
        return HBMArray(self, np.array(array, order="C", subok=False))

    def allocate(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        """Make room in HBM, not initialised: NaN where the dtype has one, else its largest value. Nothing is counted.

        Returns an HBMArray on a sealed machine, else an ndarray; `load` and `store` take either.
        """
        kind = np.dtype(dtype)
        poison = np.nan if kind.kind in "fc" else True if kind.kind == "b" else np.iinfo(kind).max
        content = np.full(shape, poison, kind)
        return HBMArray(self, content) if self.sealed else content

    def loaded_from(self, hbm: "HBMArray | np.ndarray") -> int:
        """Bytes loaded from this array so far."""
        return self._ledger.moved_of(hbm).loaded

    def stored_to(self, hbm: "HBMArray | np.ndarray") -> int:
        """Bytes stored to this array so far."""
        return self._ledger.moved_of(hbm).stored

    @property
    def sram_bytes(self) -> int:
        """Capacity of SRAM in bytes."""
        return self._ledger.sram_bytes

    @property
    def sealed(self) -> bool:
        """True if the machine deals in handles only."""
        return self._ledger.sealed

    @property
    def loaded(self) -> int:
        """Bytes moved from HBM to SRAM."""
        return self._ledger.loaded

    @property
    def stored(self) -> int:
        """Bytes moved from SRAM to HBM."""
        return self._ledger.stored

    @property
    def traffic(self) -> int:
        """Bytes moved both ways: loaded + stored."""
        return self._ledger.loaded + self._ledger.stored

    @property
    def in_use(self) -> int:
        """Bytes of SRAM that live tiles hold now."""
        return self._ledger.in_use

    @property
    def high_water(self) -> int:
        """The most bytes of SRAM that were in use at once."""
        return self._ledger.high_water

    @property
    def host_read(self) -> int:
        """Bytes read out of handles past the machine, by `.numpy()` or np.asarray."""
        return self._ledger.host_read


class HBMArray(metaclass=_Frozen):
    """A handle to an array in HBM: it has a shape, a dtype and nbytes, and gives its values to `Machine.load` only.

    `.numpy()` (and np.asarray) copies it out for whoever stands outside the machine, and counts that in `host_read`.
    """

    __slots__ = ("__weakref__", "_ledger", "_ledger_content")
    __hash__ = object.__hash__

    def __init__(self, machine: Machine, content: np.ndarray) -> None:
        self._ledger = machine._ledger
        self._ledger_content = content

    shape = property(lambda self: self._ledger_content.shape)
    dtype = property(lambda self: self._ledger_content.dtype)
    ndim = property(lambda self: self._ledger_content.ndim)
    size = property(lambda self: self._ledger_content.size)
    itemsize = property(lambda self: self._ledger_content.itemsize)
    nbytes = property(lambda self: self._ledger_content.nbytes)

    def numpy(self) -> np.ndarray:
        """Return a copy of the content; its bytes are counted in the machine's `host_read`."""
        self._ledger.host_read += self._ledger_content.nbytes
        return self._ledger_content.copy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __len__(self) -> int:
        return len(self._ledger_content)

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


class Tile(np.lib.mixins.NDArrayOperatorsMixin, metaclass=_Frozen):  # type: ignore[metaclass]
    """An array in SRAM. It computes like an ndarray, with tiles and numbers only, and every result is a tile again.

    It is no ndarray, and its values leave SRAM by `Machine.store` alone: np.asarray, float, tolist and the like raise
    TypeError. One value may steer the program: `if (a > b).any():`.
    """

    __slots__ = ("__weakref__", "_ledger_array", "_ledger_charge")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray, charge: "_LedgerCharge") -> None:
        self._ledger_array = array
        self._ledger_charge = charge

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return getattr(self._ledger_array, name)
        if name in _VIEWS:
            return self._ledger_charge.ledger.adopt(getattr(self._ledger_array, name), name)
        if name in _METHODS:
            return partial(self._call, getattr(self._ledger_array, name), name)
        raise AttributeError(f"a tile has no {name!r}: its values stay in SRAM until they are stored")

    def __getitem__(self, index: Index) -> "Tile":
        return self._call(self._ledger_array.__getitem__, "indexing", index)

    def __setitem__(self, index: Index, value: "Tile | Scalar") -> None:
        if not isinstance(value, (Tile, *_NUMBERS)):
            raise TypeError(f"assigning to a tile: {_describe(value)} does not lie in SRAM: load it first")
        self._call(self._ledger_array.__setitem__, "assigning to a tile", index, value)

    def __len__(self) -> int:
        return len(self._ledger_array)

    def __iter__(self) -> Iterator["Tile"]:
        return (self[row] for row in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._ledger_array)

    def __copy__(self) -> "Tile":
        return self.copy()

    def __deepcopy__(self, memo: object) -> "Tile":
        return self.copy()

    def __repr__(self) -> str:
        values = "" if self._ledger_charge.ledger.sealed else f"\n{np.array2string(self._ledger_array, threshold=64)}"
        return f"Tile(shape={self.shape}, dtype={self.dtype}){values}"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if getattr(np, ufunc.__name__, None) is not ufunc:
            raise TypeError(f"{ufunc.__name__} is not one of NumPy's own ufuncs: SRAM knows only those")
        for operand in inputs if method == "__call__" else inputs[:1]:
            if not isinstance(operand, (Tile, *_NUMBERS)):
                raise TypeError(
                    f"{ufunc.__name__}: {_describe(operand)} does not lie in SRAM: load it first, or use new"
                )
        return self._call(getattr(ufunc, method), ufunc.__name__, *inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.einsum and not kwargs.get("optimize"):
            return self._call(func, "einsum", *args, **kwargs)
        if func not in _FUNCTIONS:
            raise TypeError(f"np.{func.__name__} is not offered in SRAM: write it with simpler calls")
        return self._call(func, func.__name__, *args, **kwargs)

    def _call(self, function: Any, operation: str, *args: Any, **kwargs: Any) -> Any:
        ledger = self._ledger_charge.ledger
        plain = [ledger.plain(value, operation) for value in args]
        plain_kwargs = {name: ledger.plain(value, operation) for name, value in kwargs.items()}
        result = function(*plain, **plain_kwargs)
        return ledger.adopt(result, operation)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError(f"a tile {self.shape} stays in SRAM: compute with tiles, and store what HBM shall hold")

    __array__ = __float__ = __int__ = __index__ = __complex__ = __reduce_ex__ = _refuse


@contextlib.contextmanager
def watch_machines() -> Iterator[list[Machine]]:
    """Collect every Machine that is made while the context is open, in order."""
    machines: list[Machine] = []
    _ledger_watchers.append(machines)
    try:
        yield machines
    finally:
        _ledger_watchers[:] = [others for others in _ledger_watchers if others is not machines]


class _Moved:
    """What crossed to and from one array; it holds the array, so that its id is not given away."""

    def __init__(self, hbm: object) -> None:
        self.hbm = hbm
        self.loaded = self.stored = 0


class _Ledger:
    """A machine's books. Graded answers may not touch them: `labstaff.judge.policy` closes names that begin so."""

    def __init__(self, sram_bytes: int, sealed: bool) -> None:
        self.sram_bytes = sram_bytes
        self.sealed = sealed
        self.loaded = self.stored = self.in_use = self.high_water = self.host_read = 0
        self.moved: dict[int, _Moved] = {}  # by the id of the array in HBM
        self.charges: dict[int, weakref.ref[_LedgerCharge]] = {}  # by the id of the buffer's owner

    def content(self, hbm: object) -> np.ndarray:
        """The array that a handle stands for."""
        if isinstance(hbm, HBMArray):
            if hbm._ledger is not self:
                raise TypeError(f"{hbm!r} belongs to another machine")
            return hbm._ledger_content
        if isinstance(hbm, np.ndarray) and not self.sealed:
            return hbm
        raise TypeError(f"{_describe(hbm)} does not lie in this machine's HBM: use what you were given, or allocate")

    def count(self, hbm: object, loaded: int = 0, stored: int = 0) -> None:
        """Enter bytes that crossed."""
        self.loaded += loaded
        self.stored += stored
        entry = self.moved.setdefault(id(hbm), _Moved(hbm))
        entry.loaded += loaded
        entry.stored += stored

    def moved_of(self, hbm: object) -> _Moved:
        """What crossed to and from this array."""
        return self.moved.get(id(hbm)) or _Moved(hbm)

    def adopt(self, result: Any, operation: str) -> Any:
        """Wrap what NumPy returned, charging buffers that no live tile owns yet."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.adopt(part, operation) for part in result)
        if not isinstance(result, (np.ndarray, np.generic)):
            return result
        array = np.asarray(result)
        if array.dtype.hasobject:
            raise TypeError(f"{operation}: SRAM holds numbers, not Python objects")
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        known = self.charges.get(id(owner))
        charge = known() if known else None
        if charge is None:
            self.require(owner.nbytes, owner.shape, owner.dtype, operation)
            charge = _LedgerCharge(self, owner)
        return Tile(array, charge)

    def require(self, n_bytes: int, shape: tuple[int, ...], dtype: np.dtype, operation: str) -> None:
        """Raise SRAMOverflow unless so many bytes are free."""
        if self.in_use + n_bytes > self.sram_bytes:
            raise SRAMOverflow(
                f"{operation} needs {n_bytes:,} B for a {shape} array of {dtype}, but {self.in_use:,} B of "
                f"{self.sram_bytes:,} B are in use: {self.inventory()}"
            )

    def alive(self) -> list[np.ndarray]:
        """The buffers in SRAM."""
        return [charge.owner for known in self.charges.values() if (charge := known())]

    def inventory(self, most: int = 6) -> str:
        """The largest buffers in SRAM, in words."""
        owners = sorted(self.alive(), key=lambda owner: -owner.nbytes)
        rest = [f"{len(owners) - most} more"] if len(owners) > most else []
        return ", ".join([f"{owner.shape} {owner.dtype}" for owner in owners[:most]] + rest) or "nothing"

    def plain(self, value: Any, operation: str) -> Any:
        """Open the tiles inside an argument, and refuse data that does not lie in this machine's SRAM."""
        if isinstance(value, Tile):
            if value._ledger_charge.ledger is not self:
                raise TypeError(f"{operation}: the tile {value.shape} belongs to another machine")
            return value._ledger_array
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(part, operation) for part in value)
        if isinstance(value, _ARGUMENTS):
            return value
        raise TypeError(f"{operation}: {_describe(value)} does not lie in SRAM: load it first, or make it with new")


class _LedgerCharge:
    """What one buffer costs in SRAM, given back when the last tile on it is gone."""

    __slots__ = ("__weakref__", "ledger", "owner")

    def __init__(self, ledger: _Ledger, owner: np.ndarray) -> None:
        self.ledger = ledger
        self.owner = owner  # alive as long as the charge, so its id stays its own
        ledger.charges[id(owner)] = weakref.ref(self)
        ledger.in_use += owner.nbytes
        ledger.high_water = max(ledger.high_water, ledger.in_use)

    def __del__(self) -> None:
        del self.ledger.charges[id(self.owner)]
        self.ledger.in_use -= self.owner.nbytes


def _basic(index: Index) -> Index:
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, bool | np.bool) or not (
            part is None or part is Ellipsis or isinstance(part, int | np.integer | slice)
        ):
            raise TypeError(f"an index into HBM is made of integers and slices, not {_describe(part)}")
    return index


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"the array {value.shape} of {value.dtype}"
    return repr(value) if isinstance(value, HBMArray) else f"a {type(value).__name__}"


_ledger_watchers: list[list[Machine]] = []
_NUMBERS = (int, float, complex, np.generic)
_ARGUMENTS = (*_NUMBERS, str, slice, type, np.dtype, EllipsisType, type(None))
# fmt: off
_FUNCTIONS: frozenset[Any] = frozenset((
    np.all, np.amax, np.amin, np.any, np.argmax, np.argmin, np.array_split, np.broadcast_to, np.concatenate, np.copy,
    np.copyto, np.cumsum, np.diagonal, np.dot, np.empty_like, np.expand_dims, np.full_like, np.hsplit, np.max, np.mean,
    np.min, np.moveaxis, np.ndim, np.ones_like, np.prod, np.reshape, np.shape, np.size, np.split, np.squeeze, np.stack,
    np.sum, np.swapaxes, np.transpose, np.vsplit, np.where, np.zeros_like,
))
_METHODS = frozenset((
    "all", "any", "argmax", "argmin", "astype", "copy", "cumsum", "diagonal", "dot", "fill", "max", "mean", "min",
    "prod", "reshape", "squeeze", "sum", "swapaxes", "transpose",
))
# fmt: on
_PROPERTIES = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "size"))
_VIEWS = frozenset(("T", "mT"))
