"""How many bytes a torch function allocates, holds at its peak, and keeps for its backward pass, on any device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from labkit.meters.allocation import AllocationMeter, SimulatedOutOfMemoryError
from labkit.meters.cuda import CudaMeter
from labkit.meters.saved import kept_by_forward

__all__ = [
    "AllocationMeter",
    "CudaMeter",
    "SimulatedOutOfMemoryError",
    "kept_by_forward",
    "measure_peak",
    "meter_for",
]


class TensorMemory(NamedTuple):
    """What one call held, in bytes, without older memory: at its peak, and at its end with its result."""

    peak_bytes: int
    kept_bytes: int
    result: Any


def measure_peak(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> TensorMemory:
    """Call `fn(*args, **kwargs)` and count the bytes that it holds.

    The first tensor among the arguments decides the device and so the meter (`meter_for`); without one, torch's default
    device does. The result is still held when they are read.
    """
    if hasattr(fn, "__beside__"):  # fn lives in another process, and is measured there
        return TensorMemory(*fn.__beside__(measure_peak, *args, **kwargs))
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with meter_for(tensors[0].device if tensors else torch.get_default_device()) as meter:
        result = fn(*args, **kwargs)
    return TensorMemory(meter.peak_bytes, meter.live_bytes, result)


def meter_for(device: str | torch.device, round_to: int = 1) -> AllocationMeter | CudaMeter:
    """`AllocationMeter` for cpu and meta, `CudaMeter` for cuda, which rounds by itself (RuntimeError without a GPU)."""
    kind = torch.device(device).type
    if kind == "cuda":
        return CudaMeter(device)
    if kind not in ("cpu", "meta"):
        raise RuntimeError(f"no meter for device {kind!r}: cpu, meta and cuda have one")
    return AllocationMeter(round_to)
