"""Messages between the suite and a worker: plain data, followed by the raw bytes of arrays and tensors.

Towards the worker a message is pickled (the sender is trusted). Back comes msgpack, which is checked step by step.
"""

from __future__ import annotations

import ctypes
import io
import math
import mmap
import pickle
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import msgspec
import numpy as np

HEADER = struct.Struct("<IQ")
MOST_HEAD = 4 << 20
MOST_BUFFERS = 256 << 20
MOST_NODES = 200_000
MOST_DIGITS = 4000
DEEPEST = 40
ALIGNED = 64
ARRAY_KINDS = "biufcUS"
TYPES = {"bool": bool, "int": int, "float": float, "complex": complex}
TOO_MUCH = "it is nested too deep, or has too many parts, or too much text"

Special = Callable[[Any], Any]


class WireError(Exception):
    """What is to cross, or has crossed, is not a message, or is too large."""


class Returned(msgspec.Struct, tag=True, array_like=True):
    """A result, and the arrays among the arguments as they are now: `[[number, array], ...]`.

    `dropped` are the numbers of tiles, and other things of the simulated machine, that have been freed; `moved` is that
    of the result, if it is an array that a machine has moved.
    """

    result: Any
    arguments: Any = None
    moved: int | None = None
    dropped: list[int] = []


class Raised(msgspec.Struct, tag=True, array_like=True):
    """An exception: its classes (nearest first), its message, and the places it passed through."""

    kinds: list[str]
    message: str
    places: list[tuple[str, int, str]]
    dropped: list[int] = []


class Ask(msgspec.Struct, tag=True, array_like=True):
    """A callback: an operation of the simulated machine, which lives on the suite's side."""

    operation: str
    arguments: Any
    dropped: list[int] = []


FromWorker = Returned | Raised | Ask
VALUES: dict[type, tuple[str, ...]] = {Returned: ("result", "arguments"), Raised: (), Ask: ("arguments",)}
"""The fields that hold values, which cross as plain data."""
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple[list[int], FromWorker])


def send(channel: socket.socket, head: bytes, buffers: Sequence[memoryview] = ()) -> None:
    """Send a message; each buffer begins at a multiple of 64 bytes.

    Raises:
        WireError: it is longer than a message may be; nothing was sent.
    """
    length = sum(map(_padded, map(len, buffers)))
    if len(head) > MOST_HEAD:
        raise WireError(TOO_MUCH)
    if length > MOST_BUFFERS:
        raise WireError(f"{length:,} bytes of arrays; a message holds {MOST_BUFFERS:,} at most")
    channel.sendall(HEADER.pack(len(head), length) + head)
    for buffer in buffers:
        channel.sendall(buffer)
        channel.sendall(bytes(_padded(len(buffer)) - len(buffer)))


def receive(channel: socket.socket, seconds: float | None = None) -> tuple[memoryview, memoryview]:
    """The next message: its head, and its buffers in memory that no meter counts as an allocation.

    Raises:
        EOFError: the other side has hung up.
        WireError: the message is longer than a message may be.
        TimeoutError: it did not arrive within `seconds`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    length, n_buffers = HEADER.unpack(_exactly(channel, bytearray(HEADER.size), deadline))
    if length > MOST_HEAD or n_buffers > MOST_BUFFERS:
        raise WireError(f"a message of {length + n_buffers:,} bytes; {MOST_HEAD:,} and {MOST_BUFFERS:,} are allowed")
    pages = mmap.mmap(-1, n_buffers, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if n_buffers else bytearray()
    return _exactly(channel, bytearray(length), deadline), _exactly(channel, pages, deadline)


def for_worker(message: Any, special: Special) -> tuple[bytes, Writer]:
    """A message for a worker, as a head and the writer that has its buffers and arrays.

    `special` may give a description of an object, a list, by which the worker finds or makes what it stands for.
    """
    writer, file = Writer(special), io.BytesIO()
    _Pickler(file, writer).dump(message)
    return msgspec.msgpack.encode((writer.sizes(), file.getvalue())), writer


def from_suite(head: memoryview, buffers: memoryview, special: Special) -> tuple[Any, Reader]:
    """What `for_worker` was given, and the reader that has its arrays. The sender is trusted."""
    sizes, pickled = msgspec.msgpack.decode(head)
    reader = Reader(_cut(buffers, sizes), special)
    unpickler = pickle.Unpickler(io.BytesIO(pickled))
    unpickler.persistent_load = reader.described  # type: ignore[method-assign]
    return unpickler.load(), reader


def for_suite(message: FromWorker, special: Special) -> tuple[bytes, list[memoryview]]:
    """A message for the suite, as a head and buffers.

    Raises:
        WireError: a value contains itself, or has more text or parts than a message may have.
    """
    writer = Writer(special)
    for name in VALUES[type(message)]:
        setattr(message, name, writer.tree(getattr(message, name), 0))
    return msgspec.msgpack.encode((writer.sizes(), message)), writer.buffers


def from_worker(head: memoryview, buffers: memoryview, special: Special) -> FromWorker:
    """A message that may be anything: checked step by step; nothing in it is executed.

    Raises:
        WireError: for anything that `for_suite` would not have written.
    """
    try:
        sizes, message = _decoder.decode(head)
        reader = Reader(_cut(buffers, sizes), special)
        for name in VALUES[type(message)]:
            setattr(message, name, reader.value(getattr(message, name), 0))
        return message
    except WireError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise WireError(f"not a message: {type(error).__name__}: {error}") from None
    except (RuntimeError, MemoryError) as error:  # from torch and NumPy, about shapes and sizes
        raise WireError(f"not a message: {type(error).__name__}") from None


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, writer: Writer) -> None:
        super().__init__(file, protocol=5)
        self._writer = writer

    def persistent_id(self, obj: Any) -> Any:
        return self._writer.array(obj) or self._writer.special(obj)


class Writer:
    """Describes values. Storages that arrays share are sent once, an array that comes twice has one number."""

    def __init__(self, special: Special) -> None:
        self.special = special
        self.buffers: list[memoryview] = []
        self.arrays: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, tuple[Any, int]] = {}
        self._n_nodes = 0

    def sizes(self) -> list[int]:
        """The lengths of the buffers, in bytes."""
        return [len(each) for each in self.buffers]

    def array(self, x: Any) -> list[Any] | None:
        """What describes `x` if it is an array or a tensor whose numbers can cross."""
        if isinstance(x, np.ndarray):
            x = x.view(np.ndarray) if type(x) is not np.ndarray else x
            return ["array", self._array(x)] if x.dtype.kind in ARRAY_KINDS else None
        torch = sys.modules.get("torch")
        if torch is not None and type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided:
            return ["tensor", self._tensor(torch, x)]
        return None

    def tree(self, x: Any, depth: int) -> Any:
        """`x` as plain data: containers by the iteration of their own type, so that no code of a subclass runs."""
        self._n_nodes += 1
        if self._n_nodes > MOST_NODES or depth > DEEPEST:
            raise WireError(TOO_MUCH)
        if x is None or type(x) in (bool, float):
            return x
        if isinstance(x, np.generic) and (array := self.array(np.asarray(x))):
            return {"scalar": array[1]}
        for kind in (list, tuple, set, frozenset):
            if isinstance(x, kind):
                items = [self.tree(each, depth + 1) for each in kind.__iter__(x)]  # type: ignore[attr-defined, arg-type]
                return items if kind is list else {"tuple" if kind is tuple else "set": items}
        if isinstance(x, dict):
            return {"dict": [[self.tree(k, depth + 1), self.tree(v, depth + 1)] for k, v in dict.items(x)]}
        if isinstance(x, str):
            if str.__len__(x) > MOST_HEAD:
                raise WireError(TOO_MUCH)
            return str.__str__(x)
        if isinstance(x, int) and type(x) is not bool:
            return self._int(int.__add__(x, 0))
        if isinstance(x, float):
            return float.__add__(x, 0.0)
        if (described := self.array(x) or self._small(x) or self.special(x)) is not None:
            kind, content = described
            return {kind: content}
        raise WireError(f"a {type(x).__name__[:80]} cannot cross")

    def _int(self, x: int) -> Any:
        if -(1 << 63) <= x < 1 << 63:
            return x
        if x.bit_length() > 3 * MOST_DIGITS:
            raise WireError(f"a number of more than {MOST_DIGITS} digits cannot cross")
        return {"int": str(x)}

    def _small(self, x: Any) -> list[Any] | None:
        torch = sys.modules.get("torch")
        if isinstance(x, slice | range):
            return [type(x).__name__, [self.tree(each, DEEPEST) for each in (x.start, x.stop, x.step)]]
        if x is Ellipsis:
            return ["ellipsis", None]
        if isinstance(x, bytes | bytearray):
            return ["bytes", self._buffer(memoryview(bytes(x)))]
        if isinstance(x, complex):
            return ["complex", [x.real, x.imag]]
        if isinstance(x, np.dtype):
            return ["dtype", x.str]
        if isinstance(x, type) and (x in TYPES.values() or x.__module__ == "numpy"):
            return ["type", x.__name__]
        if torch is not None and isinstance(x, torch.dtype | torch.device):
            return [f"torch.{type(x).__name__}", str(x).removeprefix("torch.")]
        return None

    def _number(self, x: Any) -> int:
        number = self._numbers.setdefault(id(x), len(self._numbers))
        self.arrays[number] = x
        return number

    def _array(self, x: np.ndarray) -> list[Any]:
        number = self._number(x)
        if x.dtype.byteorder == ">":
            x = x.astype(x.dtype.newbyteorder("<"))
        if not x.size:
            return [number, 0, x.dtype.str, list(x.shape), [], 0, x.flags.writeable]
        owner = x
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        (first, last), (start, end) = map(np.lib.array_utils.byte_bounds, (x, owner))
        if not (start <= first <= last <= end and end - start <= 4 * (last - first) + 4096):
            owner, start, end = x, first, last  # a small part of something large
        if id(owner) not in self._storages:
            self._storages[id(owner)] = owner, self._buffer(_memory(start, end - start, owner))
        at = x.__array_interface__["data"][0] - start
        buffer = self._storages[id(owner)][1]
        return [number, buffer, x.dtype.str, list(x.shape), list(x.strides), at, x.flags.writeable]

    def _tensor(self, torch: Any, x: Any) -> list[Any]:
        number = self._number(x)
        with torch._C.DisableTorchFunctionSubclass(), torch.utils._python_dispatch._disable_current_modes():
            grad, x = x.requires_grad, x.detach().resolve_conj().resolve_neg()
            storage = x.untyped_storage()
            if storage._cdata not in self._storages:
                buffer = -storage.nbytes() - 1  # of a meta tensor only the size crosses
                if x.device.type != "meta":
                    buffer = self._buffer(_memory(storage.data_ptr(), storage.nbytes(), storage))
                self._storages[storage._cdata] = storage, buffer
            buffer, dtype = self._storages[storage._cdata][1], str(x.dtype).removeprefix("torch.")
            return [number, buffer, dtype, list(x.shape), list(x.stride()), x.storage_offset(), grad]

    def _buffer(self, data: memoryview) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1


class Reader:
    """Makes values from descriptions, which may be anything: every step is checked."""

    def __init__(self, buffers: list[memoryview], special: Special) -> None:
        self.buffers = buffers
        self.special = special
        self.arrays: dict[int, Any] = {}
        self._storages: dict[int, Any] = {}
        self._n_bytes = 0  # of the arrays made so far, were they written out
        self._n_nodes = 0

    def value(self, tree: Any, depth: int) -> Any:
        """What `Writer.tree` described."""
        self._n_nodes += 1
        if self._n_nodes > MOST_NODES or depth > DEEPEST + 2:
            raise WireError(TOO_MUCH)
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        if isinstance(tree, list):
            return [self.value(each, depth + 1) for each in tree]
        ((kind, content),) = tree.items()
        if kind == "tuple":
            return tuple(self.value(content, depth))
        if kind == "set":
            return set(self.value(content, depth))
        if kind == "dict":
            return {self.value(k, depth + 1): self.value(v, depth + 1) for k, v in content}
        if kind in ("slice", "range"):
            return self._run(kind, self.value(content, depth))
        return self.described((kind, content))

    def described(self, description: Any) -> Any:
        """What a description of one thing stands for."""
        kind, content = description
        if kind == "array":
            return self._known(content, self._array)
        if kind == "tensor":
            return self._known(content, self._tensor)
        if kind == "scalar":
            return self._array(content)[()]
        if kind == "int":
            if len(content) > MOST_DIGITS:
                raise WireError(TOO_MUCH)
            return int(content)
        if kind == "bytes":
            return bytes(self._buffer(content))
        if kind == "complex":
            return complex(*content)
        if kind == "ellipsis":
            return Ellipsis
        if kind == "dtype":
            return _numpy_dtype(content)
        if kind == "type":
            return TYPES[content] if content in TYPES else _numpy_dtype(content).type
        if kind == "torch.dtype":
            return _torch_dtype(content)
        if kind == "torch.device":
            import torch

            return torch.device(str(content))
        return self.special(description)

    def _run(self, kind: str, bounds: Any) -> slice | range:
        if kind == "slice":
            return slice(*bounds)
        numbers = range(*bounds)
        if (numbers.stop - numbers.start) // numbers.step > MOST_NODES:
            raise WireError(TOO_MUCH)
        return numbers

    def _known(self, content: Any, make: Callable[[Any], Any]) -> Any:
        number = content[0]
        if number not in self.arrays:
            self.arrays[number] = make(content)
        return self.arrays[number]

    def _array(self, content: Any) -> np.ndarray:
        _, buffer, name, shape, strides, at, writeable = content
        dtype, shape = _numpy_dtype(name), _numbers(shape)
        self._count(shape, dtype.itemsize)
        if 0 in shape:
            return np.empty(shape, dtype)
        array = np.ndarray(shape, dtype, self._buffer(buffer), int(at), _numbers(strides))  # checks the bounds
        array.flags.writeable = bool(writeable)
        return array

    def _tensor(self, content: Any) -> Any:
        import torch

        _, buffer, name, shape, strides, at, grad = content
        dtype, shape, strides = _torch_dtype(name), _numbers(shape), _numbers(strides)
        if type(buffer) is not int or type(at) is not int:
            raise WireError("a buffer and an offset are whole numbers")
        if buffer >= 0:
            self._count(shape, dtype.itemsize)
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            if buffer not in self._storages:
                self._storages[buffer] = self._storage(torch, buffer)
            storage = self._storages[buffer]
            span = at + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1 if all(shape) else 0
            if min((*shape, *strides, at), default=0) < 0 or span * dtype.itemsize > storage.nbytes():
                raise WireError("a tensor that reaches out of its storage")
            tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, at, shape, strides)
        return tensor.requires_grad_() if grad and (dtype.is_floating_point or dtype.is_complex) else tensor

    def _storage(self, torch: Any, buffer: int) -> Any:
        if buffer < 0:
            return torch.empty(-buffer - 1, dtype=torch.uint8, device="meta").untyped_storage()
        data = self._buffer(buffer)
        return (torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0)).untyped_storage()

    def _count(self, shape: tuple[int, ...], itemsize: int) -> None:
        """Bound what an expanded array would take once somebody computes with it."""
        self._n_bytes += math.prod(shape) * itemsize if all(n >= 0 for n in shape) else 0
        if self._n_bytes > MOST_BUFFERS:
            raise WireError(f"arrays of {self._n_bytes:,} bytes; a message holds {MOST_BUFFERS:,} at most")

    def _buffer(self, number: Any) -> memoryview:
        if type(number) is not int or not 0 <= number < len(self.buffers):
            raise WireError("a buffer that is not there")
        return self.buffers[number]


def same(x: Any) -> Any:
    """What it is given: how an object is pickled as another one."""
    return x


def _cut(buffers: memoryview, sizes: Any) -> list[memoryview]:
    views, start = [], 0
    for size in sizes:
        if not 0 <= size <= len(buffers) - start:
            raise WireError("the buffers are not as long as announced")
        views.append(buffers[start : start + size])
        start += _padded(size)
    if start != len(buffers):
        raise WireError("the buffers are not as long as announced")
    return views


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > 32 or not all(type(n) is int for n in values):
        raise WireError("a shape is a list of whole numbers")
    return tuple(values)


def _numpy_dtype(name: Any) -> np.dtype:
    dtype = np.dtype(str(name))
    if dtype.kind not in ARRAY_KINDS or dtype.fields or dtype.subdtype:
        raise WireError(f"arrays of {name!r} do not cross")
    return dtype


def _torch_dtype(name: Any) -> Any:
    import torch

    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"torch has no dtype {name!r}")
    return dtype


def _memory(address: int, length: int, owner: Any) -> memoryview:
    """The bytes at an address, not copied; `owner` lives as long as they may be read."""
    if not length:
        return memoryview(b"")
    block = (ctypes.c_char * length).from_address(address)
    block.owner = owner  # type: ignore[attr-defined, arg-type]
    return memoryview(block).cast("B")


def _padded(length: int) -> int:
    """`length`, up to where the next buffer may begin."""
    return -(-length // ALIGNED) * ALIGNED


def _exactly(channel: socket.socket, memory: bytearray | mmap.mmap, deadline: float | None) -> memoryview:
    view, n_read = memoryview(memory), 0
    while n_read < len(view):
        if deadline is not None:
            channel.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            n_now = channel.recv_into(view[n_read:])
        finally:
            if deadline is not None:
                channel.settimeout(None)
        if not n_now:
            raise EOFError
        n_read += n_now
    return view
