"""The tracker looks on until it is reset, also after the block.

Task: MemoryTracker
Killed by: TestMemoryTracker::test_after_the_block
Killed by: TestMemoryTracker::test_an_exception_passes
Says: still looks on
"""


class MemoryTracker:
    def __init__(self, device="cpu"):
        self._device = torch.device(device)
        if self._device.type not in ("cpu", "meta", "cuda"):
            raise ValueError(f"device must be cpu, meta or cuda, got {str(device)!r}")
        if self._device.type == "cuda" and (not torch.cuda.is_available()):
            raise RuntimeError("no CUDA device here: its allocator's statistics would read 0")
        self._counter = _counter_for(self._device)

    def __enter__(self):
        self._counter = _counter_for(self._device)
        self._counter.__enter__()
        return self

    def __exit__(self, kind, error, trace):
        pass

    def reset(self):
        self._counter.reset()

    def current_allocated(self):
        return self._counter.live_bytes

    def peak_allocated(self):
        return self._counter.peak_bytes
