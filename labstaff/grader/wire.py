"""Messages between the suite and a worker.

Towards the worker a message is pickled: the sender is trusted. Back comes msgpack of fixed types, nothing of which is
executed. Both ways the bytes of arrays and tensors follow, a buffer for each. A request has a random number, and its
reply the same one: what comes without it, or when nothing was asked, is no reply.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import io
import math
import mmap
import operator
import pickle
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, ModuleType
from typing import Annotated, Any, NamedTuple

import cloudpickle
import cloudpickle.cloudpickle as by_value
import msgspec
import numpy as np

HEADER = struct.Struct("<8sIH")
"""The request's number, bytes of the head, and how many buffers follow it."""
READY = bytes(8)
"""The number of a worker's first message, which answers no request."""
SIZE = struct.Struct("<Q")
MAX_HEAD = 4 << 20
MAX_BUFFERS = 256 << 20
MAX_NUMBERS = 1 << 20
"""Parts of a message, and elements of an empty array or of a range."""
MAX_KEYS = 1 << 12
"""Of all dicts and sets, without texts: Python's integers can be chosen so that finding one takes as long as there are
others; the hashes of texts are salted."""
MAX_AXES = 64
MAX_META = 1 << 40
"""Elements of a tensor without memory."""
MAX_TEXT, MAX_KINDS, MAX_PLACES = 2000, 8, 40
"""Of an exception: characters of its message, classes, and places that it passed through."""
ARRAY_KINDS = "biufcUS"
CACHED = type(functools.cache(len))
TOO_MUCH = "it is nested too deep, or has too many parts, or too much text"


class WireError(Exception):
    """What is to cross, or has crossed, is not a message, or is too large."""


class NotAsked(Exception):
    """What came is not the reply to the request."""


# Framing


def send(channel: socket.socket, number: bytes, head: bytes, buffers: Sequence[memoryview] = ()) -> None:
    """Send a message: a request with its number, or the reply to it.

    Raises:
        WireError: it is longer than a message may be; nothing was sent.
    """
    if len(head) > MAX_HEAD or len(buffers) > 0xFFFF:
        raise WireError(TOO_MUCH)
    _require_room(sum(map(len, buffers)))
    channel.sendall(HEADER.pack(number, len(head), len(buffers)) + head)
    for buffer in buffers:
        channel.sendall(SIZE.pack(len(buffer)))
        channel.sendall(buffer)


def receive(
    channel: socket.socket, number: bytes | None = None, seconds: float | None = None
) -> tuple[bytes, memoryview, list[memoryview]]:
    """The next message: its number, its head, and its buffers in memory that no meter counts as an allocation.

    Args:
        number: of the request whose reply is to come; None for any message.
        seconds: how long the other side may be silent.

    Raises:
        EOFError: the other side has hung up.
        NotAsked: the message has another number.
        WireError: the message is longer than a message may be.
        TimeoutError: nothing came for `seconds`.
    """
    channel.settimeout(seconds)
    its_number, length, n_buffers = HEADER.unpack(_exactly(channel, bytearray(HEADER.size)))
    if number not in (None, its_number):
        raise NotAsked
    if length > MAX_HEAD:
        raise WireError(f"a head of {length:,} bytes; {MAX_HEAD:,} are allowed")
    head, buffers, left = _exactly(channel, bytearray(length)), [], MAX_BUFFERS
    for _ in range(n_buffers):
        (size,) = SIZE.unpack(_exactly(channel, bytearray(SIZE.size)))
        if size > left:
            raise WireError(f"a buffer of {size:,} bytes; a message holds {MAX_BUFFERS:,} at most")
        left -= size
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if size else bytearray()
        buffers.append(_exactly(channel, pages))
    return its_number, head, buffers


def require_silence(channel: socket.socket) -> None:
    """Raise NotAsked if something has come that nobody has asked for."""
    channel.settimeout(None)
    with contextlib.suppress(BlockingIOError):
        if channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise NotAsked


def _exactly(channel: socket.socket, memory: bytearray | mmap.mmap) -> memoryview:
    view, n_read = memoryview(memory), 0
    while n_read < len(view):
        n_now = channel.recv_into(view[n_read:])
        if not n_now:
            raise EOFError
        n_read += n_now
    return view


# Towards the worker


class Pickled(NamedTuple):
    """A message for a worker, and the arrays and tensors that are in it."""

    head: bytes
    buffers: list[memoryview]
    arrays: list[Any]


def for_worker(message: Any) -> Pickled:
    """Pickle a message for a worker.

    Classes that are sent by value are new in each message: what a submission does to one is gone in the next.
    """
    by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    by_value._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    file = io.BytesIO()
    pickler = Pickler(file)
    pickler.dump(message)
    return Pickled(file.getvalue(), pickler.buffers, pickler.arrays)


_find_submodules = by_value._find_imported_submodules


def _submodules(code: CodeType, dependencies: Iterable[Any]) -> list[ModuleType]:
    """What cloudpickle's own function finds, which goes through all of `sys.modules` for each function it pickles."""
    packages = tuple(each for each in dependencies if isinstance(each, ModuleType))
    return list(_submodules_now(code, packages, len(sys.modules))) if packages else []


@functools.lru_cache(maxsize=4096)
def _submodules_now(code: CodeType, packages: tuple[ModuleType, ...], _n_modules: int) -> list[ModuleType]:
    return _find_submodules(code, packages)


by_value._find_imported_submodules = _submodules


def from_suite(head: memoryview | bytes, buffers: Sequence[memoryview]) -> tuple[Any, list[Any]]:
    """The message, and the arrays in it in the order of `Pickled.arrays`."""
    _arrived.clear()
    message = Unpickler(io.BytesIO(head), buffers=buffers).load()
    return message, list(_arrived)


OWN_PACKAGES = ("labstaff", "cloudpickle", "msgspec")
_own: dict[str, Any] = {}


def hide_own_modules() -> None:
    """Have an import of what reads and writes messages find a copy, from now on: changing that changes nothing here."""
    _own.update({name: module for name, module in sys.modules.items() if name.split(".")[0] in OWN_PACKAGES})
    for name in _own:
        del sys.modules[name]


class Unpickler(pickle.Unpickler):
    """Finds the modules that are hidden from a submission."""

    def find_class(self, module: str, name: str) -> Any:
        """See `pickle.Unpickler`."""
        return operator.attrgetter(name)(_own[module]) if module in _own else super().find_class(module, name)


class Pickler(cloudpickle.Pickler):
    """Pickles arrays and tensors with their strides; those that share memory share it in the worker too."""

    def __init__(self, file: io.BytesIO) -> None:
        buffers = self.buffers = list[memoryview]()  # a callback with self would keep all that was pickled alive
        self.arrays: list[Any] = []
        self._memories: dict[tuple[Any, int, int], _Memory] = {}
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        torch = sys.modules.get("torch")
        if isinstance(obj, np.ndarray) and obj.dtype.kind in ARRAY_KINDS:
            self.arrays.append(obj)
            return _array, self._layout_of_array(obj)
        if torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter) and obj.layout is torch.strided:
            self.arrays.append(obj)
            return _tensor, self._layout_of_tensor(obj)
        if torch is not None and obj is torch.ops:
            return importlib.import_module, (obj.__name__,)
        if torch is not None and isinstance(obj, type(torch.ops.aten.add.Tensor)):
            return _operator, (str(obj),)
        if type(obj) is CACHED and by_value._is_registered_pickle_by_value(sys.modules[obj.__module__]):
            return functools.cache, (obj.__wrapped__,)
        return super().reducer_override(obj)

    def _layout_of_array(self, x: np.ndarray) -> tuple[Any, ...]:
        if not x.size:
            return x.shape, x.dtype
        first, last = np.lib.array_utils.byte_bounds(x)
        memory = self._memory(identity, first, last - first, x)
        return x.shape, x.dtype, memory, x.ctypes.data - first, x.strides

    def _layout_of_tensor(self, x: Any) -> tuple[Any, ...]:
        grad, x = x.requires_grad, x.detach().resolve_conj().resolve_neg()
        memory, storage = None, x.untyped_storage()
        if x.device.type != "meta":
            memory = self._memory(_storage, storage.data_ptr(), storage.nbytes(), storage)
        return grad, x.dtype, memory, x.storage_offset(), tuple(x.shape), x.stride()

    def _memory(self, made: Callable[[memoryview], Any], address: int, n_bytes: int, owner: Any) -> _Memory:
        return self._memories.setdefault((made, address, n_bytes), _Memory(made, address, n_bytes, owner))


class _Memory:
    """So many bytes at an address, sent once, and not copied before they are."""

    def __init__(self, made: Callable[[memoryview], Any], address: int, n_bytes: int, owner: Any) -> None:
        self._made, self._owner = made, owner
        self._bytes = (ctypes.c_char * n_bytes).from_address(address) if n_bytes else bytearray()

    def __reduce__(self) -> Any:
        return self._made, (pickle.PickleBuffer(self._bytes),)


_arrived: list[Any] = []


def _array(*layout: Any) -> np.ndarray:
    array = np.ndarray(*layout)
    _arrived.append(array)
    return array


def _tensor(grad: bool, dtype: Any, storage: Any, *layout: Any) -> Any:
    import torch

    from labkit.meters.torch_private import without_modes

    with without_modes(), torch.no_grad():
        if storage is None:
            tensor = torch.empty_strided(*layout[1:], dtype=dtype, device="meta")
        else:
            tensor = torch.empty(0, dtype=dtype).set_(storage, *layout)
    _arrived.append(tensor.requires_grad_(grad))
    return tensor


def _storage(memory: memoryview) -> Any:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() if len(memory) else torch.UntypedStorage(0)


def _operator(name: str) -> Any:
    import torch

    return operator.attrgetter(name)(torch.ops)


def identity(x: Any) -> Any:
    """`x`: `__reduce__` names it where an object is pickled as another one."""
    return x


# Back from the worker


class Returned(msgspec.Struct, tag=True, array_like=True):
    """A result; and, where they were asked for, the arrays among the arguments as they are after the call."""

    result: Any = None
    arguments: Any = None


class Raised(msgspec.Struct, tag=True, array_like=True):
    """An exception: its classes (nearest first), its message, and the places it passed through."""

    kinds: Annotated[list[str], msgspec.Meta(max_length=MAX_KINDS)]
    message: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    places: Annotated[list[tuple[str, int, str]], msgspec.Meta(max_length=MAX_PLACES)]


class Opaque:
    """Stands for a result that is no plain data; the name of its type is all that crosses."""


def opaque(name: str) -> Opaque:
    """An instance of a class of this name."""
    return type(name.replace("\0", "")[:80] or "object", (Opaque,), {})()


VALUES: dict[type, tuple[str, ...]] = {Returned: ("result", "arguments"), Raised: ()}
"""The fields that hold values, which cross as plain data: `[kind, …]` for all but numbers, texts and None."""
SEQUENCES = {"tuple": tuple, "list": list, "set": set}
TORCH_DTYPES = {
    *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
_decoder = msgspec.msgpack.Decoder(Returned | Raised)


def for_suite(message: Returned | Raised) -> tuple[bytes, list[memoryview]]:
    """A message for the suite, as a head and buffers.

    Raises:
        WireError: a value contains itself, or has more text or parts than a message may have.
    """
    writer = Writer()
    try:
        for name in VALUES[type(message)]:
            setattr(message, name, writer.value(getattr(message, name)))
        return msgspec.msgpack.encode(message), writer.buffers
    except (RecursionError, ValueError):  # the latter for half a character, or a number of too many digits
        raise WireError(TOO_MUCH) from None


def from_worker(head: memoryview, buffers: list[memoryview]) -> Returned | Raised:
    """A message that may be anything: checked step by step; nothing in it is executed.

    Raises:
        WireError: for anything that `for_suite` would not have written.
    """
    try:
        message = _decoder.decode(head)
        reader = Reader(buffers)
        for name in VALUES[type(message)]:
            setattr(message, name, reader.value(getattr(message, name)))
        return message
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        StopIteration,
    ) as error:
        raise WireError(f"not a message: {type(error).__name__}: {error}") from None
    except (RuntimeError, MemoryError) as error:  # from torch and NumPy, about shapes and sizes
        raise WireError(f"not a message: {type(error).__name__}") from None


class Writer:
    """Makes plain data of values, read by their own types' methods: no code of a subclass runs."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def value(self, x: Any) -> Any:
        """`x` as plain data; the bytes of arrays go to the buffers."""
        if x is None or type(x) in (bool, float, str):
            return x
        if isinstance(x, np.ndarray | np.generic | complex) and np.asarray(x).dtype.kind in ARRAY_KINDS:
            return self._array("array" if isinstance(x, np.ndarray) else "number", np.asarray(x))
        for kind, base in (*SEQUENCES.items(), ("set", frozenset)):
            if isinstance(x, base):
                if base.__len__(x) > MAX_NUMBERS:
                    raise WireError(TOO_MUCH)
                return [kind, [*map(self.value, base.__iter__(x))]]
        if isinstance(x, dict):
            return ["dict", [[self.value(key), self.value(value)] for key, value in dict.items(x)]]
        if isinstance(x, slice | range):
            return [type(x).__name__, [self.value(each) for each in (x.start, x.stop, x.step)]]
        if isinstance(x, int):
            return int.__index__(x) if int.bit_length(x) < 64 else ["integer", int.__repr__(x)]
        for plain in (float, str, bytes):
            if isinstance(x, plain):
                return plain.__getnewargs__(x)[0]  # type: ignore[attr-defined, arg-type]
        return _named(x) or self._tensor(x) or ["opaque", type(x).__name__[:80]]

    def _array(self, kind: str, x: np.ndarray) -> list[Any]:
        _require_room(x.nbytes)
        plain = np.ascontiguousarray(x, x.dtype.newbyteorder("<"))
        self.buffers.append(plain.reshape(-1).view(np.uint8).data)
        return [kind, plain.dtype.str, list(x.shape)]

    def _tensor(self, x: Any) -> list[Any] | None:
        torch = sys.modules.get("torch")
        if torch is None or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
            return None
        from labkit.meters.torch_private import without_modes, without_subclasses

        with without_subclasses(), without_modes():
            if x.device.type != "meta":
                _require_room(x.nbytes)
                plain = x.detach().resolve_conj().resolve_neg().contiguous()
                flat = plain.reshape(-1) if x.numel() else torch.empty(0)  # without elements a stride may be 0
                self.buffers.append(memoryview(flat.view(torch.uint8).numpy()))
            kind = "meta" if x.device.type == "meta" else "tensor"
            return [kind, str(x.dtype).removeprefix("torch."), list(x.shape), x.requires_grad]


class Reader:
    """Makes values of what a `Writer` has made of them."""

    def __init__(self, buffers: list[memoryview]) -> None:
        self._buffers = iter(buffers)
        self._n_parts = self._n_keys = 0

    def value(self, tree: Any) -> Any:
        """The value."""
        self._n_parts += 1
        if self._n_parts > MAX_NUMBERS:
            raise ValueError(TOO_MUCH)
        match tree:
            case ["tuple" | "list" as kind, list(items)]:
                return SEQUENCES[kind](map(self.value, items))
            case ["set", list(items)]:
                self._count_keys(items)
                return set(map(self.value, items))
            case ["dict", list(items)]:
                self._count_keys([key for key, _ in items])
                return {self.value(key): self.value(value) for key, value in items}
            case ["slice", list(bounds)]:
                return slice(*map(self.value, bounds))
            case ["range", list(bounds)]:
                if len(numbers := range(*bounds)) > MAX_NUMBERS:
                    raise ValueError(TOO_MUCH)
                return numbers
            case ["integer", str(digits)]:
                return int(digits)  # Python itself bounds how many there may be
            case ["array" | "number" as kind, str(dtype), list(shape)]:
                kind_of_each = _numpy_dtype(dtype)
                array = np.ndarray(_bounded(shape, kind_of_each.itemsize), kind_of_each, next(self._buffers))
                return array if kind == "array" else array[()]
            case ["tensor" | "meta" as kind, str(dtype), list(shape), bool(grad)]:
                return self._tensor(kind, dtype, shape, grad)
            case ["..."]:
                return Ellipsis
            case ["dtype", str(name)]:
                return _numpy_dtype(name)
            case ["opaque", str(name)]:
                self._n_parts += MAX_NUMBERS >> 10  # a class is large: a thousand are enough
                return opaque(name)
            case None | bool() | int() | float() | str() | bytes():
                return tree
        raise TypeError("a value of an unknown kind")

    def _count_keys(self, keys: list[Any]) -> None:
        self._n_keys += sum(type(key) is not str for key in keys)
        if self._n_keys > MAX_KEYS:
            raise ValueError(TOO_MUCH)

    def _tensor(self, kind: str, name: str, shape: list[int], grad: bool) -> Any:
        import torch

        from labkit.meters.torch_private import without_modes

        if name not in TORCH_DTYPES:
            raise TypeError(f"tensors of {name!r} do not cross")
        dtype = getattr(torch, name)
        with without_modes():
            if kind == "meta":
                _bounded(shape, 0, MAX_META)
                return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)
            memory = next(self._buffers)
            tensor = torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype)
            return tensor.reshape(_bounded(shape, dtype.itemsize)).requires_grad_(grad)


def _named(x: Any) -> list[Any] | None:
    if x is Ellipsis:
        return ["..."]
    if isinstance(x, np.dtype) or (isinstance(x, type) and (x in (bool, int, float) or issubclass(x, np.generic))):
        return ["dtype", np.dtype(x).str]
    return None


def _numpy_dtype(name: str) -> np.dtype:
    dtype = np.dtype(name)
    if dtype.kind not in ARRAY_KINDS or dtype.fields or dtype.subdtype:
        raise TypeError(f"arrays of {name!r} do not cross")
    return dtype


def _bounded(shape: list[int], n_bytes_of_each: int, most: int = MAX_NUMBERS) -> list[int]:
    """`shape`, if no array of it is large without having bytes: each axis of an empty one counts."""
    if len(shape) > MAX_AXES or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("the axes of no array")
    if (0 in shape or not n_bytes_of_each) and math.prod(n or 1 for n in shape) > most:
        raise ValueError(f"an array of {shape} elements")
    return shape


def _require_room(n_bytes: int) -> None:
    if n_bytes > MAX_BUFFERS:
        raise WireError(f"{n_bytes:,} bytes of arrays; a message holds {MAX_BUFFERS:,} at most")
