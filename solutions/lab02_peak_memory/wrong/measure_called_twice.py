"""fn is called once to warm up and once to measure.

Task: measure_memory
Killed by: TestMeasureMemory::test_fn_is_called_once
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    fn(*args, **kwargs)
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args, **kwargs)
        return (tracker.peak_allocated(), result)
