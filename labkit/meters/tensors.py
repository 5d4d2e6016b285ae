"""How many bytes a torch function allocates, holds at its peak, and keeps for its backward pass, on any device."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.torch_private import tree_leaves


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
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with meter_for(tensors[0].device if tensors else torch.get_default_device()) as meter:
        result = fn(*args, **kwargs)
    return TensorMemory(meter.peak_bytes, meter.live_bytes, result)


def meter_for(device: str | torch.device, round_to: int = 1) -> "AllocationMeter | CudaMeter":
    """`AllocationMeter` for cpu and meta, `CudaMeter` for cuda, which rounds by itself (RuntimeError without a GPU)."""
    kind = torch.device(device).type
    if kind == "cuda":
        return CudaMeter(device)
    if kind not in ("cpu", "meta"):
        raise RuntimeError(f"no meter for device {kind!r}: cpu, meta and cuda have one")
    return AllocationMeter(round_to)


class CudaMeter:
    """Live and peak bytes of one CUDA device, minus what was allocated on entering.

    Reads `torch.cuda.memory_allocated` and `max_memory_allocated` (reset on entering, so before the work), after a
    synchronise. What the allocator holds back for later (`memory_reserved`) is not counted; what it rounds up, and the
    workspaces that libraries ask it for, are. Raises RuntimeError where there is no CUDA device: the statistics would
    read 0 and every bound on them would hold.
    """

    def __init__(self, device: str | torch.device = "cuda") -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                "no CUDA device here, so its allocator has no statistics to read; "
                "AllocationMeter counts the same on the CPU and on meta tensors"
            )
        self.device = torch.device(device)
        self.baseline_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes allocated now, over the baseline."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device) - self.baseline_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes allocated at once since entering or since `reset`, over the baseline."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - self.baseline_bytes

    def reset(self) -> None:
        """Start the peak again from what is allocated now."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def __enter__(self) -> "CudaMeter":
        self.reset()
        self.baseline_bytes = torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.cuda.synchronize(self.device)


def kept_by_forward(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that `fn(*args)` allocates and that stay alive with its output, without the output itself.

    That is what autograd saves, each storage once, beside what `args` and the output hold, and what is hidden from its
    hooks as well: a tensor that a custom Function keeps as an attribute of `ctx`, or what `torch.utils.checkpoint`
    holds. On the CPU and on meta tensors only.
    """
    with AllocationMeter() as meter:
        output = fn(*args)
    blocks = {block for tensor in _tensors(output) for block in meter.blocks_of(tensor)}
    return meter.live_bytes - sum(block.nbytes for block in blocks)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()
        elif isinstance(leaf, torch.Tensor):
            yield leaf
