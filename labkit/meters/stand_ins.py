"""Stand-ins for what a test cannot have: a GPU's allocator, a device that is too small, a clock that keeps its word."""

from __future__ import annotations

import builtins
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.collector import collector_waits
from labkit.meters.modes import OperatorMode

RESERVED_BYTES = 2 * 2**20
CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")
"""What `time` calls its clocks; each has a sister in nanoseconds, `…_ns`."""
ELSEWHERE_MS = 10_000


class OperatorCount(TorchDispatchMode):
    """Counts the exponentials and products that run, in all and with no other dispatch mode inside this one."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"exp": 0, "bmm": 0}
        self.unwatched = {"exp": 0, "bmm": 0}
        self._collector = contextlib.ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch._dynamo at the first operator

    def __enter__(self) -> Any:
        self._collector.enter_context(collector_waits())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._collector.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        watched = _called_by_a_mode()
        if name in self.counts:
            self.counts[name] += 1
            self.unwatched[name] += not watched
        self.note(name, watched)
        return func(*args, **(kwargs or {}))

    def note(self, name: str, watched: bool) -> None:
        """Take note of an operator; `watched` says whether another dispatch mode looks on."""


class PacedSteps(OperatorCount):
    """Steps of attention that take the milliseconds they are told, by a clock put in the place of those of `time`.

    The n-th step that no tracker looks on at takes `forward_ms[n]` and `backward_ms[n]`, those after the last as long
    as the last. `taken_ms` has a pair for each. Steps that a tracker looks on at, and the making of random inputs, take
    `ELSEWHERE_MS`. `namespace` is where the code under test keeps its names: clocks imported by name are replaced.
    """

    def __init__(self, forward_ms: Sequence[float], backward_ms: Sequence[float], namespace: dict[str, Any]) -> None:
        super().__init__()
        self.forward_ms, self.backward_ms, self.namespace = forward_ms, backward_ms, namespace
        self.now_ns = 10**12
        self.taken_ms: list[list[float]] = []
        self._task = -1
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PacedSteps:
        self._stack.enter_context(_clocks_replaced(lambda: self.now_ns, self.namespace))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def note(self, name: str, watched: bool) -> None:
        """Move the clock on, once a pass."""
        task = torch._C._current_graph_task_id()
        if task == -1 and name == "exp":
            self._pass_on(self.forward_ms, watched, new=True)
        elif task == -1 and "rand" in name:
            self.now_ns += ELSEWHERE_MS * 10**6
        elif task not in (-1, self._task):
            self._pass_on(self.backward_ms, watched, new=False)
            self._task = task

    def _pass_on(self, costs_ms: Sequence[float], watched: bool, new: bool) -> None:
        if watched:
            self.now_ns += ELSEWHERE_MS * 10**6
            return
        if new:
            self.taken_ms.append([])
        if not self.taken_ms:
            return
        cost_ms = costs_ms[min(len(self.taken_ms), len(costs_ms)) - 1]
        self.taken_ms[-1].append(cost_ms)
        self.now_ns += round(cost_ms * 10**6)


class SmallDevice(OperatorMode):
    """Raises what `error()` makes when a tensor comes out with more than `capacity_bytes`."""

    def __init__(self, capacity_bytes: int, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.capacity_bytes, self.error = capacity_bytes, error

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > self.capacity_bytes:
            raise self.error()
        return out


def out_of_memory(where: str) -> Exception:
    """What is raised where memory is out: on "CUDA", by the allocator of the "CPU", or by that of "CPU_on_Windows"."""
    if where == "CUDA":
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    said = {
        "CPU": "alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 65536 "
        "bytes. Error code 12 (Cannot allocate memory)",
        "CPU_on_Windows": "alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you",
    }
    return RuntimeError(f"[enforce fail at {said[where]}")


class OnCuda(torch.Tensor):
    """A tensor on the CPU that says it is on a GPU."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> OnCuda:
        """As torch makes subclasses of tensors."""
        return torch.Tensor._make_subclass(cls, data)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The first GPU."""
        return torch.device("cuda", 0)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Yes."""
        return True


class CudaStandIn:
    """Plays the CUDA allocator of two devices in a `with` block: its statistics, and nothing else of a GPU."""

    def __init__(self) -> None:
        self.allocated, self.peak = [0, 0], [0, 0]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> CudaStandIn:
        functions: dict[str, Callable[..., Any]] = {
            "memory_stats": self.statistics,
            "memory_allocated": lambda device=None: self.allocated[_index(device)],
            "max_memory_allocated": lambda device=None: self.peak[_index(device)],
            "memory_reserved": lambda device=None: RESERVED_BYTES,
            "max_memory_reserved": lambda device=None: RESERVED_BYTES,
            "reset_peak_memory_stats": self.reset,
            "reset_max_memory_allocated": self.reset,
            "empty_cache": lambda: None,
        }
        states = {"is_available": True, "is_initialized": True, "device_count": 2, "current_device": 0}
        played: dict[str, Callable[..., Any]] = {name: lambda value=value: value for name, value in states.items()}
        played |= dict.fromkeys(("synchronize", "init", "set_device"), lambda *_args, **_kwargs: None)
        self._stack.enter_context(replaced(torch.cuda, **functions, **played))
        self._stack.enter_context(replaced(torch.cuda.memory, **functions))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def allocate(self, nbytes: int, device: Any = None) -> None:
        """Hand out memory."""
        index = _index(device)
        self.allocated[index] += nbytes
        self.peak[index] = max(self.peak[index], self.allocated[index])

    def free(self, nbytes: int, device: Any = None) -> None:
        """Take it back."""
        self.allocated[_index(device)] -= nbytes

    def reset(self, device: Any = None) -> None:
        """Start the peak again."""
        self.peak[_index(device)] = self.allocated[_index(device)]

    def statistics(self, device: Any = None) -> dict[str, int]:
        """The few of `torch.cuda.memory_stats` that are about bytes."""
        return {
            "allocated_bytes.all.current": self.allocated[_index(device)],
            "allocated_bytes.all.peak": self.peak[_index(device)],
            "reserved_bytes.all.current": RESERVED_BYTES,
            "reserved_bytes.all.peak": RESERVED_BYTES,
        }


@contextlib.contextmanager
def takes_of_a_gpu(nbytes: int, otherwise: int) -> Iterator[Callable[..., torch.Tensor]]:
    """A function that takes `nbytes` of a GPU at its peak, and gives a tensor of `otherwise` bytes on the CPU.

    The GPU is played, and something is allocated there before.
    """
    with CudaStandIn() as gpu:
        gpu.allocate(1000)

        def fn(*_args: Any, **_kwargs: Any) -> torch.Tensor:
            gpu.allocate(nbytes)
            gpu.free(nbytes - 100)
            return torch.zeros(otherwise // 4)

        yield fn


@contextlib.contextmanager
def without_a_gpu() -> Iterator[None]:
    """In the block, CUDA has no device."""
    with replaced(torch.cuda, is_available=lambda: False, device_count=lambda: 0):
        yield


@contextlib.contextmanager
def replaced(module: ModuleType, **values: Any) -> Iterator[None]:
    """Give `module` other functions in a `with` block."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextlib.contextmanager
def _clocks_replaced(now_ns: Callable[[], int], namespace: dict[str, Any]) -> Iterator[None]:
    clocks: dict[str, Any] = dict.fromkeys(CLOCKS, lambda: now_ns() / 10**9)
    clocks |= dict.fromkeys((f"{name}_ns" for name in CLOCKS), now_ns)
    stand_in_of = {getattr(time, name): clock for name, clock in clocks.items()}
    imported = {name: value for name, value in namespace.items() if _is_key(value, stand_in_of)}
    with contextlib.ExitStack() as stack:
        for module in {id(each): each for each in (time, _what_import_gives("time", namespace))}.values():
            stack.enter_context(replaced(module, **clocks))
        namespace.update({name: stand_in_of[value] for name, value in imported.items()})
        stack.callback(namespace.update, imported)
        yield


def _what_import_gives(name: str, namespace: dict[str, Any]) -> ModuleType:
    """The module that code in `namespace` gets when it imports `name`: a sandbox may give out one of its own."""
    own = namespace.get("__builtins__", builtins)
    return (own if isinstance(own, dict) else vars(own))["__import__"](name)


def _is_key(value: Any, table: dict[Any, Any]) -> bool:
    return callable(value) and any(value is each for each in table)


def _index(device: Any) -> int:
    if device is None or isinstance(device, int):
        return device or 0
    return torch.device(device).index or 0


def _called_by_a_mode() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame is not None
