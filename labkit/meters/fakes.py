"""Fakes for tests: a device that is too small, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit.meters.modes import OperatorMode


class SmallDevice(OperatorMode):
    """Raises `error()` when an operator's result has more than `capacity_bytes`."""

    def __init__(self, capacity_bytes: int, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.capacity_bytes, self.error = capacity_bytes, error

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > self.capacity_bytes:
            raise self.error()
        return out


def out_of_memory(where: str) -> Exception:
    """The out-of-memory error of "CUDA", of the allocator of the "CPU", or of that of "CPU_on_Windows"."""
    if where == "CUDA":
        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    said = {
        "CPU": "alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 65536 "
        "bytes. Error code 12 (Cannot allocate memory)",
        "CPU_on_Windows": "alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you",
    }
    return RuntimeError(f"[enforce fail at {said[where]}")
