"""Bytes allocated by CUDA's caching allocator, from its own statistics."""

from types import TracebackType

import torch


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
