"""fn runs without gradients.

Task: measure_memory
Killed by: TestMeasureMemory::test_the_result_is_handed_on_as_it_is
Says: has lost its graph
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        with torch.no_grad():
            result = fn(*args, **kwargs)
        return (tracker.peak_allocated(), result)
