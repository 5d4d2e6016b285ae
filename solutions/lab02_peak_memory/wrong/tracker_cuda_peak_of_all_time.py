"""On CUDA the peak is not reset on entering.

Task: MemoryTracker
Killed by: TestMemoryTracker::test_statistics_of_cuda
Says: the peak is not reset on entering
"""


class _CudaCounter:
    def __init__(self, device):
        self.device = device
        self.baseline_bytes = 0

    @property
    def live_bytes(self):
        return torch.cuda.memory_allocated(self.device) - self.baseline_bytes

    @property
    def peak_bytes(self):
        return torch.cuda.max_memory_allocated(self.device) - self.baseline_bytes

    def reset(self):
        torch.cuda.reset_peak_memory_stats(self.device)

    def __enter__(self):
        self.baseline_bytes = torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(self, *error):
        torch.cuda.synchronize(self.device)
