"""Python values as trees of plain data and buffers: what may cross between the suite and an answer.

Numbers, strings, lists, tuples, dicts, slices, NumPy arrays and torch tensors cross by value, with dtype, strides and
shared storages as they are; everything else crosses as its name. `unpacking` makes the values again.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from labstaff.judge.framing import MOST_HEAD, TOO_MUCH, CodecError
from labstaff.judge.messages import Message
from labstaff.judge.tracking import Arrays

MOST_NODES = 200_000
MOST_DIGITS = 4000
ARRAY_KINDS = "biufcUS"
TYPES = {"bool": bool, "int": int, "float": float, "complex": complex}


def pack(
    message: Message, special: Callable[[Any], dict | None] = lambda value: None, into: Arrays | None = None
) -> tuple[bytes, list[memoryview]]:
    """A message as a head and buffers. `special` may turn an object into a tree of its own, `{"$": kind, …}`.

    The arrays and tensors that cross are added to `into`, in the order in which `unpack` adds its copies of them. The
    buffers are the arrays' own memory: send them before anything changes.

    Raises:
        CodecError: a value contains itself, or more text or parts than may cross.
    """
    packer = _Packer(special, into)
    trees = {name: packer.tree(getattr(message, name)) for name in message.VALUES}
    sizes = [len(each) for each in packer.buffers]
    head = msgspec.msgpack.encode((sizes, msgspec.structs.replace(message, **trees)))
    if len(head) > MOST_HEAD:
        raise CodecError(TOO_MUCH)
    return head, packer.buffers


class _Packer:
    """Walks a value; buffers of arrays and storages are kept apart, each once."""

    def __init__(self, special: Callable[[Any], dict | None], into: Arrays | None) -> None:
        self.special = special
        self.into = into
        self.buffers: list[memoryview] = []
        self.seen: dict[int, tuple[Any, int]] = {}
        self.open: set[int] = set()
        self.n_nodes = 0

    def tree(self, x: Any) -> Any:
        self.n_nodes += 1
        if self.n_nodes > MOST_NODES or (type(x) is str and len(x) > MOST_HEAD):
            raise CodecError(TOO_MUCH)
        if x is None or type(x) in (bool, float, str):
            return x
        if type(x) is int:
            return x if -(1 << 63) <= x < 1 << 63 else self._large(x)
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
            return {"$": "range", "items": [self.tree(x.start), self.tree(x.stop), self.tree(x.step)]}
        if x is Ellipsis:
            return {"$": "ellipsis"}
        if isinstance(x, bytes | bytearray):
            return {"$": "bytes", "buffer": self._buffer(memoryview(bytes(x)))}
        if isinstance(x, complex):
            return {"$": "complex", "items": [x.real, x.imag]}
        if isinstance(x, type) and x in TYPES.values():
            return {"$": "type", "name": x.__name__}
        if isinstance(x, np.dtype):
            return {"$": "dtype", "name": x.str}
        if isinstance(x, type) and issubclass(x, np.generic):
            return {"$": "np", "name": x.__name__}
        if torch is not None and isinstance(x, torch.dtype):
            return {"$": "torch.dtype", "name": str(x).removeprefix("torch.")}
        if torch is not None and isinstance(x, torch.device):
            return {"$": "torch.device", "name": str(x)}
        if isinstance(x, int):
            return self.tree(int.__add__(x, 0))
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
            self.seen[key] = (owner, self._buffer(_memory(start, length, owner) if x.size else memoryview(b"")))
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
                    n_bytes = host.nbytes()
                    buffer = self._buffer(_memory(host.data_ptr(), n_bytes, host) if n_bytes else memoryview(b""))
                self.seen[key] = (storage, buffer)
            tree = {"$": "tensor", "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
            place = {"strides": list(x.stride()), "at": x.storage_offset(), "device": str(device)}
            return tree | place | {"buffer": self.seen[key][1], "grad": grad}

    def _large(self, x: int) -> dict:
        if x.bit_length() > MOST_DIGITS * 3:
            raise CodecError(f"a number of more than {MOST_DIGITS} digits cannot cross")
        return {"$": "int", "text": str(x)}

    def _buffer(self, data: memoryview) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1


def _memory(address: int, length: int, owner: Any) -> memoryview:
    """The bytes that lie there, not copied; `owner` lives as long as they may be read."""
    block = (ctypes.c_char * length).from_address(address)
    block.owner = owner  # type: ignore[attr-defined]
    return memoryview(block).cast("B")
