"""What is handed from one segment to the next is detached.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_result_and_gradients
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for start, stop in pairwise(bounds):
        x = checkpoint(_run, layers[start:stop], x.detach())
    return x
