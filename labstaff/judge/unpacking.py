"""Values made of what came over the wire, which may be anybody's: every step is checked, nothing is executed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from labstaff.judge.framing import MOST_BUFFERS, TOO_MUCH, CodecError, padded
from labstaff.judge.packing import ARRAY_KINDS, MOST_DIGITS, MOST_NODES, TYPES
from labstaff.judge.tracking import Arrays

DEEPEST = 40


class Opaque:
    """Stands for an object that cannot cross: only what its class is called does (a subclass of this name)."""


def unpacker_of(messages: Any) -> Callable[..., Any]:
    """A function that makes values of what `receive` gives, where one of `messages` is expected: see `_unpack`."""
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple[list[int], messages])

    def unpack(
        head: bytes | memoryview,
        buffers: memoryview,
        special: Callable[[dict], Any] | None = None,
        into: Arrays | None = None,
    ) -> Any:
        """The message, its values made. `special` is asked for trees whose kind this module does not know.

        Raises:
            CodecError: for anything that `pack` would not have written.
        """
        try:
            sizes, message = decoder.decode(head)
            views, start = [], 0
            for size in sizes:
                if not 0 <= size <= len(buffers) - start:
                    raise CodecError("the buffers are not as long as they say")
                views.append(buffers[start : start + size])
                start += padded(size)
            if start != len(buffers):
                raise CodecError("the buffers are not as long as they say")
            unpacker = _Unpacker(views, special, into)
            for name in message.VALUES:
                setattr(message, name, unpacker.value(getattr(message, name), 0))
            return message
        except CodecError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError) as error:
            raise CodecError(f"not a message: {type(error).__name__}: {error}") from None
        except (RuntimeError, MemoryError) as error:  # what torch and NumPy say of shapes and sizes
            raise CodecError(f"not a message: {type(error).__name__}") from None

    return unpack


class _Unpacker:
    """Builds values from a tree that may be anybody's, so that every step is checked."""

    def __init__(self, buffers: list[memoryview], special: Callable[[dict], Any] | None, into: Arrays | None) -> None:
        self.n_bytes = 0  # of the arrays made so far, were they written out
        self.buffers = buffers
        self.special = special
        self.into = into
        self.storages: dict[int, Any] = {}
        self.n_nodes = 0

    def value(self, tree: Any, depth: int) -> Any:
        self.n_nodes += 1
        if self.n_nodes > MOST_NODES or depth > DEEPEST:
            raise CodecError(TOO_MUCH)
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        if isinstance(tree, list):
            return [self.value(each, depth + 1) for each in tree]
        kind = tree["$"]
        build = getattr(self, "_" + kind.replace(".", "_"), None) if kind in KINDS else None
        if build:
            return build(tree, depth + 1)
        if self.special is None:
            raise CodecError(f"unknown kind {kind!r}")
        return self.special(tree)

    def _items(self, tree: dict, depth: int) -> list[Any]:
        return [self.value(each, depth) for each in tree["items"]]

    def _tuple(self, tree: dict, depth: int) -> Any:
        return tuple(self._items(tree, depth))

    def _set(self, tree: dict, depth: int) -> Any:
        return set(self._items(tree, depth))

    def _dict(self, tree: dict, depth: int) -> Any:
        return {self.value(k, depth): self.value(v, depth) for k, v in tree["items"]}

    def _slice(self, tree: dict, depth: int) -> Any:
        return slice(*self._items(tree, depth))

    def _range(self, tree: dict, depth: int) -> Any:
        numbers = range(*self._items(tree, depth))
        if (numbers.stop - numbers.start) // numbers.step > MOST_NODES:
            raise CodecError(TOO_MUCH)
        return numbers

    def _int(self, tree: dict, depth: int) -> Any:
        if len(tree["text"]) > MOST_DIGITS:
            raise CodecError(TOO_MUCH)
        return int(tree["text"])

    def _complex(self, tree: dict, depth: int) -> Any:
        return complex(*self._items(tree, depth))

    def _type(self, tree: dict, depth: int) -> Any:
        return TYPES[tree["name"]]

    def _ellipsis(self, tree: dict, depth: int) -> Any:
        return Ellipsis

    def _bytes(self, tree: dict, depth: int) -> Any:
        return bytes(self._take(tree["buffer"]))

    def _opaque(self, tree: dict, depth: int) -> Any:
        return type(str(tree["kind"])[:80], (Opaque,), {})()

    def _dtype(self, tree: dict, depth: int) -> Any:
        return _numpy_dtype(tree["name"])

    def _np(self, tree: dict, depth: int) -> Any:
        kind = getattr(np, str(tree["name"]), None)
        if not (isinstance(kind, type) and issubclass(kind, np.generic)):
            raise CodecError(f"NumPy has no scalar type {tree['name']!r}")
        return kind

    def _torch_dtype(self, tree: dict, depth: int) -> Any:
        return _torch_dtype(tree["name"])

    def _torch_device(self, tree: dict, depth: int) -> Any:
        import torch

        return torch.device(str(tree["name"]))

    def _scalar(self, tree: dict, depth: int) -> Any:
        return self._plain_array(tree["array"])[()]

    def _array(self, tree: dict, depth: int) -> Any:
        array = self._plain_array(tree)
        if self.into is not None:
            self.into.add(array)
        return array

    def _plain_array(self, tree: dict) -> Any:
        dtype, shape, strides = _numpy_dtype(tree["dtype"]), _numbers(tree["shape"]), _numbers(tree["strides"])
        self._count(shape, dtype.itemsize)
        array = np.ndarray(shape, dtype, self._take(tree["buffer"]), int(tree["at"]), strides)  # checks the bounds
        if tree.get("fixed"):
            array.flags.writeable = False
        return array

    def _tensor(self, tree: dict, depth: int) -> Any:
        import torch

        dtype, index = _torch_dtype(tree["dtype"]), int(tree["buffer"])
        shape, strides, at = _numbers(tree["shape"]), _numbers(tree["strides"]), int(tree["at"])
        if index >= 0:
            self._count(shape, dtype.itemsize)
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            if index not in self.storages:
                self.storages[index] = self._storage(torch, index)
            storage = self.storages[index]
            span = at + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1 if all(shape) else 0
            if min((*shape, *strides, at), default=0) < 0 or span * dtype.itemsize > storage.nbytes():
                raise CodecError("a tensor that reaches out of its storage")
            tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, at, shape, strides)
        tensor = tensor.requires_grad_() if tree.get("grad") and dtype.is_floating_point else tensor
        if self.into is not None:
            self.into.add(tensor)
        return tensor

    def _storage(self, torch: Any, index: int) -> Any:
        if index < 0:
            return torch.empty(-index - 1, dtype=torch.uint8, device="meta").untyped_storage()
        data = self._take(index)
        return (torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0)).untyped_storage()

    def _count(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Bound what an expanded array would take once somebody computes with it."""
        self.n_bytes += math.prod(shape) * itemsize if all(n >= 0 for n in shape) else 0
        if self.n_bytes > MOST_BUFFERS:
            raise CodecError(f"arrays of {self.n_bytes:,} bytes, {MOST_BUFFERS:,} at most may cross")

    def _take(self, index: Any) -> memoryview:
        if not isinstance(index, int) or not 0 <= index < len(self.buffers):
            raise CodecError("a buffer that is not there")
        return self.buffers[index]


KINDS = {"tuple", "set", "dict", "slice", "range", "ellipsis", "bytes", "opaque", "dtype", "np", "torch.dtype"}
KINDS |= {"torch.device", "scalar", "array", "tensor", "int", "complex", "type"}


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > 32 or not all(type(n) is int for n in values):
        raise CodecError("a shape is a list of whole numbers")
    return tuple(values)


def _numpy_dtype(name: Any) -> np.dtype:
    dtype = np.dtype(str(name))
    if dtype.kind not in ARRAY_KINDS or dtype.fields or dtype.subdtype:
        raise CodecError(f"arrays of {name!r} do not cross")
    return dtype


def _torch_dtype(name: Any) -> Any:
    import torch

    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise CodecError(f"torch has no dtype {name!r}")
    return dtype
