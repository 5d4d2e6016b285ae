"""A simulated two-level memory: HBM without limit, an SRAM of M bytes, and every byte between them counted.

The model is the one of FlashAttention's analysis (Dao et al. 2022, section 3.2; before it the red-blue pebble game of
Hong and Kung 1981): arithmetic happens in SRAM only and costs nothing, what counts is what crosses the border.

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


class Machine:
    """An SRAM of `sram_bytes` bytes, and counters of the bytes moved between it and HBM.

    Arrays in HBM are plain ndarrays or the opaque handles that `hbm` makes. A sealed machine deals in handles only, so
    nothing can be computed from what was not loaded; `allocate` then returns a handle, otherwise an ndarray.

    Counters (read-only): `loaded`, `stored`, `traffic` = loaded + stored, `in_use` and `high_water` of SRAM, and
    `host_read`, what was read out of handles past the machine; all in bytes.

    Raises ValueError if `sram_bytes` is not a positive integer.
    """

    def __init__(self, sram_bytes: int, sealed: bool = False) -> None:
        if isinstance(sram_bytes, bool) or not isinstance(sram_bytes, int | np.integer) or sram_bytes <= 0:
            raise ValueError(f"sram_bytes must be a positive integer, got {sram_bytes!r}")
        self._sram_bytes = int(sram_bytes)
        self._sealed = sealed
        self._loaded = self._stored = self._in_use = self._high_water = self._host_read = 0
        self._moved: dict[int, list[Any]] = {}
        self._charges: dict[int, weakref.ref[_Charge]] = {}  # by the id of the buffer's owner
        for machines in _watchers:
            machines.append(self)

    def load(self, hbm: "HBMArray | np.ndarray", index: Index) -> "Tile":
        """Copy `hbm[index]` into a new tile; its bytes are counted in `loaded`.

        `index` is basic indexing: integers, slices, `...`, None, or a tuple of them; slices are cut at the edge.
        Raises SRAMOverflow when it does not fit, TypeError for anything that does not lie in HBM.
        """
        source = self._content(hbm)[_basic(index)]
        self._require(source.nbytes, source.shape, source.dtype, "load")
        tile = self._adopt(np.array(source, order="C", subok=False), "load")
        self._loaded += tile.nbytes
        self._count(hbm, loaded=tile.nbytes)
        return tile

    def store(self, hbm: "HBMArray | np.ndarray", index: Index, tile: "Tile") -> None:
        """Write `tile` to `hbm[index]`; the bytes written there are counted in `stored`.

        Raises TypeError if `tile` is not a tile of this machine, ValueError if its shape is not that of `hbm[index]`.
        """
        content, index = self._content(hbm), _basic(index)
        target = content[index]
        if not isinstance(tile, Tile):
            raise TypeError(f"store takes a tile, not {_describe(tile)}: only what lies in SRAM can be stored")
        value = self._plain(tile, "store")
        if target.shape != value.shape:
            raise ValueError(f"store: the tile has shape {value.shape}, the place in HBM has shape {target.shape}")
        content[index] = value
        self._stored += target.nbytes
        self._count(hbm, stored=target.nbytes)

    def new(self, shape: int | tuple[int, ...], fill: Scalar, dtype: npt.DTypeLike) -> "Tile":
        """Make a tile with every element equal to `fill`. Nothing moves; the tile is charged to SRAM."""
        if not isinstance(fill, _NUMBERS):
            raise TypeError(f"new: fill must be a number, not {_describe(fill)}")
        kind = np.dtype(dtype)
        sizes = shape if isinstance(shape, tuple) else (shape,)
        self._require(math.prod(sizes) * kind.itemsize, sizes, kind, "new")
        return self._adopt(np.full(shape, fill, kind), "new")

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
        return HBMArray(self, content) if self._sealed else content

    def loaded_from(self, hbm: "HBMArray | np.ndarray") -> int:
        """Bytes loaded from this array so far."""
        return int(self._moved.get(id(hbm), (None, 0, 0))[1])

    def stored_to(self, hbm: "HBMArray | np.ndarray") -> int:
        """Bytes stored to this array so far."""
        return int(self._moved.get(id(hbm), (None, 0, 0))[2])

    @property
    def sram_bytes(self) -> int:
        """Capacity of SRAM in bytes."""
        return self._sram_bytes

    @property
    def sealed(self) -> bool:
        """True if the machine deals in handles only."""
        return self._sealed

    @property
    def loaded(self) -> int:
        """Bytes moved from HBM to SRAM."""
        return self._loaded

    @property
    def stored(self) -> int:
        """Bytes moved from SRAM to HBM."""
        return self._stored

    @property
    def traffic(self) -> int:
        """Bytes moved both ways: loaded + stored."""
        return self._loaded + self._stored

    @property
    def in_use(self) -> int:
        """Bytes of SRAM that live tiles hold now."""
        return self._in_use

    @property
    def high_water(self) -> int:
        """The most bytes of SRAM that were in use at once."""
        return self._high_water

    @property
    def host_read(self) -> int:
        """Bytes read out of handles past the machine, by `.numpy()` or np.asarray."""
        return self._host_read

    def _content(self, hbm: object) -> np.ndarray:
        if isinstance(hbm, HBMArray):
            if hbm._machine is not self:
                raise TypeError(f"{hbm!r} belongs to another machine")
            return hbm._content
        if isinstance(hbm, np.ndarray) and not self._sealed:
            return hbm
        raise TypeError(f"{_describe(hbm)} does not lie in this machine's HBM: use what you were given, or allocate")

    def _count(self, hbm: object, loaded: int = 0, stored: int = 0) -> None:
        entry = self._moved.setdefault(id(hbm), [hbm, 0, 0])  # holding the array keeps its id from being given away
        entry[1] += loaded
        entry[2] += stored

    def _adopt(self, result: Any, operation: str) -> Any:
        """Wrap what NumPy returned, charging buffers that no live tile owns yet."""
        if isinstance(result, (list, tuple)):
            return type(result)(self._adopt(part, operation) for part in result)
        if not isinstance(result, (np.ndarray, np.generic)):
            return result
        array = np.asarray(result)
        if array.dtype.hasobject:
            raise TypeError(f"{operation}: SRAM holds numbers, not Python objects")
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        known = self._charges.get(id(owner))
        charge = known() if known else None
        if charge is None:
            self._require(owner.nbytes, owner.shape, owner.dtype, operation)
            charge = _Charge(self, owner)
        return Tile(array, charge)

    def _require(self, n_bytes: int, shape: tuple[int, ...], dtype: np.dtype, operation: str) -> None:
        if self._in_use + n_bytes > self._sram_bytes:
            raise SRAMOverflow(
                f"{operation} needs {n_bytes:,} B for a {shape} array of {dtype}, but {self._in_use:,} B of "
                f"{self._sram_bytes:,} B are in use: {self._inventory()}"
            )

    def _inventory(self, most: int = 6) -> str:
        alive = [charge.owner for known in self._charges.values() if (charge := known())]
        owners = sorted(alive, key=lambda owner: -owner.nbytes)
        rest = [f"{len(owners) - most} more"] if len(owners) > most else []
        return ", ".join([f"{owner.shape} {owner.dtype}" for owner in owners[:most]] + rest) or "nothing"

    def _plain(self, value: Any, operation: str) -> Any:
        """Open the tiles inside an argument, and refuse data that does not lie in this machine's SRAM."""
        if isinstance(value, Tile):
            if value._charge.machine is not self:
                raise TypeError(f"{operation}: the tile {value.shape} belongs to another machine")
            return value._array
        if isinstance(value, (list, tuple)):
            return type(value)(self._plain(part, operation) for part in value)
        if isinstance(value, _ARGUMENTS):
            return value
        raise TypeError(f"{operation}: {_describe(value)} does not lie in SRAM: load it first, or make it with new")


class HBMArray:
    """A handle to an array in HBM: it has a shape, a dtype and nbytes, and gives its values to `Machine.load` only.

    `.numpy()` (and np.asarray) copies it out for whoever stands outside the machine, and counts that in `host_read`.
    """

    __slots__ = ("__weakref__", "_content", "_machine")
    __hash__ = object.__hash__

    def __init__(self, machine: Machine, content: np.ndarray) -> None:
        self._machine = machine
        self._content = content

    shape = property(lambda self: self._content.shape)
    dtype = property(lambda self: self._content.dtype)
    ndim = property(lambda self: self._content.ndim)
    size = property(lambda self: self._content.size)
    itemsize = property(lambda self: self._content.itemsize)
    nbytes = property(lambda self: self._content.nbytes)

    def numpy(self) -> np.ndarray:
        """Return a copy of the content; its bytes are counted in the machine's `host_read`."""
        self._machine._host_read += self._content.nbytes
        return self._content.copy()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __len__(self) -> int:
        return len(self._content)

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


class Tile(np.lib.mixins.NDArrayOperatorsMixin):
    """An array in SRAM. It computes like an ndarray, with tiles and numbers only, and every result is a tile again.

    It is no ndarray, and its values leave SRAM by `Machine.store` alone: np.asarray, float, tolist and the like raise
    TypeError. One value may steer the program: `if (a > b).any():`.
    """

    __slots__ = ("__weakref__", "_array", "_charge")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray, charge: "_Charge") -> None:
        self._array = array
        self._charge = charge

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return getattr(self._array, name)
        if name in _VIEWS:
            return self._charge.machine._adopt(getattr(self._array, name), name)
        if name in _METHODS:
            return partial(self._call, getattr(self._array, name), name)
        raise AttributeError(f"a tile has no {name!r}: its values stay in SRAM until they are stored")

    def __getitem__(self, index: Index) -> "Tile":
        return self._call(self._array.__getitem__, "indexing", index)

    def __setitem__(self, index: Index, value: "Tile | Scalar") -> None:
        if not isinstance(value, (Tile, *_NUMBERS)):
            raise TypeError(f"assigning to a tile: {_describe(value)} does not lie in SRAM: load it first")
        self._call(self._array.__setitem__, "assigning to a tile", index, value)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator["Tile"]:
        return (self[row] for row in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._array)

    def __copy__(self) -> "Tile":
        return self.copy()

    def __deepcopy__(self, memo: object) -> "Tile":
        return self.copy()

    def __repr__(self) -> str:
        values = "" if self._charge.machine.sealed else f"\n{np.array2string(self._array, threshold=64)}"
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
        machine = self._charge.machine
        plain = [machine._plain(value, operation) for value in args]
        plain_kwargs = {name: machine._plain(value, operation) for name, value in kwargs.items()}
        result = function(*plain, **plain_kwargs)
        return machine._adopt(result, operation)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError(f"a tile {self.shape} stays in SRAM: compute with tiles, and store what HBM shall hold")

    __array__ = __float__ = __int__ = __index__ = __complex__ = __reduce_ex__ = _refuse


@contextlib.contextmanager
def watch_machines() -> Iterator[list[Machine]]:
    """Collect every Machine that is made while the context is open, in order."""
    machines: list[Machine] = []
    _watchers.append(machines)
    try:
        yield machines
    finally:
        _watchers[:] = [others for others in _watchers if others is not machines]


class _Charge:
    """What one buffer costs in SRAM, given back when the last tile on it is gone."""

    __slots__ = ("__weakref__", "machine", "owner")

    def __init__(self, machine: Machine, owner: np.ndarray) -> None:
        self.machine = machine
        self.owner = owner  # alive as long as the charge, so its id stays its own
        machine._charges[id(owner)] = weakref.ref(self)
        machine._in_use += owner.nbytes
        machine._high_water = max(machine._high_water, machine._in_use)

    def __del__(self) -> None:
        del self.machine._charges[id(self.owner)]
        self.machine._in_use -= self.owner.nbytes


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


_watchers: list[list[Machine]] = []
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
