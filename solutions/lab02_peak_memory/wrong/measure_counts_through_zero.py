"""A peak of 0 is taken for a failed measurement, and the result's size given.

Task: measure_memory
Killed by: TestMeasureMemory::test_a_function_that_allocates_nothing
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args, **kwargs)
        return (
            tracker.peak_allocated()
            or sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)),
            result,
        )
