"""Arrays of the simulated memory: handles of arrays in HBM, and tiles in SRAM, which can be computed with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from labkit.simulated_memory import Machine

Index = Any
Scalar = int | float | complex | np.generic


class HBMArray:
    """A handle to an array in HBM: it has a shape, a dtype and nbytes, and gives its values to `Machine.load` only.

    `.numpy()` (and np.asarray) copies it to the host and counts the bytes in `host_read`.
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
        raise TypeError(f"{self!r} is in HBM, where nothing is computed: load it first (machine.load(array, index))")

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

    __slots__ = ("__weakref__", "_ledger_array", "_ledger_charge")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray, charge: Any) -> None:  # a `_LedgerCharge`, which imports this module
        self._ledger_array = array
        self._ledger_charge = charge

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return getattr(self._ledger_array, name)
        if name in _VIEWS:
            return self._ledger_charge.ledger.adopt(getattr(self._ledger_array, name), name)
        if name in _METHODS:
            return partial(self._method, name)
        raise AttributeError(f"a tile has no {name!r}: its values stay in SRAM until they are stored")

    def __getitem__(self, index: Index) -> Tile:
        _require_plain_numbers("indexing", index)
        return self._call(self._ledger_array.__getitem__, "indexing", index)

    def __setitem__(self, index: Index, value: Tile | Scalar) -> None:
        if not isinstance(value, (Tile, *_NUMBERS)):
            raise TypeError(f"assigning to a tile: {_describe(value)} is not in SRAM: load it first")
        _require_plain_numbers("assigning to a tile", index)
        self._call(self._ledger_array.__setitem__, "assigning to a tile", index, value)

    def __len__(self) -> int:
        return len(self._ledger_array)

    def __iter__(self) -> Iterator[Tile]:
        return (self[row] for row in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._ledger_array)

    def __copy__(self) -> Tile:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Tile:
        return self.copy()

    def __repr__(self) -> str:
        values = "" if self._ledger_charge.ledger.sealed else f"\n{np.array2string(self._ledger_array, threshold=64)}"
        return f"Tile(shape={self.shape}, dtype={self.dtype}){values}"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if getattr(np, getattr(ufunc, "__name__", ""), None) is not ufunc or type(ufunc) is not np.ufunc:
            raise TypeError(f"{_describe(ufunc)} is not one of NumPy's ufuncs")
        if method not in _UFUNC_METHODS:
            raise TypeError(f"a ufunc has no method {method!r}")
        for operand in inputs if method == "__call__" else inputs[:1]:
            if not isinstance(operand, (Tile, *_NUMBERS)):
                raise TypeError(f"{ufunc.__name__}: {_describe(operand)} is not in SRAM: load it first, or use new")
        return self._call(getattr(ufunc, method), ufunc.__name__, *inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.einsum and not kwargs.get("optimize"):
            return self._call(func, "einsum", *args, **kwargs)
        if func not in _FUNCTIONS:
            raise TypeError(f"np.{func.__name__} is not offered in SRAM: write it with simpler calls")
        if func not in _OF_SEVERAL_TILES:
            _require_plain_numbers(func.__name__, *args[1:])
        return self._call(func, func.__name__, *args, **kwargs)

    def _method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in ("dot", "fill"):
            _require_plain_numbers(name, *args)
        return self._call(getattr(self._ledger_array, name), name, *args, **kwargs)

    def _call(self, function: Any, operation: str, *args: Any, **kwargs: Any) -> Any:
        ledger = self._ledger_charge.ledger
        plain = [ledger.plain(value, operation) for value in args]
        plain_kwargs = {name: ledger.plain(value, operation) for name, value in kwargs.items()}
        result = function(*plain, **plain_kwargs)
        return ledger.adopt(result, operation)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError(f"a tile {self.shape} stays in SRAM: compute with tiles, and store the results in HBM")

    __array__ = __float__ = __int__ = __index__ = __complex__ = __reduce_ex__ = _refuse


def _require_plain_numbers(operation: str, *values: Any) -> None:
    """Refuse tiles of integers as an index, a shape or an axis: NumPy's error would quote their values."""
    for value in values:
        if isinstance(value, Tile) and value.dtype.kind in "iu":
            raise TypeError(f"{operation}: indices, shapes and axes are integers and slices, not a Tile")
        if isinstance(value, (list, tuple)):
            _require_plain_numbers(operation, *value)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"the array {value.shape} of {value.dtype}"
    return repr(value) if isinstance(value, HBMArray) else f"a {type(value).__name__}"


_NUMBERS = (int, float, complex, np.generic)
# fmt: off
_FUNCTIONS: frozenset[Any] = frozenset((
    np.all, np.amax, np.amin, np.any, np.argmax, np.argmin, np.array_split, np.broadcast_to, np.concatenate, np.copy,
    np.copyto, np.cumsum, np.diagonal, np.dot, np.empty_like, np.expand_dims, np.full_like, np.hsplit, np.max, np.mean,
    np.min, np.moveaxis, np.ndim, np.ones_like, np.prod, np.reshape, np.shape, np.size, np.split, np.squeeze, np.stack,
    np.sum, np.swapaxes, np.transpose, np.vsplit, np.where, np.zeros_like,
))
_OF_SEVERAL_TILES = frozenset((np.copyto, np.dot, np.full_like, np.where))
_METHODS = frozenset((
    "all", "any", "argmax", "argmin", "astype", "copy", "cumsum", "diagonal", "dot", "fill", "max", "mean", "min",
    "prod", "reshape", "squeeze", "sum", "swapaxes", "transpose",
))
# fmt: on
_UFUNC_METHODS = ("__call__", "accumulate", "at", "outer", "reduce", "reduceat")
_PROPERTIES = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "size"))
_VIEWS = frozenset(("T", "mT"))
