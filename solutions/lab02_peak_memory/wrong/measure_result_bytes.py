"""The size of the result stands for the peak.

Task: measure_memory
Killed by: TestMeasureMemory::test_worked_example
Killed by: TestMeasureMemory::test_attention
"""


def measure_memory(fn, *args, **kwargs):
    devices = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with MemoryTracker(devices[0] if devices else "cpu") as tracker:
        result = fn(*args, **kwargs)
        return (sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)), result)
