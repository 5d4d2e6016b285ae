"""An exception in fn leaves the tracker on.

Task: measure_memory
Killed by: TestMeasureMemory::test_an_exception_passes
Says: still looks on
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    tracker = MemoryTracker(devices[0] if devices else "cpu")
    tracker.__enter__()
    result = fn(*args, **kwargs)
    tracker.__exit__(None, None, None)
    return tracker.peak_allocated(), result
