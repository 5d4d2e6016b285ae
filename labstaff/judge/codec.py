"""Plain data as bytes and back: what crosses between the suite and an answer. Nothing that comes in is ever executed.

A message is a JSON tree and the buffers it refers to. Numbers, strings, lists, tuples, dicts, slices, NumPy arrays and
torch tensors cross by value, with dtype, strides and shared storages as they are; everything else crosses as its name.
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LENGTH = struct.Struct("<Q")
MOST_BYTES = 1 << 30
MOST_NODES = 200_000
MOST_TEXT = 4 << 20
DEEPEST = 40
ARRAY_KINDS = "biufcUS"
TOO_MUCH = "it is nested too deep, or has too many parts, or too much text"


class CodecError(Exception):
    """What came over the wire is not a message, or too much of one."""


class Opaque:
    """Stands for an object that cannot cross: only what its class is called does (a subclass of this name)."""


def pack(value: Any, special: Callable[[Any], dict | None] = lambda value: None, into: Arrays | None = None) -> bytes:
    """`value` as a message. `special` may turn an object into a tree of its own, `{"$": kind, …}`.

    The arrays and tensors that cross are added to `into`, in the order in which `unpack` adds its copies of them.

    Raises:
        CodecError: `value` contains itself, or more text or parts than may cross.
    """
    packer = _Packer(special, into)
    tree = json.dumps(packer.tree(value)).encode()
    if len(tree) > MOST_TEXT:
        raise CodecError(TOO_MUCH)
    sizes = [len(each) for each in packer.buffers]
    head = json.dumps(sizes).encode()
    body = b"".join([struct.pack("<I", len(head)), head, struct.pack("<I", len(tree)), tree, *packer.buffers])
    return body


def unpack(
    body: bytes | bytearray | memoryview,
    special: Callable[[dict, list[Any]], Any] | None = None,
    into: Arrays | None = None,
) -> Any:
    """The value of a message. `special` is asked for trees whose kind this module does not know; `into` as in `pack`.

    Raises:
        CodecError: for anything that `pack` would not have written.
    """
    try:
        view = memoryview(body)
        sizes, rest = _json(view)
        tree, rest = _json(rest)
        if not isinstance(sizes, list) or not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise CodecError("the sizes of buffers are no numbers")
        if sum(sizes) != len(rest):
            raise CodecError("the buffers are not as long as they say")
        buffers, start = [], 0
        for size in sizes:
            buffers.append(bytearray(rest[start : start + size]))
            start += size
        return _Unpacker(buffers, special, into).value(tree, 0)
    except CodecError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError, OverflowError) as error:
        raise CodecError(f"not a message: {type(error).__name__}: {error}") from None


def send(channel: socket.socket, body: bytes) -> None:
    """Put a message on a stream."""
    channel.sendall(LENGTH.pack(len(body)))
    channel.sendall(body)


def receive(channel: socket.socket) -> memoryview:
    """The next message on a stream, in memory that no meter counts as anybody's allocation.

    Raises:
        EOFError: the other side has gone.
        CodecError: the message is longer than any may be.
    """
    (length,) = LENGTH.unpack(_exactly(channel, memoryview(bytearray(LENGTH.size))))
    if not 0 < length <= MOST_BYTES:
        raise CodecError(f"a message of {length:,} bytes, {MOST_BYTES:,} at most may cross")
    return _exactly(channel, memoryview(mmap.mmap(-1, length)))  # pages are taken as data comes, not as announced


def _exactly(channel: socket.socket, memory: memoryview) -> memoryview:
    n_read = 0
    while n_read < len(memory):
        n_now = channel.recv_into(memory[n_read:])
        if not n_now:
            raise EOFError
        n_read += n_now
    return memory


def _json(view: memoryview) -> tuple[Any, memoryview]:
    (length,) = struct.unpack("<I", view[:4])
    if length > len(view) - 4:
        raise CodecError("the message ends too early")
    if length > MOST_TEXT:
        raise CodecError(TOO_MUCH)
    return json.loads(bytes(view[4 : 4 + length])), view[4 + length :]


class Arrays:
    """The arrays and tensors that crossed during a call, numbered alike on both sides, to see which one changed.

    Args:
        keep: let them live as long as this does. Where memory is measured they must not.
    """

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.n_crossed = 0
        self.known: dict[int, tuple[Callable[[], Any], Any]] = {}  # number → the array, its mark when last looked at

    def add(self, array: Any) -> None:
        """Number one more."""
        self.known[self.n_crossed] = ((lambda: array) if self.keep else weakref.ref(array)), _mark(array)
        self.n_crossed += 1

    def changes(self) -> list[list[Any]]:
        """Those that hold something else than when last looked at, with their numbers."""
        found = []
        for number, (reference, mark) in list(self.known.items()):
            array = reference()
            if array is None:
                del self.known[number]
            elif (now := _mark(array)) != mark:
                self.known[number] = reference, now
                found.append([number, array])
        return found

    def take_over(self, changes: Any) -> None:
        """Write what the other side has changed into what this side has."""
        for array, number, value in self.named(changes):
            _overwrite(array, value)
            self.known[number] = self.known[number][0], _mark(array)

    def named(self, changes: Any) -> Iterator[tuple[Any, int, Any]]:
        """This side's arrays that the other side says it has changed, their numbers, and what they hold there."""
        for number, value in changes:
            if type(number) is not int or not 0 <= number < self.n_crossed:
                raise CodecError("a change to an array that never crossed")
            reference, _ = self.known.get(number, (lambda: None, None))
            array = reference()
            if array is not None:
                yield array, number, value


def _mark(array: Any) -> Any:
    """Differs when the content does. Data that lies in one piece is not copied: this may run under a meter."""
    if isinstance(array, np.ndarray):
        if isinstance(array.base, bytearray):
            return zlib.crc32(array.base)
        return zlib.crc32(array.view(np.uint8).data if array.flags.c_contiguous and array.ndim else array.tobytes())
    if array.device.type != "cpu":
        return array._version, array.requires_grad
    torch = sys.modules["torch"]
    with torch.utils._python_dispatch._disable_current_modes():
        data = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy() if array.numel() else b""
        return zlib.crc32(data), array.requires_grad


def _overwrite(array: Any, value: Any) -> None:
    if isinstance(array, np.ndarray):
        if not isinstance(value, np.ndarray) or array.shape != value.shape:
            raise CodecError("an array was changed into something else")
        array[...] = value
        return
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor) or array.shape != value.shape:
        raise CodecError("a tensor was changed into something else")
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        if array.device.type != "meta":
            array.detach().copy_(value.detach())
    if array.is_leaf and array.requires_grad != value.requires_grad:
        array.requires_grad_(value.requires_grad)


class _Packer:
    """Walks a value; buffers of arrays and storages are kept apart, each once."""

    def __init__(self, special: Callable[[Any], dict | None], into: Arrays | None) -> None:
        self.special = special
        self.into = into
        self.buffers: list[Any] = []
        self.seen: dict[int, tuple[Any, int]] = {}
        self.open: set[int] = set()
        self.n_nodes = 0

    def tree(self, x: Any) -> Any:
        self.n_nodes += 1
        if self.n_nodes > MOST_NODES or (type(x) is str and len(x) > MOST_TEXT):
            raise CodecError(TOO_MUCH)
        if x is None or type(x) in (bool, int, float, str):
            return x
        if isinstance(x, np.ndarray):
            tree = self._array(x)
            if self.into is not None and tree["$"] == "array":
                self.into.add(x)
            return tree
        if isinstance(x, np.generic):
            return {"$": "scalar", "array": self._array(np.asarray(x))}
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            tree = self._tensor(torch, x)
            if self.into is not None and tree["$"] == "tensor":
                self.into.add(x)
            return tree
        known = self.special(x)
        if known is not None:
            return known
        if isinstance(x, list | tuple | dict | set | frozenset):
            return self._container(x)
        return self._small(torch, x)

    def _container(self, x: Any) -> Any:
        if id(x) in self.open:
            raise CodecError("a container that contains itself cannot cross")
        self.open.add(id(x))
        try:
            if isinstance(x, dict):
                return {"$": "dict", "items": [[self.tree(k), self.tree(v)] for k, v in dict.items(x)]}
            items = [self.tree(each) for each in x]
        finally:
            self.open.discard(id(x))
        if isinstance(x, list):
            return items
        return {"$": "tuple" if isinstance(x, tuple) else "set", "items": items}

    def _small(self, torch: Any, x: Any) -> Any:
        if isinstance(x, slice):
            return {"$": "slice", "items": [self.tree(x.start), self.tree(x.stop), self.tree(x.step)]}
        if isinstance(x, range):
            return {"$": "range", "items": [x.start, x.stop, x.step]}
        if x is Ellipsis:
            return {"$": "ellipsis"}
        if isinstance(x, bytes | bytearray):
            return {"$": "bytes", "buffer": self._buffer(bytes(x))}
        if isinstance(x, np.dtype):
            return {"$": "dtype", "name": x.str}
        if isinstance(x, type) and issubclass(x, np.generic):
            return {"$": "np", "name": x.__name__}
        if torch is not None and isinstance(x, torch.dtype):
            return {"$": "torch.dtype", "name": str(x).removeprefix("torch.")}
        if torch is not None and isinstance(x, torch.device):
            return {"$": "torch.device", "name": str(x)}
        if isinstance(x, int):
            return int.__add__(x, 0)
        if isinstance(x, float):
            return float.__add__(x, 0.0)
        if isinstance(x, str):
            return str.__str__(x)
        return {"$": "opaque", "kind": type(x).__name__[:80]}

    def _array(self, x: np.ndarray) -> dict:
        x = np.asarray(x)
        if x.dtype.kind not in ARRAY_KINDS:
            return {"$": "opaque", "kind": f"array of {x.dtype}"[:80]}
        if x.dtype.byteorder == ">":
            x = x.astype(x.dtype.newbyteorder("<"))
        first, last = np.lib.array_utils.byte_bounds(x) if x.size else (0, 0)
        owner = x
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        begin, end = np.lib.array_utils.byte_bounds(owner) if x.size and owner.size else (first, last)
        if x.size and begin <= first <= last <= end and (end - begin) <= 4 * (last - first) + 4096:
            key, start, length = id(owner), begin, end - begin
        else:
            key, start, length = id(x), first, last - first
        if key not in self.seen:
            self.seen[key] = (owner, self._buffer(_memory(start, length) if x.size else b""))
        here = x.__array_interface__["data"][0] - start if x.size else 0
        tree = {"$": "array", "dtype": x.dtype.str, "shape": list(x.shape), "strides": list(x.strides), "at": here}
        return tree | {"buffer": self.seen[key][1], "fixed": not x.flags.writeable}

    def _tensor(self, torch: Any, x: Any) -> dict:
        with torch._C.DisableTorchFunctionSubclass(), torch.utils._python_dispatch._disable_current_modes():
            grad = x.requires_grad
            x = x.detach()
            if x.is_sparse or x.layout is not torch.strided:
                return {"$": "opaque", "kind": "sparse tensor"}
            device = x.device
            x = x.resolve_conj().resolve_neg()
            storage = x.untyped_storage()
            key = storage._cdata
            if key not in self.seen:
                buffer = -storage.nbytes() - 1
                if device.type != "meta":
                    host = storage if device.type == "cpu" else storage.cpu()
                    buffer = self._buffer(_memory(host.data_ptr(), host.nbytes()) if host.nbytes() else b"")
                self.seen[key] = (storage, buffer)
            tree = {"$": "tensor", "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
            place = {"strides": list(x.stride()), "at": x.storage_offset(), "device": str(device)}
            return tree | place | {"buffer": self.seen[key][1], "grad": grad}

    def _buffer(self, data: Any) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1


def _memory(address: int, length: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, length)


class _Unpacker:
    """Builds values from a tree that may be anybody's, so that every step is checked."""

    def __init__(
        self, buffers: list[bytearray], special: Callable[[dict, list[Any]], Any] | None, into: Arrays | None
    ) -> None:
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
        return self.special(tree, [self.value(each, depth + 1) for each in tree.get("items", [])])

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
        return range(*self._items(tree, depth))

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
        array = np.ndarray(shape, dtype, self._take(tree["buffer"]), int(tree["at"]), strides)  # checks the bounds
        if tree.get("fixed"):
            array.flags.writeable = False
        return array

    def _tensor(self, tree: dict, depth: int) -> Any:
        import torch

        dtype, index = _torch_dtype(tree["dtype"]), int(tree["buffer"])
        shape, strides, at = _numbers(tree["shape"]), _numbers(tree["strides"]), int(tree["at"])
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
        storage = torch.empty(len(data), dtype=torch.uint8)
        if data:
            storage.numpy()[:] = np.frombuffer(data, np.uint8)
        return storage.untyped_storage()

    def _take(self, index: Any) -> bytearray:
        if not isinstance(index, int) or not 0 <= index < len(self.buffers):
            raise CodecError("a buffer that is not there")
        return self.buffers[index]


KINDS = {"tuple", "set", "dict", "slice", "range", "ellipsis", "bytes", "opaque", "dtype", "np", "torch.dtype"}
KINDS |= {"torch.device", "scalar", "array", "tensor"}


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
