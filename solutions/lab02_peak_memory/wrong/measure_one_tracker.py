"""One tracker serves all calls, and its peak is never reset.

Task: measure_memory
Killed by: TestMeasureMemory::test_the_peak_of_a_smaller_call_after_a_larger_one
"""

_TOTAL = [0]


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args, **kwargs)
    _TOTAL[0] = max(_TOTAL[0], tracker.peak_allocated()) + 0 * len(args)
    return _TOTAL[0], result
