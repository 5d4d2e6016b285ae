"""The functions are taken for a list, and a module for one function.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_a_module_is_a_sequence_too
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = functions if isinstance(functions, list) else [functions]
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for start, stop in pairwise(bounds):
        x = checkpoint(_run, layers[start:stop], x)
    return x
