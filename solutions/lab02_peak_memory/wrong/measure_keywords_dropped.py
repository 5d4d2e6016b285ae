"""Keyword arguments do not reach fn.

Task: measure_memory
Killed by: TestMeasureMemory::test_arguments_are_handed_on
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args)
        return (tracker.peak_allocated(), result)
