"""The arguments are counted as well.

Task: measure_memory
Killed by: TestMeasureMemory::test_worked_example
Says: the arguments are counted
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args, **kwargs)
        held = sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        return (tracker.peak_allocated() + held, result)
