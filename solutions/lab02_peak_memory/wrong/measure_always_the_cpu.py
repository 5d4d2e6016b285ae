"""The device is not looked at: the CPU is measured.

Task: measure_memory
Killed by: TestMeasureMemory::test_no_bytes_without_a_gpu
Says: the first tensor among the arguments
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker("cpu") as tracker:
        result = fn(*args, **kwargs)
        return (tracker.peak_allocated(), result)
